"""How fast the simulation runs the runtime: three grids, with and without L3, and growth with history.

Figures are CPU time of this machine; compare the ratios.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hicache_doctor.runtime import sim_run
from hicache_doctor.runtime.config import Config, ModelShape
from hicache_doctor.runtime.workload import Workload
from hicache_doctor.runtime.world import Topology

GRIDS = ((2, 1), (4, 2), (8, 8))
GOALS = {None: 6000, "memory": 3000}
LONG = Workload(requests=4000, prefixes=60, prefix=40, suffix=24, gap=9)
SHAPE = ModelShape(layers=16, heads=8)
MIX = Workload(requests=150, prefixes=10, prefix=48, suffix=16, gap=2)


def main() -> int:
    """Measure and print; always 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    simulation(options.repeats)
    growth()
    return 0


def simulation(repeats: int) -> None:
    """Rank-steps a second of one core, all switches on."""
    print(f"{'grid':8} {'L3':8} {'rank-steps/s':>14} {'goal':>8}  switches a rank-step")
    for pp, tp in GRIDS:
        for l3 in (None, "memory"):
            config = Config(topo=Topology(pp_size=pp, tp_size=tp), workload=MIX, l3=l3, model=SHAPE)
            rates, switches = [], 0.0
            for _ in range(repeats):
                start = time.process_time()
                run = sim_run.run(config)
                rates.append(run.steps / (time.process_time() - start))
                switches = run.outcome.switches / run.steps
            best = max(rates)
            print(f"{pp}x{tp:<6} {l3 or 'none':8} {best:14,.0f} {GOALS[l3]:8,}  {switches:.1f}")


def growth() -> None:
    """Steps a second early and late in one long run: cost must not grow with the tree or with history."""
    marks: list[tuple[int, float]] = []
    config = Config(workload=LONG, steps=30_000, device_pages=2000, host_pages=6000)
    from hicache_doctor.runtime.simulation import SimWorld

    tick = SimWorld.tick

    def timed(self: SimWorld, step: int) -> None:
        if self.rank == 0 and step % 1000 in (100, 0):
            marks.append((step, time.process_time()))
        tick(self, step)

    SimWorld.tick = timed  # type: ignore[method-assign]
    try:
        run = sim_run.run(config, keep_events=False)
    finally:
        SimWorld.tick = tick  # type: ignore[method-assign]
    at = dict(marks)
    last = max(s for s in at if s % 1000 == 0)
    early = 2 * 900 / (at[1000] - at[100])
    late = 2 * 900 / (at[last] - at[last - 900])
    print(
        f"history: {early:,.0f} rank-steps/s from step 100, {late:,.0f} up to step {last:,}: ratio {late / early:.2f}"
    )
    assert run.outcome.how == "done"


if __name__ == "__main__":
    raise SystemExit(main())
