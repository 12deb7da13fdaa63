"""What is kept of a run that failed: one ``crash.dump``, and beside it, never in it, the truth about what was done."""

from __future__ import annotations

import json
import os
import socket
import time
from datetime import datetime, timezone
from pathlib import Path

from hicache_doctor import __version__
from hicache_doctor.bundle import Manifest, RankEntry, Source, write_bundle
from hicache_doctor.runtime import config_file, server_log
from hicache_doctor.runtime.grid import Child
from hicache_doctor.runtime.outcome import RunReport
from hicache_doctor.runtime.rank_process import title
from hicache_doctor.runtime.spec import Spec

DUMP = "crash.dump"
EVIDENCE = ("logs", "rings", "pyspy", "flight_recorder", "samples")
"""Folders whose files go into the dump. Tapes and reports stay outside: no deployment has them."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class MemorySamples:
    """Resident memory of every rank, as a table with one row a rank and second."""

    def __init__(self, path: Path, period: float) -> None:
        self._path = path
        self._period = period
        self._next = 0.0
        path.write_text("time,pid,process,rss_bytes\n")

    def tick(self, children: list[Child]) -> None:
        """Read all ranks, if it is time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._period
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        rows = []
        for child in children:
            try:
                pages = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1])
            except (OSError, ValueError, IndexError):
                continue  # it has just ended
            rows.append(f"{stamp},{child.pid},{title(child.label)},{pages * _PAGE}\n")
        with self._path.open("a") as f:
            f.writelines(rows)


def pack(spec: Spec, report: RunReport) -> Path:
    """Write the dump and the truth; returns the dump's path."""
    arguments = server_log.arguments(spec.config, watchdog=spec.options.watchdog, device=spec.options.device)
    settings = spec.out / "server_info.json"
    settings.write_text(json.dumps(arguments, indent=1) + "\n")
    members = [Source(settings.name, settings)]
    for folder in EVIDENCE:
        files = (p for p in sorted((spec.out / folder).rglob("*")) if p.is_file() and p.stat().st_size)
        members += [Source(p.relative_to(spec.out).as_posix(), p) for p in files]
    host = socket.gethostname()
    manifest = Manifest(
        host=host,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        tool_version=__version__,
        ranks=[RankEntry(r.label, r.rank, host, r.pid, r.exit) for r in report.ranks],
        notes=list(report.notes),
    )
    dump = spec.out / DUMP
    write_bundle(dump, members, manifest)
    said = config_file.truth(spec.config, spec.options.scenario, replayed=spec.replay is not None)
    config_file.truth_beside(dump).write_text(json.dumps(said, indent=1) + "\n")
    return dump
