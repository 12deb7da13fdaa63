"""Each scenario's form is found by the simulation within its seeds, and is gone once its repairs are on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hicache_doctor.probes.kinds import Kind
from hicache_doctor.runtime import sim_run
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.fixes import ALL, Fix
from hicache_doctor.runtime.scenarios import ALL_SCENARIOS, BY_NAME, FORMS, Scenario
from hicache_doctor.runtime.sim_run import SimRun
from tests.runtime.draws import wrong

RELEASED = {"A2": Fix.HOST_CAPACITY, "B1": Fix.HOST_CAPACITY, "F": Fix.HOST_CAPACITY}
"""Rows that stand on a release as it was: the repair that it lacks."""
BEFORE = 3
"""Streams part in this many of the first seeds, where the form itself may take more."""


def found(scenario: Scenario) -> tuple[int, SimRun]:
    for seed in range(scenario.seed, scenario.seed + scenario.seeds):
        run = sim_run.run(scenario.configured(seed), seed=seed)
        if scenario.shows(run):
            return seed, run
    pytest.fail(f"{scenario.name}: not found in {scenario.seeds} seeds")


def repaired(scenario: Scenario, config: Config) -> Config:
    if scenario.name in RELEASED:
        return config.but(fixes=config.fixes.plus(RELEASED[scenario.name]))
    if scenario.base == "beat":
        return config.but(fixes=ALL)
    return config.but(fixes=config.fixes.plus(*scenario.off), backup_acks="agreed")


@pytest.mark.parametrize("scenario", ALL_SCENARIOS, ids=lambda s: s.name)
def test_it_is_found_and_its_repair_ends_it(scenario: Scenario) -> None:
    seed, run = found(scenario)
    # A leak of handles alone leaves every decision as it was.
    assert FORMS["clean"](scenario, run) is (scenario.form in ("clean", "leak"))
    config = run.config
    assert wrong(sim_run.run(repaired(scenario, config), seed=seed)) == []
    assert wrong(sim_run.run(repaired(scenario, config).but(fixes=ALL), seed=seed)) == []


@pytest.mark.parametrize("name", ["A1", "A2", "A3", "A4", "A5", "A7", "A9", "B1", "B2", "beat"])
def test_streams_part_before_it_crashes(name: str) -> None:
    """A crash is a poor oracle: the streams differ first, and in runs that do not crash at all."""
    scenario = BY_NAME[name]
    _, run = found(scenario)
    first = run.differences()[0]
    assert first.step <= min(run.outcome.step(f.rank) for f in run.outcome.failures)
    seeds = range(scenario.seed, scenario.seed + BEFORE)
    assert all(sim_run.run(scenario.configured(seed), seed=seed).differences() for seed in seeds)


def test_unwaited_sends_pile_up_only_without_the_repair() -> None:
    scenario = BY_NAME["D"]
    _, leaking = found(scenario)
    tight = sim_run.run(repaired(scenario, leaking.config), seed=0)

    def held(run: SimRun) -> int:
        return max(event[5] for event in run.outcome.events(0) if event[0] == Kind.SENDS_HELD)

    assert held(leaking) > 100 and held(tight) <= 4


def test_names_are_unique_and_every_switch_that_is_off_was_on() -> None:
    assert len(BY_NAME) == len(ALL_SCENARIOS)
    for scenario in ALL_SCENARIOS:
        assert scenario.form in FORMS
        assert not any(fix in scenario.fixed() for fix in scenario.off)
        assert scenario.says and not scenario.says.endswith(".")
        plan = scenario.configured(4).faults
        assert plan.seed == 5 and replace(plan, seed=1) == replace(scenario.config.faults, seed=1)
