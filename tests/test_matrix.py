"""Every known incident gets the verdict that was written down before it was run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from hicache_doctor import matrix
from hicache_doctor.incident import Tools
from hicache_doctor.runtime import scenarios
from hicache_doctor.signatures.load import load
from hicache_doctor.signatures.matrix import Row, load_matrix

MATRIX = load_matrix()


@cache
def tools() -> Tools:
    return Tools.load()


def problems(row: Row, *starts: int) -> Iterator[str]:
    for outcome in matrix.run([row], starts=starts, tools=tools()):
        yield from outcome.problems


@pytest.mark.parametrize("row", MATRIX.rows, ids=lambda row: row.scenario)
def test_a_row_is_diagnosed_as_written(row: Row) -> None:
    assert list(problems(row, 0)) == []


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("row", MATRIX.rows, ids=lambda row: row.scenario)
def test_a_row_is_diagnosed_as_written_from_other_schedules(row: Row) -> None:
    assert list(problems(row, *matrix.STARTS[1:])) == []


def test_a_wrong_expectation_is_told() -> None:
    row = next(r for r in MATRIX.rows if r.scenario == "D")
    wrong = row.model_copy(update={"signature": "A1", "also": ["E"], "first_rank": "PP1 TP0"})
    (outcome,) = matrix.run([wrong], starts=[0], tools=tools())
    assert outcome.problems == [
        "signature D, not A1",
        "first rank PP0 TP0, not PP1 TP0",
        "E is not named beside it",
    ]
    assert "0 of 1" in matrix.table([outcome])


def test_every_scenario_has_a_row_and_every_signature_a_scenario_or_a_reason() -> None:
    assert [r.scenario for r in MATRIX.rows] == [s.name for s in scenarios.ALL_SCENARIOS]
    signatures = {r.id for r in load().rules.values() if r.kind == "signature"}
    made = {r.signature for r in MATRIX.rows} - {None}
    assert made | set(MATRIX.not_reproduced) == signatures
    assert made & set(MATRIX.not_reproduced) == set()


def test_real_rows_are_those_that_real_processes_show() -> None:
    real = {r.scenario for r in MATRIX.rows if r.real}
    assert real == {"A1", "A2", "A3", "B1", "B2", "C1", "C2", "D"}
    assert all(scenarios.BY_NAME[name].real for name in real)
    assert [r.scenario for r in matrix.chosen(MATRIX, "processes", ())] == [r.scenario for r in MATRIX.rows if r.real]
