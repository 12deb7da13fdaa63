"""faulthandler output: ``Fatal Python error: …``, ``Thread 0x… (most recent call first):``, ``File "x", line N in f``.

pystack prints the other way round (``Traceback for thread N (name) [status] (most recent call last):``); same reader.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hicache_doctor.artifacts.stack_dump import Dump, DumpFrame, Thread, is_native, mark_main, number_dumps

_FATAL = re.compile(r"Fatal Python error: (.+?)\s*$")
_THREAD = re.compile(
    r"(?P<current>Current thread|Thread) (?P<tid>0x[0-9A-Fa-f]+|\d+)(?: \[(?P<name>[^\]]*)\])? "
    r"\(most recent call first\):?\s*$"
)
_PYSTACK = re.compile(
    r"Traceback for thread (?P<tid>\d+)(?: \((?P<name>[^()]*)\))?(?: \[(?P<status>[^\]]*)\])? "
    r"\(most recent call last\):"
)
_FRAME = re.compile(r'^\W*File "(?P<file>[^"]*)", line (?P<line>\d+),? in (?P<name>\S.*?)\s*$')
_PYSTACK_FRAME = re.compile(
    r'^\s*(?:\((?P<lang>Python|C|C\+\+|Rust)\) )?File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<name>\S.*?)'
    r"(?: \((?P<lib>[^()]*)\))?\s*$"
)


def looks_like_faulthandler(text: str) -> bool:
    """True when the text holds a thread header of faulthandler or pystack."""
    return any(_THREAD.search(x) or _PYSTACK.search(x) for x in text.splitlines())


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[Dump]:
    """The dumps in ``lines``: one a ``Fatal Python error`` (or a run of thread headers). Never raises."""
    dumps: list[Dump] = []
    dump: Dump | None = None
    thread: Thread | None = None
    reason: tuple[str, int] | None = None
    outermost_first = False
    for number, raw in lines:
        text = raw.rstrip("\r")
        if m := _FATAL.search(text):
            dump, thread, reason = None, None, (m.group(1), number)
            continue
        m = _THREAD.search(text) or _PYSTACK.search(text)
        if m is not None:
            outermost_first = m.re is _PYSTACK
            source = "pystack" if outermost_first else "faulthandler"
            if dump is None or dump.source != source:
                dump = Dump(artifact, source, line=reason[1] if reason else number)
                dump.reason, reason = (reason[0] if reason else None), None
                dumps.append(dump)
            thread = _thread(m, number)
            dump.threads.append(thread)
            dump.line_end = number
        elif thread is not None and dump is not None and (f := _PYSTACK_FRAME.match(text) or _FRAME.match(text)):
            thread.frames.append(_frame(f, number))
            thread.line_end = dump.line_end = number
        elif text.strip() and not text.startswith(" "):
            dump, thread = None, None
    for d in dumps:
        if d.source == "pystack":
            for t in d.threads:
                t.frames.reverse()
        mark_main(d, fallback=-1)
    number_dumps(dumps)
    return dumps


def _thread(m: re.Match[str], number: int) -> Thread:
    groups = m.groupdict()
    status = groups.get("status") or ("current" if (groups.get("current") or "").startswith("Current") else None)
    # faulthandler's bracketed name and pystack's are the kernel's, the same for all threads: no "MainThread" here.
    return Thread(groups["tid"], status, groups.get("name") if m.re is _THREAD else None, number, number)


def _frame(m: re.Match[str], number: int) -> DumpFrame:
    groups = m.groupdict()
    line = int(groups["line"]) if len(groups["line"]) < 9 else None
    native = groups.get("lang") in ("C", "C++", "Rust") or is_native(groups["file"], line)
    file = groups.get("lib") if native and groups.get("lib") else groups["file"]
    return DumpFrame(groups["name"], file, line, number, native)
