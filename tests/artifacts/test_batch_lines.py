"""The vectorised reader equals a plain parser, line by line with regular expressions."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_doctor.artifacts import batch_lines as module
from hicache_doctor.artifacts.batch_lines import REACH, BatchLines
from hicache_doctor.artifacts.source import Source
from hicache_doctor.artifacts.windows import Window, windows
from hicache_doctor.evidence.rows import Batch, columns

DATA = Path(__file__).parent.parent / "data" / "batch_lines.log"
LITERAL = re.compile(rb"(Prefill|Decode) batch")
PREFIX = re.compile(rb"\[([^\[\]\x00-\x1f]{0,96})\] \Z")
TIME = re.compile(rb"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(?!\d)")
KEYS = {
    "new_seq": rb"#new-seq: ?(\d{1,16})",
    "new_token": rb"ew-token: ?(\d{1,16})",
    "cached_token": rb"ed-token: ?(\d{1,16})",
    "usage": rb"(?<!swa )token usage: ?(\d+(?:\.\d+)?)",
    "running": rb"ning-req: ?(\d{1,16})",
    "queue": rb"ueue-req: ?(\d{1,16})",
}


def plain(text: bytes) -> list[dict[str, Any]]:
    """Every batch record of a text, as the docstring of the module defines it."""
    out = []
    hits = list(LITERAL.finditer(text))
    for hit, following in zip(hits, [*hits, None][1:], strict=True):
        kind = "prefill" if hit[1] == b"Prefill" else "decode"
        start = text.rfind(b"\n", 0, hit.start()) + 1
        ts, rank = None, None
        if prefix := PREFIX.search(text[start : hit.start()]):
            label = prefix[1]
            if time := TIME.match(label):
                label = label[time.end() :].removeprefix(b" ")
                try:
                    whole = datetime.strptime(time[1].decode(), "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
                    ts = whole.timestamp() + (int(time[2]) / 10 ** len(time[2]) if time[2] else 0.0)
                except ValueError:
                    pass
            rank = label.decode() or None
        end = following.start() if following else len(text)
        region = re.split(rb'[\n"\\]', text[hit.end() : end], maxsplit=1)[0]
        row: dict[str, Any] = {
            "artifact": "a.log",
            "line": text.count(b"\n", 0, hit.start()) + 1,
            "offset": hit.start(),
            "ts": ts,
            "rank": rank,
            "kind": kind,
        }
        for name, pattern in KEYS.items():
            found = re.search(pattern, region)
            ok = found and not (kind == "decode" and name in ("new_seq", "new_token", "cached_token"))
            ok = ok and region.index(b":", found.start()) < REACH[kind]
            row[name] = (float(found[1]) if name == "usage" else int(found[1])) if ok else None
        out.append(row | {"life": 0})
    return out


def check(text: bytes, every: int = 3) -> None:
    reader = BatchLines("a.log", every=every)
    table = reader.read(Window(text))
    assert table.column_names == columns(Batch)
    rows = table.to_pylist()
    expected = plain(text)
    assert [r for r in rows if r["kind"] == "prefill"] == [r for r in expected if r["kind"] == "prefill"]
    assert [r for r in rows if r["kind"] == "decode"] == sampled(expected, every)
    for counts, kind in ((reader.prefilled, "prefill"), (reader.decoded, "decode")):
        assert counts == Counter(r["rank"] for r in expected if r["kind"] == kind)


def sampled(rows: list[dict[str, Any]], every: int) -> list[dict[str, Any]]:
    decode = [r for r in rows if r["kind"] == "decode"]
    kept = []
    for r in decode:
        own = [x for x in decode if x["rank"] == r["rank"]]
        i = own.index(r)
        if i == len(own) - 1 or i % every == 0:
            kept.append(r)
    return kept


@pytest.mark.parametrize("every", [1, 2, 100])
def test_known_lines(every: int) -> None:
    check(DATA.read_bytes(), every)


def test_each_known_line_alone_at_the_edges() -> None:
    for line in DATA.read_bytes().splitlines(keepends=True):
        check(line)
        check(line.rstrip())


rank = st.builds(
    lambda d, order: " ".join(f"{k}{v}" for k, v in ((k, d[k]) for k in order if k in d)),
    st.dictionaries(st.sampled_from(["DP", "PP", "ATTN_CP", "MOE_DP", "TP", "EP"]), st.integers(0, 31)),
    st.permutations(["DP", "PP", "ATTN_CP", "MOE_DP", "TP", "EP"]),
)
time = st.builds(
    lambda t, fraction: t.strftime("%Y-%m-%d %H:%M:%S") + fraction,
    st.datetimes(datetime(2024, 1, 1), datetime(2027, 1, 1)),
    st.sampled_from(["", "", "", ".123", ",7", ".000001"]),
)
bracket = st.builds(
    lambda t, r: f"[{f'{t} {r}'.strip()}] ", time | st.just(""), rank | st.sampled_from(["", "IGPU TP1"])
)
count = st.integers(0, 9) | st.integers(0, 10**7) | st.integers(0, 10**14)
share = st.integers(0, 100).map(lambda n: f"{n / 100:.2f}") | st.sampled_from(["0", "1", "nan", "12.345678"])
field = st.one_of(
    st.builds("#new-seq: {}".format, count),
    st.builds("#new-token: {}".format, count),
    st.builds("#cached-token: {}".format, count),
    st.builds("{}token usage: {}".format, st.sampled_from(["", "", "full ", "swa "]), share),
    st.builds("#running-req: {}".format, count),
    st.builds("#queue-req: {}".format, count),
    st.builds("cache hit rate: {}%".format, share),
    st.builds("#pending-token: {}".format, count),
    st.builds("#unbootstrapped-req: {}".format, count),
    st.sampled_from(
        ["cuda graph: True", "gen throughput (token/s): 12.5", "accept len: 2.75", "#token:3", "#new-seq:"]
    ),
)
record = st.builds(
    lambda outer, prefix, kind, mark, fields, tail: outer + prefix + kind + mark + ", ".join(fields) + tail,
    st.sampled_from(["", "", "2026-06-24T17:38:03.765641375+02:00 stderr F ", '{"log":"', "| ", "x" * 200, "[a] "]),
    bracket | st.sampled_from(["", "] ", "[]", "[x\x1b[0m] "]),
    st.sampled_from(["Prefill batch", "Prefill batch", "Decode batch"]),
    st.sampled_from([", ", ". ", " [12], ", "\n", ""]),
    st.lists(field, max_size=9, unique_by=lambda f: f.split(":")[0].removeprefix("full ")),
    st.sampled_from(["\n", "\n", "\n", "", ", \n", '"}\n', "\\n", "\r\n", " | \n\n"]),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(record, max_size=12).map("".join))
def test_generated_lines(text: str) -> None:
    check(text.encode())


def test_a_count_that_runs_into_the_next_stamp_is_cut_alike() -> None:
    head = "2026-06-24T17:38:03.765641375+02:00 stderr F "
    check(f"{head}] Prefill batch, #new-seq: 1000000000000{head}[]Decode batch,  | \n".encode())
    check(b"[2026-06-24 17:38:03 PP0] Prefill batch, #new-seq: 10000000000002026, #new-token: 1, #cached-token: 2, \n")


def test_windows_and_steps_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEP", 37)
    text = DATA.read_bytes() * 40
    (tmp_path / "a").write_bytes(text)
    reader = BatchLines("a.log", every=10**9)
    rows = [r for w in windows(Source("a", tmp_path / "a", 0), 50_000) for r in reader.read(w).to_pylist()]
    expected = plain(text)
    assert [r for r in rows if r["kind"] == "prefill"] == [r for r in expected if r["kind"] == "prefill"]
    assert sum(reader.decoded.values()) == sum(r["kind"] == "decode" for r in expected)
    seen = [r for r in expected if r["kind"] == "decode"]
    assert all(r in seen for r in rows if r["kind"] == "decode")


def test_rank_of_names_ranks_once() -> None:
    asked = []

    def rank_of(text: str) -> str | None:
        asked.append(text)
        return " ".join(sorted(text.split())) if text.startswith(("TP", "PP")) else None

    line = b"[%s] Prefill batch, #new-seq: 1\n"
    text = b"".join(line % r for r in [b"TP0 PP1", b"PP1 TP0", b"INFO", b"TP0 PP1"])
    table = BatchLines("a", rank_of=rank_of).read(Window(text))
    assert table["rank"].to_pylist() == ["PP1 TP0", "PP1 TP0", None, "PP1 TP0"]
    assert sorted(asked) == ["INFO", "PP1 TP0", "TP0 PP1"]


def test_no_batch_line() -> None:
    table = BatchLines("a").read(Window(b"nothing here\n"))
    assert table.num_rows == 0
    assert table.column_names == columns(Batch)


def test_brackets_that_differ_from_line_to_line_are_not_kept_for_ever() -> None:
    text = b"".join(b"[request %d] Decode batch, #queue-req: 1\n" % i for i in range(40_000))
    reader = BatchLines("a")
    reader.read(Window(text))
    assert sum(reader.decoded.values()) == 40_000
    assert reader.decoded[None] == 40_000 - 4096
