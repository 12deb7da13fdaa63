"""The first call of a process group that one of its members skipped, made in excess, or made in another order.

All members of a group must make the same calls in the same order. Recorders number them, so streams of rings that
begin at different records meet by number; where a recorder gives none, they are laid over each other where they fit
best. What a call is: its operation and its call site; its sizes where no call site was recorded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

CREATE = """
CREATE OR REPLACE TABLE skipped_call (
  kind VARCHAR, rank VARCHAR, other VARCHAR, grp VARCHAR, seq BIGINT, calls BIGINT, operation VARCHAR, site VARCHAR,
  next_operation VARCHAR, next_site VARCHAR, artifact VARCHAR, record BIGINT, quote VARCHAR, other_artifact VARCHAR,
  other_record BIGINT, other_quote VARCHAR, ts DOUBLE);
"""
# Where the members of a group did not make the same call under one number.
ODD = """
CREATE OR REPLACE TABLE odd_call AS
SELECT g, seq, min(op) <> max(op) AS other, count(site) = 0 AS sizes_only FROM recorded_call
WHERE NOT message AND op <> 'coalesced' AND seq IS NOT NULL GROUP BY g, seq
HAVING min(op) <> max(op)
    OR (count(site) = count(*) AND min(site) <> max(site))
    OR (count(site) = 0 AND count(sizes) = count(*) AND min(sizes) <> max(sizes)
        AND min(op) IN ('all_reduce', 'broadcast', 'reduce', '_all_gather_base', '_reduce_scatter_base'))
"""
# A call site that only some members ever have is no difference: a branch by rank that makes the same call.
PARTED = """
CREATE OR REPLACE TABLE parted_call AS
WITH own AS (SELECT g, r, site, seq FROM recorded_call WHERE NOT message AND op <> 'coalesced'
             AND g IN (SELECT g FROM odd_call)),
size AS (SELECT g, count(DISTINCT r) AS ranks FROM own GROUP BY g),
common AS (SELECT g, site FROM own JOIN size USING (g) WHERE site IS NOT NULL
           GROUP BY g, site, ranks HAVING count(DISTINCT r) = ranks)
SELECT o.g, min(o.seq) AS seq FROM odd_call o
WHERE o.other OR o.sizes_only OR EXISTS (
  SELECT 1 FROM own c JOIN common k ON k.g = c.g AND k.site = c.site WHERE c.g = o.g AND c.seq = o.seq)
GROUP BY o.g
"""
BEFORE, AFTER = 256, 64
WINDOW = f"""
SELECT c.*, p.seq AS first, k.grp, k.descr FROM recorded_call c
JOIN parted_call p ON p.g = c.g AND c.seq BETWEEN p.seq - {BEFORE} AND p.seq + {AFTER}
JOIN call_group k ON k.g = c.g
WHERE NOT c.message AND c.op <> 'coalesced'
  AND c.r IN (SELECT r FROM recorded_call n WHERE n.g = c.g AND n.seq = p.seq AND NOT n.message)
ORDER BY c.g, c.r, c.seq
"""
MOST_SKIPPED = 8
"""How many calls in a row may be skipped."""
ODD_RANKS = 16

UNNUMBERED = """
SELECT e, r, g, op, site, sizes FROM recorded_call
WHERE NOT message AND op <> 'coalesced'
  AND g IN (SELECT g FROM recorded_call WHERE NOT message AND op <> 'coalesced' AND seq IS NULL)
ORDER BY g, r, pos
"""
SHINGLE = 4

# The last calls of two ranks in the groups that both are in, and the messages between them, as each made them.
LAST = 512
PAIR = f"""
WITH own AS (
  SELECT c.rank, c.g, c.seq, c.op, c.site, c.sizes, c.turn, c.artifact, c.record, c.ts, c.call_site, k.grp,
         k.descr, c.message, c.done, n.n, c.peer, c.pos
  FROM recorded_call c JOIN call_group k ON k.g = c.g JOIN wait_rank n ON n.r = c.r
  WHERE c.rank IN (?, ?) AND c.artifact IN (?, ?) AND c.op <> 'coalesced' AND (c.message OR c.seq IS NOT NULL))
SELECT * FROM own x
WHERE CASE WHEN message THEN peer IN (SELECT n FROM own) AND peer <> n
           ELSE g IN (SELECT g FROM own WHERE NOT message GROUP BY g HAVING count(DISTINCT rank) = 2) END
QUALIFY row_number() OVER (PARTITION BY rank ORDER BY pos DESC) <= {LAST}
ORDER BY rank, turn, CASE WHEN message THEN CASE op WHEN 'send' THEN n ELSE peer END END, pos
"""

Token = tuple[str, str | None, int]


def number(store: Store) -> None:
    """Give the calls of groups whose recorder gives no numbers the ones under which their members fit best."""
    streams: dict[int, dict[int, list[tuple[int, Token]]]] = defaultdict(lambda: defaultdict(list))
    for row in store.rows(UNNUMBERED):
        streams[row["g"]][row["r"]].append((row["e"], _token(row)))
    numbered = []
    for members in streams.values():
        reference = max(members.values(), key=len)
        for stream in members.values():
            shift = fit([t for _, t in reference], [t for _, t in stream])
            numbered += [{"e": e, "seq": shift + i} for i, (e, _) in enumerate(stream)]
    if numbered:
        store.con.execute("CREATE OR REPLACE TEMP TABLE numbered (e BIGINT, seq BIGINT)")
        store.fill("numbered", numbered)
        store.con.execute("UPDATE recorded_call SET seq = n.seq FROM numbered n WHERE n.e = recorded_call.e")
        store.con.execute("DROP TABLE numbered")


def fit(reference: Sequence[Token], stream: Sequence[Token]) -> int:
    """Where in ``reference`` the first call of ``stream`` belongs: the shift on which most runs of calls agree; of
    equally good ones the one under which both end nearest to each other."""
    places: dict[tuple[Token, ...], list[int]] = defaultdict(list)
    for i in range(len(reference) - SHINGLE + 1):
        places[tuple(reference[i : i + SHINGLE])].append(i)
    votes: Counter[int] = Counter()
    for j in range(len(stream) - SHINGLE + 1):
        # A run that occurs everywhere says little, and costs its square: only its last places are asked.
        votes.update(i - j for i in places.get(tuple(stream[j : j + SHINGLE]), ())[-32:])
    if not votes:
        return len(reference) - len(stream)
    most = max(votes.values())
    return min((s for s, n in votes.items() if n == most), key=lambda s: (abs(s + len(stream) - len(reference)), s))


def derive(store: Store) -> None:
    """Fill ``skipped_call``: one row a rank that parted from its group, at the first call where it did."""
    store.con.execute(CREATE)
    if not store.value("SELECT count(*) FROM information_schema.tables WHERE table_name = 'recorded_call'"):
        return
    store.con.execute(ODD)
    if not store.value("SELECT count(*) FROM odd_call"):
        store.con.execute("DROP TABLE odd_call")
        return
    store.con.execute(PARTED)
    groups: dict[int, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in store.rows(WINDOW):
        groups[row["g"]][row["rank"]].append(row)
    store.fill("skipped_call", [row for members in groups.values() for row in _parted(members)])
    store.con.execute("DROP TABLE odd_call; DROP TABLE parted_call")


def pair(store: Store, a: tuple[str, str], b: tuple[str, str], helper: Collection[str]) -> dict[str, Any] | None:
    """Where two ranks (each with its dump) made their calls in another order, over all groups that both are in; a row
    of ``skipped_call``, which is filled with it. None when their orders agree as far as both go."""
    rows = [r for r in store.rows(PAIR, [a[0], b[0], a[1], b[1]]) if r["site"] not in helper]
    one = [r for r in rows if r["rank"] == a[0]]
    two = [r for r in rows if r["rank"] == b[0]]
    keys = [_keys(own) for own in (one, two)]
    shared = set(keys[0]) & set(keys[1])
    start = [next((i for i, k in enumerate(own) if k in shared), len(own)) for own in keys]
    if start[0] == len(keys[0]) or keys[0][start[0]] != keys[1][start[1]]:
        return None
    i, j = start
    while i < len(one) and j < len(two) and keys[0][i] == keys[1][j]:
        i, j = i + 1, j + 1
    if i == len(one) or j == len(two):
        return None
    row = _said(one[i:], two[j:], one[:i])
    store.fill("skipped_call", [row])
    return row


# What one rank called, in order, up to the call that it stands in.
OWN = f"""
SELECT c.rank, c.g, c.seq, c.op, c.site, c.sizes, c.turn, c.artifact, c.record, c.ts, c.call_site, k.grp,
       k.descr, c.message, n.n, c.peer
FROM recorded_call c JOIN call_group k ON k.g = c.g JOIN wait_rank n ON n.r = c.r
WHERE c.rank = ? AND c.artifact = ? AND c.op <> 'coalesced' AND c.turn <= ?
QUALIFY row_number() OVER (ORDER BY c.pos DESC) <= {LAST} ORDER BY c.turn, c.pos
"""


def habit(store: Store, rank: str, head: Mapping[str, Any], missed: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where ``rank``, which stands in the call ``head``, left out the call ``missed`` that another one waits in: the
    place behind its last call of that group where that call used to follow and something else did. A row of
    ``skipped_call``, which is filled with it; None when its own history says nothing of the kind."""
    rows = store.rows(OWN, [rank, head["artifact"], head["turn"]])
    before = [i for i, r in enumerate(rows) if not r["message"] and r["g"] == missed["g"]]
    wanted = _token(missed)
    for i in range(before[-1] + 1 if before else len(rows), len(rows)):
        if _token(rows[i]) != wanted and _usual([_token(r) for r in rows[:i]]) == wanted:
            row = _row("skipped", 1, missed, rows[i])
            store.fill("skipped_call", [row])
            return row
    return None


def _keys(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What names the same call on both sides. Messages have no common number: they are counted from the last one of
    their direction that both sides had done."""
    ends: Counter[tuple[Any, ...]] = Counter()
    for r in rows:
        if r["message"]:
            ends[_way(r)] += r["done"]
    seen: Counter[tuple[Any, ...]] = Counter()
    keys: list[tuple[Any, ...]] = []
    for r in rows:
        if r["message"]:
            seen[_way(r)] += 1
            keys.append((*_way(r), seen[_way(r)] - ends[_way(r)]))
        else:
            keys.append((r["g"], r["seq"]))
    return keys


def _way(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The direction of a message, the same on both sides."""
    ends = (row["n"], row["peer"]) if row["op"] == "send" else (row["peer"], row["n"])
    return (row["g"], *ends)


def _parted(members: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of one group: each odd rank beside one that did what most did."""
    first = next(iter(members.values()))[0]["first"]
    here = {rank: row for rank, rows in members.items() for row in rows if row["seq"] == first}
    counts = Counter(_token(row) for row in here.values())
    usual = counts.most_common(1)[0][0]
    if len(here) == 2:
        usual = _token(next(iter(here.values())))
    lead = next(rank for rank, row in here.items() if _token(row) == usual)
    odd = [rank for rank, row in here.items() if _token(row) != usual][:ODD_RANKS]
    before, after = _cut(members[lead], first)
    return [_said(after, _cut(members[rank], first)[1], before) for rank in odd]


def _cut(rows: Sequence[dict[str, Any]], seq: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return [r for r in rows if r["seq"] < seq], [r for r in rows if r["seq"] >= seq]


def _said(a: Sequence[dict[str, Any]], b: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row from the calls of two ranks at and behind their first difference."""
    adjacent = all(len(x) > 1 and x[1]["turn"] - x[0]["turn"] <= 2 for x in (a, b))
    tokens = [[_token(r) for r in rows] for rows in (a, b, before)]
    kind, calls = parting(*tokens, adjacent=adjacent)
    if kind == "extra":  # the lead made calls that the other one did not: the same the other way round
        a, b = b, a
    return _row("skipped" if kind == "extra" else kind, calls, a[0], b[0])


def _row(kind: str, calls: int, missed: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": kind,
        "rank": made["rank"],
        "other": missed["rank"],
        "grp": missed["descr"] or missed["grp"],
        "seq": missed["seq"],
        "calls": calls,
        "operation": missed["op"],
        "site": missed["site"],
        "next_operation": made["op"],
        "next_site": made["site"],
        "artifact": made["artifact"],
        "record": made["record"],
        "quote": _quote(made),
        "other_artifact": missed["artifact"],
        "other_record": missed["record"],
        "other_quote": _quote(missed),
        "ts": made["ts"],
    }


def parting(
    a: Sequence[Token], b: Sequence[Token], before: Sequence[Token], *, adjacent: bool = True
) -> tuple[str, int]:
    """How ``b`` parted from ``a`` at their first calls, which differ: ``skipped`` (b left out so many calls of a),
    ``extra`` (a left out so many of b), ``swapped``, or ``parted`` where nothing tells. ``before``: what both did;
    ``adjacent``: neither made other calls between its first two.

    The calls behind the difference decide; where there are none yet, what followed the same calls earlier does.
    """
    if adjacent and len(a) > 1 and len(b) > 1 and a[0] == b[1] and a[1] == b[0] and _agree(a[2:], b[2:]):
        return "swapped", 2
    best: list[tuple[int, str, int]] = []
    for n in range(1, MOST_SKIPPED + 1):
        best.append((_run(a[n:], b), "skipped", n))
        best.append((_run(a, b[n:]), "extra", n))
    longest = max(length for length, _, _ in best)
    fitting = [(kind, n) for length, kind, n in best if length == longest and longest > 0]
    kinds = {kind for kind, _ in fitting}
    if longest > 1 and len(kinds) == 1:
        return fitting[0]
    # A call that neither made before is another call, not the next one behind a skipped one.
    usual = _usual(before) if a[0] in before and b[0] in before else None
    if usual == a[0]:
        return "skipped", next((n for kind, n in fitting if kind == "skipped"), 1)
    if usual == b[0]:
        return "extra", next((n for kind, n in fitting if kind == "extra"), 1)
    return (fitting[0] if len(kinds) == 1 else ("parted", 1)) if fitting else ("parted", 1)


def _agree(a: Sequence[Token], b: Sequence[Token]) -> bool:
    return all(x == y for x, y in zip(a[:4], b[:4], strict=False))


def _run(a: Sequence[Token], b: Sequence[Token]) -> int:
    """How many calls agree from the start; 0 when one of them ends before the other is refuted by a single call."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            return n if n > 1 else 0
        n += 1
    return n


def _usual(before: Sequence[Token]) -> Token | None:
    """What followed the last calls the earlier times, by the longest run of them that occurred before."""
    for length in range(min(64, len(before) - 1), 0, -1):
        tail = list(before[-length:])
        followers = Counter(
            before[i + length] for i in range(len(before) - length) if list(before[i : i + length]) == tail
        )
        if followers:
            (token, n), *rest = followers.most_common(2)
            if not rest or rest[0][1] < n:
                return token
    return None


def _token(row: Mapping[str, Any]) -> Token:
    if row.get("message"):
        return (f"message {_way(row)[1:]}", row["sizes"], row["g"])
    return (row["op"], row["site"] or row["sizes"], row["g"])


def _quote(row: Mapping[str, Any]) -> str:
    parts = [row["op"], f"seq {row['seq']}", row["sizes"], row["call_site"]]
    return " ".join(str(p) for p in parts if p)[:200]
