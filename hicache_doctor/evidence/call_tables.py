"""Recorded calls as tables: each with its group, its turn and whether it is done; how far each rank got."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

SOURCES = """
CREATE OR REPLACE TABLE call_source AS
WITH dumps AS (
  SELECT rank, artifact, coalesce(backend, '') AS backend, max(ts) AS ts, count(call_site) AS sites, count(*) AS calls
  FROM collective WHERE rank IS NOT NULL GROUP BY ALL)
SELECT rank, artifact, backend FROM dumps
QUALIFY row_number() OVER (
  PARTITION BY rank, backend ORDER BY ts DESC NULLS LAST, sites DESC, calls DESC, artifact) = 1
"""
# One row a call: its group over all ranks and its turn on the rank. Texts that repeat by the million (lists of members,
# call sites) are looked at once a group and once a site. Long lists of members are said by the group's status only.
CALLS = """
CREATE OR REPLACE TABLE call_place AS
WITH listed AS (SELECT artifact, grp, any_value(members) AS members FROM group_status WHERE members IS NOT NULL
                GROUP BY ALL)
SELECT n.world, c.rank, c.artifact, c.grp, coalesce(any_value(c.members), any_value(l.members)) AS members,
       any_value(c.descr) AS descr, any_value(c.backend) AS backend,
       bool_or(c.state = 'completed' OR c.state = 'started') AS states_told, bool_or(c.retired) AS retires
FROM collective c
JOIN call_source s ON s.rank = c.rank AND s.artifact = c.artifact AND s.backend = coalesce(c.backend, '')
JOIN wait_rank n ON n.rank = c.rank LEFT JOIN listed l ON l.artifact = c.artifact AND l.grp = c.grp
GROUP BY n.world, c.rank, c.artifact, c.grp;
CREATE OR REPLACE TABLE call_group AS
SELECT CAST(row_number() OVER (ORDER BY world, grp, members, descr, backend) - 1 AS INT) AS g, * FROM (
  SELECT DISTINCT world, grp, members, CASE WHEN members IS NULL THEN descr END AS descr,
         CASE WHEN members IS NULL THEN backend END AS backend
  FROM (SELECT world, grp, members, descr, backend FROM call_place
        UNION SELECT n.world, s.grp, s.members, s.descr, s.backend FROM group_status s JOIN wait_rank n USING (rank)
        WHERE s.grp IS NOT NULL));
CREATE OR REPLACE TABLE call_site AS
SELECT DISTINCT call_site, nullif(regexp_extract(split_part(call_site, ' ', 1), '[^.]*$'), '') AS site FROM collective
WHERE call_site IS NOT NULL;
CREATE OR REPLACE TABLE recorded_call AS
WITH place AS (
  SELECT p.rank, p.artifact, p.grp, g.g,
         bool_or(p.states_told) OVER d AS states_told, bool_or(p.retires) OVER d AS retires
  FROM call_place p JOIN call_group g ON g.world = p.world AND g.grp = p.grp
    AND g.members IS NOT DISTINCT FROM p.members AND (p.members IS NOT NULL
         OR g.descr IS NOT DISTINCT FROM p.descr AND g.backend IS NOT DISTINCT FROM p.backend)
  WINDOW d AS (PARTITION BY p.rank, p.artifact)),
told AS (
  SELECT c.rowid AS e, n.r, c.rank, c.artifact, c.record, p.g, c.seq, c.op, c.sizes, c.dtype, c.state, c.retired,
         c.call_site, t.site, c.peer, c.ts, c.source,
         row_number() OVER (PARTITION BY n.r, c.artifact ORDER BY c.position, c.record, c.rowid) AS pos,
         coalesce(c.backend = 'gloo', false) OR coalesce(p.retires AND NOT p.states_told, false) AS blocking,
         c.op IN ('send', 'recv') AS message
  FROM collective c JOIN place p ON p.rank = c.rank AND p.artifact = c.artifact AND p.grp = c.grp
  JOIN wait_rank n ON n.rank = c.rank LEFT JOIN call_site t ON t.call_site = c.call_site)
SELECT * EXCLUDE (retired), coalesce(retired, false) AS retired,
       CASE WHEN state = 'completed' THEN true WHEN blocking THEN coalesce(retired, true)
            WHEN state IS NULL THEN coalesce(retired, true) ELSE false END AS done, pos AS turn
FROM told;
DROP TABLE call_place;
DROP TABLE call_site
"""
# What belongs to a coalesced unit has the call site of its end, and its state.
UNITS = """
CREATE OR REPLACE TABLE call_unit AS
WITH closed AS (
  SELECT *, min(CASE WHEN op = 'coalesced' THEN pos END) OVER w AS close_at,
         first_value(CASE WHEN op = 'coalesced' THEN done END IGNORE NULLS) OVER w AS close_done,
         first_value(CASE WHEN op = 'coalesced' THEN seq END IGNORE NULLS) OVER w AS close_seq,
         first_value(CASE WHEN op = 'coalesced' THEN state END IGNORE NULLS) OVER w AS close_state,
         first_value(CASE WHEN op = 'coalesced' THEN coalesce(call_site, '') END IGNORE NULLS) OVER w AS close_site
  FROM recorded_call WHERE g IN (SELECT g FROM recorded_call WHERE op = 'coalesced')
  WINDOW w AS (PARTITION BY r, artifact, g ORDER BY pos ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING))
SELECT e, close_state, close_done, min(pos) OVER (PARTITION BY r, artifact, g, close_at) AS turn FROM closed
WHERE close_at IS NOT NULL AND (op = 'coalesced' OR NOT retired AND coalesce(state, 'scheduled') = 'scheduled'
  AND CASE WHEN message THEN coalesce(call_site, '') = close_site ELSE seq = close_seq END);
UPDATE recorded_call SET state = u.close_state, done = u.close_done, turn = u.turn FROM call_unit u
WHERE u.e = recorded_call.e;
DROP TABLE call_unit
"""
REACH = """
CREATE OR REPLACE TABLE call_reach AS
WITH entries AS (SELECT r, g, max(seq) AS last, bool_or(blocking) AS blocking FROM recorded_call
                 WHERE NOT message AND op <> 'coalesced' GROUP BY ALL),
told AS (
  SELECT n.r, g.g, max(s.enqueued) AS enqueued FROM group_status s JOIN wait_rank n USING (rank)
  JOIN call_group g ON g.world = n.world AND g.grp = s.grp AND g.members IS NOT DISTINCT FROM s.members
    AND (s.members IS NOT NULL
         OR g.descr IS NOT DISTINCT FROM s.descr AND g.backend IS NOT DISTINCT FROM s.backend)
  GROUP BY ALL)
SELECT r, g, CASE WHEN blocking THEN last ELSE greatest(last, enqueued) END AS reach
FROM entries FULL JOIN told USING (r, g)
"""
OLDEST = """
SELECT c.*, k.grp, k.descr FROM recorded_call c JOIN call_group k ON k.g = c.g
JOIN (SELECT r, artifact, min(turn) AS turn FROM recorded_call WHERE NOT done GROUP BY ALL) h
  ON h.r = c.r AND h.artifact = c.artifact AND (h.turn = c.turn OR c.blocking)
WHERE NOT c.done ORDER BY c.r, c.turn, c.pos LIMIT {most}
"""
ENTRANTS = """
SELECT c.* FROM recorded_call c JOIN wanted w ON w.g = c.g AND w.seq = c.seq WHERE NOT c.message AND c.op <> 'coalesced'
ORDER BY c.g, c.seq, c.r, c.pos
"""
# The unfinished messages of each pair and direction, in the order in which they must meet.
MESSAGES_OPEN = """
SELECT g, r, op, peer, row_number() OVER (PARTITION BY g, r, op, peer ORDER BY pos) AS nth, e, seq, call_site, turn,
       sizes, artifact, dtype, state
FROM recorded_call WHERE message AND NOT done AND peer IS NOT NULL
"""
SURPLUS = """
WITH pairs AS (SELECT DISTINCT r, p FROM unmet),
met AS (
  SELECT u.r, u.p, max(a.pos) AS after_r, arg_max(b.pos, a.pos) AS after_p
  FROM pairs u JOIN recorded_call a ON a.r = u.r AND a.done AND NOT a.message AND a.op <> 'coalesced'
  JOIN recorded_call b ON b.r = u.p AND b.g = a.g AND b.seq = a.seq AND b.done AND NOT b.message AND b.op <> 'coalesced'
  GROUP BY u.r, u.p),
starts AS (SELECT r, min(record) AS first FROM recorded_call GROUP BY r),
origin AS (
  SELECT u.r, u.p, coalesce(m.after_r, -1) AS after_r, coalesce(m.after_p, -1) AS after_p
  FROM pairs u LEFT JOIN met m USING (r, p) JOIN starts s ON s.r = u.r JOIN starts t ON t.r = u.p
  WHERE m.r IS NOT NULL OR s.first = 0 AND t.first = 0),
sides AS (
  SELECT u.e, o.*, u.g, u.op, x.n AS own, y.n AS other FROM unmet u JOIN origin o USING (r, p)
  JOIN wait_rank x ON x.r = u.r JOIN wait_rank y ON y.r = u.p)
SELECT s.e,
  (SELECT count(*) FROM recorded_call c WHERE c.r = s.p AND c.g = s.g AND c.message AND c.done AND c.peer = s.own
     AND c.op = CASE s.op WHEN 'send' THEN 'recv' ELSE 'send' END AND c.pos > s.after_p)
  - (SELECT count(*) FROM recorded_call c WHERE c.r = s.r AND c.g = s.g AND c.message AND c.done AND c.peer = s.other
     AND c.op = s.op AND c.pos > s.after_r) AS n
FROM sides s
"""
LAST_CALLS = """
SELECT c.* FROM recorded_call c JOIN (
  SELECT g, r, max(pos) AS pos FROM recorded_call WHERE NOT message AND op <> 'coalesced' AND blocking GROUP BY ALL) l
  ON l.g = c.g AND l.r = c.r AND l.pos = c.pos
WHERE c.g NOT IN (SELECT g FROM recorded_call WHERE NOT done) ORDER BY c.g, c.r
"""


def create(store: Store) -> None:
    """Fill ``call_source``, ``call_group`` and ``recorded_call`` from what was recorded and ``wait_rank``."""
    store.con.execute(SOURCES)
    store.con.execute(CALLS)
    if store.value("SELECT count(*) FROM recorded_call WHERE op = 'coalesced'"):
        store.con.execute(UNITS)
