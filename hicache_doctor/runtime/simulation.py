"""The deterministic world: all ranks of a grid in one process, in virtual time, from one seed.

Two kinds of dice: the chooser decides who runs next and logs what it decided; how long a copy takes is a function of
(seed, rank, engine, ordinal), so it belongs to the copy and not to the order of the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hicache_doctor.runtime.faults import NO_FAULTS, FaultPlan
from hicache_doctor.runtime.sim_kernel import Chooser, Failure, Kernel, Replayed, Task
from hicache_doctor.runtime.sim_outcome import Outcome, Record, Wait, raised, suspended
from hicache_doctor.runtime.sim_wire import Wire, WireEnd
from hicache_doctor.runtime.world import Copy, Line, Observations, Rand, Tape, Topology, Vector, World, mix

PAGE_NS = 300_000
"""How long a copy takes a page, before jitter."""
MAX_STEPS = 100_000
NEVER = 1 << 62


class Killed(RuntimeError):
    """The rank's process was killed by the fault plan (SIGKILL)."""


class SimQueue:
    """A FIFO between one producer and one consumer."""

    __slots__ = ("_getters", "_items", "_kernel", "name")

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.name = name
        self._kernel = kernel
        self._items: deque[Any] = deque()
        self._getters: deque[Task] = deque()

    def put(self, item: Any) -> None:
        """Append; never blocks."""
        self._items.append(item)
        kernel = self._kernel
        if self._getters:
            kernel.wake(self._getters.popleft())
        if kernel.preempt:
            kernel.breathe()

    def get(self) -> Any:
        """Take the first item; blocks while empty."""
        while not self._items:
            self._getters.append(self._kernel.current)
            self._kernel.block(("get", self.name))
        return self._items.popleft()

    def qsize(self) -> int:
        """How many items wait."""
        if self._kernel.preempt:
            self._kernel.breathe()
        return len(self._items)


class SimFinish:
    """The finish event of one copy: at time ``at``, and seen only from step ``gate`` on.

    Layers end evenly spaced. A layer's bytes move when somebody has waited for it, the rest at the finish time, so a
    reader that waits for nothing sees old bytes for as long as a GPU could show them.
    """

    __slots__ = ("_copy", "_done", "at", "gate", "kernel", "name", "ordinal", "rank", "start", "world")

    def __init__(self, engine: SimEngine, copy: Copy, start: int, at: int, gate: int) -> None:
        self.world = engine.world
        self.kernel = engine.world.kernel
        self.rank = engine.world.rank
        self.name = engine.name
        self.ordinal = engine.ordinal
        self.start = start
        self.at = at
        self.gate = gate
        self._copy = copy
        self._done = 0

    def query(self) -> bool:
        """Whether the copy is done and the fault plan lets this step see it."""
        kernel = self.kernel
        if kernel.preempt:
            kernel.breathe()
        return kernel.time >= self.at and self.world.step >= self.gate

    def synchronize(self) -> None:
        """Block until the copy is done. The gate does not hold it: the step can't advance while it blocks."""
        self.kernel.wait_until(self.at, ("copy", self.name, self.ordinal))

    def wait_layer(self, layer: int) -> None:
        """Block until layer ``layer`` of the copy is done."""
        layers = max(1, self._copy.layers)
        due = self.start + (self.at - self.start) * (layer + 1) // layers
        self.kernel.wait_until(due, ("copy", self.name, self.ordinal))
        self._run(layer + 1)

    def land(self) -> None:
        """The kernel's call at ``at``."""
        try:
            self._run(self._copy.layers)
        except Exception as error:
            self.kernel.fail(self.rank, f"copy-{self.name}", error)

    def _run(self, layers: int) -> None:
        while self._done < layers:
            self._done += 1
            self._copy.run(self._done - 1)


class SimEngine:
    """A copy stream in virtual time; ``ordinal`` counts its copies from 1."""

    __slots__ = ("_cost", "_dice", "_free", "_gates", "_jitter", "name", "ordinal", "world")

    def __init__(self, world: SimWorld, name: str, page_ns: int, faults: FaultPlan, seed: int) -> None:
        self.world = world
        self.name = name
        self.ordinal = 0
        at = world.at
        self._cost = page_ns
        for pp, factor in faults.slow_copy:
            if pp == at.pp:
                self._cost *= factor
        self._jitter = faults.jitter
        self._dice = seed
        for letter in name.encode():
            self._dice = mix(self._dice, letter)
        self._free = 0
        self._gates = [
            (lag.every, lag.steps)
            for lag in faults.copy_lag
            if lag.engine == name and lag.pp == at.pp and lag.tp in (-1, at.tp)
        ]

    def submit(self, copy: Copy) -> SimFinish:
        """Start a copy behind those already submitted."""
        world = self.world
        kernel = world.kernel
        self.ordinal = n = self.ordinal + 1
        cost = copy.pages * self._cost
        span = cost * self._jitter // 100
        if span:
            cost += mix(self._dice, n) % (span + 1)
        start = kernel.time if kernel.time > self._free else self._free
        self._free = at = start + (cost or 1)
        gate = -1
        for every, steps in self._gates:
            if n % every == 0:
                gate = max(gate, world.step + steps)
        finish = SimFinish(self, copy, start, at, gate)
        kernel.land_at(at, finish)
        return finish


class SimWorld(WireEnd):
    """One rank's view of the simulation; the contract is :class:`~hicache_doctor.runtime.world.World`."""

    __slots__ = (
        "_alarm",
        "_clock_step",
        "_engines",
        "_jumps",
        "_kill",
        "_lag",
        "_observations",
        "_read",
        "_skew",
        "at",
        "line",
        "lines",
        "sim",
        "tasks",
        "topo",
    )

    def __init__(self, sim: Simulation, rank: int, event: Callable[[Any], None], replay: Tape | None) -> None:
        super().__init__(sim.wire, rank, event, sim.keep_ends)
        faults = sim.faults
        self.sim = sim
        self.topo = sim.topo
        self.at = at = sim.topo.place(rank)
        self.tasks: list[Task] = []
        self.line: Line | None = None
        self.lines: list[tuple[int, str, str]] = []
        self._observations = Observations(replay)
        self._engines: dict[str, SimEngine] = {}
        self._skew = sum(ns for who, ns in faults.clock_skew if who == rank)
        self._clock_step = max(1, faults.clock_step)
        self._read = -(1 << 62)
        self._jumps = {step: ns for who, ns, step in faults.clock_jump if who == rank}
        self._lag = sum(ns for pp, ns in faults.lag_stage if pp == at.pp)
        self._kill = min((step for who, step in faults.kill if who == rank), default=NEVER)
        self._alarm = min(self._kill, sim.max_steps + 1)

    # -- time

    def now(self) -> int:
        """Virtual time as this rank's clock shows it: a nanosecond more at each reading, since no clock is read twice
        at one moment (equal stamps are a matter of its resolution)."""
        time = self.kernel.time + self._skew
        if time <= self._read:
            time = self._read + 1
        self._read = time
        return time - time % self._clock_step

    def sleep(self, ns: int) -> None:
        """Block for ``ns``."""
        self.kernel.sleep(ns)

    def tick(self, step: int) -> None:
        """A new scheduler step begins; here a rank is killed, a stage lags, and the step budget ends."""
        self.step = step
        self._skew += self._jumps.pop(step, 0)
        kernel = self.kernel
        kernel.heard()
        if step >= self._alarm:
            if step < self._kill:
                kernel.end("livelock")
            kernel.failures.append(Failure(kernel.time, self.rank, "main", Killed(f"killed at step {step}")))
            kernel.lose(self.rank)
            kernel.block(("killed",))
        if self._lag:
            kernel.sleep(self._lag)

    # -- tasks

    def spawn(self, name: str, fn: Callable[..., Any], *args: Any) -> Task:
        """Start a thread; an exception in it ends the rank."""
        task = self.kernel.spawn(self.rank, name, len(self.tasks), fn, args)
        self.tasks.append(task)
        return task

    def queue(self, name: str) -> SimQueue:
        """A new queue."""
        return SimQueue(self.kernel, name)

    def engine(self, name: str) -> SimEngine:
        """The copy stream of that name; the same one at every call."""
        engine = self._engines.get(name)
        if engine is None:
            sim = self.sim
            engine = SimEngine(self, name, sim.page_ns, sim.faults, mix(sim.dice, self.rank))
            self._engines[name] = engine
        return engine

    # -- evidence

    def observe(
        self, kind: str, seen: Vector, bound: Vector | None = None, at: int | None = None, nth: int | None = None
    ) -> Vector:
        """What is seen, taped; or what the tape says."""
        return self._observations(self.step if at is None else at, kind, seen, bound, nth)

    def record(self, kind: int, key: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> None:
        """One probe event."""
        kernel = self.kernel
        self._event((kind, self.step, kernel.current.no, kernel.time, key, a, b, c, d))

    def log(self, text: str, level: str = "INFO") -> None:
        """One line of the rank's log."""
        self.lines.append((self.kernel.time, level, text))

    def left(self, events: Sequence[Any]) -> Record:
        """What the rank leaves behind."""
        seen = self._observations
        threads = [task.name for task in self.tasks]
        return Record(events, seen.log, seen.misses, self.lines, threads, self.step, self.tasks[0].result)


class Simulation:
    """All ranks of ``topo``, each of which runs ``main(world)``; good for one :meth:`run`.

    ``choices`` replays a logged schedule, or is a chooser of the caller's own. ``preempt``: where a thread could lose
    the processor it does so once in that many times (0: never). ``replay`` holds tapes by rank. ``page_ns`` is what a
    copy takes a page. ``max_steps``: a later step of any rank ends the run as a livelock. ``cascade``: a failure ends
    only its rank, and its peers learn of it as from gloo. Without ``keep_events`` none are kept; with ``keep_ends`` the
    ends of collectives and receives are events too.
    """

    def __init__(
        self,
        topo: Topology,
        main: Callable[[World], Any],
        *,
        seed: int = 0,
        choices: Sequence[int] | Chooser | None = None,
        preempt: int = 0,
        replay: Mapping[int, Tape | None] | None = None,
        faults: FaultPlan = NO_FAULTS,
        page_ns: int = PAGE_NS,
        max_steps: int = MAX_STEPS,
        cascade: bool = False,
        keep_events: bool = True,
        keep_ends: bool = False,
    ) -> None:
        self.topo = topo
        self.main = main
        self.faults = faults
        self.page_ns = page_ns
        self.max_steps = max_steps
        self.keep_ends = keep_ends
        self.dice = mix(Rand(seed).state, faults.seed)
        if choices is None:
            choices = Chooser(seed)
        elif not isinstance(choices, Chooser):
            choices = Replayed(choices)
        self.kernel = Kernel(choices, preempt, cascade)
        self.wire = Wire(self.kernel)
        self.kernel.on_lost = self.wire.lose
        self._events: list[Any] = [[] if keep_events else deque(maxlen=0) for _ in range(topo.n)]
        self.beside: list[tuple[str, Callable[[], None]]] = []
        """Tasks of no rank, by name; the run does not wait for them."""
        tapes = replay or {}
        self.worlds = [SimWorld(self, rank, self._events[rank].append, tapes.get(rank)) for rank in range(topo.n)]

    def run(self) -> Outcome:
        """Run to the end, take down where everybody is, and unwind all tasks."""
        kernel = self.kernel
        kernel.open()
        try:
            for world in self.worlds:
                world.spawn("main", self.main, world)
            for name, fn in self.beside:
                kernel.spawn(-1, name, 1, fn, ())
            how = kernel.run()
            return Outcome(
                how,
                kernel.time,
                kernel.switches,
                list(kernel.chooser.log),
                list(kernel.failures),
                self._waits(),
                list(self.wire.mispaired),
                [world.left(events) for world, events in zip(self.worlds, self._events, strict=True)],
                {} if how == "done" else self._stacks(),
            )
        finally:
            kernel.close()

    def _waits(self) -> list[Wait]:
        return [
            Wait(task.rank, task.name, task.why, self.wire.holders(task))
            for task in self.kernel.tasks
            if task.why is not None and not task.over and task.rank >= 0
        ]

    def _stacks(self) -> dict[int, dict[str, Any]]:
        kernel = self.kernel
        killed = [failure.rank for failure in kernel.failures if isinstance(failure.error, Killed)]
        stacks: dict[int, dict[str, Any]] = {}
        for world in self.worlds:
            if world.rank not in killed:
                stacks[world.rank] = {t.name: suspended(t.frame()) for t in world.tasks if t.frame() is not None}
        for failure in kernel.failures:
            if not isinstance(failure.error, Killed):
                stacks.setdefault(failure.rank, {})[failure.task] = raised(failure.error.__traceback__)
        return {rank: threads for rank, threads in stacks.items() if threads}
