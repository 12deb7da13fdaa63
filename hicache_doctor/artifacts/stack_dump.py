"""A stack dump of one process, whichever tool wrote it, and its evidence rows.

Frames are kept innermost first (``depth`` 0 is the innermost), whatever the order in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hicache_doctor.evidence.rows import Frame, Stack

# The functions under which only a scheduler's main thread runs.
_MAIN_FUNCTION = re.compile(r"run_scheduler_process|run_event_loop|(?:dispatch_)?event_loop\w*")
_NATIVE_SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".cu", ".rs", ".S")
_INTERESTING = re.compile(r"-?\d+(?:\.\d+)?|True|False|None|\"[^\"]{0,80}\"|'[^']{0,80}'")


@dataclass(slots=True)
class DumpFrame:
    """One frame as printed; ``locals`` holds scalars only (numbers, booleans, short strings)."""

    name: str
    file: str | None
    line: int | None
    at_line: int | None
    native: bool = False
    locals: dict[str, str] = field(default_factory=dict)

    @property
    def cls(self) -> str | None:
        """The class of a qualified name: it tells HiRadixCache from UnifiedRadixCache."""
        parts = [] if self.native else self.name.split(".")
        return parts[-2] if len(parts) > 1 and parts[-2] not in ("", "<locals>") else None

    @property
    def function(self) -> str:
        """The last component of a qualified name; a native symbol whole."""
        return self.name if self.native else self.name.rsplit(".", 1)[-1]


@dataclass(slots=True)
class Thread:
    """One thread; ``tid`` is the id as printed (decimal or hex), ``status`` idle, active, active+gil, current …"""

    tid: str | None
    status: str | None
    name: str | None
    line: int | None
    line_end: int | None
    frames: list[DumpFrame] = field(default_factory=list)
    main: bool = False
    record: int | None = None


@dataclass(slots=True)
class Dump:
    """One process at one moment. ``dump`` counts dumps of the same process in the same text, 0 first; ``ts`` is what a
    line before it says of the time (``date; py-spy dump …``).

    ``reason`` is faulthandler's (``Segmentation fault``); ``source`` is pyspy, faulthandler or pystack.
    """

    artifact: str
    source: str
    pid: int | None = None
    title: str | None = None
    python: str | None = None
    rank: str | None = None
    line: int | None = None
    line_end: int | None = None
    threads: list[Thread] = field(default_factory=list)
    reason: str | None = None
    dump: int = 0
    ts: float | None = None

    @property
    def main(self) -> Thread | None:
        """The main thread, where it could be told."""
        return next((t for t in self.threads if t.main), None)


def base_name(path: str | None) -> str | None:
    """The file's base name, for either separator."""
    return re.split(r"[/\\]", path)[-1] or path if path else None


def is_native(file: str | None, line: int | None) -> bool:
    """Native frames name a library, or C sources when debug symbols were there."""
    if file is None:
        return True
    if file.endswith(_NATIVE_SUFFIXES):
        return True
    return line is None and not file.endswith((".py", ".pyx", ">"))


def scalar(value: str) -> bool:
    """True for a local variable's value that is worth keeping."""
    return _INTERESTING.fullmatch(value) is not None


def mark_main(dump: Dump, fallback: int) -> None:
    """Mark the main thread: by name, by tid == pid, by the scheduler's loop, else ``threads[fallback]``."""
    threads = dump.threads
    if not threads:
        return
    found = next((t for t in threads if t.name == "MainThread"), None)
    found = found or next((t for t in threads if dump.pid is not None and t.tid == str(dump.pid)), None)
    found = found or next((t for t in threads if any(_MAIN_FUNCTION.fullmatch(f.function) for f in t.frames)), None)
    if found is None and not any(t.name for t in threads):
        found = threads[fallback]
    if found is not None:
        found.main = True


def number_dumps(dumps: Iterable[Dump]) -> None:
    """Set ``dump``: how many dumps of the same process came before in this text."""
    seen: dict[object, int] = {}
    for d in dumps:
        key = d.pid if d.pid is not None else d.rank
        d.dump = seen.get(key, 0) if key is not None else 0
        if key is not None:
            seen[key] = d.dump + 1


def rows(dump: Dump, rank: str | None = None, ts: float | None = None, life: int = 0) -> Iterator[Stack | Frame]:
    """Evidence rows: a Stack a thread, then its Frames. ``rank`` is the caller's, used when none is known."""
    for t in dump.threads:
        where = t.line if t.line is not None else f"record {t.record}"
        stack = f"{dump.artifact}:{where}:{dump.source}"
        yield Stack(
            id=stack,
            artifact=dump.artifact,
            line=t.line,
            line_end=t.line_end,
            record=t.record,
            ts=ts if ts is not None else dump.ts,
            rank=dump.rank or rank,
            pid=dump.pid,
            source="pyspy" if dump.source == "pystack" else dump.source,
            thread=t.name or t.tid,
            main=t.main,
            status=t.status,
            dump=dump.dump,
            life=life,
        )
        for depth, f in enumerate(t.frames):
            yield Frame(stack, depth, f.cls, f.function, base_name(f.file), f.line, f.at_line, f.native)
