"""Calls that ranks wait in, as stacks, probes and logs show them; for ranks that no better source speaks of.

A stack says where a scheduler stands and a table (``rules/vocabulary/places.yaml``) for whom one waits there. A rank
that is parked in the broadcast of requests is one that a healthy idle deployment shows, too: such a call is ``idle``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hicache_doctor.evidence.wait_calls import At, Call

if TYPE_CHECKING:
    from hicache_doctor.evidence.grid import Grid
    from hicache_doctor.evidence.store import Store

IDLE = {"recv_requests", "pp_recv_requests"}
"""Places where a healthy idle rank stands."""
REQUESTS, PIPE_GROUPS = 1, (5, 8, 12)

STANDING = """
SELECT * FROM (
  SELECT *, row_number() OVER (
    PARTITION BY rank ORDER BY source = 'flight_recorder', dump DESC, place = 'elsewhere', artifact, line) AS n
  FROM standing WHERE rank IS NOT NULL) WHERE n = 1 ORDER BY rank
"""
PROBES = """
SELECT w.*, e.key AS seq, e.a AS peer, p.pp, p.cp_group, p.pipe_group FROM rank_wait w
JOIN event_rank p ON p.rank = w.rank JOIN event e ON e.rank = w.rank AND e.record = w.record AND e.artifact = w.artifact
ORDER BY w.r, w.kind
"""
LOGGED = """
SELECT artifact, line, rank, text, kind, regexp_extract(fields->>'group', '^\\d+') AS grp,
       coalesce(try_cast(fields->>'work' AS BIGINT), try_cast(fields->>'work2' AS BIGINT),
                try_cast(fields->>'seq' AS BIGINT)) AS seq,
       coalesce(try_cast(fields->>'enqueued' AS BIGINT), try_cast(fields->>'seq' AS BIGINT)) AS reach,
       fields->>'op' AS op, regexp_extract(fields->>'group', '\\((.*)\\)', 1) AS descr
FROM log WHERE rank IS NOT NULL AND kind IN ('nccl_pg_status', 'nccl_timeout')
ORDER BY kind = 'nccl_timeout', artifact, line
"""


def standing(store: Store) -> dict[str, dict[str, Any]]:
    """Where each rank's main thread stands, by its latest dump."""
    return {r["rank"]: r for r in store.rows(STANDING)}


def from_stacks(grid: Grid, at: Mapping[str, Mapping[str, Any]]) -> list[Call]:
    """The calls of ranks that stacks show."""
    calls = []
    for rank, place in at.items():
        waits = place["waits_for"]
        if waits == "none":
            continue
        needs = _needed(grid, rank, place, at)
        lacks = {r: _where(at.get(r)) for r in needs}
        here = At(rank, place["artifact"], place["record"], place["at_line"], place["quote"], place["source"])
        idle = place["place"] in IDLE and waits != "group"
        calls.append(Call(("stack", rank), place["function"], place["place"], waits, None, [here], lacks, idle))
    return calls


def _needed(grid: Grid, rank: str, place: Mapping[str, Any], at: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The ranks that one who stands there waits for."""
    waits, name = place["waits_for"], place["place"]
    if waits in {"upstream", "downstream"}:
        own, step = grid.places.get(rank), -1 if waits == "upstream" else 1
        # Only outputs go round from the last stage to the first one.
        if own is None or (own.pp == 0 and step < 0 and name != "pp_recv_output"):
            return []
        neighbour = grid.neighbour(rank, step)
        return [neighbour] if neighbour is not None else []
    peers = [r for r in grid.stage(rank) if r != rank]
    if waits == "group_root":
        root = grid.root(rank)
        if root is not None and root != rank:
            return [root]
    elif name == "new_group":
        peers = [r for r in grid.places if r != rank]
    return [r for r in peers if (stands := at.get(r)) is None or stands["place"] != name]


def _where(place: Mapping[str, Any] | None) -> tuple[str, str | None]:
    return ("no_dump", None) if place is None else ("elsewhere", place["quote"])


def from_probes(store: Store, grid: Grid, skip: set[str]) -> list[Call]:
    """The calls that a ring shows as entered and never left, of ranks outside ``skip``."""
    views = {r["name"] for r in store.rows("SELECT table_name AS name FROM information_schema.tables")}
    if "rank_wait" not in views:
        return []
    rows = [r for r in store.rows(PROBES) if r["rank"] not in skip]
    calls: dict[tuple[Any, ...], Call] = {}
    numbers = {r["r"]: r["rank"] for r in store.rows("SELECT r, rank FROM event_rank")}
    for row in rows:
        here = At(row["rank"], row["artifact"], row["record"], None, row["quote"], "probe")
        idle = row["site"] == REQUESTS
        if row["kind"] == "recv":
            peer = numbers.get(row["peer"]) or grid.label(0, row["peer"])
            key: tuple[Any, ...] = ("probe", row["rank"], row["peer"])
            calls[key] = Call(key, "recv", None, None, row["seq"], [here], {peer: ("no_message", None)}, idle)
            continue
        members = _members(store, row)
        key = ("probe", row["grp"], members[0] if members else row["rank"], row["seq"], row["site"])
        call = calls.setdefault(key, Call(key, "collective", None, None, row["seq"], [], {}, idle))
        call.ranks.append(here)
        for member in members:
            call.lacks.setdefault(member, ("not_entered", None))
    for call in calls.values():
        for here in call.ranks:
            call.lacks.pop(here.rank, None)
    return list(calls.values())


def _members(store: Store, row: Mapping[str, Any]) -> list[str]:
    column = (
        "stage_group" if row["grp"] in (1, 2, 3, 6) else "cp_group" if row["grp"] in (4, 7, 9)
        else "pipe_group" if row["grp"] in PIPE_GROUPS else "pp" if row["grp"] == 10 else None
    )  # fmt: skip
    if column is None:
        return [r["rank"] for r in store.rows("SELECT rank FROM event_rank ORDER BY r")] if row["grp"] == 11 else []
    sql = f"SELECT rank FROM event_rank WHERE {column} = ? ORDER BY r"
    return [r["rank"] for r in store.rows(sql, [row[column]])]


def from_logs(store: Store, grid: Grid, skip: set[str]) -> list[Call]:
    """The calls that a watchdog reports as late, and how far each rank of the same group got; outside ``skip``."""
    groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in store.rows(LOGGED):
        rank = row["rank"]
        if row["seq"] is None or any(rank in known for g, known in groups.items() if row["kind"] == "nccl_timeout"):
            continue
        place = grid.places.get(rank)
        key = (row["grp"] or None, None if row["grp"] else (place.dp, place.pp) if place else None)
        groups[key].setdefault(rank, row)
    calls = []
    for key, rows in groups.items():
        numbers = [grid.numbers[r][1] for r in rows if r in grid.numbers]
        world = next((grid.numbers[r][0] for r in rows if r in grid.numbers), 0)
        members = [grid.label(world, n) for n in grid.block(numbers) or numbers]
        for seq in sorted({r["seq"] for r in rows.values()}):
            own = [r for r in rows.values() if r["seq"] == seq and r["rank"] not in skip]
            lacks = _late(members, rows, seq, skip)
            if own and lacks:
                here = [At(r["rank"], r["artifact"], None, r["line"], r["text"], "log") for r in own]
                op, group = own[0]["op"] or "collective", own[0]["descr"]
                calls.append(Call(("log", *key, seq), op, None, group, seq, here, lacks))
    return calls


def _late(
    members: Iterable[str], rows: Mapping[str, Mapping[str, Any]], seq: int, skip: set[str]
) -> dict[str, tuple[str, str | None]]:
    lacks: dict[str, tuple[str, str | None]] = {}
    for member in members:
        row = rows.get(member)
        if row is None:
            if member not in skip:
                lacks[member] = ("no_time_out", None)
        elif row["reach"] is not None and row["reach"] < seq:
            lacks[member] = ("not_entered", str(row["reach"]))
    return lacks
