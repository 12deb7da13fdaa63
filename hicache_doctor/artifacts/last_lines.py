"""The last lines of a frequent kind, put aside at the cost of a few arrays a window instead of an object a line."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hicache_doctor.artifacts.windows import Window

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Places = NDArray[np.int64]

# From so many lines of a kind in a window on, the window is copied whole: that bounds the copies that are held.
_DENSE = 2_500


@dataclass(frozen=True, slots=True)
class _Part:
    """Lines of one window; ``start`` and ``end`` are places in ``text``, ``offset`` says where a line begins."""

    number: Places
    offset: Places
    start: Places
    end: Places
    text: bytes


class LastLines:
    """Keeps at least the last ``most`` lines that were added."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: deque[_Part] = deque()
        self._count = 0

    def add(self, window: Window, number: Places, start: Places, end: Places) -> None:
        """Lines of a window, in order: their numbers, and where they start and end in it."""
        import numpy as np

        number, start, end = number[-self._most :], start[-self._most :], end[-self._most :]
        if not len(number):
            return
        offset = start + window.offset
        if len(number) >= _DENSE:
            text = window.copy
        else:
            text = b"".join(bytes(window.data[a:b]) for a, b in zip(start.tolist(), end.tolist(), strict=True))
            length = np.cumsum(end - start)
            start, end = length - (end - start), length
        self._parts.append(_Part(number, offset, start, end, text))
        self._count += len(number)
        while self._count - len(self._parts[0].number) >= self._most:
            self._count -= len(self._parts.popleft().number)

    def lines(self) -> list[tuple[int, int, bytes]]:
        """(number, offset, content) of the last ``most`` lines, in order."""
        out = [
            (number, offset, part.text[start:end])
            for part in self._parts
            for number, offset, start, end in zip(
                part.number.tolist(), part.offset.tolist(), part.start.tolist(), part.end.tolist(), strict=True
            )
        ]
        return out[-self._most :]
