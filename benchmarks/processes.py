"""Real processes: what the runtime costs beside its wire, and what the recorder costs beside the runtime (needs torch).

    python benchmarks/processes.py [--repeats 5] [--pairs 10]

1. Steps a second of the whole runtime beside a replay of exactly its gloo operations, the model's included, and nothing
   else. The null model computes nothing here; the transformer really computes, so for it the largest costs are shown.
2. The recorder: events a step times the cost of an event, over the time of a step; and beside it the same runs with and
   without it, interleaved, with the smallest effect that so many pairs could have shown.

Wall time of this machine, other work included: compare the ratios.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import recorder
from hicache_doctor.runtime import ring_events
from hicache_doctor.runtime.config import Config, ModelShape
from hicache_doctor.runtime.launch import Launcher
from hicache_doctor.runtime.workload import Workload
from hicache_doctor.runtime.world import Topology

GRIDS = ((2, 1), (2, 2), (4, 1))
MODELS = ("null", "mha")
BUSY = Workload(requests=240, prefixes=10, prefix=48, suffix=16, gap=0)
SHARE_GOAL, COST_GOAL = 0.7, 0.01
POWER = 2.8
"""Standard errors of the smallest effect that is seen four times of five when chance is allowed one in twenty."""


@dataclass(frozen=True)
class Loop:
    """One run: seconds a step, steps, batches a step, wire operations and events a step of the busiest rank."""

    step: float
    steps: int
    batches: float
    events: float
    rings: Path


class Bench:
    """Runs in one launcher, each in a folder of its own."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self._launcher = launcher
        self._folder = folder
        self._count = 0

    def results(self, config: Config, main: str) -> tuple[list[dict[str, Any]], Path]:
        """What each rank returned, and the folder of the run."""
        self._count += 1
        out = self._folder / str(self._count)
        report = self._launcher.run(config, out, main=f"benchmarks.rank_mains:{main}")
        assert report.outcome == "done", (main, report.outcome, report.ranks)
        return [r.result or {} for r in report.ranks], out

    def loop(self, config: Config, main: str = "whole") -> Loop:
        """The runtime, once."""
        ranks, out = self.results(config, main)
        first = ranks[0]
        steps = first["steps"]
        events = max(map(len, ring_events.read(out / "rings", config.topo.n).values()))
        return Loop(first["loop_ns"] / 1e9 / steps, steps, first["batches"] / steps, events / steps, out / "rings")

    def bare(self, config: Config, like: Loop) -> tuple[float, float]:
        """Seconds a step of that loop's wire operations alone, and how many of them rank 0 does in a step."""
        ranks, _ = self.results(config.but(l3_path=str(like.rings)), "bare")
        return ranks[0]["loop_ns"] / 1e9 / like.steps, ranks[0]["operations"] / like.steps


def share(bench: Bench, config: Config, name: str, repeats: int) -> Loop:
    """Print a row of the first table; returns the median run."""
    loops, ratios, operations = [], [], 0.0
    for _ in range(repeats):
        ours = bench.loop(config)
        wire, operations = bench.bare(config, ours)
        loops.append(ours)
        ratios.append(wire / ours.step)
    median = sorted(loops, key=lambda x: x.step)[len(loops) // 2]
    ratio = statistics.median(ratios)
    goal = "" if config.model.kind != "null" else ("  met" if ratio >= SHARE_GOAL else "  MISSED")
    print(
        f"{name:14} {1 / median.step:9.0f} {1 / median.step / ratio:9.0f} {ratio:6.2f} "
        f"{min(ratios):5.2f}-{max(ratios):4.2f} {operations:8.1f} {median.batches:8.2f}{goal}"
    )
    return median


def largest_costs(bench: Bench, config: Config) -> str:
    """The three functions with most time of their own, over all ranks."""
    ranks, _ = bench.results(config, "profiled")
    costs: dict[str, float] = {}
    for rank in ranks:
        for name, seconds in rank["costs"].items():
            costs[name] = costs.get(name, 0) + seconds
    total = sum(rank["total"] for rank in ranks)
    top = sorted(costs.items(), key=lambda x: -x[1])[:3]
    return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in top)


def recorder_effect(bench: Bench, config: Config, pairs: int) -> tuple[float, float]:
    """How much longer a step takes with the recorder, and the smallest such effect that the pairs could have shown."""
    effects = []
    for n in range(pairs):
        order = ("whole", "unrecorded") if n % 2 else ("unrecorded", "whole")
        took = {main: bench.loop(config, main).step for main in order}
        effects.append(took["whole"] / took["unrecorded"] - 1)
    return statistics.mean(effects), POWER * statistics.stdev(effects) / math.sqrt(pairs)


def main() -> int:
    """Measure and print; always 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=10)
    options = parser.parse_args()
    with Launcher() as launcher, tempfile.TemporaryDirectory() as name:
        bench = Bench(launcher, Path(name))
        medians: dict[str, tuple[Config, Loop]] = {}
        print(f"{'grid, model':14} {'steps/s':>9} {'bare':>9} {'share':>6} {'range':>10} {'ops/step':>8} batches/step")
        for pp, tp in GRIDS:
            for kind in MODELS:
                config = Config(topo=Topology(pp_size=pp, tp_size=tp), workload=BUSY, model=ModelShape(kind=kind))
                row = f"pp{pp} tp{tp} {kind}"
                medians[row] = (config, share(bench, config, row, options.repeats))
        for row, (config, _) in medians.items():
            print(f"largest costs, {row}: {largest_costs(bench, config)}")
        ns = min(recorder.hot_path(Path(name), 20)["recorder"])
        print(f"\nrecorder: {ns:.0f} ns an event")
        print(f"{'grid, model':14} {'events/step':>11} {'cost':>7} {'A/B':>8} smallest that could be seen")
        for row, (config, loop) in medians.items():
            cost = loop.events * ns / 1e9 / loop.step
            effect, smallest = recorder_effect(bench, config, options.pairs)
            verdict = f"goal {COST_GOAL:.0%}: {'met' if cost <= COST_GOAL else 'MISSED'}"
            print(f"{row:14} {loop.events:11.1f} {cost:7.2%} {effect:+8.2%} {smallest:24.2%}  {verdict}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
