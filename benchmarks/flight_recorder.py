"""How fast flight-recorder dumps are read and diagnosed, against torch's own analyser on the same dumps, in turn.

    python benchmarks/flight_recorder.py [--full] [--runs 3] [--dir DIR]

The dumps are those of a healthy job (see ``flight_recorder_dumps``): nothing stops either side early. ``analyze`` as a
whole, start-up, store, rules and report included, against ``torchfrtrace``; memory is the largest sum over the process
and its children. 64 ranks of 2,000 operations, with 8 of them for what a further rank costs; ``--full``: 1,024 ranks.
Only ratios mean anything: other work may run beside us.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from flight_recorder_dumps import PREFIX, write

ENTRIES = 2_000
# Of 64 ranks: seconds as a whole, ms a further rank. Of 1,024: how much of the other's time and memory.
MOST_SECONDS, MOST_MS_A_RANK = 2.0, 10.0
LEAST_FASTER, LEAST_SMALLER = 15.0, 2.0
OURS = [sys.executable, "-m", "hicache_doctor", "analyze"]
THEIRS = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", "-p", PREFIX]


@dataclass
class Cost:
    """The best of several runs: seconds on the wall and of processor, and the largest memory in MB."""

    wall: float = float("inf")
    cpu: float = float("inf")
    memory: float = float("inf")

    def run(self, command: list[str], folder: Path) -> None:
        """Run ``command`` on ``folder`` once more."""
        start = time.perf_counter()
        child = psutil.Popen([*command, str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        most = cpu = 0.0
        while child.poll() is None:
            try:
                tree = [child, *child.children(recursive=True)]
                most = max(most, sum(p.memory_info().rss for p in tree) / 1e6)
                spent = child.cpu_times()
                # Of the children that have ended, and of those that have not.
                living = sum(sum(p.cpu_times()[:2]) for p in tree[1:])
                cpu = max(cpu, sum(spent[:4]) + living)
            except psutil.Error:
                pass
            time.sleep(0.05)
        wall = time.perf_counter() - start
        if child.returncode:
            raise SystemExit(f"{' '.join(command)}: {child.stderr.read()[-2000:]}")
        self.wall, self.cpu, self.memory = min(self.wall, wall), min(self.cpu, cpu), min(self.memory, most)

    def __str__(self) -> str:
        return f"{self.wall:7.2f} s wall, {self.cpu:7.2f} s cpu, {self.memory:6.0f} MB"


def compare(folder: Path, ranks: int, runs: int, *, theirs: bool) -> tuple[Cost, Cost]:
    """Both on the dumps of ``ranks`` ranks, in turn, so that they meet the same neighbours."""
    dumps = folder / str(ranks)
    dumps.mkdir()
    size = write(dumps, ranks, ENTRIES)
    ours, other = Cost(), Cost()
    for _ in range(runs):
        ours.run(OURS, dumps)
        if theirs:
            other.run(THEIRS, dumps)
    for path in dumps.iterdir():
        path.unlink()
    print(f"{ranks:5d} x {ENTRIES}, {size / 1e6:.0f} MB: analyze      {ours}")
    if theirs:
        print(f"{'':>14s} torchfrtrace {other}", flush=True)
        print(f"{'':>14s} {other.wall / ours.wall:.1f} times as fast, {other.memory / ours.memory:.1f} times as small")
    return ours, other


def verdict(text: str, good: bool) -> None:
    print(f"{text}: {'good' if good else 'MISSED'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--full", action="store_true", help="1,024 ranks as well")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    theirs = importlib.util.find_spec("torch") is not None
    if not theirs:
        print("torch is not installed: nothing to compare with")
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="flight-recorder-") as name:
        folder = Path(name)
        few, _ = compare(folder, 8, args.runs, theirs=False)
        many, _ = compare(folder, 64, args.runs, theirs=theirs)
        slope = (many.wall - few.wall) / (64 - 8) * 1e3
        verdict(f"64 ranks: {many.wall:.2f} s (at most {MOST_SECONDS})", many.wall <= MOST_SECONDS)
        verdict(f"a further rank: {slope:.1f} ms (at most {MOST_MS_A_RANK})", slope <= MOST_MS_A_RANK)
        if args.full:
            ours, other = compare(folder, 1024, 1, theirs=theirs)
            slope = (ours.wall - many.wall) / (1024 - 64) * 1e3
            verdict(f"a further rank: {slope:.1f} ms (at most {MOST_MS_A_RANK})", slope <= MOST_MS_A_RANK)
            if theirs:
                faster, smaller = other.wall / ours.wall, other.memory / ours.memory
                verdict(f"1024 ranks: {faster:.1f} times as fast (at least {LEAST_FASTER:.0f})", faster >= LEAST_FASTER)
                verdict(f"{smaller:.1f} times as small (at least {LEAST_SMALLER:.0f})", smaller >= LEAST_SMALLER)


if __name__ == "__main__":
    main()
