"""The collector: holes, late commits, several hosts, and rings that are not what they seem."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from hicache_doctor.evidence.store import Store
from hicache_doctor.probes import ring
from hicache_doctor.probes.collector import STRETCH, Collector
from hicache_doctor.probes.recorder import Recorder
from hicache_doctor.probes.trim import newest
from tests.probes.rings import STEP, collected, wrote


def word_at(path: Path, slot: int) -> int:
    return ring.parse(path.read_bytes()).size + slot * ring.RECORD_BYTES + ring.COMMIT_AT


def set_word(path: Path, slot: int, word: int) -> int:
    """Write a slot's commit word; returns what was there."""
    with open(path, "r+b") as f:
        f.seek(word_at(path, slot))
        (old,) = struct.unpack("<Q", f.read(8))
        f.seek(word_at(path, slot))
        f.write(struct.pack("<Q", word))
    return int(old)


def test_a_suspended_writer_holds_nobody_up_and_its_event_comes_late(tmp_path: Path) -> None:
    # GIVEN a slot that was claimed and not committed when the collector came by
    wrote(tmp_path, 50)
    (path,) = tmp_path.iterdir()
    word = set_word(path, 17, 0)
    with Store.create() as store:
        collector = Collector([tmp_path], store)
        assert (collector.poll(), collector.poll()) == (49, 0)
        # WHEN it is committed later
        set_word(path, 17, word)
        assert (collector.poll(), collector.poll()) == (1, 0)
        assert collector.finish()["PP0 TP0"].torn == 0
        assert [r["a"] for r in store.rows("SELECT a FROM event ORDER BY seq")] == list(range(50))


def test_torn_slots_are_counted_and_never_taken(tmp_path: Path) -> None:
    wrote(tmp_path, 50)
    (path,) = tmp_path.iterdir()
    for slot in (3, 48, 49):
        set_word(path, slot, 0)
    events, totals = collected(tmp_path)
    # the last two are begun slots behind the last record
    assert len(events) == 47 and totals["PP0 TP0"].torn == 3


def test_a_long_hole_ends_nothing_once_the_writer_is_dead(tmp_path: Path) -> None:
    wrote(tmp_path, 3 * STRETCH)
    (path,) = tmp_path.iterdir()
    head = ring.parse(path.read_bytes()).size
    with open(path, "r+b") as f:
        f.seek(head + 64 * 10)
        f.write(bytes(64 * 2 * STRETCH))
    events, totals = collected(tmp_path)
    assert len(events) == STRETCH and totals["PP0 TP0"].torn == 2 * STRETCH


def test_a_reader_that_is_too_slow_knows_what_it_missed(tmp_path: Path) -> None:
    with Store.create() as store, Recorder.open(tmp_path, 0, "TP0", segment_slots=10, max_segments=3) as recorder:
        collector = Collector([tmp_path], store)
        record = recorder.make_record()
        taken = 0
        for i in range(200):
            record(STEP, 0, i)
            if i in (5, 25, 199):
                taken += collector.poll()
        totals = collector.finish()["TP0"]
        assert totals.events == taken and totals.events + totals.missed == 200
        assert store.value("SELECT count(DISTINCT seq) FROM event") == taken


def test_rings_of_several_hosts_lie_on_one_time_line(tmp_path: Path) -> None:
    # GIVEN two hosts whose monotonic clocks have nothing to do with each other
    for rank, (wall, mono) in enumerate([(1_700_000_000_000_000_000, 5_000), (1_700_000_000_000_000_100, 9_000_000)]):
        owner = ring.Owner(f"host{rank}", "boot", 1, 1, rank, f"TP{rank}", tp=rank)
        salt = 77
        head = ring.pack(
            owner, slots=2, segment=0, base=0, salt=salt, clocks=(wall, mono), tables={"kind": {1: "start"}}
        )
        slots = b"".join(
            ring.RECORD.pack(mono + at, 0, kind, 0, 0, 0, 0, 0, 0) + ring.WORD.pack(salt + 64 * i)
            for i, (at, kind) in enumerate([(10, 1), (50, 9)])
        )
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / ring.file_name(rank, 0)).write_bytes(head + slots)
    events, _ = collected(tmp_path / "0", tmp_path / "1")
    # THEN both are told in wall-clock time, and a kind that the header does not name is named by number
    assert [e["ts_ns"] - 1_700_000_000_000_000_000 for e in events] == [10, 50, 110, 150]
    assert [e["kind"] for e in events] == ["start", "kind_9"] * 2


def test_a_damaged_ring_costs_itself(tmp_path: Path) -> None:
    wrote(tmp_path, 5)
    (tmp_path / "rank1.000000.ring").write_bytes(b"HCDRING\1" + b"\xff" * 5000)
    (tmp_path / "rank2.000000.ring").write_bytes(b"")
    with Store.create() as store:
        collector = Collector([tmp_path, tmp_path / "missing"], store)
        assert collector.poll() == 5
        assert set(collector.damaged) == {"rings/rank1.000000.ring", "rings/rank2.000000.ring"}


@pytest.mark.parametrize("most", [1, 99, 100, 101, 250, 1000])
def test_a_shortened_copy_holds_the_newest_records_under_their_numbers(tmp_path: Path, most: int) -> None:
    wrote(tmp_path / "full", 250, segment_slots=100)
    set_word(tmp_path / "full" / ring.file_name(0, 2), 20, 0)
    (tmp_path / "short").mkdir()
    for name, content in newest(sorted((tmp_path / "full").iterdir()), max_records=most):
        (tmp_path / "short" / name).write_bytes(content)
    full, _ = collected(tmp_path / "full")
    short, totals = collected(tmp_path / "short")
    # THEN a torn slot counts as one, and stays out
    wanted = [e for e in full if e["seq"] >= 250 - most]
    assert [(e["seq"], e["a"], e["ts_ns"]) for e in short] == [(e["seq"], e["a"], e["ts_ns"]) for e in wanted]
    assert totals["PP0 TP0"].missed == max(0, 250 - most)


@pytest.mark.parametrize("budget", [0, 5_000, 20_000, 60_000, 10_000_000])
def test_a_budget_is_kept_and_shared_by_the_ranks(tmp_path: Path, budget: int) -> None:
    for rank in range(2):
        wrote(tmp_path, 250, rank=rank, label=f"TP{rank}", segment_slots=100)
    copies = list(newest(tmp_path.iterdir(), max_bytes=budget))
    assert sum(len(content) for _, content in copies) <= budget
    assert len({name.partition(".")[0] for name, _ in copies}) == (0 if budget < 16_000 else 2)
    if budget > 1_000_000:
        assert len(copies) == 6
