"""Rings of the recorder, wherever they lie: a folder of a dead or running process, or a bundle.

Nothing of a file is believed but what its checksums and commit words hold up: a damaged header costs the segment (one
note that says where), a torn record only itself. A ring is read twice: once to find and count what is committed, and
once more, when the store is ready for it, to take exactly those records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hicache_doctor.artifacts.frequent import Frequent
from hicache_doctor.artifacts.source import Source
from hicache_doctor.evidence.rows import Rank, Row, Sample, Setting
from hicache_doctor.probes import records
from hicache_doctor.probes.ring import RECORD_BYTES, Header, RingDamage, header_size, parse

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from hicache_doctor.artifacts.inventory import Read

# Samples of each segment: how many records of the process came before its first slot, and what is missing in it.
BEFORE, TORN, LOST = "ring_before", "ring_torn", "ring_lost"
SIZES = frozenset({"pp_size", "tp_size", "dp_size", "attn_cp_size", "page_size"})
BLOCK_SLOTS = records.TABLE_ROWS


@dataclass(slots=True)
class Ring:
    """A segment that was looked through. ``blocks``: which slots of each block that has any hold a record, a bit each.
    Slots before ``start`` are not taken: another file has them."""

    header: Header
    home: Rank
    survey: records.Survey
    blocks: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    start: int = 0


def read_ring(source: Source, result: Read) -> None:
    """Fill ``result`` from a ring: the rank and its grid, counts of what is missing, events on their way."""
    entry = result.artifact
    entry.reader, entry.kind = "ring", "ring"
    try:
        header = parse(source.head(header_size(source.head(64))))
    except RingDamage as e:
        entry.read, entry.note = "none", _join(entry.note, str(e))
        return
    notes: list[str] = []
    ring = result.ring = _look_through(source, header, notes)
    survey = ring.survey
    result.rows += _rows(ring, source.path)
    if survey.slots < header.slots:
        end = header.size + RECORD_BYTES * header.slots
        notes.insert(0, f"truncated: {survey.slots} of {header.slots} slots, it ends before byte {end}")
    entry.read = "part" if notes else "all"
    if header.lost:
        notes.insert(0, f"{header.lost} record(s) found no room after it")
    if survey.torn:
        notes.insert(0, f"{survey.torn} torn record(s) left out")
    entry.note = _join(entry.note, f"{ring.home.id}: {survey.good} events", *notes)
    if survey.good:
        result.tables.append(Frequent("event", _events(source, ring)))


def select(reads: Sequence[Read], life: int | None) -> None:
    """Each record once, and of one process a rank.

    Of several processes that recorded as the same rank one after the other the last one is kept (or that of ``life``,
    counted from 1): their decisions have nothing to do with each other. A copy, such as the one in a bundle beside the
    folder that it was made of, adds only what the others lack.
    """
    ranks: dict[int, dict[int, list[tuple[Read, Ring]]]] = {}
    for read in reads:
        if read.ring is not None:
            header = read.ring.header
            ranks.setdefault(header.owner.rank, {}).setdefault(header.salt, []).append((read, read.ring))
    for processes in ranks.values():
        oldest_first = sorted(processes.values(), key=lambda own: max(ring.header.wall_ns for _, ring in own))
        chosen = len(oldest_first) - 1 if life is None else min(max(life, 1), len(oldest_first)) - 1
        for i, own in enumerate(oldest_first):
            if i == chosen:
                _once(own)
                continue
            for read, _ in own:
                _drop(read, f"of {'an earlier' if i < chosen else 'a later'} process of this rank: not used")


def _once(own: list[tuple[Read, Ring]]) -> None:
    own.sort(key=lambda pair: (pair[1].header.base, -pair[1].survey.end))
    covered = 0
    for read, ring in own:
        base, end = ring.header.base, ring.header.base + ring.survey.end
        if base < covered and end <= covered:
            _drop(read, "a copy of records that another file holds: not used")
        ring.start = max(0, covered - base)
        covered = max(covered, end)


def _drop(read: Read, why: str) -> None:
    read.artifact.read = "none"
    read.artifact.note = _join(read.artifact.note, why)
    read.rows.clear()
    read.tables.clear()


def _look_through(source: Source, header: Header, notes: list[str]) -> Ring:
    import numpy as np

    home = records.rank_row(header.owner, source.path)
    home.id = home.id or f"rank {header.owner.rank}"
    ring = Ring(header, home, records.Survey(header))
    for number, slots in enumerate(_blocks(source, header, notes)):
        mask = ring.survey.take(slots)
        if mask.any():
            ring.blocks[number] = np.packbits(mask)
    return ring


def _blocks(source: Source, header: Header, notes: list[str]) -> Iterator[records.Slots]:
    """The slots that are there, ``BLOCK_SLOTS`` at a time; never more than the header promises."""
    whole = BLOCK_SLOTS * RECORD_BYTES
    data = bytearray()
    skip, left = header.size, header.slots
    for block in source.blocks(on_note=notes.append):
        data += memoryview(block)[skip:]
        skip = max(0, skip - len(block))
        while len(data) >= whole and left:
            count = min(BLOCK_SLOTS, left)
            yield records.slots_of(bytes(data[:whole]), 0, count)
            left -= count
            del data[:whole]
        if not left:
            return
    if count := min(len(data) // RECORD_BYTES, left):
        yield records.slots_of(bytes(data), 0, count)


def _events(source: Source, ring: Ring) -> Iterator[pa.Table]:
    """The committed records as tables, under the label that their rank has when they are taken: resolved by then."""
    import numpy as np

    for number, slots in enumerate(_blocks(source, ring.header, [])):
        bits = ring.blocks.get(number)
        if bits is None:
            continue
        first = number * BLOCK_SLOTS
        index = np.flatnonzero(np.unpackbits(bits, count=min(8 * len(bits), len(slots))))
        index = index[index + first >= ring.start]
        if len(index):
            yield records.table(slots[index], index + first, ring.header, source.path, ring.home.id)


def _rows(ring: Ring, artifact: str) -> list[Row]:
    header, home = ring.header, ring.home
    at = header.wall_ns / 1e9
    before = max(0, header.base - header.owner.life_base)
    counts = {BEFORE: before, TORN: ring.survey.torn, LOST: header.lost}
    samples = [Sample(artifact, None, home.id, home.pid, at, name, float(n)) for name, n in counts.items()]
    sizes = [
        Setting(key, str(n), "ring header", artifact, None, home.id)
        for key, n in header.owner.sizes.items()
        if key in SIZES
    ]
    return [home, *samples, *sizes]


def _join(*notes: str) -> str:
    return "; ".join(n for n in notes if n)
