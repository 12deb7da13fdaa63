"""``Prefill batch`` and ``Decode batch`` lines, a window at a time, without a Python step a line.

Only the neighbourhood of the literal is looked at: ``[time rank] `` right before it, ``key: value`` pairs behind it up
to the end of the record (the line, a quote or backslash of a wrapper, the next batch literal, or ``REACH`` bytes). So
every generation of the format and every wrapper is read alike, and a field that is missing is null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hicache_doctor.artifacts.batch_fields import FIELDS, MARGIN, Fields
from hicache_doctor.artifacts.batch_prefix import INSIDE, Prefixes
from hicache_doctor.artifacts.scan import HotLiterals
from hicache_doctor.artifacts.windows import Window
from hicache_doctor.artifacts.words import Text

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from hicache_doctor.artifacts.words import Flags, Places

PREFILL, DECODE = b"Prefill batch", b"Decode batch"
REACH = {"prefill": 256, "decode": 448}  # bytes behind the literal: what the longest known lines need, and a half
_STEP = 1 << 13  # lines worked on together: their bytes stay in the cache
_PREFILL_ONLY = ("new_seq", "new_token", "cached_token")


class BatchLines:
    """Reads the batch lines of one artefact, window after window.

    Every Prefill line becomes a row. Decode lines are counted by rank in ``decoded`` (Prefill lines in ``prefilled``);
    rows are made of the first and the last of each window and rank and of every ``every``-th of a rank. ``rank_of``
    turns the text between the brackets (without the time) into the rank's label, once for each distinct text.
    """

    def __init__(
        self, artifact: str, *, every: int = 100, rank_of: Callable[[str], str | None] = lambda text: text or None
    ) -> None:
        self.artifact = artifact
        self.every = every
        self.prefilled: dict[str | None, int] = {}
        self.decoded: dict[str | None, int] = {}
        self._hot = HotLiterals([PREFILL, DECODE])
        self._prefixes = Prefixes(rank_of)
        self._none: pa.Table | None = None
        self._fields = {kind: Fields(reach) for kind, reach in REACH.items()}

    def read(self, window: Window) -> pa.Table:
        """The rows of a window in the columns of :class:`evidence.rows.Batch`: Prefill, then Decode; ``life`` is 0."""
        import numpy as np
        import pyarrow as pa

        prefill, decode = self._hot.find(window)
        if not len(prefill) and not len(decode):
            if self._none is None:
                self._none = self._table(window, "prefill", prefill, prefill)
            return self._none
        starts = np.sort(np.concatenate((prefill, decode)))
        rank = self._ranks(window, decode)
        ordinal, last = _ordinals(rank)
        before = np.array([self.decoded.get(r, 0) for r in (*self._prefixes.ranks, None)], dtype=np.int64)
        chosen = (ordinal == 0) | last | ((ordinal + before[rank]) % self.every == 0)
        self._count(self.decoded, rank)
        tables = []
        for kind, at in (("prefill", prefill), ("decode", decode[chosen])):
            for i in range(0, len(at), _STEP):
                tables.append(self._table(window, kind, at[i : i + _STEP], starts))
        return pa.concat_tables(tables).unify_dictionaries()

    def _ranks(self, window: Window, at: Places) -> NDArray[np.int32]:
        import numpy as np

        rank = np.empty(len(at), dtype=np.int32)
        for i in range(0, len(at), _STEP):
            for text, places, rows in _texts(window, at[i : i + _STEP], 0):
                rank[rows + i] = self._prefixes.read(text, places, times=False).rank
        return rank

    def _count(self, counts: dict[str | None, int], rank: NDArray[np.int32]) -> None:
        import numpy as np

        ranks = (None, *self._prefixes.ranks)
        for code, n in enumerate(np.bincount(rank + 1).tolist()):
            if n:
                counts[ranks[code]] = counts.get(ranks[code], 0) + n

    def _table(self, window: Window, kind: str, at: Places, starts: Places) -> pa.Table:
        import numpy as np
        import pyarrow as pa

        n = len(at)
        literal = len(PREFILL if kind == "prefill" else DECODE)
        _, end, number = window.lines(at)
        following = np.append(starts, len(window.data))[np.searchsorted(starts, at, side="right")]
        end = np.minimum(end, following)
        ts, rank = np.full(n, np.nan), np.full(n, -1, dtype=np.int32)
        fields = {k: (np.zeros(n, dtype=np.float64 if k == "usage" else np.int64), np.zeros(n, bool)) for k in FIELDS}
        for text, places, rows in _texts(window, at, literal + REACH[kind] + MARGIN):
            prefix = self._prefixes.read(text, places)
            ts[rows], rank[rows] = prefix.ts, prefix.rank
            found = self._fields[kind].read(text, places + literal, end[rows] - at[rows] - literal)
            for name, row, value in found:
                fields[name][0][rows[row]] = value
                fields[name][1][rows[row]] = True
        if kind == "prefill":
            self._count(self.prefilled, rank)
        else:
            for name in _PREFILL_ONLY:
                fields[name][1][:] = False
        columns: dict[str, Any] = {
            "artifact": _words(np.zeros(n, dtype=np.int32), [self.artifact]),
            "line": number,
            "offset": at + window.offset,
            "ts": pa.array(ts, mask=np.isnan(ts)),
            "rank": _words(rank, self._prefixes.ranks),
            "kind": _words(np.zeros(n, dtype=np.int32), [kind]),
            **{name: pa.array(value, mask=~there) for name, (value, there) in fields.items()},
            "life": np.zeros(n, dtype=np.int64),
        }
        return pa.table(columns)


def _words(codes: NDArray[np.int32], values: list[str]) -> pa.DictionaryArray:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(values, type=pa.string()))


def _ordinals(code: NDArray[np.int32]) -> tuple[Places, Flags]:
    """The how-manieth of its code each element is (from 0), and whether it is the last one."""
    import numpy as np

    order = np.argsort(code.astype(np.int16), kind="stable")
    ranked = code[order]
    new = np.ones(len(code), dtype=bool)
    new[1:] = ranked[1:] != ranked[:-1]
    index = np.arange(len(code))
    ordinal, last = np.empty(len(code), dtype=np.int64), np.empty(len(code), dtype=bool)
    ordinal[order] = index - index[new][np.cumsum(new) - 1]
    last[order] = np.append(new[1:], True)[: len(code)]
    return ordinal, last


def _texts(window: Window, at: Places, behind: int) -> Iterator[tuple[Text, Places, Places]]:
    """The window, and a padded copy for places too near its edges: text, places in it, which elements of ``at``."""
    import numpy as np

    before = INSIDE + 8
    inner = (at >= before) & (at + max(behind, MARGIN) <= len(window.data))
    rows = np.flatnonzero(inner)
    if len(rows):
        yield Text(window.array), at[rows], rows
    rows = np.flatnonzero(~inner)
    if len(rows):
        width = before + max(behind, MARGIN)
        pieces = []
        for place in at[rows].tolist():
            piece = bytes(window.data[max(0, place - before) : place + width - before])
            pieces.append(b"\n" * max(0, before - place) + piece)
        joined = b"".join(piece.ljust(width, b"\n") for piece in pieces)
        yield Text(np.frombuffer(joined, dtype=np.uint8)), np.arange(len(rows)) * width + before, rows
