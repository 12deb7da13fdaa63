"""The recorder: one probe event into a memory-mapped file in well under a microsecond. Standard library only.

An event that ``record`` has returned from lies in the page cache and survives SIGKILL of its process. Segments of a
fixed number of slots follow one another; the next one is made by a thread beforehand, and the oldest is removed, so
that a rank never holds more than ``max_segments`` files. Nothing raises out of ``record``: what finds no room (a full
disk, a fork) is counted in ``lost`` and told once.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from hicache_doctor.probes import ring
from hicache_doctor.probes.kinds import tables
from hicache_doctor.probes.process import boot_id, both_clocks, start_ticks
from hicache_doctor.probes.ring import segments

# As many records as DuckDB keeps in a row group: a segment goes in without being cut up and put together again.
SEGMENT_SLOTS = 122_880
MAX_SEGMENTS = 8
NEXT = ".next"
_I64 = 1 << 63
_U64 = (1 << 64) - 1
_ZEROS = 1 << 20

Where = tuple[mmap.mmap, Callable[[], int], int]
"""Where the next record goes: the mapping, the claim of an offset in it, what the commit word adds to the offset."""
_VOID = mmap.mmap(-1, mmap.PAGESIZE)


class Record(Protocol):
    """One probe event; see ``kinds.py`` for what key and a–d mean."""

    def __call__(self, kind: int, key: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> None: ...


def _ignore(_: str) -> None:
    return None


_open: weakref.WeakSet[Recorder] = weakref.WeakSet()


class Recorder:
    """The rings of one rank's process. Use :meth:`open`, in the process that records: a forked child opens its own.

    ``step`` is the cell that every event takes its step from: the scheduler writes ``recorder.step[0]``.
    """

    def __init__(self, folder: Path, owner: ring.Owner, slots: int, most: int, warn: Callable[[str], None]) -> None:
        self.folder = folder
        self.owner = owner
        self.step = [0]
        self.lost = 0
        self._slots = slots
        self._most = most
        self._warn = warn
        self._why = ""
        self._untold = ""
        self._threads: dict[int, int] = {}
        self._next_thread = itertools.count().__next__
        self._salt = int.from_bytes(os.urandom(7), "little") | 1
        self._lock = threading.RLock()
        self._busy = False
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._ready: tuple[int, int, mmap.mmap] | None = None
        self._segment = -1
        self._base = 0
        self._last: mmap.mmap | None = None
        self._where: list[Where] = [_nowhere()]
        self._closure: Record | None = None

    @classmethod
    def open(
        cls,
        folder: Path | str,
        rank: int,
        label: str,
        *,
        dp: int = 0,
        pp: int = 0,
        cp: int = 0,
        tp: int = 0,
        sizes: Mapping[str, int] | None = None,
        segment_slots: int = SEGMENT_SLOTS,
        max_segments: int = MAX_SEGMENTS,
        warn: Callable[[str], None] | None = None,
    ) -> Recorder:
        """Start to record into ``folder/rank<rank>.<segment>.ring``; one process a rank and folder at a time.

        ``sizes``: the grid, as ``{"pp_size": 2, "tp_size": 2}``. Segments of a former process of the rank stay until
        the bound removes them. A folder in memory (``/dev/shm``) spares the disk. ``warn`` gets one line when
        recording cannot start or has to stop; a disk that refuses is no error of the caller's.

        Raises:
            ValueError: an impossible size.
        """
        if segment_slots < 1 or max_segments < 2 or rank < 0:
            raise ValueError("a ring needs a rank of 0 or more, a slot a segment, and two segments")
        folder = Path(folder)
        segment, base = 0, 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(f"rank{rank}.*.ring{NEXT}"):
                left.unlink(missing_ok=True)
            if former := segments(folder, rank):
                segment = former[-1][0] + 1
                base = _after(former[-1][1])
        except OSError:
            pass  # the first segment will say why
        owner = ring.Owner(
            socket.gethostname(), boot_id(), os.getpid(), start_ticks(), rank, label, dp, pp, cp, tp,
            dict(sizes or {}), base,
        )  # fmt: skip
        self = cls(folder, owner, segment_slots, max_segments, warn or _ignore)
        self._segment, self._base = segment - 1, base - segment_slots
        _open.add(self)
        with self._lock:
            self._advance()
        with contextlib.suppress(RuntimeError):  # no thread to be had: each roll makes its segment itself
            threading.Thread(target=self._serve, name="hicache-doctor ring", daemon=True).start()
        return self

    def make_record(self) -> Record:
        """The function that records an event: call it once, keep it in a local name. Never raises, never blocks for
        longer than the making of a segment, and only when the thread that makes them is late."""
        if self._closure is not None:
            return self._closure
        threads, where, step = self._threads, self._where, self.step
        clock, ident = time.monotonic_ns, threading.get_ident
        pack, commit, commit_at = ring.RECORD.pack_into, ring.WORD.pack_into, ring.COMMIT_AT
        place, tame = self._place, self._tame

        def record(kind: int, key: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> None:
            # The thread is looked up first: nothing between the claim of a slot and its commit is expected to fail.
            try:
                thread = threads[ident()]
                mm, claim, word = where[0]
                at = claim()
            except (KeyError, StopIteration):
                found = place()
                if found is None:
                    return
                thread, mm, at, word = found
            try:
                pack(mm, at, clock(), step[0], kind, thread, key, a, b, c, d)
            except Exception:
                if not tame(mm, at, kind, thread, key, a, b, c, d):
                    return
            commit(mm, at + commit_at, word + at)

        self._closure = record
        return record

    def close(self) -> None:
        """Stop recording; everything that was recorded stays on disk."""
        with self._lock:
            self._why = self._why or "closed"
            self._where[0] = _nowhere()
            self._discard()
        self._requests.put(None)
        _open.discard(self)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- beside the hot path --------------------------------------------------------------------------------------

    def _place(self) -> tuple[int, mmap.mmap, int, int] | None:
        """Thread, mapping, offset and commit addend for one event, after whatever it takes; None when it is lost."""
        ident = threading.get_ident()
        thread = self._threads.get(ident)
        if thread is None:
            # A number stays with its identifier: a thread that inherits the identifier of an ended one shares it.
            thread = self._threads.setdefault(ident, min(self._next_thread(), 0xFFFF))
        while True:
            where = self._where[0]
            try:
                at = where[1]()
            except StopIteration:
                if not self._roll(where):
                    return None
                continue
            return thread, where[0], at, where[2]

    def _roll(self, full: Where) -> bool:
        with self._lock:
            if self._where[0] is not full:
                return True  # another thread was faster
            # A signal handler that records while this very thread makes a segment must neither wait nor make another.
            if self._busy or self._why:
                self._lose()
                return False
            self._advance()
            if self._why:
                self._lose()
                return False
            return True

    def _advance(self) -> None:
        """Go to the next segment, or stop for good. The lock is held."""
        self._busy = True
        try:
            segment, base, mm = self._ready or self._make()
            self._ready = None
            path = self._path(segment)
            os.rename(f"{path}{NEXT}", path)
        except (OSError, ValueError) as e:
            self._stop(f"recording stopped: no room for the next segment in {self.folder} ({_reason(e)})")
            return
        finally:
            self._busy = False
        self._segment, self._base, self._last = segment, base, mm
        size = len(mm) - ring.RECORD_BYTES * self._slots
        claim = iter(range(size, len(mm), ring.RECORD_BYTES)).__next__
        full = self._where[0]
        self._where[0] = (mm, _one_at_a_time(claim), self._salt + ring.RECORD_BYTES * base - size)
        self._requests.put(full)  # unmapped there, not here

    def _make(self) -> tuple[int, int, mmap.mmap]:
        """The next segment, allocated and mapped, under a name of its own until it is used."""
        segment, base = self._segment + 1, self._base + self._slots
        there = segments(self.folder, self.owner.rank)
        for _, oldest in there[: max(0, len(there) + 1 - self._most)]:
            oldest.unlink(missing_ok=True)
        head = ring.pack(
            self.owner, slots=self._slots, segment=segment, base=base, salt=self._salt, clocks=both_clocks(),
            tables=tables(),
        )  # fmt: skip
        return segment, base, _mapped(f"{self._path(segment)}{NEXT}", head, len(head) + 64 * self._slots)

    def _serve(self) -> None:
        """The thread that makes the next segment while this one fills, and unmaps the last."""
        while (request := self._requests.get()) is not None:
            del request
            with self._lock:
                if self._ready is None and not self._why:
                    try:
                        self._ready = self._make()
                    except (OSError, ValueError):
                        continue  # there is room for a segment's worth of events yet; the roll will try again

    def _stop(self, why: str) -> None:
        self._why = why
        self._where[0] = _nowhere()
        self._tell(why)

    def _tell(self, why: str) -> None:
        with contextlib.suppress(Exception):  # a broken callback must not reach the scheduler
            self._warn(why)

    def _lose(self) -> None:
        self.lost += 1
        if self._untold:
            why, self._untold = self._untold, ""
            self._tell(why)
        if self._last is not None:
            ring.WORD.pack_into(self._last, ring.LOST_AT, self.lost)

    def _discard(self) -> None:
        if self._ready is not None:
            Path(f"{self._path(self._ready[0])}{NEXT}").unlink(missing_ok=True)
            self._ready = None

    def _tame(self, mm: mmap.mmap, at: int, kind: Any, thread: int, key: Any, *values: Any) -> bool:
        """Record values that do not fit: numbers wrap (a hash stays comparable), what is no number becomes 0."""
        try:
            ring.RECORD.pack_into(
                mm, at, time.monotonic_ns(), _whole(self.step[0]) & 0xFFFFFFFF, _whole(kind) & 0xFFFF, thread,
                _whole(key) & _U64, *(((_whole(v) + _I64) & _U64) - _I64 for v in values),
            )  # fmt: skip
            return True
        except (struct.error, ValueError, TypeError):
            return False

    def _forked(self) -> None:
        """In the child of a fork: the mapping is the parent's alone; what is recorded here is lost, and told once."""
        self._lock = threading.RLock()
        self._requests = SimpleQueue()
        self._ready = self._last = None
        self._where[0] = _nowhere()
        self.lost = 0
        if not self._why:
            self._why = "forked"
            # Told when the child tries to record: most children never do.
            self._untold = "nothing is recorded in a forked process: it must open a recorder of its own"

    def _path(self, segment: int) -> Path:
        return self.folder / ring.file_name(self.owner.rank, segment)


def _mapped(path: str, head: bytes, size: int) -> mmap.mmap:
    """A new file of ``size`` bytes whose blocks are allocated: a store into it can never hit a full disk (SIGBUS)."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as e:
            if e.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            for at in range(0, size, _ZEROS):
                os.pwrite(fd, bytes(min(_ZEROS, size - at)), at)
        mm = mmap.mmap(fd, size, flags=mmap.MAP_SHARED)
        _touch(mm)
        mm[: len(head)] = head
        return mm
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def _touch(mm: mmap.mmap) -> None:
    """Have every page there and writable before the first event comes. Reading zeros into them does it with the GIL
    released; MAP_POPULATE holds it, and leaves pages of a disk's file to be made writable one by one."""
    with contextlib.suppress(OSError):
        zeros = os.open("/dev/zero", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.readv(zeros, [mm])
        finally:
            os.close(zeros)


def _nowhere() -> Where:
    return _VOID, iter(range(0)).__next__, 0


def _one_at_a_time(claim: Callable[[], int]) -> Callable[[], int]:
    """With the GIL a range iterator is atomic; without it two threads could get the same slot."""
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        return claim
    lock = threading.Lock()

    def locked() -> int:
        with lock:
            return claim()

    return locked


def _whole(value: Any) -> int:
    try:
        return int(value)
    except Exception:
        return 0


def _after(path: Path) -> int:
    """The number after the last one that a former segment may hold."""
    try:
        header = ring.read_header(path)
        return header.base + header.slots
    except (OSError, ring.RingDamage):
        return 0


def _reason(e: BaseException) -> str:
    return getattr(e, "strerror", None) or str(e)


def _after_fork() -> None:
    for recorder in list(_open):
        recorder._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
