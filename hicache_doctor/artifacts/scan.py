"""Which lines are worth a regular expression: one pass for rare literals, a vectorised one for those in every line.

Rare literals go through Aho-Corasick and come back as whole candidate lines. Literals that stand in most lines
(``Prefill batch``) would cost a Python object a hit there; they come back as arrays of positions.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hicache_doctor.artifacts.windows import GUARD, MAX_LINE, Window
from hicache_doctor.artifacts.words import Text, places_of_pair

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SLICE = 1 << 20  # bounds the list of hits that one call makes
_COMMON = b" etaoinsr0123456789:[]-,"  # bytes that logs are full of: poor to look for

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Lines(Generic[K]):
    """Candidate lines of a window in order, each once; four arrays and the literals that occur in each.

    ``start`` and ``end`` (before the newline) are positions in the window, ``number`` the 1-based line. A line longer
    than ``MAX_LINE`` comes in overlapping pieces of about that size, only those with a hit, marked in ``piece``.
    ``ids[first[i]:first[i + 1]]`` are the indices into ``literals`` for line i, ascending.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    number: NDArray[np.int64]
    piece: NDArray[np.bool_]
    first: NDArray[np.int64]
    ids: NDArray[np.int64]
    literals: Sequence[tuple[bytes, tuple[K, ...]]]

    def __len__(self) -> int:
        return len(self.start)

    def keys(self, i: int) -> list[K]:
        """The keys whose literals occur in line i, in the order of the mapping given to the scanner."""
        found = self.ids[self.first[i] : self.first[i + 1]].tolist()
        return list(dict.fromkeys(key for j in found for key in self.literals[j][1]))


class LiteralScanner(Generic[K]):
    """Finds the lines that hold at least one of some literals. ``literals``: key → one or several literals.

    Raises ValueError for a literal that is empty, has a newline, or is longer than a window's guard.
    """

    def __init__(self, literals: Mapping[K, bytes | Sequence[bytes]]) -> None:
        from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

        keys: dict[bytes, list[K]] = {}
        for key, texts in literals.items():
            for text in [texts] if isinstance(texts, bytes) else texts:
                if not text or b"\n" in text or len(text) >= GUARD:
                    raise ValueError(f"{key!r}: {text!r} cannot be looked for as a literal of a line")
                keys.setdefault(text, []).append(key)
        self.literals: tuple[tuple[bytes, tuple[K, ...]], ...] = tuple((t, tuple(k)) for t, k in keys.items())
        texts = [text for text, _ in self.literals]
        self._reach = max(map(len, texts), default=1) - 1
        # The first pass is fast because it may miss a literal inside another; the second, over lines with a hit only,
        # finds every one.
        # A DFA: with more literals than a SIMD prefilter takes it is twice as fast as the default.
        self._fast: Any = BytesAhoCorasick(texts, matchkind=MatchKind.LeftmostFirst, implementation=Implementation.DFA)
        self._all: Any = BytesAhoCorasick(texts, matchkind=MatchKind.Standard, implementation=Implementation.DFA)

    def scan(self, window: Window) -> Lines[K]:
        """The candidate lines of a window. Hits that a neighbouring window answers for are left to it."""
        import numpy as np

        hits = self._hits(window)
        if not len(hits):
            none = np.empty(0, dtype=np.int64)
            return Lines(none, none, none, none.astype(bool), np.zeros(1, dtype=np.int64), none, self.literals)
        start, end, number = window.lines(hits)
        piece = end - start > MAX_LINE
        part = np.where(piece, (hits - start) // MAX_LINE, 0)
        new = np.ones(len(hits), dtype=bool)
        new[1:] = (start[1:] != start[:-1]) | (part[1:] != part[:-1])
        start, end, number, part = (x[new] for x in (start, end, number, part))
        piece = piece[new]
        low, high = start + part * MAX_LINE - GUARD, start + (part + 1) * MAX_LINE + GUARD
        start, end = np.where(piece, np.maximum(start, low), start), np.where(piece, np.minimum(end, high), end)
        first, ids = self._ids(window, start, end)
        return Lines(start, end, number, piece, first, ids, self.literals)

    def _hits(self, window: Window) -> NDArray[np.int64]:
        import numpy as np

        found: list[int] = []
        begin, stop = window.own
        data = memoryview(window.data)
        for i in range(begin, stop, _SLICE):
            end = min(stop, i + _SLICE)
            matches = self._fast.find_matches_as_indexes(data[i : end + self._reach])
            found.extend(i + at for _, at, _ in matches if i + at < end)
        return np.array(found, dtype=np.int64)

    def _ids(
        self, window: Window, start: NDArray[np.int64], end: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        import numpy as np

        pairs: list[NDArray[np.int64]] = []
        length = np.cumsum(end - start + 1)
        at = 0
        while at < len(start):  # about a slice of text at a time
            base = int(length[at - 1]) if at else 0
            to = max(at + 1, int(np.searchsorted(length, base + _SLICE)))
            text = b"\n".join(
                bytes(window.data[a:b]) for a, b in zip(start[at:to].tolist(), end[at:to].tolist(), strict=True)
            )
            matches = self._all.find_matches_as_indexes(text, overlapping=True)
            flat = np.array(matches, dtype=np.int64).reshape(-1, 3)
            line = np.searchsorted(length[at:to] - base, flat[:, 1], side="right") + at
            pairs.append(np.unique(line * len(self.literals) + flat[:, 0]))
            at = to
        line, ids = np.divmod(np.concatenate(pairs), len(self.literals))
        return np.searchsorted(line, np.arange(len(start) + 1)), ids


class HotLiterals:
    """Literals of 8 bytes and more that stand in a good part of all lines, found without a Python object a hit."""

    def __init__(self, literals: Sequence[bytes]) -> None:
        if any(len(text) < 8 or b"\n" in text or len(text) >= GUARD for text in literals):
            raise ValueError("a hot literal has 8 bytes or more and no newline")
        self.literals = tuple(literals)
        # Literals with a common end (``Prefill batch``, ``Decode batch``) share a pass.
        shared = _shared_end(literals)
        self._passes: list[tuple[bytes, tuple[bytes, ...]]] = (
            [(shared, self.literals)] if len(shared) >= 4 else [(text, (text,)) for text in literals]
        )

    def find(self, window: Window) -> list[NDArray[np.int64]]:
        """For each literal the positions in the window that the window answers for, ascending."""
        text = Text(window.array)
        found: dict[bytes, NDArray[np.int64]] = {}
        begin, stop = window.own
        for probe, literals in self._passes:
            i, j = _rarest(probe)
            at = places_of_pair(text.a, probe[i], probe[j], j - i)
            for literal in literals:
                start = at - (len(literal) - len(probe) + i)
                start = start[(start >= begin) & (start < stop) & (start <= len(text.a) - len(literal))]
                found[literal] = start[text.equal(start, literal)]
        return [found[literal] for literal in self.literals]


def _shared_end(texts: Sequence[bytes]) -> bytes:
    shared = texts[0] if texts else b""
    while not all(text.endswith(shared) for text in texts):
        shared = shared[1:]
    return shared


def _rarest(probe: bytes) -> tuple[int, int]:
    """Two places in a text whose bytes are the least common, as far apart as it goes."""
    order = sorted(range(len(probe)), key=lambda i: (_COMMON.find(probe[i]) >= 0, -abs(i - len(probe) // 2)))
    i, j = sorted(order[:2])
    return i, j
