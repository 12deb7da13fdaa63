"""The ``[2026-05-28 02:19:20 PP1 TP0] `` before a literal, for many lines at once: time and rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from hicache_doctor.artifacts.words import TENS, Text, digits_only

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hicache_doctor.artifacts.words import Flags, Places, Words

INSIDE = 96  # more than the longest text between the brackets: 19 of time, 7 of fraction, 40 of rank
_USUAL = 40
_MOST_RANKS = 4096
_KNOWN_TIMES = 100_000


@dataclass(slots=True)
class Prefix:
    """What stands before each place: code of the rank (-1 none) and seconds since the epoch (nan none)."""

    rank: NDArray[np.int32]
    ts: NDArray[np.float64]


class Prefixes:
    """Reads prefixes and remembers the ranks seen: ``ranks[code]`` is a label."""

    def __init__(self, rank_of: Callable[[str], str | None]) -> None:
        import numpy as np

        self.ranks: list[str] = []
        self._rank_of = rank_of
        self._hashes: Words = np.empty(0, dtype=np.uint64)  # of the texts seen, ascending
        self._codes: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._times: dict[tuple[int, int, int], float] = {}

    def read(self, text: Text, at: Places, *, times: bool = True) -> Prefix:
        """The prefixes that end at each place; ``INSIDE`` + 8 bytes before it must exist. No times: all nan."""
        import numpy as np

        inner = self._inner(text, at)
        first, second, third = text.words[inner], text.words[inner + 8], text.words[inner + 16]
        timed = (
            (at - inner >= 21)
            & digits_only(first, b"0000-00-")
            & digits_only(second, b"00 00:00")
            & digits_only(third, b":00")
        )
        start = inner + 19 * timed
        fraction = self._fractions(text, start, timed)
        start += timed & (text.a[start] == 32)
        rank = self._rank(text, start, np.maximum(at - 2 - start, 0))
        ts = np.full(len(at), np.nan)
        if times:
            whole = np.flatnonzero(timed & (rank > -2))
            ts[whole] = self._seconds(first[whole], second[whole], third[whole]) + fraction[whole]
        return Prefix(np.maximum(rank, -1), ts)

    def _inner(self, text: Text, at: Places) -> Places:
        """Where the text in the brackets before each place begins; where it would end if there are none."""
        import numpy as np

        inner = at - 2
        closed = np.flatnonzero((text.a[at - 2] == 93) & (text.a[at - 1] == 32))
        for width in (_USUAL, INSIDE):
            opening = text.rows(inner[closed] - width, width)[:, ::-1] == 91
            back = opening.argmax(axis=1)
            there = opening[np.arange(len(closed)), back]
            inner[closed[there]] -= back[there]
            closed = closed[~there]
            if not len(closed):
                break
        return inner

    def _fractions(self, text: Text, start: Places, timed: Flags) -> NDArray[np.float64]:
        """The fractions of a second that follow the times; ``start`` is moved behind them."""
        import numpy as np

        out = np.zeros(len(start))
        mark = text.a[start]
        has = np.flatnonzero(timed & ((mark == 46) | (mark == 44)))
        if len(has):
            value, digits = text.number(start[has] + 1)
            fits = (digits > 0) & (digits <= 9)
            has, value, digits = has[fits], value[fits], digits[fits]
            out[has] = value / np.array(TENS, dtype=np.float64)[digits]
            start[has] += digits + 1
        return out

    def _rank(self, text: Text, start: Places, length: Places) -> NDArray[np.int32]:
        """Codes of ranks; -1 for none, -2 where the text in the brackets is no prefix at all."""
        import numpy as np

        hashes = text.hashes(start, length)
        known = np.searchsorted(self._hashes, hashes)
        new = known == len(self._hashes)
        new[~new] = self._hashes[known[~new]] != hashes[~new]
        if new.any():
            fresh, example = np.unique(hashes[new], return_index=True)
            example = np.flatnonzero(new)[example]
            codes = [self._code(text.a[start[i] : start[i] + length[i]].tobytes()) for i in example.tolist()]
            every = np.concatenate((self._hashes, fresh))
            order = np.argsort(every)
            self._hashes = every[order]
            self._codes = np.concatenate((self._codes, np.array(codes, dtype=np.int32)))[order]
            known = np.searchsorted(self._hashes, hashes)
        return self._codes[known]

    def _code(self, label: bytes) -> int:
        if any(byte < 32 or byte == 93 for byte in label):  # a bracket of another record or line
            return -2
        rank = self._rank_of(label.decode("utf-8", "replace")) if label else None
        if rank is None:
            return -1
        if rank not in self.ranks:
            if len(self.ranks) >= _MOST_RANKS:  # no ranks, but something that differs from line to line
                return -1
            self.ranks.append(rank)
        return self.ranks.index(rank)

    def _seconds(self, first: Words, second: Words, third: Words) -> NDArray[np.float64]:
        """The epoch seconds of ``YYYY-MM-``, ``DD HH:MM``, ``:SS…``; nan for a 13th month and the like."""
        import numpy as np

        third = third & np.uint64(0xFFFFFF)
        new = np.ones(len(first), dtype=bool)  # lines of the same second stand together: one conversion a run
        new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1]) | (third[1:] != third[:-1])
        runs = zip(first[new].tolist(), second[new].tolist(), third[new].tolist(), strict=True)
        seconds = np.array([self._second(run) for run in runs], dtype=np.float64)
        of_line: NDArray[np.float64] = seconds[np.cumsum(new) - 1]
        return of_line

    def _second(self, words: tuple[int, int, int]) -> float:
        known = self._times.get(words)
        if known is None:
            text = b"".join(w.to_bytes(8, "little") for w in words)[:19].decode()
            try:
                known = datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()
            except ValueError:
                known = float("nan")
            if len(self._times) >= _KNOWN_TIMES:
                self._times.clear()
            self._times[words] = known
        return known
