"""A traceback or a py-spy dump that a log rotation parted: its head ends one file, its tail begins the next.

Only rows are looked at: a record that is open where a file ends, and one that begins without its opening within the
first lines of another file of the same folder. Where more than one file could be its head, nothing is joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hicache_doctor.artifacts.traceback import OPENING
from hicache_doctor.evidence.rows import Batch, ExceptionRow, Frame, LogRecord, Row, Stack

# A head may be cut within a frame: its line of code, and the marker below it.
FIRST_LINES = 3
R = TypeVar("R", bound=Row)


@dataclass(frozen=True, slots=True)
class _Open:
    """What is open at the end of a file: the announcement alone, or also a stack (and its cut exception)."""

    rank: str | None
    ts: float | None
    prefixed: bool
    stack: Stack | None = None
    exception: ExceptionRow | None = None


def join(rows: Mapping[str, list[Row]], lines: Mapping[str, int | None]) -> None:
    """Put parted records together in the file that holds their tail. ``lines``: how many each artefact has."""
    heads = {a: found for a, own in rows.items() if (found := _open_at_end(own, lines.get(a))) is not None}
    for artifact, own in rows.items():
        tail = _orphan(own)
        if tail is None:
            continue
        labels = _labels(own)
        fitting = [
            a
            for a, head in heads.items()
            if a != artifact
            and _folder(a) == _folder(artifact)
            and labels <= _labels(rows[a])
            and _later(own, head.ts)
            and (head.stack is not None and head.exception is None) == isinstance(tail, Stack)
        ]
        if len(fitting) == 1:
            head = heads.pop(fitting[0])
            if isinstance(tail, Stack):
                _join_dumps(head, rows[fitting[0]], tail, own)
            else:
                _join_tracebacks(head, rows[fitting[0]], tail, own)


def _open_at_end(rows: Sequence[Row], last: int | None) -> _Open | None:
    if last is None:
        return None
    stacks = {s.id: s for s in _of(rows, Stack)}
    for e in _of(rows, ExceptionRow):
        if not e.type and e.line_end == last and e.stack in stacks:
            return _Open(e.rank, e.ts, e.prefixed, stacks[e.stack], e)
    # A dump of its own ends with its file too; only one that a log announces can go on elsewhere.
    announced = any(r.kind == "pyspy_dump" for r in _of(rows, LogRecord))
    for s in stacks.values():
        if announced and s.source == "pyspy" and s.line_end == last:
            return _Open(s.rank, s.ts, True, s)
    for r in _of(rows, LogRecord):
        if r.line == last and r.kind == "scheduler_exception" and OPENING in r.text:
            return _Open(r.rank, r.ts, True)
    return None


def _orphan(rows: Sequence[Row]) -> ExceptionRow | Stack | None:
    """The record that begins a file without its opening: a traceback's exception, or a stack of a dump."""
    first = {s.id: s for s in _of(rows, Stack) if s.line is not None and s.line <= FIRST_LINES}
    begins = {f.stack for f in _of(rows, Frame) if f.stack in first and f.at_line == first[f.stack].line}
    for e in _of(rows, ExceptionRow):
        if not e.prefixed and (e.stack in begins or (e.stack is None and e.line <= FIRST_LINES)):
            return e
    dumps = [s for s in first.values() if s.source == "pyspy" and s.line == 1 and s.id in begins]
    return dumps[0] if dumps and any(isinstance(r, LogRecord) for r in rows) else None


def _join_tracebacks(head: _Open, before: list[Row], tail: ExceptionRow, own: list[Row]) -> None:
    stack = next((s for s in _of(own, Stack) if s.id == tail.stack), None)
    if head.stack is not None and stack is None:
        stack = head.stack
        before[:] = [r for r in before if r is not stack]
        stack.artifact, stack.line, stack.line_end, stack.life = tail.artifact, tail.line, tail.line_end, tail.life
        own.append(stack)
        tail.stack = stack.id
    if head.stack is not None and stack is not None:
        inner = sum(1 for f in _of(own, Frame) if f.stack == stack.id)
        _move(head.stack, before, stack, own, deeper=inner)
    before[:] = [r for r in before if r is not head.exception]
    for row in (tail, stack):
        if row is not None:
            row.rank, row.ts = head.rank, head.ts
    tail.prefixed = head.prefixed


def _join_dumps(head: _Open, before: list[Row], tail: Stack, own: list[Row]) -> None:
    assert head.stack is not None
    moved = sum(1 for f in _of(before, Frame) if f.stack == head.stack.id)
    for frame in _of(own, Frame):
        if frame.stack == tail.id:
            frame.depth += moved
    _move(head.stack, before, tail, own, deeper=0)
    tail.rank, tail.ts, tail.pid = head.rank, head.ts, head.stack.pid
    tail.thread, tail.main, tail.status = head.stack.thread, head.stack.main, head.stack.status


def _move(old: Stack, before: list[Row], new: Stack, own: list[Row], *, deeper: int) -> None:
    """The frames of ``old``, behind those of ``new``; they are cited where the record goes on."""
    for frame in [f for f in _of(before, Frame) if f.stack == old.id]:
        frame.stack, frame.at_line = new.id, new.line
        frame.depth += deeper
        before[:] = [r for r in before if r is not frame]
        own.append(frame)
    before[:] = [r for r in before if r is not old]


def _of(rows: Sequence[Row], kind: type[R]) -> list[R]:
    return [r for r in rows if isinstance(r, kind)]


def _later(rows: Sequence[Row], ts: float | None) -> bool:
    """Whether what is dated in ``rows`` is not older than ``ts``."""
    return ts is None or all(r.ts is None or r.ts >= ts for r in rows if isinstance(r, (LogRecord, Batch)))


def _labels(rows: Sequence[Row]) -> set[str]:
    return {r.rank for r in rows if isinstance(r, (LogRecord, ExceptionRow, Stack)) and r.rank}


def _folder(path: str) -> str:
    return path.replace("!", "/").rpartition("/")[0]
