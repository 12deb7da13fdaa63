"""Configurations by seed for soaks, and what must hold of a run with all repairs on, whatever its faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hicache_doctor.runtime import sim_run
from hicache_doctor.runtime.config import Config, ModelShape
from hicache_doctor.runtime.faults import CopyLag, FaultPlan, LostKeys, Outage, Refuse
from hicache_doctor.runtime.sim_run import SimRun
from hicache_doctor.runtime.workload import Workload
from hicache_doctor.runtime.world import Rand, Topology, mix

T = TypeVar("T")
MS = 1_000_000


class Dice:
    """Choices by seed, the same on every Python version."""

    def __init__(self, seed: int) -> None:
        self.rand = Rand(mix(seed, 0x50AC))

    def of(self, *options: T) -> T:
        return options[self.rand.below(len(options))]

    def below(self, n: int) -> int:
        return self.rand.below(n)


@dataclass(frozen=True)
class Draw:
    """One run to make: ``repr`` is what one needs to make it again."""

    number: int
    config: Config
    preempt: int

    def run(self) -> SimRun:
        return sim_run.run(self.config, seed=self.number, preempt=self.preempt)


def draw(number: int, grids: Sequence[tuple[int, int]] | None = None) -> Draw:
    """The ``number``-th configuration: any grid (or one of ``grids``), any policy, a handful of faults at once."""
    dice = Dice(number)
    if grids is None:
        pp, tp = dice.of(1, 2, 2, 3, 4, 8), dice.of(1, 1, 2, 4)
    else:
        pp, tp = grids[dice.below(len(grids))]
    cp = dice.of(1, 1, 1, 2) if pp * tp <= 4 and grids is None else 1
    ranks = pp * tp * cp
    planned = pp > 1 and dice.below(5) == 0
    workload = Workload(
        requests=dice.of(20, 40, 40, 120),
        prefixes=dice.of(2, 6, 14),
        prefix=dice.of(20, 60),
        suffix=dice.of(4, 40),
        turns=dice.of(1, 1, 3),
        aborts=dice.of(0, 0, 20, 60),
        gap=dice.of(0, 2, 6),
        new_tokens=dice.of(6, 6, 20),
    )
    l3 = dice.below(10) < 6
    waiting = dice.of(0, 0, 8 * MS, 4 * MS)
    config = Config(
        topo=Topology(pp_size=pp, tp_size=tp, cp_size=cp),
        workload=workload,
        seed=dice.below(1000),
        model=ModelShape(layers=max(pp, dice.of(8, 11)), heads=8),
        tree=dice.of("hiradix", "unified"),
        page_size=dice.of(4, 4, 1, 8),
        device_pages=dice.of(60, 96, 200, 600),
        host_pages=dice.of(40, 120, 300),
        host_bytes=dice.of(0, 0, 400_000),
        write_policy=dice.of("write_through", "write_through", "write_through_selective", "write_back"),
        load_back_quota=dice.of(0, 0, 24),
        max_running=dice.of(8, 8, 2, 32),
        chunk_tokens=dice.of(16, 64),
        l3="memory" if l3 else None,
        prefetch_policy=dice.of("timeout", "wait_complete", "best_effort"),
        prefetch_timeout_base=dice.of(MS, 2000 * MS),
        scheduler="planned" if planned else "replicated",
        disaggregation="prefill" if not planned and dice.below(5) == 0 else "null",
        waiting_timeout=waiting,
        running_timeout=dice.of(0, 0, 20 * MS),
        steps=20_000,
        faults=_faults(dice, number, pp, ranks, planned=planned),
    )
    if dice.below(5) == 0:
        config = config.but(dynamic_chunking=True, workload=replace(workload, prefix=150))
    return Draw(number, config, dice.of(0, 10))


def _faults(dice: Dice, seed: int, pp: int, ranks: int, *, planned: bool) -> FaultPlan:
    def stage() -> int:
        return dice.below(pp)

    def rank() -> int:
        return dice.below(ranks)

    refuse = (Refuse(dice.of("write", "load"), dice.below(6), stage(), -1, 3),)
    return FaultPlan(
        seed=seed,
        copy_lag=dice.of((), (CopyLag(stage(), 1 + dice.below(8), dice.of("write", "load"), every=dice.of(1, 3)),)),
        slow_copy=dice.of((), ((stage(), 10),)),
        # A plan's leader decides alone, so a follower that has no room where the leader has may only stop.
        refuse=() if planned else dice.of((), refuse),
        clock_skew=dice.of((), ((rank(), 50 * MS),)),
        clock_jump=dice.of((), ((rank(), 5 * MS, 20),)),
        lag_stage=dice.of((), ((stage(), 500_000),)),
        batch_full=dice.of((), ((rank(), 0, 1000),)),
        lost_keys=dice.of((), (), (LostKeys(stage(), 3, when=dice.of("get", "exists")),)),
        outages=dice.of((), (), (Outage(10, 60, dice.of(-1, stage())),)),
        slow_l3=dice.of((), (), ((stage(), 20),)),
        restart_l3=dice.of(-1, -1, 40),
    )


def wrong(run: SimRun) -> list[str]:
    """What is not as it must be with every repair on; empty when all is well."""
    out = run.outcome
    if out.how != "done":
        errors = [f"rank {f.rank} {f.task}: {f.error!r}" for f in out.failures]
        waits = [f"rank {w.rank} {w.task} waits for {w.why}" for w in out.waits if w.task == "main"]
        return [f"the run ended as {out.how}", *errors, *waits]
    if max(result["steps"] for result in run.results.values()) >= run.config.steps:
        return ["the run was stopped by its budget of steps"]
    said = [str(d) for d in run.differences()[:3]]
    said += run.integrity()[:5]
    tokens = run.wrong_tokens()
    if tokens:
        said.append(f"requests {tokens} have other tokens than without a cache")
    for rank, result in run.results.items():
        missing = [r.rid for r in run.requests if r.rid not in result["outputs"]]
        if missing:
            said.append(f"rank {rank} never ended requests {missing}")
        short = [r.rid for r in run.requests if _short(run.config, r.rid, r.new_tokens, result)]
        if short:
            said.append(f"rank {rank}: requests {short} ended early")
    return said


def _short(config: Config, rid: int, new_tokens: int, result: dict[str, list[int]]) -> bool:
    """Whether a request that nobody aborted has fewer tokens than it asked for."""
    asked = 1 if config.disaggregation == "prefill" else new_tokens
    return rid not in result["aborted"] and len(result["outputs"].get(rid, [])) != asked
