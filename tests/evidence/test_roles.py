"""Who failed first: the order of proof, whatever the clocks say."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.evidence import places, roles
from hicache_doctor.evidence.rows import ExceptionRow, Frame, LogRecord, Row, Stack
from hicache_doctor.evidence.store import Store
from tests.evidence.filled import log, raised, store

OWN = "IndexError: pop from empty list"
PEER = "RuntimeError: Connection closed by peer [10.0.0.2]:1"
LATE = "RuntimeError: Timed out waiting 1800000ms for recv operation to complete"
WITNESS = {
    "own": lambda rank, ts: raised(rank, OWN, "own", ts),
    "native": lambda rank, ts: log("fatal_python", rank, 1, ts, what="Segmentation fault"),
    "timeout": lambda rank, ts: raised(rank, LATE, "timeout", ts),
    "peer_closed": lambda rank, ts: raised(rank, PEER, "peer_closed", ts),
    "signal": lambda rank, ts: raised(rank, "KeyboardInterrupt", "signal", ts),
}


def derived(s: Store) -> list[tuple[str | None, str, str]]:
    places.derive(s, [], [])
    roles.derive(s)
    return [(r["rank"], r["proof"], r["role"]) for r in s.rows("SELECT * FROM rank_role ORDER BY position")]


def roles_of(rows: list[Row]) -> list[tuple[str | None, str, str]]:
    with store(rows) as s:
        return derived(s)


def test_the_order_of_proof() -> None:
    ranked = roles_of([make(f"PP{i}", 5.0 - i) for i, make in enumerate(WITNESS.values())])
    assert [proof for _, proof, _ in ranked] == ["own", "native", "timeout", "peer_closed", "signal"]
    assert [role for _, _, role in ranked] == ["first", "victim", "victim", "victim", "victim"]


@pytest.mark.parametrize("pair", list(permutations(WITNESS, 2)))
@pytest.mark.parametrize("skew", [-86400.0, 86400.0])
def test_between_classes_the_clocks_do_not_matter(pair: tuple[str, str], skew: float) -> None:
    ranked = roles_of([WITNESS[pair[0]]("PP0", 1000.0), WITNESS[pair[1]]("PP1", 1000.0 + skew)])
    assert [proof for _, proof, _ in ranked] == sorted(pair, key=roles.ORDER.index)


@pytest.mark.parametrize("proof", ["own", "native"])
def test_within_a_class_the_earlier_one_stands_first(proof: str) -> None:
    ranked = roles_of([WITNESS[proof]("PP0", 2.0), WITNESS[proof]("PP1", 1.0), WITNESS[proof]("PP2", None)])
    assert [rank for rank, _, _ in ranked] == ["PP1", "PP0", "PP2"]
    assert {role for _, _, role in ranked} == {"first"}


@pytest.mark.parametrize(("proof", "role"), [("timeout", "unknown"), ("peer_closed", "victim"), ("signal", "victim")])
def test_without_a_cause_nobody_is_first(proof: str, role: str) -> None:
    assert [r for _, _, r in roles_of([WITNESS[proof]("PP0", 1.0)])] == [role]


def test_a_rank_counts_by_its_strongest_proof() -> None:
    rows: list[Row] = [raised("PP0", PEER, "peer_closed", 1.0, line=1), raised("PP0", OWN, "own", 2.0, line=9)]
    with store(rows) as s:
        assert derived(s) == [("PP0", "own", "first")]
        said = s.rows("SELECT line, role FROM exception ORDER BY line")
    # AND its other exception is that of a victim
    assert said == [{"line": 1, "role": "victim"}, {"line": 9, "role": "first"}]


def test_what_the_analyser_raised_counts_for_nothing() -> None:
    assert roles_of([raised("PP0", "KeyError: _pg_guids[1]", "analyser"), raised("PP1", "", "own")]) == []


@pytest.mark.parametrize(
    "row",
    [
        log("nccl_timeout", "PP1"),
        log("watchdog_timeout", "PP1"),
        log("gloo_timeout", "PP1"),
        LogRecord("a", 1, 1, 0, 1.0, "PP1", "nccl_pg_status", {}, "failure detected by watchdog at work sequence id"),
    ],
)
def test_time_out_lines_are_witnesses(row: LogRecord) -> None:
    assert roles_of([row]) == [("PP1", "timeout", "unknown")]


def _nameless(served: bool, frames: list[str]) -> list[Row]:
    rows: list[Row] = [
        ExceptionRow("a.log", 9, 9, 0, 1.0, None, "IndexError", "pop from empty list", "s", "own"),
        Stack("s", "a.log", 1, 9, None, 1.0, None, None, "traceback", None, True, None),
        *[Frame("s", i, None, name, "x.py", 1, 2 + i) for i, name in enumerate(frames)],
    ]
    return rows + [log("scheduler_exception", "PP0")] * served


@pytest.mark.parametrize(
    ("served", "frames", "counts"),
    [
        (True, ["generate_request"], False),  # the tokenizer manager's, beside a scheduler's
        (True, ["writing_check"], True),
        (False, ["generate_request"], True),
    ],
)
def test_an_exception_without_a_rank(served: bool, frames: list[str], counts: bool) -> None:
    table = [places.PlaceRule("ack_pop", "none", True, any=["writing_check"])]
    with store(_nameless(served, frames)) as s:
        places.derive(s, table, [])
        roles.derive(s)
        assert bool(s.rows("SELECT * FROM rank_role WHERE rank IS NULL")) == counts


@given(st.lists(st.tuples(st.sampled_from(list(WITNESS)), st.one_of(st.none(), st.floats(0, 1e10))), max_size=6))
def test_first_ranks_are_those_of_the_strongest_class(witnesses: list[tuple[str, float | None]]) -> None:
    ranked = roles_of([WITNESS[proof](f"PP{i}", ts) for i, (proof, ts) in enumerate(witnesses)])
    first = [proof for _, proof, role in ranked if role == "first"]
    strongest = min((proof for proof, _ in witnesses), key=roles.ORDER.index, default="signal")
    expected = [proof for proof, _ in witnesses if proof == strongest and strongest in {"own", "native"}]
    assert first == expected
