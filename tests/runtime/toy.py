"""A small protocol that touches everything the simulated world has. Run as a script it prints digests, so that other
interpreters and hash seeds can be compared."""

from __future__ import annotations

import sys
from typing import Any

from hicache_doctor.probes.kinds import Kind
from hicache_doctor.runtime.faults import CopyLag, FaultPlan
from hicache_doctor.runtime.sim_outcome import Outcome
from hicache_doctor.runtime.simulation import Simulation
from hicache_doctor.runtime.world import Copy, Proxy, Topology, World

FAULTS = FaultPlan(copy_lag=(CopyLag(pp=1, steps=2, every=2),), slow_copy=((0, 3),), clock_skew=((1, 5000),))


def make_groups(w: World) -> None:
    """``tp`` and ``hits.tp`` of the own stage, made by every rank in the same order."""
    for name in ("tp", "hits.tp"):
        for pp in range(w.topo.pp_size):
            w.new_group(name if pp == w.at.pp else "other", [w.topo.rank(pp, t) for t in range(w.topo.tp_size)])


def toy(w: World, steps: int = 12, fail_at: int = -1) -> int:
    """A chain of stages with ack counts from the first, votes in a thread of its own, copies, and a proxy."""
    make_groups(w)
    topo, at = w.topo, w.at
    before = topo.rank(at.pp - 1, at.tp) if at.pp else -1
    after = topo.rank(at.pp + 1, at.tp) if at.pp < topo.pp_size - 1 else -1
    work, votes, engine = w.queue("work"), w.queue("votes"), w.engine("write")

    def vote() -> None:
        nth = 0
        while (item := work.get()) is not None:
            (seen,) = w.observe("hits", (item % 7 + w.rank,), None, nth, 0)
            w.sleep(100_000 * (1 + w.rank))
            votes.put(w.all_reduce("hits.tp", "min", (seen,), "prefetch_hits")[0])
            nth += 1

    thread = w.spawn("prefetch", vote)
    acks: list[Any] = []
    held: list[Any] = []
    landed: list[int] = []
    total = 0
    for step in range(steps):
        w.tick(step)
        w.record(Kind.STEP, a=len(acks), b=votes.qsize())
        work.put(step)
        acks.append(engine.submit(Copy(1 + step % 3, 2, landed.append)))
        ready = sum(x.query() for x in acks)
        (n,) = w.observe("acks", (ready,), (len(acks),))
        if at.pp == 0:
            (n,) = w.all_reduce("tp", "min", (n,), "writing_check")
        else:
            (n,) = w.recv(before, "sync", 1, "pp_sync")
        if after >= 0:
            held.append(w.isend(after, "sync", (n,), "pp_sync"))
        for _ in range(n):
            acks.pop(0).synchronize()
        hidden = w.recv_proxy(before, "proxy").tokens if before >= 0 else step
        if after >= 0:
            held.append(w.isend_proxy(after, Proxy(hidden + n, None), "proxy"))
        w.broadcast("tp", (step, n), "recv_requests")
        if step == fail_at and w.rank == topo.n - 1:
            raise IndexError("pop from empty list")
        w.sleep(1_000_000)
        while len(held) > 2:
            held.pop(0).wait()
        total += hidden + n + w.now() % 97
    for x in held:
        x.wait()
    work.put(None)
    thread.join()
    w.log(f"ended with {total}")
    return total


def outcomes() -> list[Outcome]:
    """Runs with and without preemption, faults, failure; small and larger grids."""
    return [
        Simulation(Topology(pp_size=2), toy, seed=3, keep_ends=True).run(),
        Simulation(Topology(pp_size=2, tp_size=2), toy, seed=4, preempt=5, faults=FAULTS).run(),
        Simulation(Topology(pp_size=3, tp_size=3), toy, seed=5, preempt=3, faults=FAULTS).run(),
        Simulation(Topology(pp_size=2, tp_size=2), lambda w: toy(w, fail_at=7), seed=6, cascade=True).run(),
    ]


if __name__ == "__main__":
    sys.stdout.write("\n".join(f"{o.how} {o.time} {o.switches} {o.digest()}" for o in outcomes()) + "\n")
