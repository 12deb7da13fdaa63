"""Members of tar and zip archives, spooled: their bytes are kept, their names are shown, nothing else is obeyed."""

from __future__ import annotations

import stat
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from hicache_doctor.artifacts import names, tar
from hicache_doctor.artifacts.spool import Kept, LimitReached, Spool, SpoolFull
from hicache_doctor.evidence.rows import Artifact

_CHUNK = 1 << 20
_LARGEST_DIRECTORY = 16 << 20
_END_RECORD = 22
_LONGEST_COMMENT = 1 << 16
_ZIP64 = 56 + 20  # the zip64 end record and its locator, right before the end record
_ENCRYPTED = 0x1 | 0x40
_UTF8_NAME = 0x800


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that was named or found and cannot be read: one inventory row. ``note`` says why and what to do."""

    path: str
    bytes: int
    kind: str
    note: str

    def row(self) -> Artifact:
        """The inventory row."""
        return Artifact(self.path, self.path, self.kind, self.bytes, None, None, "none", self.note)


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file that lay in an archive; ``path`` is its citation path, not yet unique."""

    path: str
    kept: Kept
    note: str


def tar_members(
    read: Callable[[int], bytes], fault: Callable[[], str], spool: Spool, path: str
) -> Iterator[Member | Problem]:
    """The members of the tar archive ``path``; ``fault`` tells why ``read`` ended early. Raises what a spool raises."""
    n = 0
    try:
        for entry in tar.entries(read):
            spool.count_member()
            n += 1
            if entry.kind == "folder":
                continue
            name, odd = names.member(entry.name)
            where = f"{path}!{name}"
            if entry.kind != "file":
                yield Problem(where, 0, entry.kind, _refused(entry))
                continue
            kept = spool.keep(entry.data)
            short = f"cut short: {kept.size} of {entry.size} bytes are there" if entry.short else ""
            yield from _member(spool, where, kept, (odd, short))
            if entry.short:
                raise tar.TarDamage("the archive ends inside its last member")
        if why := fault():
            raise tar.TarDamage(why)
    except tar.TarDamage as e:
        yield Problem(path, 0, "damaged archive", f"{fault() or e}; {n} member(s) seen: fetch the archive again")
        return
    if not n:
        yield Problem(path, 0, "empty archive", "the archive has no members")


def _refused(entry: tar.Entry) -> str:
    if entry.kind == "sparse file":
        return "a sparse file in a tar is not read: unpack it with GNU tar and give the file"
    if entry.kind in ("symbolic link", "hard link"):
        target = names.shown(entry.link.decode("utf-8", "surrogateescape"))
        return f"a {entry.kind} to {target}: never followed out of an archive; its target is read if it is a member"
    return f"a {entry.kind} in a tar: nothing to read"


def zip_members(f: BinaryIO, spool: Spool, path: str) -> Iterator[Member | Problem]:
    """The members of the zip archive ``path``. Raises what a spool raises."""
    try:
        if (listing := _directory_size(f)) > _LARGEST_DIRECTORY:
            yield Problem(path, 0, "archive limit", f"a member list of {listing} bytes: unpack it yourself")
            return
        archive = zipfile.ZipFile(f)
        members = archive.infolist()
    except Exception as e:  # zipfile lets through whatever a crafted header makes struct, int or codecs raise
        note = f"not a readable zip ({_short(e)}): fetch it again, or try `zip -FF`"
        yield Problem(path, 0, "damaged archive", note)
        return
    if not members:
        yield Problem(path, 0, "empty archive", "the archive has no members")
    for info in members:
        spool.count_member()
        name, odd = names.member(_zip_name(info))
        if _zip_name(info).endswith("/"):
            continue
        where = f"{path}!{name}"
        mode = info.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            yield Problem(where, 0, "symbolic link" if stat.S_ISLNK(mode) else "unknown entry", "not a regular file")
        elif info.flag_bits & _ENCRYPTED:
            note = "encrypted: unpack it with its password and give the file"
            yield Problem(where, info.compress_size, "encrypted", note)
        elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            note = f"compression method {info.compress_type} is not read from zips: unpack it and give the file"
            yield Problem(where, info.compress_size, "unknown compression", note)
        else:
            faults: list[str] = []
            kept = spool.keep(_zip_content(archive, info, faults))
            yield from _member(spool, where, kept, (odd, *faults))


def _zip_content(archive: zipfile.ZipFile, info: zipfile.ZipInfo, faults: list[str]) -> Iterator[bytes]:
    got = 0
    try:
        with archive.open(info) as content:
            while chunk := content.read(_CHUNK):
                got += len(chunk)
                yield chunk
    except (GeneratorExit, LimitReached, SpoolFull):
        raise
    except Exception as e:
        faults.append(f"damaged after {got} of {info.file_size} bytes ({_short(e)})")


def _member(spool: Spool, where: str, kept: Kept, notes: Iterable[str]) -> Iterator[Member | Problem]:
    note = "; ".join(n for n in notes if n)
    if kept.size:
        yield Member(where, kept, note)
        return
    spool.drop(kept.file)
    yield Problem(where, 0, "empty", note or "the file is empty")


def _zip_name(info: zipfile.ZipInfo) -> str:
    """The full name as stored; without the UTF-8 flag it is still UTF-8 more often than code page 437."""
    name = info.orig_filename
    if info.flag_bits & _UTF8_NAME:
        return name
    try:
        return name.encode("cp437").decode("utf-8")
    except UnicodeError:
        return name


def _directory_size(f: BinaryIO) -> int:
    """How large the list of members claims to be (zipfile would load it whole); 0 when there is no end record."""
    end = f.seek(0, 2)
    start = max(0, end - _LONGEST_COMMENT - _END_RECORD - _ZIP64)
    f.seek(start)
    tail = f.read(end - start)
    f.seek(0)
    largest = 0
    for at in (tail.rfind(b"PK\5\6"), len(tail) - _END_RECORD):
        if at >= 0 and tail[at : at + 4] == b"PK\5\6" and len(tail) - at >= _END_RECORD:
            largest = max(largest, struct.unpack_from("<L", tail, at + 12)[0])
            if at >= _ZIP64 and tail[at - 20 : at - 16] == b"PK\6\7":
                largest = max(largest, struct.unpack_from("<Q", tail, at - _ZIP64 + 40)[0])
    return largest if largest != 0xFFFFFFFF else 0


def _short(e: BaseException) -> str:
    return names.shown((str(e) or type(e).__name__).split("\n", 1)[0][:160])
