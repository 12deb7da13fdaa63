"""Windows: every byte once, every line number right, damage noted."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hicache_doctor.artifacts import packing as packing_module
from hicache_doctor.artifacts import windows as module
from hicache_doctor.artifacts.source import Source
from hicache_doctor.artifacts.windows import Windows, windows

LOG = b"".join(b"[2026-05-28 02:19:%02d PP0 TP0] line %d\n" % (i % 60, i) for i in range(40_000))


def source(path: Path, content: bytes, packing: str | None = None) -> Source:
    packed = {None: lambda c: c, "gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress}[packing](content)
    path.write_bytes(packed)
    return Source("x.log", path, len(packed), packing)  # type: ignore[arg-type]


def content(reader: Windows) -> bytes:
    """All owned bytes, with the checks that hold for every window."""
    out = b""
    for w in reader:
        start, end = w.own
        assert w.offset + start == len(out)
        assert w.first_line == out.count(b"\n") + 1
        out += bytes(w.data[start:end])
        assert w.count == bytes(w.data).count(b"\n")
        assert w.newlines.tolist() == [i for i, c in enumerate(bytes(w.data)) if c == 10]
    assert reader.lines == len(out.splitlines())
    assert reader.bytes == len(out)
    return out


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE", 1024)
    monkeypatch.setattr(module, "GUARD", 64)


@pytest.mark.parametrize("packing", [None, "gzip", "zstd"])
@pytest.mark.parametrize("isal", [True, False])
def test_every_byte_once(tmp_path: Path, packing: str, isal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isal:
        monkeypatch.setattr(packing_module, "_isal", lambda: None)
    reader = windows(source(tmp_path / "a", LOG, packing), 300_000)
    assert content(reader) == LOG
    assert reader.note is None


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 9000), max_size=12).flatmap(
        lambda n: st.sampled_from([b"\n".join(b"x" * k for k in n) + end for end in (b"", b"\n")])
    ),
    st.sampled_from([None, "gzip"]),
    st.integers(3000, 9000),
)
def test_long_lines_are_cut_and_no_byte_is_lost(
    tmp_path: Path, small: None, text: bytes, packing: str | None, size: int
) -> None:
    assert content(windows(source(tmp_path / "a", text, packing), size)) == text


def test_a_gigantic_line_is_flagged(tmp_path: Path, small: None) -> None:
    seen = list(windows(source(tmp_path / "a", b"a\n" + b"x" * 20_000 + b"\nb\n"), 5000))
    assert [w.cut for w in seen] == [*[True] * (len(seen) - 1), False]
    assert [w.continued for w in seen] == [False, *[True] * (len(seen) - 1)]
    assert {w.first_line for w in seen[1:]} == {2}


@pytest.mark.parametrize("listed", [True, False])
def test_lines(listed: bool) -> None:
    text = b"a\nbb\n\nc" + b"x" * 9000 + b"\nd"
    w = module.Window(text)
    if listed:
        _ = w.newlines
    start, end, number = w.lines(np.array([0, 1, 2, 5, 6, 7000, 9007, 9008]))
    assert start.tolist() == [0, 0, 2, 5, 6, 6, 6, 9008]
    assert end.tolist() == [1, 1, 4, 5, 9007, 9007, 9007, 9009]
    assert number.tolist() == [1, 1, 2, 3, 4, 4, 4, 5]
    assert w.count == 4


def test_multi_member_gzip_and_padding(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"one\n") + gzip.compress(b"") + gzip.compress(b"two\n") + b"\0" * 700)
    reader = windows(Source("a.gz", path, 0, "gzip"))
    assert content(reader) == b"one\ntwo\n"
    assert reader.note is None


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_truncated(tmp_path: Path, packing: str) -> None:
    s = source(tmp_path / "a", LOG, packing)
    whole = s.file.read_bytes()
    s.file.write_bytes(whole[: len(whole) // 2])
    reader = windows(s, 100_000)
    out = content(reader)
    assert LOG.startswith(out) and len(out) > (len(LOG) // 4 if packing == "gzip" else -1)
    assert "truncated" in (reader.note or "")


@pytest.mark.parametrize("isal", [True, False])
def test_damaged_gzip_is_read_up_to_the_fault(tmp_path: Path, isal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isal:
        monkeypatch.setattr(packing_module, "_isal", lambda: None)
    s = source(tmp_path / "a", LOG, "gzip")
    whole = bytearray(s.file.read_bytes())
    whole[-8:-4] = b"\xff" * 4  # the checksum: everything before it is good
    s.file.write_bytes(whole)
    reader = windows(s, 100_000)
    assert content(reader) == LOG
    assert "damaged" in (reader.note or "")


def test_something_else_behind_gzip(tmp_path: Path) -> None:
    s = source(tmp_path / "a", b"one\n", "gzip")
    s.file.write_bytes(s.file.read_bytes() + b"trailer")
    reader = windows(s)
    assert content(reader) == b"one\n"
    assert "no gzip follows" in (reader.note or "")


def test_damaged_zstd(tmp_path: Path) -> None:
    s = source(tmp_path / "a", LOG, "zstd")
    whole = bytearray(s.file.read_bytes())
    whole[len(whole) // 2 :] = b"\xff" * (len(whole) - len(whole) // 2)
    s.file.write_bytes(whole)
    reader = windows(s, 100_000)
    assert LOG.startswith(content(reader))
    assert "zstd" in (reader.note or "")


def test_a_bomb_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    path.write_bytes(b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush())
    assert max(len(w.data) for w in windows(Source("a.gz", path, 0, "gzip"))) <= (10 << 20)


def test_leaving_early_stops_the_thread(tmp_path: Path) -> None:
    import threading

    for _ in windows(source(tmp_path / "a", LOG, "gzip"), 100_000):
        break
    assert not [t for t in threading.enumerate() if t.name == "unpack"]


def test_empty(tmp_path: Path) -> None:
    assert list(windows(source(tmp_path / "a", b""))) == []
    assert list(windows(source(tmp_path / "b", b"", "gzip"))) == []
    with pytest.raises(OSError):
        list(windows(Source("none", tmp_path / "none", 0)))
