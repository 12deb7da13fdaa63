"""The whole protocol is a function of its seeds: on any Python, with any hash seed; and its schedules replay."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hicache_doctor.runtime import sim_run
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.scenarios import BY_NAME
from hicache_doctor.runtime.world import Topology
from tests.runtime.full import lines
from tests.runtime.test_simulation_replay import ROOT, pythons

NEEDS = "greenlet, pydantic, yaml, packaging"


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return list(lines())


def printed(python: str, hash_seed: str) -> list[str]:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [python, "-m", "tests.runtime.full"]
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, check=True, text=True).stdout.splitlines()


@pytest.mark.parametrize("hash_seed", ["0", "random"])
def test_no_hash_seed_changes_a_run(hash_seed: str, expected: list[str]) -> None:
    assert printed(sys.executable, hash_seed) == expected


def test_no_python_version_changes_a_run(expected: list[str]) -> None:
    others = pythons(NEEDS)[1:]
    if not others:
        pytest.skip(f"no other Python with {NEEDS} on the PATH or in HICACHE_DOCTOR_PYTHONS")
    for python in others:
        assert printed(python, "random") == expected, python


def test_another_seed_is_another_schedule_of_the_same_decisions() -> None:
    config = Config(topo=Topology(pp_size=2, tp_size=2))
    runs = [sim_run.run(config, seed=seed, preempt=10) for seed in (1, 2)]
    assert runs[0].outcome.digest() != runs[1].outcome.digest()
    assert runs[0].results[0]["outputs"] == runs[1].results[0]["outputs"]


@pytest.mark.parametrize("name", ["A1", "B1", "C1"])
def test_a_failure_replays_from_its_choices(name: str) -> None:
    config = BY_NAME[name].configured(5)
    first = sim_run.run(config, seed=5)
    again = sim_run.run(config, seed=5, choices=first.outcome.choices)
    assert (again.outcome.how, again.outcome.digest()) == (first.outcome.how, first.outcome.digest())


def test_a_tape_of_all_ranks_repeats_every_decision_under_another_schedule() -> None:
    config = BY_NAME["A1"].configured(5)
    first = sim_run.run(config, seed=5)
    again = sim_run.run(config, seed=77, replay=first.tapes())
    assert [(f.rank, str(f.error)) for f in again.outcome.failures] == [
        (f.rank, str(f.error)) for f in first.outcome.failures
    ]
    assert [str(d) for d in again.differences()[:1]] == [str(d) for d in first.differences()[:1]]
