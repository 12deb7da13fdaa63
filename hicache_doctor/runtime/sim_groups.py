"""Process groups of the simulation, and the collectives that are open on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hicache_doctor.runtime.sim_kernel import Task
from hicache_doctor.runtime.wire_names import GROUPS
from hicache_doctor.runtime.world import Vector


class Group:
    """One process group. ``tree`` holds for each position its parent and its children in gloo's broadcast from 0."""

    __slots__ = ("members", "open", "size", "tree")

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self.size = size = len(members)
        self.open: dict[int, Collective] = {}
        parents = [-1 if v == 0 else v - (1 << (v.bit_length() - 1)) for v in range(size)]
        self.tree = [(parents[v], tuple(w for w in range(size) if parents[w] == v)) for v in range(size)]

    def parent(self, pos: int) -> int:
        """The rank that passes a broadcast to a member; -1 for the root."""
        parent = self.tree[pos][0]
        return self.members[parent] if parent >= 0 else -1


class Seat:
    """One rank's place in a group, and how many collectives it has entered there."""

    __slots__ = ("code", "group", "name", "pos", "seq")

    def __init__(self, name: str, group: Group, pos: int) -> None:
        self.name = name
        self.group = group
        self.pos = pos
        self.seq = 0
        self.code = GROUPS.get(name, 0)


class Collective:
    """One ordinal of a group, from its first arrival to its last; ``vecs`` by position, None: not here yet;
    ``waiting`` by position too.

    ``broken``: members called different things, so nobody will ever leave. ``rank``, ``label`` and ``size`` are those
    of the first to arrive.
    """

    __slots__ = (
        "_has",
        "broken",
        "group",
        "kind",
        "label",
        "missing",
        "op",
        "out",
        "rank",
        "seq",
        "size",
        "vecs",
        "waiting",
    )

    def __init__(self, group: Group, kind: str, seq: int, rank: int, label: str, size: int) -> None:
        self.group = group
        self.kind = kind
        self.seq = seq
        self.rank = rank
        self.label = label
        self.size = size
        self.missing = group.size
        self.broken = False
        self.op = ""
        self.vecs: list[Any] = [None] * group.size
        self.waiting: dict[int, Task] = {}
        self.out: Vector = ()
        self._has = [False] * group.size

    def reduce(self) -> None:
        """``out`` from all vectors."""
        vecs = self.vecs
        if len(vecs) == 1:
            self.out = vecs[0]
        elif self.op == "sum":
            self.out = tuple(map(sum, zip(*vecs, strict=True)))
        else:
            self.out = tuple(map(min if self.op == "min" else max, *vecs))

    def flow(self, pos: int) -> list[int]:
        """Let the data of a broadcast run down to and past the member that arrived; the positions it may set free."""
        tree, has, vecs = self.group.tree, self._has, self.vecs
        parent = tree[pos][0]
        if parent < 0:
            freed = []
        elif has[parent]:
            freed = [parent]
        else:
            return []
        todo = [pos]
        while todo:
            at = todo.pop()
            has[at] = True
            freed.append(at)
            todo.extend([child for child in tree[at][1] if vecs[child] is not None])
        return freed

    def free(self, pos: int) -> bool:
        """Whether a member may leave a broadcast: the data has come to it and its children are here."""
        vecs = self.vecs
        return self._has[pos] and None not in [vecs[child] for child in self.group.tree[pos][1]]

    def cut_off(self, pos: int, lost: Mapping[int, bool]) -> int:
        """The rank whose death a member of a broadcast runs into, or -1.

        As in gloo it first receives from its parent, then sends to its children, so a dead child shows only then.
        """
        members = self.group.members
        parent, children = self.group.tree[pos]
        if not self._has[pos]:
            return members[parent] if members[parent] in lost else -1
        for child in children:
            if self.vecs[child] is None and members[child] in lost:
                return members[child]
        return -1

    def holders(self, pos: int) -> tuple[int, ...]:
        """The ranks that the member at ``pos`` waits for."""
        members, vecs = self.group.members, self.vecs
        if self.broken:
            return tuple(rank for i, rank in enumerate(members) if i != pos)
        if self.kind == "all_reduce":
            return tuple(rank for rank, vec in zip(members, vecs, strict=True) if vec is None)
        parent, children = self.group.tree[pos]
        away = [child for child in children if vecs[child] is None]
        while parent >= 0:
            if vecs[parent] is None:
                away.append(parent)
            parent = self.group.tree[parent][0]
        return tuple(members[i] for i in sorted(away))


class Meeting:
    """The members of a group to be that have called ``new_group``, until the last one comes."""

    __slots__ = ("here", "members", "waiting")

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self.here: list[int] = []
        self.waiting: list[Task] = []
