"""What follows from probe events beside the streams themselves: views that rules ask, computed only when asked."""

from __future__ import annotations

VIEWS = r"""
CREATE OR REPLACE VIEW decision AS
  SELECT p.rank, p.dp AS replica, ({names})[d.stream + 1] AS stream, d.lane, d.sub, d.k1 AS ordinal, d.k2 AS part,
         d.step, {text} AS value, e.kind, e.key, e.a, e.b, e.c, e.d, e.artifact, e.record
  FROM decision_row d JOIN event e ON e.rowid = d.e JOIN event_rank p ON p.r = d.r;

CREATE OR REPLACE TABLE stream_divergence AS
  SELECT d.*, pa.pp AS pp_a, pb.pp AS pp_b, pa.tp AS tp_a, pb.tp AS tp_b, pa.dp AS dp,
         a.key AS key_a, a.a AS a_a, a.b AS b_a, a.c AS c_a, a.d AS d_a, a.kind AS kind_a,
         b.key AS key_b, b.a AS a_b, b.b AS b_b, b.c AS c_b, b.d AS d_b, b.kind AS kind_b,
         CASE WHEN d.stream = 'submission' AND coalesce(a.c, 0) <> 0 AND coalesce(b.c, 0) = 0 THEN d.rank_a
              WHEN d.stream = 'message' AND a.a = 2 AND b.a IS DISTINCT FROM 2 THEN d.rank_a
              WHEN d.stream = 'start' AND a.a < b.a THEN d.rank_a ELSE d.rank_b END AS culprit
  FROM divergence d JOIN event_rank pa ON pa.rank = d.rank_a JOIN event_rank pb ON pb.rank = d.rank_b
  LEFT JOIN event a ON a.rowid = d.ea LEFT JOIN event b ON b.rowid = d.eb WHERE d.tier IS NOT NULL;

-- Votes of the storage tier as each rank got them: what was agreed must be one number.
CREATE OR REPLACE VIEW storage_vote AS
  SELECT p.dp, p.rank, p.r, e.kind, e.key AS rid, CASE e.kind WHEN 'prefetch_ack' THEN e.a ELSE 0 END AS batch,
         CASE e.kind WHEN 'prefetch_ack' THEN e.b ELSE e.a END AS own,
         CASE e.kind WHEN 'prefetch_ack' THEN e.c ELSE e.b END AS agreed, e.step, e.artifact, e.record, e.rowid AS e
  FROM event e JOIN event_rank p USING (rank) WHERE e.kind IN ('prefetch_hit', 'prefetch_ack');
CREATE OR REPLACE VIEW storage_vote_difference AS
  SELECT a.kind, a.rid, a.batch, a.rank AS rank_a, a.agreed AS agreed_a, a.artifact AS artifact_a, a.record AS record_a,
         b.rank AS rank_b, b.agreed AS agreed_b, b.artifact AS artifact_b, b.record AS record_b,
         least(a.step, b.step) AS step
  FROM (SELECT * FROM storage_vote QUALIFY row_number() OVER (PARTITION BY r, kind, rid, batch ORDER BY e) = 1) a
  JOIN (SELECT * FROM storage_vote QUALIFY row_number() OVER (PARTITION BY r, kind, rid, batch ORDER BY e) = 1) b
    ON a.dp = b.dp AND a.kind = b.kind AND a.rid = b.rid AND a.batch = b.batch AND a.r < b.r AND a.agreed <> b.agreed;

-- Unequal pools are latent: they are the first divergence where what parted later follows from them, or nothing did.
CREATE OR REPLACE TABLE first_divergence AS
  WITH ranked AS (
    SELECT *, stream = 'start' AND sub = 2 AS latent,
           row_number() OVER (PARTITION BY stream = 'start' AND sub = 2 ORDER BY step, tier, ordinal, sub, rank_b) AS n
    FROM stream_divergence WHERE sure),
  acted AS (SELECT * FROM ranked WHERE NOT latent AND n = 1),
  explained AS (SELECT coalesce(
    (SELECT stream IN ('submission', 'evict', 'batch', 'digest', 'finish', 'collective')
            OR stream = 'settle' AND NOT EXISTS (SELECT 1 FROM storage_vote_difference) FROM acted), true) AS by_pools)
  SELECT ranked.*, (SELECT stream FROM acted) AS acted_stream FROM ranked, explained
  WHERE n = 1 AND latent = (by_pools AND EXISTS (SELECT 1 FROM ranked WHERE latent));
-- The first thing that a rank did differently, unequal pools aside.
CREATE OR REPLACE TABLE first_act AS
  SELECT * FROM stream_divergence WHERE sure AND NOT (stream = 'start' AND sub = 2)
  ORDER BY step, tier, ordinal, sub, rank_b LIMIT 1;

CREATE OR REPLACE VIEW submission_history AS
  SELECT p.rank, p.r, p.dp, e.a AS queue, count(*) FILTER (e.c = 0) AS granted, count(*) FILTER (e.c <> 0) AS refused
  FROM event e JOIN event_rank p USING (rank)
  WHERE e.kind = 'submit' AND e.step <= coalesce((SELECT step FROM first_act), 9223372036854775807) GROUP BY ALL;
CREATE OR REPLACE VIEW shorter_history AS
  SELECT a.rank, a.queue, a.granted, b.rank AS longer_rank, b.granted AS longer
  FROM submission_history a JOIN submission_history b ON a.dp = b.dp AND a.queue = b.queue AND a.granted < b.granted;
CREATE OR REPLACE VIEW refused_alone AS
  SELECT p.rank, p.dp, p.pp, p.tp, e.a AS queue, e.b AS tokens, e.c AS why, e.d AS ordinal, e.step, e.artifact,
         e.record, o.rank AS granted_rank, e.rowid AS e
  FROM event e JOIN event_rank p USING (rank)
  JOIN event g ON g.kind = 'submit' AND g.a = e.a AND g.d = e.d AND g.key = e.key AND g.c = 0
  JOIN event_rank o ON o.rank = g.rank AND o.dp = p.dp
  WHERE e.kind = 'submit' AND e.c <> 0;

CREATE OR REPLACE VIEW sends_growth AS
  WITH held AS (
    SELECT e.rowid AS at, e.rank, e.a, e.b, e.c, e.artifact, e.record, e.a - lag(e.a) OVER w AS grown,
           e.c = lag(e.c) OVER w AS idle
    FROM event e WHERE e.kind = 'sends_held' WINDOW w AS (PARTITION BY e.rank ORDER BY coalesce(e.seq, e.rowid)))
  SELECT h.rank, p.pp, arg_max(h.artifact, h.at) AS artifact, arg_max(h.record, h.at) AS record,
         arg_max(h.a, h.at) AS held, arg_max(h.b, h.at) AS calls, arg_max(h.c, h.at) AS batches,
         coalesce(sum(h.grown) FILTER (h.idle), 0) AS grown_idle
  FROM held h JOIN event_rank p USING (rank) GROUP BY h.rank, p.pp;

CREATE OR REPLACE VIEW queue_end AS
  SELECT p.rank, p.r, p.dp, p.pp, e.a AS bootstrap, e.b AS waiting, e.c AS prefetching, e.d AS tokens_occupied, e.step,
         e.artifact, e.record, e.step - greatest(coalesce(b.step, 0), coalesce(m.step, 0)) AS idle_steps
  FROM (SELECT rank, max(rowid) AS last FROM event WHERE kind = 'queues' GROUP BY rank) l
  LEFT JOIN (SELECT rank, max(step) AS step FROM event WHERE kind IN ('batch', 'decode', 'finish') GROUP BY rank) b
    ON b.rank = l.rank
  LEFT JOIN (SELECT rank, max(step) AS step FROM event WHERE kind = 'recv_msg' AND a <> 4 GROUP BY rank) m
    ON m.rank = l.rank
  JOIN event e ON e.rowid = l.last JOIN event_rank p ON p.rank = l.rank;
-- Writes that a rank of the first stage (it leads the drains) submitted and drained, and how long ago it last looked.
CREATE OR REPLACE VIEW acks_end AS
  SELECT p.rank, sum(e.b) FILTER (e.kind = 'drain') AS drained,
         count(*) FILTER (e.kind = 'submit' AND e.a = 0 AND e.c = 0) AS granted, max(e.step) AS step,
         p.last_step - max(e.step) AS steps_since, arg_max(e.artifact, e.rowid) AS artifact,
         arg_max(e.record, e.rowid) AS record
  FROM event e JOIN event_rank p USING (rank)
  WHERE p.pp = 0 AND e.kind IN ('ack_queues', 'drain', 'submit')
    AND p.first_step = (SELECT min(first_step) FROM event_rank)
  GROUP BY p.rank, p.last_step HAVING count(*) FILTER (e.kind = 'ack_queues') > 0;

CREATE OR REPLACE VIEW group_list AS
  SELECT p.rank, p.r, e.a AS role, {group} AS inst, e.key AS members, e.b AS size, e.artifact, e.record,
         row_number() OVER (PARTITION BY p.r, e.a ORDER BY coalesce(e.seq, e.rowid)) AS n
  FROM event e JOIN event_rank p USING (rank) WHERE e.kind = 'new_group' AND e.a <> 0;

-- Where the scheduler of each rank stands at the end: what it entered and never left.
CREATE OR REPLACE VIEW rank_wait AS
  WITH own AS (SELECT rank, any_value(thread) AS thread FROM event WHERE kind = 'step' GROUP BY rank),
  entered AS (
    SELECT e.rank, e.kind, arg_max(e.rowid, coalesce(e.seq, e.rowid)) AS e
    FROM event e LEFT JOIN own USING (rank)
    WHERE e.kind IN ('collective', 'recv') AND (own.thread IS NULL OR e.thread = own.thread)
    GROUP BY e.rank, e.kind),
  left_ AS (SELECT rank, kind, key, a, max(coalesce(seq, rowid)) AS o FROM event
            WHERE kind IN ('collective_end', 'recv_end') GROUP BY ALL)
  SELECT p.rank, p.r, p.dp, p.pp, p.cp, p.tp, p.stage_group, e.kind, CASE e.kind WHEN 'collective' THEN e.a END AS grp,
         CASE e.kind WHEN 'collective' THEN e.d ELSE e.b END AS site, e.step, e.artifact, e.record, {text} AS quote
  FROM entered n JOIN event e ON e.rowid = n.e JOIN event_rank p ON p.rank = n.rank
  LEFT JOIN left_ x ON x.rank = n.rank AND x.kind = n.kind || '_end' AND x.key = e.key AND x.a = e.a
    AND x.o > coalesce(e.seq, e.rowid)
  WHERE x.rank IS NULL AND EXISTS (SELECT 1 FROM left_ WHERE left_.kind = n.kind || '_end');

CREATE OR REPLACE VIEW abort_effect AS
  SELECT p.dp, e.key AS rid, min(e.step) AS step, count(DISTINCT p.pp) AS stages, count(DISTINCT p.r) AS ranks,
         (SELECT count(DISTINCT pp) FROM event_rank q WHERE q.dp = p.dp) AS of_stages,
         arg_min(e.artifact, e.rowid) AS artifact, arg_min(e.record, e.rowid) AS record,
         arg_min(p.rank, e.rowid) AS rank,
         EXISTS (SELECT 1 FROM event c JOIN event_rank q USING (rank) WHERE c.kind = 'consensus' AND c.key = e.key
                 AND q.dp = p.dp AND c.a > 0) AS agreed,
         EXISTS (SELECT 1 FROM event c JOIN event_rank q USING (rank) WHERE c.kind = 'consensus' AND c.key = e.key
                 AND q.dp = p.dp AND c.b > 0) AS voted_bad
  FROM event e JOIN event_rank p USING (rank) WHERE e.kind = 'recv_msg' AND e.a = 1 GROUP BY p.dp, e.key;

-- The abort behind the first divergence: its message itself, or a request that only some ranks still had soon after.
CREATE OR REPLACE VIEW first_abort AS
  SELECT f.*, x.rid, x.stages, x.of_stages, x.agreed, x.voted_bad, x.artifact AS abort_artifact,
         x.record AS abort_record, x.rank AS abort_rank
  FROM first_divergence f JOIN abort_effect x ON x.dp = f.dp AND (
    f.stream = 'message' AND (f.a_a = 1 AND f.key_a = x.rid OR f.a_b = 1 AND f.key_b = x.rid)
    OR f.stream IN ('consensus', 'batch', 'finish') AND x.step BETWEEN f.step - 16 AND f.step + 1
       AND (f.key_a = x.rid OR f.key_b = x.rid OR 'decode' IN (f.kind_a, f.kind_b)))
  ORDER BY x.step DESC LIMIT 1;
-- The two sides of the first divergence, the culprit's first.
CREATE OR REPLACE VIEW first_side AS
  SELECT * EXCLUDE (n) FROM (
    SELECT artifact_a AS artifact, record_a AS record, rank_a AS rank, quote_a AS quote,
           (rank_a <> culprit)::INT AS n, *
    FROM first_divergence
    UNION ALL SELECT artifact_b, record_b, rank_b, quote_b, (rank_b <> culprit)::INT, * FROM first_divergence)
  ORDER BY n;

-- Two nodes that were evicted in another order although their stamps are equal: the clock does not decide.
CREATE OR REPLACE VIEW evict_tie AS
  SELECT d.*, EXISTS (
           SELECT 1 FROM (SELECT rank, key, CASE kind WHEN 'clock' THEN a ELSE c END AS stamp FROM event
                          WHERE kind IN ('evict', 'clock')) x
           WHERE x.rank = d.rank_a AND x.key = d.key_b AND x.stamp = d.c_a
              OR x.rank = d.rank_b AND x.key = d.key_a AND x.stamp = d.c_b) AS tie
  FROM stream_divergence d WHERE d.stream = 'evict' AND d.key_a <> d.key_b;
-- The stamps are each rank's own clock: the same eviction with another stamp on another rank, or a stamp that is a time
-- (a counter of walks does not get that far in so few steps).
CREATE OR REPLACE VIEW own_clock AS
  SELECT pa.rank AS rank_a, a.c AS stamp_a, pb.rank AS rank_b, b.c AS stamp_b, a.artifact, a.record
  FROM decision_row x JOIN decision_row y ON y.lane = x.lane AND y.k1 = x.k1 AND y.h = x.h AND y.r > x.r
  JOIN event a ON a.rowid = x.e JOIN event b ON b.rowid = y.e
  JOIN event_rank pa ON pa.r = x.r JOIN event_rank pb ON pb.r = y.r
  WHERE x.stream = {evict} AND a.c <> b.c
    AND x.step < coalesce((SELECT step FROM first_act), 9223372036854775807)
  UNION ALL
  SELECT rank, c, NULL, NULL, artifact, record FROM event WHERE kind = 'evict' AND c > 50000 * (step + 1);
"""
