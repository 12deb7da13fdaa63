"""Dumps of one process over time: the same frames again and again, or others each time.

One row of ``stack_change`` is a thread that was dumped more than once: how many of its last dumps show the same frames
(``same``), whether the last two differ (``moved``), whether it only looked for work (``idle``), over how many seconds.
The view ``standing`` is ``place`` without what is over: tracebacks, processes that moved, dumps before the last change.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

CREATE = """
CREATE OR REPLACE TABLE stack_change (
  rank VARCHAR, pid BIGINT, thread VARCHAR, main BOOLEAN, dumps BIGINT, same BIGINT, moved BOOLEAN, idle BOOLEAN,
  seconds DOUBLE, clock VARCHAR, artifact VARCHAR, line BIGINT, line_end BIGINT, record BIGINT, ts DOUBLE,
  first VARCHAR, last VARCHAR, quote VARCHAR)
"""
OVER = "CREATE OR REPLACE TABLE stack_over (stack VARCHAR)"
STANDING = """
CREATE OR REPLACE VIEW standing AS
SELECT * FROM place WHERE source <> 'traceback' AND (stack IS NULL OR stack NOT IN (SELECT stack FROM stack_over))
"""
STACKS = """
SELECT s.*, a.taken, a.clock, p.side, p.place FROM stack s
LEFT JOIN artifact a ON a.id = s.artifact LEFT JOIN place p ON p.stack = s.id
WHERE s.source IN ('pyspy', 'core', 'faulthandler', 'summary') AND (s.rank IS NOT NULL OR s.pid IS NOT NULL)
ORDER BY s.artifact, s.dump, s.line, s.id
"""
# Written chains name only some frames: they compare with each other alone.
_WRITTEN = "summary"
_SPINNING = ("event_loop", "idle_poll")
# A dump may be cut. From so many common frames on the rest says nothing else.
_ENOUGH = 3
# Files that were copied together have the time of the copy: nearer ones say nothing of when they were taken.
_COPIED = 1.0

Row = dict[str, Any]
Frames = tuple[tuple[str, str | None, int | None], ...]


@dataclass(slots=True)
class _Dump:
    """One thread at one moment; ``frames`` are Python's, innermost first."""

    row: Row
    frames: Frames
    at: float | None = None

    @property
    def idle(self) -> bool:
        return self.row["side"] == "idle" or self.row["place"] in _SPINNING

    @property
    def where(self) -> str:
        function, file, line = self.frames[0]
        return f"{function} ({file}:{line})" if file and line else f"{function} ({file})" if file else function


def derive(store: Store) -> None:
    """Fill ``stack_change`` and ``stack_over``, and create ``standing``; ``place`` must be there."""
    for statement in (CREATE, OVER, STANDING):
        store.con.execute(statement)
    frames: dict[str, list[tuple[str, str | None, int | None]]] = defaultdict(list)
    for f in store.rows("SELECT stack, function, file, line FROM frame WHERE NOT native ORDER BY stack, depth"):
        frames[f["stack"]].append((f["function"], f["file"], f["line"]))
    changes: list[Row] = []
    over: list[Row] = []
    for dumps in _threads(store.rows(STACKS), frames):
        clock = _order(dumps)
        same = 1
        while same < len(dumps) and _same(dumps[-1 - same].frames, dumps[-same].frames):
            same += 1
        changes.append(_change(dumps, same, clock))
        if dumps[-1].row["main"]:
            past = dumps if same == 1 else dumps[:-same]
            over += [{"stack": d.row["id"]} for d in past]
    store.fill("stack_change", changes)
    store.fill("stack_over", over)


def _threads(rows: Sequence[Row], frames: dict[str, list[tuple[str, str | None, int | None]]]) -> list[list[_Dump]]:
    """The dumps of each thread that has several, of the process that was dumped last."""
    threads: dict[tuple[Any, ...], list[_Dump]] = defaultdict(list)
    for row in rows:
        if own := frames.get(row["id"]):
            who = row["rank"] or row["pid"]
            name = "" if row["main"] else row["thread"]
            if name is not None:
                threads[who, name, row["source"] == _WRITTEN].append(_Dump(row, tuple(own)))
    out = []
    for dumps in threads.values():
        # The name of a thread, or a rank, may stand for several in one dump: those are not compared.
        places = {(d.row["artifact"], d.row["dump"], d.row["pid"]) for d in dumps}
        if len(dumps) > 1 and len(places) == len(dumps) and len({d.row["pid"] for d in dumps} - {None}) < 2:
            out.append(dumps)
    return out


def _order(dumps: list[_Dump]) -> str | None:
    """Sort by time, and say by which clock; where none is known, by the names of the files, as people number them."""
    clock: str | None = None
    for name in ("log", "name", "mtime"):
        times = [d.row["ts"] if name == "log" else d.row["taken"] if d.row["clock"] == name else None for d in dumps]
        known = [t for t in times if t is not None]
        if len(known) == len(dumps) and max(known) - min(known) >= (_COPIED if name == "mtime" else 1e-3):
            clock = name
            for d, t in zip(dumps, known, strict=True):
                d.at = t
            break
    dumps.sort(key=lambda d: (d.at or 0.0, _natural(d.row["artifact"]), d.row["dump"], d.row["line"] or 0))
    return clock


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d{1,18})", path) if part]


def _same(a: Frames, b: Frames) -> bool:
    shorter = min(len(a), len(b))
    return a == b or (shorter >= _ENOUGH and a[:shorter] == b[:shorter])


def _change(dumps: list[_Dump], same: int, clock: str | None) -> Row:
    last, first = dumps[-1], dumps[-max(same, 2)]
    seconds = last.at - first.at if last.at is not None and first.at is not None else None
    copied = ("rank", "pid", "thread", "main", "artifact", "line", "line_end", "record", "ts")
    return {name: last.row[name] for name in copied} | {
        "dumps": len(dumps),
        "same": same,
        "moved": same == 1,
        "idle": all(d.idle for d in dumps),
        "seconds": seconds or None,
        "clock": clock if seconds else None,
        "first": first.row["id"],
        "last": last.row["id"],
        "quote": last.where if same > 1 else f"{first.where}, then {last.where}",
    }
