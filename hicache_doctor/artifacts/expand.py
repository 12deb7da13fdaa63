"""Everything that the user named, unpacked: files, folders, archives in archives, standard input.

The kind of a file is decided by its content, never by its name. Whatever cannot be read becomes one :class:`Problem`
(what, where, what to do), and everything else goes on. Nothing is written outside of the spool.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from hicache_doctor.artifacts import names
from hicache_doctor.artifacts.archive import Member, Problem, tar_members, zip_members
from hicache_doctor.artifacts.folders import STDIN, Found, found
from hicache_doctor.artifacts.packing import DEFAULT, Limits, Packing, packing_of, unpacked
from hicache_doctor.artifacts.sniff import unicode_of
from hicache_doctor.artifacts.source import Source, open_regular
from hicache_doctor.artifacts.spool import LimitReached, Spool, SpoolFull
from hicache_doctor.artifacts.tar import is_tar

__all__ = ["Limits", "Problem", "Source", "expand"]

_HEAD = 4096
_CHUNK = 1 << 20
_FOREIGN = {b"7z\xbc\xaf\x27\x1c": "7z", b"Rar!\x1a\x07": "rar"}


def expand(
    paths: Sequence[str], *, spool: Path, stdin: BinaryIO | None, limits: Limits = DEFAULT
) -> Iterator[Source | Problem]:
    """Each artefact below ``paths`` (``-`` is ``stdin``), in order, as a :class:`Source` to read or a :class:`Problem`.

    ``spool`` is a private (0700) temporary folder of the caller's, who removes it when the sources have been read.
    """
    return _Expansion(Spool(spool, limits), limits).run(paths, stdin)


@dataclass(frozen=True, slots=True)
class _File:
    """A file to look into. ``spooled``: it is ours, and may be dropped once it has been unpacked."""

    path: str
    file: Path
    note: str = ""
    spooled: bool = False
    depth: int = 0


class _Expansion:
    def __init__(self, spool: Spool, limits: Limits) -> None:
        self._spool = spool
        self._limits = limits
        self._taken = names.Taken()

    def run(self, paths: Sequence[str], stdin: BinaryIO | None) -> Iterator[Source | Problem]:
        for item in found(paths, self._limits):
            if isinstance(item, Problem):
                yield replace(item, path=self._taken.unique(item.path))
            elif item.identity is None:
                yield from self._stream(item, stdin)
            else:
                self._spool.start(item.identity[2])
                yield from self._file(_File(self._taken.unique(item.shown), item.file))

    def _stream(self, item: Found, stdin: BinaryIO | None) -> Iterator[Source | Problem]:
        """Spool what can be read once only (standard input, a pipe of the shell's), then look into it."""
        path, faults = self._taken.unique(item.shown), list[str]()
        ours = item.file != STDIN
        try:
            f = open(item.file, "rb", buffering=0) if ours else stdin  # noqa: SIM115 (closed below)
        except OSError as e:
            yield Problem(path, 0, "unreadable", f"cannot be read ({e.strerror or e})")
            return
        if f is None:
            yield Problem(path, 0, "missing", "there is no standard input: give a file, or pipe something in")
            return
        try:
            kept = self._spool.keep(_read_all(f, faults), judged=False)
        except (LimitReached, SpoolFull) as e:
            yield Problem(path, 0, "limit", str(e))
            return
        finally:
            if ours:
                f.close()
        self._spool.start(kept.size)
        yield from self._file(_File(path, kept.file, "; ".join(faults), spooled=True))

    def _file(self, it: _File) -> Iterator[Source | Problem]:
        try:
            f = open_regular(it.file)
        except FileNotFoundError:
            yield Problem(it.path, 0, "missing", "it vanished while the others were read: fetch it again")
            return
        except PermissionError:
            yield Problem(it.path, 0, "unreadable", "permission denied: run as its owner, or copy it with sudo")
            return
        except OSError as e:
            yield Problem(it.path, 0, "unreadable", f"cannot be opened ({e.strerror or e})")
            return
        with f:
            size = 0
            try:
                size = os.fstat(f.fileno()).st_size
                head = f.read(_HEAD)
                f.seek(0)
                yield from self._content(it, f, head, size)
            except (LimitReached, SpoolFull) as e:
                yield Problem(it.path, size, "limit", str(e))
            except OSError as e:
                yield Problem(it.path, size, "unreadable", f"cannot be read ({e.strerror or e})")

    def _content(self, it: _File, f: BinaryIO, head: bytes, size: int) -> Iterator[Source | Problem]:
        if not head:
            yield Problem(it.path, 0, "empty", it.note or "the file is empty")
        elif head.startswith((b"PK\3\4", b"PK\5\6", b"PK\7\x08PK\3\4")):
            yield from self._archive(it, size, zip_members(f, self._spool, it.path))
        elif is_tar(head):
            yield from self._archive(it, size, tar_members(f.read, str, self._spool, it.path))
        elif packing := packing_of(head):
            yield from self._packed(it, f, packing, size)
        elif foreign := next((kind for magic, kind in _FOREIGN.items() if head.startswith(magic)), None):
            yield Problem(it.path, size, foreign, f"a {foreign} archive is not read: unpack it and give the folder")
        elif encoding := unicode_of(head):
            yield from self._transcoded(it, f, encoding, size)
        else:
            yield Source(it.path, it.file, size, None, it.note, self._limits)

    def _packed(self, it: _File, f: BinaryIO, packing: Packing, size: int) -> Iterator[Source | Problem]:
        faults: list[str] = []
        pipe = _Pipe(unpacked(f, packing, faults.append, self._limits))
        head = pipe.peek(_HEAD)
        if is_tar(head):
            yield from self._archive(it, size, tar_members(pipe.read, lambda: "".join(faults), self._spool, it.path))
        elif not head:
            kind = "damaged" if faults else "empty"
            yield Problem(it.path, size, kind, "".join(faults) or f"{packing} with nothing in it")
        elif packing in ("gzip", "zstd") and not _deeper(head):
            yield Source(it.path, it.file, size, packing, it.note, self._limits)
        elif it.depth >= self._limits.depth:
            yield self._too_deep(it, size)
        else:
            kept = self._spool.keep(iter(lambda: pipe.read(_CHUNK), b""))
            note = "; ".join(n for n in (it.note, *faults) if n)
            yield from self._file(_File(it.path, kept.file, note, spooled=True, depth=it.depth + 1))
            self._forget(it)

    def _archive(self, it: _File, size: int, members: Iterator[Member | Problem]) -> Iterator[Source | Problem]:
        if it.depth >= self._limits.depth:
            yield self._too_deep(it, size)
            return
        told = False
        for member in members:
            path = self._taken.unique(member.path) if member.path != it.path else it.path
            if isinstance(member, Problem):
                told |= path == it.path
                yield Problem(path, member.bytes or (size if path == it.path else 0), member.kind, member.note)
                continue
            yield from self._file(_File(path, member.kept.file, member.note, spooled=True, depth=it.depth + 1))
        if it.note and not told:
            yield Problem(it.path, size, "archive", it.note)
        self._forget(it)

    def _transcoded(self, it: _File, f: BinaryIO, encoding: str, size: int) -> Iterator[Source | Problem]:
        """UTF-16 and UTF-32 text becomes UTF-8 in the spool, so that every reader sees the same bytes."""
        decoder = codecs.getincrementaldecoder(encoding)("replace")

        def chunks() -> Iterator[bytes]:
            while chunk := f.read(_CHUNK):
                yield decoder.decode(chunk).encode("utf-8", "replace")
            yield decoder.decode(b"", final=True).encode("utf-8", "replace")

        kept = self._spool.keep(chunks())
        note = "; ".join(n for n in (it.note, f"{encoding} text, read as UTF-8") if n)
        yield Source(it.path, kept.file, kept.size, None, note, self._limits)
        self._forget(it)

    def _too_deep(self, it: _File, size: int) -> Problem:
        note = f"archives in archives more than {self._limits.depth} deep: unpack it and give the folder"
        return Problem(it.path, size, "archive depth", note)

    def _forget(self, it: _File) -> None:
        if it.spooled:
            self._spool.drop(it.file)


class _Pipe:
    """``read(n)`` over blocks: n bytes, fewer only at the end."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._buffer = b""
        self._at = 0

    def peek(self, n: int) -> bytes:
        head = self.read(n)
        self._buffer, self._at = head + self._buffer[self._at :], 0
        return head

    def read(self, n: int) -> bytes:
        parts: list[bytes] = []
        while n > 0:
            if self._at == len(self._buffer):
                self._buffer, self._at = next(self._blocks, b""), 0
                if not self._buffer:
                    break
            part = self._buffer[self._at : self._at + n]
            self._at += len(part)
            n -= len(part)
            parts.append(part)
        return b"".join(parts)


def _deeper(head: bytes) -> bool:
    """Whether unpacked content must be unpacked (or transcoded) once more."""
    return bool(head.startswith(b"PK\3\4") or packing_of(head) or unicode_of(head) or head.startswith(tuple(_FOREIGN)))


def _read_all(f: BinaryIO, faults: list[str]) -> Iterator[bytes]:
    try:
        while chunk := f.read(_CHUNK):
            yield chunk
    except (OSError, ValueError) as e:
        faults.append(f"reading ended with an error ({e})")
