"""Tar archives as a stream of entries: v7, ustar, GNU and pax.

The standard ``tarfile`` is not used: releases that we support hang or take quadratic time on crafted headers
(CVE-2024-6232, CVE-2025-8194), it holds extended headers of any claimed size in memory, and in stream mode it takes a
damaged header for the end. Here nothing is held but one header, and every step moves forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

BLOCK = 512
_CHUNK = 1 << 20
_LONGEST_EXTENSION = 1 << 20
_LARGEST = 1 << 62

Kind = Literal["file", "folder", "symbolic link", "hard link", "device", "FIFO", "sparse file", "unknown entry"]
_KINDS: dict[bytes, Kind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hard link",
    b"2": "symbolic link",
    b"3": "device",
    b"4": "device",
    b"5": "folder",
    b"D": "folder",
    b"6": "FIFO",
    b"S": "sparse file",
}
_WITHOUT_DATA = frozenset(b"123456")


class TarDamage(ValueError):
    """The stream is not (or no longer) a tar archive; the text says what and where."""


@dataclass(slots=True)
class Entry:
    """One member. ``data`` yields its bytes; what is not taken is skipped. ``short``: the archive ended inside it."""

    name: bytes
    kind: Kind
    size: int
    link: bytes
    data: Iterator[bytes]
    short: bool = False


def is_tar(head: bytes) -> bool:
    """Whether ``head`` (at least one block) begins with a tar header, by its checksum."""
    return len(head) >= BLOCK and head[:1] != b"\0" and _checksum_holds(head[:BLOCK])


def entries(read: Callable[[int], bytes]) -> Iterator[Entry]:
    """The members of the archive that ``read`` delivers (fewer bytes than asked mean the end). Raises TarDamage."""
    stream = _Stream(read)
    common: dict[bytes, bytes] = {}
    extra: dict[bytes, bytes] = {}
    while (header := stream.header()) is not None:
        size = _number(header[124:136])
        kind = header[156:157]
        if kind in (b"x", b"X", b"g", b"L", b"K"):
            content = stream.extension(size)
            if kind == b"g":
                common.update(_pax(content))
            elif kind == b"L":
                extra[b"path"] = content.rstrip(b"\0")
            elif kind == b"K":
                extra[b"linkpath"] = content.rstrip(b"\0")
            else:
                extra.update(_pax(content))
            continue
        entry = _entry(header, size, {**common, **extra})
        extra = {}
        if kind == b"S":
            stream.skip_sparse_map(header)
        length = 0 if header[156] in _WITHOUT_DATA else entry.size
        stream.begin(length)
        entry.data = stream.data(entry)
        yield entry
        stream.finish()


def _entry(header: bytes, size: int, pax: dict[bytes, bytes]) -> Entry:
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0" and (prefix := header[345:500].split(b"\0", 1)[0]):
        name = prefix + b"/" + name
    link = header[157:257].split(b"\0", 1)[0]
    kind = _KINDS.get(header[156:157], "unknown entry")
    if any(key.startswith(b"GNU.sparse.") for key in pax):
        kind = "sparse file"
    name = pax.get(b"GNU.sparse.name", pax.get(b"path", name))
    if b"size" in pax:
        text = pax[b"size"]
        if not text.isdigit() or len(text) > 20:
            raise TarDamage("an extended header claims an impossible size")
        size = int(text)
    if kind == "file" and name.endswith(b"/"):
        kind = "folder"
    return Entry(name, kind, size, pax.get(b"linkpath", link), iter(()))


def _pax(content: bytes) -> dict[bytes, bytes]:
    """``length key=value\\n`` records; ends quietly at the first one that is wrong."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(content):
        space = content.find(b" ", at, at + 20)
        digits = content[at:space] if space > 0 else b""
        if not digits.isdigit():
            break
        end = at + int(digits)
        if end <= space or end > len(content):
            break
        key, equals, value = content[space + 1 : end - 1].partition(b"=")
        if equals:
            found[key] = value
        at = end
    return found


def _number(field: bytes) -> int:
    """An octal or base-256 header field. Raises TarDamage."""
    if field[:1] and field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if field[0] == 0xFF or value > _LARGEST:
            raise TarDamage("a header claims an impossible size")
        return value
    text = field.split(b"\0", 1)[0].strip()
    if not text:
        return 0
    if not all(c in b"01234567" for c in text):
        raise TarDamage("a header has no readable size")
    return int(text, 8)


def _checksum_holds(header: bytes) -> bool:
    try:
        claimed = _number(header[148:156])
    except TarDamage:
        return False
    blanked = header[:148] + b" " * 8 + header[156:]
    unsigned = sum(blanked)
    return claimed in (unsigned, unsigned - 256 * sum(b > 127 for b in blanked))


class _Stream:
    """The archive's bytes, one member at a time."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._at = 0
        self._left = 0
        self._padding = 0

    def header(self) -> bytes | None:
        """The next header; None at the end of the archive."""
        block = self._take(BLOCK)
        if not block or block.count(0) == BLOCK:
            return None
        if len(block) < BLOCK:
            raise TarDamage(f"the archive ends inside a header, after {self._at} bytes")
        if not _checksum_holds(block):
            raise TarDamage(f"the header at byte {self._at - BLOCK} is damaged")
        return block

    def extension(self, size: int) -> bytes:
        if size > _LONGEST_EXTENSION:
            raise TarDamage(f"an extended header claims {size} bytes")
        content = self._take(size + -size % BLOCK)
        if len(content) < size:
            raise TarDamage(f"the archive ends inside an extended header, after {self._at} bytes")
        return content[:size]

    def skip_sparse_map(self, header: bytes) -> None:
        more = header[482]
        while more:
            block = self._take(BLOCK)
            if len(block) < BLOCK:
                raise TarDamage(f"the archive ends inside a sparse map, after {self._at} bytes")
            more = block[504]

    def begin(self, length: int) -> None:
        self._left, self._padding = length, -length % BLOCK

    def data(self, entry: Entry) -> Iterator[bytes]:
        while self._left:
            if not (chunk := self._take(min(self._left, _CHUNK))):
                entry.short = True
                return
            self._left -= len(chunk)
            yield chunk

    def finish(self) -> None:
        """Skip what was not taken. Raises TarDamage when the archive ends inside the member."""
        self._left, skip = 0, self._left + self._padding
        padding, self._padding = self._padding, 0
        while skip:
            chunk = self._take(min(skip, _CHUNK))
            if not chunk and skip > padding:
                raise TarDamage(f"the archive ends inside a member, after {self._at} bytes")
            if not chunk:
                return
            skip -= len(chunk)

    def _take(self, size: int) -> bytes:
        chunk = self._read(size)
        self._at += len(chunk)
        return chunk
