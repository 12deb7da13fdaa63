"""Runs of the whole protocol in the simulation, printed: the same lines on every Python and with every hash seed."""

from __future__ import annotations

from collections.abc import Iterator

from hicache_doctor.runtime import mixes, sim_run
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.scenarios import BY_NAME
from hicache_doctor.runtime.sim_run import SimRun
from hicache_doctor.runtime.world import Topology
from tests.runtime.draws import draw


def runs() -> Iterator[tuple[str, SimRun]]:
    """Every way of scheduling once, draws with their faults, and runs that fail."""
    for i, name in enumerate(("shared", "turns", "gone", "dynamic", "back", "planned")):
        config = mixes.apply(Config(topo=Topology(pp_size=2, tp_size=1 + i % 2), l3="memory"), name)
        yield name, sim_run.run(config, seed=i, preempt=10)
    for number in (1, 2, 3):
        yield f"draw {number}", draw(number).run()
    for name in ("A1", "A3", "B1", "C1", "G"):
        yield name, sim_run.run(BY_NAME[name].configured(5), seed=5, cascade=name == "A1")


def lines() -> Iterator[str]:
    """How each ended: outcome, virtual time, switches, digest of all events, where streams first part."""
    for name, run in runs():
        out = run.outcome
        yield f"{name}: {out.how} {out.time} {out.switches} {out.digest()} {run.differences()[:1]}"


if __name__ == "__main__":
    print("\n".join(lines()))
