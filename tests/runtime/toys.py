"""Small mains for the launcher: each is run on every rank as ``main(world, config)``."""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Any

from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.processes import ProcessWorld
from hicache_doctor.runtime.world import Copy, Proxy, Stop


def nothing(world: ProcessWorld, config: Config) -> dict[str, Any]:
    return {"rank": world.rank}


def everything(world: ProcessWorld, config: Config) -> dict[str, Any]:
    """Each kind of message once, around a ring of all ranks."""
    n, here, stage = world.topo.n, world.rank, world.at.pp
    tp = [world.topo.rank(stage, t) for t in range(world.topo.tp_size)]
    pp = [world.topo.rank(p, world.at.tp) for p in range(world.topo.pp_size)]
    world.new_group("tp", tp)
    world.new_group("pp", pp)
    world.new_group("first", [0])  # a later group must not care that the others are not in this one
    world.new_group("hits.tp", tp)
    out: dict[str, Any] = {"label": world.topo.label(here)}
    events: list[tuple[int, ...]] = []
    world._wire._record = lambda *event: events.append(event)
    after, before = (here + 1) % n, (here - 1) % n
    world.tick(1)
    work = world.isend(after, "req", (here, here * 10), "recv_requests")
    out["before"] = work.is_completed()
    out["ring"] = world.recv(before, "req", 3, "recv_requests")
    work.wait()
    out["after"] = work.is_completed()
    out["min"] = world.all_reduce("tp", "min", (here, 5), "writing_check")
    out["max"] = world.all_reduce("pp", "max", (here,), "pp_sync")
    out["sum"] = world.all_reduce("world", "sum", (here, 1), "check_prefetch")
    out["again"] = world.all_reduce("hits.tp", "min", (here,), "prefetch_hits")
    out["first"] = world.broadcast("pp", (here, 7), "chunk_profile")
    works = [world.isend_proxy(after, p, "proxy") for p in _proxies(here)]
    got = [world.recv_proxy(before, "proxy") for _ in works]
    for w in works:
        w.wait()
    out["proxies"] = [[p.tokens, p.hidden if not hasattr(p.hidden, "tolist") else p.hidden.tolist()] for p in got]
    out["dtype"] = str(got[1].hidden.dtype)
    out["events"] = events
    world.log("Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 0, token usage: 0.01, #running-req: 0, "
              "#queue-req: 0, ")  # fmt: skip
    return out


def _proxies(here: int) -> list[Proxy]:
    import torch

    hidden = torch.full((2, 3), here, dtype=torch.bfloat16)
    return [Proxy(3, (here, 1, 2)), Proxy(2, hidden), Proxy(0, None), Proxy(0, ()), Proxy(0, hidden[:0])]


def observing(world: ProcessWorld, config: Config) -> dict[str, Any]:
    """Counts that no two runs share, unless they come from a tape."""
    seen = []
    for step in range(3):
        world.tick(step)
        seen.append(world.observe("write_acks", (time.monotonic_ns() % 1000 + world.rank,)))
    seen.append(world.observe("io", (os.getpid(),), at=7, nth=2))
    return {"seen": seen}


def copying(world: ProcessWorld, config: Config) -> dict[str, Any]:
    """Two copies on each stream; a gated one is seen late, but its bytes are there at once."""
    moved: list[tuple[str, int]] = []
    out: dict[str, Any] = {}
    world.tick(1)
    for name in ("write", "load"):
        copy = Copy(2, 3, lambda layer, name=name: moved.append((name, layer)))  # type: ignore[misc]
        finishes = [world.engine(name).submit(copy) for _ in range(2)]
        finishes[0].wait_layer(0)
        for finish in finishes:
            finish.synchronize()
        out[name] = [f.query() for f in finishes]
        world.tick(world.step + 3)
        out[name + "_later"] = [f.query() for f in finishes]
    out["moved"] = moved
    out["clock"] = world.now()
    return out


def handing_over(world: ProcessWorld, config: Config) -> dict[str, Any]:
    """A thread takes items from one queue and puts them into another until the sentinel comes."""
    todo, done = world.queue("prefetch_queue"), world.queue("prefetch_buffer")

    def prefetch_thread_func(factor: int) -> None:
        while (item := todo.get()) is not None:
            done.put(item * factor)

    def ends_by_stop() -> None:
        raise Stop

    task = world.spawn("prefetch_thread_func", prefetch_thread_func, 3)
    for item in (1, 2, None):
        todo.put(item)
    task.join()
    world.spawn("ends_by_stop", ends_by_stop).join()
    return {"size": done.qsize(), "items": [done.get(), done.get()], "left": done.qsize()}


def raising(world: ProcessWorld, config: Config) -> dict[str, Any]:
    """PP1 TP0 fails in step 3 while everyone waits in a vote."""
    for step in range(4):
        world.tick(step)
        world.all_reduce("world", "min", (step,), "writing_check")
    if world.rank == world.topo.rank(world.topo.pp_size - 1, 0):
        acks: list[int] = []
        acks.pop(0)
    world.all_reduce("world", "min", (9,), "writing_check")
    return {}


def failing_thread(world: ProcessWorld, config: Config) -> dict[str, Any]:
    """A background thread of rank 0 fails."""

    def prefetch_io_aux_func(batch: int) -> None:
        raise AssertionError(f"batch {batch}")

    world.tick(2)
    if world.rank == 0:
        world.spawn("prefetch_io_aux_func", prefetch_io_aux_func, 5).join()
        time.sleep(60)
    world.recv(0, "req", 1, "recv_requests")
    return {}


def hanging(world: ProcessWorld, config: Config) -> dict[str, Any]:
    """Rank 0 waits for a vote that the others never join; they wait for a request."""
    world.new_group("tp", range(world.topo.n))
    world.all_reduce("tp", "min", (1,), "pp_sync")
    world.tick(5)
    if world.rank == 0:
        writing_check(world)
    return {"got": recv_requests(world)}


def writing_check(world: ProcessWorld) -> None:
    world.all_reduce("tp", "min", (1,), "writing_check")


def recv_requests(world: ProcessWorld) -> tuple[int, ...]:
    return world.recv(0, "req", 1, "recv_requests")


def stepping(world: ProcessWorld, config: Config) -> dict[str, Any]:
    """Votes once a step, for as many steps as the configuration has."""
    for step in range(1, config.steps + 1):
        world.tick(step)
        world.all_reduce("world", "min", (step,), "writing_check")
        world.sleep(1_000_000)
    return {"steps": world.step}


def mismatching(world: ProcessWorld, config: Config) -> dict[str, Any]:
    """Rank 0 sends three integers where rank 1 has room for one."""
    world.tick(1)
    if world.rank == 0:
        world.isend(1, "sync", (1, 2, 3), "pp_sync").wait()
        time.sleep(60)
    world.recv(0, "sync", 1, "pp_sync")
    return {}


def short_message(world: ProcessWorld, config: Config) -> dict[str, Any]:
    """Two votes of different length on one tag: gloo takes the short one for the long one."""
    if world.rank == 0:
        world.isend(1, "sync", (5,), "pp_sync").wait()
        return {}
    return {"got": world.recv(0, "sync", 3, "pp_sync")}


def timing_out(world: ProcessWorld, config: Config) -> dict[str, Any]:
    if world.rank == 1:
        time.sleep(60)
    world.recv(1, "req", 1, "recv_requests")
    return {}


def observed_to_death(world: ProcessWorld, config: Config) -> dict[str, Any]:
    for step in range(3):
        world.tick(step)
        world.observe("write_acks", (step,))
    if world.rank:
        world.recv(0, "req", 1, "recv_requests")
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def disk_full(world: ProcessWorld, config: Config) -> dict[str, Any]:
    raise OSError(errno.ENOSPC, "No space left on device")


def voices(world: ProcessWorld, config: Config) -> dict[str, Any]:
    """Sums a tensor over the forward group, as a model split by tensor parallelism does."""
    import torch

    world.new_group("fwd", range(world.topo.n))
    total = world.all_reduce_tensor("fwd", torch.full((2, 2), float(world.rank + 1)), "forward")
    return {"total": total.tolist()}


def likehicache(world: ProcessWorld, config: Config) -> dict[str, Any]:
    """Steps like HiCache's: three votes in the tensor-parallel group, one hop along the pipeline, one observation."""
    stage, last = world.at.pp, world.topo.pp_size - 1
    world.new_group("tp", [world.topo.rank(stage, t) for t in range(world.topo.tp_size)])
    began = time.monotonic()
    for step in range(1, 301):
        world.tick(step)
        if stage:
            world.recv(world.topo.rank(stage - 1, world.at.tp), "sync", 2, "pp_sync")
        for label in ("writing_check", "loading_check", "check_prefetch"):
            world.all_reduce("tp", "min", (step,), label)
        world.observe("write_acks", (step,))
        if stage < last:
            world.isend(world.topo.rank(stage + 1, world.at.tp), "sync", (step, 1), "pp_sync").wait()
    return {"steps_per_second": round(300 / (time.monotonic() - began))}
