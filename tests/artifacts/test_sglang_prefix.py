from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.artifacts.sglang_prefix import parse_prefix


@pytest.mark.parametrize(
    ("text", "label", "tokens", "rest"),
    [
        ("[2026-05-28 02:19:20 PP1 TP0] msg", "PP1 TP0", {"pp": 1, "tp": 0}, "msg"),
        ("[2026-05-28 02:19:20 PP3] msg", "PP3", {"pp": 3}, "msg"),
        ("[2026-05-28 02:19:20] msg", "", {}, "msg"),
        ("[2026-04-01 20:42:59.182] msg", "", {}, "msg"),
        ("[2026-05-27 23:38:59.096 TP1] msg", "TP1", {"tp": 1}, "msg"),
        ("[2026-05-28 02:19:20 DP1 TP5 EP5] msg", "DP1 TP5 EP5", {"dp": 1, "tp": 5, "ep": 5}, "msg"),
        (
            "[2026-05-28 02:19:20 PP0 ATTN_CP4 TP4 EP4] m",
            "PP0 ATTN_CP4 TP4 EP4",
            {"pp": 0, "cp": 4, "tp": 4, "ep": 4},
            "m",
        ),
        (
            "[2026-05-28 02:19:20 DP0 PP1 MOE_DP2 TP3] m",
            "DP0 PP1 MOE_DP2 TP3",
            {"dp": 0, "pp": 1, "moe_dp": 2, "tp": 3},
            "m",
        ),
        ("[2025-05-28 02:19:20 TP0 PP1] msg", "PP1 TP0", {"pp": 1, "tp": 0}, "msg"),
        ("[PP1 ATTN_CP0 TP0] Init torch", "PP1 ATTN_CP0 TP0", {"pp": 1, "cp": 0, "tp": 0}, "Init torch"),
        ("[TP0] Prefill batch", "TP0", {"tp": 0}, "Prefill batch"),
        ("[2026-05-28 02:19:20 PP12 TP0]   indented", "PP12 TP0", {"pp": 12, "tp": 0}, "  indented"),
        ("[2026-05-28 02:19:20 TP0]", "TP0", {"tp": 0}, ""),
        (
            '[2026-05-28 02:19:20] INFO:     1.2.3.4:1 - "GET / HTTP/1.1" 200 OK',
            "",
            {},
            'INFO:     1.2.3.4:1 - "GET / HTTP/1.1" 200 OK',
        ),
    ],
)
def test_variants(text: str, label: str, tokens: dict[str, int], rest: str) -> None:
    prefix = parse_prefix(text)
    assert prefix is not None
    assert (prefix.label, prefix.tokens, prefix.text) == (label, tokens, rest)


def test_unknown_word_before_the_rank() -> None:
    prefix = parse_prefix("[2025-12-01 23:10:40 DisaggregationMode.IGPUDECODE TP1] msg")
    assert prefix is not None
    assert (prefix.label, prefix.words) == ("TP1", ("DisaggregationMode.IGPUDECODE",))


def test_time() -> None:
    stamped, bare = parse_prefix("[2026-05-28 02:19:20.250 TP1] x"), parse_prefix("[TP1] x")
    assert stamped is not None
    assert stamped.ts == pytest.approx(1779934760.25)
    assert bare is not None
    assert bare.ts is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[Gloo] Rank 0 is connected",
        "[rank3]:[E226 11:16:37 x]",
        "[Tue Jun 23 08:04:31 2026] NVRM: Xid",
        "msg [TP0] x",
        "[7928] [2026-06-04 15:40:34:813] torch",
        "[ 1843.308145] NVRM",
        "[PP1 UNKNOWN TP0] x",
        "[PG ID 2 PG GUID 3 Rank 1] x",
        "[full] total=0",
        "[2026-05-28T02:19:20Z] x",
        "[20/12/2014 02:07:22 PM] - ERROR",
    ],
)
def test_what_is_no_prefix(text: str) -> None:
    assert parse_prefix(text) is None


@given(st.text())
def test_never_raises(text: str) -> None:
    parse_prefix(text)
    parse_prefix("[" + text + "] x")
