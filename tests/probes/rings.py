"""Writing and reading small rings in tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hicache_doctor.evidence.store import Store
from hicache_doctor.probes.collector import Collector, Totals
from hicache_doctor.probes.recorder import Recorder

STEP = 2


def wrote(folder: Path, count: int, *, rank: int = 0, label: str = "PP0 TP0", **options: Any) -> None:
    """``count`` events of one thread, numbered in ``a``, by a recorder that is closed again."""
    with Recorder.open(folder, rank, label, **options) as recorder:
        record = recorder.make_record()
        for i in range(count):
            recorder.step[0] = i // 10
            record(STEP, key=i * i, a=i, b=-i, c=7, d=rank)


def collected(*folders: Path) -> tuple[list[dict[str, Any]], dict[str, Totals]]:
    """All events below the folders, in the order of ranks and claims, and the totals."""
    with Store.create() as store:
        totals = Collector(folders, store).finish()
        return store.rows("SELECT * FROM event ORDER BY rank, seq"), totals


def until(done: Callable[[], bool]) -> None:
    """Wait for a state; pytest-timeout ends what never comes."""
    import time

    while not done():
        time.sleep(0.002)
