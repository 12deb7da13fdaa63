"""A world of one rank for tests of models and backends: nothing blocks, copies run at once or when told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hicache_doctor.runtime.model.base import ForwardBatch, ForwardItem
from hicache_doctor.runtime.world import Copy, Topology, Vector, mix


class LoneWorld:
    """One rank; ``all_reduce`` is what the test says."""

    def __init__(self, topo: Topology | None = None, rank: int = 0) -> None:
        self.topo = topo or Topology()
        self.rank = rank
        self.at = self.topo.place(rank)
        self.step = 0
        self.slept = 0
        self.records: list[tuple[int, ...]] = []
        self.lines: list[str] = []
        self.reduce: Callable[[Vector], Vector] = lambda vec: vec
        self.reduce_tensor: Callable[[Any], Any] = lambda tensor: tensor

    def now(self) -> int:
        return self.slept

    def sleep(self, ns: int) -> None:
        self.slept += ns

    def all_reduce(self, group: str, op: str, vec: Vector, label: str) -> Vector:
        assert (group, op, label) == ("fwd", "sum", "forward")
        return self.reduce(vec)

    def all_reduce_tensor(self, group: str, tensor: Any, label: str) -> Any:
        assert (group, label) == ("fwd", "forward")
        return self.reduce_tensor(tensor)

    def record(self, kind: int, key: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> None:
        self.records.append((kind, key, a, b, c, d))

    def log(self, text: str, level: str = "INFO") -> None:
        self.lines.append(f"{level} {text}")


def no_wait(layer: int) -> None:
    """Nothing is being loaded back."""


def chain(tokens: Sequence[int]) -> list[int]:
    """The chain hash after each token."""
    out, h = [], 0
    for t in tokens:
        h = mix(h, t)
        out.append(h)
    return out


def item(
    rid: int, tokens: Sequence[int], start: int, pages: Sequence[int], page: int, sample: bool = True
) -> ForwardItem:
    """The extend of ``tokens[start:]`` with the hashes that belong to it."""
    at = chain(tokens)
    hashes = [at[(i + 1) * page - 1] for i in range(len(tokens) // page)]
    return ForwardItem(rid, list(tokens[start:]), start, pages, hashes, at[start - 1] if start else 0, at[-1], sample)


def batch(*items: ForwardItem, ordinal: int = 0) -> ForwardBatch:
    """A batch of them."""
    return ForwardBatch(ordinal, list(items), sum(len(i.ids) for i in items), False, no_wait)


def run_copy(copy: Copy) -> None:
    """Move all layers."""
    for layer in range(copy.layers):
        copy.run(layer)
