"""L3 backends: one contract, faults around any of them, names that keep stages apart."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hicache_doctor.errors import UsageError
from hicache_doctor.runtime.config import Config, ModelShape
from hicache_doctor.runtime.faults import NO_FAULTS, FaultPlan, LostKeys, Outage
from hicache_doctor.runtime.fixes import ALL, Fix, Fixes
from hicache_doctor.runtime.model.null import NullModel
from hicache_doctor.runtime.storage.base import naming
from hicache_doctor.runtime.storage.faulty import NOMINAL, FaultyStorage
from hicache_doctor.runtime.storage.memory import Shelf
from hicache_doctor.runtime.storage.open import open_storage
from hicache_doctor.runtime.world import Topology, mix
from tests.runtime.lone_world import LoneWorld

PP2 = Topology(pp_size=2)
KEYS = [mix(i, 5) for i in range(10)]


@dataclass
class Shared:
    """What the ranks of one test share."""

    backend: str
    path: Path
    shelf: Shelf = field(default_factory=Shelf)

    def rank(self, rank: int = 0, faults: FaultPlan = NO_FAULTS, fixes: Fixes = ALL, **more: Any) -> Rank:
        config = Config(topo=PP2, l3=self.backend, l3_path=str(self.path), faults=faults, fixes=fixes, **more)
        world = LoneWorld(config.topo, rank)
        model = NullModel(config, world)
        return Rank(open_storage(config, world, model, self.shelf), model, world)


@dataclass
class Rank:
    store: Any
    model: NullModel
    world: LoneWorld

    def fill(self, n: int, first: int = 0) -> None:
        """Pages 1 to n hold keys ``first`` and up, and go to L3."""
        for i in range(n):
            self.model.host[i + 1] = KEYS[first + i]
        assert self.store.put(KEYS[first : first + n], range(1, n + 1)) == n

    def read(self, keys: list[int]) -> list[int]:
        """What comes back: the content of the pages that were served."""
        pages = range(50, 50 + len(keys))
        for p in pages:
            self.model.host[p] = 0
        n = self.store.get(keys, pages)
        assert all(self.model.host[p] == 0 for p in pages[n:])
        return [self.model.host[p] for p in pages[:n]]


@pytest.fixture(params=["memory", "file"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Shared:
    return Shared(request.param, tmp_path / "l3")


def test_what_was_put_exists_and_comes_back(shared: Shared) -> None:
    a = shared.rank()
    assert a.store.exists(KEYS[:3]) == 0
    a.fill(4)
    assert a.store.exists(KEYS[:4]) == 4
    assert a.read(KEYS[:4]) == KEYS[:4]
    assert a.world.lines == []


def test_a_call_serves_the_leading_run_and_says_so(shared: Shared) -> None:
    a = shared.rank()
    a.fill(2)
    a.fill(2, first=3)
    assert a.store.exists(KEYS[:5]) == 2
    assert a.read(KEYS[:5]) == KEYS[:2]
    assert len(a.world.lines) == 1 and a.world.lines[0].startswith("WARNING Failed to fetch ")
    assert f"{KEYS[2]:016x}" in a.world.lines[0]
    assert a.store.exists([]) == a.store.get([], []) == a.store.put([], []) == 0
    assert a.read([KEYS[9]]) == []


def test_a_page_that_is_there_stays_as_it_is(shared: Shared) -> None:
    a = shared.rank()
    a.fill(1)
    a.model.host[1] = 77
    assert a.store.put(KEYS[:1], [1]) == 1
    assert a.read(KEYS[:1]) == KEYS[:1]


def test_another_rank_process_of_the_same_place_reads_it(shared: Shared) -> None:
    shared.rank(1).fill(3)
    assert shared.rank(1).read(KEYS[:3]) == KEYS[:3]


def test_stages_meet_on_one_key_only_without_the_fix(shared: Shared) -> None:
    shared.rank(0).fill(2)
    assert shared.rank(1).store.exists(KEYS[:2]) == 0
    off = ALL.without(Fix.KEY_FILE)
    shared.rank(0, fixes=off).fill(2, first=4)
    b = shared.rank(1, fixes=off)
    assert b.store.exists(KEYS[4:6]) == 2
    foreign = b.read(KEYS[4:6])
    assert len(foreign) == 2 and foreign[0] != KEYS[4]  # silent: wrong KV, no error


def test_a_page_of_another_size_under_a_shared_key_is_a_short_read(shared: Shared) -> None:
    pytest.importorskip("torch")
    from hicache_doctor.runtime.model.transformer import TransformerModel

    shape = ModelShape(kind="mla", layer_partition=(3, 1))
    config = Config(topo=PP2, l3=shared.backend, l3_path=str(shared.path), model=shape, fixes=ALL.without(Fix.KEY_FILE))
    worlds = [LoneWorld(PP2, r) for r in (0, 1)]
    models = [TransformerModel(config, w) for w in worlds]
    a, b = (open_storage(config, w, m, shared.shelf) for w, m in zip(worlds, models, strict=True))
    assert a.put(KEYS[:1], [1]) == 1
    assert b.get(KEYS[:1], [1]) == 0
    assert worlds[1].lines[0].startswith("ERROR Short read for mla-")


@pytest.mark.parametrize("when", ["exists", "get"])
def test_lost_keys_are_missed_at_the_query_or_only_when_read(shared: Shared, when: str) -> None:
    plan = FaultPlan(lost_keys=(LostKeys(pp=1, every=3, when=when),))
    first = next(n for n, k in enumerate(KEYS) if mix(k, plan.seed) % 3 == 0)
    assert 0 < first < len(KEYS) - 1
    a, b = shared.rank(0, plan), shared.rank(1, plan)
    a.fill(10)
    b.fill(10)
    assert a.store.exists(KEYS) == 10 and a.read(KEYS) == KEYS
    assert b.store.exists(KEYS) == (10 if when == "get" else first)
    assert b.read(KEYS) == KEYS[:first]
    assert f"{KEYS[first]:016x}" in b.world.lines[-1]


def test_an_outage_serves_nothing_and_is_said_once(shared: Shared) -> None:
    b = shared.rank(1, FaultPlan(outages=(Outage(start=5, end=7, pp=1), Outage(start=9, end=-1, pp=1))))
    b.fill(2)
    seen = []
    for b.world.step in range(4, 11):
        seen.append((b.store.exists(KEYS[:2]), len(b.read(KEYS[:2]))))
    assert seen == [(2, 2), (0, 0), (0, 0), (2, 2), (2, 2), (0, 0), (0, 0)]
    assert b.store.put(KEYS[:1], [1]) == 0
    assert len(b.world.lines) == 2


def test_a_restart_empties_the_store_of_all_ranks_once(shared: Shared) -> None:
    plan = FaultPlan(restart_l3=5)
    a, b = shared.rank(0, plan), shared.rank(1, plan)
    a.fill(2)
    b.fill(2)
    a.world.step = b.world.step = 5
    assert b.store.exists(KEYS[:2]) == 2  # rank 0 carries it out
    assert a.store.exists(KEYS[:2]) == b.store.exists(KEYS[:2]) == 0
    b.fill(2)
    a.fill(2)
    a.world.step = 6
    assert a.store.exists(KEYS[:2]) == b.store.exists(KEYS[:2]) == 2


def test_a_slow_stage_pays_more(shared: Shared) -> None:
    plan = FaultPlan(slow_l3=((1, 5),), jitter=0)
    a, b = shared.rank(0, plan), shared.rank(1, plan)
    a.fill(3)
    b.fill(3)
    once = NOMINAL.base + 3 * NOMINAL.page
    assert b.world.slept - a.world.slept == 4 * once
    assert a.world.slept == (once if shared.backend == "memory" else 0)
    assert isinstance(b.store, FaultyStorage) and not isinstance(a.store, FaultyStorage)


def test_latency_is_the_same_whenever_a_call_comes(tmp_path: Path) -> None:
    runs = []
    for order in ("eg", "ge"):
        a = Shared("memory", tmp_path).rank()
        cost = {}
        for call in order:
            before = a.world.slept
            a.store.exists(KEYS) if call == "e" else a.store.get(KEYS, range(10))
            cost[call] = a.world.slept - before
        runs.append(cost)
    assert runs[0] == runs[1]


def test_files_are_whole_and_fan_out(tmp_path: Path) -> None:
    a = Shared("file", tmp_path).rank()
    a.fill(5)
    files = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    name = "null-4x32h4v509p4"
    assert files == sorted(f"{k >> 56:02x}/{name}_{k:016x}_0_1_2_0.bin" for k in KEYS[:5])


def test_files_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "l3").write_text("not a folder")
    a = Shared("file", tmp_path / "l3").rank()
    a.model.host[1] = 4
    assert a.store.put(KEYS[:3], [1, 2, 3]) == 0
    assert a.store.exists(KEYS[:3]) == 0
    assert [line[:27] for line in a.world.lines] == ["ERROR Failed to save tensor"]
    a.store.empty()


def test_a_writer_whose_folder_is_emptied_makes_it_again(tmp_path: Path) -> None:
    a, b = (Shared("file", tmp_path).rank(r) for r in (0, 1))
    a.fill(3)
    b.store.empty()
    assert a.store.put(KEYS[:1], [1]) == 1
    assert os.listdir(tmp_path) == [f"{KEYS[0] >> 56:02x}"]


def test_names_of_backends() -> None:
    topo = Topology(pp_size=2, tp_size=4)
    at = topo.place(5)
    off = ALL.without(Fix.KEY_FILE)
    assert naming("file", "m", topo, at, ALL, mla=False).key(255) == "m_00000000000000ff_1_4_2_1"
    assert naming("file", "m", topo, at, off, mla=False).key(255) == "m_00000000000000ff_1_4"
    assert naming("mooncake", "m", topo, at, off, mla=True).key(255) == "m_00000000000000ff_2_1"


def test_open_storage_says_what_is_wrong(tmp_path: Path) -> None:
    world = LoneWorld()
    for l3, words in ((None, "backends are memory, file, mooncake"), ("file", "needs l3_path")):
        config = Config(topo=Topology(), l3=l3)
        with pytest.raises(UsageError, match=words):
            open_storage(config, world, NullModel(config, world))
