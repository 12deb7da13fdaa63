"""The DP controller in the simulation: a task of no rank, queues for lines, and a board in memory."""

from __future__ import annotations

from collections import deque

from hicache_doctor.runtime.scheduler.dp_controller import DataParallelController
from hicache_doctor.runtime.scheduler.load import Load, MemoryBoard
from hicache_doctor.runtime.sim_kernel import Task
from hicache_doctor.runtime.simulation import Simulation
from hicache_doctor.runtime.world import Observations, Tape, TapeKey, Vector

NAME = "data_parallel_controller"


class SimLine:
    """A rank's end of its line; see :class:`~hicache_doctor.runtime.world.Line`."""

    __slots__ = ("_desk", "_group", "letters")

    def __init__(self, desk: SimDesk, group: int) -> None:
        self.letters: deque[Vector] = deque()
        self._desk = desk
        self._group = group

    def poll(self) -> list[Vector]:
        """What was sent up to now."""
        came = list(self.letters)
        self.letters.clear()
        return came

    def report(self, load: Vector) -> None:
        """Onto the board; the controller waits for the first one of each group."""
        self._desk.board.write(self._group, Load(*load))
        self._desk.wake()


class SimDesk:
    """The controller's world; see :class:`~hicache_doctor.runtime.scheduler.dp_controller.Desk`.

    Its timers are those of messages that are still to be sent. While a group is not ready it waits without one, so that
    a deadlock stays exact.
    """

    def __init__(self, simulation: Simulation, controller: DataParallelController, tape: Tape | None) -> None:
        self.board = MemoryBoard(controller.groups)
        self._kernel = simulation.kernel
        self._controller = controller
        self._observations = Observations(tape)
        self._lines: dict[int, SimLine] = {}
        self._waiting: Task | None = None
        for rank in controller.receivers():
            world = simulation.worlds[rank]
            world.line = self._lines[rank] = SimLine(self, world.at.dp)
        simulation.beside.append((NAME, self._work))

    @property
    def tape(self) -> list[tuple[TapeKey, Vector]]:
        """What the controller observed."""
        return self._observations.log

    @property
    def misses(self) -> int:
        """Observations that its tape did not have."""
        return self._observations.misses

    def now(self) -> int:
        """Virtual time."""
        return self._kernel.time

    def observe(self, kind: str, seen: Vector, at: int) -> Vector:
        """Taped, or replayed."""
        return self._observations(at, kind, seen, None, 0)

    def send(self, rank: int, letter: Vector) -> None:
        """It is there at once; when the rank looks is up to the schedule."""
        self._lines[rank].letters.append(letter)

    def wake(self) -> None:
        """A group has reported."""
        task, self._waiting = self._waiting, None
        if task is not None:
            self._kernel.wake(task)

    def _work(self) -> None:
        kernel, controller = self._kernel, self._controller
        while True:
            wait = controller.turn(self)
            if wait is not None:
                kernel.sleep(wait)
            elif controller.ended:
                return
            else:
                self._waiting = kernel.current
                kernel.block(("get", "first loads"))
