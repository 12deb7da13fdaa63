"""The store's decision streams and the simulation's own: one definition, in SQL and without a database.

Compared over whole runs, healthy and broken, that ended, failed or hung: the same streams part, between the same ranks,
at the same step; and none on a healthy run.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from hicache_doctor.evidence import decisions, streams
from hicache_doctor.evidence.rows import Event
from hicache_doctor.evidence.store import Store
from hicache_doctor.probes.kinds import Kind, Q, Site, Tier
from hicache_doctor.runtime import scenarios, sim_run
from hicache_doctor.runtime.sim_run import SimRun
from hicache_doctor.signatures.load import load
from tests.evidence.filled import store

Parting = tuple[str, str, str, int]
"""Stream with its queue, site or tier, the two ranks, the step."""
LANES = {
    "submission": {q.name.lower(): int(q) for q in Q},
    "drain": {s.name.lower(): int(s) for s in Site},
    "evict": {t.name.lower(): int(t) for t in Tier},
}
KINDS = {int(k): k.name.lower() for k in Kind}
BASE = load()


def rows(run: SimRun) -> Iterator[Event]:
    label = run.config.topo.label
    for rank in range(run.config.topo.n):
        for n, (kind, step, thread, ns, key, a, b, c, d) in enumerate(run.outcome.events(rank)):
            yield Event(f"{rank}.ring", label(rank), step, ns, thread, KINDS[kind], key, a, b, c, d, n, n)


def in_the_store(run: SimRun) -> set[Parting]:
    with store(rows(run)) as s:
        return _partings(s)


def _partings(s: Store) -> set[Parting]:
    streams.derive(s, None)
    decisions.derive(s, BASE.events, BASE.event_words, None)
    found: dict[tuple[str, str, str], int] = {}
    for row in s.rows("SELECT * FROM divergence WHERE sure AND stream NOT IN ('collective', 'p2p')"):
        if row["stream"] == "start" and row["sub"] in (7, 8):
            continue
        name = f"{row['stream']} {row['sub']}" if row["stream"] in LANES else row["stream"]
        at = (name, row["rank_a"], row["rank_b"])
        found[at] = min(found.get(at, row["step"]), row["step"])
    return {(*at, step) for at, step in found.items()}


def in_the_simulation(run: SimRun) -> set[Parting]:
    label = run.config.topo.label
    return {(f.stream, label(f.ranks[0]), label(f.ranks[1]), f.step) for f in run.differences()}


@cache
def ran(name: str, seed: int) -> SimRun:
    return sim_run.run(scenarios.BY_NAME[name].configured(seed), seed=seed)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", list(scenarios.BY_NAME))
def test_both_definitions_find_the_same_partings(name: str, seed: int) -> None:
    run = ran(name, seed)
    assert in_the_store(run) == in_the_simulation(run)


@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("name", ["healthy", "E-alone", "C1-alone", "D", "H-20560"])
def test_nothing_parts_where_every_rank_decides_alike(name: str, seed: int) -> None:
    assert in_the_store(ran(name, seed)) == set()
