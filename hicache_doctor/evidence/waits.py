"""Who waits for whom in one incident, whatever showed it: recorders, stacks, probes and logs, one source a rank.

Tables: ``wait_edge`` (one row a rank and a rank that it waits for, with why), ``wait_node`` (what each rank does),
``wait_culprit`` (where waiting ends: ranks that others wait for and that wait for nobody, and those that a call
shows to be odd), ``wait_cycle`` (ranks that wait for each other).

A rank that must exist and has no dump is a suspect by itself. Only what is unfinished is looked at one by one;
everything before it is left to the database.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hicache_doctor.evidence import call_streams, wait_seen
from hicache_doctor.evidence.grid import Grid, grid_of
from hicache_doctor.evidence.places import PlaceRule
from hicache_doctor.evidence.wait_calls import At, Call, Recorded, function_of, recorded
from hicache_doctor.evidence.wait_graph import Graph, Sink, in_order

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

HELPER = "helper_vote"
"""The place of the cache's own threads (``places.yaml``): what they wait for does not hold up the scheduler."""
CYCLE_COLUMNS = ("rank", "operation", "site", "grp", "seq", "artifact", "record", "line", "quote")
MOST_PAIRS = 16
"""Pairs of ranks of one circle whose orders of calls are compared."""
MOST_EDGES = 4096
"""Rows of one call in ``wait_edge``; the graph has all of them."""

CREATE = """
CREATE OR REPLACE TABLE wait_edge (
  rank VARCHAR, on_rank VARCHAR, why VARCHAR, detail VARCHAR, operation VARCHAR, site VARCHAR, grp VARCHAR, seq BIGINT,
  idle BOOLEAN, artifact VARCHAR, record BIGINT, line BIGINT, quote VARCHAR, source VARCHAR);
CREATE OR REPLACE TABLE wait_node (
  rank VARCHAR, state VARCHAR, operation VARCHAR, site VARCHAR, grp VARCHAR, seq BIGINT, artifact VARCHAR,
  record BIGINT, line BIGINT, quote VARCHAR, source VARCHAR);
CREATE OR REPLACE TABLE wait_culprit (
  position BIGINT, rank VARCHAR, reason VARCHAR, waiters BIGINT, component BIGINT, operation VARCHAR, site VARCHAR,
  artifact VARCHAR, record BIGINT, line BIGINT, quote VARCHAR);
CREATE OR REPLACE TABLE wait_cycle (
  cycle BIGINT, position BIGINT, rank VARCHAR, operation VARCHAR, site VARCHAR, grp VARCHAR, seq BIGINT,
  artifact VARCHAR, record BIGINT, line BIGINT, quote VARCHAR);
"""
EXCUSED = """
CREATE OR REPLACE VIEW excused AS
SELECT p.rank, q.rank AS peer
FROM (SELECT DISTINCT rank FROM standing) p JOIN (SELECT DISTINCT rank FROM standing) q ON p.rank <> q.rank
WHERE EXISTS (
  SELECT 1 FROM wait_culprit c WHERE c.reason NOT IN ('no_dump', 'no_time_out')
    AND regexp_extract(c.rank, 'PP\\d+') = regexp_extract(p.rank, 'PP\\d+')
    AND regexp_extract(c.rank, '\\bDP\\d+') = regexp_extract(p.rank, '\\bDP\\d+'))
  AND NOT EXISTS (SELECT 1 FROM wait_culprit c WHERE c.rank IN (p.rank, q.rank))
"""
"""Two ranks of a stage in different calls, where all waiting of that stage ends at another one: the peer skipped
nothing, it is held up, too (the root of a broadcast waits until all have taken it)."""
LATE = """
SELECT NOT EXISTS (SELECT 1 FROM log) OR EXISTS (SELECT 1 FROM log WHERE kind IN ('gloo_timeout', 'watchdog_timeout'))
       OR EXISTS (SELECT 1 FROM exception WHERE proof IN ('timeout', 'peer_closed'))
"""


def derive(store: Store, settings: Mapping[str, Any], missing: Sequence[str], rules: Sequence[PlaceRule]) -> None:
    """Create and fill the tables. ``settings`` and ``missing`` ranks: those of the deployment; ``rules`` name places.

    Recorded calls that block their thread are added to ``place``: their call site is where the scheduler stands.
    """
    store.con.execute(CREATE)
    grid = grid_of(store, settings, missing)
    at = wait_seen.standing(store)
    helper = {f for r in rules if r.place == HELPER for f in r.any}
    found = recorded(store, grid, late=bool(store.value(LATE)), helper=helper, standing=at)
    # The rank of a recorder whose call blocks: what the thread stands in is known as from a stack.
    placed = _placed(found, rules, set(at))
    store.fill("place", placed)
    seen = wait_seen.from_stacks(grid, {**at, **{p["rank"]: p for p in placed}})
    calls = found.calls + [c for c in seen if c.ranks[0].source != "flight_recorder"]
    known = {a.rank for c in calls for a in c.ranks} | set(at) | found.dumped
    calls += wait_seen.from_probes(store, grid, known)
    known |= {a.rank for c in calls for a in c.ranks}
    calls += wait_seen.from_logs(store, grid, known)
    call_streams.derive(store)
    _Incident(store, grid, calls, found, at, set(missing), helper).write()
    store.con.execute(EXCUSED)


def _placed(found: Recorded, rules: Sequence[PlaceRule], skip: set[str]) -> list[dict[str, Any]]:
    """Rows of ``place`` for the blocking calls of recorders, of ranks without a stack."""
    out = []
    for rank, head in found.heads.items():
        function = function_of(head["call_site"])
        if rank in skip or not head["blocking"] or function is None:
            continue
        functions = {function, head["op"], *head["call_site"].split(" ", 1)[0].split(".")}
        rule = next((r for r in rules if r.matches(functions)), None)
        out.append(
            {"stack": None, "artifact": head["artifact"], "line": None, "line_end": None, "record": head["record"]}
            | {"at_line": None, "rank": rank, "pid": None, "ts": head["ts"], "source": "flight_recorder", "dump": 0}
            | {"place": rule.place if rule else "elsewhere", "waits_for": rule.waits_for if rule else "none"}
            | {"side": (rule.side if rule else None) or "wire"}
            | {"hicache": bool(rule and rule.hicache), "tree": None, "function": function, "innermost": head["op"]}
            | {"quote": head["call_site"], "frames": f"{head['op']} <- {function}"}
        )
    return out


class _Incident:
    """All calls of an incident, written down as tables."""

    def __init__(
        self,
        store: Store,
        grid: Grid,
        calls: Sequence[Call],
        found: Recorded,
        at: Mapping[str, Mapping[str, Any]],
        missing: set[str],
        helper: set[str],
    ) -> None:
        self.store, self.calls, self.found, self.at = store, calls, found, at
        self.missing, self.helper = missing, helper
        self.own: dict[str, tuple[Call, At]] = {}
        for call in sorted(calls, key=lambda c: not c.lacks):
            for here in call.ranks:
                self.own.setdefault(here.rank, (call, here))
        ranks = {*grid.places, *grid.numbers, *self.own, *(r for c in calls for r in c.lacks)}
        self.nodes = {rank: self._node(rank) for rank in sorted(ranks, key=in_order)}

    def write(self) -> None:
        """Fill the tables."""
        graph = Graph()
        for call in self.calls:
            graph.add(call.key, [a.rank for a in call.ranks], call.lacks, idle=call.idle)
        sinks = graph.sinks()
        self.store.fill("wait_edge", [row for call in self.calls for row in _edges(call)])
        self.store.fill("wait_node", list(self.nodes.values()))
        self.store.fill("wait_culprit", [{"position": i} | c for i, c in enumerate(self._culprits(sinks))])
        cycles = [s for s in sinks if s.cycle]
        self.store.fill(
            "wait_cycle",
            [
                {"cycle": i, "position": k} | {c: self.nodes[rank][c] for c in CYCLE_COLUMNS}
                for i, cycle in enumerate(cycles)
                for k, rank in enumerate(cycle.ranks)
            ],
        )

    def _node(self, rank: str) -> dict[str, Any]:
        empty = dict.fromkeys(("operation", "site", "grp", "seq", "artifact", "record", "line", "quote", "source"))
        if rank in self.own:
            call, here = self.own[rank]
            return {"rank": rank, "state": "waiting", **_said(call, here), "source": here.source}
        if rank in self.at:
            p = self.at[rank]
            where = {"operation": p["function"], "site": p["place"], "artifact": p["artifact"], "record": p["record"]}
            where |= {"line": p["at_line"], "quote": p["quote"], "source": p["source"]}
            return {**empty, "rank": rank, "state": "running", **where}
        if rank in self.found.dumped:
            return {**empty, "rank": rank, "state": "finished", "source": "flight_recorder"}
        return {**empty, "rank": rank, "state": "no_dump"}

    def _culprits(self, sinks: Sequence[Sink]) -> Iterator[dict[str, Any]]:
        """Where waiting ends. Many ranks without a dump are many files that were not collected, not many culprits."""
        shown = self.found.dumped | set(self.at) | set(self.own)
        silent = [s for s in sinks if not s.cycle and self._silent(s.ranks[0])]
        reasons = self._reasons()
        named = False
        for i, sink in enumerate(sinks):
            if sink in silent and len(silent) > len(shown):
                continue
            odd = self._odd_one(sink) if sink.cycle else None
            for rank in [odd] if odd else sink.ranks:
                named = True
                reason = "skipped" if odd else "no_dump" if sink in silent else reasons[rank]
                if sink.cycle and not odd and not reason.startswith("other_"):
                    reason = "cycle"
                yield {"rank": rank, "reason": reason, "waiters": sink.waiters, "component": i} | self._cited(rank)
        alone = [] if named else sorted({a.rank for c in self.calls if c.alone for a in c.ranks}, key=in_order)
        for rank in alone:
            yield {"rank": rank, "reason": "alone_inside", "waiters": 0, "component": None} | self._cited(rank)
        if not (named or alone) and any(not c.idle for c in self.calls) and len(self.missing) <= len(shown):
            for rank in sorted(filter(self._silent, self.missing), key=in_order):
                yield {"rank": rank, "reason": "no_dump", "waiters": 0, "component": None} | self._cited(rank)

    def _silent(self, rank: str) -> bool:
        return rank in self.nodes and self.nodes[rank]["state"] == "no_dump"

    def _cited(self, rank: str) -> dict[str, Any]:
        return {c: self.nodes[rank][c] for c in ("operation", "site", "artifact", "record", "line", "quote")}

    def _reasons(self) -> dict[str, str]:
        """Why others lack each rank; what it called instead is told before anything else."""
        why: dict[str, str] = {}
        for call in self.calls:
            for rank, (reason, _) in call.lacks.items():
                why[rank] = reason if reason.startswith("other_") else why.get(rank, reason)
        return why

    def _odd_one(self, sink: Sink) -> str | None:
        """The rank of a circle that left out a call which its peers made, where the order of their calls tells it."""
        heads = self.found.heads
        ranks = [r for r in sink.ranks if r in heads]
        pairs = [(a, b) for a, b in itertools.combinations(ranks, 2) if _another(heads[a], heads[b])]
        for a, b in pairs[:MOST_PAIRS]:
            dumps = ((a, heads[a]["artifact"]), (b, heads[b]["artifact"]))
            if call_streams.pair(self.store, *dumps, self.helper) is not None:
                break
        else:
            for waiter, rank in self._entered(ranks):
                if call_streams.habit(self.store, rank, heads[rank], heads[waiter]) is not None:
                    break
        named = self.store.rows("SELECT DISTINCT rank FROM skipped_call WHERE kind = 'skipped'")
        skipped = {r["rank"] for r in named} & set(ranks)
        return skipped.pop() if len(skipped) == 1 else None

    def _entered(self, ranks: Sequence[str]) -> list[tuple[str, str]]:
        """Pairs of a circle: one that waits in a collective, one that never entered it."""
        heads = self.found.heads
        return [
            (here.rank, rank)
            for call in self.calls
            for rank, (why, _) in call.lacks.items()
            if why == "not_entered" and rank in ranks
            for here in call.ranks[:1]
            if here.rank in heads and not heads[here.rank]["message"] and here.rank in ranks
        ][:MOST_PAIRS]


def _another(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two ranks stand in different calls of one kind of recorder: only these have one order."""
    return (a["g"], a["seq"]) != (b["g"], b["seq"]) and a["blocking"] == b["blocking"]


def _edges(call: Call) -> Iterator[dict[str, Any]]:
    rows = 0
    for rank, (why, detail) in call.lacks.items():
        for here in call.ranks:
            if rows >= MOST_EDGES:
                return
            rows += 1
            row = {"rank": here.rank, "on_rank": rank, "why": why, "detail": detail, **_said(call, here)}
            yield row | {"idle": call.idle, "source": here.source}


def _said(call: Call, here: At) -> dict[str, Any]:
    words = {"operation": call.op, "site": call.site, "grp": call.group, "seq": call.seq}
    return words | {"artifact": here.artifact, "record": here.record, "line": here.line, "quote": here.quote}
