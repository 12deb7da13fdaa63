"""Only the wire operations of a step, by gloo, on real ranks: what no implementation of the runtime can do without.

Each step of a pipeline: messages from the stage before, spread over the TP ranks; the two ack counts, agreed on the
first stage and passed down; hidden states; tokens round the ring; and the model's own all-reduces.
"""

from __future__ import annotations

import time
from typing import Any

STEPS = 300
TOKENS = 8
MESSAGE = 33


def main(world: Any, config: Any) -> dict[str, Any]:
    """Run on every rank; returns pipeline steps a second."""
    import torch

    from hicache_doctor.runtime.scheduler.main import base_groups
    from hicache_doctor.runtime.world import Proxy

    topo, at = world.topo, world.at
    for name, ranks in base_groups(topo, dp_attention=False):
        world.new_group(name, ranks)
    null = config.model.kind == "null"
    before, behind = topo.rank((at.pp - 1) % topo.pp_size, at.tp), topo.rank((at.pp + 1) % topo.pp_size, at.tp)
    first, last = at.pp == 0, at.pp == topo.pp_size - 1
    layers = config.model.partition(topo.pp_size)[at.pp]
    hidden = tuple(range(4)) if null else torch.zeros(2, TOKENS, config.model.hidden, dtype=torch.float64)
    states = torch.zeros(TOKENS, config.model.hidden, dtype=torch.float64)
    works: list[Any] = []
    started = time.monotonic()
    for _ in range(STEPS):
        vec = (0,) * MESSAGE
        if at.tp == 0 and not first:
            vec = world.recv(before, "req", MESSAGE, "recv_requests")
        if topo.tp_size > 1:
            vec = world.broadcast("tp", vec, "recv_requests")
        if at.tp == 0 and not last:
            works.append(world.isend(behind, "req", vec, "recv_requests"))
        for label in ("writing_check", "loading_check"):
            if first and topo.tp_size > 1:
                world.all_reduce("tp", "min", (0,), label)
            if not first:
                world.recv(before, "sync", 1, "pp_sync")
            if not last:
                works.append(world.isend(behind, "sync", (0,), "pp_sync"))
        if not first:
            world.recv_proxy(before, "proxy")
        if topo.tp_size > 1:
            for _layer in range(1 if null else 2 * layers):
                if null:
                    world.all_reduce("fwd", "sum", (TOKENS, 0, 0, 0, 0), "forward")
                else:
                    world.all_reduce_tensor("fwd", states, "forward")
        if not last:
            works.append(world.isend_proxy(behind, Proxy(TOKENS, hidden), "proxy"))
        if topo.pp_size > 1:
            if last:
                works.append(world.isend(behind, "out", (4, 1, 1, 1, 1), "output"))
            else:
                vec = world.recv(before, "out", 18, "output")
                if at.pp < topo.pp_size - 2:
                    works.append(world.isend(behind, "out", vec[:5], "output"))
        while len(works) > 4 * topo.pp_size:
            works.pop(0).wait()
    for work in works:
        work.wait()
    return {"steps_per_second": STEPS / (time.monotonic() - started)}
