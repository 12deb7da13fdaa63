"""The world of real processes, seen from the protocol's side."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the processes world needs torch")

from hicache_doctor.probes.kinds import Group, Kind, Op, Site
from hicache_doctor.runtime.copy_engine import PAGE, Pace
from hicache_doctor.runtime.faults import CopyLag, FaultPlan
from hicache_doctor.runtime.gloo_wire import TAGS, tag_number
from hicache_doctor.runtime.wire_names import SITES
from hicache_doctor.runtime.world import Place
from tests.runtime.conftest import Run


def results(report: Any) -> list[dict[str, Any]]:
    assert report.outcome == "done", [r.error for r in report.ranks]
    return [r.result for r in report.ranks]


def test_every_kind_of_message_arrives_on_a_grid_of_four(run: Run) -> None:
    got = results(run("everything"))
    assert [r["label"] for r in got] == ["PP0 TP0", "PP0 TP1", "PP1 TP0", "PP1 TP1"]
    assert [r["ring"] for r in got] == [[(k - 1) % 4, (k - 1) % 4 * 10, -1] for k in range(4)]
    assert [(r["before"], r["after"]) for r in got] == [(False, True)] * 4
    assert [r["min"] for r in got] == [[0, 5], [0, 5], [2, 5], [2, 5]]
    assert [r["max"] for r in got] == [[2], [3], [2], [3]]
    assert [r["sum"] for r in got] == [[6, 4]] * 4
    assert [r["again"] for r in got] == [[0], [0], [2], [2]]
    assert [r["first"] for r in got] == [[0, 7], [1, 7], [0, 7], [1, 7]]
    for k, r in enumerate(got):
        before = (k - 1) % 4
        rows = [[float(before)] * 3] * 2
        assert r["proxies"] == [[3, [before, 1, 2]], [2, rows], [0, None], [0, []], [0, []]]
        assert r["dtype"] == "torch.bfloat16"


def test_the_wire_records_what_goes_over_it(run: Run) -> None:
    events = [tuple(e) for e in results(run("everything", pp=2, tp=1))[0]["events"]]
    req, vote = int(Site.RECV_REQUESTS), int(Site.WRITING_CHECK)
    assert events[:5] == [
        (Kind.SEND, 0, 1, req, 2, 0),
        (Kind.RECV, 0, 1, req, 3, 0),
        (Kind.RECV_END, 0, 1, req, 3, 0),
        (Kind.COLLECTIVE, 0, Group.TP, Op.MIN, 2, vote),
        (Kind.COLLECTIVE_END, 0, Group.TP, 0, 0, 0),
    ]
    assert (Kind.COLLECTIVE, 1, Group.PP, Op.BROADCAST, 2, Site.CHUNK_PROFILE) in events
    assert (Kind.COLLECTIVE, 0, Group.HITS_TP, Op.MIN, 1, Site.PREFETCH_HITS) in events
    sent = [e for e in events if e[0] == Kind.SEND and e[3] == Site.PROXY]
    assert [(e[1], e[4]) for e in sent] == [(0, 3), (1, 2), (2, 0), (3, 0), (4, 0)]
    assert len([e for e in events if e[0] == Kind.RECV_END and e[3] == Site.PROXY]) == 5


def test_a_tensor_is_summed_over_the_forward_group(run: Run) -> None:
    assert [r["total"] for r in results(run("voices", pp=1, tp=2))] == [[[3.0, 3.0], [3.0, 3.0]]] * 2


def test_a_short_message_leaves_the_tail_of_the_buffer(run: Run) -> None:
    assert results(run("short_message", tp=1))[1] == {"got": [5, -1, -1]}


def test_a_tape_makes_a_run_see_what_another_saw(run: Run) -> None:
    first = run("observing", tp=1)
    seen = results(first)
    assert [key for key, _ in first.tape(0)] == [
        (0, "write_acks", 0), (1, "write_acks", 0), (2, "write_acks", 0), (7, "io", 2),
    ]  # fmt: skip
    again = run("observing", tp=1, replay=first.tapes())
    assert results(again) == seen
    assert again.tapes() == first.tapes()
    assert [r.tape_misses for r in again.ranks] == [0, 0]
    nothing_taped = run("observing", tp=1, replay={})
    assert [r.tape_misses for r in nothing_taped.ranks] == [4, 4]


def test_bytes_move_in_order_and_a_gated_copy_is_seen_late(run: Run) -> None:
    plan = FaultPlan(copy_lag=(CopyLag(pp=1, steps=3, every=2),), clock_step=1_000_000)
    pp0, pp1 = results(run("copying", tp=1, faults=plan))
    order = [[name, layer] for name in ("write", "load") for _ in range(2) for layer in range(3)]
    assert pp0["moved"] == pp1["moved"] == order
    assert pp0["write"] == pp0["load"] == pp1["load"] == [True, True]
    assert (pp1["write"], pp1["write_later"]) == ([True, False], [True, True])
    assert pp0["clock"] % 1_000_000 == 0


def test_threads_queues_and_a_quiet_stop(run: Run) -> None:
    assert results(run("handing_over", pp=1, tp=1)) == [{"size": 2, "items": [3, 6], "left": 0}]


def test_the_pace_of_copies_is_seeded_and_follows_the_plan() -> None:
    at = Place(0, 1, 0, 0)

    def paces(plan: FaultPlan, name: str = "write") -> list[tuple[int, int]]:
        pace = Pace(name, plan, at, 2)
        return [pace.next(5, step) for step in range(50)]

    calm = FaultPlan(jitter=0)
    assert paces(FaultPlan()) == paces(FaultPlan())
    assert paces(FaultPlan()) != paces(FaultPlan(seed=2)) != paces(FaultPlan(), "load")
    assert len({took for took, _ in paces(calm)}) == 1
    assert paces(FaultPlan(jitter=0, slow_copy=((1, 7),)))[0][0] == 7 * paces(calm)[0][0]
    assert paces(FaultPlan(jitter=0, slow_copy=((0, 7),))) == paces(calm)
    assert min(took for took, _ in paces(FaultPlan(jitter=300))) == 0
    assert max(took for took, _ in paces(FaultPlan())) > 7 * PAGE
    lag = FaultPlan(copy_lag=(CopyLag(pp=1, steps=9, every=3), CopyLag(pp=1, steps=5, tp=1)))
    assert [gate - step for step, (_, gate) in enumerate(paces(lag))][:6] == [0, 0, 9, 0, 0, 9]


def test_tags_and_sites_are_distinct_and_stable() -> None:
    assert len(set(TAGS.values())) == len(TAGS)
    assert tag_number("sync") == 2
    assert tag_number("some other queue") == tag_number("some other queue") > max(TAGS.values())
    assert SITES["writing_check"] == Site.WRITING_CHECK
