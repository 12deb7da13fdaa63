"""The file format of a ring segment: a header of one page or more, then fixed slots. Standard library only.

    0   magic "HCDRING" and the version byte
    8   header size, record size                          u32, u32
    16  slots, segment, base, salt, lost                  u64 each
    56  length of the JSON, CRC-32 of what does not change  u32, u32
    64  JSON: whose process this is, both clocks read together, the tables of kinds
    …   zeros up to the header size, then ``slots`` records of 64 bytes

A record is ts (monotonic ns, u64), step (u32), kind and thread (u16), key (u64), a, b, c, d (i64) and the commit word
(u64). ``base`` is the number, counted over all segments of the rank in that folder, of the first slot; the record of
slot i has number ``base + i`` and is committed once its last word is ``salt + 64 * (base + i)``. The salt is random, so
that neither zeros nor a page of another file pass for a record. ``lost`` counts records that found no room after this
segment; it is the one field that a writer changes.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAGIC = b"HCDRING"
VERSION = 1
RECORD = struct.Struct("<QIHHQqqqq")
"""A record without its commit word."""
WORD = struct.Struct("<Q")
RECORD_BYTES = 64
COMMIT_AT = 56
FIXED = struct.Struct("<7sBIIQQQQQII")
LOST_AT = 48
PAGE = 4096
LARGEST_HEADER = 1 << 20
_LARGEST = 1 << 62
_LONGEST_NAME = 255
_FILE = re.compile(r"rank(\d{1,9})\.(\d{6,12})\.ring")
_PLACE = ("dp", "pp", "cp", "tp")


class RingDamage(ValueError):
    """The bytes are no readable ring header; the text says what is wrong and at which offset."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that writes a ring, as its header tells it.

    ``rank`` is the global number, ``label`` what the log prefix calls it, ``start_ticks`` the start of the process in
    clock ticks since boot (with the boot id and the pid it names one process for ever), ``life_base`` the number of the
    first record of this process in the folder. Nothing here says what the process was told to do.
    """

    host: str
    boot_id: str
    pid: int
    start_ticks: int
    rank: int
    label: str
    dp: int = 0
    pp: int = 0
    cp: int = 0
    tp: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    life_base: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """Everything in front of the records. ``wall_ns`` and ``mono_ns`` were read together."""

    owner: Owner
    size: int
    slots: int
    segment: int
    base: int
    salt: int
    lost: int
    wall_ns: int
    mono_ns: int
    tables: Mapping[str, Mapping[int, str]]

    def commit_word(self, slot: int) -> int:
        """What the last word of a committed record in ``slot`` is."""
        return self.salt + RECORD_BYTES * (self.base + slot)


def pack(
    owner: Owner,
    *,
    slots: int,
    segment: int,
    base: int,
    salt: int,
    clocks: tuple[int, int],
    tables: Mapping[str, Mapping[int, str]],
    lost: int = 0,
) -> bytes:
    """The header as bytes, filled up to whole pages. ``clocks`` are (wall, monotonic) in ns."""
    words: dict[str, Any] = {
        "host": owner.host,
        "boot_id": owner.boot_id,
        "pid": owner.pid,
        "start_ticks": owner.start_ticks,
        "rank": owner.rank,
        "label": owner.label,
        **{name: getattr(owner, name) for name in _PLACE},
        "sizes": dict(owner.sizes),
        "life_base": owner.life_base,
        "wall_ns": clocks[0],
        "mono_ns": clocks[1],
        "tables": {name: {str(n): text for n, text in table.items()} for name, table in tables.items()},
    }
    body = json.dumps(words, separators=(",", ":")).encode()
    size = -(-(FIXED.size + len(body)) // PAGE) * PAGE
    if size > LARGEST_HEADER:
        raise ValueError(f"a ring header of {size} bytes: labels or tables are too long")
    fixed = [MAGIC, VERSION, size, RECORD_BYTES, slots, segment, base, salt, 0, len(body), 0]
    crc = zlib.crc32(FIXED.pack(*fixed) + body)
    fixed[8], fixed[10] = lost, crc
    return (FIXED.pack(*fixed) + body).ljust(size, b"\0")


def header_size(head: bytes) -> int:
    """How long the header that begins with ``head`` (64 bytes suffice) says it is. Raises RingDamage."""
    if len(head) < FIXED.size:
        raise RingDamage(f"truncated in the header: {len(head)} bytes")
    magic, version, size, record, *_ = FIXED.unpack_from(head)
    if magic != MAGIC:
        raise RingDamage("no ring: wrong magic at byte 0")
    if version != VERSION:
        raise RingDamage(f"ring format {version} at byte 7; this release reads format {VERSION}: use a newer one")
    if not FIXED.size < size <= LARGEST_HEADER:
        raise RingDamage(f"damaged header: a header size of {size} at byte 8")
    if record != RECORD_BYTES:
        raise RingDamage(f"damaged header: a record size of {record} at byte 12, expected {RECORD_BYTES}")
    return int(size)


def parse(head: bytes) -> Header:
    """The header at the beginning of ``head``. Never allocates by what the bytes claim. Raises RingDamage."""
    size = header_size(head)
    if len(head) < size:
        raise RingDamage(f"truncated in the header: {len(head)} of {size} bytes")
    _, _, _, _, slots, segment, base, salt, lost, length, crc = FIXED.unpack_from(head)
    if length > size - FIXED.size:
        raise RingDamage(f"damaged header: {length} bytes of JSON at byte 56 in a header of {size}")
    body = head[FIXED.size : FIXED.size + length]
    plain = bytearray(head[: FIXED.size])
    plain[LOST_AT : LOST_AT + 8] = bytes(8)
    plain[FIXED.size - 4 :] = bytes(4)
    if zlib.crc32(bytes(plain) + body) != crc:
        raise RingDamage("damaged header: its checksum at byte 60 does not hold")
    if max(slots, segment, base) >= 1 << 48 or salt >= _LARGEST:
        raise RingDamage("damaged header: absurd counts at byte 16")
    try:
        words = json.loads(body)
        clocks = [_number(words, name) for name in ("wall_ns", "mono_ns")]
        return Header(
            _owner(words), size, slots, segment, base, salt, min(lost, _LARGEST), clocks[0], clocks[1], _tables(words)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise RingDamage(f"damaged header: its JSON at byte {FIXED.size} is not understood ({_short(e)})") from None


def read_header(path: Path | str) -> Header:
    """The header of a segment's file. Raises OSError and RingDamage."""
    with open(path, "rb") as f:
        return parse(f.read(LARGEST_HEADER))


def file_name(rank: int, segment: int) -> str:
    """How the file of a segment is called."""
    return f"rank{rank}.{segment:06d}.ring"


def segments(folder: Path, rank: int | None = None) -> list[tuple[int, Path]]:
    """The segments of a rank (or of all) in a folder as (number, path), oldest first; a rank's stay together."""
    found = []
    for name in os.listdir(folder):
        m = _FILE.fullmatch(name)
        if m is not None and (rank is None or int(m[1]) == rank):
            found.append((int(m[1]), int(m[2]), folder / name))
    return [(number, path) for _, number, path in sorted(found)]


def _owner(words: Mapping[str, Any]) -> Owner:
    pid, start, rank, dp, pp, cp, tp, life = (
        _number(words, name) for name in ("pid", "start_ticks", "rank", *_PLACE, "life_base")
    )
    sizes = {_clip(name): _number(words["sizes"], name) for name in words["sizes"]}
    host, boot, label = (_clip(words[name]) for name in ("host", "boot_id", "label"))
    return Owner(host, boot, pid, start, rank, label, dp, pp, cp, tp, sizes, life)


def _tables(words: Mapping[str, Any]) -> dict[str, dict[int, str]]:
    return {
        _clip(name): {int(n): _clip(text) for n, text in table.items() if len(n) < 8}
        for name, table in words["tables"].items()
    }


def _number(words: Mapping[str, Any], name: str) -> int:
    value = words[name]
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise ValueError(f"{name} is no number in range")
    return value


def _clip(text: Any) -> str:
    """A name that may be shown: a string, not too long, nothing unprintable."""
    if type(text) is not str:
        raise ValueError("a name is no text")
    return "".join(c if c.isprintable() else "?" for c in text[:_LONGEST_NAME])


def _short(e: BaseException) -> str:
    return (str(e) or type(e).__name__).splitlines()[0][:80]
