"""The rows of one flight-recorder dump, from its columns: how far its rank got in each group, and every operation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hicache_doctor.artifacts.recorder_columns import NONE
from hicache_doctor.evidence.rows import GroupStatus, Rank

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

SOURCE = "flight_recorder"
# A longer list of members is said by the group's status only: a row an operation would repeat it by the million.
LONGEST_MEMBERS = 1_200
_MESSAGE = re.compile(r"(?P<op>send|recv) (?P<own>\d{1,6})(?:->|<-)(?P<peer>\d{1,6})")
_COLUMNS = (
    ("record", "i8"), ("seq", "i8"), ("created", "i8"), ("group", "i4"), ("op", "i4"), ("state", "i4"),
    ("shape", "i4"), ("site", "i4"), ("retired", "i1"), ("message", "i1"),
)  # fmt: skip


@dataclass
class Recorder:
    """One dump. ``header`` and ``buffers`` are what :mod:`recorder_columns` gave; ``known``: whether ``home``,
    the rank, could be told."""

    path: str
    home: Rank
    known: bool
    header: dict[str, Any]
    buffers: list[bytes]

    @property
    def count(self) -> int:
        """How many operations there are."""
        return int(self.header["entries"])

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns by name, one value an operation."""
        import numpy as np

        return {name: np.frombuffer(b, kind) for (name, kind), b in zip(_COLUMNS, self.buffers, strict=True)}

    @cached_property
    def backends(self) -> tuple[str, ...]:
        """What the operations' names begin with: nccl, gloo."""
        return tuple(sorted({b for op in self.header["ops"] if (b := _backend(op)) is not None}))

    @cached_property
    def latest(self) -> int:
        """When the last operation was issued, in ns."""
        return int(self.columns["created"].max()) if self.count else NONE

    @cached_property
    def members(self) -> list[list[int]]:
        """The global ranks of each group that has operations; empty where the dump does not say."""
        config = self.header["config"]
        return [_ranks(config[g][1]) if g in config else [] for g, _ in self.groups]

    @property
    def groups(self) -> list[tuple[str, str]]:
        """Name and description of each group that has operations."""
        return [(name, descr) for name, descr in self.header["groups"]]

    @cached_property
    def reached(self) -> tuple[dict[int, int], dict[int, int]]:
        """Of each group, the last number of a collective that was issued, and that is finished."""
        c = self.columns
        group, seq = c["group"], c["seq"]
        messages = [i for i, op in enumerate(self.header["ops"]) if _MESSAGE.search(op)]
        collective = ~_of_codes(c["op"], messages) & (c["message"] == 0) & (seq != NONE)
        done = collective & (c["retired"] == 1)
        issued = dict(zip(group[collective].tolist(), seq[collective].tolist(), strict=True))
        return issued, dict(zip(group[done].tolist(), seq[done].tolist(), strict=True))

    def time_of(self, index: int) -> float | None:
        """When the operation at ``index`` was issued, in seconds since the epoch."""
        at = int(self.columns["created"][index])
        return at / 1e9 if at > 0 else None


def note(recorder: Recorder) -> str:
    """What the inventory says: ``rank 3: 2000 operations in 4 groups, version 2.10, nccl``."""
    header, columns = recorder.header, recorder.columns
    parts = [f"{recorder.count} operations in {len(recorder.groups)} groups", f"version {header['version']}"]
    parts += recorder.backends
    first = int(columns["record"][0]) if recorder.count else NONE
    if first > 0:
        parts.append(f"head lost before record {first}")
    if unfinished := int((columns["retired"] == 0).sum()):
        parts.append(f"{unfinished} unfinished")
    if header["before"]:
        parts.append(f"{header['before']} older ones left out")
    if header["others"]:
        parts.append(f"{header['others']} entries are none")
    whose = recorder.home.id if recorder.known else "no rank in its name (…_rank_<n>)"
    return f"{whose}: {', '.join(parts)}"


def statuses(recorder: Recorder) -> Iterator[GroupStatus]:
    """How far the rank got in each group that it has operations of, or counts."""
    header, columns = recorder.header, recorder.columns
    told = {name: counts for pg, *counts in header["status"] if (name := _name_of(header).get(pg)) is not None}
    untold = _untold(recorder)
    for g, (name, descr) in enumerate(recorder.groups):
        if name in told:
            enqueued, started, completed = told.pop(name)
        else:
            last, finished = recorder.reached
            enqueued, started, completed = last.get(g), None, finished.get(g)
        backend = recorder.backends[0] if recorder.backends else None
        if len(recorder.backends) > 1:
            ops = {header["ops"][i] for i in set(columns["op"][columns["group"] == g].tolist())}
            backend = next((b for op in sorted(ops) if (b := _backend(op)) is not None), None)
        counts = (enqueued, started, None if g in untold else completed)
        yield _status(recorder, name, descr, recorder.members[g], backend, counts)
    for name, (enqueued, started, completed) in told.items():
        descr, members = header["config"].get(name, ("", ""))
        yield _status(recorder, name, descr, _ranks(members), None, (enqueued, started, completed))


def _status(
    recorder: Recorder,
    name: str,
    descr: str,
    members: list[int],
    backend: str | None,
    counts: tuple[int | None, int | None, int | None],
) -> GroupStatus:
    rank = recorder.home.id if recorder.known else None
    text = ",".join(map(str, members)) or None
    return GroupStatus(recorder.path, None, rank, name, descr or None, text, backend, *counts, source=SOURCE)


def _name_of(header: dict[str, Any]) -> dict[str, str]:
    """The group that each id of the dump's counts stands for.

    Only its process knows the ids. One is told where all operations of it are of one group, and the other way round;
    the rest where as many groups are configured as counted: both are numbered in the order in which they were made.
    """
    names: dict[str, set[str]] = {}
    ids: dict[str, set[str]] = {}
    for pg, g in header["ids"]:
        name = header["groups"][g][0]
        names.setdefault(str(pg), set()).add(name)
        ids.setdefault(name, set()).add(str(pg))
    seen = {pg: n for pg, own in names.items() if len(own) == 1 and len(ids[n := next(iter(own))]) == 1}
    counted, configured = [pg for pg, *_ in header["status"]], list(header["config"])
    if len(counted) == len(configured) and all(re.fullmatch(r"\d{1,9}", n) for n in counted + configured):
        made = dict(zip(sorted(counted, key=int), sorted(configured, key=int), strict=True))
        if all(made.get(pg) == name for pg, name in seen.items()) and len(seen) == len(names):
            return made
    return seen


def _untold(recorder: Recorder) -> set[int]:
    """Of gloo, the groups that the last operation of a thread belongs to where that counts as finished."""
    c, ops = recorder.columns, recorder.header["ops"]
    return {
        int(c["group"][i])
        for i in recorder.header["last"]
        if c["retired"][i] == 1 and (_backend(ops[int(c["op"][i])]) or "").startswith("gloo")
    }


def operations(recorder: Recorder) -> Iterator[pa.Table]:
    """All operations as rows of ``collective``, under the label that the rank has when they are taken."""
    import numpy as np
    import pyarrow as pa

    header, c, n = recorder.header, recorder.columns, recorder.count
    groups = recorder.groups
    messages, peers, ordinals = _messages(recorder)
    seq = np.where(messages, ordinals, c["seq"])
    members = [",".join(map(str, m)) for m in recorder.members]
    constant = np.zeros(n, dtype=np.int32)
    label = recorder.home.id if recorder.known else None
    columns = {
        "artifact": _coded([recorder.path], constant),
        "record": _integers(c["record"]),
        "rank": _coded([label], constant),
        "grp": _coded([name for name, _ in groups], c["group"]),
        "seq": _integers(seq),
        "op": _coded([_bare(op) for op in header["ops"]], c["op"]),
        "sizes": _coded([sizes for sizes, _ in header["shapes"]], c["shape"]),
        "dtype": _coded([types for _, types in header["shapes"]], c["shape"]),
        "state": _coded([s or None for s in header["states"]], c["state"]),
        "retired": _booleans(c["retired"]),
        "call_site": _coded([*header["sites"], None], np.where(c["site"] < 0, len(header["sites"]), c["site"])),
        "source": _coded([SOURCE], constant),
        "ts": _numbers(c["created"] / 1e9, c["created"] > 0),
        "position": _integers(_positions(c["record"], c["created"])),
        "members": _coded([m if 0 < len(m) <= LONGEST_MEMBERS else None for m in members], c["group"]),
        "descr": _coded([d or None for _, d in groups], c["group"]),
        "backend": _coded([_backend(op) for op in header["ops"]], c["op"]),
        "peer": _integers(peers),
    }
    yield pa.table(list(columns.values()), names=list(columns))


def _positions(record: NDArray[np.int64], created: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order in which the rank issued them: by time, which two recorders of one process share; by number of the
    record where the times cannot be in order."""
    import numpy as np

    if len(created) and created[0] > 0 and bool((created[1:] >= created[:-1]).all()):
        return created
    return record if bool((record != NONE).all()) else np.arange(len(record))


def _messages(recorder: Recorder) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Which operations are messages, the other rank of each, and its number among those from sender to receiver.

    The number that the dump has counts all messages of the group on this rank, which says nothing to another rank. Ours
    needs them all from the first on: it is left out where the head of the ring was lost.
    """
    import numpy as np

    header, c, n = recorder.header, recorder.columns, recorder.count
    # Several messages as one operation have no other rank of their own.
    found, peers = c["message"] == 1, np.full(n, NONE)
    ordinals = np.full(n, NONE)
    whole = n > 0 and c["record"][0] == 0
    for code, op in enumerate(header["ops"]):
        m = _MESSAGE.search(op)
        if m is None:
            continue
        here = c["op"] == code
        found |= here
        for g in set(c["group"][here].tolist()):
            at = np.flatnonzero(here & (c["group"] == g))
            members = recorder.members[g]
            if int(m["peer"]) < len(members):
                peers[at] = members[int(m["peer"])]
            if whole:
                ordinals[at] = np.arange(1, len(at) + 1)
    return found, peers, ordinals


def _ranks(members: str) -> list[int]:
    """The global ranks of ``[0, 1]``."""
    return [int(n) for n in re.findall(r"\d{1,9}", members)]


def _of_codes(codes: NDArray[np.int32], wanted: list[int]) -> NDArray[np.bool_]:
    import numpy as np

    return np.isin(codes, np.array(wanted, dtype=np.int32))


def _backend(op: str) -> str | None:
    head, sep, _ = op.partition(":")
    return head if sep and head else None


def _bare(op: str) -> str:
    """``send`` of ``nccl:send 0->1``."""
    name = op.partition(":")[2] or op
    m = _MESSAGE.fullmatch(name)
    return m["op"] if m else name


def _coded(texts: list[str | None] | list[str], codes: NDArray[np.int32]) -> pa.DictionaryArray:
    import numpy as np
    import pyarrow as pa

    encoded = [b"" if t is None else t.encode("utf-8", "replace") for t in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    index = np.ascontiguousarray(codes, dtype=np.int32)
    # A missing text is said by the index: dictionaries of several tables are joined only where they have no nulls.
    there = np.array([t is not None for t in texts], dtype=bool)[index]
    return pa.DictionaryArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), len(index), [_bits(there), pa.py_buffer(index)]),
        pa.Array.from_buffers(
            pa.large_string(), len(texts), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
        ),
    )


def _integers(values: NDArray[np.int64]) -> pa.Array:
    import pyarrow as pa

    return _numeric(pa.int64(), values, values != NONE)


def _numbers(values: NDArray[np.float64], there: NDArray[np.bool_]) -> pa.Array:
    import pyarrow as pa

    return _numeric(pa.float64(), values, there)


def _numeric(kind: pa.DataType, values: NDArray[Any], there: NDArray[np.bool_]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(values), [_bits(there), pa.py_buffer(np.ascontiguousarray(values))])


def _booleans(values: NDArray[np.int8]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    bits = pa.py_buffer(np.packbits(values == 1, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [_bits(values >= 0), bits])


def _bits(there: NDArray[np.bool_]) -> pa.Buffer | None:
    import numpy as np
    import pyarrow as pa

    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
