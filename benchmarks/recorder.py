"""What an event costs the rank that records it, and how fast the collector takes events into a DuckDB file.

    python benchmarks/recorder.py [--events 1000000] [--dir DIR] [--runs 60]

The recorder stands beside the cheapest thing that a program could do (append a tuple to a list, lost with the process)
and the simplest that survives SIGKILL (one ``write`` an event). All read the clock and carry the same fields. Variants
are interleaved in short stretches; the best stretch is what the work costs, the median what it costs on this machine at
this time. Only ratios mean anything, as other work may run beside us. Four rings are then collected into a new database
file, checkpoint included, three times.
"""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hicache_doctor.evidence.store import Store
from hicache_doctor.probes.collector import Collector
from hicache_doctor.probes.recorder import Recorder

EVENTS = 10_000
KEY = 0x9E3779B97F4A7C15
GOAL_NS, GOAL_PER_S = 1000, 1_000_000
Call = Callable[..., None]


def listing() -> Call:
    rows: list[tuple[int, ...]] = []
    clock, append = time.monotonic_ns, rows.append

    def call(kind: int, key: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> None:
        if len(rows) >= EVENTS:
            rows.clear()
        append((clock(), 5, kind, 0, key, a, b, c, d))

    return call


def writing(folder: Path) -> Call:
    fd = os.open(folder / "written", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    clock, write, pack = time.monotonic_ns, os.write, struct.Struct("<QIHHQqqqqQ").pack

    def call(kind: int, key: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> None:
        write(fd, pack(clock(), 5, kind, 0, key, a, b, c, d, 0))

    return call


def cost(call: Call) -> float:
    """ns an event, the loop included."""
    numbers = range(EVENTS)
    start = time.perf_counter_ns()
    for i in numbers:
        call(7, KEY, i, 2, 3, 4)
    return (time.perf_counter_ns() - start) / EVENTS


def empty(kind: int, key: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> None:
    return None


def hot_path(folder: Path, runs: int) -> dict[str, list[float]]:
    """ns an event of each stretch; those of the recorder include its changes of segment."""
    with Recorder.open(folder / "hot", 0, "TP0", max_segments=4) as recorder:
        calls = {
            "empty call": empty,
            "list.append(tuple)": listing(),
            "recorder": recorder.make_record(),
            "os.write": writing(folder),
        }
        costs: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(runs):
            for name, call in calls.items():
                costs[name].append(cost(call))
    return costs


def fill(folder: Path, events: int) -> None:
    """Four rings, as four ranks of two threads would leave them."""

    def rank(n: int) -> None:
        with Recorder.open(folder, n, f"PP{n // 2} TP{n % 2}", max_segments=1000) as recorder:
            record = recorder.make_record()
            for i in range(events // 4):
                recorder.step[0] = i >> 6
                record(1 + i % 15, (KEY * i) & (2**64 - 1), i, i % 7, -i, n)

    threads = [threading.Thread(target=rank, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def ingestion(rings: Path, file: Path, events: int) -> tuple[float, float]:
    """Events a second into a file, and bytes an event on disk."""
    with Store.create(file) as store:
        start = time.perf_counter()
        totals = Collector([rings], store).finish()
        store.con.execute("CHECKPOINT")
        took = time.perf_counter() - start
    taken = sum(t.events for t in totals.values())
    assert taken == events // 4 * 4, totals
    return taken / took, file.stat().st_size / taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--dir", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        costs = hot_path(Path(name), options.runs)
        fill(Path(name) / "rings", options.events)
        rates = [ingestion(Path(name) / "rings", Path(name) / f"{n}.duckdb", options.events) for n in range(3)]
    best = {what: min(ns) for what, ns in costs.items()}
    print(f"{'an event':22}{'best ns':>10}{'ratio':>8}{'median':>10}")
    for what, ns in best.items():
        print(f"{what:22}{ns:10.0f}{ns / best['list.append(tuple)']:8.2f}{statistics.median(costs[what]):10.0f}")
    print(f"recorder: goal below {GOAL_NS} ns: {'met' if best['recorder'] < GOAL_NS else 'MISSED'}")
    rate, size = max(rates)
    print(f"collector: {rate:,.0f} events/s into a file, {size:.0f} bytes an event; goal {GOAL_PER_S:,}: ", end="")
    print("met" if rate >= GOAL_PER_S else "MISSED")


if __name__ == "__main__":
    main()
