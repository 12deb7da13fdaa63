"""What the simulated world costs, without a protocol: CPU time of each operation, of set-up, and of a toy step.

    python benchmarks/simulation.py [--rounds 20000]

Figures are nanoseconds of CPU time of this process, the best of three runs; targets are for a quiet core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from hicache_doctor.probes.kinds import Kind
from hicache_doctor.runtime.simulation import Simulation
from hicache_doctor.runtime.world import Copy, Topology, World

Main = Callable[[World], None]
TRIES = 3
STEP_TARGET_US = 40
SETUP_TARGET_US = 1000


def best(topo: Topology, main: Main) -> float:
    """CPU seconds of the fastest of a few runs."""
    times = []
    for _ in range(TRIES):
        start = time.process_time()
        outcome = Simulation(topo, main, seed=1).run()
        times.append(time.process_time() - start)
        if outcome.how != "done":
            raise SystemExit(f"{outcome.how}: {outcome.failures or outcome.waits}")
    return min(times)


def operations(rounds: int) -> dict[str, tuple[Topology, Main, int]]:
    """Name → where it runs, what runs there, how many operations that is."""
    pair, alone = Topology(pp_size=2), Topology()

    def sleeps(w: World) -> None:
        for _ in range(rounds):
            w.sleep(1)

    def hand_over(w: World) -> None:
        there, back = w.queue("there"), w.queue("back")

        def echo() -> None:
            for _ in range(rounds):
                back.put(there.get())

        task = w.spawn("echo", echo)
        for i in range(rounds):
            there.put(i)
            back.get()
        task.join()

    def messages(w: World) -> None:
        vec = (1, 2)
        for _ in range(rounds):
            if w.rank:
                w.recv(0, "sync", 2, "pp_sync")
            else:
                w.isend(1, "sync", vec, "pp_sync").wait()

    def reduces(w: World) -> None:
        w.new_group("pp", (0, 1))
        vec = (1, w.rank)
        for _ in range(rounds):
            w.all_reduce("pp", "min", vec, "writing_check")

    def broadcasts(w: World) -> None:
        w.new_group("pp", (0, 1))
        vec = (1, w.rank)
        for _ in range(rounds):
            w.broadcast("pp", vec, "recv_requests")

    def copies(w: World) -> None:
        engine, copy = w.engine("write"), Copy(2, 2, lambda layer: None)
        for _ in range(rounds):
            engine.submit(copy).query()
        engine.submit(copy).synchronize()

    def records(w: World) -> None:
        for i in range(rounds):
            w.record(Kind.STEP, a=i)

    def observes(w: World) -> None:
        for i in range(rounds):
            w.tick(i)
            w.observe("acks", (1, 2), (3, 3))

    return {
        "sleep and switch (two tasks)": (pair, sleeps, 2 * rounds),
        "queue hand-over": (alone, hand_over, 2 * rounds),
        "send, wait and recv": (pair, messages, rounds),
        "all_reduce of two, a member": (pair, reduces, 2 * rounds),
        "broadcast of two, a member": (pair, broadcasts, 2 * rounds),
        "copy: submit, query, land": (alone, copies, rounds),
        "record": (alone, records, rounds),
        "tick and observe": (alone, observes, rounds),
    }


def toy(steps: int) -> Main:
    """About what one scheduler step asks of its world: 3 messages, 2 collectives, 2 copies, a queue, a sleep."""

    def main(w: World) -> None:
        topo, at = w.topo, w.at
        for stage in range(topo.pp_size):
            ranks = [topo.rank(stage, tp) for tp in range(topo.tp_size)]
            w.new_group("tp" if stage == at.pp else "other", ranks)
        before = topo.rank(at.pp - 1, at.tp) if at.pp else -1
        after = topo.rank(at.pp + 1, at.tp) if at.pp < topo.pp_size - 1 else -1
        engine, copy, queue = w.engine("write"), Copy(1, 2, lambda layer: None), w.queue("backup")

        def drain() -> None:
            while queue.get() is not None:
                pass

        thread = w.spawn("backup", drain)
        held = []
        for step in range(steps):
            w.tick(step)
            vec = (step, 0)
            for tag in ("req", "sync", "act"):
                if before >= 0:
                    vec = w.recv(before, tag, 2, "pp_sync")
                if after >= 0:
                    held.append(w.isend(after, tag, vec, "pp_sync"))
            w.all_reduce("tp", "min", vec, "writing_check")
            w.broadcast("tp", vec, "recv_requests")
            done = [engine.submit(copy), engine.submit(copy)]
            w.observe("acks", (sum(x.query() for x in done),), (2,))
            queue.put(step)
            w.sleep(1_000_000)
            for work in held:
                work.wait()
            held.clear()
        queue.put(None)
        thread.join()

    return main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20_000)
    rounds = parser.parse_args().rounds
    for name, (topo, fn, count) in operations(rounds).items():
        print(f"{name:32} {best(topo, fn) / count * 1e9:8.0f} ns")
    for pp, tp in ((2, 1), (4, 2), (8, 8)):
        topo, steps = Topology(pp_size=pp, tp_size=tp), max(20, rounds // 20 // (pp * tp))
        each = best(topo, toy(steps)) / (steps * topo.n) * 1e6
        print(f"toy step pp{pp} tp{tp}, a rank {each:15.1f} µs (target {STEP_TARGET_US})")
    setup = best(Topology(pp_size=2), lambda w: None) * 1e6
    print(f"set-up and end of pp2 tp1 {setup:15.0f} µs (target {SETUP_TARGET_US})")


if __name__ == "__main__":
    main()
