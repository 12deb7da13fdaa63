"""One protocol, two worlds: what a run decided in one follows in the other from its observations, failures included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the processes world needs torch")

from hicache_doctor.runtime import mixes, ring_events, sim_run
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.faults import CopyLag, FaultPlan
from hicache_doctor.runtime.launch import Launcher
from hicache_doctor.runtime.outcome import RunReport
from hicache_doctor.runtime.scenarios import BY_NAME
from hicache_doctor.runtime.sim_run import SimRun
from hicache_doctor.runtime.spec import Options
from hicache_doctor.runtime.streams import streams
from hicache_doctor.runtime.workload import Workload
from hicache_doctor.runtime.world import Topology

PP2, PP2_TP2, TP2 = Topology(pp_size=2), Topology(pp_size=2, tp_size=2), Topology(tp_size=2)
L3 = Config(l3="file", workload=mixes.REREAD, **mixes.TIGHT)
CASES: dict[str, Config] = {
    "plain": Config(),
    "every tier, four ranks": L3.but(topo=PP2_TP2, tree="unified"),
    "A1": BY_NAME["A1"].configured(5),
    "late copies": Config(topo=PP2_TP2, faults=FaultPlan(copy_lag=(CopyLag(1, 5), CopyLag(0, 2, "load", every=3)))),
    "planned": L3.but(scheduler="planned"),
    "prefill side": Config(disaggregation="prefill", workload=Workload(requests=60, aborts=40, prefix=60), l3="file"),
    "measured chunks": mixes.apply(Config(topo=PP2_TP2), "dynamic"),
    "write-back, conversations": Config(write_policy="write_back", workload=Workload(turns=3, aborts=20)),
    "three stages, selective": L3.but(topo=Topology(pp_size=3), write_policy="write_through_selective"),
    "clocks": Config(topo=TP2, waiting_timeout=4_000_000, faults=FaultPlan(clock_jump=((1, 5_000_000, 20),))),
    "A3": BY_NAME["A3"].configured(5).but(l3="file"),
    "A9": BY_NAME["A9"].configured(1),
    "B2": BY_NAME["B2"].configured(4),
    "C1": BY_NAME["C1"].configured(0),
}
"""The null model on both sides: a real transformer would say other tokens."""
SHORT = ("plain", "every tier, four ranks", "A1")
FAILING = {"A1": 5, "A3": 5, "A9": 1, "B2": 4, "C1": 0}
"""With a seed of the schedule that breaks."""


def cases() -> list[Any]:
    return [pytest.param(n, marks=() if n in SHORT else (pytest.mark.long, pytest.mark.timeout(300))) for n in CASES]


def config_of(name: str, folder: Path) -> Config:
    config = CASES[name]
    return config.but(l3_path=str(folder / "l3")) if config.l3 else config


def events_of(report: RunReport) -> dict[int, Any]:
    return ring_events.read(report.out / "rings", len(report.ranks))


def parted(a: Mapping[int, Sequence[Any]], b: Mapping[int, Sequence[Any]], *, whole: bool) -> list[str]:
    """Streams of the same rank in two runs that differ; over the common prefix only unless both must be ``whole``."""
    out = []
    for rank in sorted(a):
        ours, theirs = streams(a[rank]), streams(b[rank])
        for name in sorted(set(ours) | set(theirs)):
            x, y = ours.get(name, []), theirs.get(name, [])
            n = max(len(x), len(y)) if whole else min(len(x), len(y))
            at = next((i for i in range(n) if x[i : i + 1] != y[i : i + 1]), None)
            if at is not None:
                out.append(f"rank {rank} {name} {at}: {x[at : at + 1]} {y[at : at + 1]}")
    return out


def ends(run: SimRun, report: RunReport) -> tuple[Any, Any]:
    """How each of the two ended, in the same words."""
    n = run.config.topo.n
    if run.outcome.how == "deadlock":
        ours = ("hung", [run.outcome.step(r) for r in range(n)])
        return ours, (report.outcome, [r.step for r in report.ranks])
    if run.outcome.failures:
        failure, first = run.outcome.failures[0], report.first
        assert first is not None
        ours = (failure.rank, run.outcome.step(failure.rank), f"{type(failure.error).__name__}: {failure.error}")
        return ours, (first.rank, first.step, first.error)
    return run.outcome.how, report.outcome


def compare(name: str, run: SimRun, report: RunReport) -> None:
    whole = name not in FAILING
    assert (report.outcome == "done") is whole, (report.outcome, report.notes)
    ours, theirs = ends(run, report)
    assert ours == theirs
    n = run.config.topo.n
    assert parted({r: run.outcome.events(r) for r in range(n)}, events_of(report), whole=whole) == []
    if whole:
        real = [{int(rid): said for rid, said in (r.result or {})["outputs"].items()} for r in report.ranks]
        assert [run.results[r]["outputs"] for r in range(n)] == real


@pytest.fixture(scope="module")
def own() -> Any:
    with Launcher() as launcher:
        yield launcher


def watched(name: str) -> Options:
    """A short patience only where a hang is what the run is about."""
    return Options(watchdog=4 if name == "C1" else 30, grace=1 if name in FAILING else 20)


@pytest.mark.parametrize("name", cases())
def test_a_real_run_is_repeated_in_the_simulation(name: str, own: Launcher, tmp_path: Path) -> None:
    config = config_of(name, tmp_path)
    report = own.run(config, tmp_path / "run", options=watched(name))
    run = sim_run.run(config, seed=3, replay=report.tapes())
    compare(name, run, report)
    assert [run.outcome.misses(r) for r in range(config.topo.n)] == [0] * config.topo.n


@pytest.mark.parametrize("name", cases())
def test_a_simulated_run_is_repeated_by_real_processes(name: str, own: Launcher, tmp_path: Path) -> None:
    config = config_of(name, tmp_path)
    run = sim_run.run(config, seed=FAILING.get(name, 7))
    report = own.run(config, tmp_path / "run", replay=run.tapes(), options=watched(name))
    compare(name, run, report)
