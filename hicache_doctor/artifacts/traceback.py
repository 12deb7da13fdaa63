"""Python tracebacks inside logs: chained, nested, wrapped, with lost indentation, cut at either end."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

OPENING = "Traceback (most recent call last)"
FRAME = re.compile(r'^[\s|+\-]*File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in (?P<func>.*\S))?\s*$')
CHAIN = re.compile(r"^\s*(?:During handling of the above exception|The above exception was the direct cause)")
MARKERS = re.compile(r"^[\s~^|]+$")
REPEATED = re.compile(r"^\s*\[Previous line repeated \d+ more times\]")
# The names that end a traceback when the indentation is lost and so can't tell a code line from the error line.
ERROR = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout|Timedout|Expired|Failure|"
    r"Warning|NotFound|Refused)|Exception|KeyboardInterrupt|SystemExit|StopIteration|StopAsyncIteration|Empty|Full))"
    r"(?:(?:: ?)(?P<message>.*)|\((?P<args>.*)\):?.*)?$"
)
# A level word is a line of another writer (uvicorn); a message may begin on the next line (RemoteTraceback).
UNINDENTED_ERROR = re.compile(
    r"^(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b)(?P<type>(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*)(?::(?: (?P<message>.*)|$))?$"
)
MAX_LINES = 2_000
MAX_MESSAGE_LINES = 12
MAX_MESSAGE = 2_000


@dataclass(slots=True)
class TracedFrame:
    file: str
    line: int
    function: str
    at_line: int
    code: str = ""


@dataclass(slots=True)
class Raised:
    """One exception of a traceback (a chain has several): its frames outermost first, and where it stands."""

    type: str
    message: str
    line: int
    line_end: int
    offset: int
    frames: list[TracedFrame] = field(default_factory=list)
    error_line: int = 0
    cut: bool = False


def bare_error(text: str) -> tuple[str, str] | None:
    """``("RuntimeError", "shape …")`` when the line is an error line by its name alone."""
    m = ERROR.match(text.strip())
    if m is None:
        return None
    return m["type"], (m["message"] if m["message"] is not None else m["args"] or "").strip()


class TracebackParser:
    """Collects one traceback, chained ones included. Feed it the unwrapped, unprefixed lines after the opening.

    ``feed`` returns whether the line belongs to the traceback; once it returns False the traceback is over.
    """

    def __init__(self, line: int, offset: int) -> None:
        self.raised: list[Raised] = []
        self._start, self._offset = line, offset
        self._last = line
        self._frames: list[TracedFrame] = []
        self._state = "frames"
        self._lines = 0
        self._message_lines = 0
        self._indented: bool | None = None

    def feed(self, line: int, offset: int, text: str) -> bool:
        self._lines += 1
        if self._lines > MAX_LINES:
            return False
        taken = self._after(line, offset, text) if self._state == "after" else self._in_frames(line, offset, text)
        if taken:
            self._last = line
        return taken

    def interrupt(self) -> None:
        """Say that another record stood in between: a chained exception may follow, but no more of the message."""
        if self._state == "after":
            self._message_lines = MAX_MESSAGE_LINES + 1

    def close(self) -> list[Raised]:
        """The exceptions, oldest (the cause) first; a traceback cut before its error line says so."""
        if self._state == "frames" and self._frames:
            self.raised.append(
                Raised("", "", self._start, self._last, self._offset, self._frames, self._last, cut=True)
            )
            self._frames = []
        return self.raised

    # -- the two states -----------------------------------------------------------------------------------------

    def _in_frames(self, line: int, offset: int, text: str) -> bool:
        m = FRAME.match(text)
        if m is not None:
            if self._indented is None:
                self._indented = text[:1].isspace()
            self._frames.append(TracedFrame(m["file"], int(m["line"]), (m["func"] or "<module>").strip(), line))
            return True
        stripped = text.strip()
        if not stripped:
            return not self._frames or self._indented is False
        if OPENING in text:
            return True
        if MARKERS.match(text) or REPEATED.match(text):
            return True
        error = self._error(text)
        if error is not None:
            self.raised.append(
                Raised(error[0], error[1][:MAX_MESSAGE], self._start, line, self._offset, self._frames, line)
            )
            self._frames, self._state, self._message_lines = [], "after", 0
            return True
        if not self._frames:
            return False
        if self._indented and not text[:1].isspace():
            return False
        if not self._frames[-1].code:
            self._frames[-1].code = stripped[:300]
        return True

    def _after(self, line: int, offset: int, text: str) -> bool:
        if CHAIN.match(text):
            self._message_lines = MAX_MESSAGE_LINES + 1
            return True
        if OPENING in text:
            self._state, self._start, self._offset = "frames", line, offset
            self._indented = None
            return True
        if not text.strip():
            self._message_lines = MAX_MESSAGE_LINES + 1
            return True
        if FRAME.match(text) or self._message_lines >= MAX_MESSAGE_LINES:
            return False
        last = self.raised[-1]
        last.message = (last.message + "\n" + text.rstrip())[:MAX_MESSAGE]
        last.line_end = line
        self._message_lines += 1
        return True

    def _error(self, text: str) -> tuple[str, str] | None:
        if self._indented and text[:1].isspace():
            return None
        named = bare_error(text)
        if named is not None:
            return named
        if self._indented and self._frames:
            m = UNINDENTED_ERROR.match(text.rstrip())
            if m is not None:
                return m["type"], (m["message"] or "").strip()
        return None
