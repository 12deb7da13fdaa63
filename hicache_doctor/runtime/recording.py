"""Where a rank's probe events go: what the world needs of a recorder, and the one place that picks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hicache_doctor.probes.recorder import Recorder
from hicache_doctor.runtime.world import Topology

Record = Callable[[int, int, int, int, int, int], None]
"""``record(kind, key, a, b, c, d)``."""


class Recording(Protocol):
    """The events of one rank; ``step`` is the cell of one integer that each event is stamped with."""

    step: list[int]

    def make_record(self) -> Record:
        """The function that records one event, bound for speed."""

    def close(self) -> None:
        """No more events."""


def open_recording(folder: Path, rank: int, topo: Topology, warn: Callable[[str], None]) -> Recording:
    """The recorder of one rank; ``warn`` gets a line when recording has to stop."""
    label, at = topo.label(rank), topo.place(rank)
    return Recorder.open(folder, rank, label, dp=at.dp, pp=at.pp, cp=at.cp, tp=at.tp, sizes=topo.sizes, warn=warn)
