"""The collector: rings of running or dead ranks → the ``event`` table of a store.

One process owns the store; ranks never see it. Polling takes every record that has been committed since, also behind a
slot whose writer is suspended: such a hole is looked at again at each poll, and ``seq`` gives the order. What a ring
dropped before it was read is counted, not guessed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hicache_doctor.evidence.rows import Artifact
from hicache_doctor.probes import records, ring

if TYPE_CHECKING:
    import pyarrow as pa

    from hicache_doctor.evidence.store import Store

# Slots looked at together. A claimed slot is at most as many slots behind as there are threads, so a stretch of this
# length without a record ends what has been written.
STRETCH = 4096


@dataclass(slots=True)
class Totals:
    """What is known of one process's recording: ``missed`` were removed by the ring before they were read, ``torn``
    were never finished, ``lost`` found no room."""

    events: int = 0
    torn: int = 0
    missed: int = 0
    lost: int = 0


@dataclass(slots=True)
class _Segment:
    """A mapped segment. ``low``: every slot before it was taken or is a hole."""

    path: Path
    artifact: str
    header: ring.Header
    data: mmap.mmap
    slots: records.Slots
    low: int = 0
    holes: set[int] = field(default_factory=set)

    @property
    def full(self) -> bool:
        return self.low == len(self.slots) and not self.holes


class Collector:
    """Reads the rings below some folders into ``store``, at each :meth:`poll` what is new.

    ``name`` says how a segment is cited; by default as it will lie in a bundle.
    """

    def __init__(self, folders: Sequence[Path | str], store: Store, name: Callable[[Path], str] | None = None) -> None:
        self._folders = [Path(f) for f in folders]
        self._store = store
        self._name = name or (lambda path: f"rings/{path.name}")
        self._known: set[tuple[str, int]] = set()
        self._mapped: list[_Segment] = []
        self._next: dict[tuple[int, int], int] = {}
        self._labels: set[str] = set()
        self.damaged: dict[str, str] = {}
        self.totals: dict[str, Totals] = {}

    def poll(self) -> int:
        """Take what has been committed since the last poll; returns how many events that were."""
        return self._take(whole=False)

    def _take(self, whole: bool) -> int:
        self._discover()
        taken = self._store.add_tables("event", (t for s in self._mapped for t in self._new(s, whole)))
        self._release()
        return taken

    def finish(self) -> dict[str, Totals]:
        """Take everything from processes that are dead; what is not finished now is torn. Totals by rank label."""
        while self._take(whole=True):
            pass
        for segment in self._mapped:
            self._close(segment)
        self._mapped.clear()
        return self.totals

    # -- parts of a poll --------------------------------------------------------------------------------------------

    def _discover(self) -> None:
        for folder in self._folders:
            try:
                there = ring.segments(folder)
            except OSError:
                continue
            for _, path in there:
                try:
                    identity = (str(path), path.stat().st_ino)
                    if identity not in self._known:
                        self._open(path)
                        self._known.add(identity)
                except OSError:
                    continue  # removed meanwhile

    def _open(self, path: Path) -> None:
        artifact = self._name(path)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(fd).st_size
            header = ring.parse(os.pread(fd, ring.LARGEST_HEADER, 0))
            count = min(header.slots, (size - header.size) // ring.RECORD_BYTES)
            # A recorder never shortens a file, so a mapping of its ring is safe.
            data = mmap.mmap(fd, header.size + count * ring.RECORD_BYTES, prot=mmap.PROT_READ)
        except ring.RingDamage as e:
            self.damaged[artifact] = str(e)
            return
        finally:
            os.close(fd)
        slots = records.slots_of(data, header.size, count)
        self._mapped.append(_Segment(path, artifact, header, data, slots))
        owner = header.owner
        totals = self.totals.setdefault(owner.label, Totals())
        process = (owner.rank, header.salt)
        totals.missed += max(0, header.base - self._next.get(process, owner.life_base))
        self._next[process] = header.base + header.slots
        if owner.label not in self._labels:
            self._labels.add(owner.label)
            self._store.add([records.rank_row(owner, artifact)])

    def _new(self, segment: _Segment, whole: bool) -> Iterator[pa.Table]:
        """What is committed and was not taken, a table at a time. ``whole``: look up to the end of the segment."""
        import numpy as np

        header, slots = segment.header, segment.slots
        late = [i for i in sorted(segment.holes) if slots[i]["commit"] == header.commit_word(i)]
        segment.holes.difference_update(late)
        found, fresh = [np.array(late, dtype=np.int64)], len(late)
        at = segment.low
        while at < len(slots):
            # The commit words are read before the records: what is committed then is whole in the copy.
            index = np.flatnonzero(records.committed(slots[at : at + STRETCH], header, at)) + at
            at += STRETCH
            if not len(index):
                if not whole:
                    break
                continue
            end = int(index[-1]) + 1
            if len(index) < end - segment.low:
                segment.holes.update(np.setdiff1d(np.arange(segment.low, end), index).tolist())
            segment.low = at = end
            found.append(index)
            fresh += len(index)
            if fresh >= records.TABLE_ROWS:
                yield self._table(segment, np.concatenate(found))
                found, fresh = [], 0
        if fresh:
            yield self._table(segment, np.concatenate(found))

    def _table(self, segment: _Segment, index: records.Numbers) -> pa.Table:
        index.sort()
        header = segment.header
        self.totals[header.owner.label].events += len(index)
        whole = len(index) == int(index[-1]) - int(index[0]) + 1
        taken = segment.slots[int(index[0]) : int(index[-1]) + 1] if whole else segment.slots[index]
        return records.table(taken, index, header, segment.artifact, header.owner.label)

    def _release(self) -> None:
        """Unmap what is read to its end."""
        for segment in self._mapped:
            if segment.full:
                self._close(segment)
        self._mapped = [s for s in self._mapped if not s.full]

    def _close(self, segment: _Segment) -> None:
        survey = records.Survey(segment.header)
        survey.take(segment.slots)
        header = ring.parse(bytes(segment.data[: segment.header.size]))
        totals = self.totals[header.owner.label]
        totals.torn += survey.torn
        totals.lost += header.lost
        artifact = segment.artifact
        note = f"{survey.torn} torn record(s)" if survey.torn else ""
        size = len(segment.data)
        self._store.add([Artifact(artifact, artifact, "ring", size, None, "collector", "all", note)])
