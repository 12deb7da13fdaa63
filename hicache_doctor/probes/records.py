"""Records of a ring as numpy arrays and Arrow tables. numpy and pyarrow are imported when they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hicache_doctor.evidence.rows import Rank
from hicache_doctor.probes.ring import RECORD_BYTES, Header, Owner

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Slots = NDArray[np.void]
    Mask = NDArray[np.bool_]
    Numbers = NDArray[np.int64]

FIELDS = (
    ("ts", "<u8"), ("step", "<u4"), ("kind", "<u2"), ("thread", "<u2"), ("key", "<u8"),
    ("a", "<i8"), ("b", "<i8"), ("c", "<i8"), ("d", "<i8"), ("commit", "<u8"),
)  # fmt: skip
# A table is a row group of DuckDB at most: large enough to be cheap, small enough to be held a few times over.
TABLE_ROWS = 122_880


def slots_of(data: bytes | bytearray | memoryview | Any, offset: int, count: int) -> Slots:
    """``count`` slots at ``offset`` of a buffer, without a copy."""
    import numpy as np

    return np.frombuffer(data, dtype=np.dtype(list(FIELDS)), count=count, offset=offset)


def committed(slots: Slots, header: Header, first: int) -> Mask:
    """Which of ``slots`` (the first of them is slot ``first`` of the segment) hold a whole record."""
    import numpy as np

    expected = np.arange(len(slots), dtype=np.uint64) * np.uint64(RECORD_BYTES) + np.uint64(header.commit_word(first))
    found: Mask = slots["commit"] == expected
    return found


class Survey:
    """Counts the records of a segment whose slots come in order, block by block.

    ``end`` is the slot after the last record. ``torn``: slots that a writer had claimed and did not finish, that is,
    holes before the last record, and begun ones after it.
    """

    def __init__(self, header: Header) -> None:
        self.good = 0
        self.slots = 0
        self.end = 0
        self._header = header
        self._holes = 0
        self._open = 0
        self._begun = 0

    @property
    def torn(self) -> int:
        """How many slots are torn, so far."""
        return self._holes + self._begun

    def take(self, slots: Slots) -> Mask:
        """Count a block; returns which of its slots hold a record."""
        import numpy as np

        first = self.slots
        mask = committed(slots, self._header, first)
        self.slots += len(slots)
        good = int(np.count_nonzero(mask))
        self.good += good
        after = 0
        if good:
            after = len(mask) - int(np.argmax(mask[::-1]))
            self.end = first + after
            self._holes += self._open + after - good
            self._open = self._begun = 0
        self._open += len(mask) - after
        rest = slots[after:]
        self._begun += int(np.count_nonzero((rest["ts"] != 0) | (rest["commit"] != 0)))
        return mask


def table(slots: Slots, index: Numbers, header: Header, artifact: str, rank: str) -> pa.Table:
    """Whole records as rows of ``event``; ``index`` is the slot of each in its segment (ascending).

    Times become wall-clock ns by the two clocks of the header, so that rings of several hosts lie on one line.
    """
    import numpy as np
    import pyarrow as pa

    ts = slots["ts"].astype(np.int64) + np.int64(header.wall_ns - header.mono_ns)
    names, codes = _kinds(slots["kind"], header)
    columns = {
        "artifact": _constant(artifact, len(slots)),
        "rank": _constant(rank, len(slots)),
        "step": _array(slots["step"], pa.uint32()),
        "ts_ns": _array(ts, pa.int64()),
        "thread": _array(slots["thread"], pa.uint16()),
        "kind": pa.DictionaryArray.from_arrays(_array(codes, pa.int32()), _strings(names)),
        "key": _array(slots["key"], pa.uint64()),
        **{name: _array(slots[name], pa.int64()) for name in "abcd"},
        "record": _array(index, pa.int64()),
        "seq": _array(index + np.int64(header.base), pa.int64()),
    }
    return pa.table(list(columns.values()), names=list(columns))


def rank_row(owner: Owner, artifact: str) -> Rank:
    """The process that wrote a ring."""
    return Rank(
        owner.label,
        owner.host or None,
        owner.pid,
        owner.dp,
        owner.pp,
        owner.cp,
        None,
        owner.tp,
        number=owner.rank,
        artifact=artifact,
    )


def _kinds(numbers: NDArray[np.uint16], header: Header) -> tuple[list[str], NDArray[np.int32]]:
    """The kinds that occur, by the header's own names, and the index of each record into them."""
    import numpy as np

    known = header.tables.get("kind", {})
    there = np.flatnonzero(np.bincount(numbers, minlength=1))
    code = np.zeros(1 << 16, dtype=np.int32)
    code[there] = np.arange(len(there), dtype=np.int32)
    return [known.get(n) or f"kind_{n}" for n in there.tolist()], code[numbers]


def _array(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """A column from a buffer: ``pyarrow.array`` would import pandas."""
    import numpy as np
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _constant(text: str, count: int) -> pa.DictionaryArray:
    import numpy as np
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(_array(np.zeros(count, dtype=np.int32), pa.int32()), _strings([text]))


def _strings(texts: list[str]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    encoded = [text.encode("utf-8", "replace") for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return pa.Array.from_buffers(
        pa.large_string(), len(texts), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    )
