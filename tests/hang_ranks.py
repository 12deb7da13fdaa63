"""Ranks that really hang: ``python hang_ranks.py RANK SIZE FOLDER SCENARIO``, one process each, over gloo on loopback.

The functions have SGLang's names, since a recorder and a stack tell a call by the function that made it. Each rank says
``hung`` once its watcher saw its main thread stand and wrote its flight recorder; then it waits to be ended. What it
would log stands in ``logs``, in SGLang's form.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "500"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch
import torch.distributed as dist

STANDS = 3.0
STEPS = 8


class Scheduler:
    """A rank's calls of a step: receive the requests, vote."""

    def __init__(self, rank: int, group: dist.ProcessGroup | None, other: dist.ProcessGroup | None) -> None:
        self.rank, self.group, self.other = rank, group, other
        self.beat = time.monotonic()

    def recv_requests(self) -> None:
        self.broadcast_pyobj()

    def broadcast_pyobj(self) -> None:
        dist.broadcast(torch.zeros(4, dtype=torch.int64), 0, group=self.group)

    def writing_check(self) -> None:
        self._all_reduce_attn_groups(self.group)

    def check_prefetch_progress(self) -> None:
        self._all_reduce_attn_groups(self.other)

    def _all_reduce_attn_groups(self, group: dist.ProcessGroup | None) -> None:
        dist.all_reduce(torch.ones(1, dtype=torch.int64), dist.ReduceOp.MIN, group=group)

    def _pp_recv_pyobj_from_prev_stage(self) -> None:
        dist.recv(torch.zeros(2, dtype=torch.int64), self.rank - 1)

    def forward(self) -> None:
        time.sleep(3600)

    def step(self) -> None:
        self.beat = time.monotonic()
        self.recv_requests()
        self.writing_check()


def healthy(s: Scheduler) -> None:
    for _ in range(STEPS):
        s.step()


def skip(s: Scheduler) -> None:
    """Rank 1 leaves one vote out: it goes on to the next requests."""
    healthy(s)
    s.recv_requests()
    if s.rank != 1:
        s.writing_check()
    s.recv_requests()


def swap(s: Scheduler) -> None:
    """Two votes in two groups, in another order on rank 1."""
    healthy(s)
    calls = [s.writing_check, s.check_prefetch_progress]
    for call in reversed(calls) if s.rank == 1 else calls:
        call()


def stuck(s: Scheduler) -> None:
    """Rank 2 stops in its own computing."""
    healthy(s)
    if s.rank == 2:
        s.forward()
    s.step()


def dead(s: Scheduler) -> None:
    """Rank 2 is gone without a word."""
    healthy(s)
    if s.rank == 2:
        os.kill(os.getpid(), 9)
    s.step()


def message(s: Scheduler) -> None:
    """A chain of stages: each waits for the one before, the first computes."""
    healthy(s)
    if s.rank == 0:
        s.forward()
    s._pp_recv_pyobj_from_prev_stage()


SCENARIOS: dict[str, Callable[[Scheduler], None]] = {f.__name__: f for f in (skip, swap, stuck, dead, message)}


def watch(s: Scheduler, folder: Path) -> None:
    """Write the recorder once the rank stands, with stacks; from a thread, as the main one is in gloo."""
    while time.monotonic() - s.beat < STANDS:
        time.sleep(0.1)
    write(s, folder)


def write(s: Scheduler, folder: Path) -> None:
    data = torch._C._distributed_c10d._dump_fr_trace(True, True, False)
    (folder / f"comm_lib_trace_rank_{s.rank}").write_bytes(data)
    print("hung", flush=True)
    time.sleep(3600)


def log(path: Path, label: str, text: str) -> None:
    with path.open("a") as f:
        f.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} {label}] {text}\n")


def main() -> None:
    rank, size, folder, scenario = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    long = timedelta(seconds=600)
    everybody = list(range(size))
    groups = [dist.new_group(everybody, timeout=long, group_desc=name) for name in ("attn_tp", "prefetch")]
    stages = scenario == "message"
    label = f"PP{rank}" if stages else f"TP{rank}"
    pp, tp = (size, 1) if stages else (1, size)
    args = f"server_args=ServerArgs(pp_size={pp}, tp_size={tp}, enable_hierarchical_cache=True, page_size=64)"
    log(folder / "logs" / f"{label}.log", label, args)
    s = Scheduler(rank, *groups)
    threading.Thread(target=watch, args=(s, folder / "dumps"), daemon=True).start()
    try:
        SCENARIOS[scenario](s)
    except RuntimeError:
        log(folder / "logs" / f"{label}.log", label, f"Scheduler hit an exception: {traceback.format_exc()}")
        write(s, folder / "dumps")


if __name__ == "__main__":
    main()
