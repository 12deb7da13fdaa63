"""The events of a real run, in the form in which a simulation keeps its own."""

from __future__ import annotations

import struct
from pathlib import Path

from hicache_doctor.probes import ring
from hicache_doctor.runtime.sim_outcome import Event
from hicache_doctor.runtime.world import MASK

_SLOT = struct.Struct("<QIHHQqqqqQ")


def read(folder: Path, ranks: int) -> dict[int, list[Event]]:
    """All committed events of each rank's rings, in the order of recording."""
    return {rank: [e for _, path in ring.segments(folder, rank) for e in _segment(path)] for rank in range(ranks)}


def _segment(path: Path) -> list[Event]:
    data = path.read_bytes()
    header = ring.parse(data)
    slots = _SLOT.iter_unpack(data[header.size : header.size + header.slots * _SLOT.size])
    return [
        (kind, step, thread, ts, key & MASK, a, b, c, d)
        for i, (ts, step, kind, thread, key, a, b, c, d, word) in enumerate(slots)
        if word == header.commit_word(i)
    ]
