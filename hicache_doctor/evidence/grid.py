"""The grid of ranks: numbers and labels, and who stands beside, before and behind whom.

A rank is known by its label (``PP1 TP0``), by its number among all ranks of its world, or by both. Replicas that do not
share attention (``dp_size`` without DP attention) are worlds of their own: each counts its ranks from 0.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

TOKENS = re.compile(r"\b(DP|PP|ATTN_CP|CP|TP)(\d{1,6})\b")
NUMBERED = re.compile(r"rank (\d{1,7})")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is in the grid; what its label leaves out is 0."""

    dp: int
    pp: int
    cp: int
    tp: int


@dataclass(slots=True)
class Grid:
    """The ranks that artefacts show and those that the settings expect."""

    pp_size: int | None
    tp_size: int | None
    replicas: bool
    expected: int | None = None
    places: dict[str, Place] = field(default_factory=dict)
    numbers: dict[str, tuple[int, int]] = field(default_factory=dict)
    labels: dict[tuple[int, int], str] = field(default_factory=dict)
    _stages: dict[tuple[int, int], list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, label: str, number: int | None = None) -> None:
        """Take in a rank; ``number`` is its number in its world where an artefact says it."""
        if label in self.places or label in self.numbers:
            return
        tokens = {k.removeprefix("ATTN_"): int(n) for k, n in TOKENS.findall(label)}
        bare = NUMBERED.fullmatch(label)
        if number is None and bare:
            number = int(bare[1])
        place = None
        if tokens:
            place = Place(*(tokens.get(axis, 0) for axis in ("DP", "PP", "CP", "TP")))
            if number is None and self.tp_size and ("CP" not in tokens or "TP" in tokens):
                number = place.pp * self.tp_size + place.tp
        elif number is not None and self.pp_size and self.tp_size:
            whole = self.pp_size * self.tp_size
            place = Place(number // whole, number // self.tp_size % self.pp_size, 0, number % self.tp_size)
        if place is not None:
            self.places[label] = place
            self._stages[(place.dp, place.pp)].append(label)
        if number is not None:
            world = place.dp if place is not None and self.replicas else 0
            self.numbers[label] = (world, number)
            self.labels.setdefault((world, number), label)

    def label(self, world: int, number: int) -> str:
        """The label of a number; a rank that nothing else names is taken in as ``rank N``."""
        known = self.labels.get((world, number))
        if known is None:
            known = f"rank {number}"
            self.add(known, number)
        return known

    def stage(self, label: str, step: int = 0) -> list[str]:
        """The ranks of the same stage (``step`` 0), of the one before (-1) or behind it (1); the stages form a ring."""
        at = self.places.get(label)
        if at is None:
            return []
        count = self.pp_size or 1 + max(pp for dp, pp in self._stages if dp == at.dp)
        return self._stages.get((at.dp, (at.pp + step) % count), []) if step == 0 or count > 1 else []

    def neighbour(self, label: str, step: int) -> str | None:
        """The rank of the same place in the stage before (-1) or behind (1); one that nothing shows is taken in by the
        name that it must have."""
        at = self.places.get(label)
        if at is None:
            return None
        count = self.pp_size or 1 + max(pp for dp, pp in self._stages if dp == at.dp)
        if count < 2:
            return None
        ranks = self.stage(label, step)
        same = [r for r in ranks if (self.places[r].cp, self.places[r].tp) == (at.cp, at.tp)]
        if same:
            return same[0]
        if ranks and not any("TP" in r for r in ranks):
            return ranks[0]
        name = re.sub(r"\bPP\d+", f"PP{(at.pp + step) % count}", label)
        if name == label:
            return None
        self.add(name)
        return name

    def root(self, label: str) -> str | None:
        """The first rank of the stage: the one that sends requests to its peers."""
        ranks = self.stage(label)
        return self._first(ranks) if ranks else None

    def block(self, numbers: Sequence[int]) -> list[int] | None:
        """The tensor-parallel block, or the line over the stages, that all of ``numbers`` belong to; for groups whose
        members no artefact lists."""
        if not self.pp_size or not self.tp_size or not numbers:
            return None
        tp, first = self.tp_size, numbers[0]
        base = first // (self.pp_size * tp) * self.pp_size * tp
        block = range(first // tp * tp, first // tp * tp + tp)
        column = range(base + first % tp, base + self.pp_size * tp, tp)
        fitting = [list(line) for line in (block, column) if len(line) > 1 and all(n in line for n in numbers)]
        return fitting[0] if fitting else None

    def _first(self, ranks: Sequence[str]) -> str:
        return min(ranks, key=lambda r: (self.places[r].cp, self.places[r].tp, r))


def grid_of(store: Store, settings: Mapping[str, Any], missing: Sequence[str]) -> Grid:
    """The grid of an incident: ranks seen, ranks that the settings expect, ranks that only probes show."""
    rows = store.rows("SELECT id, number FROM rank ORDER BY id")
    known = {r["id"]: r["number"] for r in rows}
    for r in store.rows("SELECT DISTINCT rank FROM event WHERE rank IS NOT NULL ORDER BY rank"):
        known.setdefault(r["rank"], None)
    for label in missing:
        known.setdefault(label, None)
    tokens = [dict(TOKENS.findall(label)) for label in known]
    sizes = {
        axis: _size(settings.get(f"{axis.lower()}_size")) or _seen(tokens, axis, bool(tokens)) for axis in ("PP", "TP")
    }
    replicas = (_size(settings.get("dp_size")) or 1) > 1 and str(settings.get("enable_dp_attention")) != "True"
    grid = Grid(sizes["PP"], sizes["TP"], replicas)
    for label, number in known.items():
        grid.add(label, number)
    return grid


def _size(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 65536 else None


def _seen(tokens: Sequence[Mapping[str, str]], axis: str, any_known: bool) -> int | None:
    """How long an axis is as far as labels show it; one that no label names has length 1 if any label has names."""
    found = [int(t[axis]) for t in tokens if axis in t]
    if found:
        return 1 + max(found)
    return 1 if any_known and any(tokens) else None
