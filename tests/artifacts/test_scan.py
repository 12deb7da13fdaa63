"""Candidate lines and hot positions equal what a loop over the lines finds."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hicache_doctor.artifacts import scan as scan_module
from hicache_doctor.artifacts import windows as module
from hicache_doctor.artifacts.scan import HotLiterals, LiteralScanner
from hicache_doctor.artifacts.source import Source
from hicache_doctor.artifacts.windows import Window, windows
from hicache_doctor.artifacts.words import Text, digits_only

LITERALS = {"a": b"ab", "b": b"abc", "c": [b"bcd", b"x y"], "d": b"ab", 5: b"cc"}
words = st.sampled_from(
    [b"ab", b"abc", b"bcd", b"abcd", b"x y", b"c", b"cc", b"\n", b"\n\n", b"zz", b"q" * 50, b"\xff"]
)
texts = st.lists(words, max_size=40).map(b"".join)


def expected(text: bytes) -> list[tuple[int, bytes, list[object]]]:
    out = []
    for number, line in enumerate(text.split(b"\n"), 1):
        keys = [k for k, v in LITERALS.items() if any(t in line for t in ([v] if isinstance(v, bytes) else v))]
        if keys:
            out.append((number, line, sorted(keys, key=str)))
    return out


@settings(max_examples=300, deadline=None)
@given(texts, st.booleans())
def test_lines_with_a_literal(text: bytes, listed: bool) -> None:
    w = Window(text)
    if listed:
        _ = w.newlines
    found = LiteralScanner(LITERALS).scan(w)
    got = [
        (int(found.number[i]), text[found.start[i] : found.end[i]], sorted(found.keys(i), key=str))
        for i in range(len(found))
    ]
    assert got == expected(text)
    assert not found.piece.any()


def test_ids_over_many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "_SLICE", 64)
    text = b"".join(b"line %d %s\n" % (i, b"abcd" if i % 3 else b"") for i in range(500))
    found = LiteralScanner(LITERALS).scan(Window(text))
    assert found.number.tolist() == [n for n, _, _ in expected(text)]
    assert {tuple(found.keys(i)) for i in range(len(found))} == {("a", "d", "b", "c")}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 7000), max_size=8), st.integers(3000, 9000))
def test_hits_in_cut_lines_are_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gaps: list[int], size: int
) -> None:
    for m in (module, scan_module):
        monkeypatch.setattr(m, "MAX_LINE", 1024)
        monkeypatch.setattr(m, "GUARD", 64)
    text = b"abcd".join(b"x" * n for n in gaps) + b"\nPrefill batch" + b"x" * 3000 + b"Prefill batch"
    (tmp_path / "a").write_bytes(text)
    scanner, hot, lines, hots = LiteralScanner(LITERALS), HotLiterals([b"Prefill batch"]), [], []
    for w in windows(Source("a", tmp_path / "a", 0), size):
        found = scanner.scan(w)
        for i in range(len(found)):
            assert found.end[i] - found.start[i] <= 1024 + 128
            piece = bytes(w.data[found.start[i] : found.end[i]])
            lines += [w.offset + int(found.start[i]) + m.start() for m in re.finditer(b"abcd", piece)]
        hots += (hot.find(w)[0] + w.offset).tolist()
    assert set(lines) == {m.start() for m in re.finditer(b"abcd", text)}
    assert hots == [m.start() for m in re.finditer(b"Prefill batch", text)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([b"Prefill batch", b"Decode batch", b"Pre", b"b", b"h", b"batch", b"\n", b"x" * 9])))
def test_hot_positions(parts: list[bytes]) -> None:
    text = b"".join(parts)
    for literals in ([b"Prefill batch", b"Decode batch"], [b"Prefill batch", b"xxxxxxxxx"], []):
        got = HotLiterals(literals).find(Window(text))
        assert [g.tolist() for g in got] == [
            [m.start() for m in re.finditer(b"(?=%s)" % literal, text)] for literal in literals
        ]


@given(st.integers(0, 10**16 - 1), st.integers(0, 3), st.sampled_from([b"", b",", b".", b"\n", b"\xff\x8a", b"a9"]))
def test_numbers(n: int, zeros: int, behind: bytes) -> None:
    digits = (b"0" * zeros + b"%d" % n)[:16]
    text = Text(np.frombuffer(digits + (behind or b" ") + b"\xff" * 40, dtype=np.uint8))
    value, count = text.number(np.array([0, len(digits)]))
    assert (value[0], count[0], count[1]) == (int(digits), len(digits), 0)


@given(st.binary(min_size=8, max_size=8) | st.from_regex(rb"\d\d\d\d-\d\d-", fullmatch=True))
def test_digits_only(text: bytes) -> None:
    got = digits_only(np.frombuffer(text, dtype="<u8"), b"0000-00-")[0]
    assert got == bool(re.fullmatch(rb"[0-9]{4}-[0-9][0-9]-", text))


def test_literals_that_cannot_be() -> None:
    for bad in (b"", b"a\nb", b"x" * 5000):
        with pytest.raises(ValueError, match="literal"):
            LiteralScanner({"x": bad})
    with pytest.raises(ValueError, match="hot"):
        HotLiterals([b"short"])
