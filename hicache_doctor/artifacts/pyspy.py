"""py-spy dumps: text (plain, ``--native``, ``--locals``, coloured, re-indented, cut) and ``--json``.

``parse_text`` and ``parse_json`` yield one :class:`~hicache_doctor.artifacts.stack_dump.Dump` a process; ``rows``
turns one into evidence. py-spy 0.4 prints qualified names (``HiRadixCache.writing_check``), older ones bare names:
both are kept apart as class and function. ``idle`` only means blocked in a system call or a lock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from hicache_doctor.artifacts import clock_text
from hicache_doctor.artifacts.call_order import innermost_first
from hicache_doctor.artifacts.process_title import rank_of_title
from hicache_doctor.artifacts.stack_dump import (
    Dump,
    DumpFrame,
    Thread,
    is_native,
    mark_main,
    number_dumps,
    rows,
    scalar,
)

__all__ = ["Dump", "DumpFrame", "Thread", "looks_like_pyspy", "parse_json", "parse_text", "rows"]

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_LOST_ANSI = re.compile(r"\[\d{1,2}(?:;\d{1,2})*m")
_PROCESS = re.compile(r"^\W{0,3}Process (\d{1,10}): ?(.*)$")
_ANNOUNCED = re.compile(r"Pyspy dump for PID (\d{1,10})")
_PYTHON = re.compile(r"^\W{0,3}Python v(\d+\.\d+\S*)(?: \((.*)\))?")
_PARENT = re.compile(r"^\s*Parent Process \d+")
_THREAD = re.compile(r"^\W{0,3}Thread (0x[0-9A-Fa-f]+|\d+)(?: \(([^()\"]*)\))?(?:: \"(.*?)\"?)?\s*$")
_FRAME = re.compile(r"^(\s*)(\S.*?) \(([^()]{1,300}?)(?::(\d+))?\)\s*$")
_WHERE = re.compile(r".*\.(?:pyx?|so[.\d]*|c|cc|cpp|cu|h)$|<[\w .-]+>|\[?\w+\]?")
_SECTION = re.compile(r"^\s{4,}(Arguments|Locals):\s*$")
_LOCAL = re.compile(r"^\s{6,}([A-Za-z_.]\w*): (.*)$")
# C++ symbols may be long; log records of 100 kB are no frames.
_LONGEST = 8000
# `date` before a dump, or a heading with the time: longer lines are something else's.
_HEADLINE = 64


def looks_like_pyspy(text: str) -> bool:
    """True when the head of a file reads like py-spy output, text or JSON."""
    plain = _clean(text)
    if re.search(r'^\W{0,3}Thread (?:0x[0-9A-Fa-f]+|\d+) \([^()\n]*\)(?:: "|\s*$)', plain, re.M):
        return "most recent call" not in plain or "Process " in plain
    if plain.lstrip().startswith("[") and '"frames"' in plain and '"owns_gil"' in plain:
        return True
    return len(re.findall(r"^ {4}\S.* \([^()\s]+\.py:\d+\)\s*$", plain, re.M)) >= 3


def parse_text(lines: Sequence[tuple[int, str]], artifact: str) -> list[Dump]:
    """The dumps in ``lines``, in order; other text between them is skipped. Never raises."""
    reader = _Reader(artifact)
    for number, text in lines:
        reader.feed(number, _clean(text))
    reader.end_dump()
    number_dumps(reader.dumps)
    return reader.dumps


def _clean(text: str) -> str:
    plain = _ANSI.sub("", text).replace("\r", "")
    return _LOST_ANSI.sub("", plain) if "[0m" in plain else plain


class _Reader:
    """A line at a time: Process → Thread → frames; what is neither ends the dump."""

    def __init__(self, artifact: str) -> None:
        self.artifact = artifact
        self.dumps: list[Dump] = []
        self.dump: Dump | None = None
        self.thread: Thread | None = None
        self.announced: int | None = None
        self.in_locals = False
        self.ts: float | None = None

    def feed(self, number: int, text: str) -> None:
        if not text.strip():
            return
        if m := _ANNOUNCED.search(text):
            self.end_dump()
            self.announced = int(m.group(1))
        elif m := _PROCESS.match(text):
            self.end_dump()
            title = m.group(2).strip() or None
            self.dump = Dump(self.artifact, "pyspy", int(m.group(1)), title, None, rank_of_title(title), number, number)
        elif (m := _PYTHON.match(text)) and self.dump and not self.dump.threads:
            self.dump.python = m.group(1)
            self.dump.line_end = number
        elif _PARENT.match(text) and self.dump:
            self.dump.line_end = number
        elif m := _THREAD.match(text):
            self._thread(number, m)
        elif not (self._local(number, text) or self._frame(number, text)):
            self.end_dump()
            if len(text) <= _HEADLINE and (at := clock_text.seconds(text.strip("=-# \t"))) is not None:
                self.ts = at

    def _open(self, number: int) -> Dump:
        if self.dump is None:
            self.dump = Dump(self.artifact, "pyspy", self.announced, line=number)
        self.dump.line_end = number
        return self.dump

    def _thread(self, number: int, m: re.Match[str]) -> None:
        self.thread = Thread(m.group(1), m.group(2), m.group(3), number, number)
        self._open(number).threads.append(self.thread)
        self.in_locals = False

    def _local(self, number: int, text: str) -> bool:
        if self.thread is None or not self.thread.frames:
            return False
        if _SECTION.match(text):
            self.in_locals = True
        elif self.in_locals and (m := _LOCAL.match(text)):
            if scalar(m.group(2).strip()):
                self.thread.frames[-1].locals[m.group(1)] = m.group(2).strip()
        else:
            # A value printed over several lines stays inside the section; a frame ends it.
            return self.in_locals and text.startswith(" " * 8) and _FRAME.match(text) is None
        self._extend(number)
        return True

    def _frame(self, number: int, text: str) -> bool:
        m = _FRAME.match(text) if len(text) < _LONGEST and text.rstrip().endswith(")") else None
        if m is None or not _WHERE.fullmatch(m.group(3)) or (self.thread is None and m.group(4) is None):
            return False
        indent, name, file, line = m.groups()
        if self.thread is None and (" " in name or not file.endswith((".py", ".pyx"))):
            return False
        if self.dump is not None and not indent and self.thread is not None and " " in name and line is None:
            return False
        if self.thread is None:
            self.thread = Thread(None, None, None, number, number)
            self._open(number).threads.append(self.thread)
        at = int(line) if line is not None and len(line) < 9 else None
        self.thread.frames.append(DumpFrame(name, file, at, number, is_native(file, at)))
        self.in_locals = False
        self._extend(number)
        return True

    def _extend(self, number: int) -> None:
        if self.thread is not None and self.dump is not None:
            self.thread.line_end = self.dump.line_end = number

    def end_dump(self) -> None:
        """Close the dump; a header-less one needs two frames to count, and may be written outermost first."""
        dump, self.dump, self.thread, self.in_locals = self.dump, None, None, False
        if dump is None:
            return
        dump.ts = self.ts
        self.announced = None
        if not dump.threads and dump.python is None:
            return
        bare = len(dump.threads) == 1 and dump.threads[0].tid is None
        if bare:
            frames = dump.threads[0].frames
            if len(frames) < 2:
                return
            if innermost_first([f.function for f in frames]) is False:
                frames.reverse()
        mark_main(dump, fallback=0)
        self.dumps.append(dump)


def parse_json(text: str, artifact: str = "") -> list[Dump]:
    """The dumps of ``py-spy dump --json``: a list of threads, newest frame first, the main thread last.

    There are no lines worth citing, so rows carry ``record`` (the thread's index in the list). A rank is known only
    when the process' command line was recorded. Anything else than such a list gives []. Never raises.
    """
    try:
        data = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError):
        return []
    dumps: dict[int | None, Dump] = {}
    for index, item in enumerate(data if isinstance(data, list) else []):
        if not isinstance(item, dict) or not isinstance(item.get("frames"), list):
            continue
        pid = _int(item.get("pid"))
        info = item.get("process_info")
        title = _text(info.get("command_line")) if isinstance(info, dict) else None
        dump = dumps.setdefault(pid, Dump(artifact, "pyspy", pid))
        dump.title = dump.title or title
        dump.rank = dump.rank or rank_of_title(title)
        dump.threads.append(_json_thread(item, index))
    for dump in dumps.values():
        dump.threads.reverse()
        mark_main(dump, fallback=0)
    return list(dumps.values())


def _json_thread(item: dict[str, Any], index: int) -> Thread:
    tid = _int(item.get("os_thread_id")) or _int(item.get("thread_id"))
    status = ("active" if item.get("active") else "idle") + ("+gil" if item.get("owns_gil") else "")
    thread = Thread(None if tid is None else str(tid), status, _text(item.get("thread_name")), None, None, record=index)
    for f in item["frames"]:
        if not isinstance(f, dict) or _text(f.get("name")) is None:
            continue
        file = _text(f.get("short_filename")) or _text(f.get("filename"))
        line = _int(f.get("line")) or None
        frame = DumpFrame(str(f["name"]), file, line, None, is_native(file, line))
        for item_local in f["locals"] if isinstance(f.get("locals"), list) else []:
            if isinstance(item_local, dict) and scalar(str(item_local.get("repr"))):
                frame.locals[str(item_local.get("name"))] = str(item_local.get("repr"))
        thread.frames.append(frame)
    return thread


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
