"""One run from its first fork to its report, in a process that has one thread and nothing else to do."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hicache_doctor.errors import InputError
from hicache_doctor.runtime import server_log
from hicache_doctor.runtime.crash import MemorySamples, pack
from hicache_doctor.runtime.dp_lines import Desk
from hicache_doctor.runtime.grid import Child, Grid, wait_until
from hicache_doctor.runtime.outcome import RankReport, RunReport
from hicache_doctor.runtime.pulse import Pulse, State
from hicache_doctor.runtime.rank_log import RankLog, file_stem
from hicache_doctor.runtime.rank_process import EX_DISK_FULL, FLIGHT_SIGNAL
from hicache_doctor.runtime.spec import Spec
from hicache_doctor.runtime.watchdog import Watchdog, dump_stacks

FOLDERS = ("logs", "rings", "pyspy", "flight_recorder", "samples", "tapes", "reports")
_POLL = 0.02
_PROGRESS = 0.25
_FALSE_START = 0.5
Emit = Callable[[dict[str, Any]], None]


def supervise(spec: Spec, emit: Emit, stop: Callable[[], bool]) -> RunReport:
    """Run all ranks to their end. ``emit`` gets progress, ``stop`` says that somebody wants it to end now.

    Raises:
        UsageError, InputError: it cannot run, a rank died before all had met, or the disk is full.
    """
    spec.check()
    try:
        for folder in FOLDERS:
            (spec.out / folder).mkdir(parents=True, exist_ok=True)
        temporary = tempfile.mkdtemp(prefix="hicache-doctor-ranks-")
    except OSError as e:
        raise InputError(f"{spec.out}: {e.strerror or e}") from None
    desk: Desk | None = None
    try:
        if spec.config.topo.dp_size > 1:
            desk = Desk(spec, temporary)
        return _supervise(spec, temporary, desk, emit, stop)
    finally:
        if desk is not None:
            desk.close()
        shutil.rmtree(temporary, ignore_errors=True)


def _supervise(spec: Spec, temporary: str, desk: Desk | None, emit: Emit, stop: Callable[[], bool]) -> RunReport:
    pulse = Pulse(spec.config.topo.n)
    run = _Run(spec, pulse, Grid(spec, pulse, f"{temporary}/rendezvous", desk), desk, emit, stop)
    try:
        return run.to_its_end()
    except OSError as e:
        raise InputError(f"{spec.out}: {e.strerror or e}") from None
    finally:
        run.grid.close()
        pulse.close()


class _Run:
    """The loop around a grid of ranks."""

    def __init__(
        self, spec: Spec, pulse: Pulse, grid: Grid, desk: Desk | None, emit: Emit, stop: Callable[[], bool]
    ) -> None:
        self.spec = spec
        self.options = spec.options
        self.pulse = pulse
        self.grid = grid
        self.desk = desk
        self.emit = emit
        self.stop = stop
        self.notes: list[str] = []
        self.began = time.monotonic()
        self.server = RankLog(spec.out / "logs" / "server.log", "")

    def to_its_end(self) -> RunReport:
        """Fork, watch, report."""
        self.began = time.monotonic()
        self.grid.fork()
        self.emit({"type": "started", "pids": [c.pid for c in self.grid.children]})
        outcome = self._watch()
        self._progress()
        self.server.close()
        met = self.pulse.met()
        report = RunReport(
            self.spec.out,
            outcome,
            [self._report(c) for c in self.grid.children],
            None if met is None else met / 1e9 - self.began,
            time.monotonic() - self.began,
            notes=self.notes,
        )
        self._refuse_false_starts(report)
        if outcome in ("failed", "hung") or (self.options.keep and outcome == "done"):
            report.dump = pack(self.spec, report)
        report.save()
        return report

    # -- watching -----------------------------------------------------------------------------------------------

    def _watch(self) -> str:
        watchdog = Watchdog(self.pulse, self.options.watchdog)
        samples = MemorySamples(self.spec.out / "samples" / "memory.csv", self.options.sample)
        failed_at: float | None = None
        shown = 0.0
        while self.grid.alive:
            if self.stop():
                self.grid.kill("interrupted")
                return "interrupted"
            # Of those that ended between two looks, whoever died of a signal was not told to by a closed socket.
            for child in sorted(self.grid.reap(), key=lambda c: c.exit is None or c.exit >= 0):
                if child.exit and failed_at is None:
                    failed_at = time.monotonic()
                    self.server.say(server_log.subprocess_crashed(child.rank, child.pid, child.exit))
                    self.server.say(server_log.SIGQUIT)
            now = time.monotonic()
            if all(self.pulse.state(c.rank) >= State.DONE for c in self.grid.alive):
                self.grid.release()
            # Ranks fail one after the other as sockets close; what still waits then was not told by any socket.
            elif failed_at is not None and now - failed_at > self._grace():
                self._end_hung([c.rank for c in self.grid.alive], timed_out=False)
                return "failed"
            elif failed_at is None and (stuck := watchdog.stuck()):
                self._end_hung(stuck, timed_out=True)
                return "hung"
            samples.tick(self.grid.alive)
            if now - shown > _PROGRESS:
                shown = now
                self._progress()
            self._pause()
        return "failed" if failed_at is not None else "done"

    def _pause(self) -> None:
        """The time between two looks at the ranks belongs to the DP controller."""
        end = time.monotonic() + _POLL
        left = _POLL
        while self.desk is not None and left > 0 and (wait := self.desk.work()) is not None:
            time.sleep(min(wait / 1e9, left))
            left = end - time.monotonic()
        if left > 0:
            time.sleep(left)

    def _grace(self) -> float:
        """Where one never met the others, they wait for it in the rendezvous: no socket tells them."""
        early = any(c.exit and not self.pulse.has_met(c.rank) for c in self.grid.children)
        return min(self.options.grace, _FALSE_START) if early else self.options.grace

    def _progress(self) -> None:
        ranks = range(self.pulse.ranks)
        states = [self.pulse.state(r).name.lower() for r in ranks]
        self.emit({"type": "progress", "states": states, "steps": [self.pulse.step(r) for r in ranks]})

    def _end_hung(self, stuck: list[int], *, timed_out: bool) -> None:
        """Stacks of all, then the flight recorders, then the end."""
        left = list(self.grid.alive)
        self.notes += dump_stacks(self.spec.out / "pyspy", left, self.options.dumps)
        self.grid.signal(FLIGHT_SIGNAL)
        wait_until(lambda: all(self._recorder(c).exists() for c in left), 1.0)
        if timed_out:
            for rank in stuck:
                label = self.grid.children[rank].label
                log = RankLog(self.spec.out / "logs" / f"{file_stem(label)}.log", label)
                log.say(server_log.watchdog_timeout(self.options.watchdog))
                log.bare("\n")
                log.close()
            self.server.say(server_log.SIGQUIT)
        self.grid.reap()
        self.grid.kill("hung")

    def _recorder(self, child: Child) -> Path:
        return self.spec.out / "flight_recorder" / f"comm_lib_trace_rank_{child.rank}"

    # -- reporting ----------------------------------------------------------------------------------------------

    def _report(self, child: Child) -> RankReport:
        report = RankReport(child.rank, child.label, child.pid, exit=child.exit, step=self.pulse.step(child.rank))
        path = self.spec.out / "reports" / f"{file_stem(child.label)}.json"
        said: dict[str, Any] = {}
        if path.exists():
            try:
                said = json.loads(path.read_text())
            except ValueError:
                self.notes.append(f"{child.label}: its report was cut off")
        for key, value in said.items():
            setattr(report, key, value)
        if "state" in said:
            return report
        if child.exit == 0:
            report.state = "done"
        elif child.killed:
            report.state = "hung" if child.killed == "hung" else "stopped"
        else:
            report.state = "signal" if child.exit is not None and child.exit < 0 else "error"
            report.failed_at = child.ended_at
            report.error = report.error or _last_line(self.spec.out / "logs" / f"{file_stem(child.label)}.log")
        return report

    def _refuse_false_starts(self, report: RunReport) -> None:
        if any(r.exit == EX_DISK_FULL for r in report.ranks):
            raise InputError(f"{self.spec.out}: no space left on the disk; the run was stopped")
        first = report.first
        if report.outcome == "failed" and first is not None and not self.pulse.has_met(first.rank):
            how = first.error or (f"it died of {first.signal}" if first.signal else f"exit code {first.exit}")
            report.save()
            log = report.log(first.rank)
            raise InputError(f"rank {first.label} ended at its start: {how.splitlines()[0]}; its log is {log}")


def _last_line(path: Path) -> str:
    """What a rank that could not report said last, such as gloo's reason for an abort."""
    text = path.read_text(errors="replace") if path.exists() else ""
    for line in text.splitlines():
        if "what():" in line:
            return line.strip()
    return ""
