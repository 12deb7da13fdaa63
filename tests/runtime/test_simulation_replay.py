"""The same seed is the same run: on any Python, with any hash seed; and a schedule can be replayed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hicache_doctor.runtime.sim_kernel import Chooser
from hicache_doctor.runtime.sim_outcome import Outcome
from hicache_doctor.runtime.simulation import Simulation
from hicache_doctor.runtime.world import Topology
from tests.runtime.toy import FAULTS, outcomes, toy

ROOT = Path(__file__).resolve().parents[2]


def facts(outcome: Outcome) -> tuple[Any, ...]:
    return outcome.how, outcome.time, outcome.switches, outcome.digest()


def test_the_same_seed_is_the_same_run_and_another_seed_another() -> None:
    topo = Topology(pp_size=2, tp_size=2)
    runs = [Simulation(topo, toy, seed=seed, preempt=4, faults=FAULTS).run() for seed in (1, 1, 2)]
    assert facts(runs[0]) == facts(runs[1])
    assert runs[0].digest() != runs[2].digest()


def test_logged_choices_replay_the_schedule() -> None:
    topo = Topology(pp_size=2, tp_size=2)
    first = Simulation(topo, toy, seed=9, preempt=4).run()
    assert any(first.choices)
    again = Simulation(topo, toy, seed=9, preempt=4, choices=first.choices).run()
    assert facts(again) == facts(first)
    assert again.choices == first.choices
    tame = Simulation(topo, toy, seed=9, preempt=4, choices=[]).run()
    assert not any(tame.choices)
    assert tame.digest() != first.digest()
    wild = Simulation(topo, toy, seed=9, preempt=4, choices=[99] * 50).run()
    assert facts(Simulation(topo, toy, seed=9, preempt=4, choices=wild.choices).run()) == facts(wild)


def test_a_caller_can_bring_a_chooser() -> None:
    class Last(Chooser):
        def pick(self, n: int) -> int:
            self.log.append(n - 1)
            return n - 1

    order: list[int] = []
    outcome = Simulation(Topology(pp_size=3), lambda w: order.append(w.rank), choices=Last()).run()
    assert (order, outcome.choices) == ([2, 1, 0], [2, 1])


def pythons(needs: str = "greenlet") -> list[str]:
    """This interpreter and the others that are named or on the PATH and have what is needed."""
    named = os.environ.get("HICACHE_DOCTOR_PYTHONS", "").split(os.pathsep)
    found = [path for minor in range(10, 16) if (path := shutil.which(f"python3.{minor}"))]
    probe = f"import {needs}, sys; assert sys.version_info >= (3, 10)"
    good = [sys.executable]
    for path in dict.fromkeys(filter(None, [*named, *found])):
        if subprocess.run([path, "-c", probe], capture_output=True, check=False).returncode == 0:
            good.append(path)
    return good


def printed(python: str, hash_seed: str) -> str:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [python, "-m", "tests.runtime.toy"]
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, check=True, text=True).stdout


EXPECTED = "\n".join(f"{o.how} {o.time} {o.switches} {o.digest()}" for o in outcomes()) + "\n"


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_no_hash_seed_changes_a_digest(hash_seed: str) -> None:
    assert printed(sys.executable, hash_seed) == EXPECTED


def test_no_python_version_changes_a_digest() -> None:
    others = pythons()[1:]
    if not others:
        pytest.skip("no other Python with greenlet on the PATH or in HICACHE_DOCTOR_PYTHONS")
    assert {python: printed(python, "random") for python in others} == dict.fromkeys(others, EXPECTED)
