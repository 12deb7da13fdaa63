"""What ``pystack remote`` and ``pystack core`` print: threads, outermost frame first, perhaps a core's facts before.

The facts (process, arguments, signal) are those of the core; ``pystack remote`` says nothing of the process, but the
main thread's id is the process' own.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence

from hicache_doctor.artifacts.elf_core import FATAL
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
from hicache_doctor.evidence.rows import DEATH_SIGNAL, Row, Sample

_THREAD = re.compile(
    r"Traceback for thread (?P<tid>\d{1,10})(?: \((?P<name>[^()]*)\))?(?: \[(?P<status>[^\]]*)\])? "
    r"\(most recent call last\):"
)
_FRAME = re.compile(
    r'\s*(?:\((?P<lang>Python|C|C\+\+|Rust)\) )?File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<name>\S.*?)'
    r"(?: \((?P<lib>[^()]*)\))?\s*$"
)
_SECTION = re.compile(r"\s{4,}(Arguments|Locals):\s*$")
_LOCAL = re.compile(r"\s{6,}([A-Za-z_.]\w*): (.*)$")
_CORE = re.compile(r"\W*(?:Core file information:|Using executable found in the core file: )")
_PID = re.compile(r"pid: (\d{1,10}) ppid: \d+ sid: ")
_PROGRAM = re.compile(r"executable: (\S*) arguments: (.*)$")
_SIGNAL = re.compile(r"The process died due receiving signal (SIG[A-Z]+)(?: sent by pid (\d{1,10}))?")
_SEGFAULT = re.compile(r"The process died due (?:to )?a? ?segmentation fault accessing address: (0x[0-9a-f]+)")
_STATUS = (("Has the GIL", "gil"), ("Waiting for the GIL", "waits for the gil"), ("Garbage collecting", "gc"))


def looks_like_pystack(text: str) -> bool:
    """True when the text holds a thread header of pystack."""
    return _THREAD.search(text) is not None


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[Row]:
    """A Stack a thread with its Frames (source ``core`` where facts of one stand before, else ``pyspy``: a dump of a
    process that runs), and a Sample for the signal that ended a process. Never raises."""
    reader = _Reader(artifact)
    for number, text in lines:
        reader.feed(number, text.rstrip("\r"))
    return list(reader.finish())


class _Reader:
    """A line at a time: facts of a core, then threads of frames; a thread that was seen begins another dump."""

    def __init__(self, artifact: str) -> None:
        self._artifact = artifact
        self._dumps: list[Dump] = []
        self._ends: list[tuple[Dump, int, str, int | None, str | None]] = []
        self._facts: Dump | None = None
        self._thread: Thread | None = None
        self._in_locals = False

    def feed(self, number: int, text: str) -> None:
        if m := _THREAD.search(text):
            self._open(number, m)
        elif self._thread is not None and (m := _FRAME.match(text)):
            self._frame(number, m)
        elif self._thread is not None and self._local(text):
            self._extend(number)
        elif _CORE.match(text):
            self._core(number)
        elif self._facts is not None:
            self._fact(number, text, self._facts)

    def _core(self, number: int) -> None:
        if self._facts is None or self._facts.threads:
            self._facts = Dump(self._artifact, "core", line=number)
            self._dumps.append(self._facts)
        self._thread = None

    def _fact(self, number: int, text: str, dump: Dump) -> None:
        if m := _PID.match(text):
            dump.pid = int(m[1])
        elif m := _PROGRAM.match(text):
            dump.title = m[2].strip() or m[1]
            dump.rank = rank_of_title(dump.title)
        elif m := _SIGNAL.search(text):
            self._ends.append((dump, number, m[1], int(m[2]) if m[2] else None, None))
        elif m := _SEGFAULT.search(text):
            self._ends.append((dump, number, "SIGSEGV", None, m[1]))

    def _open(self, number: int, m: re.Match[str]) -> None:
        dump = self._dumps[-1] if self._dumps else None
        if dump is None or any(t.tid == m["tid"] for t in dump.threads):
            dump = Dump(self._artifact, "pystack", line=number)
            self._dumps.append(dump)
        status = next((short for long, short in _STATUS if long in (m["status"] or "")), None)
        # The name in brackets is the kernel's, the same for all threads of a Python that does not set them.
        self._thread = Thread(m["tid"], status, None, number, number)
        self._in_locals = False
        dump.threads.append(self._thread)
        dump.line_end = number

    def _frame(self, number: int, m: re.Match[str]) -> None:
        assert self._thread is not None
        line = int(m["line"]) if len(m["line"]) < 9 else None
        native = m["lang"] in ("C", "C++", "Rust") or is_native(m["file"], line)
        file = m["lib"] if native and m["lib"] else m["file"]
        frame = DumpFrame(m["name"], file, line if not native else line or None, number, native)
        self._thread.frames.append(frame)
        self._in_locals = False
        self._extend(number)

    def _local(self, text: str) -> bool:
        """Whether the line belongs to the last frame: a source line, a heading, a local variable."""
        assert self._thread is not None
        if _SECTION.match(text):
            self._in_locals = True
        elif self._in_locals and (m := _LOCAL.match(text)) and self._thread.frames and scalar(m[2].strip()):
            self._thread.frames[-1].locals[m[1]] = m[2].strip()
        return text.startswith("      ")

    def _extend(self, number: int) -> None:
        if self._thread is not None:
            self._thread.line_end = self._dumps[-1].line_end = number

    def finish(self) -> Iterator[Row]:
        for dump in self._dumps:
            for thread in dump.threads:
                thread.frames.reverse()
            mark_main(dump, fallback=-1)
            if dump.pid is None and dump.main is not None and dump.main.tid is not None:
                dump.pid = int(dump.main.tid)
        for dump, line, name, sender, address in self._ends:
            if name not in {s.name for s in FATAL}:
                continue
            labels = {
                "signal": name,
                "sender": sender,
                "own": sender in (None, dump.pid),
                "address": address,
                "quote": f"the process died of {name}",
            }
            number = float(signal.Signals[name])
            yield Sample(self._artifact, line, dump.rank, dump.pid, None, DEATH_SIGNAL, number, labels)
        number_dumps(self._dumps)
        for dump in self._dumps:
            yield from rows(dump)
