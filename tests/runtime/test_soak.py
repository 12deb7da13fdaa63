"""With every repair on, no fault of the outside makes ranks decide differently, lose a page or say another token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hicache_doctor.runtime import sim_run
from hicache_doctor.runtime.config import Config, ModelShape
from hicache_doctor.runtime.faults import FaultPlan, Refuse
from hicache_doctor.runtime.fixes import ALL, Fix
from hicache_doctor.runtime.workload import Workload
from hicache_doctor.runtime.world import Topology
from tests.runtime.draws import draw, wrong

BIG = ((8, 8), (4, 8), (2, 8), (1, 8), (8, 4), (8, 2))


def soak(first: int, rank_steps: int, grids: tuple[tuple[int, int], ...] | None = None) -> int:
    """Draw after draw until so many rank-steps went well; how many did."""
    done, number = 0, first
    while done < rank_steps:
        drawn = draw(number, grids)
        run = drawn.run()
        assert not wrong(run), (wrong(run), drawn)
        done += run.steps
        number += 1
    return done


@pytest.mark.parametrize("first", [0, 10_000, 20_000, 30_000])
def test_forty_thousand_rank_steps(first: int) -> None:
    assert soak(first, 10_000) >= 10_000


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(100_000, 120_000, 2000))
def test_three_hundred_thousand_rank_steps(first: int) -> None:
    assert soak(first, 24_000) + soak(first, 6_000, BIG) >= 30_000


# -- what a soak has found ----------------------------------------------------------------------------------------

TALK = Workload(requests=20)
CROWD = Workload(requests=120, gap=0, new_tokens=20)
FOUND = {
    "no room to measure chunks in: every stage falls back": Config(
        dynamic_chunking=True, device_pages=18, workload=Workload(requests=10, prefix=24, suffix=8)
    ),
    "the ranks of a forward are those of a stage, context-parallel ones too": Config(
        topo=Topology(cp_size=2), workload=TALK
    ),
    "and with tensor parallelism": Config(
        topo=Topology(pp_size=2, tp_size=2, cp_size=2), workload=TALK, model=ModelShape(kind="mla"), l3="memory"
    ),
    "a load back that finds no room on the leader has evicted, so followers look as far as it did": Config(
        scheduler="planned", chunk_tokens=16, workload=TALK, model=ModelShape(layers=8, heads=8)
    ),
    "a plan is as long as the batch that it tells of": Config(
        scheduler="planned", max_running=32, device_pages=600, host_pages=900, workload=CROWD
    ),
    "clients that went away after the agreement take no seat in the next one": Config(
        disaggregation="prefill", workload=Workload(requests=200, gap=0, aborts=90, prefixes=30)
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_repaired(name: str) -> None:
    for seed in (0, 336):
        run = sim_run.run(FOUND[name], seed=seed)
        assert wrong(run) == []


def test_the_check_sees_what_a_missing_repair_does() -> None:
    late = Config(fixes=ALL.without(Fix.ALLOCATION), faults=FaultPlan(refuse=(Refuse("load", 1, 1, -1, 4),)))
    assert any(wrong(sim_run.run(late.but(seed=seed), seed=seed)) for seed in range(4))
    stopped = sim_run.run(Config(steps=9))
    assert stopped.outcome.how == "done", "results under way are taken when the budget ends"
    assert wrong(stopped) == ["the run was stopped by its budget of steps"]
    short = sim_run.run(Config(workload=TALK))
    short.requests[3] = replace(short.requests[3], new_tokens=99)
    assert any("ended early" in said for said in wrong(short))
