"""How fast logs are read, against ripgrep on the same file in the same session.

    python benchmarks/logscan.py [--full] [--sizes 0.25 0.5] [--dir DIR] [--runs 3] [--only rare,mixed,gzip]

Three logs of eight interleaved ranks, each in two sizes; the slope between the sizes is what a gigabyte costs. What is
measured is the product's own reader of big logs with the shipped vocabulary. ``rare``: few hits, against ``rg -F -c``
with the same literals. ``mixed``: 60 % batch lines, every Prefill line parsed in full, Decode counted and sampled,
against ``rg -c`` with 40 regular expressions of the vocabulary. ``gzip``: the rare log, packed, against
``gzip -dc | rg -F -c``. Only ratios mean anything: other work may run beside us.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hicache_doctor.artifacts import vocabulary
from hicache_doctor.artifacts.big_log import OPENERS, read_big
from hicache_doctor.artifacts.inventory import Read
from hicache_doctor.artifacts.source import Source
from hicache_doctor.evidence.rows import Artifact

GOALS = {"rare": 0.5, "mixed": 0.25, "gzip": 0.8}
MOST_MEMORY = 300
PATTERNS = 40
RARE_HIT = "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"
RANKS = [f"PP{pp} TP{tp}" for pp in range(2) for tp in range(4)]


# -- logs -----------------------------------------------------------------------------------------------------------


def rare_line(r: random.Random) -> str:
    """Traffic of the kind that says nothing, without a batch line."""
    if r.random() < 0.5:
        return f'INFO:     192.0.2.{r.randrange(9)}:{r.randrange(65536)} - "POST /generate HTTP/1.1" 200 OK'
    rid = f"{r.getrandbits(128):032x}"
    return f"Finish: obj=GenerateReqInput(rid='{rid}', sampling_params={{'temperature': {r.random():.3f}}})"


def mixed_line(r: random.Random) -> str:
    """What a busy server writes: 60 % batch lines, requests, prefetches."""
    kind = r.random()
    if kind < 0.3:
        return (
            f"Prefill batch, #new-seq: {r.randrange(1, 9)}, #new-token: {r.randrange(16384)}, #cached-token: "
            f"{r.randrange(99999)}, token usage: {r.random():.2f}, #running-req: {r.randrange(99)}, #queue-req: "
            f"{r.randrange(9)}, #pending-token: 0, cuda graph: False, "
            f"input throughput (token/s): {r.random() * 9999:.2f}"
        )
    if kind < 0.6:
        return (
            f"Decode batch, #running-req: {r.randrange(99)}, #token: {r.randrange(999999)}, token usage: "
            f"{r.random():.2f}, cuda graph: True, gen throughput (token/s): {r.random() * 999:.2f}, #queue-req: 0"
        )
    if kind < 0.85:
        return f'INFO:     192.0.2.{r.randrange(9)}:{r.randrange(65536)} - "POST /generate HTTP/1.1" 200 OK'
    rid = f"{r.getrandbits(128):032x}"
    n = r.randrange(64) * 64
    return f"HiCache prefetch success req={rid} completed={n} matched=0 loaded={n} occupied=0"


def write_log(path: Path, size: int, line: Callable[[random.Random], str]) -> int:
    """About ``size`` bytes: 16 MiB repeated, the hour of its time stamps moved on and a rare hit added each time.

    Returns the number of rare hits."""
    r = random.Random(7)
    at, base, n = 0.0, [], 0
    while n < min(size, 16 << 20):
        at += r.random() / 100
        stamp = f"02:{int(at) // 60 % 60:02d}:{int(at) % 60:02d}"
        base.append(f"[2026-05-28 {stamp} {r.choice(RANKS)}] {line(r)}\n")
        n += len(base[-1])
    text = "".join(base)
    times = max(1, size // n)
    with path.open("w") as f:
        for hour in range(times):
            f.write(text.replace("[2026-05-28 02:", f"[2026-05-{1 + hour // 24 % 28:02d} {hour % 24:02d}:"))
            f.write(f"[2026-05-{1 + hour // 24 % 28:02d} {hour % 24:02d}:59:59 {RANKS[hour % 8]}] {RARE_HIT}\n")
    return times


# -- what is measured -------------------------------------------------------------------------------------------------


def read(path: Path) -> tuple[int, int]:
    """What ``analyze`` does with a big log: the rare hits found, and the batch rows."""
    source = Source(path.name, path, path.stat().st_size, "gzip" if path.suffix == ".gz" else None)
    result = Read(Artifact(path.name, path.name, "text", source.size, None, None, "all", ""))
    read_big(source, vocabulary.load(), result)
    hits = sum(getattr(row, "kind", "") == "watchdog_timeout" for row in result.rows)
    return hits, sum(piece.num_rows for table in result.tables for piece in table.pieces)


def own_memory() -> float:
    """The largest private memory so far, in MB; mapped pages of the log are the kernel's to take back."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return float(fields["RssAnon"].split()[0]) / 1024


def child(path: Path) -> None:
    """One run in a process of its own; prints hits, rows and memory."""
    import threading

    most, stop = [0.0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            most[0] = max(most[0], own_memory())

    thread = threading.Thread(target=watch)
    thread.start()
    hits, rows = read(path)
    stop.set()
    thread.join()
    print(json.dumps([hits, rows, max(most[0], own_memory())]))


@dataclass
class Timing:
    """The best of several runs of one command: seconds on the wall, of processor, and what it printed last."""

    wall: float = float("inf")
    cpu: float = float("inf")
    out: str = ""

    def run(self, command: list[str] | str) -> None:
        before, start = os.times(), time.perf_counter()
        done = subprocess.run(command, shell=isinstance(command, str), capture_output=True, text=True, check=False)
        wall, after = time.perf_counter() - start, os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        if done.returncode:
            raise SystemExit(f"{command}: {done.stderr}")
        self.wall, self.cpu, self.out = min(self.wall, wall), min(self.cpu, cpu), done.stdout


def measure(name: str, folder: Path, sizes: list[float], runs: int, clock: str) -> Iterator[str]:
    literals, patterns = folder / "literals", folder / "patterns"
    words = vocabulary.load()
    openers = [text.decode() for texts in OPENERS.values() for text in texts]
    literals.write_text("\n".join([*words.literals, *openers]) + "\n")
    # Names of groups must be unique over all of ripgrep's patterns; it needs none.
    ours_first = sorted(words.entries, key=lambda e: e.kind != "watchdog_timeout")
    plain = [re.sub(r"\(\?P<\w+>", "(?:", e.pattern) for e in ours_first]
    patterns.write_text("\n".join([p for p in plain if "(?<" not in p and "(?!" not in p][:PATTERNS]) + "\n")
    ours, theirs, bytes_read = [], [], []
    memory = 0.0
    for size in sizes:
        path = folder / f"{name}.log"
        path_hits = write_log(path, int(size * 1e9), mixed_line if name == "mixed" else rare_line)
        bytes_read.append(path.stat().st_size)
        if name == "gzip":
            packed = path.with_suffix(".log.gz")
            with path.open("rb") as f, gzip.open(packed, "wb", compresslevel=6) as g:
                shutil.copyfileobj(f, g, 1 << 20)
            path.unlink()
            path = packed
        against: dict[str, list[str] | str] = {
            "rare": ["rg", "--no-config", "-F", "-c", "-f", str(literals), str(path)],
            "mixed": ["rg", "--no-config", "-c", "-f", str(patterns), str(path)],
            "gzip": f"gzip -dc '{path}' | rg --no-config -F -c -f '{literals}'",
        }
        mine, rg = Timing(), Timing()
        for _ in range(runs):  # in turn, so that both meet the same neighbours
            mine.run([sys.executable, __file__, "--child", str(path)])
            rg.run(against[name])
        path.unlink()
        hits, rows, used = json.loads(mine.out)
        if hits != path_hits:
            raise SystemExit(f"{name}: {hits} of the {path_hits} rare lines were found")
        memory = max(memory, used)
        ours.append(mine)
        theirs.append(rg)
        yield (
            f"{name:6s}{bytes_read[-1] / 1e9:5.2f} GB: {mine.wall:6.2f} s wall, {mine.cpu:6.2f} s cpu; "
            f"rg {rg.wall:6.2f} s wall, {rg.cpu:6.2f} s cpu; {hits} hits, {rows} batch rows, {used:.0f} MB of memory"
        )
    more = (bytes_read[-1] - bytes_read[0]) / 1e9
    for kind in ("wall", "cpu"):
        first, last = getattr(ours[0], kind), getattr(ours[-1], kind)
        slope = (last - first) / more
        rg_slope = (getattr(theirs[-1], kind) - getattr(theirs[0], kind)) / more
        ratio = rg_slope / slope
        yield (
            f"{name:6s}{kind:>5s}: {slope:.2f} s/GB ({1000 / slope:.0f} MB/s), rg {rg_slope:.2f} s/GB "
            f"({1000 / rg_slope:.0f} MB/s), start-up {first - slope * bytes_read[0] / 1e9:.2f} s, ratio {ratio:.2f}"
        )
        if kind == clock:
            good = ratio >= GOALS[name] and memory < MOST_MEMORY
            verdict = f"{name}: {ratio:.2f} of rg (goal {GOALS[name]}), {memory:.0f} MB (at most {MOST_MEMORY})"
            yield f"{verdict}: {'good' if good else 'MISSED'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--full", action="store_true", help="1 and 5 GB")
    parser.add_argument("--sizes", type=float, nargs=2, default=[0.25, 0.5], metavar="GB")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="rare,mixed,gzip")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu where other work is running")
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return
    if not shutil.which("rg"):
        raise SystemExit("ripgrep is needed for comparison: apt-get install ripgrep")
    sizes = [1.0, 5.0] if args.full else args.sizes
    if shutil.disk_usage(args.dir).free < (2 * max(sizes) + 2) * 1e9:
        raise SystemExit(f"{args.dir}: too little room for logs of {max(sizes)} GB")
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="logscan-") as folder:
        for name in args.only.split(","):
            of = [s / 4 for s in sizes] if name == "gzip" else sizes
            for line in measure(name, Path(folder), of, args.runs, args.clock):
                print(line, flush=True)


if __name__ == "__main__":
    main()
