"""Dumps of one process over time: stuck, slow, idle, and what must not be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hicache_doctor.evidence import places, stack_change
from hicache_doctor.evidence.rows import Artifact, Frame, Row, Stack
from hicache_doctor.evidence.sides import load_sides
from hicache_doctor.signatures.load import load
from tests.evidence.filled import store

VOTE = ["all_reduce", "writing_check", "check_hicache_events", "event_loop_pp"]
IDLE = ["broadcast", "broadcast_pyobj", "recv_requests", "event_loop_pp"]
FORWARD = ["forward", "forward_batch_generation", "run_batch", "event_loop_pp"]
BASE = load()


def dump(
    artifact: str,
    functions: Sequence[str],
    *,
    rank: str | None = "PP0 TP0",
    pid: int | None = 7,
    ts: float | None = None,
    nth: int = 0,
    line: int = 100,
    source: str = "pyspy",
) -> list[Row]:
    stack = f"{artifact}:{nth}:{rank}:{pid}:{source}"
    out: list[Row] = [
        Stack(stack, artifact, nth * 40 + 1, nth * 40 + 9, None, ts, rank, pid, source, "MainThread", True, "idle", nth)
    ]
    return out + [Frame(stack, i, None, f, "a.py", line + i) for i, f in enumerate(functions)]


def changes(*rows: Row) -> tuple[list[dict[str, Any]], set[str]]:
    with store(rows) as s:
        places.derive(s, places.load_places(BASE.places), load_sides(BASE.sides))
        stack_change.derive(s)
        standing = {r["stack"] for r in s.rows("SELECT stack FROM standing")}
        return s.rows("SELECT * FROM stack_change ORDER BY rank, pid"), standing


def file(name: str, taken: float | None, clock: str) -> Artifact:
    return Artifact(name, name, "py-spy dump", 1, None, "text", "all", "", taken=taken, clock=clock)


def test_the_same_frames_twice_are_stuck_and_the_last_dump_is_told() -> None:
    (row,), standing = changes(*dump("a.txt", VOTE, ts=10.0), *dump("b.txt", VOTE, ts=22.5))
    assert (row["dumps"], row["same"], row["moved"], row["idle"]) == (2, 2, False, False)
    assert (row["seconds"], row["clock"], row["artifact"]) == (12.5, "log", "b.txt")
    assert row["quote"] == "all_reduce (a.py:100)" and len(standing) == 2


def test_other_frames_are_a_rank_that_goes_on_and_accuse_nobody() -> None:
    (row,), standing = changes(*dump("a.txt", VOTE), *dump("b.txt", FORWARD))
    assert (row["same"], row["moved"], row["quote"]) == (1, True, "all_reduce (a.py:100), then forward (a.py:100)")
    assert not standing
    (row,), _ = changes(*dump("a.txt", VOTE), *dump("b.txt", VOTE, line=200))
    assert row["moved"], "another line of the same function is another place"


def test_what_was_before_the_last_change_is_over() -> None:
    (row,), standing = changes(*dump("a.txt", FORWARD, nth=0), *dump("a.txt", VOTE, nth=1), *dump("a.txt", VOTE, nth=2))
    assert (row["dumps"], row["same"], row["moved"]) == (3, 2, False)
    assert standing == {"a.txt:1:PP0 TP0:7:pyspy", "a.txt:2:PP0 TP0:7:pyspy"}


def test_an_idle_scheduler_shows_the_same_frames_and_is_idle() -> None:
    (row,), _ = changes(*dump("a.txt", IDLE), *dump("b.txt", IDLE))
    assert (row["moved"], row["idle"]) == (False, True)
    (row,), _ = changes(*dump("a.txt", IDLE), *dump("b.txt", ["poll", "recv_requests", "event_loop_pp"]))
    assert (row["moved"], row["idle"]) == (True, True)


@pytest.mark.parametrize(
    "first, second, order, seconds, clock",
    [
        (file("b.txt", 100.0, "name"), file("a.txt", 110.0, "name"), "a.txt", 10.0, "name"),
        (file("b.txt", 100.0, "mtime"), file("a.txt", 110.0, "mtime"), "a.txt", 10.0, "mtime"),
        (file("b.txt", 110.4, "mtime"), file("a.txt", 110.9, "mtime"), "b.txt", None, None),
        (file("b.txt", 110.0, "mtime"), file("a.txt", 99.0, "name"), "b.txt", None, None),
        (file("round10.txt", None, "name"), file("round9.txt", None, "name"), "round10.txt", None, None),
    ],
)
def test_the_order_is_that_of_one_clock_or_of_the_names(
    first: Artifact, second: Artifact, order: str, seconds: float | None, clock: str | None
) -> None:
    (row,), _ = changes(first, second, *dump(first.id, VOTE), *dump(second.id, VOTE))
    assert (row["artifact"], row["seconds"], row["clock"]) == (order, seconds, clock)


def test_a_dump_that_was_cut_is_compared_as_far_as_it_goes() -> None:
    (row,), _ = changes(*dump("a.txt", VOTE), *dump("b.txt", VOTE[:3]))
    assert not row["moved"]
    (row,), _ = changes(*dump("a.txt", VOTE), *dump("b.txt", VOTE[:1]))
    assert row["moved"], "one frame alone says nothing"


def test_native_frames_are_not_compared() -> None:
    native = Frame("a.txt:0:PP0 TP0:7:pyspy", 0, None, "poll", "libc.so.6", None, native=True)
    (row,), _ = changes(*dump("a.txt", VOTE)[:1], native, *dump("a.txt", VOTE)[1:], *dump("b.txt", VOTE))
    assert not row["moved"]


def test_other_processes_and_other_kinds_of_stack_are_not_compared() -> None:
    assert changes(*dump("a.txt", VOTE, pid=7), *dump("b.txt", VOTE, pid=8))[0] == []
    assert changes(*dump("a.txt", VOTE), *dump("b.txt", VOTE, source="summary"))[0] == []
    assert changes(*dump("a.txt", VOTE, source="traceback"), *dump("b.txt", VOTE))[0] == []
    assert changes(*dump("a.txt", VOTE, rank=None, pid=None), *dump("b.txt", VOTE, rank=None, pid=None))[0] == []
    (row,), _ = changes(*dump("a.txt", VOTE, rank=None), *dump("b.txt", VOTE, rank=None))
    assert row["pid"] == 7
