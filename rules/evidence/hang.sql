-- Who stands where. Only the combination over ranks is evidence: a rank parked in recv_requests looks like an idle one.
-- `standing` leaves out tracebacks and every rank that moved between its last dumps: it goes on.

-- evidence: hang_seen
-- says: no rank raised an error, but progress stopped
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind IN ('watchdog_timeout', 'nccl_timeout', 'gloo_timeout', 'hccl_timeout')
UNION ALL
SELECT artifact, line, line_end, rank, ts, text FROM log WHERE kind = 'nccl_pg_status' AND text LIKE '%watchdog at work%'
UNION ALL
SELECT artifact, line, line_end, NULL, ts, text FROM log WHERE kind = 'frtrace_missing_ranks'
UNION ALL
SELECT artifact, line, line_end, rank, ts, text FROM log WHERE kind IN ('nccl_dump_status', 'nccl_desync', 'nccl_desync_never', 'nccl_watchdog_stuck')
UNION ALL
SELECT artifact, line, line_end, NULL, ts, text FROM ras_stuck
UNION ALL
SELECT artifact, line, line, rank, NULL, name || ' stands at ' || CAST(last AS BIGINT) FROM token_stop
LIMIT 3

-- evidence: stacks_waiting
-- says: {rank} is parked in {quote}
SELECT artifact, at_line AS line, line_end, rank, ts, quote FROM standing WHERE waits_for <> 'none' ORDER BY rank LIMIT 8

-- evidence: write_vote_alone
-- says: {rank} waits in the vote of {function}, its peers never entered it
SELECT p.artifact, p.at_line AS line, p.line_end, p.rank, p.ts, p.quote, p.function, p.tree FROM standing p
WHERE p.place IN ('write_vote', 'load_vote', 'hicache_vote') AND EXISTS (
  SELECT 1 FROM standing q WHERE q.place = 'recv_requests' AND q.rank IS DISTINCT FROM p.rank
    AND regexp_extract(coalesce(q.rank, ''), 'PP\d+') = regexp_extract(coalesce(p.rank, ''), 'PP\d+')
    AND regexp_extract(coalesce(q.rank, ''), '\bDP\d+') = regexp_extract(coalesce(p.rank, ''), '\bDP\d+')
    AND NOT EXISTS (SELECT 1 FROM excused x WHERE x.rank = p.rank AND x.peer = q.rank))
ORDER BY p.dump DESC, p.rank LIMIT 4

-- evidence: peers_in_broadcast
-- says: {rank} skipped it and waits for the next requests
SELECT q.artifact, q.at_line AS line, q.line_end, q.rank, q.ts, q.quote FROM standing q
WHERE q.place = 'recv_requests' AND EXISTS (
  SELECT 1 FROM standing p WHERE p.place IN ('write_vote', 'load_vote', 'hicache_vote', 'prefetch_vote') AND q.rank IS DISTINCT FROM p.rank
    AND regexp_extract(coalesce(q.rank, ''), 'PP\d+') = regexp_extract(coalesce(p.rank, ''), 'PP\d+')
    AND NOT EXISTS (SELECT 1 FROM excused x WHERE x.rank = p.rank AND x.peer = q.rank))
ORDER BY q.dump DESC, q.rank LIMIT 8

-- evidence: vote_seen_alone
-- says: {rank} stands in the vote of {function}, but no other rank of its group is shown
SELECT artifact, at_line AS line, line_end, rank, ts, quote, function FROM standing p
WHERE place IN ('write_vote', 'load_vote', 'hicache_vote', 'prefetch_vote') AND rank NOT IN (SELECT rank FROM excused) LIMIT 4

-- evidence: prefetch_vote_alone
-- says: {rank} votes about ending a prefetch, its peers never entered the vote
SELECT p.artifact, p.at_line AS line, p.line_end, p.rank, p.ts, p.quote, p.function, p.tree FROM standing p
WHERE p.place = 'prefetch_vote' AND EXISTS (
  SELECT 1 FROM standing q WHERE (q.place = 'recv_requests' OR q.innermost LIKE '%futex%') AND q.rank IS DISTINCT FROM p.rank
    AND regexp_extract(coalesce(q.rank, ''), 'PP\d+') = regexp_extract(coalesce(p.rank, ''), 'PP\d+')
    AND regexp_extract(coalesce(q.rank, ''), '\bDP\d+') = regexp_extract(coalesce(p.rank, ''), '\bDP\d+')
    AND NOT EXISTS (SELECT 1 FROM excused x WHERE x.rank = p.rank AND x.peer = q.rank))
ORDER BY p.dump DESC, p.rank LIMIT 4

-- evidence: prefetch_vote_all
-- says: every rank that was seen waits in gloo inside the prefetch vote, with nothing in the log
SELECT any_value(artifact) AS artifact, min(at_line) AS line, any_value(quote) AS quote, any_value(rank) AS rank FROM standing HAVING count(DISTINCT rank) > 1 AND bool_and(place IN ('prefetch_vote', 'pp_sync_recv_in_prefetch_vote'))

-- evidence: waiting_downstream_stage
-- says: {rank} waits for a message of the stage before it and is a victim
SELECT artifact, at_line AS line, line_end, rank, ts, quote FROM standing
WHERE (waits_for = 'upstream') AND try_cast(regexp_extract(rank, 'PP(\d+)', 1) AS INT) > 0 ORDER BY rank LIMIT 4

-- evidence: drain_wait
-- says: {rank} is held back in _drain_async_work by a stage behind it
SELECT artifact, at_line AS line, line_end, rank, ts, quote FROM standing WHERE place = 'drain_async_work' LIMIT 2

-- evidence: pp_sync_wait
-- says: {rank} waits in _pp_sync for the count of the stage before it
SELECT artifact, at_line AS line, line_end, rank, ts, quote FROM standing WHERE place LIKE 'pp_sync_recv%' LIMIT 3

-- evidence: stages_in_different_p2p
-- says: the stages wait in different point-to-point slots
SELECT artifact, at_line AS line, line_end, rank, ts, quote FROM standing
WHERE place IN ('pp_recv_pyobj', 'pp_recv_proxy', 'pp_recv_output', 'pp_commit_send', 'pp_recv_requests')
  AND (SELECT count(DISTINCT place) FROM standing WHERE place IN ('pp_recv_pyobj', 'pp_recv_proxy', 'pp_recv_output', 'pp_commit_send', 'pp_recv_requests')) >= 2
  AND (SELECT count(DISTINCT regexp_extract(rank, 'PP\d+')) FROM standing WHERE place LIKE 'pp_%') >= 2
ORDER BY rank LIMIT 8

-- evidence: disagg_prefill_loop
-- says: the loop is that of a disaggregated prefill instance
SELECT artifact, at_line AS line, line_end, rank, ts, quote FROM place WHERE frames LIKE '%event_loop_pp_disagg_prefill%' LIMIT 1

-- evidence: hicache_vote_against_pp_recv
-- says: the first stage is inside a HiCache collective while a later stage waits for its tensors
-- (the whole stage as far as it is shown: a vote that a peer of the stage has not entered is another matter)
SELECT p.artifact, p.at_line AS line, p.line_end, p.rank, p.ts, p.quote FROM standing p
WHERE p.place IN ('write_vote', 'load_vote', 'hicache_vote') AND regexp_extract(p.rank, 'PP(\d+)', 1) = '0'
  AND EXISTS (SELECT 1 FROM standing q WHERE q.place LIKE 'pp_recv%' AND regexp_extract(q.rank, 'PP(\d+)', 1) <> '0')
  AND NOT EXISTS (SELECT 1 FROM standing q WHERE (q.place = 'recv_requests'
    OR regexp_extract(q.rank, 'PP(\d+)', 1) = '0' AND q.place LIKE 'pp_recv%'))
LIMIT 2

-- evidence: gpu_collective_all
-- says: all ranks are inside the same GPU collective
SELECT any_value(artifact) AS artifact, min(at_line) AS line, any_value(quote) AS quote, any_value(rank) AS rank FROM standing HAVING count(DISTINCT rank) > 1 AND bool_and(place IN ('gpu_collective'))

-- evidence: numel_differs
-- says: at the same sequence number the ranks of one stage bring different sizes
-- (each stage has groups of its own that count from 0; a global rank belongs to the stage of its tp_size ranks)
WITH late AS (
  SELECT l.*, (fields->>'seq') AS seq, (fields->>'op') AS op, (fields->>'numel_in') AS numel,
         coalesce(nullif(regexp_extract(rank, 'PP\d+'), ''),
                  CAST(try_cast(regexp_extract(rank, '^rank (\d+)', 1) AS BIGINT)
                       // greatest(1, (SELECT max(try_cast(value AS BIGINT)) FROM cfg WHERE key = 'tp_size')) AS VARCHAR), '') AS stage
  FROM log l WHERE kind = 'nccl_timeout')
SELECT a.artifact, a.line, a.line_end, a.rank, a.ts, a.text AS quote FROM late a JOIN late b ON a.seq = b.seq AND a.op = b.op
  AND a.stage = b.stage AND a.numel <> b.numel AND a.op NOT IN ('SEND', 'RECV')
ORDER BY a.artifact, a.line LIMIT 4

-- evidence: recorder_size_mismatch
-- says: the recorder's analyser found two sizes at one sequence number
SELECT artifact, line, line_end, NULL AS rank, ts, text AS quote FROM log WHERE kind = 'frtrace_error' AND text LIKE '%SIZE%' LIMIT 2

-- evidence: new_group_wait
-- says: {rank} hangs at start-up while groups are made
SELECT artifact, at_line AS line, line_end, rank, ts, quote FROM standing WHERE place = 'new_group' LIMIT 3

-- evidence: object_broadcast_wait
-- says: {rank} waits at start-up for objects that the first stage never sent
SELECT artifact, at_line AS line, line_end, rank, ts, quote FROM place WHERE place = 'broadcast_objects' AND try_cast(regexp_extract(rank, 'PP(\d+)', 1) AS INT) > 0 LIMIT 3

-- evidence: spec_place
-- says: {rank} is in the verification of speculative decoding
SELECT artifact, at_line AS line, line_end, rank, ts, quote FROM place WHERE place = 'spec_verify' LIMIT 2

-- evidence: same_collective_everywhere
-- says: {n} ranks wait at the same sequence number of the same collective
SELECT a.artifact, a.line, a.line_end, a.rank, a.ts, a.text AS quote, k.n FROM log a JOIN (
  SELECT (fields->>'seq') AS seq, (fields->>'op') AS op, count(DISTINCT rank) AS n FROM log WHERE kind = 'nccl_timeout' GROUP BY ALL) k
  ON (a.fields->>'seq') = k.seq AND (a.fields->>'op') = k.op
WHERE a.kind = 'nccl_timeout' AND k.n >= 3 AND (SELECT count(DISTINCT (fields->>'seq')) FROM log WHERE kind = 'nccl_timeout') <= 2
UNION ALL
SELECT a.artifact, a.line, a.line_end, a.rank, a.ts, a.text, k.n FROM log a JOIN (
  SELECT (fields->>'work') AS work, count(DISTINCT rank) AS n FROM log WHERE kind = 'nccl_pg_status' AND (fields->>'work') IS NOT NULL GROUP BY ALL) k
  ON (a.fields->>'work') = k.work WHERE a.kind = 'nccl_pg_status' AND k.n >= 3
  AND (SELECT count(DISTINCT (fields->>'work')) FROM log WHERE kind = 'nccl_pg_status' AND (fields->>'work') IS NOT NULL) = 1
ORDER BY 1, 2 LIMIT 4

-- evidence: several_nodes
-- says: the deployment spans {value} nodes
SELECT artifact, line, line AS line_end, quote, value FROM cfg WHERE key = 'nnodes' AND try_cast(value AS INT) > 1

-- evidence: network_error
-- says: the network layer reports an error
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind IN ('nccl_net_warn') AND regexp_matches(text, 'NET/|Got completion|ibv_|vendor err|Connection') LIMIT 3

-- evidence: eviction_never_ran
-- says: the pool has {available} tokens free and {evictable} evictable: the scheduler stopped before eviction, the pool is not exhausted
SELECT artifact, line, line_end, rank, ts, text AS quote, coalesce(fields->>'available', (fields->>'available2')) AS available, coalesce(fields->>'evictable', (fields->>'evictable2')) AS evictable
FROM log WHERE kind = 'pool_state' AND CAST(coalesce(fields->>'total', (fields->>'total2')) AS DOUBLE) > 0
  AND CAST(coalesce(fields->>'available', (fields->>'available2')) AS DOUBLE) / CAST(coalesce(fields->>'total', (fields->>'total2')) AS DOUBLE) < 0.02
  AND CAST(coalesce(fields->>'evictable', (fields->>'evictable2')) AS DOUBLE) / CAST(coalesce(fields->>'total', (fields->>'total2')) AS DOUBLE) > 0.6
LIMIT 2

-- evidence: pool_empty_warmup
-- says: the cache was empty when it stopped
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'pool_state'
  AND CAST(coalesce(fields->>'evictable', (fields->>'evictable2')) AS DOUBLE) = 0
  AND CAST(coalesce(fields->>'available', (fields->>'available2')) AS DOUBLE) / nullif(CAST(coalesce(fields->>'total', (fields->>'total2')) AS DOUBLE), 0) > 0.98 LIMIT 2

-- evidence: stacks_refused
-- says: no stack could be taken
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'pyspy_failed' LIMIT 3

-- evidence: waiting_upstream
-- says: {rank} waits for the stage before it
SELECT artifact, at_line AS line, line_end, rank, ts, quote FROM standing WHERE waits_for = 'upstream' ORDER BY rank LIMIT 4

-- evidence: stacks_of_all
-- says: stacks of all {n} ranks are here
SELECT NULL AS artifact, count(DISTINCT rank) AS n FROM place WHERE source <> 'traceback'
HAVING count(DISTINCT rank) > 1 AND NOT EXISTS (SELECT 1 FROM missing_rank)
   AND count(DISTINCT rank) >= (SELECT count(*) FROM rank)

-- evidence: stack_places
-- says: {rank} stands in {quote}
SELECT artifact, line, line_end, rank, ts, quote FROM place WHERE source <> 'traceback' ORDER BY dump DESC, rank LIMIT 4

-- evidence: sink_rank
-- says: {rank} is the only one that waits for nobody ({quote})
SELECT NULL AS artifact, NULL AS line, NULL AS line_end, rank, NULL AS ts, 'no dump shows it, and all others wait' AS quote FROM (
  SELECT id AS rank FROM rank WHERE id NOT LIKE 'rank %' UNION SELECT rank FROM missing_rank)
WHERE rank NOT IN (SELECT rank FROM place WHERE source <> 'traceback' AND rank IS NOT NULL)
  AND (SELECT count(*) FROM (SELECT id AS rank FROM rank WHERE id NOT LIKE 'rank %' UNION SELECT rank FROM missing_rank) k
       WHERE k.rank NOT IN (SELECT rank FROM place WHERE source <> 'traceback' AND rank IS NOT NULL)) = 1
  AND (SELECT count(DISTINCT rank) FROM standing WHERE waits_for <> 'none') >= 2
  AND NOT EXISTS (SELECT 1 FROM standing WHERE waits_for = 'none')
UNION ALL
SELECT artifact, at_line AS line, line_end, rank, ts, quote FROM standing WHERE waits_for = 'none' AND rank IS NOT NULL
  AND (SELECT count(DISTINCT rank) FROM standing WHERE waits_for = 'none') = 1
  AND (SELECT count(DISTINCT rank) FROM standing WHERE waits_for <> 'none') >= 1
LIMIT 2

-- evidence: hccl_timeout
-- says: the collective library of the NPU timed out
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'hccl_timeout' LIMIT 3

-- evidence: profile_given_up
-- says: {rank} waits for a profile that {other} gave up
SELECT p.artifact, p.at_line AS line, p.line_end, p.rank, p.ts, p.quote, l.rank AS other FROM standing p
JOIN log l ON l.kind = 'dynamic_chunk' AND regexp_matches(lower(l.text), 'fail|fall') AND try_cast(regexp_extract(l.rank, 'PP(\d+)', 1) AS INT) = 0
WHERE p.place = 'broadcast_objects' AND try_cast(regexp_extract(p.rank, 'PP(\d+)', 1) AS INT) > 0
ORDER BY p.rank LIMIT 3

-- evidence: rank_stuck
-- says: {rank} stands in the same frames in {n} dumps{over}
-- (an idle scheduler shows the same frames, too: that is no sign of anything)
SELECT artifact, line, line_end, record, rank, ts, quote, same AS n, CASE WHEN seconds >= 1 THEN ' over ' || CAST(round(seconds) AS BIGINT) || ' s' ELSE '' END AS over
FROM stack_change WHERE main AND NOT moved AND NOT idle ORDER BY seconds DESC NULLS LAST, rank LIMIT 8

-- evidence: rank_moved
-- says: {rank} moved between the dumps: it is slow, not stuck
SELECT artifact, line, line_end, record, rank, ts, quote FROM stack_change WHERE main AND moved AND NOT idle ORDER BY rank LIMIT 8

-- evidence: all_moved
-- says: all {n} ranks that were dumped twice moved between the dumps
SELECT any_value(artifact) AS artifact, min(line) AS line, any_value(quote) AS quote, any_value(rank) AS rank, count(*) AS n
FROM stack_change WHERE main AND NOT idle HAVING count(*) > 0 AND bool_and(moved)

-- evidence: rank_idle
-- says: {rank} only looks for requests in all {n} dumps
SELECT artifact, line, line_end, record, rank, ts, quote, dumps AS n FROM stack_change WHERE main AND idle ORDER BY rank LIMIT 8

-- evidence: all_wait_on_gpu
-- says: all {n} ranks wait for their GPUs
SELECT artifact, at_line AS line, line_end, record, rank, ts, quote, (SELECT count(DISTINCT rank) FROM standing) AS n FROM standing
WHERE (SELECT count(DISTINCT rank) > 1 AND bool_and(side = 'gpu') FROM standing) ORDER BY rank LIMIT 8

-- evidence: one_off_the_gpu
-- says: {rank} is the only one that does not wait for its GPU: {what} in {quote}
SELECT artifact, at_line AS line, line_end, record, rank, ts, quote,
       CASE side WHEN 'cpu' THEN 'it is on the CPU' WHEN 'disk' THEN 'it waits for the disk' WHEN 'idle' THEN 'it looks for requests'
                 ELSE 'it waits for another process' END AS what
FROM standing WHERE side <> 'gpu' AND rank IS NOT NULL
  AND (SELECT count(DISTINCT rank) FROM standing WHERE side <> 'gpu') = 1 AND (SELECT count(DISTINCT rank) FROM standing WHERE side = 'gpu') >= 1
  AND rank NOT IN (SELECT rank FROM standing WHERE side = 'gpu' AND rank IS NOT NULL)
ORDER BY dump DESC LIMIT 2
