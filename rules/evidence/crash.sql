-- What was raised, by whom, and what the numbers in it say (forms A and B and the named assertions).

-- evidence: own_exception
-- says: {rank} raised an error of its own
SELECT artifact, line, line_end, rank, ts, quote, type, message, place FROM rank_role
WHERE proof = 'own' AND role = 'first' ORDER BY position LIMIT 4

-- evidence: victims_only
-- says: every rank that speaks only lost a peer
SELECT artifact, line, line_end, rank, ts, quote FROM rank_role
WHERE proof = 'peer_closed' AND NOT EXISTS (SELECT 1 FROM rank_role WHERE proof IN ('own', 'native', 'timeout')) LIMIT 4

-- evidence: peer_closed
-- says: {rank} only lost its peer
SELECT artifact, line, line_end, rank, ts, quote FROM rank_role WHERE proof = 'peer_closed' ORDER BY rank LIMIT 4

-- evidence: native_crash
-- says: {rank} died in native code
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind IN ('fatal_python', 'kernel_segfault')
UNION ALL
SELECT artifact, line, line_end, rank, ts, text FROM log WHERE kind = 'subprocess_crashed' AND try_cast(fields->>'code' AS INT) IN (-11, -6, 139, 134)
UNION ALL
SELECT artifact, line, line, rank, ts, quote FROM native_death
LIMIT 3

-- evidence: shape_error
-- says: {rank} raised a shape error: {arithmetic}
SELECT artifact, line, line_end, rank, ts, quote, arithmetic FROM shape_error ORDER BY ts NULLS LAST, artifact, line LIMIT 4

-- evidence: shape_later_stage
-- says: the shape error is on a stage behind the first one ({rank})
-- known: SELECT count(*) > 0 FROM shape_error WHERE rank IS NOT NULL
SELECT artifact, line, line_end, rank, ts, quote FROM shape_error
WHERE try_cast(regexp_extract(rank, 'PP(\d+)', 1) AS INT) > 0 LIMIT 2

-- evidence: shape_foreign
-- says: {rank} worked on a batch that is not the one whose hidden states came in: {arithmetic}
-- known: SELECT count(*) > 0 FROM shape_error WHERE heads_known OR head_dim IS NULL OR foreign_batch
SELECT artifact, line, line_end, rank, ts, quote, arithmetic, own, received, delta FROM shape_error WHERE foreign_batch AND NOT too_small LIMIT 2

-- evidence: shape_too_small
-- says: the error has the words of form A, but {arithmetic}
SELECT artifact, line, line_end, rank, ts, quote, arithmetic FROM shape_error WHERE too_small LIMIT 2

-- evidence: delta_page_multiple
-- says: the two token counts differ by {delta}, whole pages of {page_size}: another cut of the prefix
-- known: SELECT count(*) > 0 FROM shape_error WHERE page_multiple IS NOT NULL
SELECT artifact, line, line_end, rank, ts, quote, delta, page_size FROM shape_error WHERE page_multiple LIMIT 2

-- evidence: delta_not_page_multiple
-- says: the two token counts differ by {delta}, no whole pages of {page_size}: another set of requests
-- known: SELECT count(*) > 0 FROM shape_error WHERE page_multiple IS NOT NULL
SELECT artifact, line, line_end, rank, ts, quote, delta, page_size FROM shape_error WHERE NOT page_multiple LIMIT 2

-- evidence: sparse_handover_frames
-- says: the failing frame is the top-k hand-over of a sparse-attention model between stages
SELECT p.artifact, p.at_line AS line, p.line_end, p.rank, p.quote FROM exception e JOIN stack s ON s.id = e.stack JOIN place p ON p.stack = s.id
WHERE e.message LIKE '%batch_size must be equal to batch_size_k%' OR p.frames LIKE '%topk_indices%' LIMIT 2

-- evidence: before_serving
-- says: it failed before any request was served
-- known: SELECT count(*) > 0 FROM log WHERE kind IN ('init_distributed', 'pool_sizes', 'load_weight_end', 'ready', 'host_pool_gb', 'host_pool_tokens') OR EXISTS (SELECT 1 FROM batch) OR EXISTS (SELECT 1 FROM cfg WHERE source LIKE '%server_args%')
SELECT r.artifact, r.line, r.line_end, r.rank, r.ts, r.quote FROM rank_role r
WHERE (SELECT count(*) FROM batch WHERE coalesce(new_token, 100) > 16) = 0
  AND EXISTS (SELECT 1 FROM log WHERE kind IN ('init_distributed', 'pool_sizes', 'load_weight_end', 'host_pool_gb', 'host_pool_tokens') UNION ALL SELECT 1 FROM cfg WHERE source LIKE '%server_args%')
ORDER BY r.position LIMIT 2

-- evidence: during_warmup
-- says: nothing but the warm-up request had run
-- known: SELECT count(*) > 0 FROM batch
SELECT artifact, line, line AS line_end, rank, ts, 'Prefill batch, #new-token: ' || new_token AS quote FROM batch
WHERE kind = 'prefill' AND (SELECT count(*) FROM batch WHERE coalesce(new_token, 100) > 16 OR kind = 'decode') = 0 LIMIT 1

-- evidence: batches_diverged
-- says: prefill batch {ordinal} differs between stages: {rank_a} {value_a}; {rank_b} {value_b}
-- known: SELECT count(*) > 0 FROM stream_pair WHERE common >= 4
SELECT artifact_b AS artifact, line_b AS line, line_b AS line_end, rank_b AS rank, quote_b AS quote, ordinal, rank_a, value_a, rank_b, value_b
FROM divergence WHERE stream = 'prefill batch'
UNION ALL
SELECT artifact_a, line_a, line_a, rank_a, quote_a, ordinal, rank_a, value_a, rank_b, value_b FROM divergence WHERE stream = 'prefill batch'
LIMIT 4

-- evidence: usage_drifts
-- says: from prefill batch {ordinal} on the same batches leave the pools differently full: {rank_a} {value_a}; {rank_b} {value_b}
-- known: SELECT count(*) > 0 FROM stream_pair WHERE common >= 4
SELECT artifact_b AS artifact, line_b AS line, line_b AS line_end, rank_b AS rank, quote_b AS quote, ordinal, rank_a, value_a, rank_b, value_b
FROM divergence WHERE stream LIKE 'token usage%' LIMIT 2

-- evidence: batches_diverged_by_pages
-- says: prefill batch {ordinal} has the same length on both stages but another cached prefix: {rank_a} {value_a}; {rank_b} {value_b}
-- known: SELECT count(*) > 0 FROM stream_pair WHERE common >= 4
SELECT artifact_b AS artifact, line_b AS line, line_b AS line_end, rank_b AS rank, quote_b AS quote, ordinal, rank_a, value_a, rank_b, value_b
FROM divergence WHERE stream = 'prefill batch' AND page_multiple LIMIT 2

-- evidence: prefetch_differs
-- says: request {key} was fetched from L3 with different results: {rank_a} {value_a}; {rank_b} {value_b}
-- known: SELECT count(DISTINCT rank) > 1 FROM prefetch
SELECT artifact_a AS artifact, line_a AS line, line_a AS line_end, rank_a AS rank, quote_a AS quote, key, rank_a, value_a, rank_b, value_b
FROM divergence WHERE stream = 'settled prefetch'
UNION ALL
SELECT artifact_b, line_b, line_b, rank_b, quote_b, key, rank_a, value_a, rank_b, value_b FROM divergence WHERE stream = 'settled prefetch'
LIMIT 4

-- evidence: storage_error_before
-- says: {rank} lost part of an L3 read just before
SELECT l.artifact, l.line, l.line_end, l.rank, l.ts, l.text AS quote FROM log l JOIN rank_role r ON r.role = 'first' AND r.artifact = l.artifact
WHERE l.kind IN ('storage_error', 'storage_write_failed') AND l.line < r.line AND (l.ts IS NULL OR r.ts IS NULL OR r.ts - l.ts BETWEEN -1 AND 60)
  AND (l.rank IS NULL OR l.rank IS NOT DISTINCT FROM r.rank)
ORDER BY l.line DESC LIMIT 2

-- evidence: abort_burst
-- says: {n} requests were aborted in the seconds before
-- (requests are counted, not lines: every rank prints a line of its own for the same request)
SELECT l.artifact, l.line, l.line_end, l.rank, l.ts, l.text AS quote,
       count(DISTINCT coalesce(l.fields->>'rid', nullif(regexp_extract(l.text, 'rid=''?([0-9A-Za-z_-]+)', 1), ''), l.line::VARCHAR)) OVER () AS n
FROM log l JOIN (SELECT artifact, min(ts) AS ts, min(line) AS line FROM exception WHERE proof <> 'analyser' GROUP BY artifact
                 UNION ALL SELECT artifact, min(ts), min(line) FROM log WHERE kind IN ('nccl_timeout', 'watchdog_timeout') GROUP BY artifact) e
  ON e.artifact = l.artifact
WHERE l.kind IN ('client_disconnected', 'abort_request', 'transfer_failed') AND l.line < e.line
  AND (l.ts IS NULL OR e.ts IS NULL OR e.ts - l.ts BETWEEN -1 AND 20)
  AND (SELECT count(DISTINCT coalesce(x.fields->>'rid', nullif(regexp_extract(x.text, 'rid=''?([0-9A-Za-z_-]+)', 1), ''), x.line::VARCHAR))
       FROM log x WHERE x.artifact = l.artifact AND x.kind IN ('client_disconnected', 'abort_request', 'transfer_failed')
       AND x.line < e.line AND (x.ts IS NULL OR e.ts IS NULL OR e.ts - x.ts BETWEEN -1 AND 20)) >= 2
ORDER BY l.artifact, l.line LIMIT 6

-- evidence: abort_seen
-- says: a request was aborted in the seconds before
SELECT l.artifact, l.line, l.line_end, l.rank, l.ts, l.text AS quote FROM log l
JOIN (SELECT artifact, min(ts) AS ts, min(line) AS line FROM exception WHERE proof <> 'analyser' GROUP BY artifact) e ON e.artifact = l.artifact
WHERE l.kind IN ('client_disconnected', 'abort_request', 'transfer_failed') AND l.line < e.line AND (l.ts IS NULL OR e.ts IS NULL OR e.ts - l.ts BETWEEN -1 AND 20)
UNION ALL
SELECT artifact, NULL, NULL, rank, NULL, 'abort of request ' || key || ' took effect' FROM event WHERE kind = 'recv_msg' AND a = 1
ORDER BY 2 DESC NULLS LAST LIMIT 3

-- evidence: timeout_message
-- says: a request timed out
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'request_timeout'
UNION ALL
SELECT artifact, NULL, NULL, rank, NULL, 'time-out of request ' || key || ' took effect' FROM event WHERE kind = 'recv_msg' AND a = 2
LIMIT 3

-- evidence: timeout_several_stages
-- says: the request time-out was reached on several stages
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'request_timeout'
  AND (SELECT count(DISTINCT regexp_extract(rank, 'PP\d+')) FROM log WHERE kind = 'request_timeout' AND rank LIKE '%PP%') > 1 LIMIT 2

-- evidence: timeout_one_stage
-- says: the request time-out was reached on {rank} only
-- known: SELECT count(*) > 0 FROM log WHERE kind = 'request_timeout'
SELECT any_value(artifact) AS artifact, min(line) AS line, any_value(text) AS quote, any_value(rank) AS rank FROM log WHERE kind = 'request_timeout' HAVING count(DISTINCT rank) = 1

-- evidence: pop_from_empty_queue
-- says: {rank} was told to drain more acks than it had submitted
SELECT e.artifact, e.line, e.line_end, e.rank, e.ts, e.type || ': ' || e.message AS quote FROM exception e JOIN place p ON p.stack = e.stack
WHERE e.type LIKE '%IndexError' AND e.message LIKE 'pop from empty list%' AND (p.place IN ('ack_pop', 'write_vote', 'load_vote') OR p.frames LIKE '%writing_check%' OR p.frames LIKE '%loading_check%')
UNION ALL
SELECT e.artifact, e.line, e.line_end, e.rank, e.ts, e.type || ': ' || e.message FROM exception e
WHERE e.message LIKE 'pop from empty list%' AND EXISTS (SELECT 1 FROM log l WHERE l.artifact = e.artifact AND abs(l.line - e.line) < 40 AND l.text LIKE '%ack_%queue%')
ORDER BY 5 NULLS LAST LIMIT 3

-- evidence: ack_key_error
-- says: {rank} drained an ack of an operation that it never submitted
SELECT e.artifact, e.line, e.line_end, e.rank, e.ts, e.type || ': ' || e.message AS quote FROM exception e JOIN place p ON p.stack = e.stack
WHERE e.type = 'KeyError' AND p.place = 'ack_pop' LIMIT 2

-- evidence: reclaim_diverged
-- says: {rank} found that its eviction victims differ from its peers'
SELECT artifact, line, line_end, rank, ts, type || ': ' || message AS quote FROM exception WHERE message LIKE '%duplicate-reclaim victims diverged%' LIMIT 3

-- evidence: consensus_divergence
-- says: the consensus checker of {rank} found the first difference
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'rank_divergence' ORDER BY ts NULLS LAST, artifact, line LIMIT 4

-- evidence: non_leaf_assert
-- says: {rank} evicted a host node that is no leaf
SELECT artifact, line, line_end, rank, ts, type || ': ' || message AS quote FROM exception WHERE message LIKE 'non-leaf, node.id=%' LIMIT 2

-- evidence: ticket_error
-- says: {rank} met a prefetch ticket out of order
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'ticket_error' LIMIT 3

-- evidence: layer_event_index
-- says: {rank} waited for a layer that the transfer doesn't have
SELECT e.artifact, e.line, e.line_end, e.rank, e.ts, e.type || ': ' || e.message AS quote FROM exception e JOIN frame f ON f.stack = e.stack
WHERE e.type LIKE '%IndexError' AND e.message LIKE 'list index out of range%' AND (f.cls = 'LayerLoadingEvent' OR (f.function = 'wait' AND f.file LIKE '%cache_controller.py')) LIMIT 2

-- evidence: chunk_profiling_failed
-- says: profiling for dynamic chunking failed
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind = 'dynamic_chunk' AND regexp_matches(lower(text), 'fail|error|exception|fall|disab|invalid|warn')
UNION ALL
SELECT artifact, line, line_end, rank, ts, type || ': ' || message FROM exception WHERE message LIKE '%_is_extend_in_batch%'
LIMIT 3

-- evidence: swa_pool_stage
-- says: a build with half of a later change
SELECT artifact, line, line_end, rank, ts, type || ': ' || message AS quote FROM exception WHERE message LIKE '%KV pool must be PP-stage-local%' LIMIT 2

-- evidence: gloo_size_mismatch
-- says: a gloo message of another size arrived: a call was skipped and the next one paired with it
-- (the message is on standard error; in a core it is gloo's own thread that aborts while it prepares to read)
SELECT artifact, line, line_end, NULL AS record, rank, ts, text AS quote FROM log WHERE kind = 'gloo_size_mismatch'
UNION ALL
SELECT artifact, line, line_end, record, rank, ts, quote FROM gloo_abort LIMIT 3

-- evidence: exception_in_cache_code
-- says: {rank} failed inside the cache code
SELECT e.artifact, e.line, e.line_end, e.rank, e.ts, e.type || ': ' || e.message AS quote FROM rank_role e
JOIN exception x ON x.artifact = e.artifact AND x.line = e.line JOIN frame f ON f.stack = x.stack
WHERE e.role = 'first' AND regexp_matches(f.file, '(radix_cache|cache_controller|mem_cache|memory_pool_host)') AND f.depth <= 3 LIMIT 1

-- evidence: exception_in_forward
-- says: {rank} failed inside the model's forward pass
SELECT e.artifact, e.line, e.line_end, e.rank, e.ts, e.quote FROM rank_role e JOIN exception x ON x.artifact = e.artifact AND x.line = e.line
JOIN place p ON p.stack = x.stack WHERE e.role = 'first' AND p.place = 'forward' LIMIT 1

-- evidence: sglang_frames
-- says: {rank} failed in SGLang's own code
SELECT r.artifact, r.line, r.line_end, r.rank, r.ts, r.quote FROM rank_role r JOIN exception x ON x.artifact = r.artifact AND x.line = r.line
WHERE r.role = 'first' AND EXISTS (SELECT 1 FROM frame f WHERE f.stack = x.stack AND (f.file LIKE '%/srt/%' OR f.file LIKE '%sglang%'
   OR regexp_matches(f.file, '(scheduler|radix_cache|cache_controller|tp_worker|model_runner)\w*\.py$'))) LIMIT 2

-- evidence: prefetch_agrees
-- says: the stages settled every prefetch of the log alike ({n} requests)
SELECT NULL AS artifact, count(*) AS n FROM (SELECT rid FROM prefetch WHERE rank IS NOT NULL GROUP BY rid HAVING count(DISTINCT regexp_extract(rank, 'PP\d+')) > 1)
HAVING count(*) >= 10 AND (SELECT count(*) FROM divergence WHERE stream = 'settled prefetch') = 0
