"""What a run is made of: plans, workloads, arrivals, fault plans and switches, and what is told about wrong ones."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.errors import UsageError
from hicache_doctor.probes.kinds import Msg
from hicache_doctor.runtime import faults, fixes, release
from hicache_doctor.runtime.faults import Abort, CopyLag, FaultPlan, LostKeys, Outage, Refuse
from hicache_doctor.runtime.fixes import ALL, NONE, Fix, Fixes
from hicache_doctor.runtime.pipeline.plan import Entry, Plan, decode, longest
from hicache_doctor.runtime.scheduler.arrivals import MAX_MESSAGES, Message, WorkloadArrivals
from hicache_doctor.runtime.workload import Request, Workload

REQUEST, ABORT = int(Msg.REQUEST), int(Msg.ABORT)

# -- the plan -----------------------------------------------------------------------------------------------------

RIDS = st.integers(0, 1 << 31)
PLANS = st.builds(
    Plan,
    st.lists(st.builds(Entry, RIDS, st.integers(0, 1 << 20), st.integers(1, 1 << 20)), max_size=9).map(tuple),
    st.booleans(),
    st.integers(-1, 1 << 31),
    st.booleans(),
    st.tuples(st.integers(-1, 1 << 31), st.integers(0, 1 << 20)),
    st.lists(RIDS, max_size=MAX_MESSAGES).map(tuple),
    st.lists(RIDS, max_size=8).map(tuple),
)


@given(PLANS)
def test_a_plan_survives_the_wire(plan: Plan) -> None:
    vec = plan.encode()
    buffer = longest(8, MAX_MESSAGES)
    assert len(vec) <= buffer
    # A buffer that is longer than the message keeps what it was filled with behind it.
    assert decode((*vec, *[-1] * (buffer - len(vec)))) == plan


# -- the workload -------------------------------------------------------------------------------------------------

WORKLOADS = st.builds(
    Workload,
    requests=st.integers(0, 40),
    prefixes=st.integers(0, 5),
    prefix=st.integers(1, 40),
    suffix=st.integers(0, 20),
    new_tokens=st.integers(0, 6),
    gap=st.integers(0, 4),
    turns=st.integers(1, 4),
    aborts=st.integers(0, 100),
)


@given(WORKLOADS, st.integers(0, 1 << 32))
def test_a_workload_is_its_seed(workload: Workload, seed: int) -> None:
    built = workload.build(seed)
    assert built == workload.build(seed)
    assert [r.rid for r in built] == list(range(workload.requests))
    assert all(a.step <= b.step for a, b in pairwise(built))
    for r in built:
        assert r.tokens and all(0 < t < workload.vocab for t in r.tokens) and r.new_tokens >= 1
        assert r.after == (r.rid - 1 if workload.turns > 1 and r.rid % workload.turns else -1)


def test_another_seed_is_another_workload() -> None:
    assert Workload().build(1) != Workload().build(2)
    # Pinned: every recorded run is named by its seed.
    first = Workload(requests=3).build(1)
    assert [(r.rid, r.step, len(r.tokens), r.tokens[:3], r.new_tokens) for r in first] == [
        (0, 0, 49, (23, 71, 358), 1),
        (1, 1, 41, (25, 228, 219), 2),
        (2, 3, 52, (286, 378, 120), 6),
    ]


# -- arrivals -----------------------------------------------------------------------------------------------------


def polled(arrivals: WorkloadArrivals, step: int, done: Any = (), states: Any = None) -> list[Message]:
    return arrivals.poll(step, dict.fromkeys(done), states or {})


def asks(*steps: int, **changes: Any) -> list[Request]:
    return [replace(Request(i, step, (1,), 1), **changes) for i, step in enumerate(steps)]


def test_requests_arrive_when_due_and_half_a_message_at_most() -> None:
    arrivals = WorkloadArrivals(asks(0, 0, 3), FaultPlan())
    assert polled(arrivals, 0) == [(REQUEST, 0), (REQUEST, 1)]
    assert polled(arrivals, 2) == [] and not arrivals.exhausted
    assert polled(arrivals, 5) == [(REQUEST, 2)] and arrivals.exhausted
    crowd = WorkloadArrivals(asks(*[0] * 20), FaultPlan())
    assert [len(polled(crowd, step)) for step in range(4)] == [8, 8, 4, 0]
    assert [len(WorkloadArrivals(asks(0, 0, 0), FaultPlan()).poll(0, {}, {}, room)) for room in (0, 2)] == [0, 2]


def test_only_the_own_requests_arrive() -> None:
    assert polled(WorkloadArrivals(asks(0, 0, 0), FaultPlan(), {1: 1}), 0) == [(REQUEST, 1)]


def test_a_turn_waits_for_the_answer_it_follows() -> None:
    requests = asks(0, 0)
    requests[1] = replace(requests[1], after=0)
    arrivals = WorkloadArrivals(requests, FaultPlan())
    assert polled(arrivals, 0) == [(REQUEST, 0)]
    assert polled(arrivals, 1) == [] and not arrivals.exhausted
    assert polled(arrivals, 2, done=[0]) == [(REQUEST, 1)]


def test_a_client_goes_away_after_its_request_and_not_after_its_answer() -> None:
    arrivals = WorkloadArrivals(asks(0, 0, abort_after=2), FaultPlan())
    polled(arrivals, 0)
    assert [polled(arrivals, step, done=[1]) for step in (1, 2, 3, 4)] == [[], [], [(ABORT, 0)], []]


def test_a_fault_aborts_at_a_step_or_in_a_state_once() -> None:
    plan = FaultPlan(aborts=(Abort(0, 2), Abort(1, state="chunked"), Abort(2, state="agreed")))
    arrivals = WorkloadArrivals(asks(0, 0, 0), plan)
    polled(arrivals, 0)
    assert polled(arrivals, 1, states={1: "waiting", 2: "agreed"}) == []
    assert polled(arrivals, 2, states={1: "chunked"}) == [(ABORT, 0), (ABORT, 1)]
    assert polled(arrivals, 3, states={1: "chunked"}) == []


# -- fault plans --------------------------------------------------------------------------------------------------


def test_a_fault_plan_survives_its_file() -> None:
    plan = FaultPlan(
        seed=3, copy_lag=(CopyLag(1, 2, "load", 0, 3),), jitter=7, slow_copy=((1, 9),), slow_l3=((0, 2),),
        lost_keys=(LostKeys(0, when="exists"),), outages=(Outage(3, -1),), refuse=(Refuse("load", 1, 0),),
        aborts=(Abort(4, state="running"), Abort(5, 9)), clock_skew=((0, 5),), clock_jump=((1, 5, 2),), clock_step=9,
        lag_stage=((1, 5),), profile_fails=(0, 1), batch_full=((0, 1, 2),), restart_l3=4, misroute="twice",
        kill=((0, 7),),
    )  # fmt: skip
    assert all(getattr(plan, f.name) != getattr(FaultPlan(), f.name) for f in fields(FaultPlan))
    assert faults.from_dict(asdict(plan)) == plan
    assert faults.from_dict({}) == FaultPlan() and FaultPlan(seed=9, jitter=0).quiet and not plan.quiet


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"copylag": []}, "no fault 'copylag'; did you mean copy_lag?"),
        ({"zzz": 1}, "no fault 'zzz'; keys are seed, copy_lag,"),
        ({"seed": "x"}, "seed: seed must be a whole number, not 'x'"),
        ({"seed": True}, "seed: seed must be a whole number, not True"),
        ({"restart_l3": 1.5}, "restart_l3: restart_l3 must be a whole number, not 1.5"),
        ({"slow_copy": 3}, "slow_copy: write a list, not 3"),
        ({"slow_copy": [[1]]}, "slow_copy: write 2 numbers an entry, not [1]"),
        ({"clock_jump": [[1, 2]]}, "clock_jump: write 3 numbers an entry, not [1, 2]"),
        ({"kill": [[0, "x"]]}, "kill: an entry must be a whole number, not 'x'"),
        ({"profile_fails": 0}, "profile_fails: write a list, not 0"),
        ({"profile_fails": ["a"]}, "profile_fails: profile_fails must be a whole number, not 'a'"),
        ({"copy_lag": {"pp": 1}}, "copy_lag: write a list, not {'pp': 1}"),
        ({"copy_lag": [1]}, "copy_lag: write a mapping of pp, steps, engine, tp, every, not 1"),
        ({"copy_lag": [{"pp": 1}]}, "copy_lag: steps is missing"),
        ({"copy_lag": [{"pp": 1, "step": 2}]}, "copy_lag: no key 'step'; did you mean steps?"),
        ({"copy_lag": [{"pp": 1, "steps": 2, "engine": "read"}]}, "engine cannot be 'read'; it is one of write, load"),
        ({"copy_lag": [{"pp": 1, "steps": 2, "every": 0}]}, "every must be at least 1"),
        ({"aborts": [{"rid": 1, "state": "gone"}]}, "state cannot be 'gone'; it is one of waiting, prefetching,"),
        ({"misroute": "all"}, "misroute cannot be 'all'; it is one of twice, missed, control_to_all"),
    ],
)  # fmt: skip
def test_a_wrong_fault_is_told(raw: Any, told: str) -> None:
    with pytest.raises(UsageError) as e:
        faults.from_dict(raw, "plan.yaml")
    assert str(e.value).startswith("plan.yaml: ") and told in str(e.value)


def test_a_fault_plan_is_a_mapping() -> None:
    raw: Any = ["slow_copy"]
    with pytest.raises(UsageError, match="write faults by name"):
        faults.from_dict(raw)


# -- switches -----------------------------------------------------------------------------------------------------


def test_switches_by_name() -> None:
    assert fixes.parse("all") == fixes.parse("") == ALL and fixes.parse("none") == NONE
    assert fixes.parse("-27285") == ALL.without(Fix.ACK_COUNTS)
    assert fixes.parse("none,+27285,28916").names() == ["27285", "28916"]
    assert fixes.parse("all,27285=beat") == Fixes(ALL.on, "beat")
    assert fixes.parse("27285=local") == ALL.without(Fix.ACK_COUNTS)
    assert fixes.parse("all,-28916,27285=beat").names()[0] == "27285=beat"
    for alias in ("#33029", "38284", "30760"):
        assert fixes.fix_of(alias) is Fix.VOTE_OUTSIDE_LOOP
    for some in (ALL, NONE, Fixes(ALL.on, "beat"), ALL.without(Fix.TIMEOUTS)):
        assert fixes.parse(",".join(["none", *some.names()])) == some


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("12345", "no switch '12345'; it models 27285,"),
        ("all,-x", "no switch 'x'"),
        ("27285=sometimes", "#27285 has no value 'sometimes'; it has pp0, local, beat"),
        ("28916=pp0", "#28916 has no value 'pp0'; it has none, it is on or off"),
    ],
)
def test_a_wrong_switch_is_told(text: str, told: str) -> None:
    for read in (fixes.parse, release.resolve):
        with pytest.raises(UsageError) as e:
            read(text)
        assert told in str(e.value)


def test_switches_by_release() -> None:
    old, new = release.resolve("0.5.12"), release.resolve("0.5.20")
    assert Fix.ACK_COUNTS not in old and old.ack_counts == "local" and Fix.ACK_COUNTS in new
    assert old.on < new.on < ALL.on
    assert not fixes.OPEN & new.on
    assert release.resolve("0.5.16,+31425,-28916") == release.released("0.5.16").plus(Fix.ALLOCATION).without(
        Fix.BOUNDED_SENDS
    )
    assert release.resolve("0.5.16", "unified").on != release.resolve("0.5.16", "hiradix").on
    assert 27285 in release.in_release("0.5.20") and release.models(27285) and not release.models(1)
    # What the release has and the runtime has no switch for is not forgotten.
    assert new.unmodelled and not set(new.unmodelled) & {f.value for f in Fix}
    with pytest.raises(UsageError, match=r"'0\.5\.99' is no release that the knowledge holds"):
        release.resolve("0.5.99,+27285")
