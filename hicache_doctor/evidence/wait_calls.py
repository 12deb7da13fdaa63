"""Calls that ranks wait in, as flight recorders show them: what has not ended, and which members it lacks.

NCCL's calls are queued and run in order: only a rank's oldest unfinished one is really waited for, and a member that
has it queued behind an older unfinished one of its own is waited for, too. gloo's block the thread that makes them, so
each unfinished one is waited for; its recorder says ``scheduled`` of every entry, so there only ``retired`` counts. A
dump that was taken after the time-out shows the hung call as retired: then the last calls of the members are compared.
Messages inside a coalesced group have no state of their own; they have that of the ``coalesced`` entry behind them.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hicache_doctor.evidence import call_streams, call_tables

if TYPE_CHECKING:
    from hicache_doctor.evidence.grid import Grid
    from hicache_doctor.evidence.store import Store

EQUAL_SIZES = {
    "all_reduce", "allreduce_coalesced", "reduce", "broadcast", "all_gather", "_all_gather_base", "all_gather_single",
    "all_gather_into_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced", "barrier", "all_reduce_barrier",
}  # fmt: skip
"""The operations whose input must be of one size on all members."""
ODD = ("other_call", "other_size", "other_type")
"""What each part of a call's kind is to those who brought another."""
MESSAGES = {"send": "recv", "recv": "send"}
INSIDE = {"gpu_collective", "result_sync"}
"""Places in which a rank has queued its GPU calls already."""
DUMPS = "('flight_recorder', 'flight recorder')"
"""The kinds of artefact that are a dump, even one without a call."""
MOST_MESSAGES = 4096
MOST_CALLS = 20_000
"""Unfinished calls that are looked at: more than one a thread and rank is no hang but a recorder's mistake."""


@dataclass(frozen=True, slots=True)
class At:
    """A rank's place in a call, with where it was read."""

    rank: str
    artifact: str | None
    record: int | None
    line: int | None
    quote: str | None
    source: str


@dataclass(slots=True)
class Call:
    """One call that ranks wait in. ``lacks``: why each rank that it needs is not in it, and the detail of it."""

    key: tuple[Any, ...]
    op: str
    site: str | None
    group: str | None
    seq: int | None
    ranks: list[At]
    lacks: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    idle: bool = False
    alone: bool = False
    """All other members have it behind them."""


@dataclass(slots=True)
class Recorded:
    """What flight recorders say: calls, the ranks whose oldest call is unfinished, the ranks that have a dump."""

    calls: list[Call]
    heads: dict[str, dict[str, Any]]
    dumped: set[str]


def recorded(
    store: Store, grid: Grid, *, late: bool, helper: Iterable[str], standing: Mapping[str, Mapping[str, Any]]
) -> Recorded:
    """The calls of the recorders. ``late``: a dump may be from after the time-out; ``helper``: functions of threads
    that are not the scheduler's; ``standing``: where stacks show ranks, which may have no dump."""
    store.flush()
    ranks = [{"rank": label, "r": i, "world": w, "n": n} for i, (label, (w, n)) in enumerate(grid.numbers.items())]
    store.con.execute("CREATE OR REPLACE TABLE wait_rank (rank VARCHAR, r INT, world INT, n INT)")
    store.fill("wait_rank", ranks)
    if not store.value("SELECT count(*) FROM (SELECT 1 FROM collective UNION ALL SELECT 1 FROM group_status LIMIT 1)"):
        return Recorded([], {}, set())
    call_tables.create(store)
    call_streams.number(store)
    store.con.execute(call_tables.REACH)
    return _Reader(store, grid, set(helper), standing).read(late)


class _Reader:
    def __init__(self, store: Store, grid: Grid, helper: set[str], standing: Mapping[str, Mapping[str, Any]]) -> None:
        self.store, self.grid, self.helper, self.standing = store, grid, helper, standing
        dumps = "SELECT rank FROM collective UNION SELECT rank FROM group_status"
        also = f"SELECT r.id FROM rank r JOIN artifact a ON a.path = r.artifact AND a.kind IN {DUMPS}"
        self.dumped = {r["rank"] for r in store.rows(f"{dumps} UNION {also}") if r["rank"]}
        self.groups = {r["g"]: r for r in store.rows("SELECT * FROM call_group")}
        self.members = self._members()
        self.reach = {(r["r"], r["g"]): r["reach"] for r in store.rows("SELECT * FROM call_reach")}
        self.index = {r["rank"]: r["r"] for r in store.rows("SELECT rank, r FROM wait_rank")}
        self.turns: dict[tuple[str, str], dict[str, Any]] = {}

    def read(self, late: bool) -> Recorded:
        oldest = self.store.rows(call_tables.OLDEST.format(most=MOST_CALLS))
        heads = self._own_thread(oldest)
        for row in heads:
            known = self.turns.get((row["rank"], row["artifact"]))
            if known is None or row["turn"] < known["turn"]:
                self.turns[(row["rank"], row["artifact"])] = row
        calls = self._collectives([h for h in heads if not h["message"] and h["op"] != "coalesced"])
        calls += self._messages([h for h in heads if h["message"]])
        if late:
            calls += self._last_calls()
        return Recorded(calls, {h["rank"]: h for h in heads}, self.dumped)

    def _own_thread(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Without the calls of helper threads, of ranks that have another one: a storage thread waits for work."""
        own = {r["rank"] for r in rows if _function(r["call_site"]) not in self.helper}
        return [r for r in rows if r["rank"] not in own or _function(r["call_site"]) not in self.helper]

    def _members(self) -> dict[int, list[str]]:
        """The members of each group: as listed, else those that took part and the silent ones that belong to them."""
        seen: dict[int, list[int]] = defaultdict(list)
        for row in self.store.rows("SELECT DISTINCT g, n FROM recorded_call JOIN wait_rank USING (r) ORDER BY g, n"):
            seen[row["g"]].append(row["n"])
        alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for g, row in self.groups.items():
            alike[(row["world"], row["descr"], row["backend"])].append(g)
        silent = self._silent()
        out = {}
        for g, row in self.groups.items():
            numbers = [int(x) for x in (row["members"] or "").split(",") if x.strip().isdigit()]
            if not numbers:
                sizes = alike[(row["world"], row["descr"], row["backend"])]
                largest = max(len(seen[x]) for x in sizes)
                # Groups of one member, or one group only, do not tell how many members there must be.
                room = largest - len(seen[g]) if len(sizes) > 1 and largest > 1 else len(silent)
                free = {n for w, n in silent if w == row["world"]}
                belong = _like(seen[g], [seen[x] for x in sizes if len(seen[x]) > len(seen[g])], free)
                belong = belong or self.grid.block(seen[g]) or _progression(seen[g])
                numbers = seen[g] + [n for n in belong if n in free and n not in seen[g]][:room]
            out[g] = [self.grid.label(row["world"], n) for n in numbers]
        return out

    def _silent(self) -> set[tuple[int, int]]:
        """Ranks that must exist and have no dump: expected ones, and numbers left out between those that have one."""
        dumped = {self.grid.numbers[r] for r in self.dumped if r in self.grid.numbers}
        known = set(self.grid.numbers.values())
        known |= {(w, m) for w, n in dumped for m in self.grid.block([n]) or ()}
        for world in {w for w, _ in dumped}:
            numbers = [n for w, n in dumped if w == world]
            if max(numbers) - min(numbers) < 2 * len(numbers) + 2:
                known |= {(world, n) for n in range(min(numbers), max(numbers))}
        return known - dumped

    # -- collectives --------------------------------------------------------------------------------------------

    def _collectives(self, heads: list[dict[str, Any]]) -> list[Call]:
        by_call: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
        for head in heads:
            if head["seq"] is not None:
                by_call[(head["g"], head["seq"])].append(head)
        entrants = self._entrants(by_call)
        return [c for key, waiting in by_call.items() for c in self._one(key, waiting, entrants[key])]

    def _entrants(self, keys: Iterable[tuple[int, int]]) -> Mapping[tuple[int, int], dict[str, dict[str, Any]]]:
        self.store.con.execute("CREATE OR REPLACE TABLE wanted (g INT, seq BIGINT)")
        self.store.fill("wanted", [{"g": g, "seq": s} for g, s in keys])
        found: dict[tuple[int, int], dict[str, dict[str, Any]]] = defaultdict(dict)
        for row in self.store.rows(call_tables.ENTRANTS):
            found[(row["g"], row["seq"])][row["rank"]] = row
        self.store.con.execute("DROP TABLE wanted")
        return found

    def _one(
        self, key: tuple[int, int], waiting: list[dict[str, Any]], entrants: dict[str, dict[str, Any]]
    ) -> list[Call]:
        """One call of a group; where its members called different things, one for each thing."""
        g, seq = key
        absent: dict[str, tuple[str, str | None]] = {}
        for member in self.members[g]:
            entry = entrants.get(member)
            if entry is not None:
                first = self.turns.get((member, entry["artifact"]))
                if entry["done"] or entry["blocking"]:
                    continue
                if first is not None and first["turn"] < entry["turn"]:
                    absent[member] = ("queued_behind", _short(first))
                elif entry["state"] == "scheduled" and any(e["state"] == "started" for e in entrants.values()):
                    absent[member] = ("not_started", _short(entry))
            elif member not in self.dumped:
                self._undumped(absent, member, waiting[0])
            else:
                reach = self.reach.get((self.index.get(member, -1), g))
                if reach is None or reach < seq:
                    absent[member] = ("not_entered", None if reach is None else str(reach))
        kinds = _kinds(entrants)
        calls = []
        for kind in dict.fromkeys(kinds[h["rank"]] for h in waiting if h["rank"] in kinds):
            own = [h for h in waiting if kinds.get(h["rank"]) == kind]
            odd = _odd(kind, kinds, entrants)
            calls.append(self._call((g, seq, kind), own, {**absent, **odd}))
        others = [entrants.get(m) for m in self.members[g] if m not in {h["rank"] for h in waiting}]
        if others and all(e is not None and e["done"] for e in others) and len(calls) == 1:
            calls[0].alone = not calls[0].lacks
        return calls

    def _call(
        self, key: tuple[Any, ...], waiting: list[dict[str, Any]], lacks: dict[str, tuple[str, str | None]]
    ) -> Call:
        head = waiting[0]
        group = self.groups[head["g"]]
        return Call(
            ("recorded", *key),
            head["op"],
            _function(head["call_site"]),
            group["descr"] or self._descr(head["g"]) or group["grp"],
            head["seq"],
            [at(h) for h in waiting],
            lacks,
        )

    def _descr(self, g: int) -> str | None:
        found = self.store.rows(
            "SELECT any_value(descr) AS d FROM collective c JOIN recorded_call x ON x.e = c.rowid WHERE x.g = ? "
            "AND descr NOT IN ('', 'undefined')",
            [g],
        )
        return found[0]["d"] if found else None

    def _undumped(self, lacks: dict[str, tuple[str, str | None]], rank: str, head: Mapping[str, Any]) -> None:
        """A rank without a dump: a suspect, unless its stack shows it in the call or in what comes after it."""
        stands = self.standing.get(rank)
        if stands is None:
            lacks[rank] = ("no_dump", None)
        elif stands["place"] not in INSIDE and stands["function"] != _function(head["call_site"]):
            lacks[rank] = ("elsewhere", stands["quote"])

    # -- messages -----------------------------------------------------------------------------------------------

    def _messages(self, heads: list[dict[str, Any]]) -> list[Call]:
        if not heads:
            return []
        rows = self.store.rows(call_tables.MESSAGES_OPEN)
        open_ = {(m["g"], m["r"], m["op"], m["peer"], m["nth"]): m for m in rows}
        nth = {m["e"]: m["nth"] for m in rows}
        surplus = self._surplus(heads)
        calls = []
        for head in heads:
            world, own = self.grid.numbers[head["rank"]]
            if head["peer"] is None:
                continue
            peer = self.grid.label(world, head["peer"])
            lacks: dict[str, tuple[str, str | None]] = {}
            place = nth[head["e"]] - surplus.get(head["e"], 0)
            other = open_.get((head["g"], self.index.get(peer, -1), MESSAGES[head["op"]], own, place))
            if place <= 0:
                pass  # the other side has it behind it
            elif other is not None:
                first = self.turns.get((peer, other["artifact"]))
                if first is not None and first["turn"] < other["turn"]:
                    lacks[peer] = ("queued_behind", _short(first))
                elif _count(other["sizes"]) != _count(head["sizes"]) and None not in (other["sizes"], head["sizes"]):
                    lacks[peer] = ("other_size", other["sizes"])
                elif head["state"] == "started" and other["state"] == "scheduled":
                    lacks[peer] = ("not_started", _short(other))
            elif peer not in self.dumped:
                self._undumped(lacks, peer, head)
            else:
                lacks[peer] = ("no_message", None)
            calls.append(self._call((head["g"], head["e"]), [head], lacks))
        return calls

    def _surplus(self, heads: Iterable[Mapping[str, Any]]) -> dict[int, int]:
        """By message: how many of its kind are done on the other side only. A rank's part of a coalesced group ends
        for itself. Counted from the last collective that both sides have behind them, or from the start of both."""
        unmet = []
        for head in heads:
            if head["peer"] is not None:
                peer = self.index.get(self.grid.label(self.grid.numbers[head["rank"]][0], head["peer"]), -1)
                unmet.append({"e": head["e"], "r": head["r"], "p": peer, "g": head["g"], "op": head["op"]})
        self.store.con.execute("CREATE OR REPLACE TABLE unmet (e BIGINT, r INT, p INT, g INT, op VARCHAR)")
        self.store.fill("unmet", unmet[:MOST_MESSAGES])
        return {row["e"]: row["n"] for row in self.store.rows(call_tables.SURPLUS)}

    # -- after the time-out -------------------------------------------------------------------------------------

    def _last_calls(self) -> list[Call]:
        """Groups that show nothing unfinished: who made one more call than others waited in it, until it gave up."""
        by_group: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in self.store.rows(call_tables.LAST_CALLS):
            by_group[row["g"]].append(row)
        calls = []
        for g, rows in by_group.items():
            top = max(r["seq"] or 0 for r in rows)
            last = {r["rank"]: r for r in rows if r["seq"] == top}
            behind = {r["rank"]: ("not_entered", str(r["seq"])) for r in rows if r["seq"] == top - 1}
            if len(last) + len(behind) < len(rows):
                continue  # further apart than one call: dumps of a running job, taken one after the other
            kinds = _kinds(last)
            absent: dict[str, tuple[str, str | None]] = {**behind}
            if behind or len(set(kinds.values())) > 1:
                for member in self.members[g]:
                    if member not in self.dumped:
                        self._undumped(absent, member, next(iter(last.values())))
            for kind in dict.fromkeys(kinds.values()):
                lacks = {**absent, **_odd(kind, kinds, last)}
                if lacks:
                    own = [last[r] for r, k in kinds.items() if k == kind]
                    calls.append(self._call((g, top, kind, "late"), own, lacks))
        return calls


def at(row: Mapping[str, Any]) -> At:
    """The citation of one recorded call."""
    return At(row["rank"], row["artifact"], row["record"], None, _short(row), row["source"])


def _short(row: Mapping[str, Any]) -> str:
    parts = [row["op"], f"seq {row['seq']}" if row["seq"] is not None else None, row["sizes"], row["call_site"]]
    return " ".join(str(p) for p in parts if p)[:200]


def function_of(call_site: str | None) -> str | None:
    """The bare function of a call site such as ``HiRadixCache.writing_check hiradix_cache.py:193``."""
    if not call_site:
        return None
    return call_site.split(" ", 1)[0].rsplit(".", 1)[-1] or None


_function = function_of


def _kinds(entrants: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """What must be equal on all members of one call, a rank; what some of them do not say is left out."""
    sized = all(e["op"] in EQUAL_SIZES and e["sizes"] is not None for e in entrants.values())
    typed = sized and all(e["dtype"] is not None for e in entrants.values())
    return {
        rank: (e["op"], _count(e["sizes"]) if sized else None, e["dtype"] if typed else None)
        for rank, e in entrants.items()
    }


def _odd(
    kind: tuple[Any, ...], kinds: Mapping[str, tuple[Any, ...]], entrants: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[str, str | None]]:
    """The ranks that called another thing under the same number. Where most agree, the others are odd and wait for
    nobody; where no side has more, each is odd to the other."""
    counts = Counter(kinds.values())
    if len(counts) < 2:
        return {}
    (most, n), (_, second) = counts.most_common(2)
    if n > second and kind != most:
        return {}
    return {
        rank: (
            "other_call" if k[0] != kind[0] else "other_size" if k[1] != kind[1] else "other_type",
            _short(entrants[rank]),
        )
        for rank, k in kinds.items()
        if k != kind
    }


def _like(numbers: Sequence[int], whole: Iterable[Sequence[int]], free: set[int]) -> list[int]:
    """The members that a group has if it is one of its whole siblings moved along: all others must be ``free``."""
    for sibling in whole:
        for anchor in sibling if numbers else ():
            moved = [n + numbers[0] - anchor for n in sibling]
            if set(numbers) <= set(moved) and set(moved) <= free | set(numbers):
                return moved
    return []


def _progression(numbers: Sequence[int]) -> list[int]:
    """The numbers that continue an even row: between its ends, and one step beyond each."""
    if len(numbers) < 2:
        return []
    step = min(b - a for a, b in itertools.pairwise(numbers))
    if any((n - numbers[0]) % step for n in numbers):
        return []
    inner = [n for n in range(numbers[0], numbers[-1], step) if n not in numbers]
    return [*inner, numbers[-1] + step, numbers[0] - step]


def _count(sizes: str | None) -> int | None:
    """The number of elements behind ``[[8192, 1, 5120]]``: a tensor of another shape and the same size does no harm."""
    try:
        shapes: Sequence[Any] = json.loads(sizes or "")
        return sum(math.prod(int(n) for n in s) if isinstance(s, list) else int(s) for s in shapes)
    except (ValueError, TypeError):
        return None
