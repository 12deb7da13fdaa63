"""Jobs with a planted fault, and the ranks that a right answer names."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hicache_doctor.evidence.rows import Frame, Row, Setting, Stack
from tests.evidence.hang_world import Group, Rank, World, grid, program
from tests.evidence.recorder_rows import rows_of

SHAPES = [
    (1, 2, 1),
    (1, 4, 1),
    (2, 2, 1),
    (2, 1, 1),
    (4, 1, 1),
    (2, 4, 1),
    (4, 2, 1),
    (1, 2, 2),
    (2, 2, 2),
    (1, 8, 1),
    (2, 2, 3),
]
"""pp, tp, dp."""


@dataclass(slots=True)
class Planted:
    """``answer``: the ranks that must be named and no other; ``circle``: those that wait for each other; ``skips``:
    the rank that must be said to have skipped a call (``swaps``: made two in another order)."""

    kind: str
    seed: int
    world: World
    victims: list[int]
    silent: set[int]
    answer: set[int]
    circle: set[int]
    skips: int | None = None
    swaps: int | None = None
    keep: int | None = None

    def label(self, rank: int) -> str:
        w = self.world
        if not self.stacked:
            return f"rank {rank}"
        pp, tp = rank // w.tp % w.pp, rank % w.tp
        return (f"DP{rank // (w.pp * w.tp)} " if w.dp > 1 else "") + f"PP{pp}" + (f" TP{tp}" if w.tp > 1 else "")

    def number(self, label: str) -> int:
        """The number of a rank that an answer names."""
        if label.startswith("rank "):
            return int(label[5:])
        at = {t[:2]: int(t[2:]) for t in label.split()}
        return (at.get("DP", 0) * self.world.pp + at.get("PP", 0)) * self.world.tp + at.get("TP", 0)

    @property
    def stacked(self) -> bool:
        """Messages over gloo are in no recorder: there the stacks are needed."""
        return self.world.backend == "gloo" and self.world.pp > 1

    def rows(self) -> list[Row]:
        """What the artefacts of the incident hold."""
        out: list[Row] = []
        for rank in range(len(self.world.ranks)):
            if rank in self.silent:
                continue
            label = self.label(rank)
            out += rows_of(self.world.dump(rank, self.keep), rank, f"fr_{rank}", label)
            if self.stacked:
                out += _stack(label, self.world.stack(rank))
        if self.world.backend == "gloo":
            sizes = {"pp_size": self.world.pp, "tp_size": self.world.tp}
            out += [Setting(k, str(v), "option", "(command line)", None) for k, v in sizes.items()]
        return out


def _stack(label: str, functions: list[str]) -> list[Row]:
    name = f"spy {label}"
    frames: list[Row] = [Frame(name, i, None, f, "x.py", 1, i + 2) for i, f in enumerate(functions)]
    return [Stack(name, name, 1, 9, None, None, label, None, "pyspy", "MainThread", True, "idle"), *frames]


KINDS = ("missing", "dead", "stuck", "skipped", "swapped", "size", "several")


def plant(kind: str, seed: int) -> Planted:
    """A job in which the fault was met and some rank waits because of it; other seeds are tried until one is."""
    for attempt in range(400):
        made = _try(kind, seed, random.Random(f"{kind} {seed} {attempt}"))
        if made is not None:
            return made
    raise AssertionError(f"no job of kind {kind} hangs from seed {seed}")


def _try(kind: str, seed: int, rng: random.Random) -> Planted | None:
    pp, tp, dp = rng.choice(SHAPES)
    kinds, n = grid(pp, tp, dp)
    backend = rng.choice(["nccl", "gloo"])
    ring = backend == "nccl" and rng.random() < 0.4
    steps = rng.randint(14, 20)
    ranks = [Rank(r, program(r, kinds, pp, tp, dp, steps, ring)) for r in range(n)]
    world = World(
        backend, pp, tp, dp, ranks, rng, window=rng.choice([1, 4, 12]), timing=kind == "stuck" or rng.random() < 0.5
    )
    victims = rng.sample(range(n), 2 if kind == "several" else 1)
    made = Planted(kind, seed, world, victims, set(), set(victims), set())
    if rng.random() < 0.5:
        made.keep = rng.randint(90, 200)
    for victim in victims:
        if not _spoil(made, ranks[victim], rng, kinds):
            return None
    world.run()
    if all(r.next == len(r.program) and r.head() is None for r in ranks):
        return None
    return made if _met(made) else None


def _spoil(made: Planted, rank: Rank, rng: random.Random, kinds: dict[str, dict[int, Group]]) -> bool:
    """Plant the fault in one rank's program, past the first rounds, so that there is a history."""
    items, world = rank.program, made.world
    late = range(len(items) * 6 // 10, len(items) - 1)
    kind = rng.choice(["missing", "dead"]) if made.kind == "several" else made.kind
    if kind in {"missing", "dead"}:
        rank.stops_at = rng.choice(late)
        if kind == "missing":
            made.silent.add(rank.number)
    elif kind == "stuck":
        rank.stuck_at = rng.choice([i for i in late if items[i].op == "compute"])
    elif kind == "skipped":
        fitting = [i for i in late if items[i].group and not items[i].message and len(items[i].group[2]) > 1]
        if not fitting:
            return False
        del items[rng.choice(fitting)]
        made.skips = rank.number
        if world.backend == "gloo" and world.tp == 1 and rank.number:
            # Beside the skipped calls the two ranks share only messages, which gloo's recorder does not hold.
            made.answer = made.circle = {rank.number - 1, rank.number}
    elif kind == "swapped":
        at = [i for i in late if items[i].site == "recv_requests"]
        if not at:
            return False
        i = rng.choice(at)
        items[i], items[i + 1] = items[i + 1], items[i]
        made.circle = set(kinds["tp"][rank.number][2])
        if world.backend == "nccl" and world.window > 1:
            made.answer = made.circle  # the calls behind the difference are there: each did the other's first
        made.swaps = rank.number
    elif kind == "size":
        at = [i for i in late if items[i].site == "forward"]
        if not at:
            return False
        items[rng.choice(at)].size += 1000
        members = set(kinds["tp"][rank.number][2])
        made.answer = members if len(members) == 2 else {rank.number}
        made.circle = members if len(members) == 2 else set()
    return True


def _met(made: Planted) -> bool:
    """Whether every victim met its fault and is waited for."""
    world = made.world
    for victim in made.victims:
        rank = world.ranks[victim]
        stopped = rank.stops_at is not None and rank.next == rank.stops_at and rank.head() is None
        stuck = rank.stuck_at is not None and rank.ended == rank.stuck_at
        if rank.stops_at is not None and not stopped:
            return False
        if rank.stuck_at is not None and not stuck:
            return False
        if not world.waits_on(victim):
            return False
    return True
