"""Dumps of torch's flight recorder: every version, NCCL and gloo, pickled or JSON (torch/csrc, FlightRecorder).

A dump does not say whose it is: the rank is the number that its file's name ends with. What it holds is read in a
child (:mod:`limited`, :mod:`recorder_columns`); the many rows of operations stay columns, and become a table when the
store is ready for them, under the label that the rank has by then.

gloo's recorder says less than NCCL's: no group members, no states, no messages, and once a time-out was raised the
operation that hung counts as finished. So of gloo the last operation of a thread is never said to be completed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hicache_doctor.artifacts import recorder_tables, stack_dump
from hicache_doctor.artifacts.frequent import Frequent
from hicache_doctor.artifacts.limited import Answer, Children
from hicache_doctor.artifacts.recorder_tables import SOURCE, Recorder
from hicache_doctor.artifacts.source import Source
from hicache_doctor.artifacts.stack_dump import DumpFrame
from hicache_doctor.evidence.rows import Frame, Rank, Stack

if TYPE_CHECKING:
    from hicache_doctor.artifacts.inventory import Read

TASKS = {"flight_recorder": "recorder pickle", "flight_recorder_json": "recorder JSON"}
KIND = "flight recorder"

_NAME = re.compile(
    r"(?P<before>.*?)(?P<rank>\d{1,6})?(?P<after>(?:\.(?:json|pkl|pickle|bin|dump|txt|gz|zst|zstd))*)", re.S
)
_LABEL = re.compile(r"(?:(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d+ ?)+")


def read(source: Source, result: Read, kind: str, children: Children) -> None:
    """Have ``result`` filled, once ``children`` have read it, from a dump of sniffed ``kind``."""
    entry = result.artifact
    entry.reader, entry.kind = KIND, KIND

    def take(answer: Answer) -> None:
        if answer.error:
            entry.note = _join(entry.note, *answer.notes, f"refused: {answer.error}")
            return
        result.recorder = recorder = _recorder(source.path, answer)
        entry.read = "part" if answer.notes else "all"
        entry.note = _join(entry.note, *answer.notes, recorder_tables.note(recorder))
        result.rows += [recorder.home] if recorder.known else []
        result.rows += recorder_tables.statuses(recorder)
        result.rows += _stacks(recorder)
        if recorder.count:
            result.tables.append(Frequent("collective", recorder_tables.operations(recorder)))

    children.ask(TASKS[kind], source, take)


def select(reads: list[Read]) -> None:
    """One set of dumps a rank: where a rank has several, the newest set is kept and the note of the others says so.

    A set is what lies in one folder under one name but for the rank. NCCL's dump and gloo's of one rank are no two
    sets, and a set that only repeats another (JSON beside the pickle) loses no more than the copies.
    """
    sets: dict[tuple[str, ...], list[tuple[Read, Recorder]]] = {}
    for read in reads:
        if (recorder := read.recorder) is not None and recorder.known:
            folder, name = _split(read.artifact.path)
            m = _NAME.fullmatch(name)
            parts = ("", "") if m is None or _LABEL.fullmatch(name.partition(".")[0]) else (m["before"], m["after"])
            sets.setdefault((folder, *parts, *recorder.backends), []).append((read, recorder))
    newest_first = sorted(
        sets.values(), key=lambda s: (-max(r.latest for _, r in s), not any(r.header["stacks"] for _, r in s))
    )
    taken: dict[tuple[str, ...], tuple[Read, Recorder]] = {}
    for own in newest_first:
        twice = [(mine, taken[key]) for mine in own if (key := _key(mine[1])) in taken]
        same = all(mine[1].latest == other[1].latest for mine, other in twice)
        for mine, other in twice if same else [(mine, twice[0][1]) for mine in own]:
            why = f"the same as {other[0].artifact.path}" if same else _another(twice[0][0][1], other[0])
            _drop(mine[0], f"{why}: not used")
        for mine in own:
            if mine[0].recorder is not None:
                taken[_key(mine[1])] = mine


def _key(recorder: Recorder) -> tuple[str, ...]:
    return (recorder.home.id, *recorder.backends)


def _another(rank: Recorder, newer: Read) -> str:
    return f"of another set of dumps ({rank.home.id} is in {newer.artifact.path} too, and newer)"


def _drop(read: Read, why: str) -> None:
    read.artifact.read = "none"
    read.artifact.note = _join(read.artifact.note, why)
    read.rows.clear()
    read.tables.clear()
    read.recorder = None


def _recorder(path: str, answer: Answer) -> Recorder:
    header = answer.header
    label, number = _whose(_split(path)[1])
    if number is None and label is None:
        number = header["rank"]
    known = label is not None or number is not None
    home = Rank(label or f"rank {number}", header["host"], number=number, artifact=path)
    return Recorder(path, home, known, header, answer.buffers)


def _whose(name: str) -> tuple[str | None, int | None]:
    """The label or number of the rank that a file's name tells."""
    m = _NAME.fullmatch(name)
    assert m is not None
    stem = name[: len(name) - len(m["after"])]
    if _LABEL.fullmatch(stem):
        return stem.strip(), None
    # A longer number is a date or an id: nobody's rank.
    return None, int(m["rank"]) if m["rank"] and not m["before"][-1:].isdigit() else None


def _split(path: str) -> tuple[str, str]:
    folder, sep, name = path.rpartition("/")
    if "!" in name:
        folder, sep, name = path.rpartition("!")
    return folder + sep, name


def _stacks(recorder: Recorder) -> Iterator[Stack | Frame]:
    """Where the oldest unfinished operation was issued, and the last one. Only an unfinished one tells where the rank
    stands, so only that counts as the main thread's."""
    for s in recorder.header["stacks"]:
        record = s["record"] if s["record"] is not None else s["index"]
        thread = stack_dump.Thread(
            None, "finished" if s["finished"] else "unfinished", s["thread"] or "unnamed", None, None, record=record
        )
        thread.frames = [DumpFrame(name, file, line, None) for name, file, line in s["frames"] if name]
        dump = stack_dump.Dump(recorder.path, SOURCE, rank=recorder.home.id if recorder.known else None)
        dump.threads.append(thread)
        stack_dump.mark_main(dump, 0)
        outermost = thread.frames[-1].name if thread.frames else ""
        thread.main = (thread.main or s["alone"] or outermost == "<module>") and not s["finished"]
        yield from stack_dump.rows(dump, ts=recorder.time_of(s["index"]))


def _join(*notes: str) -> str:
    return "; ".join(n for n in notes if n)
