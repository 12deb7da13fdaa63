"""Compressed content as blocks: what could be read, then one note, never an exception.

Every step is bounded: no call may unpack more than about ``STEP`` bytes (zstd: 128 MiB at the very worst, because a
block of four bytes may stand for 128 KiB and the library offers no bound), and :class:`Limits` ends a decompression
bomb. The order of checks is the order of trust: nothing that a header claims is believed.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, Protocol

Packing = Literal["gzip", "zstd", "xz", "bz2"]
Note = Callable[[str], None]

STEP = 1 << 20
_FEED = {"gzip": 64 << 10, "xz": 64 << 10, "bz2": 64 << 10, "zstd": 4 << 10}
_MEMORY = 256 << 20
_FAULTS = (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError, MemoryError)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be unpacked. Beyond a limit reading stops with a note that names it."""

    artifact: int = 64 << 30
    """bytes out of one compressed file that is read in place"""
    total: int = 20 << 30
    """bytes written to the spool, of all archives and standard input together"""
    members: int = 20_000
    """members of all archives together"""
    files: int = 200_000
    """files and folders found below the folders that were named"""
    depth: int = 4
    """archives inside archives"""
    ratio: int = 1000
    """bytes out for a byte in, judged once ``ratio_from`` bytes have come out"""
    ratio_from: int = 256 << 20

    def bomb(self, packed: int, unpacked: int) -> bool:
        """Whether so much out of so little is an attack rather than a log."""
        return unpacked > self.ratio_from and unpacked > self.ratio * max(packed, 1)


DEFAULT = Limits()


def packing_of(head: bytes) -> Packing | None:
    """How content that begins with ``head`` is compressed, by its magic bytes."""
    if head.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if head.startswith(b"\x28\xb5\x2f\xfd") or (head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F):
        return "zstd"
    if head.startswith(b"\xfd7zXZ\x00"):
        return "xz"
    if head[:3] == b"BZh" and head[3:4].isdigit() and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bz2"
    return None


def unpacked(f: BinaryIO, packing: Packing, note: Note, limits: Limits = DEFAULT) -> Iterator[bytes]:
    """The content of all members (frames, streams) of ``f``, in order, in blocks of at most about ``STEP`` bytes.

    ``note`` is called at most once: the content is cut short, damaged, followed by something else, or over a limit.
    gzip is unpacked by isal where it is installed (three times as fast), and by zlib.
    """
    isal = _isal() if packing == "gzip" and f.seekable() else None
    if isal is None:
        yield from _unpacked(f, packing, note, limits, _new)
        return
    start, done = f.tell(), 0
    try:
        for block in _unpacked(f, packing, note, limits, lambda _: _Gzip(isal.decompressobj(wbits=31))):
            yield block
            done += len(block)
        return
    except isal.error:
        f.seek(start)  # isal drops what it had unpacked before a fault; zlib can go up to it
    for block in _unpacked(f, packing, note, limits, _new):
        if len(block) > done:
            yield block[done:]
        done = max(0, done - len(block))


def _isal() -> Any:
    try:
        from isal import isal_zlib
    except ImportError:
        return None
    return isal_zlib


def _unpacked(
    f: BinaryIO, packing: Packing, note: Note, limits: Limits, new: Callable[[Packing], _Decoder]
) -> Iterator[bytes]:
    """Raises isal's own error only: every other fault is noted."""
    packed = out = 0
    decoder: _Decoder | None = None
    begun = False
    try:
        while feed := f.read(_FEED[packing]):
            packed += len(feed)
            while feed or (decoder is not None and not decoder.wants):
                if decoder is None:
                    feed = feed.lstrip(b"\0") if begun else feed  # padding between and after members
                    if not feed:
                        break
                    feed += f.read(16) if len(feed) < 16 else b""  # a magic may lie across two feeds
                    if begun and packing_of(feed) != packing:
                        note(f"something that is no {packing} follows after {out} unpacked bytes; it was not read")
                        return
                    decoder, begun = new(packing), True
                try:
                    block = decoder.decode(feed)
                except _faults(packing) as e:
                    if block := decoder.salvage(feed):
                        out += len(block)
                        yield block
                    note(f"damaged {packing} data after {out} unpacked bytes ({_short(e)}); the rest was not read")
                    return
                feed = b""
                if decoder.eof:
                    feed, decoder = decoder.left(), None
                if not block:
                    continue
                out += len(block)
                yield block
                if out > limits.artifact or limits.bomb(packed, out):
                    note(_stopped(packed, out, limits))
                    return
    except OSError as e:
        note(f"cannot be read after {packed} bytes ({e.strerror or e}); the rest was not read")
        return
    if decoder is not None:
        note(f"truncated {packing} data: it ends after {out} unpacked bytes")


def _stopped(packed: int, out: int, limits: Limits) -> str:
    if out > limits.artifact:
        return f"stopped after {out} unpacked bytes (the limit for one file); split it, or give the part that matters"
    return (
        f"stopped after {out} unpacked bytes out of {packed}: more than {limits.ratio}:1 looks like a decompression "
        "bomb; unpack it yourself if it is not one"
    )


def _short(e: BaseException) -> str:
    return (str(e) or type(e).__name__).splitlines()[0][:120]


def _faults(packing: Packing) -> tuple[type[BaseException], ...]:
    if packing != "zstd":
        return _FAULTS
    import zstandard

    return (*_FAULTS, zstandard.ZstdError)


class _Decoder(Protocol):
    """One member. ``decode`` takes the next feed (or nothing while it does not ``want`` more)."""

    eof: bool
    wants: bool

    def decode(self, feed: bytes) -> bytes: ...
    def left(self) -> bytes: ...
    def salvage(self, feed: bytes) -> bytes: ...


def _new(packing: Packing) -> _Decoder:
    if packing == "gzip":
        return _Gzip(zlib.decompressobj(wbits=31))
    if packing == "zstd":
        import zstandard

        return _Plain(zstandard.ZstdDecompressor().decompressobj(), bounded=False)
    if packing == "xz":
        return _Plain(lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MEMORY), bounded=True)
    return _Plain(bz2.BZ2Decompressor(), bounded=True)


class _Plain:
    """bz2 and xz (bounded output) and zstd (not bounded)."""

    def __init__(self, decoder: Any, *, bounded: bool) -> None:
        self._decoder = decoder
        self._bounded = bounded
        self.eof = False
        self.wants = True

    def decode(self, feed: bytes) -> bytes:
        out: bytes = self._decoder.decompress(feed, STEP) if self._bounded else self._decoder.decompress(feed)
        self.eof = self._decoder.eof
        self.wants = self.eof or not self._bounded or self._decoder.needs_input
        return out

    def left(self) -> bytes:
        rest: bytes = self._decoder.unused_data
        return rest

    def salvage(self, feed: bytes) -> bytes:
        return b""


class _Gzip:
    """zlib, with a copy of the state before each step so that a fault costs no byte before it; or isal, without."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self._before: Any = None
        self._tail = b""
        self.eof = False
        self.wants = True

    def decode(self, feed: bytes) -> bytes:
        feed = self._tail + feed
        self._before = self._decoder.copy() if hasattr(self._decoder, "copy") else None
        out: bytes = self._decoder.decompress(feed, STEP)
        self._tail = self._decoder.unconsumed_tail
        self.eof = self._decoder.eof
        self.wants = self.eof or (not self._tail and len(out) < STEP)
        return out

    def left(self) -> bytes:
        rest: bytes = self._decoder.unused_data
        return rest

    def salvage(self, feed: bytes) -> bytes:
        feed, decoder, out = self._tail + feed, self._before, bytearray()
        try:
            for at in range(len(feed)):
                out += decoder.decompress(feed[at : at + 1], STEP)
        except zlib.error:
            pass
        return bytes(out)
