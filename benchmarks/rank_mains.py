"""What ranks run for the benchmark of real processes instead of their ordinary life.

The null model's forward takes no time here: its modelled computing is a sleep and would hide what the runtime costs.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections import deque
from pathlib import Path
from typing import Any

from hicache_doctor.probes.kinds import Kind, Op
from hicache_doctor.runtime import ring_events
from hicache_doctor.runtime.model import null
from hicache_doctor.runtime.scheduler.main import base_groups, run_rank
from hicache_doctor.runtime.wire_names import GROUPS, SITES

COLLECTIVE, SEND, RECV, FORWARD = int(Kind.COLLECTIVE), int(Kind.SEND), int(Kind.RECV), int(Kind.FORWARD)
META = 9
"""Integers in the message that goes before a proxy's payload."""
Wire = tuple[int, int, int, int, int]
"""Kind, then group, operation and size, or peer, site and size; a proxy's payload where there is one."""


def whole(world: Any, config: Any) -> dict[str, Any]:
    """The runtime."""
    null.BASE_NS = null.TOKEN_NS = 0
    return run_rank(world, config)


def unrecorded(world: Any, config: Any) -> dict[str, Any]:
    """The runtime without its recorder: each record is an empty call."""

    def nothing(kind: int, key: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> None:
        return None

    world.record = world._record = world._wire._record = nothing
    return whole(world, config)


def profiled(world: Any, config: Any) -> dict[str, Any]:
    """The runtime under a profiler: seconds of each function's own, the largest twelve."""
    profiler = cProfile.Profile()
    result = profiler.runcall(whole, world, config)
    stats = pstats.Stats(profiler)
    own = sorted(((times[2], name) for name, times in stats.stats.items()), reverse=True)  # type: ignore[attr-defined]
    total = sum(seconds for seconds, _ in own)
    costs = {f"{Path(file).name}:{function}" if line else function: s for s, (file, line, function) in own[:12]}
    return {**result, "costs": costs, "total": total}


def bare(world: Any, config: Any) -> dict[str, Any]:
    """Only the wire operations that a recorded run did on this rank, in its order, by torch.distributed itself.

    ``config.l3_path`` names the folder of that run's rings. Reading it and making tensors come before the clock starts.
    """
    import torch
    import torch.distributed as dist

    topo = world.topo
    for name, ranks in base_groups(topo, dp_attention=False):
        world.new_group(name, ranks)
    handles = {GROUPS[name]: pair for name, pair in world._wire._groups.items()}
    real = config.model.kind != "null"
    ops = wire_of(ring_events.read(Path(config.l3_path), topo.n)[world.rank], config.model.hidden if real else 0)
    floats = {size: torch.zeros(size, dtype=torch.float64) for _, _, _, _, size in ops if size}
    whole_numbers = {op[3]: torch.zeros(op[3], dtype=torch.int64) for op in ops}
    sums = {int(Op.MIN): dist.ReduceOp.MIN, int(Op.MAX): dist.ReduceOp.MAX, int(Op.SUM): dist.ReduceOp.SUM}
    meta, held = torch.zeros(META, dtype=torch.int64), deque[Any]()
    dist.barrier()
    started = time.monotonic_ns()
    for kind, where, what, size, payload in ops:
        tensor = whole_numbers[size]
        if kind == COLLECTIVE:
            group, ranks = handles[where]
            if what in sums:
                dist.all_reduce(floats[payload] if payload else tensor, sums[what], group=group)
            else:
                dist.broadcast(tensor, ranks[0], group=group)
        elif kind == RECV:
            if payload:
                dist.recv(meta, where, tag=100 + what)
            dist.recv(floats[payload] if payload and real else tensor, where, tag=what)
        else:
            if payload:
                held.append(dist.isend(meta, where, tag=100 + what))
            held.append(dist.isend(floats[payload] if payload and real else tensor, where, tag=what))
            while len(held) > 8 * topo.pp_size:
                held.popleft().wait()
    took = time.monotonic_ns() - started
    for work in held:
        work.wait()
    return {"loop_ns": took, "operations": len(ops)}


def wire_of(events: list[Any], hidden: int) -> list[Wire]:
    """A rank's wire operations from its events; ``hidden`` is the width of the states between stages, 0 for the null
    model, which sends a number a request."""
    ops: list[Wire] = []
    forward, came = (0, 0), -1
    for kind, _, _, _, _, a, b, c, d in events:
        if kind == FORWARD:
            # What a forward pass takes is received before it, what it gives is sent after it.
            forward = (c, b * hidden if hidden else c)
            if came >= 0:
                ops[came] = (*ops[came][:3], *forward)
                came = -1
        elif kind == COLLECTIVE:
            ops.append((kind, a, b, c, c if hidden and d == SITES["forward"] else 0))
        elif kind in (SEND, RECV) and b == SITES["proxy"]:
            came = len(ops) if kind == RECV else came
            ops.append((kind, a, b, *forward))
        elif kind in (SEND, RECV):
            ops.append((kind, a, b, c, 0))
    return ops
