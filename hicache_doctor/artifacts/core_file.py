"""Core files: who died, of what, with which libraries, and where its threads stood.

The ELF notes are read here and now (:mod:`elf_core`); the stacks by a tool in a child process (:mod:`core_stacks`), or
the note says what to run where. What the objects of the process held (``scheduler.tree_cache``) is the object reader's
to tell, from ``ElfCore.segments``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hicache_doctor.artifacts import core_stacks, elf_core, stack_dump
from hicache_doctor.artifacts.elf_core import CoreDamage, ElfCore
from hicache_doctor.artifacts.process_title import rank_of_title
from hicache_doctor.artifacts.secrets import Scrubber
from hicache_doctor.artifacts.source import Source
from hicache_doctor.evidence.rows import DEATH_SIGNAL, Rank, Row, Sample, Setting

if TYPE_CHECKING:
    from hicache_doctor.artifacts.inventory import Read

SOURCE = "core file"
RESERVE = 1 << 30
"""bytes that stay free on the disk of the spool"""
_HOLE = 1 << 16
# Libraries that tell which build ran: (setting, part of the file's name).
_LIBRARIES = (
    ("torch_library", "libtorch_cpu.so"),
    ("nccl_library", "libnccl.so"),
    ("gloo_library", "libgloo"),
    ("sgl_kernel_library", "/sgl_kernel/"),
    ("mooncake_library", "/mooncake/"),
    ("nixl_library", "libnixl"),
)


def read_core(source: Source, result: Read, spool: Path) -> None:
    """Fill ``result`` from a core, plain or compressed; ``spool`` is a private folder on a disk with room."""
    entry = result.artifact
    entry.reader, entry.kind = "core", "core file"
    faults: list[str] = []
    try:
        with _on_disk(source, spool, faults) as file:
            core = elf_core.read(file)
            result.rows += _rows(core, entry.id)
            stacks = core_stacks.read(file, core, entry.id, spool)
    except CoreDamage as e:
        entry.read, entry.note = "none", _join(entry.note, str(e), *faults)
        return
    except OSError as e:
        entry.read, entry.note = "none", _join(entry.note, f"cannot be read ({e.strerror or e})", *faults)
        return
    if core.truncated:
        faults.insert(0, _cut(core))
    label = _label(core)
    if stacks.dump is not None:
        stacks.dump.rank = label
        result.rows += stack_dump.rows(stacks.dump)
        told = f"{len(stacks.dump.threads)} stacks by {stacks.tool}"
    else:
        told = _what_to_run(core, source, stacks.why)
    faults = list(dict.fromkeys([*core.faults, *faults]))
    entry.read = "all" if stacks.dump is not None and not faults else "part"
    entry.note = _join(entry.note, _summary(core), *faults, told)


def _label(core: ElfCore) -> str | None:
    return rank_of_title(core.command) or rank_of_title(core.name)


def _rows(core: ElfCore, artifact: str) -> list[Row]:
    label = _label(core)
    rows: list[Row] = []
    if label is not None:
        rows.append(Rank(label, pid=core.pid, artifact=artifact))
    if core.fatal is not None:
        thread = core.threads[0] if core.threads else None
        labels = {
            "signal": core.fatal,
            "thread": thread,
            "sender": core.sender,
            "own": core.own,
            "address": None if core.address is None else hex(core.address),
            "quote": _end(core),
        }
        rows.append(Sample(artifact, None, label, core.pid, None, DEATH_SIGNAL, float(core.signal or 0), labels))
    if core.python is not None:
        rows.append(Setting("python_version", core.python, SOURCE, artifact, None, label, core.executable))
    for key, part in _LIBRARIES:
        path = next((f for f in core.files if part in f), None)
        if path is not None:
            rows.append(Setting(key, path, SOURCE, artifact, None, label, path))
    return rows


def _summary(core: ElfCore) -> str:
    who = Scrubber().line(core.command or core.name or "a process")
    number = "" if core.pid is None else f" (pid {core.pid})"
    parts = [f"{who}{number}: {_end(core)}"]
    if core.python is not None:
        parts.append(f"Python {core.python}")
    parts.append(f"{len(core.threads)} threads")
    return ", ".join(parts)


def _end(core: ElfCore) -> str:
    if core.fatal is None:
        return "taken while it ran"
    where = f" at address {core.address:#x}" if core.address is not None else ""
    raised = ", raised by itself" if core.address is None else ""
    by = raised if core.own else f", sent by pid {core.sender}" if core.sender else ""
    return f"ended by {core.fatal}{where}{by}"


def _cut(core: ElfCore) -> str:
    return (
        f"truncated: {core.size} of {core.claimed} bytes; for the next one `ulimit -c unlimited`, and "
        "ProcessSizeMax= and ExternalSizeMax= in coredump.conf where systemd takes cores"
    )


def _what_to_run(core: ElfCore, source: Source, why: str) -> str:
    """The exact command for the stacks, for the machine or image that the process ran on."""
    inside = "!" in source.path or source.compression is not None
    name = "CORE" if inside else shlex.quote(source.path)
    first = "unpack it to CORE, and " if inside else ""
    program = f" {shlex.quote(core.executable)}" if core.executable else ""
    return (
        f"no stacks ({why}): {first}in the image that it ran in, `pip install 'hicache-doctor[core]'` and "
        f"`pystack core {name}{program} --native-all > stacks.txt`, then add stacks.txt"
    )


@contextmanager
def _on_disk(source: Source, spool: Path, faults: list[str]) -> Iterator[Path]:
    """The core as a plain file: itself, or unpacked into the spool with its zeros as holes."""
    if source.compression is None:
        yield source.file.absolute()
        return
    descriptor, name = tempfile.mkstemp(prefix="core-", dir=spool)
    try:
        with open(descriptor, "wb") as out:
            _unpack(source, out.fileno(), spool, faults)
        yield Path(name)
    finally:
        os.unlink(name)


def _unpack(source: Source, out: int, spool: Path, faults: list[str]) -> None:
    room = shutil.disk_usage(spool).free - RESERVE
    at = 0
    for block in source.blocks(on_note=faults.append):
        for start in range(0, len(block), _HOLE):
            part = block[start : start + _HOLE]
            if not any(part[:64]) and not part.strip(b"\0"):  # type: ignore[union-attr]
                at += len(part)
                continue
            room -= len(part)
            if room < 0:
                faults.append(f"unpacked up to byte {at} only: the temporary folder is full; point TMPDIR at more room")
                return
            os.pwrite(out, part, at)
            at += len(part)
    os.ftruncate(out, at)


def _join(*notes: str) -> str:
    return "; ".join(n for n in notes if n)
