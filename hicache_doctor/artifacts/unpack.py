"""Gzip and zstd content as blocks; damaged content yields what could be read, and a note instead of an exception."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Literal

_GZIP_READ = 64 << 10
_ZSTD_READ = 4 << 10  # four bytes of zstd may unpack to 128 KiB: small feeds bound the memory
_MOST = 1 << 20
_MAGIC = b"\x1f\x8b"


def unpack(f: BinaryIO, packing: Literal["gzip", "zstd"], note: Callable[[str], None]) -> Iterator[bytes]:
    """The unpacked content of all members (frames) of ``f``, in order, in blocks.

    ``note`` is called once if the content is truncated, damaged, or followed by something else.
    """
    if packing == "zstd":
        yield from _zstd(f, note)
        return
    at = 0
    inflater, error = _isal()
    if inflater is not None:
        try:
            for block in _gzip(f, note, inflater):
                yield block
                at += len(block)
            return
        except error:
            f.seek(0)  # isal drops what it had unpacked before the fault; zlib can go up to it
    for block in _gzip(f, note, lambda: zlib.decompressobj(wbits=31)):
        if len(block) > at:
            yield block[at:]
        at = max(0, at - len(block))


def _isal() -> tuple[Callable[[], Any] | None, type[Exception]]:
    try:
        from isal import isal_zlib
    except ImportError:
        return None, Exception
    error: Any = isal_zlib.error
    return lambda: isal_zlib.decompressobj(wbits=31), error


def _gzip(f: BinaryIO, note: Callable[[str], None], new: Callable[[], Any]) -> Iterator[bytes]:
    """Raises isal's own error only; a fault that zlib meets is noted."""
    member: Any = None
    unpacked = 0
    while feed := f.read(_GZIP_READ):
        out = b""
        while feed or len(out) == _MOST:
            if member is None:
                feed = feed.lstrip(b"\0")  # padding between and after members
                if not feed:
                    break
                if not _MAGIC.startswith(feed[:2]):
                    note(f"something that is no gzip follows after {unpacked} unpacked bytes; not read")
                    return
                member = new()
            before = member.copy() if hasattr(member, "copy") else None
            try:
                out = member.decompress(feed, _MOST)
            except zlib.error as e:
                out = _up_to_fault(before, feed)
                note(f"damaged gzip data after {unpacked + len(out)} unpacked bytes ({e}); the rest was not read")
                yield out
                return
            if out:
                unpacked += len(out)
                yield out
            feed = member.unused_data if member.eof else member.unconsumed_tail
            if member.eof:
                member, out = None, b""
    if member is not None:
        note(f"truncated gzip data: it ends after {unpacked} unpacked bytes")


def _up_to_fault(member: Any, feed: bytes) -> bytes:
    """What ``feed`` unpacks to before the fault in it: in steps, the last one byte by byte."""
    out = b""
    for step in (256, 1):
        while feed:
            before = member.copy()
            try:
                out += member.decompress(feed[:step])
            except zlib.error:
                member, feed = before, feed[:step]
                break
            feed = feed[step:]
    return out


def _zstd(f: BinaryIO, note: Callable[[str], None]) -> Iterator[bytes]:
    import zstandard

    frame: Any = None
    unpacked = 0
    while feed := f.read(_ZSTD_READ):
        while feed:
            if frame is None:
                frame = zstandard.ZstdDecompressor().decompressobj()
            try:
                out = frame.decompress(feed)
            except zstandard.ZstdError as e:
                note(f"damaged zstd data after {unpacked} unpacked bytes ({e}); the rest was not read")
                return
            if out:
                unpacked += len(out)
                yield out
            feed = frame.unused_data if frame.eof else b""
            if frame.eof:
                frame = None
    if frame is not None:
        note(f"truncated zstd data: it ends after {unpacked} unpacked bytes")
