"""What a user waits for before anything is read: ``--help`` over the bare interpreter, and a 1 MB incident whole.

    python benchmarks/startup.py [--runs 7]

Prints medians and the two targets: help within 100 ms of the bare interpreter, a 1 MB incident within 1.5 s in all.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HELP_TARGET_MS = 100
INCIDENT_TARGET_S = 1.5
SAMPLE = Path(__file__).resolve().parent.parent / "samples" / "crash_dumps" / "ack_skew-0.5.12.post1" / "input"


def median(command: list[str], runs: int) -> float:
    """The median wall time of a command in seconds; its first run, which fills caches, is not counted."""
    times = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def one_megabyte(folder: Path) -> None:
    """The shipped sample, its logs filled up with batch lines and requests to half a megabyte each."""
    r = random.Random(5)
    for rank in ("PP0", "PP1"):
        lines = (SAMPLE / f"{rank}.log").read_text().splitlines()
        at = next(i for i, line in enumerate(lines) if "Prefill batch" in line)
        fill = []
        while sum(map(len, fill)) < 500_000:
            tokens = r.randrange(1, 64) * 16
            fill.append(
                f"[2026-11-30 19:50:00 {rank}] Prefill batch, #new-seq: 1, #new-token: {tokens}, #cached-token: 0, "
                "token usage: 0.40, #running-req: 2, #queue-req: 0, cuda graph: False"
            )
        (folder / f"{rank}.log").write_text("\n".join([*lines[:at], *fill, *lines[at:]]) + "\n")
        r = random.Random(5)
    (folder / "launch.txt").write_text((SAMPLE / "launch.txt").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    tool = [sys.executable, "-m", "hicache_doctor"]
    bare = median([sys.executable, "-c", "pass"], runs)
    shown = median([*tool, "--help"], runs)
    leaf = median([*tool, "analyze", "--help"], runs)
    with tempfile.TemporaryDirectory() as name:
        one_megabyte(Path(name))
        incident = median([*tool, "analyze", name], runs)
    print(f"bare interpreter        {bare * 1e3:7.0f} ms")
    print(f"--help                  {shown * 1e3:7.0f} ms, {(shown - bare) * 1e3:+.0f} (target {HELP_TARGET_MS:+d})")
    print(f"analyze --help          {leaf * 1e3:7.0f} ms, {(leaf - bare) * 1e3:+.0f}")
    print(f"analyze, 1 MB incident  {incident:7.2f} s (target {INCIDENT_TARGET_S} s)")


if __name__ == "__main__":
    main()
