"""What an ELF core says of its process in its notes (elf(5), the kernel's fs/binfmt_elf.c): who it was, the signal,
its threads, the files that it had mapped.

Read by hand, because the file is hostile: every offset is held against the size on disk, every count has a bound, and
nothing is allocated by what the file claims. Only 64-bit little-endian cores are read: SGLang runs on nothing else.
"""

from __future__ import annotations

import io
import os
import re
import signal
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from hicache_doctor.artifacts.source import open_regular

PRSTATUS, PRPSINFO, AUXV, FILES, SIGINFO = 1, 3, 6, 0x46494C45, 0x53494749
AT_ENTRY = 9
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")
_PAIR = struct.Struct("<QQ")
_RANGE = struct.Struct("<QQQ")
_CORE, _LOAD, _NOTES = 4, 1, 4
_MANY = 0xFFFF  # PN_XNUM: the number of program headers is in the first section header
_MOST_PROGRAMS = 1 << 18
_MOST_NOTES = 1 << 18
_MOST_THREADS = 1 << 14
_MOST_FILES = 1 << 16
_LARGEST = {PRSTATUS: 1 << 10, PRPSINFO: 1 << 10, AUXV: 1 << 13, FILES: 16 << 20, SIGINFO: 1 << 10}
# The signals whose default action writes a core; any other in a core means that a debugger wrote it (gcore).
FATAL = {
    signal.SIGQUIT, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV,
    signal.SIGXCPU, signal.SIGXFSZ, signal.SIGSYS,
}  # fmt: skip
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
_PYTHON = re.compile(r"libpython(3\.\d{1,2})|/python(3\.\d{1,2})(?:/|$)")


class CoreDamage(ValueError):
    """It is no core that can be read; the text says why."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """A part of a file that the process had mapped."""

    start: int
    end: int
    offset: int
    path: str


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory that the core holds: addresses ``start`` to ``end`` lie in the file from ``offset`` on."""

    start: int
    end: int
    offset: int


@dataclass(slots=True)
class ElfCore:
    """A core's notes. ``threads`` are thread ids, the one that the kernel dumped from first; ``size`` is the file's
    and ``claimed`` what its headers say it must be; ``faults`` are what could not be read."""

    size: int
    claimed: int = 0
    pid: int | None = None
    name: str | None = None
    command: str | None = None
    signal: int | None = None
    address: int | None = None
    sender: int | None = None
    entry: int | None = None
    threads: list[int] = field(default_factory=list)
    mapped: list[Mapped] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def truncated(self) -> bool:
        """Whether the file ends before its last segment."""
        return self.claimed > self.size

    @property
    def fatal(self) -> str | None:
        """The name of the signal that ended the process; None for a core that a debugger took of a running one."""
        return signal.Signals(self.signal).name if self.signal in FATAL else None

    @property
    def own(self) -> bool:
        """Whether the process met the signal by itself: a fault, or ``abort()``; no one sent it."""
        return self.address is not None or (self.sender is not None and self.sender == self.pid)

    @property
    def files(self) -> list[str]:
        """The mapped files, each once, in the order of addresses."""
        return list(dict.fromkeys(m.path for m in self.mapped))

    @property
    def executable(self) -> str | None:
        """The program: the mapped file that holds the entry point."""
        return None if self.entry is None else self.file_at(self.entry)

    @property
    def python(self) -> str | None:
        """``3.11``, by the names of mapped files."""
        for path in self.files:
            if found := _PYTHON.search(path):
                return found[1] or found[2]
        return None

    def file_at(self, address: int) -> str | None:
        """The mapped file at an address."""
        return next((m.path for m in self.mapped if m.start <= address < m.end), None)


def read(file: str | os.PathLike[str]) -> ElfCore:
    """The notes of the core ``file``. What is damaged or cut is told in ``faults``.

    Raises:
        CoreDamage: no 64-bit little-endian ELF core.
        OSError: it cannot be read.
    """
    with io.BufferedReader(open_regular(os.fspath(file))) as f:  # type: ignore[type-var]
        size = os.fstat(f.fileno()).st_size
        core = ElfCore(size)
        notes = []
        for kind, start, address, length in _programs(f, _header(f, size), core):
            core.claimed = max(core.claimed, start + length)
            held = max(0, min(length, size - start))
            if kind == _NOTES and held:
                notes.append((start, held))
            elif kind == _LOAD and held:
                core.segments.append(Segment(address, address + held, start))
        for start, length in notes:
            _notes(f, start, start + length, core)
    core.mapped.sort(key=lambda m: m.start)
    core.segments.sort(key=lambda s: s.start)
    if not core.threads and core.pid is None:
        core.faults.append("its notes name no process")
    if not core.segments:
        core.faults.append("it holds no memory")
    return core


def _header(f: BinaryIO, size: int) -> tuple[int, int, int]:
    """Offset, size and number of the program headers."""
    raw = f.read(_HEADER.size)
    if raw[:4] != b"\x7fELF":
        raise CoreDamage("no ELF file")
    if raw[4:5] != b"\2":
        raise CoreDamage("a core of a 32-bit process is not read")
    if raw[5:6] != b"\1":
        raise CoreDamage("a core of a big-endian machine is not read")
    if len(raw) < _HEADER.size:
        raise CoreDamage(f"truncated: it ends inside its header, after {len(raw)} bytes")
    _, kind, _, _, _, programs, sections, _, _, entry_size, number, section_size, _, _ = _HEADER.unpack(raw)
    if kind != _CORE:
        raise CoreDamage("an ELF file, but no core")
    if entry_size != _PROGRAM.size:
        raise CoreDamage(f"a core file, but damaged: its program headers have {entry_size} bytes")
    if number == _MANY and section_size >= 48 and sections < size:
        f.seek(sections + 44)
        number = int.from_bytes(f.read(4), "little")
    return programs, entry_size, number


def _programs(f: BinaryIO, where: tuple[int, int, int], core: ElfCore) -> Iterator[tuple[int, int, int, int]]:
    """Type, file offset, address and length in the file of each program header."""
    start, step, number = where
    if number > _MOST_PROGRAMS:
        core.faults.append(f"only {_MOST_PROGRAMS} of {number} program headers were read")
        number = _MOST_PROGRAMS
    if start >= core.size:
        core.faults.append("truncated before its program headers")
        core.claimed = start + step * number
        return
    f.seek(start)
    for n in range(number):
        raw = f.read(step)
        if len(raw) < step:
            core.faults.append(f"truncated: {n} of {number} program headers")
            core.claimed = max(core.claimed, start + step * number)
            return
        kind, _, offset, address, _, length, _, _ = _PROGRAM.unpack(raw)
        yield kind, offset, address, length


def _notes(f: BinaryIO, at: int, end: int, core: ElfCore) -> None:
    for _ in range(_MOST_NOTES):
        if at + _NOTE.size > end:
            return
        f.seek(at)
        name_size, size, kind = _NOTE.unpack(f.read(_NOTE.size))
        data = at + _NOTE.size + (name_size + 3 & ~3)
        at = data + (size + 3 & ~3)
        if kind not in _LARGEST or f.read(min(name_size, 8)).rstrip(b"\0") != b"CORE":
            continue
        if at > end + 3:
            core.faults.append("truncated inside its notes")
        f.seek(data)
        content = f.read(max(0, min(size, _LARGEST[kind], end - data)))
        _READERS[kind](content, core)
    core.faults.append(f"only its first {_MOST_NOTES} notes were read")


def _prstatus(data: bytes, core: ElfCore) -> None:
    if len(data) < 36 or len(core.threads) >= _MOST_THREADS:
        return
    number, thread = struct.unpack_from("<h", data, 12)[0], struct.unpack_from("<i", data, 32)[0]
    if core.signal is None:
        core.signal = number
    core.threads.append(thread)


def _prpsinfo(data: bytes, core: ElfCore) -> None:
    if len(data) < 56 or core.pid is not None:
        return
    core.pid = struct.unpack_from("<i", data, 24)[0]
    core.name = _text(data[40:56]) or None
    core.command = _text(data[56:136]) or None


def _siginfo(data: bytes, core: ElfCore) -> None:
    if len(data) < 24 or core.sender is not None or core.address is not None:
        return
    number, _, code = struct.unpack_from("<iii", data)
    if number in _FAULTS and code > 0:
        core.address = struct.unpack_from("<Q", data, 16)[0]
    elif code <= 0:
        core.sender = struct.unpack_from("<i", data, 16)[0] or None


def _auxv(data: bytes, core: ElfCore) -> None:
    for key, value in _PAIR.iter_unpack(data[: len(data) // 16 * 16]):
        if key == AT_ENTRY:
            core.entry = value


def _files(data: bytes, core: ElfCore) -> None:
    """NT_FILE: a count, the page size, that many ranges, then their names, each with a zero behind it."""
    if len(data) < _PAIR.size:
        return
    count, page = _PAIR.unpack_from(data)
    held = min(count, (len(data) - _PAIR.size) // _RANGE.size, _MOST_FILES)
    names = data[_PAIR.size + count * _RANGE.size :] if held == count else b""
    at = 0
    for n in range(held):
        end = names.find(b"\0", at)
        if end < 0:
            core.faults.append(f"the list of mapped files is cut: {n} of {count}")
            return
        start, stop, offset = _RANGE.unpack_from(data, _PAIR.size + n * _RANGE.size)
        core.mapped.append(Mapped(start, stop, offset * page, _text(names[at : min(end, at + 4096)])))
        at = end + 1
    if held < count:
        core.faults.append(f"the list of mapped files is cut: {held} of {count}")


def _text(data: bytes) -> str:
    """Text of the process as one line: it may be anything."""
    plain = data.split(b"\0\0", 1)[0].replace(b"\0", b" ").decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in plain).strip()


_READERS = {PRSTATUS: _prstatus, PRPSINFO: _prpsinfo, SIGINFO: _siginfo, AUXV: _auxv, FILES: _files}
