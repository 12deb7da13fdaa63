"""Tasks in virtual time: every rank and thread is a greenlet, and one chooser says who runs next.

A task runs until it blocks, then hands over straight to the next one (no hop through a hub). When nobody is ready the
clock jumps to the next timer; when there is no timer either, nothing can ever run again: the deadlock is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from greenlet import getcurrent, greenlet

from hicache_doctor.runtime.world import Rand, Stop

QUIET_JUMPS = 200_000
"""So many jumps of the clock without a scheduler step, and the run counts as a livelock: somebody polls for ever."""
CLOSE_TRIES = 100
"""How often a task that blocks again in its ``finally`` is told to stop."""

Why = tuple[Any, ...]


class Chooser(Rand):
    """Decides the schedule from a seed; ``log`` is what it decided, as small numbers of which 0 is the tame one.

    A subclass with other ideas (replay, exploration) overrides :meth:`pick` alone.
    """

    __slots__ = ("log",)

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.log: list[int] = []

    def pick(self, n: int) -> int:
        """A number in [0, n): which of ``n`` ready tasks runs; 0 is the one that has waited longest."""
        x = self.below(n)
        self.log.append(x)
        return x

    def chance(self, n: int) -> bool:
        """Whether the running task is preempted here, once in ``n`` times; logged as 1, and 0 when it is not."""
        x = self.below(n) == 0
        self.log.append(1 if x else 0)
        return x


class Replayed(Chooser):
    """Plays a log of choices; what is missing in it is 0, what is too large is the last ready task."""

    __slots__ = ("_choices",)

    def __init__(self, choices: Sequence[int]) -> None:
        super().__init__(0)
        self._choices = choices

    def pick(self, n: int) -> int:
        """The next choice of the log."""
        at = len(self.log)
        x = self._choices[at] if at < len(self._choices) else 0
        if x >= n:
            x = n - 1
        self.log.append(x)
        return x

    def chance(self, n: int) -> bool:
        """Whether the next choice of the log is not 0."""
        return self.pick(2) == 1


class Failure(NamedTuple):
    """An exception that ended a task, with its traceback in ``error``; ``time`` is virtual ns."""

    time: int
    rank: int
    task: str
    error: BaseException


class Task:
    """One greenlet: thread ``no`` of a rank, 0 is its main task.

    ``why`` is what it is blocked on (None: it runs or could), ``value`` what the one that wakes it hands over.
    """

    __slots__ = (
        "error",
        "greenlet",
        "joiners",
        "kernel",
        "name",
        "no",
        "over",
        "rank",
        "result",
        "switch",
        "value",
        "why",
    )

    def __init__(self, kernel: Kernel, rank: int, name: str, no: int) -> None:
        self.kernel = kernel
        self.rank = rank
        self.name = name
        self.no = no
        self.why: Why | None = None
        self.value: Any = None
        self.error: BaseException | None = None
        self.result: Any = None
        self.over = False
        self.joiners: list[Task] = []
        self.greenlet: Any = None
        self.switch: Callable[[], Any] = getcurrent

    def join(self) -> None:
        """Block until it has ended."""
        if not self.over:
            self.joiners.append(self.kernel.current)
            self.kernel.block(("join", self.name))

    def frame(self) -> FrameType | None:
        """Its innermost frame while it is suspended."""
        frame: FrameType | None = None if self.greenlet is None else self.greenlet.gr_frame
        return frame


class Kernel:
    """Ready tasks, timers, the clock, and how the run ends.

    ``on_lost(rank)`` is called when a rank is gone. With ``cascade`` an exception ends only its rank, otherwise the
    run.
    """

    __slots__ = (
        "_seq",
        "_timers",
        "cascade",
        "chooser",
        "current",
        "failures",
        "how",
        "hub",
        "lost",
        "mains",
        "on_lost",
        "preempt",
        "quiet",
        "ready",
        "switches",
        "tasks",
        "time",
    )

    def __init__(self, chooser: Chooser, preempt: int = 0, cascade: bool = False) -> None:
        self.chooser = chooser
        self.preempt = preempt
        self.cascade = cascade
        self.time = 0
        self.quiet = 0
        self.switches = 0
        self.mains = 0
        self.how = ""
        self.tasks: list[Task] = []
        self.ready: list[Task] = []
        self.failures: list[Failure] = []
        self.lost: dict[int, bool] = {}
        self.hub: Any = getcurrent()
        self.current = Task(self, -1, "hub", -1)
        self.on_lost: Callable[[int], object] = int
        self._timers: list[tuple[int, int, Any]] = []
        self._seq = 0

    # -- tasks

    def spawn(self, rank: int, name: str, no: int, fn: Callable[..., Any], args: tuple[Any, ...]) -> Task:
        """A new ready task.

        It is started here and switches straight back: a greenlet inherits the recursion depth of whoever starts it,
        and one started by whoever happens to block would begin ever deeper.
        """
        task = Task(self, rank, name, no)
        starter = getcurrent()

        def body() -> None:
            try:
                starter.switch()
                task.result = fn(*args)
            except Stop:
                return
            except Exception as error:
                self.fail(rank, name, error)
            self._leave(task)

        task.greenlet = greenlet(body, self.hub)
        task.switch = task.greenlet.switch
        task.switch()
        self.tasks.append(task)
        self.ready.append(task)
        if no == 0:
            self.mains += 1
        return task

    def _leave(self, task: Task) -> None:
        """The task has ended: its parent becomes whoever is next, so that its end is the hand-over."""
        self._end_task(task)
        for joiner in task.joiners:
            self.wake(joiner)
        after = self._next()
        if after is not None:
            task.greenlet.parent = after.greenlet
            self.current = after
            self.switches += 1

    def _end_task(self, task: Task) -> None:
        if not task.over:
            task.over = True
            if task.no == 0:
                self.mains -= 1
                if self.mains == 0 and not self.how:
                    self.how = "done"

    def fail(self, rank: int, name: str, error: BaseException) -> None:
        """An exception left a task or a copy: the end of the run, or with ``cascade`` of its rank."""
        if not self.how:
            self.failures.append(Failure(self.time, rank, name, error))
            if self.cascade:
                self.lose(rank)
            else:
                self.how = "failed"

    def lose(self, rank: int) -> None:
        """The process of a rank is gone: its tasks never run again, its copies never land."""
        if rank in self.lost:
            return
        self.lost[rank] = True
        for task in self.tasks:
            if task.rank == rank:
                self._end_task(task)
        self.ready[:] = [task for task in self.ready if task.rank != rank]
        self._timers[:] = [timer for timer in self._timers if timer[2].rank != rank]
        heapify(self._timers)
        self.on_lost(rank)

    # -- blocking

    def block(self, why: Why | None) -> None:
        """Suspend the running task until somebody wakes it; raises what it was woken with (``PeerLost``)."""
        task = self.current
        task.why = why
        after = self._next()
        if after is not task:
            if after is None:
                self.hub.switch()
            else:
                self.current = after
                self.switches += 1
                after.switch()
        if task.error is not None:
            error, task.error = task.error, None
            raise error

    def wake(self, task: Task) -> None:
        """Make a blocked task ready; not one whose rank is gone."""
        if not task.over:
            task.why = None
            self.ready.append(task)

    def sleep(self, ns: int) -> None:
        """Block for ``ns``."""
        self._seq += 1
        heappush(self._timers, (self.time + ns, self._seq, self.current))
        self.block(("sleep", ns))

    def wait_until(self, time: int, why: Why) -> None:
        """Block until ``time``."""
        if self.time < time:
            self._seq += 1
            heappush(self._timers, (time, self._seq, self.current))
            self.block(why)

    def land_at(self, time: int, landing: Any) -> None:
        """Call ``landing.land()`` at ``time``, before any task runs then; ``landing.rank`` says whose it is."""
        self._seq += 1
        heappush(self._timers, (time, self._seq, landing))

    def breathe(self) -> None:
        """A place where a thread could be preempted."""
        if self.ready and self.chooser.chance(self.preempt):
            self.ready.append(self.current)
            self.block(None)

    def _next(self) -> Task | None:
        """Who runs next; None when the run is over or nobody ever can."""
        ready = self.ready
        while True:
            if self.how:
                return None
            if ready:
                break
            timers = self._timers
            if not timers:
                return None
            self.quiet += 1
            if self.quiet > QUIET_JUMPS:
                self.how = "livelock"
                return None
            self.time = time = timers[0][0]
            while timers and timers[0][0] == time:
                due = heappop(timers)[2]
                if due.__class__ is Task:
                    due.why = None
                    ready.append(due)
                else:
                    due.land()
        n = len(ready)
        return ready.pop(self.chooser.pick(n)) if n > 1 else ready.pop()

    # -- the run

    def open(self) -> None:
        """The caller becomes the hub: tasks that are spawned from now on come back to it when the run ends."""
        self.hub = getcurrent()

    def heard(self) -> None:
        """A scheduler step began somewhere: the run is alive."""
        self.quiet = 0

    def run(self) -> str:
        """Run to the end: ``done``, ``failed``, ``livelock``, or ``deadlock`` when nobody can ever run again."""
        first = self._next()
        if first is not None:
            self.current = first
            self.switches += 1
            first.switch()
        if not self.how:
            self.how = "deadlock"
        if self.failures and self.how != "livelock":
            self.how = "failed"
        return self.how

    def end(self, how: str) -> NoReturn:
        """End the run from inside a task, which stays suspended here."""
        self.how = how
        self.hub.switch()
        raise Stop

    def close(self) -> None:
        """Unwind every task that has not ended, and let go of all greenlets."""
        self.how = self.how or "closed"
        for task in self.tasks:
            for _ in range(CLOSE_TRIES):
                if task.greenlet is None or task.greenlet.dead:
                    break
                self.current = task
                task.greenlet.throw(Stop)
            else:
                raise RuntimeError(f"task {task.name} of rank {task.rank} catches Stop")
            task.greenlet = None
            task.switch = getcurrent
        self.ready.clear()
        self._timers.clear()
