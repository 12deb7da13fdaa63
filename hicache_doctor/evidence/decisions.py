"""Decision streams from probe events, and where two ranks that replicate each other first decide differently.

A stream is cut into lanes: what may be compared one to one (a queue, a tier, one instance of a process group). Two
decisions of a lane meet by ``k1`` and ``k2``, the ordinal that the event states (or its turn, where it states none) and
the place within it, never by time. A rank that is merely behind has not diverged: what it lacks counts only when it
went beyond that place in the step. ``runtime/streams.py`` is the same definition without a database, and a test holds
the two together. Everything is done in sets of rows, because an incident has events by the million.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hicache_doctor.evidence import streams
from hicache_doctor.evidence.decision_facts import VIEWS
from hicache_doctor.evidence.decision_words import text_of

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

STREAMS = (
    "start", "message", "consensus", "drain_storage", "drain", "settle", "submission", "evict", "chunk", "batch",
    "digest", "finish", "collective", "p2p",
)  # fmt: skip
"""In the order in which one step takes them: of two differences in the same step the first one is the cause."""
TIER = {name: tier for tier, name in enumerate(STREAMS)}
UNSURE = ("p2p",)
"""Lanes whose pairing is a guess: two call sites may share a tag."""

SHOWN_RANKS = 16

RANKS = r"""
CREATE OR REPLACE TABLE event_rank AS
WITH seen AS (
  SELECT rank, min(step) AS first_step, max(step) AS last_step, count(*) AS events, min(rowid) AS first_event,
         max(rowid) AS last_event
  FROM event WHERE rank IS NOT NULL GROUP BY rank),
placed AS (
  SELECT *, coalesce(try_cast(regexp_extract(rank, '(?:^| )DP(\d+)', 1) AS INT), 0) AS dp,
         coalesce(try_cast(regexp_extract(rank, '(?:^| )PP(\d+)', 1) AS INT), 0) AS pp,
         coalesce(try_cast(regexp_extract(rank, 'CP(\d+)', 1) AS INT), 0) AS cp,
         coalesce(try_cast(regexp_extract(rank, '(?:^| )TP(\d+)', 1) AS INT), 0) AS tp
  FROM seen)
SELECT CAST(row_number() OVER (ORDER BY dp, pp, cp, tp, rank) - 1 AS INT) AS r, *,
       dp * 1048576 + pp * 1024 + cp AS stage_group, dp * 1048576 + pp * 1024 + tp AS cp_group,
       dp * 1048576 + cp * 1024 + tp AS pipe_group
FROM placed;
"""

ROWS = """
CREATE OR REPLACE TABLE decision_row (
  lane BIGINT, stream UTINYINT, sub BIGINT, inst BIGINT, r INT, k1 BIGINT, k2 BIGINT, step BIGINT, h UBIGINT, e BIGINT);
"""

# kind: (stream, sub-lane, instance, k1, k2, what must be equal). A LRU stamp is no decision. One call of the check may
# drain at two sites under one ordinal, so a drain's lane is its site.
DIRECT = {
    "recv_msg": ("message", "0", "p.dp", "e.b", "0", "e.key, e.a, e.c"),
    "consensus": ("consensus", "0", "p.dp", "e.c", "0", "e.key, e.a, e.b, e.d"),
    "drain": ("drain", "e.d", "p.dp", "e.a", "0", "e.b, e.c"),
    "submit": ("submission", "e.a", "p.dp", "e.d", "0", "e.key, e.b, e.c"),
    "evict": ("evict", "e.a", "p.dp", "e.d", "0", "e.key, e.b"),
    "batch": ("batch", "0", "p.dp", "e.a", "e.b", "e.key, e.c, e.d"),
    "decode": ("batch", "1", "p.dp", "e.a", "0", "e.key, e.b"),
    "digest": ("digest", "0", "p.dp", "e.a", "0", "e.key"),
}
START = """
SELECT 'start', CAST(e.key AS BIGINT), CASE WHEN e.key = 7 THEN {group} ELSE p.dp END, p.r, 0, e.b, e.step,
       hash(e.a), e.rowid
FROM event e JOIN event_rank p USING (rank) WHERE e.kind = 'start' AND e.key <> 8
"""
# The storage tier's backups are counted in a lane of their own: one variant of the protocol drains them locally.
STORAGE = """
SELECT 'drain_storage', 0, p.dp, p.r, e.a, 0, e.step, hash(e.b, e.c), e.rowid
FROM event e JOIN event_rank p USING (rank) WHERE e.kind = 'drain_storage' AND (e.b <> 0 OR e.c <> 0)
UNION ALL
SELECT 'drain_storage', 1, p.dp, p.r, e.a, 0, e.step, hash(e.d), e.rowid
FROM event e JOIN event_rank p USING (rank) WHERE e.kind = 'drain_storage' AND e.d <> 0
"""
# What states no ordinal is taken in turn. A ring that lost its head lost its count: turns are counted from where every
# rank of the replica has its events.
IN_TURN = """
SELECT e.kind, 0, p.dp, p.r, row_number() OVER (PARTITION BY p.r, e.kind ORDER BY coalesce(e.seq, e.rowid)), 0, e.step,
       CASE e.kind WHEN 'settle' THEN hash(e.key, e.a, e.b, e.c) ELSE hash(e.key, e.a, e.b) END, e.rowid
FROM event e JOIN event_rank p USING (rank), (SELECT max(first_step) AS low, min(first_step) AS origin FROM event_rank)
WHERE e.kind IN ('settle', 'finish', 'chunk') AND (low = origin OR e.step > low)
"""
# A group is compared among its own members only; which instance a rank is in follows from its place in the grid.
GROUP = """CASE WHEN {role} IN (1, 2, 3, 6) THEN p.stage_group WHEN {role} IN (4, 7, 9) THEN p.cp_group
 WHEN {role} IN (5, 8, 12) THEN p.pipe_group WHEN {role} = 10 THEN p.pp WHEN {role} = 11 THEN 0 ELSE -1 END"""
COLLECTIVES = """
SELECT 'collective', e.a, {group}, p.r, CAST(e.key AS BIGINT), 0, e.step, hash(e.b, e.c, e.d), e.rowid
FROM event e JOIN event_rank p USING (rank) WHERE e.kind = 'collective' AND e.a <> 0
"""
# The n-th message of one call site on one channel, as its sender and its receiver have it. What describes itself
# (hidden states, outputs) has no size that the receiver could have posted.
CHANNELS = """
SELECT 'p2p', e.b, CASE e.kind WHEN 'send' THEN p.r * 16384 + e.a ELSE e.a * 16384 + p.r END, p.r,
       row_number() OVER (PARTITION BY p.r, e.kind, e.a, e.b ORDER BY coalesce(e.seq, e.rowid)), 0, e.step,
       hash(e.c), e.rowid
FROM event e JOIN event_rank p USING (rank)
WHERE e.kind IN ('send', 'recv') AND e.b NOT IN (0, 9, 10) AND e.a BETWEEN 0 AND 16383
"""

# Where both have a decision and it isn't the same one. Decisions are compared with the first rank of the replica, calls
# and lists of members with the first one of their group.
ODD = """
CREATE OR REPLACE TEMP TABLE odd AS
WITH lead AS (SELECT dp, min(r) AS r FROM event_rank GROUP BY dp),
ref AS (SELECT lane, CASE WHEN any_value(stream) IN ({calls}) OR any_value(stream) = {start} AND any_value(sub) = 7
                          THEN min(d.r) ELSE any_value(lead.r) END AS r
        FROM decision_row d LEFT JOIN lead ON lead.dp = d.inst GROUP BY lane)
SELECT d.lane, d.stream, d.sub, d.inst, a.r AS ra, d.r AS rb, d.k1, d.k2, least(a.step, d.step) AS step, a.e AS ea,
       d.e AS eb
FROM decision_row d JOIN ref ON ref.lane = d.lane AND ref.r <> d.r
JOIN decision_row a ON a.lane = d.lane AND a.r = ref.r AND a.k1 = d.k1 AND a.k2 = d.k2
WHERE a.h <> d.h AND d.inst >= 0
"""
# Where one has a decision and the other went on without it: it has a later one of the same stream, or both went beyond
# the place in the step where it belongs (``step``, ``tier``). Lanes of a queue, a site or a tier are streams of their
# own; the others share one.
FAMILY = "CASE WHEN {d}.stream IN ({own}) THEN {d}.lane ELSE {d}.stream * 4503599627370496 + {d}.inst END"
LACKING = """
INSERT INTO odd
WITH lanes AS (SELECT lane, any_value(stream) AS stream, any_value(sub) AS sub, any_value(inst) AS inst
               FROM decision_row WHERE stream IN ({sparse}) GROUP BY lane),
lead AS (SELECT dp, min(r) AS r FROM event_rank GROUP BY dp),
pairs AS (SELECT l.*, f.r AS ra, p.r AS rb FROM lanes l JOIN lead f ON f.dp = l.inst
          JOIN event_rank p ON p.dp = l.inst AND p.r <> f.r),
sides AS (SELECT *, ra AS has, rb AS lacks FROM pairs UNION ALL SELECT *, rb, ra FROM pairs),
top AS (SELECT {family_d} AS fam, r, max((k1, k2)) AS k FROM decision_row d WHERE stream IN ({sparse}) GROUP BY ALL),
place AS (SELECT d.r, max(d.stream) AS tier FROM decision_row d JOIN event_rank p ON p.r = d.r AND p.last_step = d.step
          WHERE d.stream < {calls_from} GROUP BY d.r),
far AS (SELECT p.r, (p.last_step, coalesce(place.tier, -1)) AS at, p.first_step
        FROM event_rank p LEFT JOIN place USING (r)),
origin AS (SELECT min(first_step) AS step FROM event_rank)
SELECT s.lane, s.stream, s.sub, s.inst, s.ra, s.rb, d.k1, d.k2, d.step, CASE WHEN s.has = s.ra THEN d.e END,
       CASE WHEN s.has = s.rb THEN d.e END
FROM sides s JOIN decision_row d ON d.lane = s.lane AND d.r = s.has
JOIN far p ON p.r = s.lacks JOIN far q ON q.r = s.has
LEFT JOIN decision_row o ON o.lane = s.lane AND o.r = s.lacks AND o.k1 = d.k1 AND o.k2 = d.k2
LEFT JOIN top t ON t.fam = {family_s} AND t.r = s.lacks, origin
WHERE o.lane IS NULL AND (p.first_step < d.step OR p.first_step = origin.step)
  AND (t.k >= (d.k1, d.k2) OR (d.step, d.stream) < least(p.at, q.at))
"""
# The first one of each pair of ranks in each lane: the lowest step, then the lowest place.
FIRSTS = """
CREATE OR REPLACE TABLE odd_first AS
WITH early AS (SELECT lane, ra, rb, min(step) AS step FROM odd GROUP BY lane, ra, rb)
SELECT o.* EXCLUDE (n) FROM (
  SELECT o.*, row_number() OVER (PARTITION BY o.lane, o.ra, o.rb ORDER BY o.k1, o.k2) AS n
  FROM odd o JOIN early USING (lane, ra, rb, step)) o
WHERE n = 1
"""
# What a rank that passed is cited with: the first thing that it recorded after that step, or a later decision of it.
PASSED = """
CREATE OR REPLACE TEMP TABLE passed AS
WITH lacking AS (SELECT lane, stream, ra, rb, step, CASE WHEN ea IS NULL THEN ra ELSE rb END AS r FROM odd_first
                 WHERE ea IS NULL OR eb IS NULL)
SELECT lane, ra, rb, min(e) AS e FROM (
  SELECT o.lane, o.ra, o.rb, e.rowid AS e FROM lacking o JOIN event_rank p ON p.r = o.r
  JOIN event e ON e.rank = p.rank AND e.step > o.step
  UNION ALL
  SELECT o.lane, o.ra, o.rb, d.e FROM lacking o JOIN decision_row d ON d.r = o.r AND d.step = o.step
  WHERE d.stream >= o.stream)
GROUP BY ALL
"""
FILL = """
INSERT INTO divergence BY NAME
WITH side AS (
  SELECT o.*, pa.rank AS rank_a, pb.rank AS rank_b, coalesce(o.ea, q.e) AS ca, coalesce(o.eb, q.e) AS cb
  FROM odd_first o JOIN event_rank pa ON pa.r = o.ra JOIN event_rank pb ON pb.r = o.rb
  LEFT JOIN passed q ON q.lane = o.lane AND q.ra = o.ra AND q.rb = o.rb),
place AS (
  SELECT s.lane, s.ra, s.rb, count(*) - 1 AS n FROM side s
  JOIN decision_row d ON d.lane = s.lane AND d.r = CASE WHEN s.ea IS NULL THEN s.rb ELSE s.ra END
   AND d.e <= coalesce(s.ea, s.eb)
  WHERE s.stream IN ({in_turn}) GROUP BY ALL)
SELECT ({names})[s.stream + 1] AS stream, coalesce(n.n, CASE WHEN s.stream = 0 THEN 0 ELSE s.k1 END) AS ordinal,
       s.rank_a, s.rank_b, CASE WHEN s.ea IS NULL THEN {nothing} ELSE {text_a} END AS value_a,
       CASE WHEN s.eb IS NULL THEN {nothing} ELSE {text_b} END AS value_b,
       a.artifact AS artifact_a, b.artifact AS artifact_b, a.record AS record_a, b.record AS record_b,
       a.kind || ': ' || {text_a} AS quote_a, b.kind || ': ' || {text_b} AS quote_b,
       coalesce(n.n, s.k1) AS common,
       CASE WHEN s.stream = {batch} AND s.sub = 0 OR s.stream = {settle} THEN abs(a.c - b.c) END AS delta,
       CASE WHEN s.stream = {batch} AND s.sub = 0 OR s.stream = {settle}
            THEN CASE WHEN {page} > 1 AND a.c <> b.c THEN abs(a.c - b.c) % {page} = 0 END END AS page_multiple,
       CASE WHEN s.stream IN ({rid}) THEN CAST(coalesce(a.key, b.key) AS VARCHAR) END AS key,
       s.stream NOT IN ({unsure}) AS sure, s.step, s.stream AS tier, s.lane, s.sub, s.ea, s.eb
FROM side s LEFT JOIN event a ON a.rowid = s.ca LEFT JOIN event b ON b.rowid = s.cb
LEFT JOIN place n ON n.lane = s.lane AND n.ra = s.ra AND n.rb = s.rb
"""


def derive(store: Store, kinds: list[dict[str, Any]], words: list[dict[str, Any]], page_size: int | None) -> None:
    """Create the tables, and add what the probes show to ``divergence`` (created by :mod:`.streams`); without an event
    nothing more is made, for most incidents have logs only.

    ``kinds`` and ``words`` are the vocabulary of events: what the numbers of each kind mean and what they are called.
    """
    store.flush()
    con = store.con
    con.execute(RANKS + ROWS)
    if store.value("SELECT count(*) FROM event_rank"):
        con.execute(_fill_rows())
        _differences(store, text_of(kinds, words), page_size)
        create_views(store, kinds, words)


def create_views(store: Store, kinds: list[dict[str, Any]], words: list[dict[str, Any]]) -> None:
    """What :mod:`.decision_facts` holds: views, and the tables of the differences that are asked again and again."""
    names = ", ".join(f"'{n}'" for n in STREAMS)
    filled = VIEWS.replace("{names}", f"[{names}]").replace("{text}", text_of(kinds, words)("e"))
    filled = filled.replace("{evict}", str(TIER["evict"]))
    store.con.execute(filled.replace("{group}", GROUP.format(role="e.a")))


def first(store: Store) -> dict[str, Any] | None:
    """The earliest divergence: by step where probes show the decisions, else as far as logs give it; None when the
    streams agree as far as they go."""
    if not store.value("SELECT count(*) FROM event_rank"):
        return streams.first(store)
    rows = store.rows("SELECT * FROM first_divergence")
    return rows[0] if rows else streams.first(store)


def values(store: Store, row: dict[str, Any]) -> dict[str, str]:
    """What every rank of the lane decided at the place of a divergence, by rank label; nothing for one of a log."""
    if row.get("tier") is None:
        return {}
    found = store.rows(
        "SELECT d.rank, d.value FROM decision d "
        "JOIN decision_row x ON x.lane = d.lane AND x.k1 = d.ordinal AND x.k2 = d.part "
        "WHERE x.lane = ? AND x.e = ? ORDER BY d.rank LIMIT ?",
        [row["lane"], row["ea"] if row["ea"] is not None else row["eb"], SHOWN_RANKS],
    )
    return {r["rank"]: r["value"] for r in found}


def _numbers(*streams: str) -> str:
    return ", ".join(str(TIER[s]) for s in streams)


def _fill_rows() -> str:
    selects = [
        f"SELECT '{stream}', {sub}, {inst}, p.r, {k1}, {k2}, e.step, hash({values}), e.rowid "
        f"FROM event e JOIN event_rank p USING (rank) WHERE e.kind = '{kind}'"
        for kind, (stream, sub, inst, k1, k2, values) in DIRECT.items()
    ]
    selects += [START.format(group=GROUP.format(role="e.b")), STORAGE, IN_TURN]
    selects += [COLLECTIVES.format(group=GROUP.format(role="e.a")), CHANNELS]
    number = " ".join(f"WHEN '{name}' THEN {tier}" for name, tier in TIER.items())
    return (
        "INSERT INTO decision_row SELECT t * 4503599627370496 + sub * 268435456 + greatest(inst, 0), t, sub, inst, r, "
        f"k1, k2, step, h, e FROM (SELECT *, CASE s {number} END AS t FROM ("
        + " UNION ALL ".join(selects)
        + ") x(s, sub, inst, r, k1, k2, step, h, e))"
    )


def _differences(store: Store, text: Any, page_size: int | None) -> None:
    con = store.con
    page = page_size or store.value("SELECT max(a) FROM event WHERE kind = 'start' AND key = 3") or 0
    own = _numbers("submission", "drain", "evict")
    con.execute(ODD.format(calls=_numbers("collective", "p2p"), start=TIER["start"]))
    con.execute(
        LACKING.format(
            sparse=", ".join(str(n) for n in range(TIER["message"], TIER["collective"])),
            family_d=FAMILY.format(d="d", own=own),
            family_s=FAMILY.format(d="s", own=own),
            calls_from=TIER["collective"],
        )
    )
    con.execute(FIRSTS)
    con.execute(PASSED)
    nothing = (
        f"CASE s.stream WHEN {TIER['drain']} THEN 'write_acks 0, load_acks 0' "
        f"WHEN {TIER['drain_storage']} THEN 'hits 0, acks 0, backups 0' ELSE 'none' END"
    )
    con.execute(
        FILL.format(
            names="[" + ", ".join(f"'{n}'" for n in STREAMS) + "]",
            nothing=nothing,
            text_a=text("a"),
            text_b=text("b"),
            page=int(page),
            in_turn=_numbers("settle", "finish", "chunk", "p2p"),
            rid=_numbers("settle", "chunk", "finish"),
            unsure=_numbers(*UNSURE),
            batch=TIER["batch"],
            settle=TIER["settle"],
        )
    )
    con.execute("DROP TABLE odd; DROP TABLE passed")
