"""The bytes of one artefact in windows that end at line boundaries, whatever its size and packing.

Plain files are mapped window by window (resident memory stays at a few windows for any size); gzip and zstd are
unpacked ahead by a thread (see :mod:`packing`). A line longer than ``MAX_LINE`` may be cut between two windows: both
then carry some of the same bytes (``GUARD`` on either side), and ``own`` says which window answers for a hit.
"""

from __future__ import annotations

import mmap
import os
import queue
import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from hicache_doctor.artifacts.packing import unpacked
from hicache_doctor.artifacts.source import Source
from hicache_doctor.artifacts.words import count_of, places_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Places = NDArray[np.int64]

WINDOW = 8 << 20
MAX_LINE = 1 << 20
GUARD = 4 << 10
AHEAD = 2


class Window:
    """A stretch of an artefact.

    ``data`` are its bytes, ``offset`` the place of the first one in the unpacked content, ``first_line`` the 1-based
    number of the line it lies in. ``continued``: that line began in an earlier window; ``cut``: the last line goes on
    in the next one. A hit belongs to the window whose ``own`` (start, end) holds its first byte.
    """

    __slots__ = ("_copy", "_count", "_newlines", "continued", "cut", "data", "first_line", "offset", "own")

    def __init__(
        self,
        data: bytes | memoryview,
        offset: int = 0,
        first_line: int = 1,
        *,
        continued: bool = False,
        cut: bool = False,
    ) -> None:
        self.data = data
        self.offset = offset
        self.first_line = first_line
        self.continued = continued
        self.cut = cut
        self.own = (GUARD if continued else 0, len(data) - GUARD if cut else len(data))
        self._count: int | None = None
        self._newlines: Places | None = None
        self._copy: bytes | None = None

    @property
    def copy(self) -> bytes:
        """The bytes, copied once: they outlive the mapping."""
        if self._copy is None:
            self._copy = bytes(self.data)
        return self._copy

    @property
    def array(self) -> NDArray[np.uint8]:
        """The bytes as a numpy array (no copy)."""
        import numpy as np

        return np.frombuffer(self.data, dtype=np.uint8)

    @property
    def count(self) -> int:
        """How many newlines there are."""
        if self._count is None:
            if self._newlines is not None:
                self._count = len(self._newlines)
            else:
                self._count = self._counted(0, len(self.data))
        return self._count

    @property
    def newlines(self) -> Places:
        """The positions of all newlines, ascending."""
        if self._newlines is None:
            self._newlines = places_of(self.array, 10)
        return self._newlines

    def lines(self, positions: Places) -> tuple[Places, Places, Places]:
        """The lines that ascending byte positions lie in: start, end (before the newline) and 1-based number."""
        import numpy as np

        if self._newlines is None and len(positions) << 17 < len(self.data):
            return self._few_lines(positions)
        edges = np.concatenate(([-1], self.newlines, [len(self.data)]))
        index = np.searchsorted(self.newlines, positions)
        return edges[index] + 1, edges[index + 1], index + self.first_line

    def _few_lines(self, positions: Places) -> tuple[Places, Places, Places]:
        # Counting is twice as fast as listing, and a count is needed anyway.
        import numpy as np

        starts, ends, numbers = [], [], []
        at, number, start, end = 0, self.first_line, 0, -1
        for position in positions.tolist():
            if position > end:
                number += self._counted(at, position)
                at = position
                start = self._before(position)
                end = self._after(position)
            starts.append(start)
            ends.append(end)
            numbers.append(number)
        self._count = number - self.first_line + self._counted(at, len(self.data))
        as_array = partial(np.array, dtype=np.int64)
        return as_array(starts), as_array(ends), as_array(numbers)

    def _counted(self, start: int, end: int) -> int:
        return count_of(self.array[start:end], 10)

    def _before(self, position: int) -> int:
        end, step = position, 4096
        while end > 0:
            begin = max(0, end - step)
            if (newline := bytes(self.data[begin:end]).rfind(b"\n")) >= 0:
                return begin + newline + 1
            end, step = begin, step * 4
        return 0

    def _after(self, position: int) -> int:
        begin, step = position, 4096
        while begin < len(self.data):
            if (newline := bytes(self.data[begin : begin + step]).find(b"\n")) >= 0:
                return begin + newline
            begin, step = begin + step, step * 4
        return len(self.data)


class Windows:
    """The windows of one source, once: iterate, then read ``note``, ``lines`` and ``bytes``.

    ``note`` says why the content ended early (truncated or corrupt packing, a file that shrank), else None. A window's
    memory goes when the last reference to it goes. Iterating raises OSError when the file cannot be opened.
    """

    def __init__(self, source: Source, size: int = WINDOW) -> None:
        self.source = source
        self.size = size
        self.note: str | None = None
        self.lines = 0
        self.bytes = 0

    def __iter__(self) -> Iterator[Window]:
        newlines = 0
        ended = True
        with self.source.file.open("rb") as f:
            for window in self._plain(f) if self.source.compression is None else self._packed(f):
                if not len(window.data):
                    continue
                window.first_line = newlines + 1
                yield window
                newlines += window.count
                self.bytes = window.offset + len(window.data)
                ended = window.data[-1] == 10
                self.lines = newlines + (not ended)

    def _plain(self, f: BinaryIO) -> Iterator[Window]:
        size = os.fstat(f.fileno()).st_size
        at, continued = 0, False
        while at < size:
            # A mapped file that is cut under our hands would kill us (SIGBUS): look again before each window.
            if os.fstat(f.fileno()).st_size < size:
                self.note = f"the file shrank while it was read; stopped at byte {at}"
                return
            base = at - at % mmap.ALLOCATIONGRANULARITY
            length = min(size - base, self.size + at - base)
            mapped = mmap.mmap(f.fileno(), length, access=mmap.ACCESS_READ, offset=base)
            view, start = memoryview(mapped), at - base
            end, cut = _end(mapped, start, length, last=base + length == size)
            yield Window(view[start:end], at, continued=continued, cut=cut)
            at = base + end - (2 * GUARD if cut else 0)
            continued = cut
            del mapped, view

    def _packed(self, f: BinaryIO) -> Iterator[Window]:
        ready: queue.Queue[Window | BaseException | None] = queue.Queue(AHEAD)
        stop = threading.Event()

        def put(item: Window | BaseException | None) -> bool:
            while not stop.is_set():
                try:
                    ready.put(item, timeout=0.1)
                    return True
                except queue.Full:
                    continue
            return False

        def work() -> None:
            try:
                for window in self._assemble(f):
                    if not put(window):
                        return
                put(None)
            except BaseException as e:
                put(e)

        thread = threading.Thread(target=work, name="unpack", daemon=True)
        thread.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stop.set()
            thread.join()

    def _assemble(self, f: BinaryIO) -> Iterator[Window]:
        blocks = unpacked(f, self.source.compression or "gzip", self._ended, self.source.limits)
        at, continued, rest, more = 0, False, b"", True
        while more:
            parts, have = [rest], len(rest)
            while have < self.size and (block := next(blocks, None)) is not None:
                parts.append(block)
                have += len(block)
            more = have >= self.size
            data = b"".join(parts)
            end, cut = _end(data, 0, len(data), last=not more)
            yield Window(memoryview(data)[:end], at, continued=continued, cut=cut)
            keep = end - (2 * GUARD if cut else 0)
            rest = data[keep:]
            at, continued = at + keep, cut

    def _ended(self, note: str) -> None:
        self.note = note


def windows(source: Source, size: int = WINDOW) -> Windows:
    """The windows of a source, of about ``size`` bytes each (at least ``2 * MAX_LINE`` to be of use)."""
    return Windows(source, size)


def _end(data: Any, start: int, length: int, *, last: bool) -> tuple[int, bool]:
    """Where a window over ``data[start:length]`` ends, and whether that cuts a line."""
    if last:
        return length, False
    newline = data.rfind(b"\n", max(start, length - MAX_LINE), length)
    if newline >= 0:
        return newline + 1, False
    return length, True
