"""faulthandler: ``Fatal Python error: …``, ``Thread 0x… (most recent call first):``, ``File "x", line N in f``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hicache_doctor.artifacts.stack_dump import Dump, DumpFrame, Thread, is_native, mark_main, number_dumps

_FATAL = re.compile(r"Fatal Python error: (.+?)\s*$")
_THREAD = re.compile(
    r"(?P<current>Current thread|Thread) (?P<tid>0x[0-9A-Fa-f]+|\d+)(?: \[(?P<name>[^\]]*)\])? "
    r"\(most recent call first\):?\s*$"
)
_FRAME = re.compile(r'^\W*File "(?P<file>[^"]*)", line (?P<line>\d+),? in (?P<name>\S.*?)\s*$')


def looks_like_faulthandler(text: str) -> bool:
    """True when the text holds a thread header of faulthandler."""
    return any(_THREAD.search(x) for x in text.splitlines())


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[Dump]:
    """The dumps in ``lines``: one a ``Fatal Python error`` (or a run of thread headers). Never raises."""
    dumps: list[Dump] = []
    dump: Dump | None = None
    thread: Thread | None = None
    reason: tuple[str, int] | None = None
    for number, raw in lines:
        text = raw.rstrip("\r")
        if m := _FATAL.search(text):
            dump, thread, reason = None, None, (m.group(1), number)
            continue
        if (m := _THREAD.search(text)) is not None:
            if dump is None:
                dump = Dump(artifact, "faulthandler", line=reason[1] if reason else number)
                dump.reason, reason = (reason[0] if reason else None), None
                dumps.append(dump)
            thread = _thread(m, number)
            dump.threads.append(thread)
            dump.line_end = number
        elif thread is not None and dump is not None and (f := _FRAME.match(text)):
            thread.frames.append(_frame(f, number))
            thread.line_end = dump.line_end = number
        elif text.strip() and not text.startswith(" "):
            dump, thread = None, None
    for d in dumps:
        mark_main(d, fallback=-1)
    number_dumps(dumps)
    return dumps


def _thread(m: re.Match[str], number: int) -> Thread:
    # The bracketed name is the kernel's, the same for all threads: no "MainThread" here.
    return Thread(m["tid"], "current" if m["current"].startswith("Current") else None, m["name"], number, number)


def _frame(m: re.Match[str], number: int) -> DumpFrame:
    line = int(m["line"]) if len(m["line"]) < 9 else None
    return DumpFrame(m["name"], m["file"], line, number, is_native(m["file"], line))
