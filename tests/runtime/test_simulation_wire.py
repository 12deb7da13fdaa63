"""gloo's measured rules (torch 2.13), one test each, with exact values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.probes.kinds import Group, Kind, Op, Site
from hicache_doctor.runtime.faults import FaultPlan
from hicache_doctor.runtime.sim_outcome import Outcome
from hicache_doctor.runtime.sim_wire import Mispaired
from hicache_doctor.runtime.simulation import Killed, Simulation
from hicache_doctor.runtime.wire_names import members_key
from hicache_doctor.runtime.world import PeerLost, Proxy, Topology, WireAbort, World

MS = 1_000_000


def run(n: int, *mains: Callable[[World], Any], **options: Any) -> Outcome:
    """One stage a rank; the last main is that of all further ranks."""

    def main(w: World) -> Any:
        return mains[min(w.rank, len(mains) - 1)](w)

    return Simulation(Topology(pp_size=n), main, **options).run()


def results(outcome: Outcome, n: int) -> list[Any]:
    """What each rank returned, after checking that all ended well."""
    assert (outcome.how, outcome.failures, outcome.waits) == ("done", [], [])
    return [outcome.result(rank) for rank in range(n)]


def timed(call: Callable[[World], Any], late: int = -1) -> Callable[[World], tuple[int, Any]]:
    """In a world group, ``call`` and when it returned (ms); rank ``late`` enters at 5 ms."""

    def main(w: World) -> tuple[int, Any]:
        w.new_group("world", range(w.topo.n))
        if w.rank == late:
            w.sleep(5 * MS)
        value = call(w)
        return w.now() // MS, value

    return main


# -- from one rank to another


def test_a_send_is_a_rendezvous() -> None:
    def sender(w: World) -> Any:
        work = w.isend(1, "sync", (7,), "pp_sync")
        before = (w.now() // MS, work.is_completed())
        work.wait()
        return before, (w.now() // MS, work.is_completed())

    def receiver(w: World) -> Any:
        w.sleep(3 * MS)
        return w.recv(0, "sync", 1, "pp_sync")

    assert results(run(2, sender, receiver), 2) == [((0, False), (3, True)), (7,)]


def test_is_completed_is_false_until_wait_even_when_the_peer_has_the_message() -> None:
    def sender(w: World) -> Any:
        work = w.isend(1, "sync", (7,), "pp_sync")
        w.sleep(5 * MS)
        seen = work.is_completed()
        work.wait()
        return seen, work.is_completed(), w.now() // MS

    assert results(run(2, sender, lambda w: w.recv(0, "sync", 1, "pp_sync")), 2) == [(False, True, 5), (7,)]


def test_nothing_is_buffered() -> None:
    def sender(w: World) -> Any:
        works = [w.isend(1, "sync", (i,), "pp_sync") for i in range(200)]
        w.sleep(MS)
        pending = sum(not x.is_completed() for x in works)
        for work in works:
            work.wait()
        return pending, w.now() // MS

    def receiver(w: World) -> Any:
        w.sleep(2 * MS)
        return [w.recv(0, "sync", 1, "pp_sync")[0] for _ in range(200)]

    assert results(run(2, sender, receiver), 2) == [(200, 2), list(range(200))]


def test_other_tags_overtake() -> None:
    def sender(w: World) -> None:
        works = [w.isend(1, tag, (n,), "pp_sync") for n, tag in enumerate("aab")]
        for work in works[::-1]:
            work.wait()

    def receiver(w: World) -> Any:
        return [w.recv(0, tag, 1, "pp_sync")[0] for tag in "baa"]

    assert results(run(2, sender, receiver), 2)[1] == [2, 0, 1]


def test_a_skipped_receive_makes_the_next_one_read_the_older_message_and_is_noted() -> None:
    def sender(w: World) -> None:
        w.isend(1, "sync", (1,), "writing_check")
        w.isend(1, "sync", (2,), "drain_storage")

    outcome = run(2, sender, lambda w: w.recv(0, "sync", 1, "drain_storage"))
    assert results(outcome, 2)[1] == (1,)
    assert outcome.mispaired == [Mispaired("tag:sync", 0, 1, "drain_storage", 0, "writing_check")]


def test_short_into_long_leaves_the_tail() -> None:
    outcome = run(2, lambda w: w.isend(1, "sync", (5, 6), "pp_sync"), lambda w: w.recv(0, "sync", 4, "pp_sync"))
    assert results(outcome, 2)[1] == (5, 6, -1, -1)


def test_long_into_short_aborts_the_receiver() -> None:
    outcome = run(2, lambda w: w.isend(1, "sync", (5, 6), "pp_sync"), lambda w: w.recv(0, "sync", 1, "pp_sync"))
    assert outcome.how == "failed"
    (failure,) = outcome.failures
    assert (failure.rank, failure.task, type(failure.error)) == (1, "main", WireAbort)
    assert "op.preamble.length <= op.nbytes. 16 vs 8" in str(failure.error)


def test_a_proxy_describes_itself_and_has_a_tag_of_its_own() -> None:
    def sender(w: World) -> None:
        w.isend(1, "act", (1,), "pp_sync")
        w.isend_proxy(1, Proxy(9, "hidden"), "proxy")
        w.isend_proxy(1, Proxy(3, None), "proxy")

    def receiver(w: World) -> Any:
        return [w.recv_proxy(0, "proxy"), w.recv_proxy(0, "proxy"), w.recv(0, "act", 1, "pp_sync")]

    assert results(run(2, sender, receiver), 2)[1] == [Proxy(9, "hidden"), Proxy(3, None), (1,)]


Program = list[tuple[int, int, int]]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2), st.integers(0, 1)), max_size=40),
    st.integers(0, 1000),
    st.sampled_from([0, 2]),
)
def test_messages_are_neither_lost_nor_reordered(program: Program, seed: int, preempt: int) -> None:
    """Random sends among three ranks; each receives what it is sent, tag by tag and peer by peer, in threads."""
    sends = [(src, (src + hop) % 3, str(tag), i) for i, (src, hop, tag) in enumerate(program)]

    def main(w: World) -> Any:
        got: dict[tuple[int, str], list[int]] = {}
        tasks = []
        for src in range(3):
            for tag in "01":
                n = sum(s[:3] == (src, w.rank, tag) for s in sends)
                got[src, tag] = values = []

                def take(src: int = src, tag: str = tag, n: int = n, values: list[int] = values) -> None:
                    values.extend(w.recv(src, tag, 1, "pp_sync")[0] for _ in range(n))

                tasks.append(w.spawn(f"recv-{src}-{tag}", take))
        works = [w.isend(dst, tag, (i,), "pp_sync") for src, dst, tag, i in sends if src == w.rank]
        for waited in (*works, *tasks):
            waited.wait() if waited in works else waited.join()
        return got

    outcome = Simulation(Topology(pp_size=3), main, seed=seed, preempt=preempt).run()
    for rank, got in enumerate(results(outcome, 3)):
        for (src, tag), values in got.items():
            assert values == [i for s, d, t, i in sends if (s, d, t) == (src, rank, tag)]


# -- groups


@pytest.mark.parametrize(("op", "out"), [("min", (0, -3)), ("max", (3, 0)), ("sum", (6, -6))])
@pytest.mark.parametrize("late", [0, 3])
def test_all_reduce_waits_for_the_last_member(op: str, out: tuple[int, ...], late: int) -> None:
    outcome = run(4, timed(lambda w: w.all_reduce("world", op, (w.rank, -w.rank), "pp_sync"), late))
    assert results(outcome, 4) == [(5, out)] * 4


@pytest.mark.parametrize(
    ("late", "times"), [(3, [0, 5, 0, 5]), (2, [5, 0, 5, 0]), (1, [5, 5, 0, 5]), (0, [5, 5, 5, 5]), (-1, [0, 0, 0, 0])]
)
def test_broadcast_waits_along_its_tree_only(late: int, times: list[int]) -> None:
    """0 sends to 1 and 2, 1 sends to 3: as four gloo processes did."""
    outcome = run(4, timed(lambda w: w.broadcast("world", (10 + w.rank,), "recv_requests"), late))
    assert results(outcome, 4) == [(at, (10,)) for at in times]


def test_the_sizes_of_a_broadcast() -> None:
    short = run(2, timed(lambda w: w.broadcast("world", (7, 8, 9) if w.rank else (1, 2), "recv_requests")))
    assert results(short, 2) == [(0, (1, 2)), (0, (1, 2, 9))]
    long = run(2, timed(lambda w: w.broadcast("world", (7, 8) if w.rank else (1, 2, 3), "recv_requests")))
    assert [(f.rank, "24 vs 16" in str(f.error)) for f in long.failures] == [(1, True)]


def test_a_group_of_one_waits_for_nobody() -> None:
    outcome = run(1, timed(lambda w: [w.all_reduce("world", "min", (4,), ""), w.broadcast("world", (5,), "")]))
    assert results(outcome, 1) == [(0, [(4,), (5,)])]


@pytest.mark.parametrize("seed", range(4))
def test_mixed_kinds_hang_all(seed: int) -> None:
    def call(w: World) -> None:
        if w.rank:
            w.all_reduce("world", "min", (1,), "writing_check")
        else:
            w.broadcast("world", (1,), "recv_requests")

    outcome = run(2, timed(call), seed=seed)
    assert outcome.how == "deadlock"
    assert outcome.waits == [
        (0, "main", ("broadcast", "world", 0, "recv_requests"), (1,)),
        (1, "main", ("all_reduce", "world", 0, "writing_check"), (0,)),
    ]


def test_equal_shapes_in_another_order_pair_silently_and_are_noted() -> None:
    def call(w: World) -> Any:
        labels = ("loading_check", "writing_check") if w.rank else ("writing_check", "loading_check")
        return [w.all_reduce("world", "min", (10 * w.rank + i,), label)[0] for i, label in enumerate(labels)]

    outcome = run(2, timed(call), choices=[])
    assert results(outcome, 2) == [(0, [0, 1])] * 2
    assert outcome.mispaired == [
        Mispaired("world", 0, 0, "writing_check", 1, "loading_check"),
        Mispaired("world", 1, 1, "writing_check", 0, "loading_check"),
    ]


@pytest.mark.parametrize("late", [0, 1])
def test_unequal_sizes_of_an_all_reduce_abort_the_smaller_side(late: int) -> None:
    outcome = run(2, timed(lambda w: w.all_reduce("world", "min", (1, 2) if w.rank else (1,), ""), late))
    assert [(f.rank, type(f.error), "16 vs 8" in str(f.error)) for f in outcome.failures] == [(0, WireAbort, True)]


def test_where_members_disagree_on_the_operation_the_first_one_counts() -> None:
    outcome = run(3, timed(lambda w: w.all_reduce("world", "max" if w.rank else "min", (10 + w.rank,), "")))
    assert results(outcome, 3) == [(0, (10,))] * 3


def test_new_group_waits_for_its_members_and_not_for_others() -> None:
    def main(w: World) -> Any:
        w.sleep(w.rank * 2 * MS)
        w.new_group("tp", [0, 1])
        at = [w.now() // MS]
        w.new_group("pp", [1, 2])
        return [*at, w.now() // MS]

    assert results(run(3, main), 3) == [[2, 2], [2, 4], [4, 4]]


def test_other_lists_at_the_same_call_wait_for_ever() -> None:
    outcome = run(2, lambda w: w.new_group("tp", [0, 1] if w.rank else [1, 0]))
    assert outcome.how == "deadlock"
    assert [(x.rank, x.why, x.on) for x in outcome.waits] == [
        (0, ("new_group", "tp", (1, 0), 0), (1,)),
        (1, ("new_group", "tp", (0, 1), 0), (0,)),
    ]
    assert outcome.stacks()[0]["main"][0].function == "WireEnd.new_group"


# -- a rank dies


def test_whoever_waits_for_a_dead_rank_learns_of_it_and_so_does_every_later_call() -> None:
    errors: list[tuple[int, str]] = []

    def attempt(w: World, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except PeerLost as error:
            errors.append((w.now() // MS, str(error)))
            return None

    def main(w: World) -> Any:
        w.new_group("world", [0, 1, 2])
        w.new_group("tp", [0, 1])
        if w.rank == 2:
            w.isend(0, "sync", (9,), "pp_sync")
            w.sleep(2 * MS)
            w.tick(5)
            raise AssertionError("killed before")
        if w.rank == 0:
            work = w.isend(2, "sync", (1,), "pp_sync")
            attempt(w, work.wait)
            attempt(w, lambda: w.recv(2, "sync", 1, "pp_sync"))
            attempt(w, lambda: w.isend(2, "sync", (1,), "pp_sync"))
        attempt(w, lambda: w.all_reduce("world", "min", (1,), "pp_sync"))
        return w.all_reduce("tp", "sum", (1,), "pp_sync")

    outcome = run(3, main, faults=FaultPlan(kill=((2, 5),)))
    assert [(f.time // MS, f.rank, type(f.error)) for f in outcome.failures] == [(2, 2, Killed)]
    assert len(errors) == 5
    assert {at for at, _ in errors} == {2}
    assert all("Connection closed by peer [127.0.0.1]:29502. This is typically caused by" in text for _, text in errors)
    assert (outcome.result(0), outcome.result(1)) == ((2,), (2,)), "a group without the dead rank keeps working"


def test_a_broadcast_needs_only_its_neighbours_in_the_tree() -> None:
    """Of four, 3 is the child of 1: when it is gone the others get their value, as four gloo processes did."""

    def main(w: World) -> Any:
        w.new_group("world", range(4))
        if w.rank == 3:
            w.tick(1)
        w.sleep(MS)
        return w.broadcast("world", (10 + w.rank,), "recv_requests")

    outcome = run(4, main, faults=FaultPlan(kill=((3, 1),)), cascade=True)
    assert [(f.rank, type(f.error)) for f in outcome.failures] == [(3, Killed), (1, PeerLost)]
    assert (outcome.result(0), outcome.result(2)) == ((10,), (10,))


def test_a_failure_cascades_along_the_wire() -> None:
    def main(w: World) -> Any:
        if w.rank == 0:
            w.sleep(MS)
            raise IndexError("pop from empty list")
        return w.recv(w.rank - 1, "sync", 1, "pp_sync")

    assert [f.rank for f in run(3, main).failures] == [0], "without cascade the first failure ends the run"
    outcome = run(3, main, cascade=True)
    assert outcome.how == "failed"
    assert [(f.rank, type(f.error)) for f in outcome.failures] == [(0, IndexError), (1, PeerLost), (2, PeerLost)]
    assert outcome.waits == []


# -- what is recorded


def test_the_wire_records_its_own_events() -> None:
    def main(w: World) -> None:
        w.new_group("hits.tp", [0, 1])
        w.step = 4
        for _ in range(2):
            w.all_reduce("hits.tp", "max", (1, 2, 3), "prefetch_hits")
        if w.rank:
            w.recv(0, "sync", 2, "pp_sync")
        else:
            w.isend(1, "sync", (1, 2), "pp_sync").wait()

    made = (Kind.NEW_GROUP, 0, 0, 0, members_key((0, 1)), Group.HITS_TP, 2, 0, 0)
    votes = [(Kind.COLLECTIVE, 4, 0, 0, n, Group.HITS_TP, Op.MAX, 3, Site.PREFETCH_HITS) for n in range(2)]
    outcome = run(2, main)
    assert outcome.events(0) == [made, *votes, (Kind.SEND, 4, 0, 0, 0, 1, Site.PP_SYNC, 2, 0)]
    assert outcome.events(1) == [made, *votes, (Kind.RECV, 4, 0, 0, 0, 0, Site.PP_SYNC, 2, 0)]
    kinds = [event[0] for event in run(2, main, keep_ends=True).events(1)]
    pair = [Kind.COLLECTIVE, Kind.COLLECTIVE_END]
    assert kinds == [Kind.NEW_GROUP, *pair, *pair, Kind.RECV, Kind.RECV_END]
    assert list(run(2, main, keep_events=False).events(1)) == []
