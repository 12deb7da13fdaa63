"""Sources: every way in which bytes may be packed, cut short, damaged or withheld."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.artifacts.packing import Limits, Packing, packing_of, unpacked
from hicache_doctor.artifacts.sniff import digest
from hicache_doctor.artifacts.source import Source, open_regular

LOG = b"".join(b"[2026-06-04 03:40:%02d PP0 TP0] Prefill batch, #new-token: %d\n" % (i % 60, i) for i in range(40_000))
PACK = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
}
PACKINGS: list[Packing] = ["gzip", "zstd", "xz", "bz2"]


def unpack(data: bytes, packing: Packing, limits: Limits | None = None) -> tuple[bytes, list[str]]:
    notes: list[str] = []
    return b"".join(unpacked(io.BytesIO(data), packing, notes.append, limits or Limits())), notes


@pytest.mark.parametrize("packing", PACKINGS)
def test_content_is_recognised_and_unpacked(packing: Packing) -> None:
    packed = PACK[packing](LOG)
    assert packing_of(packed) == packing
    assert unpack(packed, packing) == (LOG, [])


@pytest.mark.parametrize("packing", PACKINGS)
def test_members_are_joined_even_byte_by_byte(packing: Packing) -> None:
    parts = [bytes([65 + i % 26]) * i for i in range(1, 300)]
    assert unpack(b"".join(PACK[packing](p) for p in parts), packing) == (b"".join(parts), [])


@pytest.mark.parametrize("packing", PACKINGS)
def test_truncated_content_yields_its_beginning_and_a_note(packing: Packing) -> None:
    packed = PACK[packing](LOG)
    out, notes = unpack(packed[: len(packed) * 3 // 4], packing)
    assert LOG.startswith(out)
    assert len(notes) == 1 and "truncated" in notes[0]
    if packing != "bz2":  # all of it lies in one or two blocks, which bz2 cannot open in part
        assert out


@pytest.mark.parametrize("packing", PACKINGS)
def test_damaged_content_yields_what_came_before(packing: Packing) -> None:
    packed = bytearray(PACK[packing](LOG))
    packed[len(packed) // 2 : len(packed) // 2 + 32] = bytes(range(200, 232))
    out, notes = unpack(bytes(packed), packing)
    assert len(notes) == 1 and ("damaged" in notes[0] or "truncated" in notes[0])
    if packing == "gzip":
        half = len(LOG) // 3
        assert out[:half] == LOG[:half]


@pytest.mark.parametrize("packing", PACKINGS)
def test_something_else_after_the_content_is_noted(packing: Packing) -> None:
    out, notes = unpack(PACK[packing](LOG) + b"garbage at the end of the file", packing)
    assert out == LOG
    assert len(notes) == 1 and "follows after" in notes[0]


@pytest.mark.parametrize("packing", PACKINGS)
def test_zeros_after_the_content_are_padding(packing: Packing) -> None:
    assert unpack(PACK[packing](LOG) + bytes(4096), packing) == (LOG, [])


def test_skippable_zstd_frames_are_skipped() -> None:
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"info"
    packed = skippable + PACK["zstd"](LOG)
    assert packing_of(packed) == "zstd"
    assert unpack(packed, "zstd") == (LOG, [])


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_bomb_is_stopped(packing: Packing) -> None:
    zeros = PACK[packing](bytes(256 << 20))
    notes: list[str] = []
    limits = Limits(ratio=100, ratio_from=1 << 20)
    out = sum(len(block) for block in unpacked(io.BytesIO(zeros), packing, notes.append, limits))
    assert out < 256 << 20
    assert len(notes) == 1 and "bomb" in notes[0]


def test_the_largest_artifact_is_a_limit() -> None:
    out, notes = unpack(gzip.compress(LOG), "gzip", Limits(artifact=10_000))
    assert 10_000 < len(out) <= len(LOG)
    assert "limit for one file" in notes[0]


@given(data=st.binary(max_size=2000), packing=st.sampled_from(PACKINGS), cut=st.integers(0, 400), junk=st.binary())
def test_no_content_raises(data: bytes, packing: Packing, cut: int, junk: bytes) -> None:
    packed = PACK[packing](data)
    for hostile in (junk, packed[:cut], packed[:cut] + junk + packed[cut:], packed + junk):
        unpack(hostile, packing)


def test_a_source_reads_plain_and_packed_files_alike(tmp_path: Path) -> None:
    for name, data, compression in (
        ("a", LOG, None),
        ("b", gzip.compress(LOG), "gzip"),
        ("c", PACK["zstd"](LOG), "zstd"),
    ):
        file = tmp_path / name
        file.write_bytes(data)
        source = Source(name, file, len(data), compression)  # type: ignore[arg-type]
        assert b"".join(bytes(b) for b in source.blocks(1000)) == LOG
        assert source.head(100) == LOG[:100]
        assert source.head(1 << 30) == LOG


def test_a_file_that_vanished_is_a_note(tmp_path: Path) -> None:
    notes: list[str] = []
    source = Source("x", tmp_path / "x", 1)
    assert list(source.blocks(on_note=notes.append)) == []
    assert source.head() == b""
    assert notes == ["cannot be read (No such file or directory)"]


def test_a_fifo_in_place_of_the_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    notes: list[str] = []
    assert list(Source("pipe", tmp_path / "pipe", 1).blocks(on_note=notes.append)) == []
    assert "not a regular file" in notes[0]
    with pytest.raises(OSError):
        open_regular(tmp_path / "pipe")


def test_a_digest_tells_files_apart_by_their_ends(tmp_path: Path) -> None:
    data = bytearray(random.Random(1).randbytes(400 << 10))
    file = tmp_path / "x"

    def of(whole: bool) -> str:
        file.write_bytes(data)
        return digest(Source("x", file, len(data)), whole)

    ends, everything = of(False), of(True)
    data[200 << 10] ^= 1
    assert of(False) == ends
    assert of(True) != everything
    data[-1] ^= 1
    assert of(False) != ends
    file.unlink()
    assert digest(Source("x", file, 1), True) == ""
