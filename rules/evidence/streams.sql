-- What the decision streams of the probes show: the first difference between ranks that replicate each other, and what
-- lies behind it. Derived in hicache_doctor/evidence (decision, first_divergence, first_side and the other views).

-- needs: event

-- evidence: probe_events
-- says: probe events of {n} ranks are here
SELECT e.artifact, e.record, p.rank, e.kind || ' at step ' || e.step AS quote, count(*) OVER () AS n
FROM event_rank p JOIN event e ON e.rowid = p.first_event ORDER BY p.r LIMIT 4

-- evidence: streams_part
-- says: the decisions of the ranks part first at step {step}, {stream} {ordinal}: {rank_a} {value_a}; {rank_b} {value_b}
-- known: SELECT count(*) > 1 FROM event_rank
SELECT artifact, record, rank, quote, step, stream, ordinal, rank_a, value_a, rank_b, value_b FROM first_side

-- evidence: calls_part_first
-- says: the first difference is one of calls, not of decisions ({stream} {ordinal}: {rank_a} {value_a}; {rank_b} {value_b})
SELECT artifact, record, rank, quote, stream, ordinal, rank_a, value_a, rank_b, value_b FROM first_side WHERE stream IN ('collective', 'p2p')

-- evidence: drain_parts_first
-- says: with equal submissions so far the stages drained other counts of acks in call {ordinal} ({rank_a} {value_a}; {rank_b} {value_b}): each goes by its own events
SELECT artifact, record, rank, quote, ordinal, rank_a, value_a, rank_b, value_b FROM first_side WHERE stream = 'drain'

-- evidence: pools_part_first
-- says: the host pools were unequal from the start ({rank_a} {value_a}; {rank_b} {value_b}), and what differs later follows from it
SELECT artifact, record, rank, quote, rank_a, value_a, rank_b, value_b FROM first_side WHERE stream = 'start' AND sub = 2

-- evidence: parted_in_act
-- says: then, at step {step}, {stream} {ordinal} differed: {rank_a} {value_a}; {rank_b} {value_b}
SELECT artifact_b AS artifact, record_b AS record, rank_b AS rank, quote_b AS quote, step, stream, ordinal, rank_a, value_a, rank_b, value_b
FROM first_act WHERE EXISTS (SELECT 1 FROM first_divergence f WHERE f.stream = 'start')
UNION ALL
SELECT artifact_a, record_a, rank_a, quote_a, step, stream, ordinal, rank_a, value_a, rank_b, value_b
FROM first_act WHERE EXISTS (SELECT 1 FROM first_divergence f WHERE f.stream = 'start')

-- evidence: storage_parts_first
-- says: the ranks went by their own view of L3 first ({stream} {ordinal}: {rank_a} {value_a}; {rank_b} {value_b})
SELECT artifact, record, rank, quote, stream, ordinal, rank_a, value_a, rank_b, value_b FROM first_side
WHERE stream = 'settle' OR stream = 'drain_storage' AND sub = 0 OR stream = 'submission' AND sub = 2
   OR stream = 'drain_storage' AND sub = 1 AND (EXISTS (SELECT 1 FROM storage_vote_difference)
      OR EXISTS (SELECT 1 FROM divergence x WHERE x.stream = 'settle' OR x.stream = 'drain_storage' AND x.sub = 0))

-- evidence: storage_votes_differ
-- says: the hit length or progress of request {rid} was agreed among some ranks only: {rank_a} took {agreed_a}, {rank_b} {agreed_b}
SELECT artifact_b AS artifact, record_b AS record, rank_b AS rank, kind || ' agreed ' || agreed_b AS quote, rid, rank_a, agreed_a, rank_b, agreed_b
FROM (SELECT * FROM storage_vote_difference ORDER BY step, rid, batch, rank_a, rank_b LIMIT 1)
UNION ALL
SELECT artifact_a, record_a, rank_a, kind || ' agreed ' || agreed_a, rid, rank_a, agreed_a, rank_b, agreed_b
FROM (SELECT * FROM storage_vote_difference ORDER BY step, rid, batch, rank_a, rank_b LIMIT 1)

-- evidence: backups_part_first
-- says: each rank drained the acks of its backups by its own count ({rank_a} {value_a}; {rank_b} {value_b})
SELECT artifact, record, rank, quote, rank_a, value_a, rank_b, value_b FROM first_side WHERE stream = 'drain_storage' AND sub = 1
  AND NOT EXISTS (SELECT 1 FROM storage_vote_difference)
  AND NOT EXISTS (SELECT 1 FROM divergence x WHERE x.stream = 'settle' OR x.stream = 'drain_storage' AND x.sub = 0)

-- evidence: timeouts_part_first
-- says: a time-out took effect on {culprit} first ({rank_a} {value_a}; {rank_b} {value_b}): each rank asks its own clock
SELECT artifact, record, rank, quote, culprit, rank_a, value_a, rank_b, value_b FROM first_side WHERE stream = 'message' AND 2 IN (a_a, a_b)

-- evidence: timeouts_part_peers
-- says: and {rank} is a peer of the same stage
SELECT artifact, record, rank, quote FROM first_side WHERE stream = 'message' AND 2 IN (a_a, a_b) AND pp_a = pp_b

-- evidence: consensus_parts_first
-- says: a stage acted on something else than the agreed verdict ({stream} {ordinal}: {rank_a} {value_a}; {rank_b} {value_b})
SELECT artifact, record, rank, quote, stream, ordinal, rank_a, value_a, rank_b, value_b FROM first_side
WHERE stream = 'consensus' AND (coalesce(a_a, 0) <> coalesce(a_b, 0) OR a_a = a_b AND a_a > 0 AND d_a <> d_b) OR EXISTS (SELECT 1 FROM first_abort WHERE agreed)

-- evidence: abort_parts_first
-- says: the abort of request {rid} took effect on {stages} of {of_stages} stages, and the ranks part there ({rank_a} {value_a}; {rank_b} {value_b})
SELECT abort_artifact AS artifact, abort_record AS record, abort_rank AS rank, 'abort of ' || rid AS quote, rid, stages, of_stages, rank_a, value_a, rank_b, value_b
FROM first_abort
UNION ALL
SELECT artifact_b, record_b, rank_b, quote_b, rid, stages, of_stages, rank_a, value_a, rank_b, value_b FROM first_abort

-- evidence: bootstrap_seen
-- says: requests pass a bootstrap queue: the prefill side of a disaggregated pair
SELECT e.artifact, e.record, e.rank, e.kind || ' of request ' || e.key AS quote FROM event e
WHERE e.kind = 'consensus' OR e.kind = 'recv_msg' AND e.a = 5 ORDER BY e.rowid LIMIT 2

-- evidence: orphans_at_end
-- says: {rank} still holds {bootstrap} requests in its bootstrap queue, the first stage none
SELECT q.artifact, q.record, q.rank, 'bootstrap ' || q.bootstrap || ' at step ' || q.step AS quote, q.bootstrap FROM queue_end q
WHERE q.bootstrap > 0 AND q.pp > 0 AND EXISTS (SELECT 1 FROM queue_end f WHERE f.dp = q.dp AND f.pp = 0 AND f.bootstrap = 0)
  AND EXISTS (SELECT 1 FROM abort_effect x WHERE x.dp = q.dp) ORDER BY q.r LIMIT 4

-- evidence: abort_stayed_local
-- says: the abort of request {rid} took effect on {stages} of {of_stages} stages and never became a vote
SELECT artifact, record, rank, 'abort of ' || rid AS quote, rid, stages, of_stages FROM abort_effect
WHERE stages < of_stages AND NOT agreed AND NOT voted_bad ORDER BY step LIMIT 2

-- evidence: write_refused_first
-- says: {culprit} refused a write that its peer granted ({rank_a} {value_a}; {rank_b} {value_b}); nobody asks the others before (#31425, open)
SELECT artifact, record, rank, quote, culprit, rank_a, value_a, rank_b, value_b FROM first_side
WHERE stream = 'submission' AND sub = 0 AND (coalesce(c_a, 0) = 0) <> (coalesce(c_b, 0) = 0)

-- evidence: load_refused_first
-- says: {culprit} refused a load back that its peer granted ({rank_a} {value_a}; {rank_b} {value_b}); nobody asks the others before (#31425, open)
SELECT artifact, record, rank, quote, culprit, rank_a, value_a, rank_b, value_b FROM first_side
WHERE stream = 'submission' AND sub = 1 AND (coalesce(c_a, 0) = 0) <> (coalesce(c_b, 0) = 0)

-- evidence: refused_here_only
-- says: {rank} refused {tokens} tokens that {granted_rank} granted
SELECT artifact, record, rank, 'submission ' || ordinal || ' refused' AS quote, tokens, granted_rank FROM refused_alone ORDER BY step, e LIMIT 2

-- evidence: histories_unequal
-- says: {rank} had {granted} operations in its {queue} queue by then, {longer_rank} {longer}
SELECT NULL AS artifact, rank, granted, longer_rank, longer, (['write', 'load', 'prefetch', 'backup'])[queue + 1] AS queue
FROM shorter_history WHERE queue IN (0, 1) ORDER BY queue, longer - granted DESC, rank LIMIT 2

-- evidence: evict_tie_first
-- says: with equal submissions two nodes of equal stamp were evicted in another order ({rank_a} {value_a}; {rank_b} {value_b})
SELECT s.artifact, s.record, s.rank, s.quote, s.rank_a, s.value_a, s.rank_b, s.value_b FROM first_side s
JOIN evict_tie t ON t.lane = s.lane AND t.ordinal = s.ordinal AND t.rank_b = s.rank_b WHERE s.stream = 'evict' AND t.tie

-- evidence: evict_order_later
-- says: later, at step {step}, the ranks evicted in another order, by clocks of their own: an amplifier of the earlier difference, not its cause
SELECT d.artifact_b AS artifact, d.record_b AS record, d.rank_b AS rank, d.quote_b AS quote, d.step FROM stream_divergence d, first_divergence f
WHERE d.stream = 'evict' AND f.stream <> 'evict' AND d.step > f.step AND d.key_a IS DISTINCT FROM d.key_b AND EXISTS (SELECT 1 FROM own_clock)
ORDER BY d.step LIMIT 1

-- evidence: proxy_mismatch
-- says: {rank} received the hidden states of {received} tokens for a batch of {expected}
SELECT artifact, record, rank, 'forward ' || a || ': ' || b || ' tokens received, ' || c || ' expected' AS quote, b AS received, c AS expected
FROM event WHERE kind = 'proxy' AND b <> c ORDER BY step, rowid LIMIT 2

-- evidence: every_rank_waits
-- says: every rank waits at the end ({rank}: {quote})
SELECT artifact, record, rank, quote FROM rank_wait WHERE (SELECT count(DISTINCT r) FROM rank_wait) = (SELECT count(*) FROM event_rank)
  AND (SELECT count(*) FROM event_rank) > 1 ORDER BY r LIMIT 8

-- evidence: vote_alone_probe
-- says: {rank} is in a HiCache vote ({quote}) while a peer waits for the next requests
SELECT w.artifact, w.record, w.rank, w.quote FROM rank_wait w WHERE w.kind = 'collective' AND w.site IN (2, 3, 22)
  AND EXISTS (SELECT 1 FROM rank_wait o WHERE o.stage_group = w.stage_group AND o.r <> w.r AND o.site = 1) ORDER BY w.r LIMIT 4

-- evidence: prefetch_vote_alone_probe
-- says: {rank} votes about ending a prefetch ({quote}), a peer never entered that vote
SELECT w.artifact, w.record, w.rank, w.quote FROM rank_wait w WHERE w.kind = 'collective' AND w.site = 5
  AND EXISTS (SELECT 1 FROM rank_wait o WHERE o.stage_group = w.stage_group AND o.r <> w.r AND o.site <> 5
              AND NOT EXISTS (SELECT 1 FROM rank_wait x WHERE x.r = o.r AND x.site = 5))
ORDER BY w.r LIMIT 4

-- evidence: prefetch_vote_skipped
-- says: call {ordinal} of one group was {value_a} on {rank_a} and {value_b} on {rank_b}: the vote about ending a prefetch was taken on one of them only
SELECT artifact, record, rank, quote, ordinal, rank_a, value_a, rank_b, value_b FROM first_side WHERE stream = 'collective' AND d_a <> d_b AND 5 IN (d_a, d_b)

-- evidence: calls_mispaired
-- says: call {ordinal} of one group was {value_a} on {rank_a} and {value_b} on {rank_b}
SELECT artifact_b AS artifact, record_b AS record, rank_b AS rank, quote_b AS quote, ordinal, rank_a, value_a, rank_b, value_b
FROM stream_divergence WHERE stream = 'collective' AND d_a <> d_b
UNION ALL
SELECT artifact_a, record_a, rank_a, quote_a, ordinal, rank_a, value_a, rank_b, value_b FROM stream_divergence WHERE stream = 'collective' AND d_a <> d_b
LIMIT 4

-- evidence: forward_sizes_differ
-- says: {rank_a} and {rank_b} brought other sizes to one collective of the forward ({value_a}; {value_b})
SELECT artifact_b AS artifact, record_b AS record, rank_b AS rank, quote_b AS quote, rank_a, value_a, rank_b, value_b
FROM stream_divergence WHERE stream = 'collective' AND (sub = 2 OR d_a = 11) AND d_a = d_b AND c_a <> c_b
UNION ALL
SELECT artifact_a, record_a, rank_a, quote_a, rank_a, value_a, rank_b, value_b FROM stream_divergence
WHERE stream = 'collective' AND (sub = 2 OR d_a = 11) AND d_a = d_b AND c_a <> c_b
LIMIT 4

-- evidence: sends_held_grow
-- says: {rank} holds {held} sends after {calls} calls of pp_sync and {batches} batches: they grow with the calls, not with the traffic
SELECT artifact, record, rank, 'held ' || held || ', sync_calls ' || calls || ', batches ' || batches AS quote, held, calls, batches
FROM sends_growth WHERE held >= 16 AND grown_idle >= 8 AND held * 2 >= calls ORDER BY pp, rank LIMIT 4

-- evidence: tokens_never_return
-- says: {tokens} tokens of the prefetch budget of {rank} stay occupied with no prefetch in flight
SELECT artifact, record, rank, 'tokens_occupied ' || tokens_occupied || ', prefetching 0 at step ' || step AS quote, tokens_occupied AS tokens
FROM queue_end WHERE prefetching = 0 AND tokens_occupied > 0 ORDER BY r LIMIT 4

-- evidence: prefetch_kept
-- says: {rank} keeps {prefetching} prefetches registered, though no request has waited for {steps} steps: what an abort takes away must end its prefetch too
SELECT artifact, record, rank, 'prefetching ' || prefetching || ', waiting 0, bootstrap 0 at step ' || step AS quote, prefetching, idle_steps AS steps
FROM queue_end WHERE prefetching > 0 AND waiting = 0 AND bootstrap = 0 AND idle_steps >= 64 ORDER BY r LIMIT 4

-- evidence: acks_never_drained
-- says: {left} writes of {rank} were submitted and never drained; it has not looked for {steps} steps: events are not drained when idle, so L3 never gets the pages
SELECT artifact, record, rank, 'submitted ' || granted || ', drained ' || drained || ' by step ' || step AS quote, granted - drained AS left, steps_since AS steps
FROM acks_end WHERE granted > drained AND steps_since >= 16 ORDER BY rank LIMIT 4

-- evidence: verdict_never_came
-- says: request {rid} and {others} others have waited in the bootstrap queue of {rank} without a verdict, {later} later requests got theirs
SELECT w.artifact, w.record, w.rank, 'request ' || w.key || ' since step ' || w.step AS quote, w.key AS rid, w.n - 1 AS others, w.later
FROM (
  SELECT e.*, p.r, count(*) OVER (PARTITION BY e.rank) AS n,
         (SELECT count(*) FROM event c WHERE c.kind = 'consensus' AND c.rank = e.rank AND c.step > e.step + 16) AS later
  FROM event e JOIN event_rank p USING (rank)
  WHERE e.kind = 'recv_msg' AND e.a = 0 AND p.last_step > e.step + 64
    AND EXISTS (SELECT 1 FROM queue_end q WHERE q.r = p.r AND q.bootstrap > 0)
    AND NOT EXISTS (SELECT 1 FROM event c WHERE c.kind IN ('consensus', 'finish') AND c.rank = e.rank AND c.key = e.key)) w
WHERE w.later >= 4 ORDER BY w.r, w.step, w.key LIMIT 4

-- evidence: sync_call_skipped
-- says: {rank} waits in _pp_sync for count {n} of {upstream}, which sent {sent} and went on: it skipped the call
WITH waits AS (
  SELECT rank, artifact, at_line AS line, line_end, NULL AS record, quote FROM place WHERE source <> 'traceback' AND place LIKE 'pp_sync_recv%'
  UNION ALL SELECT rank, artifact, NULL, NULL, record, quote FROM rank_wait WHERE site = 6),
links AS (
  SELECT w.*, p.r, q.r AS up, q.rank AS upstream,
         (SELECT count(*) FROM event e WHERE e.kind = 'recv' AND e.b = 6 AND e.rank = p.rank) AS n,
         (SELECT count(*) FROM event e WHERE e.kind = 'send' AND e.b = 6 AND e.rank = q.rank) AS sent
  FROM waits w JOIN event_rank p USING (rank)
  JOIN event_rank q ON q.dp = p.dp AND q.cp = p.cp AND q.tp = p.tp AND q.pp = p.pp - 1 AND q.last_step >= p.last_step
  WHERE q.rank NOT IN (SELECT rank FROM waits))
SELECT * EXCLUDE (r, up) FROM links WHERE sent < n ORDER BY r LIMIT 2

-- evidence: refusal_made_reachable
-- says: as long as every rank submits the same, all of them skip that call alike; the write that only {culprit} refused (#31425, open) made the difference, the call that may be skipped made it a hang
SELECT artifact, record, rank, quote, culprit FROM first_side
WHERE stream = 'submission' AND sub IN (0, 1) AND (coalesce(c_a, 0) = 0) <> (coalesce(c_b, 0) = 0)

-- evidence: foreign_page_read
-- says: {rank} read a page of another place for request {rid} (page {page})
SELECT artifact, record, rank, 'page_index ' || a || ': found ' || b || ', expected ' || c AS quote, key AS rid, a AS page
FROM event WHERE kind = 'foreign_page' ORDER BY step, rowid LIMIT 4

-- evidence: storage_key_shared
-- says: {rank} and {other} use one key for their pages of L3
SELECT e.artifact, e.record, p.rank, 'storage_key ' || e.a AS quote, o.rank AS other FROM event e JOIN event_rank p USING (rank)
JOIN event x ON x.kind = 'start' AND x.key = 8 AND x.a = e.a AND x.b = e.b JOIN event_rank o ON o.rank = x.rank AND o.dp = p.dp AND o.pp > p.pp AND o.tp = p.tp AND o.cp = p.cp
WHERE e.kind = 'start' AND e.key = 8 LIMIT 2

-- evidence: mooncake_backend
-- says: the storage backend is mooncake
SELECT artifact, line, line AS line_end, quote FROM cfg WHERE key = 'hicache_storage_backend' AND value = 'mooncake'

-- evidence: file_backend
-- says: the storage backend keeps files
SELECT artifact, line, line AS line_end, quote FROM cfg WHERE key = 'hicache_storage_backend' AND value = 'file'

-- evidence: group_lists_differ
-- says: {rank} and {other} make the {role} group from different lists of ranks
SELECT b.artifact, b.record, b.rank, 'new_group of ' || b.size || ' ranks' AS quote, a.rank AS other, b.role_name AS role
FROM (SELECT *, (['tp', 'fwd', 'hits_tp', 'hits_cp', 'hits_pp', 'acks_tp', 'acks_cp', 'acks_pp', 'cp', 'mlp_sync', 'world', 'pp'])[role] AS role_name,
             max(n) OVER (PARTITION BY r, role) AS lists FROM group_list) b
JOIN (SELECT *, max(n) OVER (PARTITION BY r, role) AS lists FROM group_list) a
  ON a.role = b.role AND a.n = b.n AND a.r < b.r AND a.members <> b.members AND (a.inst = b.inst OR a.lists > 1 AND b.lists > 1)
ORDER BY b.role, b.n, a.r, b.r LIMIT 4

-- evidence: profile_never_came
-- says: {rank} waits for a dynamic-chunk profile that the first stage never sent
SELECT w.artifact, w.record, w.rank, w.quote FROM rank_wait w WHERE w.site = 12 AND w.pp > 0
  AND NOT EXISTS (SELECT 1 FROM rank_wait o WHERE o.dp = w.dp AND o.pp = 0 AND o.site = 12) ORDER BY w.r LIMIT 4

-- evidence: streams_to_the_end
-- says: all {n} ranks made the same decisions in {batches} batches, to the end
-- known: SELECT count(*) > 1 FROM event_rank
SELECT e.artifact, e.record, p.rank, e.kind || ' at step ' || e.step AS quote, count(*) OVER () AS n, min(k.batches) OVER () AS batches
FROM event_rank p JOIN event e ON e.rowid = p.last_event
JOIN (SELECT r, count(DISTINCT k1) AS batches, max(k1) AS last FROM decision_row WHERE stream = 9 GROUP BY r) k ON k.r = p.r
WHERE NOT EXISTS (SELECT 1 FROM divergence WHERE sure) AND NOT EXISTS (SELECT 1 FROM missing_rank)
QUALIFY count(*) OVER () = (SELECT (max(dp) + 1) * (max(pp) + 1) * (max(cp) + 1) * (max(tp) + 1) FROM event_rank)
  AND count(*) OVER () > 1 AND min(k.batches) OVER () >= 8
  AND (max(k.last) OVER () - min(k.last) OVER () <= (SELECT max(pp) + 1 FROM event_rank)
       OR (SELECT count(DISTINCT rank) FROM event WHERE kind = 'recv_msg' AND a = 4) = count(*) OVER ())

-- evidence: vote_parties
-- says: {rank} is one of those that voted another number of times
SELECT w.artifact, w.record, w.rank, w.quote FROM rank_wait w WHERE w.site IN (1, 2, 3, 22)
  AND EXISTS (SELECT 1 FROM rank_wait o WHERE o.stage_group = w.stage_group AND (o.site = 1) <> (w.site = 1) AND o.site IN (1, 2, 3, 22))
ORDER BY w.r LIMIT 8

-- evidence: parted_peers
-- says: {rank} is a side of the first difference, inside one stage
SELECT artifact, record, rank, quote FROM first_side WHERE pp_a = pp_b
