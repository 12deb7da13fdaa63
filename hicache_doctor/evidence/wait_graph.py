"""Who waits for whom, as a graph: the ranks that all others wait for in the end, and the circles of those that wait for
each other.

A call that ranks wait in is a node of its own between them and the ranks that it lacks: a thousand ranks that wait for
five hundred others are fifteen hundred arrows, not half a million. Pure: no store, no SQL.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Node = tuple[str, Hashable]
"""A rank or a call, with the word that says which."""
Arrows = Mapping[Any, Iterable[Any]]


@dataclass(slots=True)
class Sink:
    """Where waiting ends: one rank that waits for nobody, or the ranks of a circle in the order in which they wait."""

    ranks: list[str]
    waiters: int

    @property
    def cycle(self) -> bool:
        """Whether its ranks wait for each other."""
        return len(self.ranks) > 1


@dataclass(slots=True)
class Graph:
    """Calls and ranks; ``idle`` calls are those that a healthy idle rank stands in, too, and prove nothing alone."""

    waits: dict[str, set[Hashable]] = field(default_factory=lambda: defaultdict(set))
    lacks: dict[Hashable, set[str]] = field(default_factory=lambda: defaultdict(set))
    idle: set[Hashable] = field(default_factory=set)

    def add(self, call: Hashable, ranks: Iterable[str], lacks: Iterable[str], *, idle: bool = False) -> None:
        """``ranks`` wait in ``call``, which the ranks of ``lacks`` have not entered."""
        for rank in ranks:
            self.waits[rank].add(call)
        self.lacks[call] |= set(lacks)
        if idle:
            self.idle.add(call)

    def sinks(self) -> list[Sink]:
        """Every place where waiting ends, in order of their first rank; where only idle ranks wait is none."""
        # A call that lacks nobody ends in itself: who stands in it waits for no rank.
        arrows: dict[Node, list[Node]] = {
            ("rank", r): [("call", c) for c in calls if self.lacks[c]] for r, calls in self.waits.items()
        }
        for call, lacking in self.lacks.items():
            arrows[("call", call)] = [("rank", r) for r in lacking]
            for r in lacking:
                arrows.setdefault(("rank", r), [])
        parts: list[list[Node]] = components(arrows)
        of: dict[Node, int] = {node: i for i, part in enumerate(parts) for node in part}
        into: dict[int, set[Node]] = defaultdict(set)
        leaves = set(range(len(parts)))
        for node, targets in arrows.items():
            for target in targets:
                if of[node] != of[target]:
                    leaves.discard(of[node])
                    into[of[target]].add(node)
        serious = self._serious(arrows, of)
        found = []
        for i in leaves:
            ranks = sorted((str(name) for kind, name in parts[i] if kind == "rank"), key=in_order)
            inside = {name for kind, name in parts[i] if kind == "call"}
            if not ranks or (not into[i] and len(ranks) < 2) or i not in serious:
                continue
            waiters = {
                r for r, calls in self.waits.items() if any(("call", c) in into[i] or c in inside for c in calls)
            }
            found.append(Sink(self._in_order(ranks, inside), len(waiters - set(ranks))))
        return sorted(found, key=lambda s: in_order(s.ranks[0]))

    def _serious(self, arrows: Arrows, of: Mapping[Node, int]) -> set[int]:
        """The parts that some call which no idle rank would stand in leads to, directly or over others."""
        todo: list[Node] = [("call", c) for c in self.lacks if c not in self.idle]
        seen = set(todo)
        while todo:
            for target in arrows.get(todo.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        return {of[node] for node in seen}

    def _in_order(self, ranks: list[str], inside: set[Hashable]) -> list[str]:
        """The ranks of a circle as they wait: each for the next one, as far as there is one line through them."""
        after = {
            r: sorted((x for c in self.waits.get(r, ()) if c in inside for x in self.lacks[c] if x != r), key=in_order)
            for r in ranks
        }
        line, left = [ranks[0]], set(ranks[1:])
        while left:
            following = next((x for x in after[line[-1]] if x in left), min(left, key=in_order))
            line.append(following)
            left.discard(following)
        return line


def in_order(rank: str) -> tuple[tuple[int, str], ...]:
    """The key that puts ``rank 9`` before ``rank 10``."""
    return tuple((int(t), "") if t.isdigit() else (-1, t) for t in re.split(r"(\d+)", rank))


def components(arrows: Arrows) -> list[list[Any]]:
    """Strongly connected components (Tarjan), without recursion: a chain of waits may be as long as there are ranks."""
    index: dict[Hashable, int] = {}
    low: dict[Hashable, int] = {}
    stack: list[Hashable] = []
    on_stack: set[Hashable] = set()
    parts: list[list[Any]] = []
    for root in arrows:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        work = [(root, iter(arrows.get(root, ())))]
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(arrows.get(target, ()))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    part: list[Any] = []
                    while not part or part[-1] != node:
                        part.append(stack.pop())
                        on_stack.discard(part[-1])
                    parts.append(part)
    return parts
