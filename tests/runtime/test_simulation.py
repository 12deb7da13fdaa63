"""The kernel of the simulated world: time, tasks, copies, how a run ends, what it leaves behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hicache_doctor.probes.kinds import Kind
from hicache_doctor.runtime.faults import CopyLag, FaultPlan
from hicache_doctor.runtime.simulation import Killed, Simulation
from hicache_doctor.runtime.world import Copy, Topology, World
from tests.runtime.toy import toy

MS = 1_000_000
STEADY = FaultPlan(jitter=0)


def alone(main: Callable[[World], Any], **options: Any) -> Any:
    """The result of one rank that ends well."""
    outcome = Simulation(Topology(), main, **options).run()
    assert (outcome.how, outcome.failures) == ("done", [])
    return outcome.result(0)


# -- time and tasks


def test_time_is_virtual_and_only_sleeping_moves_it() -> None:
    def main(w: World) -> Any:
        w.sleep(3600 * 1000 * MS)
        return w.now()

    assert alone(main) == 3600 * 1000 * MS


def test_clocks_are_skewed_and_coarse_by_rank() -> None:
    def main(w: World) -> Any:
        w.sleep(1234)
        return w.now()

    plan = FaultPlan(clock_skew=((1, 5000),), clock_step=1000)
    outcome = Simulation(Topology(pp_size=2), main, faults=plan).run()
    assert [outcome.result(rank) for rank in (0, 1)] == [1000, 6000]


def test_a_stage_lags_a_step() -> None:
    def main(w: World) -> Any:
        for step in range(3):
            w.tick(step)
        return w.now()

    outcome = Simulation(Topology(pp_size=2), main, faults=FaultPlan(lag_stage=((1, 7),))).run()
    assert [outcome.result(rank) for rank in (0, 1)] == [0, 21]


def test_the_tame_schedule_is_first_come_first_served() -> None:
    order: list[int] = []

    def main(w: World) -> None:
        for _ in range(2):
            order.append(w.rank)
            w.sleep(0)

    outcome = Simulation(Topology(pp_size=3), main, choices=[]).run()
    assert order == [0, 1, 2, 0, 1, 2]
    assert set(outcome.choices) == {0}


def test_queues_and_threads() -> None:
    def main(w: World) -> Any:
        queue, seen = w.queue("work"), []

        def consume() -> None:
            while (item := queue.get()) is not None:
                seen.append((item, w.now()))

        task = w.spawn("consumer", consume)
        for item in range(3):
            queue.put(item)
            w.sleep(10)
        sizes = [queue.qsize()]
        queue.put(None)
        sizes.append(queue.qsize())
        task.join()
        task.join()
        return seen, sizes

    assert alone(main) == ([(0, 0), (1, 10), (2, 20)], [0, 1])


def test_an_exception_in_a_thread_ends_the_rank() -> None:
    def main(w: World) -> None:
        def fails() -> None:
            w.sleep(5)
            raise KeyError(7)

        w.spawn("io", fails)
        w.sleep(10)

    outcome = Simulation(Topology(), main).run()
    assert [(f.time, f.rank, f.task, repr(f.error)) for f in outcome.failures] == [(5, 0, "io", "KeyError(7)")]
    assert [frame.function for frame in outcome.stacks()[0]["io"]] == ["fails"]
    assert [frame.function for frame in outcome.stacks()[0]["main"]] == ["SimWorld.sleep", "main"]


def test_recursion_is_as_deep_for_the_last_task_as_for_the_first() -> None:
    def dive(n: int) -> int:
        return dive(n - 1) + 1 if n else 0

    def main(w: World) -> int:
        w.sleep(0)
        return dive(700)

    outcome = Simulation(Topology(pp_size=8, tp_size=8), main).run()
    assert [outcome.result(rank) for rank in range(64)] == [700] * 64


# -- copies


def test_copies_of_a_stream_finish_in_order_and_land_at_their_time() -> None:
    def main(w: World) -> Any:
        engine, landed = w.engine("write"), []
        assert w.engine("write") is engine
        first = engine.submit(Copy(2, 1, lambda layer: landed.append((0, layer, w.now()))))
        second = engine.submit(Copy(3, 2, lambda layer: landed.append((1, layer, w.now()))))
        seen = [first.query(), second.query()]
        w.sleep(20)
        seen += [first.query(), second.query()]
        second.synchronize()
        return w.now(), seen, first.query(), second.query(), landed

    # No clock shows one moment twice: the three readings at 50 are 50, 51 and 52.
    assert alone(main, faults=STEADY, page_ns=10) == (
        52,
        [False, False, True, False],
        True,
        True,
        [(0, 0, 20), (1, 0, 50), (1, 1, 51)],
    )


def test_layers_of_a_copy_can_be_waited_for() -> None:
    def main(w: World) -> Any:
        landed: list[Any] = []
        finish = w.engine("load").submit(Copy(4, 4, landed.append))
        out = []
        for layer in range(3):
            finish.wait_layer(layer)
            out.append((w.now(), list(landed), finish.query()))
        finish.synchronize()
        return [*out, (w.now(), landed, finish.query())]

    assert alone(main, faults=STEADY, page_ns=10) == [
        (10, [0], False),
        (20, [0, 1], False),
        (30, [0, 1, 2], False),
        (40, [0, 1, 2, 3], True),
    ]


def test_a_slow_stage_and_a_lagging_copy() -> None:
    def main(w: World) -> Any:
        engine = w.engine("write")
        out = []
        for step in range(4):
            w.tick(step)
            if step == 0:
                copies = [engine.submit(Copy(1, 1, lambda layer: None)) for _ in range(2)]
                copies[-1].synchronize()
                out.append(w.now())
            out.append([x.query() for x in copies])
        return out

    plan = FaultPlan(jitter=0, slow_copy=((1, 3),), copy_lag=(CopyLag(pp=1, steps=2, every=2),))
    outcome = Simulation(Topology(pp_size=2), main, faults=plan, page_ns=10).run()
    assert outcome.result(0) == [20, [True, True], [True, True], [True, True], [True, True]]
    assert outcome.result(1) == [60, [True, False], [True, False], [True, True], [True, True]]


def test_jitter_belongs_to_the_copy_and_not_to_the_schedule() -> None:
    def main(w: World) -> Any:
        times = []
        for name in ("write", "load"):
            for _ in range(5):
                before = w.now()
                w.engine(name).submit(Copy(10, 1, lambda layer: None)).synchronize()
                times.append(w.now() - before)
        return times

    runs = [Simulation(Topology(pp_size=2), main, seed=5, choices=choices, page_ns=100).run() for choices in (None, [])]
    assert [runs[0].result(rank) for rank in (0, 1)] == [runs[1].result(rank) for rank in (0, 1)]
    times = runs[0].result(0) + runs[0].result(1)
    assert all(1000 <= t <= 2000 for t in times)
    assert len(set(times)) > 10


def test_a_copy_that_raises_ends_its_rank() -> None:
    def main(w: World) -> None:
        w.engine("write").submit(Copy(1, 1, [].__getitem__))
        w.sleep(10 * MS)

    outcome = Simulation(Topology(pp_size=2), main, faults=STEADY, choices=[]).run()
    assert [(f.rank, f.task, type(f.error)) for f in outcome.failures] == [(0, "copy-write", IndexError)]


# -- how a run ends


class Ring:
    """Ranks that each receive before they send."""

    def __init__(self, w: World) -> None:
        self.w = w

    def step(self) -> None:
        self.w.recv((self.w.rank + 1) % 3, "sync", 1, "pp_sync")


class Halved(Ring):
    """Inherits the method that blocks."""


def test_a_deadlock_is_exact_with_edges_and_full_stacks() -> None:
    def main(w: World) -> None:
        queue = w.queue("work")
        if w.rank == 0:
            w.spawn("io", queue.get)
        w.sleep(5)
        Halved(w).step()

    outcome = Simulation(Topology(pp_size=3), main, choices=[]).run()
    assert (outcome.how, outcome.time, outcome.failures) == ("deadlock", 5, [])
    assert sorted(outcome.waits) == [
        (0, "io", ("get", "work"), ()),
        (0, "main", ("recv", 1, "sync", "pp_sync"), (1,)),
        (1, "main", ("recv", 2, "sync", "pp_sync"), (2,)),
        (2, "main", ("recv", 0, "sync", "pp_sync"), (0,)),
    ]
    stacks = outcome.stacks()
    assert {rank: list(threads) for rank, threads in stacks.items()} == {0: ["main", "io"], 1: ["main"], 2: ["main"]}
    recv, step, bottom = stacks[1]["main"]
    assert (recv.function, recv.cls) == ("WireEnd.recv", "WireEnd")
    assert (step.function, step.cls, step.file) == ("Ring.step", "Ring", __file__)
    assert (bottom.function, bottom.cls) == ("main", None)
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert "self.w.recv(" in source[step.line - 1]
    assert "Halved(w).step()" in source[bottom.line - 1]
    assert [frame.function for frame in stacks[0]["io"]] == ["SimQueue.get"]


def test_joins_and_copies_are_edges_too() -> None:
    def main(w: World) -> None:
        queue = w.queue("work")
        w.spawn("io", queue.get).join()

    outcome = Simulation(Topology(), main).run()
    assert outcome.how == "deadlock"
    assert [wait.why for wait in outcome.waits] == [("join", "io"), ("get", "work")]


def test_an_ended_rank_leaves_its_peer_waiting() -> None:
    outcome = Simulation(Topology(pp_size=2), lambda w: w.rank and w.recv(0, "sync", 1, "pp_sync")).run()
    assert (outcome.how, [(x.rank, x.on) for x in outcome.waits]) == ("deadlock", [(1, (0,))])


def test_threads_that_idle_do_not_hold_up_the_end() -> None:
    def main(w: World) -> None:
        def polls() -> None:
            while True:
                w.sleep(MS)

        w.spawn("idle", w.queue("work").get)
        w.spawn("polls", polls)

    outcome = Simulation(Topology(), main).run()
    assert (outcome.how, outcome.time) == ("done", 0)


def test_a_step_budget_ends_idle_stepping() -> None:
    def main(w: World) -> None:
        for step in range(10_000):
            w.tick(step)
            w.sleep(MS)

    outcome = Simulation(Topology(pp_size=2), main, max_steps=30).run()
    assert (outcome.how, max(outcome.step(0), outcome.step(1))) == ("livelock", 31)
    assert all(threads["main"][-1].function == "main" for threads in outcome.stacks().values())


def test_polling_without_steps_is_a_livelock() -> None:
    def main(w: World) -> None:
        while True:
            w.sleep(1000 * MS)

    assert Simulation(Topology(), main).run().how == "livelock"


def test_a_failure_carries_its_traceback() -> None:
    outcome = Simulation(Topology(pp_size=2), lambda w: toy(w, fail_at=3), seed=2).run()
    (failure,) = outcome.failures
    assert (failure.rank, failure.task, str(failure.error)) == (1, "main", "pop from empty list")
    assert [frame.function for frame in outcome.stacks()[1]["main"]] == ["toy", "<lambda>"]
    assert set(outcome.stacks()[1]) == {"main", "prefetch"}


def test_a_killed_rank_has_no_stacks() -> None:
    outcome = Simulation(Topology(pp_size=2), toy, faults=FaultPlan(kill=((0, 4),)), cascade=True).run()
    assert outcome.how == "failed"
    first = outcome.failures[0]
    assert (first.rank, type(first.error), outcome.step(0)) == (0, Killed, 4)
    assert {f.rank for f in outcome.failures} == {0, 1}
    assert list(outcome.stacks()) == [1]


def test_tasks_are_unwound_and_let_go() -> None:
    class Held:
        pass

    held: list[Any] = []
    order: list[str] = []

    def main(w: World) -> None:
        value = Held()
        held.append(weakref.ref(value))
        try:
            w.recv(1 - w.rank, "sync", 1, "pp_sync")
        finally:
            order.append("first")
            w.sleep(1)

    outcome = Simulation(Topology(pp_size=2), main).run()
    assert outcome.how == "deadlock"
    assert order == ["first", "first"]
    gc.collect()
    assert [ref() for ref in held] == [None, None]


# -- evidence


def test_events_observations_and_lines() -> None:
    def main(w: World) -> Any:
        w.sleep(5)
        w.tick(3)
        w.record(Kind.DRAIN, a=1, b=2, c=3, d=4)
        w.log("ended", "ERROR")
        task = w.spawn("io", w.record, Kind.STEP, 9)
        task.join()
        return [w.observe("acks", (2,), (4,)), w.observe("acks", (4,), (4,)), w.observe("hits", (8,), None, 40, 0)]

    outcome = Simulation(Topology(), main).run()
    assert outcome.result(0) == [(2,), (4,), (8,)]
    assert outcome.events(0) == [(Kind.DRAIN, 3, 0, 5, 0, 1, 2, 3, 4), (Kind.STEP, 3, 1, 5, 9, 0, 0, 0, 0)]
    assert outcome.logs(0) == [(5, "ERROR", "ended")]
    assert outcome.threads(0) == ["main", "io"]
    tape = outcome.tape(0)
    # A count with a bound ends with a mask: which numbers were all there was.
    assert tape == [((3, "acks", 0), (2, 0)), ((3, "acks", 1), (4, 1)), ((40, "hits", 0), (8,))]
    again = Simulation(Topology(), main, replay={0: tape}).run()
    assert again.result(0) == outcome.result(0) and again.misses(0) == 0
    late = Simulation(Topology(), main, replay={0: [((3, "acks", 0), (9, 0)), ((3, "acks", 1), (1, 0))]}).run()
    assert late.result(0) == [(4,), (1,), (8,)], "never more than is in flight; late again where it was late"
    assert late.misses(0) == 2
    all_there = Simulation(Topology(), main, replay={0: [((3, "acks", 0), (1, 1))]}).run()
    assert all_there.result(0)[0] == (2,), "the taped run had only one in flight; this one has more"
