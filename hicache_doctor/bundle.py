"""``crash.dump``: everything that was collected of a failure, as one tar.zst that any tar can open.

The first member is ``manifest.json``: what is inside (sizes, digests), whose processes it is of, what could not be
taken. Then ``settings.log``, ``samples.jsonl``, ``logs/<rank>.log``, ``pyspy/<rank>.json``,
``flight_recorder/<rank>.json`` and ``rings/<rank>.<segment>.ring``. The same members give the same bytes. Copies of
rings come from ``probes.trim``, which shortens them to a budget.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from hicache_doctor.errors import DoctorError, InputError, UsageError

FORMAT = "hicache-doctor bundle"
SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
LARGEST_MANIFEST = 16 << 20
ORDER = ("settings.log", "samples.jsonl", "logs", "pyspy", "flight_recorder", "rings")
_NAME = re.compile(r"(?!\.)[\w. -]+(?:/(?!\.)[\w. -]+)*", re.ASCII)
_LONGEST = 100
_BLOCK = 512
_CHUNK = 1 << 20
_LEVEL = 3
_WINDOW = 1 << 27


@dataclass(frozen=True, slots=True)
class Source:
    """A member to write: its name in the bundle and where its bytes come from (a file, bytes, or what makes them)."""

    name: str
    data: Path | bytes | Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Member:
    """A member as the manifest lists it. ``digest`` is BLAKE2b (16 bytes, hex)."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class RankEntry:
    """A process whose evidence is in the bundle; ``exit_code`` is negative for a signal, None while it runs."""

    label: str
    number: int | None = None
    host: str | None = None
    pid: int | None = None
    exit_code: int | None = None


@dataclass(slots=True)
class Manifest:
    """What a bundle says of itself. ``created`` is ISO 8601 in UTC; ``notes`` tell what could not be taken."""

    host: str = ""
    created: str = ""
    tool_version: str = ""
    ranks: list[RankEntry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION

    def dump(self) -> bytes:
        """As the text of ``manifest.json``."""
        return (json.dumps({"format": FORMAT, **asdict(self)}, indent=1, ensure_ascii=False) + "\n").encode()


def members_of(folder: Path) -> list[Source]:
    """The regular files below ``folder`` under their relative names; links are not followed, a manifest is left out."""
    out = []
    for root, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = Path(root) / name
            where = path.relative_to(folder).as_posix()
            if where != MANIFEST and path.is_file() and not path.is_symlink():
                out.append(Source(where, path))
    return out


def write_bundle(
    out: Path | str, members: Path | Iterable[Source], manifest: Manifest, *, force: bool = False
) -> Manifest:
    """Write ``out`` from a folder or from sources; returns ``manifest`` with its members and notes filled in.

    The file appears whole or not at all, with mode 0600. A source that cannot be read costs itself and becomes a note.

    Raises:
        UsageError: ``out`` exists and ``force`` is not given, or its folder does not exist.
        DoctorError: it cannot be written (a full disk).
        ValueError: a member's name is not a plain relative one, or comes twice.
    """
    out = Path(out)
    sources = sorted(members_of(members) if isinstance(members, Path) else members, key=_position)
    _check(sources)
    if out.exists() and not force:
        raise taken(out)
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is no folder; create it first")
    body, whole = (out.parent / f".{out.name}.{os.getpid()}.{part}" for part in ("body", "whole"))
    try:
        with _create(body) as f:
            _write_members(f, sources, manifest)
        with _create(whole) as f:
            # The manifest is known last and read first: it is a zstd frame of its own, in front of the others.
            with _compressed(f) as z:
                text = manifest.dump()
                _write_entry(z, MANIFEST, len(text), [text], lambda _: None)
            with open(body, "rb") as packed:
                while chunk := packed.read(_CHUNK):
                    f.write(chunk)
            f.flush()
            os.fsync(f.fileno())
        _publish(whole, out, force)
    except OSError as e:
        raise DoctorError(f"{out}: cannot be written ({e.strerror or e}); free space there or name another") from e
    finally:
        for temporary in (body, whole):
            with contextlib.suppress(OSError):
                temporary.unlink()
    return manifest


def taken(out: Path) -> UsageError:
    """What is said of an output that exists and is not to be overwritten."""
    return UsageError(f"{out} exists; choose another name, or overwrite it with --force")


def read_manifest(path: Path | str) -> Manifest:
    """The manifest of a bundle; only its beginning is unpacked.

    Raises:
        InputError: it is no bundle, or its manifest is damaged or of another version.
    """
    for name, size, data in _entries(Path(path)):
        if name != MANIFEST or size > LARGEST_MANIFEST:
            break
        return parse_manifest(b"".join(data))
    raise InputError(f"{path}: no bundle of hicache-doctor (its first member is no {MANIFEST})")


def verify(path: Path | str) -> list[str]:
    """What does not agree with the manifest, a line each; nothing for an intact bundle.

    Raises:
        InputError: it is no bundle, or its manifest cannot be read.
    """
    left = {m.name: m for m in read_manifest(path).members}
    problems = []
    try:
        for name, size, data in _entries(Path(path)):
            if name == MANIFEST:
                continue
            digest = hashlib.blake2b(digest_size=16)
            for chunk in data:
                digest.update(chunk)
            said = left.pop(name, None)
            if said is None:
                problems.append(f"{name}: not in the manifest")
            elif (said.size, said.digest) != (size, digest.hexdigest()):
                problems.append(f"{name}: not what the manifest says")
    except InputError as e:
        problems.append(str(e))
    return problems + [f"{name}: missing" for name in left]


def is_manifest(head: bytes) -> bool:
    """Whether JSON that begins with ``head`` is the manifest of a bundle."""
    return f'"{FORMAT}"'.encode() in head[:200]


def parse_manifest(data: bytes) -> Manifest:
    """The manifest from its text. Raises InputError."""
    try:
        words = json.loads(data)
        if words["format"] != FORMAT:
            raise ValueError("another format")
        version = words["schema_version"]
        if version != SCHEMA_VERSION:
            raise InputError(f"{MANIFEST}: version {version!r}, this release reads {SCHEMA_VERSION}: use a newer one")
        return Manifest(
            _text(words["host"]),
            _text(words["created"]),
            _text(words["tool_version"]),
            [_rank(r) for r in words["ranks"]],
            [_text(n) for n in words["notes"]],
            [Member(_text(m["name"]), _number(m["size"]) or 0, _text(m["digest"])) for m in words["members"]],
        )
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        short = (str(e) or type(e).__name__).splitlines()[0][:80]
        raise InputError(f"{MANIFEST}: not understood ({short})") from None


# -- writing ----------------------------------------------------------------------------------------------------------


def _position(source: Source) -> tuple[int, str]:
    first = source.name.partition("/")[0]
    return ORDER.index(first) if first in ORDER else len(ORDER), source.name


def _check(sources: Sequence[Source]) -> None:
    seen: set[str] = {MANIFEST}
    for source in sources:
        if len(source.name) > _LONGEST or not _NAME.fullmatch(source.name):
            raise ValueError(f"{source.name!r} is no plain relative name for a member")
        if source.name in seen:
            raise ValueError(f"{source.name!r} comes twice")
        seen.add(source.name)


def _create(path: Path) -> BinaryIO:
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "wb")


def _compressed(f: BinaryIO) -> Any:
    import zstandard

    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).stream_writer(f, closefd=False)


def _write_members(f: BinaryIO, sources: Sequence[Source], manifest: Manifest) -> None:
    manifest.members = []
    with _compressed(f) as z:
        for source in sources:
            digest = hashlib.blake2b(digest_size=16)
            try:
                with _opened(source.data) as (size, chunks):
                    short = _write_entry(z, source.name, size, chunks, digest.update)
            except OSError as e:
                if e.filename is None:  # of the bundle itself, not of the source
                    raise
                manifest.notes.append(f"{source.name}: not taken ({e.strerror or e})")
                continue
            if short:
                manifest.notes.append(f"{source.name}: {short} bytes at its end could not be read and are zero")
            manifest.members.append(Member(source.name, size, digest.hexdigest()))
        z.write(bytes(2 * _BLOCK))


def _write_entry(z: Any, name: str, size: int, chunks: Iterable[bytes], seen: Callable[[bytes], None]) -> int:
    """One tar entry; a source that ends early is filled up with zeros. Returns how many those are."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    z.write(entry.tobuf(tarfile.GNU_FORMAT))
    left = size
    for chunk in chunks:
        left -= len(chunk)
        z.write(chunk)
        seen(chunk)
    short = left
    while left > 0:
        zeros = bytes(min(left, _CHUNK))
        left -= len(zeros)
        z.write(zeros)
        seen(zeros)
    z.write(bytes(-size % _BLOCK))
    return short


@contextlib.contextmanager
def _opened(data: Path | bytes | Callable[[], bytes]) -> Iterator[tuple[int, Iterable[bytes]]]:
    """The size, fixed now although a log may grow, and the chunks. Raises OSError with a file name."""
    if not isinstance(data, Path):
        content = data if isinstance(data, bytes) else data()
        yield len(content), [content]
        return
    with open(os.open(data, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", buffering=0) as f:
        status = os.fstat(f.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(data))
        yield status.st_size, _chunks(f, status.st_size)


def _chunks(f: BinaryIO, size: int) -> Iterator[bytes]:
    """At most ``size`` bytes, fewer when the file got shorter or cannot be read on."""
    with contextlib.suppress(OSError):
        while size > 0 and (chunk := f.read(min(size, _CHUNK))):
            size -= len(chunk)
            yield chunk


def _publish(whole: Path, out: Path, force: bool) -> None:
    if force:
        os.replace(whole, out)
        return
    try:
        os.link(whole, out)  # unlike a rename it refuses to overwrite what appeared meanwhile
    except FileExistsError:
        raise taken(out) from None
    except OSError:
        os.replace(whole, out)  # a file system without links


# -- reading ----------------------------------------------------------------------------------------------------------


def _entries(path: Path) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """Name, size and content of each member; what is not taken of a content is skipped. Raises InputError."""
    import zstandard

    try:
        with open(path, "rb") as f:
            z = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(f, read_across_frames=True)
            while any(block := _exactly(z, _BLOCK)):
                entry = tarfile.TarInfo.frombuf(block, "utf-8", "replace")
                data = _data(z, entry.size)
                yield entry.name, entry.size, data
                for _ in data:
                    pass
                _exactly(z, -entry.size % _BLOCK)
    except (OSError, zstandard.ZstdError, tarfile.TarError, ValueError, EOFError) as e:
        what = getattr(e, "strerror", None) or str(e) or type(e).__name__
        raise InputError(f"{path}: cannot be read as a bundle ({what.splitlines()[0][:120]})") from None


def _data(z: Any, size: int) -> Iterator[bytes]:
    while size > 0:
        chunk = _exactly(z, min(size, _CHUNK))
        size -= len(chunk)
        yield chunk


def _exactly(z: Any, size: int) -> bytes:
    """``size`` bytes. Raises EOFError when there are fewer."""
    parts: list[bytes] = []
    while size > 0:
        part: bytes = z.read(size)
        if not part:
            raise EOFError("it ends in the middle")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _rank(words: Any) -> RankEntry:
    host = words["host"]
    return RankEntry(
        _text(words["label"]),
        _number(words["number"]),
        None if host is None else _text(host),
        _number(words["pid"]),
        _number(words["exit_code"]),
    )


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("a text is none")
    return value[:4096]


def _number(value: Any) -> int | None:
    if value is not None and (type(value) is not int or abs(value) >= 1 << 62):
        raise ValueError("a number is none")
    return value
