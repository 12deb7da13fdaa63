"""The DP controller's decisions: who receives what, and what it believes about load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.errors import UsageError
from hicache_doctor.runtime.scheduler.dispatcher import (
    MISROUTE_EVERY,
    REFRESH_NS,
    Dispatcher,
    DPBudget,
    MessageClass,
    loads_of,
    vector_of,
)
from hicache_doctor.runtime.scheduler.load import Load, MemoryBoard
from hicache_doctor.runtime.world import Topology

GRID = Topology(pp_size=2, tp_size=2, dp_size=3)  # groups start at ranks 0, 4, 8


def groups(dispatcher: Dispatcher, n: int, tokens: int = 10) -> list[int]:
    return [dispatcher.request(tokens).groups[0] for _ in range(n)]


def test_requests_go_round_to_the_first_rank_of_each_group() -> None:
    d = Dispatcher(GRID)
    assert [d.request(5).ranks for _ in range(4)] == [(0,), (4,), (8,), (0,)]


def test_a_router_has_the_last_word_and_does_not_turn_the_wheel() -> None:
    d = Dispatcher(GRID)
    assert d.request(5, routed=2).groups == (2,)
    assert groups(d, 2) == [0, 1]
    assert d.budget.requests == [1, 1, 1]
    with pytest.raises(UsageError, match="there are 3 groups"):
        d.request(5, routed=3)


def test_follow_bootstrap_room() -> None:
    d = Dispatcher(GRID, "follow_bootstrap_room")
    assert [d.request(5, bootstrap_room=r).groups[0] for r in (7, 3, 7)] == [1, 0, 1]
    with pytest.raises(UsageError, match="no bootstrap room"):
        d.request(5)


def test_a_burst_between_two_snapshots_is_spread() -> None:
    board, d = MemoryBoard(3), Dispatcher(GRID, "total_requests")
    for g, requests in enumerate((5, 2, 4)):
        board.write(g, Load(1, requests, 0))
    for g, load in d.budget.refresh(board):
        assert d.budget.apply(g, load)
    assert groups(d, 6) == [1, 1, 1, 2, 0, 1]
    assert d.budget.refresh(board) == []  # the same stamps: the counting is kept
    assert not d.budget.apply(1, Load(1, 2, 0))
    assert d.budget.requests == [6, 6, 5]
    board.write(1, Load(2, 0, 0))
    assert d.budget.refresh(board) == [(1, Load(2, 0, 0))]


def test_total_tokens_counts_prompts() -> None:
    d = Dispatcher(GRID, "total_tokens")
    got = [d.request(n).groups[0] for n in (100, 10, 10, 10, 10, 95)]
    assert got == [0, 1, 2, 1, 2, 1]
    assert d.budget.tokens == [100, 115, 20]


@pytest.mark.parametrize("policy", ["total_requests", "total_tokens"])
@given(st.lists(st.integers(1, 50), max_size=80))
def test_no_group_is_more_than_one_request_ahead(policy: str, sizes: list[int]) -> None:
    d = Dispatcher(GRID, policy)
    for n in sizes:
        d.request(n)
    load = d.budget.requests if policy == "total_requests" else d.budget.tokens
    assert max(load) - min(load) <= (1 if policy == "total_requests" else 50)


def test_snapshots_are_read_every_20_ms_at_most() -> None:
    budget = DPBudget(2)
    assert [budget.due(t) for t in (5, 6, 5 + REFRESH_NS - 1, 5 + REFRESH_NS, 6 + REFRESH_NS)] == [
        True, False, False, True, False,
    ]  # fmt: skip


def test_control_messages_go_to_one_rank_of_each_tp_group() -> None:
    assert Dispatcher(GRID).control().ranks == (0, 4, 8)
    assert Dispatcher(GRID, dp_attention=True).control().ranks == (0,)
    assert Dispatcher(GRID, dp_attention=True, local_control_broadcast=True).control().ranks == (0, 4, 8)
    for attention in (False, True):
        assert Dispatcher(GRID, dp_attention=attention).workers().ranks == (0, 4, 8)


def test_dispatch_is_the_three_of_them() -> None:
    d = Dispatcher(GRID, dp_attention=True)
    assert d.dispatch(MessageClass.GENERATE, 7, routed=1).ranks == (4,)
    assert d.dispatch(MessageClass.WORKERS).ranks == (0, 4, 8)
    assert d.dispatch(MessageClass.CONTROL).ranks == (0,)


@pytest.mark.parametrize(
    ("fault", "kind", "wrong", "right"),
    [
        ("twice", MessageClass.GENERATE, (0, 4), (4,)),
        ("missed", MessageClass.WORKERS, (0, 4), (0, 4, 8)),
        ("control_to_all", MessageClass.CONTROL, (0, 4, 8), (0,)),
    ],
)
def test_misrouting(fault: str, kind: MessageClass, wrong: tuple[int, ...], right: tuple[int, ...]) -> None:
    d = Dispatcher(GRID, misroute=fault, dp_attention=True)
    got = [d.dispatch(kind) for _ in range(MISROUTE_EVERY + 1)]
    assert [g.misrouted for g in got] == [True, False, False, False, True]
    assert (got[0].ranks, got[1].ranks) == (wrong, right)
    clean = Dispatcher(GRID, misroute=fault, dp_attention=True)
    assert not any(clean.dispatch(k).misrouted for k in MessageClass if k is not kind)


def test_control_to_all_without_dp_attention_reaches_the_whole_first_stage() -> None:
    assert Dispatcher(GRID, misroute="control_to_all").control().ranks == (0, 1, 4, 5, 8, 9)


def test_unknown_words_are_refused() -> None:
    with pytest.raises(UsageError, match="policies are round_robin"):
        Dispatcher(GRID, "shortest_queue")
    with pytest.raises(UsageError, match="values are twice, missed"):
        Dispatcher(GRID, misroute="thrice")


def test_loads_pass_through_observe_as_one_vector() -> None:
    loads = [(0, Load(4, 5, 6)), (2, Load(7, 8, 9))]
    assert loads_of(vector_of(loads)) == loads
    assert loads_of(()) == []
