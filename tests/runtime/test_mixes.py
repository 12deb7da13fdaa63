"""Every token of every mix equals that of a run without any cache: real processes, a real transformer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hicache_doctor.runtime import mixes
from hicache_doctor.runtime.config import Config, ModelShape
from hicache_doctor.runtime.launch import Launcher
from hicache_doctor.runtime.run_report import Summary, summarise
from hicache_doctor.runtime.spec import Options
from hicache_doctor.runtime.world import Topology

GRIDS = (Topology(pp_size=2), Topology(pp_size=2, tp_size=2), Topology(pp_size=4))
SHORT = ("shared", "reread")


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as own:
        yield own


def count(summary: Summary, name: str) -> int:
    group, _, key = name.partition(".")
    value = getattr(summary, group)
    return int(value[key] if key else value)


def run(launcher: Launcher, name: str, number: int, out: Path) -> Summary:
    wants_l3 = any("l3" in f or "prefetch" in f for f in mixes.MIXES[name].floors)
    config = Config(
        topo=GRIDS[number % len(GRIDS)],
        model=ModelShape(kind=("mha", "mla")[number % 2]),
        tree=("hiradix", "unified")[number // 2 % 2],
        l3="file" if wants_l3 else None,
        l3_path=str(out / "l3"),
        seed=number + 1,
    )
    config = mixes.apply(config, name)
    return summarise(config, launcher.run(config, out / "run", options=Options(watchdog=60)))


def check(name: str, summary: Summary) -> None:
    assert summary.outcome == "done" and not summary.integrity, (summary.outcome, summary.integrity[:3])
    assert summary.wrong == [] and summary.tokens_compared > 0
    assert summary.largest_logit_difference is not None and summary.largest_logit_difference < 1e-9
    for floor, least in mixes.MIXES[name].floors.items():
        assert count(summary, floor) >= least, (floor, summary.to_json())


@pytest.mark.parametrize("name", SHORT)
def test_a_mix_says_what_a_run_without_cache_says(name: str, launcher: Launcher, tmp_path: Path) -> None:
    check(name, run(launcher, name, list(mixes.MIXES).index(name), tmp_path))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_mixes_and_five_hundred_requests(launcher: Launcher, tmp_path: Path) -> None:
    requests = 0
    for number, name in enumerate(mixes.MIXES):
        summary = run(launcher, name, number, tmp_path / name)
        check(name, summary)
        requests += summary.requests
    assert requests >= 500 and len(mixes.MIXES) >= 10
