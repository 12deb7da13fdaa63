"""Every token of every mix is that of a run without a cache, and each mix did the work that makes this worth saying."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from hicache_doctor.runtime import mixes, sim_run
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.sim_run import SimRun
from hicache_doctor.runtime.workload import Workload
from hicache_doctor.runtime.world import Topology
from tests.runtime.draws import wrong

PP2, PP3, PP4 = Topology(pp_size=2), Topology(pp_size=3), Topology(pp_size=4)
TP2, PP2_TP2, CP2 = Topology(tp_size=2), Topology(pp_size=2, tp_size=2), Topology(pp_size=2, cp_size=2)
COUNTERS = ("l1", "l2", "l3", "gone_l1", "gone_l2", "loads", "settled", "revoked", "aborted")
OWN = {
    "selective": Config(workload=mixes.REREAD, write_policy="write_through_selective", device_pages=70, host_pages=70),
    "prefill": Config(workload=replace(mixes.REREAD, gap=3), disaggregation="prefill", device_pages=70, host_pages=70),
    "tiny": Config(
        workload=Workload(requests=50, prefixes=8, prefix=50, suffix=10, gap=4), device_pages=40, host_pages=30
    ),
    "quota": Config(load_back_quota=32),
}
"""Mixes that only the simulation runs."""
FLOORS: dict[str, tuple[Topology, tuple[int, ...]]] = {
    "shared": (PP2, (200, 82, 0, 54, 27, 9, 0, 26, 0)),
    "turns": (PP2_TP2, (158, 97, 0, 81, 0, 15, 0, 18, 0)),
    "aborts": (PP4, (191, 65, 0, 56, 24, 9, 1, 26, 2)),
    "chunked": (TP2, (312, 142, 0, 71, 43, 6, 0, 6, 0)),
    "dynamic": (PP3, (326, 166, 0, 77, 43, 6, 0, 4, 0)),
    "reread": (CP2, (87, 6, 31, 38, 22, 1, 4, 17, 0)),
    "restart": (PP2, (163, 72, 44, 64, 45, 7, 7, 20, 0)),
    "gone": (PP2_TP2, (182, 76, 57, 57, 47, 8, 7, 15, 2)),
    "back": (PP4, (104, 173, 0, 46, 0, 14, 0, 12, 0)),
    "planned": (TP2, (151, 68, 49, 44, 33, 8, 9, 13, 0)),
    "burst": (PP3, (345, 4, 0, 33, 21, 1, 0, 6, 0)),
    "idle": (CP2, (17, 0, 0, 0, 0, 0, 0, 5, 0)),
    "selective": (PP2, (123, 61, 75, 40, 22, 5, 7, 10, 0)),
    "prefill": (PP2_TP2, (78, 13, 16, 32, 19, 1, 3, 15, 0)),
    "tiny": (PP4, (115, 6, 5, 44, 28, 1, 1, 13, 0)),
    "quota": (TP2, (247, 12, 0, 41, 27, 2, 0, 19, 0)),
}


def run(name: str) -> SimRun:
    number = list(FLOORS).index(name)
    topo, _ = FLOORS[name]
    config = Config(topo=topo, l3="memory", seed=number + 1, tree=("hiradix", "unified")[number % 2])
    if name in OWN:
        config = OWN[name].but(topo=topo, l3="memory", seed=config.seed, tree=config.tree)
    else:
        config = mixes.apply(config, name)
    return sim_run.run(config, seed=number, preempt=(0, 10)[number // 2 % 2])


def counts(result: dict[str, Any]) -> dict[str, int]:
    """What one rank did; all ranks of a replica did the same."""
    hits, gone, reads = result["hits"], result["evictions"], result["prefetches"]
    values = (
        hits["l1"], hits["l2"], hits["l3"], gone["l1"], gone["l2"], result["load_backs"],
        reads["settled"], reads["revoked"], reads["aborted"],
    )  # fmt: skip
    return dict(zip(COUNTERS, values, strict=True))


@pytest.mark.parametrize("name", FLOORS)
def test_a_mix_says_what_a_run_without_cache_says(name: str) -> None:
    done = run(name)
    assert wrong(done) == []
    by_rank = [counts(r) for r in done.results.values()]
    assert by_rank == [by_rank[0]] * done.config.topo.n
    least = dict(zip(COUNTERS, FLOORS[name][1], strict=True))
    assert {k: v for k, v in by_rank[0].items() if v < least[k]} == {}


def test_the_mixes_are_ten_and_more_with_five_hundred_requests_and_leave_no_counter_out() -> None:
    assert len(FLOORS) >= 10 and set(FLOORS) == {*mixes.MIXES, *OWN}
    requests = [OWN[n].workload.requests if n in OWN else mixes.MIXES[n].workload.requests for n in FLOORS]
    assert sum(requests) >= 500
    used: Counter[str] = Counter()
    for _, least in FLOORS.values():
        used.update(c for c, n in zip(COUNTERS, least, strict=True) if n)
    assert all(used[c] >= 2 for c in COUNTERS)
