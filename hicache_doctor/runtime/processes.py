"""The real world: one operating-system process a rank, gloo, threads, the wall clock."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.copy_engine import CudaEngine, Pace, ThreadEngine
from hicache_doctor.runtime.gloo_wire import GlooWire, GlooWork
from hicache_doctor.runtime.pulse import Pulse
from hicache_doctor.runtime.rank_log import RankLog
from hicache_doctor.runtime.recording import Recording
from hicache_doctor.runtime.tape_file import TapeWriter
from hicache_doctor.runtime.world import Line, Observations, Proxy, Tape, Vector

if TYPE_CHECKING:
    import torch

    from hicache_doctor.runtime.world import Engine, Queue, Task, World

_QUIET = ("DEBUG", "TRACE")


class ProcessWorld:
    """One rank's view of real processes; see :class:`~hicache_doctor.runtime.world.World` for the contract.

    A dead peer raises torch's RuntimeError with gloo's text and not PeerLost, so that a log reads like a server's; a
    message longer than the buffer aborts the process (SIGABRT). The default process group must exist.
    """

    def __init__(
        self,
        config: Config,
        *,
        recording: Recording,
        log: RankLog,
        pulse: Pulse | None = None,
        replay: Tape | None = None,
        device: str = "cpu",
        tape: Path | None = None,
        line: Line | None = None,
    ) -> None:
        record = recording.make_record()
        self._pulse = pulse
        self._wire = GlooWire(config.wire_timeout, record, self._beat, device)
        self.config = config
        self.rank = self._wire.rank
        self.topo = config.topo
        self.at = config.topo.place(self.rank)
        self.step = 0
        self.line = line
        self.device = device
        self.observations = Observations(replay)
        self._record = record
        self._step_cell = recording.step
        self._tape = None if tape is None else TapeWriter(tape, self.observations.log)
        self._log = log
        faults = config.faults
        self._skew = dict(faults.clock_skew).get(self.rank, 0)
        self._resolution = max(1, faults.clock_step)
        self._lag = dict(faults.lag_stage).get(self.at.pp, 0)
        self._dies = {step for rank, step in faults.kill if rank == self.rank}
        self._engines: dict[str, Engine] = {}
        self._threads = itertools.count(1)

    def _beat(self) -> None:
        if self._pulse is not None:
            self._pulse.beat(self.rank)

    # -- time ---------------------------------------------------------------------------------------------------

    def now(self) -> int:
        """Nanoseconds of this rank's clock: monotonic, with the skew and the resolution of the fault plan."""
        return (time.monotonic_ns() + self._skew) // self._resolution * self._resolution

    def sleep(self, ns: int) -> None:
        """Block for ``ns``."""
        time.sleep(ns / 1e9)

    def tick(self, step: int) -> None:
        """A new scheduler step begins; here a planned SIGKILL strikes."""
        self.step = step
        self._step_cell[0] = step
        if self._pulse is not None:
            self._pulse.stepped(self.rank, step)
        if step in self._dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._lag:
            time.sleep(self._lag / 1e9)

    # -- tasks --------------------------------------------------------------------------------------------------

    def spawn(self, name: str, fn: Callable[..., None], *args: Any) -> Task:
        """Start a thread, named as Python names those of SGLang; what it raises goes to ``threading.excepthook``."""
        title = f"Thread-{next(self._threads)} ({name})"
        thread = threading.Thread(target=fn, args=args, name=title, daemon=True)
        thread.start()
        return thread

    def queue(self, name: str) -> Queue:
        """A new queue."""
        return queue.Queue()

    def engine(self, name: str) -> Engine:
        """The copy stream ``write`` or ``load``, made when first asked for."""
        if name not in self._engines:
            pace = Pace(name, self.config.faults, self.at, self.rank)
            if self.device == "cpu":
                self._engines[name] = ThreadEngine(name, pace, lambda: self.step, self._beat)
            else:
                self._engines[name] = CudaEngine(pace, lambda: self.step)
        return self._engines[name]

    # -- wire ---------------------------------------------------------------------------------------------------

    def new_group(self, name: str, ranks: Sequence[int]) -> None:
        """Make a process group of ``ranks``."""
        self._wire.new_group(name, ranks)

    def all_reduce(self, group: str, op: str, vec: Vector, label: str) -> Vector:
        """Element-wise ``min``, ``max`` or ``sum``."""
        return self._wire.all_reduce(group, op, vec, label)

    def all_reduce_tensor(self, group: str, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """The sum of a model's tensor over a group; only this world has tensors."""
        return self._wire.all_reduce_tensor(group, tensor, label)

    def broadcast(self, group: str, vec: Vector, label: str) -> Vector:
        """The vector of the group's first member."""
        return self._wire.broadcast(group, vec, label)

    def isend(self, dst: int, tag: str, vec: Vector, label: str) -> GlooWork:
        """Start a send to a global rank."""
        return self._wire.isend(dst, tag, vec, label)

    def recv(self, src: int, tag: str, n: int, label: str) -> Vector:
        """Receive into a buffer of ``n`` integers."""
        return self._wire.recv(src, tag, n, label)

    def isend_proxy(self, dst: int, proxy: Proxy, label: str) -> GlooWork:
        """Send a proxy."""
        return self._wire.send_tensor_dict(dst, proxy, label)

    def recv_proxy(self, src: int, label: str) -> Proxy:
        """Receive whatever proxy the peer sent next."""
        return self._wire.recv_tensor_dict(src, label)

    # -- evidence -----------------------------------------------------------------------------------------------

    def observe(
        self, kind: str, seen: Vector, bound: Vector | None = None, at: int | None = None, nth: int | None = None
    ) -> Vector:
        """What was seen, or what the tape says was."""
        value = self.observations(self.step if at is None else at, kind, seen, bound, nth)
        if self._tape is not None:
            self._tape.flush()
        return value

    def record(self, kind: int, key: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> None:
        """One probe event."""
        self._record(kind, key, a, b, c, d)

    def log(self, text: str, level: str = "INFO") -> None:
        """One line of the rank's log; like a server's, it shows no level and leaves debug lines out."""
        if level not in _QUIET:
            self._log.say(text)


if TYPE_CHECKING:

    def _keeps_the_contract(world: ProcessWorld) -> World:
        return world
