"""What a rank's cache counts for the report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    """Pages for ``writes``, ``hits_host``, ``hits_storage`` and ``backups``; else occurrences."""

    writes: int = 0
    write_refused: int = 0
    load_backs: int = 0
    hits_host: int = 0
    backups: int = 0
    settled: int = 0
    revoked: int = 0
    aborted: int = 0
    hits_storage: int = 0
    syncs: int = 0
