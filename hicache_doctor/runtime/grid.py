"""The processes of a run: forked from a clean parent, reaped one by one, killed by pid and never by name."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hicache_doctor.errors import InputError
from hicache_doctor.runtime.dp_lines import Desk
from hicache_doctor.runtime.pulse import Pulse
from hicache_doctor.runtime.rank_process import Seat, run_scheduler_process, set_title
from hicache_doctor.runtime.spec import Spec

CONTROLLER = "sglang::data_parallel_controller"


@dataclass(slots=True)
class Child:
    """One rank as its parent sees it; ``exit`` is negative for a signal, ``killed`` says why the parent killed it."""

    rank: int
    label: str
    pid: int
    exit: int | None = None
    ended_at: int | None = None
    killed: str = ""


class Grid:
    """All ranks of a run. The calling process must have imported torch and must have one thread."""

    def __init__(self, spec: Spec, pulse: Pulse, rendezvous: str, desk: Desk | None = None) -> None:
        self.children: list[Child] = []
        self._spec = spec
        self._pulse = pulse
        self._rendezvous = rendezvous
        self._desk = desk
        self._hold, self._held = os.pipe()
        self._holding = True

    def fork(self) -> None:
        """Start every rank.

        Raises:
            InputError: the system refuses more processes.
        """
        set_title(CONTROLLER)
        me = os.getpid()
        for rank in range(self._spec.config.topo.n):
            seat = Seat(self._spec, rank, self._rendezvous, me, self._hold, self._held, self._desk)
            try:
                pid = os.fork()
            except OSError as e:
                raise InputError(f"only {rank} of {self._spec.config.topo.n} ranks could be started: {e}") from None
            if pid == 0:
                # Whatever happens in there, a child never returns into its parent's code.
                try:
                    run_scheduler_process(seat, self._pulse)
                finally:
                    os._exit(70)
            self.children.append(Child(rank, seat.label, pid))
        if self._desk is not None:
            self._desk.forked()

    @property
    def alive(self) -> list[Child]:
        """Ranks that have not been reaped."""
        return [c for c in self.children if c.exit is None]

    def reap(self) -> list[Child]:
        """Ranks that ended since the last call."""
        ended = []
        for child in self.alive:
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                child.exit = os.waitstatus_to_exitcode(status)
                child.ended_at = time.monotonic_ns()
                ended.append(child)
        return ended

    def release(self) -> None:
        """Let the ranks that are done leave."""
        if self._holding:
            os.close(self._held)
            self._holding = False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank that is still there."""
        for child in self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, number)

    def kill(self, why: str, only: Iterable[Child] | None = None) -> None:
        """SIGKILL what is left, and wait for it: an unreaped child keeps its pid, so no stranger can be hit.

        All are stopped before the first is killed, or the others would still see its sockets close and write about it.
        """
        left = [c for c in (self.alive if only is None else only) if c.exit is None]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for child in left:
                os.kill(child.pid, number)
        for child in left:
            child.killed = why
            _, status = os.waitpid(child.pid, 0)
            child.exit = os.waitstatus_to_exitcode(status)
            child.ended_at = time.monotonic_ns()

    def close(self) -> None:
        """Leave nothing behind, whatever happened."""
        self.kill("stopped")
        self.release()
        os.close(self._hold)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether ``condition`` came true within ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
