"""Where a rank's probe events go: what the world needs of a recorder, and the one place that picks it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from hicache_doctor.runtime.rank_log import file_stem
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


class MemoryRecording:
    """Events in a list, written as JSON lines at the end; what a SIGKILL takes with it is lost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.step = [0]
        self.events: list[tuple[int, ...]] = []

    def make_record(self) -> Record:
        """See :class:`Recording`."""
        events, step = self.events, self.step

        def record(kind: int, key: int, a: int, b: int, c: int, d: int) -> None:
            events.append((step[0], int(kind), key, a, b, c, d))

        return record

    def close(self) -> None:
        """Write ``[step, kind, key, a, b, c, d]`` an event."""
        with self._path.open("w", encoding="utf-8") as f:
            f.writelines(json.dumps(e) + "\n" for e in list(self.events))


def open_recording(folder: Path, rank: int, topo: Topology, warn: Callable[[str], None]) -> Recording:
    """The recorder of one rank; ``warn`` gets a line when recording has to stop."""
    label, at = topo.label(rank), topo.place(rank)
    try:
        recorder: Any = importlib.import_module("hicache_doctor.probes.recorder").Recorder
    except ImportError:
        return MemoryRecording(folder / f"{file_stem(label)}.events.jsonl")
    sizes = {
        "dp_size": topo.dp_size, "pp_size": topo.pp_size, "attn_cp_size": topo.cp_size, "tp_size": topo.tp_size,
    }  # fmt: skip
    opened: Recording = recorder.open(
        folder, rank, label, dp=at.dp, pp=at.pp, cp=at.cp, tp=at.tp, sizes=sizes, warn=warn
    )
    return opened
