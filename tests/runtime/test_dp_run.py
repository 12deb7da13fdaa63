"""The DP controller at work in the simulation: who gets what, what is replayed, and what each wrong way leads to."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from hicache_doctor.probes.kinds import Found, Kind, Msg
from hicache_doctor.runtime import config_file
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.faults import Abort, CopyLag, FaultPlan
from hicache_doctor.runtime.scheduler.dispatcher import MISROUTE_EVERY, POLICIES, DPBudget
from hicache_doctor.runtime.sim_run import SimRun, run
from hicache_doctor.runtime.streams import streams
from hicache_doctor.runtime.workload import Workload
from hicache_doctor.runtime.world import CONTROLLER, Topology

DP2 = Topology(pp_size=2, dp_size=2)


def entries(topo: Topology) -> list[int]:
    return [topo.rank(0, 0, dp) for dp in range(topo.dp_size)]


def served(done: SimRun) -> list[list[int]]:
    """The requests that ended in each group."""
    results = done.results
    return [sorted(results[r]["outputs"]) for r in entries(done.config.topo)]


def of_kind(done: SimRun, rank: int, kind: Kind) -> list[tuple[int, ...]]:
    """(key, a, b, c, d) of a rank's events of one kind."""
    return [e[4:] for e in done.outcome.events(rank) if e[0] == kind]


def messages(done: SimRun, rank: int, kind: Msg) -> list[int]:
    return [key for key, msg, *_ in of_kind(done, rank, Kind.RECV_MSG) if msg == kind]


def assert_sound(done: SimRun) -> None:
    """Every request ended once, in one group, with its right tokens; ranks of a replica decided the same."""
    assert done.outcome.how == "done", (done.outcome.failures, done.outcome.waits)
    assert done.differences() == []
    assert done.wrong_tokens() == []
    assert done.integrity() == []
    assert done.outcome.mispaired == []
    everyone = sorted(rid for group in served(done) for rid in group)
    assert everyone == list(range(done.config.workload.requests))


def varied(n: int, **fixed: Any) -> Config:
    """One of many different runs."""
    r = random.Random(n)
    topo = Topology(r.randint(1, 3), r.randint(1, 2), r.randint(2, 4))
    load = Workload(
        requests=r.randint(8, 28), turns=r.choice([1, 1, 3]), aborts=r.choice([0, 20, 40]), gap=r.choice([0, 2, 5]),
        routed=r.choice([0, 0, 30]), block_at=r.choice([-1, -1, 4]),
    )  # fmt: skip
    gone = tuple(
        Abort(r.randrange(8), state=r.choice(["waiting", "running", "chunked"])) for _ in range(r.choice([0, 2]))
    )
    lag = r.choice([(), (CopyLag(pp=0, steps=5),)])
    config = Config(
        topo=topo, workload=load, seed=n + 1, faults=FaultPlan(seed=n + 1, aborts=gone, copy_lag=lag),
        l3=r.choice([None, "memory"]), tree=r.choice(["hiradix", "unified"]), device_pages=r.choice([40, 96]),
        host_pages=r.choice([40, 160]), disaggregation=r.choice(["null", "null", "prefill"]),
    )  # fmt: skip
    return config.but(**fixed)


# -- soak ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dp_attention", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_any_run_ends_and_is_right(policy: str, dp_attention: bool) -> None:
    for n in range(7):
        seed = 100 * POLICIES.index(policy) + 10 * n + dp_attention
        assert_sound(run(varied(seed, dp_policy=policy, dp_attention=dp_attention), seed=n, preempt=3 * (n % 2)))


@pytest.mark.long
@pytest.mark.parametrize("dp_attention", [False, True])
def test_many_runs_end_and_are_right(dp_attention: bool) -> None:
    for n in range(1000, 1300):
        config = varied(n, dp_policy=POLICIES[n % 4], dp_attention=dp_attention)
        assert_sound(run(config, seed=n, preempt=3 * (n % 2)))


def test_the_same_seed_is_the_same_run() -> None:
    config = varied(5, dp_policy="total_tokens")
    first, again = (run(config, seed=4, preempt=3) for _ in range(2))
    assert first.outcome.digest() == again.outcome.digest()
    assert first.tapes() == again.tapes()


def test_one_group_has_no_controller() -> None:
    done = run(Config(workload=Workload(requests=8)))
    assert done.controller is None
    assert CONTROLLER not in done.tapes()
    assert not [key for r in range(2) for key, _ in done.outcome.tape(r) if key[1] == "arrive"]


# -- who gets what ------------------------------------------------------------------------------------------------


def test_dispatches_are_recorded_where_they_arrive() -> None:
    done = run(Config(topo=DP2, workload=Workload(requests=12, gap=8), dp_policy="total_requests"))
    assert_sound(done)
    for group, rank in enumerate(entries(DP2)):
        told = of_kind(done, rank, Kind.DISPATCH)
        assert sorted(rid for rid, *_ in told) == served(done)[group]
        assert {(g, policy) for _, g, policy, *_ in told} == {(group, POLICIES.index("total_requests"))}
        applied = [c for _, _, _, c, _ in of_kind(done, rank, Kind.LOAD_SNAPSHOT)]
        assert applied == sorted(set(applied)) and len(applied) > 1  # each once, by its stamp
        assert of_kind(done, rank + 1, Kind.DISPATCH) == []


def test_round_robin_and_rooms_go_round_and_a_router_has_the_last_word() -> None:
    load = Workload(requests=12)
    assert served(run(Config(topo=DP2, workload=load))) == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]
    topo = Topology(dp_size=3)
    rooms = run(Config(topo=topo, workload=load, dp_policy="follow_bootstrap_room"))
    assert served(rooms) == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    routed = run(Config(topo=topo, workload=Workload(requests=12, routed=100)))
    assert_sound(routed)
    assert served(routed) == [[r.rid for r in routed.requests if r.routed % 3 == g] for g in range(3)]
    plain, with_router = (Workload(requests=12, routed=n).build(3) for n in (0, 100))
    assert [r.tokens for r in plain] == [r.tokens for r in with_router]


def test_turns_stay_where_their_conversation_is_and_wait_there() -> None:
    done = run(Config(topo=Topology(dp_size=3), workload=Workload(requests=24, turns=4, gap=0)))
    assert_sound(done)
    for group, rank in enumerate(entries(done.config.topo)):
        assert {rid // 4 for rid in served(done)[group]} == {c for c in range(6) if c % 3 == group}
        # all letters came in one burst, yet a turn starts only when its predecessor has ended
        order = [(e[0], e[4]) for e in done.outcome.events(rank) if e[0] in (Kind.FINISH, Kind.RECV_MSG)]
        for rid in served(done)[group]:
            if rid % 4:
                assert order.index((Kind.FINISH, rid - 1)) < order.index((Kind.RECV_MSG, rid))


def counts(done: SimRun) -> list[int]:
    return [len(group) for group in served(done)]


@pytest.mark.parametrize("refreshed", [True, False])
def test_a_burst_is_spread_by_counting_what_was_sent(refreshed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots lag: without the count of what was sent since, all of a burst goes to one group."""
    if not refreshed:
        monkeypatch.setattr(DPBudget, "due", lambda self, now: False)
    config = Config(topo=Topology(dp_size=4), workload=Workload(requests=32, gap=0), dp_policy="total_requests")
    assert counts(run(config)) == [8, 8, 8, 8]
    monkeypatch.setattr(DPBudget, "sent", lambda self, group, tokens: None)
    assert counts(run(config)) == [32, 0, 0, 0]


def test_total_tokens_sees_how_long_prompts_are() -> None:
    load = Workload(requests=40, prefixes=4, prefix=60, suffix=120, gap=0)
    spread = {}
    for policy in ("round_robin", "total_tokens"):
        done = run(Config(topo=Topology(dp_size=4), workload=load, dp_policy=policy, host_pages=400, device_pages=400))
        assert_sound(done)
        sums = [sum(len(done.requests[rid].tokens) for rid in group) for group in served(done)]
        spread[policy] = max(sums) - min(sums)
    assert spread["total_tokens"] < spread["round_robin"]


# -- aborts and global messages -------------------------------------------------------------------------------------


def test_an_abort_reaches_all_groups_and_finds_its_request_in_one() -> None:
    done = run(Config(topo=DP2, workload=Workload(requests=20, aborts=100, gap=0, new_tokens=30)))
    assert_sound(done)
    found: Counter[int] = Counter()
    for rank in entries(DP2):
        assert sorted(messages(done, rank, Msg.ABORT)) == list(range(20))
        for rid, msg, _, where, _ in of_kind(done, rank, Kind.RECV_MSG):
            found[rid] += msg == Msg.ABORT and where != Found.NOTHING
    assert max(found.values()) == 1
    assert sum(found.values()) > 5


def test_an_abort_waits_behind_a_turn_that_is_held_back() -> None:
    load = Workload(requests=12, turns=6, aborts=100, gap=0, new_tokens=20)
    for dp_attention in (False, True):
        done = run(Config(topo=DP2, workload=load, dp_attention=dp_attention))
        assert_sound(done)
        for group, rank in enumerate(entries(DP2)):
            order = [(m, rid) for rid, m, *_ in of_kind(done, rank, Kind.RECV_MSG)]
            for rid in served(done)[group]:
                assert order.index((Msg.REQUEST, rid)) < order.index((Msg.ABORT, rid))


def test_under_dp_attention_one_rank_passes_control_messages_on() -> None:
    config = Config(topo=Topology(dp_size=3), workload=Workload(requests=18, aborts=100, gap=1), dp_attention=True)
    done = run(config)
    assert_sound(done)
    letters = {}
    for rank in range(3):
        flat = [seen for key, seen in done.outcome.tape(rank) if key[1] == "arrive"]
        letters[rank] = [vec[i] for vec in flat for i in range(0, len(vec), 8)]
        assert sorted(messages(done, rank, Msg.ABORT)) == list(range(18))
    assert [letters[rank].count(Msg.ABORT) for rank in range(3)] == [18, 0, 0]


BLOCK = Workload(requests=24, gap=2, block_at=6, block_for=12)


def test_block_holds_requests_back_in_all_groups() -> None:
    done = run(Config(topo=DP2, workload=BLOCK))
    assert_sound(done)
    for rank in range(DP2.n):
        order = [m for _, m, *_ in of_kind(done, rank, Kind.RECV_MSG)]
        start, end = order.index(Msg.BLOCK), order.index(Msg.UNBLOCK)
        assert end == start + 1  # nothing came in between
        assert 0 < start < len(order) - 2


# -- misrouting -----------------------------------------------------------------------------------------------------


def wrong(fault: str, config: Config, seed: int = 0) -> SimRun:
    return run(config.but(faults=FaultPlan(misroute=fault)), seed=seed)


def test_a_request_to_two_groups_is_computed_and_answered_twice() -> None:
    done = wrong("twice", Config(topo=Topology(2, 1, 3), workload=Workload(requests=24)))
    ends = Counter(rid for group in served(done) for rid in group)
    assert [rid for rid, n in sorted(ends.items()) if n == 2] == list(range(0, 24, MISROUTE_EVERY))
    assert set(ends.values()) == {1, 2}
    finished = Counter(key for rank in entries(done.config.topo) for key, *_ in of_kind(done, rank, Kind.FINISH))
    assert finished == ends
    # No replica can see it: each is in order by itself.
    assert (done.outcome.how, done.differences(), done.wrong_tokens(), done.integrity()) == ("done", [], [], [])


def test_a_global_message_that_misses_a_group_leaves_it_in_another_state() -> None:
    done = wrong("missed", Config(topo=DP2, workload=BLOCK))
    first, last = entries(DP2)
    assert [len(messages(done, rank, Msg.BLOCK)) for rank in (first, last)] == [1, 0]
    assert [len(messages(done, rank, Msg.UNBLOCK)) for rank in (first, last)] == [1, 1]

    def meanwhile(rank: int) -> int:
        began, ended = (BLOCK.block_at * 1_000_000, (BLOCK.block_at + BLOCK.block_for) * 1_000_000)
        events = done.outcome.events(rank)
        return sum(e[0] == Kind.RECV_MSG and e[5] == Msg.REQUEST and began + 2e6 < e[3] < ended for e in events)

    assert meanwhile(first) == 0
    assert meanwhile(last) > 0
    assert (done.outcome.how, done.differences(), done.wrong_tokens()) == ("done", [], [])


def test_a_control_message_to_all_arrives_twice_inside_a_group() -> None:
    """The sequences of messages part always; a run breaks only where the two deliveries come at different steps and the
    request was still there to be dropped."""
    config = Config(topo=Topology(2, 2, 2), workload=Workload(requests=30, aborts=60, gap=1))
    endings: Counter[str] = Counter()
    for seed in range(20):
        done = wrong("control_to_all", config.but(seed=seed + 1), seed)
        parted = done.differences()
        assert parted[0].stream == "message"
        assert {config.topo.place(rank).pp for rank in parted[0].ranks} == {0}
        assert done.wrong_tokens() == []
        endings[done.outcome.how] += 1
        aborts = [len(messages(done, rank, Msg.ABORT)) for rank in (0, 1)]
        assert aborts[1] > aborts[0] or done.outcome.how != "done"
    assert endings["done"] >= 15


def test_under_dp_attention_control_to_all_is_twice_in_the_other_groups_and_does_no_harm() -> None:
    config = Config(topo=Topology(2, 2, 3), workload=Workload(requests=20, aborts=100, gap=1), dp_attention=True)
    done = wrong("control_to_all", config)
    assert_sound(done)
    times = [len(messages(done, rank, Msg.ABORT)) for rank in entries(config.topo)]
    assert times == [20, 25, 25]


# -- DP attention ---------------------------------------------------------------------------------------------------


def test_groups_without_work_join_with_idle_batches_and_all_stop_together() -> None:
    config = Config(topo=Topology(2, 2, 3), workload=Workload(requests=7, gap=9), dp_attention=True)
    done = run(config)
    assert_sound(done)
    assert len({done.outcome.step(r) for r in range(config.topo.n)}) == 1
    idle = [len(of_kind(done, r, Kind.IDLE_BATCH)) for r in range(config.topo.n)]
    assert all(idle)
    by_step: dict[tuple[int, int], set[int]] = {}
    for rank in range(config.topo.n):
        stage = config.topo.place(rank).pp
        for e in done.outcome.events(rank):
            if e[0] == Kind.IDLE_BATCH:
                by_step.setdefault((stage, e[1]), set()).add(e[6])
    assert all(len(tokens) == 1 and min(tokens) > 0 for tokens in by_step.values())
    alone = run(config.but(dp_attention=False))
    assert not any(of_kind(alone, r, Kind.IDLE_BATCH) for r in range(config.topo.n))


def test_dp_attention_with_one_group_is_nothing() -> None:
    assert_sound(run(Config(workload=Workload(requests=8), dp_attention=True)))


# -- replay and failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dp_attention", [False, True])
def test_a_tape_repeats_the_run_under_another_schedule(dp_attention: bool) -> None:
    for n in range(4):
        config = varied(50 + n, dp_policy="total_requests", dp_attention=dp_attention)
        first = run(config, seed=1, preempt=3)
        again = run(config, seed=2, preempt=2, replay=first.tapes())
        assert_sound(again)
        assert first.controller is not None and again.controller is not None
        assert again.controller.misses == 0
        assert served(again) == served(first)
        for rank in range(config.topo.n):
            assert again.outcome.misses(rank) == 0
            assert streams(again.outcome.events(rank)) == streams(first.outcome.events(rank))


def test_a_tape_that_ends_early_is_followed_by_what_really_comes() -> None:
    config = Config(topo=DP2, workload=Workload(requests=30, turns=2, aborts=20), dp_policy="total_requests")
    first = run(config, seed=1)
    half = {r: [x for x in t if r == CONTROLLER or x[0][0] < 12] for r, t in first.tapes().items()}
    again = run(config, seed=2, replay=half)
    assert_sound(again)
    assert served(again) == served(first)


def test_a_group_that_dies_does_not_take_the_others_with_it() -> None:
    config = Config(topo=DP2, workload=Workload(requests=24), faults=FaultPlan(kill=((1, 6),)))
    done = run(config, cascade=True)
    assert done.outcome.how == "failed"
    assert {f.rank for f in done.outcome.failures} == {0, 1}
    assert sorted(done.results) == [2, 3]
    assert done.results[2]["outputs"].keys() == {rid for rid in range(24) if rid % 2}


def test_a_hang_is_still_exact_while_the_controller_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    from hicache_doctor.runtime.scheduler.scheduler import Scheduler

    monkeypatch.setattr(
        Scheduler, "profile_and_init_predictor", lambda self: self.world.recv(self.world.rank ^ 1, "sync", 1, "pp_sync")
    )
    outcome = run(Config(topo=DP2)).outcome
    assert outcome.how == "deadlock"
    assert [w.rank for w in outcome.waits if w.task == "main"] == [0, 1, 2, 3]
    assert all(w.rank >= 0 for w in outcome.waits)


def test_the_new_fields_survive_the_configuration_file() -> None:
    config = Config(workload=Workload(routed=30, block_at=4, block_for=9), dp_policy="total_tokens")
    assert config_file.from_json(config_file.to_json(config)) == config
