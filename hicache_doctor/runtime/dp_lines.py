"""Lines and desk of the DP controller in real processes: one pipe a receiving rank, a board without a name.

All of it is inherited by fork and has no file that could be left behind. The controller never blocks: what finds no
room in a pipe waits here, what is for a rank that has died is dropped.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections import deque
from collections.abc import Iterable
from time import monotonic_ns

from hicache_doctor.runtime.scheduler.dp_controller import LETTER, DataParallelController
from hicache_doctor.runtime.scheduler.load import Load
from hicache_doctor.runtime.scheduler.load_snapshot import SharedBoard
from hicache_doctor.runtime.spec import Spec
from hicache_doctor.runtime.tape_file import CONTROLLER_TAPE, TapeWriter
from hicache_doctor.runtime.world import CONTROLLER, Observations, Vector

_LETTER = struct.Struct(f"<{LETTER}q")
_MOST = 1024 * _LETTER.size


class PipeLine:
    """A rank's end of its line; see :class:`~hicache_doctor.runtime.world.Line`."""

    def __init__(self, reader: int, board: SharedBoard, group: int) -> None:
        self._reader = reader
        self._board = board
        self._group = group
        self._rest = b""

    def poll(self) -> list[Vector]:
        """What is in the pipe."""
        data = self._rest
        with contextlib.suppress(BlockingIOError):
            data += os.read(self._reader, _MOST)
        whole = len(data) - len(data) % _LETTER.size
        self._rest = data[whole:]
        return list(_LETTER.iter_unpack(data[:whole]))

    def report(self, load: Vector) -> None:
        """Onto the board."""
        self._board.write(self._group, Load(*load))


class Desk:
    """The controller's world; see :class:`~hicache_doctor.runtime.scheduler.dp_controller.Desk`. Made before the fork.

    Raises:
        UsageError: the run names a policy or a fault that there isn't.
    """

    def __init__(self, spec: Spec, folder: str) -> None:
        config = spec.config
        self.controller = DataParallelController(config, config.workload.build(config.seed))
        path = f"{folder}/loads"
        self.board = SharedBoard.create(path, config.topo.dp_size)
        os.unlink(path)
        self._place = config.topo.place
        self._pipes: dict[int, tuple[int, int]] = {}
        for rank in self.controller.receivers():
            reader, writer = self._pipes[rank] = os.pipe()
            os.set_blocking(reader, False)
            os.set_blocking(writer, False)
        self._waiting: dict[int, deque[bytes]] = {rank: deque() for rank in self._pipes}
        self._observations = Observations(None if spec.replay is None else spec.replay.get(CONTROLLER))
        self._tape = TapeWriter(spec.out / "tapes" / CONTROLLER_TAPE, self._observations.log)

    # -- in a rank ----------------------------------------------------------------------------------------------

    def line_of(self, rank: int) -> PipeLine | None:
        """This rank's line, if it has one; every other end is closed."""
        reader, _ = self._pipes.get(rank, (-1, -1))
        self._close(fd for pair in self._pipes.values() for fd in pair if fd != reader)
        return None if reader < 0 else PipeLine(reader, self.board, self._place(rank).dp)

    # -- in the launcher ----------------------------------------------------------------------------------------

    def forked(self) -> None:
        """All ranks have their ends: those of this process would keep the pipe of a dead one open."""
        self._close(reader for reader, _ in self._pipes.values())
        self._pipes = {rank: (-1, writer) for rank, (_, writer) in self._pipes.items()}

    def work(self) -> int | None:
        """One turn of the controller; nanoseconds until the next, None: nothing is known to come."""
        wait = self.controller.turn(self)
        for rank, letters in self._waiting.items():
            while letters and self._write(rank, letters[0]):
                letters.popleft()
        return wait

    def now(self) -> int:
        """The wall clock."""
        return monotonic_ns()

    def observe(self, kind: str, seen: Vector, at: int) -> Vector:
        """Taped, or replayed."""
        value = self._observations(at, kind, seen, None, 0)
        self._tape.flush()
        return value

    def send(self, rank: int, letter: Vector) -> None:
        """Goes out at the end of the turn."""
        self._waiting[rank].append(_LETTER.pack(*letter))

    def close(self) -> None:
        """Give everything back."""
        self._close(fd for pair in self._pipes.values() for fd in pair if fd >= 0)
        self._pipes = {}
        self._tape.close()
        self.board.close()

    def _write(self, rank: int, letter: bytes) -> bool:
        """False: the pipe is full. A letter is shorter than what a pipe takes in whole."""
        try:
            os.write(self._pipes[rank][1], letter)
        except BlockingIOError:
            return False
        except BrokenPipeError:
            pass
        return True

    @staticmethod
    def _close(fds: Iterable[int]) -> None:
        for fd in fds:
            os.close(fd)
