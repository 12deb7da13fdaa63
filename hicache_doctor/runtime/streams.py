"""Decision streams straight from the recorded events of a run: the oracle of exploration.

The same definition as the evidence store's, without a database: thousands of short runs are compared. A crash is a poor
oracle; streams part long before it, and often without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hicache_doctor.probes.kinds import Capacity, Kind
from hicache_doctor.runtime.world import Topology

Stream = list[tuple[int, tuple[int, ...]]]
"""(step, value) in order."""

PER_STAGE = (int(Capacity.GROUP_MEMBERS), int(Capacity.STORAGE_KEY))
ORDER = (
    "start",
    "message",
    "consensus",
    "drain_storage",
    "drain",
    "settle",
    "submission",
    "evict",
    "chunk",
    "batch",
    "digest",
    "finish",
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two ranks parted: in which stream, at which ordinal and step, with which values."""

    stream: str
    ordinal: int
    step: int
    ranks: tuple[int, int]
    values: tuple[tuple[int, ...], tuple[int, ...]]


def streams(events: Iterable[Sequence[int]]) -> dict[str, Stream]:
    """The streams of one rank; an event is (kind, step, thread, ns, key, a, b, c, d)."""
    out: dict[str, Stream] = {}
    name: str
    value: tuple[int, ...]
    for event in events:
        kind, step, key, a, b, c, d = event[0], event[1], event[4], event[5], event[6], event[7], event[8]
        if kind == Kind.BATCH:
            name, value = "batch", (a, b, key, c, d)
        elif kind == Kind.DECODE:
            name, value = "batch", (a, b, key)
        elif kind == Kind.SUBMIT:
            name, value = f"submission {a}", (key, b, c)
        elif kind == Kind.DRAIN:
            name, value = f"drain {d}", (a, b, c)
        elif kind == Kind.DRAIN_STORAGE:
            name, value = "drain_storage", (a, b, c, d)
        elif kind == Kind.EVICT:
            name, value = f"evict {a}", (key, b)
        elif kind == Kind.SETTLE:
            name, value = "settle", (key, a, b, c)
        elif kind == Kind.RECV_MSG:
            name, value = "message", (key, a, c)
        elif kind == Kind.FINISH:
            name, value = "finish", (key, a, b)
        elif kind == Kind.DIGEST:
            name, value = "digest", (key, a)
        elif kind == Kind.CONSENSUS:
            name, value = "consensus", (key, a, b, d)
        elif kind == Kind.CHUNK:
            name, value = "chunk", (key, a, b)
        elif kind == Kind.START and key not in PER_STAGE:
            name, value = "start", (key, a, b)
        else:
            continue
        out.setdefault(name, []).append((step, value))
    return out


def differences(topo: Topology, events: Mapping[int, Sequence[Sequence[int]]]) -> list[Difference]:
    """The first difference of each stream between the first rank of a replica and each other one, earliest first.

    Only the common prefix counts: a rank that is merely behind hasn't diverged.
    """
    found: list[Difference] = []
    cache: dict[int, dict[str, Stream]] = {}
    far: dict[int, tuple[int, int]] = {}

    def of(rank: int) -> dict[str, Stream]:
        if rank not in cache:
            cache[rank] = streams(events[rank])
            last = max(e[1] for e in events[rank])
            far[rank] = max([(last, -1), *[(s[-1][0], _order(name)) for name, s in cache[rank].items()]])
        return cache[rank]

    for rank in sorted(events):
        lead = topo.rank(0, 0, topo.place(rank).dp)
        if lead == rank or lead not in events:
            continue
        ours, theirs = of(lead), of(rank)
        reached = min(far[lead], far[rank])
        for name in sorted(set(ours) | set(theirs)):
            a, b = ours.get(name, []), theirs.get(name, [])
            at = _part(a, b, reached, _order(name))
            if at is not None:
                x = a[at] if at < len(a) else (reached[0], ())
                y = b[at] if at < len(b) else (reached[0], ())
                found.append(Difference(name, at, min(x[0], y[0]), (lead, rank), (x[1], y[1])))
    return sorted(found, key=lambda f: (f.step, _order(f.stream), f.ranks, f.stream))


def _order(stream: str) -> int:
    return ORDER.index(stream.split(maxsplit=1)[0])


def _part(a: Stream, b: Stream, reached: tuple[int, int], order: int) -> int | None:
    """The first ordinal at which two streams differ; an entry that one side lacks counts only when that side went on
    beyond the place in the step where it belongs (``reached`` is the place that both have passed)."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x[1] != y[1]:
            return i
    n = min(len(a), len(b))
    longer = a if len(a) > n else b
    if len(longer) > n and (longer[n][0], order) < reached:
        return n
    return None


def summary(difference: Difference, topo: Topology) -> dict[str, Any]:
    """For people and JSON."""
    a, b = difference.ranks
    return {
        "stream": difference.stream,
        "ordinal": difference.ordinal,
        "step": difference.step,
        "values": {topo.label(a): list(difference.values[0]), topo.label(b): list(difference.values[1])},
    }
