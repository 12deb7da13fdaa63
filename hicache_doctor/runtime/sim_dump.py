"""What a simulated run leaves behind, in the files that a real one leaves: logs, rings, stacks, settings.

So a simulation is diagnosed by the same readers and rules as everything else. Virtual time counts from a fixed moment;
process ids and hosts are those of nobody.
"""

from __future__ import annotations

import io
import json
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from hicache_doctor.bundle import Manifest, RankEntry, Source, write_bundle
from hicache_doctor.probes import kinds, ring
from hicache_doctor.runtime import server_log
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.rank_log import file_stem
from hicache_doctor.runtime.sim_outcome import Outcome
from hicache_doctor.runtime.simulation import Killed

EPOCH = 1_767_225_600
"""Virtual time zero in the wall clock's seconds."""
FIRST_PID = 4000
SALT = 0x5EED
WATCHDOG = 300
_FIRST = 2
"""Frames of the simulation's own task start, at the outer end of a traceback."""


def write(out: Path, config: Config, outcome: Outcome, *, force: bool = False) -> Manifest:
    """Write the run as one crash.dump.

    Raises:
        UsageError: ``out`` exists and ``force`` is not given.
        DoctorError: it cannot be written.
    """
    topo = config.topo
    failed = {f.rank for f in outcome.failures}
    ranks = [RankEntry(topo.label(r), r, "simulated", FIRST_PID + r, 1 if r in failed else None) for r in range(topo.n)]
    manifest = Manifest(host="simulated", created=_stamp(outcome.time, "%Y-%m-%dT%H:%M:%SZ"), ranks=ranks)
    return write_bundle(out, list(_members(config, outcome)), manifest, force=force)


def _members(config: Config, outcome: Outcome) -> Iterator[Source]:
    topo = config.topo
    stacks = outcome.stacks()
    yield Source("server_info.json", settings(config).encode())
    for rank in range(topo.n):
        stem = file_stem(topo.label(rank))
        yield Source(f"logs/{stem}.log", log_text(config, outcome, rank).encode())
        content = ring_of(config, outcome, rank)
        if content:
            yield Source(f"rings/{ring.file_name(rank, 0)}", content)
        if outcome.how == "deadlock" and rank in stacks:
            yield Source(f"pyspy/{stem}.json", stack_json(outcome, rank).encode())


def settings(config: Config) -> str:
    """The launch arguments as the server's ``/server_info`` page gives them (the form of the log's line tells the age
    of a release, and with it which fixes are in)."""
    return json.dumps(server_log.arguments(config, watchdog=WATCHDOG), indent=1) + "\n"


def log_text(config: Config, outcome: Outcome, rank: int) -> str:
    """The log of one rank, with its last words if it failed or hung."""
    label = config.topo.label(rank)
    out = io.StringIO()
    out.write(f"[{_stamp(0)} {label}] {server_log.INIT_BEGIN}\n")
    for ns, _, text in outcome.logs(rank):
        out.write(f"[{_stamp(ns)} {label}] {text}\n")
    for failure in outcome.failures:
        if failure.rank == rank and not isinstance(failure.error, Killed):
            error = failure.error
            trace = error.__traceback__
            for _ in range(_FIRST):
                trace = trace.tb_next if trace is not None and trace.tb_next is not None else trace
            text = "".join(traceback.format_exception(type(error), error, trace))
            if failure.task == "main":
                out.write(f"[{_stamp(failure.time)} {label}] {server_log.scheduler_exception(text)}\n")
            else:
                out.write(f"Exception in thread {failure.task}:\n{text}")
    if outcome.how == "deadlock":
        late = outcome.time + WATCHDOG * 1_000_000_000
        out.write(f"[{_stamp(late)} {label}] {server_log.watchdog_timeout(WATCHDOG)}\n")
    return out.getvalue()


def ring_of(config: Config, outcome: Outcome, rank: int) -> bytes:
    """The rank's events as one ring segment."""
    topo, events = config.topo, outcome.events(rank)
    if not events:
        return b""
    at = topo.place(rank)
    label = topo.label(rank)
    owner = ring.Owner("simulated", "0", FIRST_PID + rank, 1, rank, label, at.dp, at.pp, at.cp, at.tp, topo.sizes)
    head = ring.pack(
        owner,
        slots=len(events),
        segment=0,
        base=0,
        salt=SALT,
        clocks=(EPOCH * 1_000_000_000, 0),
        tables=kinds.tables(),
    )
    body = bytearray(len(events) * ring.RECORD_BYTES)
    mask, half, whole = (1 << 64) - 1, 1 << 63, 1 << 64
    for i, (kind, step, thread, ns, key, *values) in enumerate(events):
        signed = [(v & mask) - whole if (v & mask) >= half else v & mask for v in values]
        place = i * ring.RECORD_BYTES
        ring.RECORD.pack_into(body, place, ns, step, kind, thread, key & mask, *signed)
        ring.WORD.pack_into(body, place + ring.COMMIT_AT, SALT + ring.RECORD_BYTES * i)
    return head + bytes(body)


def stack_json(outcome: Outcome, rank: int) -> str:
    """All threads of a rank in the form of ``py-spy dump --json``."""
    threads = []
    for number, (name, frames) in enumerate(outcome.stacks()[rank].items()):
        threads.append(
            {
                "pid": FIRST_PID + rank,
                "thread_id": number + 1,
                "thread_name": "MainThread" if name == "main" else name,
                "os_thread_id": FIRST_PID + rank + number,
                "active": False,
                "owns_gil": False,
                "frames": [
                    {
                        "name": f.function,
                        "filename": f.file,
                        "short_filename": Path(f.file).name,
                        "module": None,
                        "line": f.line,
                        "locals": None,
                        "is_entry": False,
                    }
                    for f in frames
                ],
                "process_info": None,
            }
        )
    return json.dumps(threads)


def _stamp(ns: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return time.strftime(form, time.gmtime(EPOCH + ns // 1_000_000_000))
