"""The ``key: value`` fields behind a batch literal, for many lines at once.

The general way finds colons and takes the eight bytes before each for the name of the field; it reads every
generation of the format. Lines of one server all have the same shape, so the shape of a line that was met is kept and
tried first: several times faster, and equal by construction (it is kept only if it has all fields, and counts only
where every byte between the numbers agrees).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hicache_doctor.artifacts.words import TENS, Text, word

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hicache_doctor.artifacts.words import Flags, Places

MARGIN = 128  # bytes that must exist beyond the reach: room for values, and for reading on where a shape fails
_KEYS = {
    "new_seq": word(b"#new-seq"),
    "new_token": word(b"ew-token"),
    "cached_token": word(b"ed-token"),
    "usage": word(b"en usage"),
    "running": word(b"ning-req"),
    "queue": word(b"ueue-req"),
}
FIELDS = tuple(_KEYS)
_SWA = word(b"swa tok")  # ``swa token usage`` is not the full pool's
_SHAPES = 4
_NUMBER = re.compile(rb"([0-9]+(?:\.[0-9]+)?)")
_LONGEST = 33  # digits, point and digits that one number may take

Found = Iterator[tuple[str, "Places", "NDArray[Any]"]]


class Fields:
    """Reads fields up to ``reach`` bytes behind a literal; learns the shapes of an artefact's lines."""

    def __init__(self, reach: int) -> None:
        self.reach = reach
        self._shapes: list[list[tuple[bytes, str | None, bool]]] = []
        self._tried = 0

    def read(self, text: Text, at: Places, length: Places) -> Found:
        """Name, rows and values of the fields in the ``length`` bytes at each place; of a repeated field the first.

        ``reach + MARGIN`` bytes must exist behind each place. A row without a field is not among that field's rows.
        """
        import numpy as np

        left = np.arange(len(at))
        for shape in self._shapes:
            if len(left):
                fits, found = self._shaped(text, at[left], length[left], shape)
                for name, value in found.items():
                    yield name, left[fits], value[fits]
                left = left[~fits]
        if len(left):
            for name, rows, value in self._general(text, at[left], length[left]):
                yield name, left[rows], value
            if len(left) * 8 > len(at):
                self._learn(text, int(at[left[0]]), int(length[left[0]]))

    def _learn(self, text: Text, at: int, length: int) -> None:
        if len(self._shapes) >= _SHAPES or self._tried >= 64:
            return
        self._tried += 1
        line = re.split(rb'["\\]', text.a[at : at + min(length, self.reach)].tobytes(), maxsplit=1)[0]
        *parts, _ = _NUMBER.split(line)
        shape: list[tuple[bytes, str | None, bool]] = []
        for before, number in zip(parts[::2], parts[1::2], strict=True):
            name = None
            if before.endswith(b": ") and not before.endswith(b"swa token usage: "):
                name = next((k for k, key in _KEYS.items() if word(before[-10:-2]) == key), None)
            if name in {known for _, known, _ in shape}:
                name = None
            shape.append((before, name, b"." in number))
            if {name for _, name, _ in shape} >= set(FIELDS):
                if sum(len(b) + _LONGEST for b, _, _ in shape) <= self.reach + MARGIN:
                    self._shapes.append(shape)
                return

    def _shaped(
        self, text: Text, at: Places, length: Places, shape: list[tuple[bytes, str | None, bool]]
    ) -> tuple[Flags, dict[str, NDArray[Any]]]:
        """Which rows have the shape, and the values (of the others: rubbish)."""
        import numpy as np

        fits = np.ones(len(at), dtype=bool)
        found: dict[str, NDArray[Any]] = {}
        start = at
        for before, name, fraction in shape:
            fits &= text.equal(at, before)
            value, digits = text.number(at + len(before))
            at = at + len(before) + digits
            fits &= digits > 0
            if fraction:
                behind, more = text.number(at + 1)
                fits &= (text.a[at] == 46) & (more > 0) & (digits + more <= 16)
                scale = np.array(TENS)[np.minimum(more, 16)]
                value, at = (value * scale + behind) / scale, at + 1 + more
            elif name == "usage":
                fits &= text.a[at] != 46
            if name:
                found[name] = value
        return fits & (at - start <= np.minimum(length, self.reach)), found

    def _general(self, text: Text, at: Places, length: Places) -> Found:
        import numpy as np

        rows = text.rows(at, self.reach)
        stops = (rows == 34) | (rows == 92)
        if stops.any():
            stop = stops.argmax(axis=1)
            length = np.where(stops[np.arange(len(at)), stop], np.minimum(stop, length), length)
        colon = np.flatnonzero(rows.reshape(-1) == 58)
        row = colon // self.reach
        column = colon - row * self.reach
        inside = column < length[row]
        row, place = row[inside], at[row[inside]] + column[inside]
        keys = text.words[place - 8]
        for name, key in _KEYS.items():
            hit = np.flatnonzero(keys == key)
            if name == "usage" and len(hit):
                hit = hit[(text.words[place[hit] - 16] >> np.uint64(8)) != _SWA]
            first = np.ones(len(hit), dtype=bool)
            first[1:] = row[hit[1:]] != row[hit[:-1]]
            hit = hit[first]
            value, there = _values(text, place[hit] + 1, fraction=name == "usage")
            yield name, row[hit[there]], value[there]


def _values(text: Text, at: Places, *, fraction: bool) -> tuple[NDArray[Any], Flags]:
    at = at + (text.a[at] == 32)
    value, digits = text.number(at)
    there = digits > 0
    if not fraction:
        return value, there
    import numpy as np

    behind, more = text.number(at + digits + 1)
    more = np.where(text.a[at + digits] == 46, np.minimum(more, 16 - digits), 0)
    scale = np.array(TENS)[more]
    return np.where(more > 0, (value * scale + behind) / scale, value), there
