"""SIGKILL at a moment that nobody chose: every acknowledged event is read back, exactly once."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hicache_doctor.evidence.store import Store
from hicache_doctor.probes.collector import Collector
from tests.probes.rings import collected, until

ROOT = Path(__file__).resolve().parents[2]
THREADS = 3
# Each thread acknowledges an event in a file of its own mapping only after `record` returned.
WRITER = """
import mmap, os, struct, sys, threading
from hicache_doctor.probes.recorder import Recorder
folder, acks = sys.argv[1:]
recorder = Recorder.open(folder, 0, "TP0", segment_slots=2000, max_segments=5000)
record = recorder.make_record()
with open(acks, "wb+") as f:
    f.truncate(4096)
    mm = mmap.mmap(f.fileno(), 4096)
put = struct.Struct("<Q").pack_into
sys.setswitchinterval(1e-5)
def run(who):
    i = 0
    while i < 3_000_000:
        i += 1
        record(2, who, i, -i, who, i ^ who)
        put(mm, 8 * who, i)
for who in range(3):
    threading.Thread(target=run, args=(who,)).start()
"""


def start(folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    acks = folder / "acks"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder / "rings"), str(acks)], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    until(lambda: acks.exists() and acks.stat().st_size == 4096)
    return process, acks


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def acknowledged(acks: Path) -> list[int]:
    return list(struct.unpack(f"<{THREADS}Q", acks.read_bytes()[: 8 * THREADS]))


def check(events: list[dict[str, Any]], acks: list[int]) -> None:
    """Every acknowledged event is there once, at most one more a thread, and each is whole."""
    assert max(Counter(e["seq"] for e in events).values(), default=1) == 1
    for who in range(THREADS):
        own = sorted(e["a"] for e in events if e["key"] == who)
        assert own == list(range(1, len(own) + 1))
        assert acks[who] <= len(own) <= acks[who] + 1
    assert all((e["b"], e["c"], e["d"]) == (-e["a"], e["key"], e["a"] ^ e["key"]) for e in events)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_acknowledged_is_lost(tmp_path: Path, seed: int) -> None:
    process, acks = start(tmp_path)
    wanted = random.Random(seed).randrange(1, 15_000)
    until(lambda: sum(acknowledged(acks)) >= wanted)
    kill(process)
    events, totals = collected(tmp_path / "rings")
    check(events, acknowledged(acks))
    assert totals["TP0"].missed == 0 and totals["TP0"].torn <= THREADS


def test_reading_live_and_reading_the_dead_give_the_same(tmp_path: Path) -> None:
    process, acks = start(tmp_path)
    order = "SELECT * FROM event ORDER BY rank, seq"
    with Store.create(tmp_path / "live.duckdb") as store:
        collector = Collector([tmp_path / "rings"], store)
        until(lambda: collector.poll() >= 0 and sum(acknowledged(acks)) >= 20_000)
        kill(process)
        totals = collector.finish()
        live = store.rows(order)
    dead, dead_totals = collected(tmp_path / "rings")
    check(live, acknowledged(acks))
    assert live == dead and totals == dead_totals
