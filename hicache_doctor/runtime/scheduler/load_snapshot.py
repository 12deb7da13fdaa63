"""Load snapshots of real processes: shared memory, no lock, no message (behaviours section 10).

A writer must never wait for a reader and a reader may well be a few milliseconds behind, so each group has one slot of
shared memory with a sequence lock: odd while it is being written. A reader that sees an odd or a changed number, or a
wrong checksum, knows that what it read is torn.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hicache_doctor.errors import InputError
from hicache_doctor.runtime.scheduler.load import Load
from hicache_doctor.runtime.world import MASK, mix

MAGIC = 0x4C4F4144_00000001  # LOAD, format 1
HEADER = 8
"""Words before the first slot: magic, number of groups, reserved."""
SLOT = 8
"""Words a slot: sequence, stamp, requests, tokens, checksum, reserved. One cache line, so writers don't meet."""
TRIES = 64


class SharedBoard:
    """A :class:`~hicache_doctor.runtime.scheduler.load.Board` in a mapped file, in ``/dev/shm`` or the run's folder.

    ``torn`` counts the torn reads that were seen and tried again. Words are stored by one aligned 8-byte store each
    (``memoryview`` of format Q); on processors that reorder stores the checksum is what tells.
    """

    def __init__(self, words: memoryview, memory: mmap.mmap, groups: int) -> None:
        self._words = words
        self._memory = memory
        self.groups = groups
        self.torn = 0

    @classmethod
    def create(cls, path: str | Path, groups: int) -> SharedBoard:
        """A new board for ``groups`` groups; the file appears complete."""
        draft = f"{path}.{os.getpid()}"
        with open(draft, "wb") as f:
            f.write(b"".join(n.to_bytes(8, "little") for n in (MAGIC, groups)))
            f.truncate((HEADER + SLOT * groups) * 8)
        os.replace(draft, path)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path) -> SharedBoard:
        """The board that another process made.

        Raises:
            InputError: it is not one.
        """
        with open(path, "r+b") as f:
            size = os.fstat(f.fileno()).st_size
            if size < HEADER * 8:
                raise InputError(f"{path}: not a board of load snapshots ({size} bytes)")
            memory = mmap.mmap(f.fileno(), size)
        words = memoryview(memory).cast("Q")
        groups = words[1]
        if words[0] != MAGIC or size != (HEADER + SLOT * groups) * 8:
            words.release()
            memory.close()
            raise InputError(f"{path}: not a board of load snapshots")
        return cls(words, memory, groups)

    def close(self) -> None:
        """Unmap; the file stays."""
        self._words.release()
        self._memory.close()

    @contextmanager
    def writing(self, group: int) -> Iterator[memoryview]:
        """The slot's payload (stamp, requests, tokens, checksum), marked as being written."""
        at = HEADER + SLOT * group
        words = self._words
        sequence = words[at]
        words[at] = (sequence | 1) & MASK  # stays odd if the writer before was killed here
        with words[at + 1 : at + 5] as payload:
            yield payload
        words[at] = ((sequence | 1) + 1) & MASK

    def write(self, group: int, load: Load) -> None:
        """The group's own load."""
        with self.writing(group) as slot:
            slot[0], slot[1], slot[2] = load.stamp, load.requests, load.tokens
            slot[3] = _checksum(load)

    def read(self, group: int) -> Load | None:
        """The group's last whole load."""
        at = HEADER + SLOT * group
        words = self._words
        for _ in range(TRIES):
            before = words[at]
            if before == 0:
                return None
            if not before & 1:
                load = Load(words[at + 1], words[at + 2], words[at + 3])
                check = words[at + 4]
                if words[at] == before and check == _checksum(load):
                    return load
            self.torn += 1
        return None


def _checksum(load: Load) -> int:
    return mix(mix(load.stamp, load.requests), load.tokens)
