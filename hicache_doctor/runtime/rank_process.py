"""What a forked rank does: become a scheduler, meet the others, run ``main``, and say how it ended."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import importlib
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from hicache_doctor.runtime import server_log
from hicache_doctor.runtime.outcome import kind_of
from hicache_doctor.runtime.pulse import Pulse, State
from hicache_doctor.runtime.rank_log import RankLog, file_stem
from hicache_doctor.runtime.recording import Recording, open_recording
from hicache_doctor.runtime.spec import Spec
from hicache_doctor.runtime.world import Stop

EX_DISK_FULL = os.EX_IOERR
FLIGHT_SIGNAL = signal.SIGUSR2
"""Asks a rank, hung or not, to write its flight recorder."""
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


@dataclass(frozen=True, slots=True)
class Seat:
    """What a rank is born with. ``hold`` is the reading end of a pipe that the launcher closes when all are done,
    ``held`` the writing end, which a rank must not keep open."""

    spec: Spec
    rank: int
    rendezvous: str
    launcher: int
    hold: int
    held: int

    @property
    def label(self) -> str:
        """``PP1 TP0``."""
        return self.spec.config.topo.label(self.rank)

    def file(self, folder: str, ending: str) -> Path:
        """The rank's file in one of the run's folders."""
        return self.spec.out / folder / f"{file_stem(self.label)}{ending}"


def title(label: str) -> str:
    """The process title of a scheduler."""
    return f"sglang::scheduler_{file_stem(label)}"


def set_title(text: str) -> None:
    """Name this process: whole with setproctitle, else the kernel's fifteen bytes."""
    try:
        module = importlib.import_module("setproctitle")
    except ImportError:
        _prctl(_PR_SET_NAME, text.encode()[:15])
    else:
        module.setproctitle(text)


def _prctl(option: int, value: Any) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def run_scheduler_process(seat: Seat, pulse: Pulse) -> NoReturn:
    """The life of a rank; it ends the process. The name is SGLang's, for the sake of the traceback."""
    rank = _Rank(seat, pulse)
    try:
        rank.settle_in()
        main = resolve(seat.spec.main, seat.spec.path)
        world = rank.meet()
        rank.done(main(world, seat.spec.config))
    except BaseException as e:
        rank.fail(e, server_log.scheduler_exception(traceback.format_exc()), "MainThread")


def resolve(name: str, path: tuple[str, ...]) -> Callable[..., Any]:
    """The function of ``module:function``."""
    sys.path.extend(p for p in path if p not in sys.path)
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


class _Rank:
    """The parts of a rank's life, and its last words."""

    def __init__(self, seat: Seat, pulse: Pulse) -> None:
        self.seat = seat
        self.pulse = pulse
        self.log = RankLog(seat.file("logs", ".log"), seat.label)
        self.recording: Recording | None = None
        self.world: Any = None
        self.notes: list[str] = []
        self._last = threading.Lock()

    def settle_in(self) -> None:
        """Cut what ties a fork to its parent, and become a process that looks like a scheduler."""
        for number in (signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        # Ctrl-C reaches the whole terminal group; only the launcher ends ranks, or evidence would be lost.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {FLIGHT_SIGNAL})
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.seat.launcher:
            os._exit(1)
        os.close(self.seat.held)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        # gloo aborts with a text on stderr; it belongs into the log, as in a server's.
        os.dup2(self.log.fd, 1)
        os.dup2(self.log.fd, 2)
        faulthandler.enable(self.log.fd)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        set_title(title(self.seat.label))
        threading.excepthook = self._thread_failed
        threading.Thread(target=self._dump_on_signal, name="flight-recorder", daemon=True).start()

    def meet(self) -> Any:
        """Join the default group and build the world."""
        import torch.distributed as dist

        from hicache_doctor.runtime.processes import ProcessWorld

        spec, topo = self.seat.spec, self.seat.spec.config.topo
        options = spec.options
        self.log.say(server_log.INIT_BEGIN)
        began = time.monotonic()
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        timeout = timedelta(microseconds=spec.config.wire_timeout / 1000)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{self.seat.rendezvous}",
            rank=self.seat.rank,
            world_size=topo.n,
            timeout=timeout,
        )
        self.log.say(server_log.init_ends(time.monotonic() - began))
        self.recording = open_recording(spec.out / "rings", self.seat.rank, topo, self.notes.append)
        self.world = ProcessWorld(
            spec.config,
            recording=self.recording,
            log=self.log,
            pulse=self.pulse,
            replay=None if spec.replay is None else spec.replay.get(self.seat.rank, []),
            device=options.device,
            tape=self.seat.file("tapes", ".jsonl"),
        )
        self.pulse.meet(self.seat.rank, time.monotonic_ns())
        return self.world

    def done(self, result: Any) -> NoReturn:
        """Report, and stay until the others have ended: a socket that closes early would look like a failure."""
        self._save({"result": result})
        self.pulse.enter(self.seat.rank, State.DONE)
        os.read(self.seat.hold, 1)
        os._exit(0)

    def fail(self, error: BaseException, text: str, thread: str) -> NoReturn:
        """The last words. The process ends at once, so that the peers see the sockets close."""
        at = time.monotonic_ns()
        self._last.acquire()  # a second thread that fails waits here for the end
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        with contextlib.suppress(OSError):
            self.log.say(text)
        message = f"{type(error).__name__}: {error}"
        try:
            self._save({"state": kind_of(error), "error": message, "thread": thread, "failed_at": at})
            self._write_flight_recorder()
        except OSError as e:
            full = full or e.errno in (errno.ENOSPC, errno.EDQUOT)
        self.pulse.enter(self.seat.rank, State.FAILED)
        os._exit(EX_DISK_FULL if full else 1)

    def _thread_failed(self, args: threading.ExceptHookArgs) -> None:
        if issubclass(args.exc_type, (SystemExit, Stop)):
            return
        name = args.thread.name if args.thread is not None else "unknown"
        error = args.exc_value or args.exc_type()
        lines = traceback.format_exception(args.exc_type, error, args.exc_traceback)
        with contextlib.suppress(OSError):
            self.log.bare(f"Exception in thread {name}:\n{''.join(lines)}")
        self.fail(error, f"Background thread {name} failed; the scheduler ends.", name)

    def _save(self, about: dict[str, Any]) -> None:
        step, misses = 0, 0
        if self.world is not None:
            step, misses = self.world.step, self.world.observations.misses
        raw = {"step": step, "tape_misses": misses, "notes": self.notes, **about}
        self.seat.file("reports", ".json").write_text(json.dumps(raw, default=str))
        if self.recording is not None:
            self.recording.close()

    # -- flight recorder ----------------------------------------------------------------------------------------

    def _dump_on_signal(self) -> None:
        """A thread of its own: while the main thread hangs inside gloo no Python signal handler would run."""
        while True:
            signal.sigwait({FLIGHT_SIGNAL})
            with contextlib.suppress(OSError):
                self._write_flight_recorder()

    def _write_flight_recorder(self) -> None:
        """Under torch's own file name the pickle that its analyser takes, and JSON beside it.

        gloo's collectives only: torch records no send and no receive. Without stacks: to print them torch imports its
        compiler, for more than a second, in which the peers would not see this rank's sockets close.
        """
        import torch

        c10d = torch._C._distributed_c10d
        base = self.seat.spec.out / "flight_recorder" / f"comm_lib_trace_rank_{self.seat.rank}"
        with contextlib.suppress(AttributeError, RuntimeError):  # another torch may have neither
            base.with_name(base.name + ".json").write_bytes(_bytes(c10d._dump_fr_trace_json(True, False)))
            base.write_bytes(_bytes(c10d._dump_fr_trace(True, False, False)))


def _bytes(data: bytes | str) -> bytes:
    return data if isinstance(data, bytes) else data.encode()
