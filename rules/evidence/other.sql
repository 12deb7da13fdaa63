-- Memory, hardware, start-up, storage, requests, and what a healthy deployment shows.

-- evidence: gpu_fault
-- says: a GPU fault
-- (hardware, firmware or a link, or CUDA itself says it; nothing that is noted while work goes on, nothing from days before)
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log
WHERE (kind = 'kernel_xid' AND (fields->>'family') = 'hardware' OR kind = 'kernel_sxid' AND (fields->>'fatal') = 'true'
    OR kind IN ('kernel_gpu', 'nvidia_smi_fault') OR kind = 'kernel_aer' AND (fields->>'driver') = 'nvidia' AND (fields->>'corrected') = 'false')
  AND (ts IS NULL OR ts > coalesce((SELECT min(ts) FROM log WHERE kind NOT LIKE 'kernel_%' AND ts IS NOT NULL), 0) - 86400)
UNION ALL
SELECT artifact, line, line_end, rank, ts, text FROM log WHERE kind = 'cuda_illegal_access' AND (fields->>'what') NOT LIKE '%device-side assert%'
LIMIT 4

-- evidence: gpu_program_fault
-- says: the driver reports a fault of a program on GPU {pci} (Xid {xid}: {meaning}), which is no fault of the GPU by itself
-- (not the driver's clean-up after a killed process, nothing from days before)
SELECT artifact, line, line_end, rank, ts, text AS quote, coalesce(fields->>'pci', '?') AS pci, (fields->>'xid') AS xid, coalesce(fields->>'meaning', 'not in the catalogue') AS meaning
FROM log WHERE kind = 'kernel_xid' AND (fields->>'family') IN ('application', 'unknown')
  AND (ts IS NULL OR ts > coalesce((SELECT min(ts) FROM log WHERE kind NOT LIKE 'kernel_%' AND ts IS NOT NULL), 0) - 86400)
LIMIT 4

-- evidence: gpu_cleanup_only
-- says: Xid {xid} only tells that the driver cleaned up after something else
SELECT artifact, line, line_end, rank, ts, text AS quote, (fields->>'xid') AS xid FROM log
WHERE kind = 'kernel_xid' AND (fields->>'family') = 'by_product' LIMIT 2

-- evidence: machine_fault
-- says: the machine's hardware reports an error that was not corrected
SELECT artifact, line, line_end, NULL AS rank, ts, text AS quote FROM log
WHERE kind IN ('kernel_mce', 'kernel_aer') AND (fields->>'corrected') = 'false'
  AND (ts IS NULL OR ts > coalesce((SELECT min(ts) FROM log WHERE kind NOT LIKE 'kernel_%' AND ts IS NOT NULL), 0) - 86400)
LIMIT 3

-- evidence: spec_error
-- says: {rank} failed in the verification of speculative decoding
SELECT e.artifact, e.line, e.line_end, e.rank, e.ts, e.type || ': ' || e.message AS quote FROM rank_role e
JOIN exception x ON x.artifact = e.artifact AND x.line = e.line JOIN frame f ON f.stack = x.stack
WHERE e.role = 'first' AND f.file LIKE '%/speculative/%' AND f.depth <= 4 LIMIT 1

-- evidence: device_assert
-- says: a device-side assertion failed
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'device_assert' OR (kind = 'cuda_illegal_access' AND (fields->>'what') LIKE '%device-side assert%') LIMIT 2

-- evidence: pool_exhausted
-- says: the device pool was really full
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'out_of_slots'
  AND NOT EXISTS (SELECT 1 FROM log d WHERE d.kind = 'out_of_slots_detail' AND CAST(d.fields->>'evictable' AS DOUBLE) > 4 * CAST(d.fields->>'free' AS DOUBLE) AND CAST(d.fields->>'evictable' AS DOUBLE) > 50000)
LIMIT 2

-- evidence: pool_exhausted_detail
-- says: hardly anything was evictable
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'out_of_slots_detail' LIMIT 1

-- evidence: gpu_memory_full
-- says: the GPU's memory is full
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'cuda_oom' LIMIT 2

-- evidence: host_oom_kill
-- says: the kernel killed the process for memory
-- (SGLang's own processes; another program's death says nothing here)
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log
WHERE kind = 'pod_oom_killed' OR kind = 'kernel_oom_kill' AND (rank IS NOT NULL OR regexp_matches(coalesce(fields->>'name', ''), 'sglang|python|pt_main|scheduler|ray::|launch'))
  AND (ts IS NULL OR ts > coalesce((SELECT min(ts) FROM log WHERE kind NOT LIKE 'kernel_%' AND ts IS NOT NULL), 0) - 86400)
LIMIT 3

-- evidence: host_alloc_failed
-- says: host memory could not be allocated
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'host_alloc_failed' LIMIT 2

-- evidence: rss_grows_first_stage
-- says: only the first stage grows: {rank} by {gb} GB an hour over {h} h
-- known: SELECT count(*) > 0 FROM rss_slope WHERE rank LIKE '%PP%'
SELECT s.artifact, s.line, s.line AS line_end, s.rank, printf('%s rss %.1f GB to %.1f GB', s.rank, s.lowest / 1e9, s.highest / 1e9) AS quote,
       printf('%.1f', s.per_hour / 1e9) AS gb, printf('%.1f', s.hours) AS h FROM rss_slope s
WHERE regexp_extract(s.rank, 'PP(\d+)', 1) = '0' AND s.per_hour > 5e8 AND s.r2 > 0.8
  AND NOT EXISTS (SELECT 1 FROM rss_slope o WHERE regexp_extract(o.rank, 'PP(\d+)', 1) <> '0' AND abs(o.per_hour) > 0.25 * s.per_hour)
  AND EXISTS (SELECT 1 FROM rss_slope o WHERE regexp_extract(o.rank, 'PP(\d+)', 1) <> '0')
ORDER BY s.rank LIMIT 3

-- evidence: rss_grows_when_idle
-- says: it grows in the hours without requests too
-- known: SELECT count(*) > 0 FROM rss_slope_idle WHERE idle AND n >= 3
SELECT s.artifact, s.line, s.rank, s.rank || ' grows while idle' AS quote FROM rss_slope_idle i JOIN rss_slope s ON s.rank IS NOT DISTINCT FROM i.rank AND s.pid IS NOT DISTINCT FROM i.pid
WHERE i.idle AND i.n >= 3 AND i.per_hour > 0.4 * s.per_hour AND s.per_hour > 5e8 LIMIT 2

-- evidence: rss_grows_with_load
-- says: memory grows with the load and stands still without it
SELECT s.artifact, s.line, s.line AS line_end, s.rank, printf('rss %.1f GB to %.1f GB', s.lowest / 1e9, s.highest / 1e9) AS quote FROM rss_slope s
WHERE s.growth > 2e9 AND NOT EXISTS (SELECT 1 FROM rss_slope o WHERE o.rank LIKE '%PP%') LIMIT 2

-- evidence: pp_sync_allocations
-- says: the live allocations are the sends of the PP count exchange
SELECT artifact, line, line AS line_end, rank, (labels->>'function') || ' ' || coalesce(labels->>'file', '') AS quote FROM sample
WHERE name = 'memray_live_bytes' AND (labels->>'function') IN ('_pp_sync', 'isend') ORDER BY (labels->>'function') LIMIT 4

-- evidence: startup_error
-- says: it failed while starting
SELECT r.artifact, r.line, r.line_end, r.rank, r.ts, r.quote FROM rank_role r JOIN exception x ON x.artifact = r.artifact AND x.line = r.line
WHERE r.role = 'first' AND EXISTS (SELECT 1 FROM frame f WHERE f.stack = x.stack AND f.function = '__init__')
  AND NOT EXISTS (SELECT 1 FROM frame f WHERE f.stack = x.stack AND f.function LIKE 'event_loop%') LIMIT 2

-- evidence: handshake_refused
-- says: a peer's port was not open yet
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'handshake_refused' LIMIT 2

-- evidence: storage_thread_died
-- says: the background thread {thread} of the storage tier died, the scheduler went on without it
SELECT e.artifact, p.at_line AS line, e.line_end, e.rank, e.ts, e.type || ': ' || e.message || ' in ' || p.function AS quote, e.thread
FROM exception e LEFT JOIN (SELECT s.id, f.at_line, f.function FROM stack s JOIN frame f ON f.stack = s.id AND f.depth = 0) p ON p.id = e.stack
WHERE e.thread IS NOT NULL AND regexp_matches(e.thread, 'prefetch|backup|storage|hicache|write_thread|load_thread') LIMIT 2

-- evidence: storage_pages_skipped
-- says: pages beyond the backend's buffer are neither written nor read
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'storage_skipped_pages' LIMIT 2

-- evidence: storage_write_failed
-- says: pages were not written to L3
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'storage_write_failed' LIMIT 2

-- evidence: prefetch_never_returns
-- says: `occupied` of the prefetch buffer of {rank} no longer returns to 0
-- known: SELECT count(*) >= 10 FROM prefetch
SELECT any_value(artifact) AS artifact, max(line) AS line, rank, arg_max(text, line) AS quote
FROM (SELECT *, row_number() OVER (PARTITION BY rank ORDER BY line DESC) AS back FROM prefetch)
WHERE back <= 10 GROUP BY rank HAVING count(*) = 10 AND min(occupied) > 0

-- evidence: load_back_failed
-- says: {rank} could not load {tokens} tokens back from the host
SELECT artifact, line, line_end, rank, ts, text AS quote, (fields->>'tokens') AS tokens FROM log WHERE kind = 'load_back_failed' ORDER BY line DESC LIMIT 2

-- evidence: port_in_use
-- says: a port was in use
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'port_in_use' LIMIT 2

-- evidence: prefetch_all_zero
-- says: nothing is ever loaded from L3 ({n} settled prefetches, all 0)
-- known: SELECT count(*) >= 20 FROM prefetch
SELECT any_value(artifact) AS artifact, min(line) AS line, any_value(text) AS quote, count(*) AS n FROM prefetch HAVING count(*) >= 20 AND max(loaded) = 0

-- evidence: prefetched_flat
-- says: pages are written to L3 but none is read back (backuped {b}, prefetched {p})
SELECT b.artifact, b.line, b.line AS line_end, b.rank, 'backuped_tokens_total ' || CAST(b.value AS BIGINT) AS quote, CAST(b.value AS BIGINT) AS b, CAST(p.value AS BIGINT) AS p
FROM sample b JOIN sample p ON p.artifact = b.artifact AND p.rank IS NOT DISTINCT FROM b.rank
WHERE b.name = 'backuped_tokens_total' AND p.name = 'prefetched_tokens_total' AND b.value > 100000 AND p.value = 0 LIMIT 2

-- evidence: orphaned_requests
-- says: {rank} still holds {v} requests in its bootstrap queue although nothing runs
SELECT s.artifact, s.line, s.line AS line_end, s.rank, s.ts, s.name || ' ' || CAST(s.value AS BIGINT) AS quote, CAST(s.value AS BIGINT) AS v FROM sample s
WHERE s.name = 'num_prefill_bootstrap_queue_reqs' AND s.value > 0 AND try_cast(regexp_extract(s.rank, 'PP(\d+)', 1) AS INT) > 0
  AND EXISTS (SELECT 1 FROM sample z WHERE z.artifact = s.artifact AND z.name = 'num_prefill_bootstrap_queue_reqs' AND regexp_extract(z.rank, 'PP(\d+)', 1) = '0' AND z.value = 0)
LIMIT 3

-- evidence: slow_prefill_floor
-- says: prefill runs at a fraction of a token a second with nothing queued
-- (a single line is the first batch after a quiet time: the rate counts from the batch before)
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'prefill_floor'
  AND rank IN (SELECT rank FROM log WHERE kind = 'prefill_floor' GROUP BY rank HAVING count(*) >= 3) LIMIT 3

-- evidence: vote_cost
-- says: the per-step votes take a large share of the time
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'vote_profile'
  AND (try_cast(fields->>'share' AS DOUBLE) >= 5 OR try_cast(fields->>'ms' AS DOUBLE) >= 0.5) LIMIT 2

-- evidence: wrong_output_reported
-- says: the report speaks of wrong output without an error
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'wrong_output' LIMIT 2

-- evidence: aborted_transfers
-- says: clients went away and the abort is reported as a transfer error
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'transfer_failed' AND text LIKE '%AbortReq%'
UNION ALL
SELECT artifact, line, line_end, rank, ts, text FROM log WHERE kind = 'abort_request' AND text LIKE '%Aborted by AbortReq%'
LIMIT 3

-- evidence: any_failure
-- says: something failed
SELECT artifact, line, line_end, rank, ts, quote FROM rank_role
UNION ALL
SELECT artifact, line, line_end, rank, ts, text FROM log WHERE kind IN ('sigquit', 'killed', 'subprocess_crashed', 'elastic_failed', 'watchdog_timeout', 'startup_failed', 'kernel_oom_kill', 'frtrace_missing_ranks', 'frtrace_error',
  'ras_dead', 'ras_incomplete', 'ras_error', 'nccl_dump_status', 'nccl_desync', 'nccl_watchdog_stuck')
UNION ALL
SELECT artifact, line, line, rank, ts, (labels->>'quote') FROM sample WHERE name = 'death_signal'
UNION ALL
SELECT artifact, line, line_end, rank, ts, text FROM ras_stuck
LIMIT 3

-- evidence: working_to_the_end
-- says: {rank} serves to the end of its log
SELECT b.artifact, max(b.line) AS line, max(b.line) AS line_end, b.rank, 'last batch line' AS quote FROM batch b
JOIN (SELECT artifact, rank, max(line) AS last FROM log WHERE kind = 'last_line' GROUP BY ALL) l ON l.artifact = b.artifact AND l.rank IS NOT DISTINCT FROM b.rank
GROUP BY b.artifact, b.rank HAVING count(*) >= 8 ORDER BY b.rank LIMIT 8

-- evidence: every_stage_working
-- says: every stage serves batches to the end
SELECT any_value(artifact) AS artifact, max(line) AS line, 'last batch of the first stage' AS quote FROM batch
HAVING count(*) >= 16
  AND (SELECT count(*) FROM missing_rank) = 0
  AND NOT EXISTS (SELECT 1 FROM divergence WHERE sure)
  AND NOT EXISTS (SELECT 1 FROM (SELECT coalesce(regexp_extract(rank, 'PP\d+'), '') AS stage, max(ts) AS last FROM batch GROUP BY 1)
                  WHERE last < (SELECT max(ts) FROM batch) - 600)

-- evidence: batches_agree
-- says: the stages agree on {n} prefill batches, to the end of the shorter log
-- known: SELECT count(*) > 0 FROM stream_pair
SELECT NULL AS artifact, sum(common) AS n FROM stream_pair HAVING count(*) > 0 AND NOT bool_or(diverged) AND sum(common) >= 8

-- evidence: served_requests
-- says: requests were served
SELECT artifact, line, line AS line_end, rank, ts, kind || ' batch' AS quote FROM batch WHERE coalesce(new_token, 100) > 16 LIMIT 1

-- evidence: leaking_rank
-- says: {rank} grows
SELECT artifact, line, rank FROM (
  SELECT s.artifact, s.line, s.rank, 0 AS n FROM rss_slope s WHERE regexp_extract(s.rank, 'PP(\d+)', 1) = '0' AND s.per_hour > 5e8
  UNION ALL
  SELECT artifact, line, rank, 1 FROM sample WHERE name = 'memray_live_bytes' AND (labels->>'function') = '_pp_sync' AND rank IS NOT NULL)
ORDER BY n, rank LIMIT 4

-- evidence: log_ends_early
-- says: the log of {rank} simply ends while the others go on
SELECT b.artifact, b.line, b.line AS line_end, b.rank, b.ts, 'last batch line' AS quote FROM (
  SELECT rank, arg_max(artifact, ts) AS artifact, arg_max(line, ts) AS line, max(ts) AS ts, count(*) AS n FROM batch WHERE rank IS NOT NULL AND ts IS NOT NULL GROUP BY rank) b
WHERE b.n >= 4 AND b.ts < (SELECT max(ts) FROM batch) - 120
  AND NOT EXISTS (SELECT 1 FROM exception e WHERE e.rank = b.rank)
  AND NOT EXISTS (SELECT 1 FROM log l WHERE l.rank = b.rank AND (l.ts > b.ts + 60 OR l.kind IN ('watchdog_timeout', 'nccl_timeout', 'fatal_python')))
  AND NOT EXISTS (SELECT 1 FROM place p WHERE p.rank = b.rank AND p.source <> 'traceback')

-- evidence: prefetched_stopped
-- says: reads from L3 of {rank} stopped at {p} tokens while writes went on
SELECT artifact, line, line AS line_end, rank, ts, 'prefetched_tokens_total ' || p AS quote, p FROM (
  SELECT any_value(artifact) AS artifact, max(line) AS line, rank, max(ts) AS ts, CAST(max(value) AS BIGINT) AS p
  FROM (SELECT *, row_number() OVER (PARTITION BY rank, artifact ORDER BY ts DESC, line DESC) AS back, count(*) OVER (PARTITION BY rank, artifact) AS n
        FROM sample WHERE name = 'prefetched_tokens_total')
  WHERE n >= 4 AND back <= greatest(3, n // 4) GROUP BY rank HAVING min(value) = max(value)) r
WHERE EXISTS (SELECT 1 FROM sample b WHERE b.name = 'backuped_tokens_total' AND b.rank IS NOT DISTINCT FROM r.rank
              GROUP BY b.rank HAVING max(b.value) > 1.05 * quantile_cont(b.value, 0.7))
LIMIT 2

-- evidence: memory_grows
-- says: the memory of {rank} grew by {gb} GB
SELECT artifact, line, line AS line_end, rank, printf('%s rss %.1f GB to %.1f GB', coalesce(rank, '?'), lowest / 1e9, highest / 1e9) AS quote, printf('%.1f', growth / 1e9) AS gb
FROM rss_slope WHERE growth > 4e9 AND growth > 0.05 * lowest ORDER BY growth DESC LIMIT 3
