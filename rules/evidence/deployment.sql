-- What runs: engine, pipeline, cache tiers, disaggregation.

-- evidence: sglang_seen
-- says: the artefacts come from an SGLang deployment
SELECT * FROM (
  SELECT artifact, line, line_end, rank, ts, text AS quote FROM log
    WHERE kind NOT LIKE 'engine_%' AND kind NOT LIKE 'kernel_%' AND kind NOT LIKE 'frtrace_%' AND kind NOT LIKE 'ras_%'
      AND kind NOT LIKE 'nccl_%' AND kind <> 'hccl_timeout' AND kind NOT LIKE 'cuda_%' AND kind NOT IN
      ('last_line', 'pg_status', 'peer_closed', 'gloo_timeout', 'gloo_size_mismatch', 'device_assert', 'killed', 'host_alloc_failed',
       'fatal_python', 'elastic_failed', 'nvidia_smi', 'nvidia_smi_fault', 'nvidia_smi_note', 'handshake_refused', 'collective_mismatch')
  UNION ALL SELECT artifact, line, line_end, rank, ts, text FROM log WHERE kind = 'engine_sglang'
  UNION ALL SELECT artifact, line, line, rank, ts, kind || ' batch' FROM batch
  UNION ALL SELECT artifact, line, line, NULL, NULL, quote FROM cfg WHERE key IN ('model_path', 'sglang_version', 'image')
  UNION ALL SELECT artifact, at_line, line_end, rank, ts, quote FROM place WHERE place <> 'elsewhere' OR tree IS NOT NULL
  UNION ALL SELECT s.artifact, s.line, s.line_end, s.rank, s.ts, f.file FROM frame f JOIN stack s ON s.id = f.stack WHERE f.file LIKE '%/srt/%' OR f.file LIKE '%sglang%'
  UNION ALL SELECT artifact, line, line, rank, ts, name FROM sample WHERE rank LIKE '%PP%' OR rank LIKE '%TP%'
  UNION ALL SELECT e.artifact, NULL, NULL, e.rank, NULL, 'probe events' FROM event_rank p JOIN event e ON e.rowid = p.first_event)
LIMIT 3

-- evidence: release_stated
-- says: the release is stated: {value}
SELECT artifact, line, line AS line_end, NULL AS rank, quote, value FROM cfg WHERE key = 'sglang_version' LIMIT 1

-- evidence: other_engine
-- says: the artefacts come from another engine ({what})
SELECT artifact, line, line_end, rank, ts, text AS quote,
       CASE kind WHEN 'engine_vllm' THEN 'vLLM' WHEN 'engine_lmcache' THEN 'LMCache' WHEN 'engine_tensorrt' THEN 'TensorRT-LLM'
                 ELSE 'a training framework' END AS what
FROM log WHERE kind IN ('engine_vllm', 'engine_tensorrt', 'engine_training', 'engine_lmcache')
ORDER BY CASE kind WHEN 'engine_lmcache' THEN 1 ELSE 0 END, artifact, line LIMIT 4

-- evidence: foreign_traceback
-- says: a Python program that is not SGLang raised {quote}
SELECT e.artifact, e.line, e.line_end, e.rank, e.ts, e.type || ': ' || e.message AS quote
FROM exception e WHERE e.stack IS NOT NULL AND e.proof <> 'analyser' AND e.proof <> 'peer_closed'
  AND NOT EXISTS (SELECT 1 FROM frame f WHERE f.stack = e.stack AND (f.file LIKE '%sglang%' OR f.file LIKE '%/srt/%' OR f.file LIKE '%scheduler%'
      OR f.file LIKE '%radix_cache%' OR f.file LIKE '%cache_controller%' OR f.file LIKE '%torch/distributed%'))
  AND EXISTS (SELECT 1 FROM frame f WHERE f.stack = e.stack AND f.file LIKE '%/%')
ORDER BY e.artifact, e.line LIMIT 3

-- evidence: hicache_on
-- says: HiCache is on
-- known: SELECT count(*) > 0 FROM cfg WHERE key = 'enable_hierarchical_cache'
SELECT artifact, line, line AS line_end, NULL AS rank, quote FROM cfg WHERE key = 'enable_hierarchical_cache' AND lower(value) = 'true'
UNION ALL
SELECT artifact, line, line_end, rank, text FROM log
  WHERE (SELECT count(*) FROM cfg WHERE key = 'enable_hierarchical_cache' AND lower(value) = 'false') = 0
    AND (kind IN ('host_pool_gb', 'host_pool_tokens', 'hicache_initialized', 'prefetch_local_synced', 'prefetch_agreed', 'host_capacity_synced', 'storage_backend')
         OR (kind = 'tree_cache' AND (fields->>'hicache') = 'True'))
UNION ALL
SELECT artifact, at_line, line_end, rank, quote FROM place WHERE (hicache OR tree IS NOT NULL)
    AND (SELECT count(*) FROM cfg WHERE key = 'enable_hierarchical_cache' AND lower(value) = 'false') = 0
UNION ALL
SELECT artifact, line, line, rank, name FROM sample WHERE name LIKE 'hicache_host_%_tokens' AND value > 0
UNION ALL
SELECT artifact, NULL, NULL, rank, 'start: host_tokens ' || a FROM event WHERE kind = 'start' AND key = 2 AND a > 0
LIMIT 3

-- evidence: hicache_off
-- says: HiCache is off
-- known: SELECT (SELECT count(*) FROM cfg WHERE key = 'enable_hierarchical_cache') + (SELECT count(*) FROM log WHERE kind IN ('host_pool_gb', 'host_pool_tokens', 'hicache_initialized', 'tree_cache', 'prefetch_local_synced', 'prefetch_agreed', 'storage_backend')) + (SELECT count(*) FROM place WHERE hicache OR tree IS NOT NULL) > 0
SELECT artifact, line, line AS line_end, quote FROM cfg WHERE key = 'enable_hierarchical_cache' AND lower(value) = 'false'
UNION ALL
SELECT artifact, line, line_end, text FROM log WHERE kind = 'tree_cache' AND (fields->>'hicache') = 'False'
  AND (SELECT count(*) FROM cfg WHERE key = 'enable_hierarchical_cache' AND lower(value) = 'true') = 0
LIMIT 2

-- evidence: pp_on
-- says: pipeline parallelism is on (pp_size {value})
-- known: SELECT count(*) > 0 FROM cfg WHERE key IN ('pp_size', 'tp_size')
SELECT artifact, line, line AS line_end, NULL AS rank, quote, value FROM cfg WHERE key = 'pp_size' AND try_cast(value AS BIGINT) > 1
UNION ALL
SELECT artifact, NULL, NULL, id, id, 'seen in rank names' FROM rank WHERE pp IS NOT NULL
UNION ALL
SELECT artifact, at_line, line_end, rank, quote, 'seen in the stacks' FROM place WHERE frames LIKE '%event_loop_pp%' OR frames LIKE '%_pp_%'
LIMIT 2

-- evidence: l3_on
-- says: an L3 storage backend is on ({value})
-- known: SELECT count(*) > 0 FROM cfg WHERE key IN ('hicache_storage_backend', 'model_path')
SELECT artifact, line, line AS line_end, NULL AS rank, quote, value FROM cfg
  WHERE key = 'hicache_storage_backend' AND value IS NOT NULL AND value NOT IN ('None', 'null', '')
UNION ALL
SELECT artifact, line, line_end, rank, text, coalesce(fields->>'backend', 'seen in the log') FROM log
  WHERE kind IN ('storage_backend', 'prefetch_local_synced', 'prefetch_agreed', 'storage_read', 'storage_written')
UNION ALL
SELECT artifact, NULL, NULL, rank, kind, 'seen by the probes' FROM event WHERE kind IN ('prefetch_hit', 'backup_io')
LIMIT 2

-- evidence: pd_prefill
-- says: the server is the prefill side of a disaggregated pair
-- known: SELECT count(*) > 0 FROM cfg WHERE key IN ('disaggregation_mode', 'model_path')
SELECT artifact, line, line AS line_end, NULL AS rank, quote FROM cfg WHERE key = 'disaggregation_mode' AND value = 'prefill'
UNION ALL
SELECT artifact, at_line, line_end, rank, quote FROM place WHERE frames LIKE '%disagg_prefill%'
LIMIT 2

-- evidence: hiradix_tree
-- says: the tree is HiRadixCache, whose LRU clock is the wall clock
-- known: SELECT count(*) > 0 FROM log WHERE kind IN ('tree_cache', 'unified_tree', 'unified_tree_old_words') OR EXISTS (SELECT 1 FROM place WHERE tree IS NOT NULL)
SELECT artifact, line, line_end, rank, text AS quote FROM log WHERE kind = 'tree_cache' AND (fields->>'impl') = 'HiRadixCache'
UNION ALL
SELECT artifact, at_line, line_end, rank, quote FROM place WHERE tree = 'HiRadixCache'
LIMIT 2

-- evidence: unified_tree
-- says: the tree is UnifiedRadixCache
-- known: SELECT count(*) > 0 FROM log WHERE kind IN ('tree_cache', 'unified_tree', 'unified_tree_old_words') OR EXISTS (SELECT 1 FROM place WHERE tree IS NOT NULL)
SELECT artifact, line, line_end, rank, text AS quote FROM log
  WHERE (kind = 'tree_cache' AND (fields->>'impl') = 'UnifiedRadixCache') OR kind IN ('unified_tree', 'unified_tree_old_words')
UNION ALL
SELECT artifact, at_line, line_end, rank, quote FROM place WHERE tree = 'UnifiedRadixCache'
LIMIT 2

-- evidence: fixed_host_size
-- says: the host pool has a fixed size in GB (--hicache-size {value}), the same for every stage whatever its layers
-- known: SELECT count(*) > 0 FROM cfg WHERE key IN ('hicache_size', 'model_path')
SELECT artifact, line, line AS line_end, NULL AS rank, quote, value FROM cfg WHERE key = 'hicache_size' AND try_cast(value AS DOUBLE) > 0

-- evidence: uneven_layers
-- says: the layers are split unevenly over the stages ({value})
SELECT artifact, line, line AS line_end, NULL AS rank, quote, value FROM cfg WHERE key = 'SGLANG_PP_LAYER_PARTITION'
  AND list_unique(string_split(replace(replace(value, '"', ''), '''', ''), ',')) > 1

-- evidence: host_capacity_differs
-- says: the host pools hold different numbers of tokens: {rank} {tokens}, another stage {other}
-- known: SELECT count(DISTINCT rank) > 1 FROM capacity
SELECT a.artifact, a.line, a.line AS line_end, a.record, a.rank, a.quote, a.tokens, b.tokens AS other FROM capacity a, capacity b
  WHERE a.rank <> b.rank AND a.tokens < b.tokens AND a.source = b.source
    AND (SELECT count(*) FROM log WHERE kind = 'host_capacity_synced') = 0
UNION ALL
SELECT b.artifact, b.line, b.line, b.record, b.rank, b.quote, b.tokens, a.tokens FROM capacity a, capacity b
  WHERE a.rank <> b.rank AND a.tokens < b.tokens AND a.source = b.source
    AND (SELECT count(*) FROM log WHERE kind = 'host_capacity_synced') = 0
LIMIT 4

-- evidence: pools_unequal
-- says: the stages' host pools cannot hold the same number of tokens
-- known: SELECT count(DISTINCT rank) > 1 FROM capacity
SELECT a.artifact, a.line, a.line AS line_end, a.rank, a.quote FROM capacity a, capacity b
  WHERE a.rank <> b.rank AND a.tokens < b.tokens AND a.source = b.source
    AND (SELECT count(*) FROM log WHERE kind = 'host_capacity_synced') = 0
UNION ALL
SELECT artifact, line, line, NULL, quote FROM cfg WHERE key = 'SGLANG_PP_LAYER_PARTITION'
  AND list_unique(string_split(replace(replace(value, '"', ''), '''', ''), ',')) > 1
  AND (SELECT count(DISTINCT rank) FROM capacity) < 2
LIMIT 2

-- evidence: host_capacity_equal
-- says: every host pool that was seen holds {tokens} tokens
-- known: SELECT count(DISTINCT rank) > 1 FROM capacity
SELECT any_value(artifact) AS artifact, min(line) AS line, any_value(quote) AS quote, min(tokens) AS tokens FROM capacity
  HAVING count(DISTINCT rank) > 1 AND min(tokens) = max(tokens)

-- evidence: host_pool_nearly_full
-- says: the host pool of {rank} is full to {share} %
-- known: SELECT count(*) > 0 FROM sample WHERE name = 'hicache_host_used_tokens'
SELECT u.artifact, u.line, u.line AS line_end, u.rank, u.ts, u.name || ' ' || CAST(u.value AS BIGINT) AS quote,
       CAST(100 * u.value / t.value AS BIGINT) AS share
FROM sample u JOIN sample t ON t.rank IS NOT DISTINCT FROM u.rank AND t.artifact = u.artifact AND t.name = 'hicache_host_total_tokens'
WHERE u.name = 'hicache_host_used_tokens' AND t.value > 0 AND u.value / t.value >= 0.95 LIMIT 4

-- evidence: host_used_differs
-- says: the host pools are filled differently: {rank} uses {used} tokens, another rank {other}
-- known: SELECT count(DISTINCT rank) > 1 FROM sample WHERE name = 'hicache_host_used_tokens'
SELECT a.artifact, a.line, a.line AS line_end, a.rank, a.ts, a.name || ' ' || CAST(a.value AS BIGINT) AS quote,
       CAST(a.value AS BIGINT) AS used, CAST(b.value AS BIGINT) AS other
FROM sample a JOIN sample b ON a.name = b.name AND a.artifact = b.artifact AND a.rank <> b.rank AND a.value < b.value
WHERE a.name = 'hicache_host_used_tokens' LIMIT 4

-- evidence: device_pool_pressure
-- says: the device pool was nearly full (token usage {usage})
-- known: SELECT count(*) > 0 FROM batch WHERE usage IS NOT NULL
SELECT * FROM (
  SELECT artifact, line, line AS line_end, rank, ts, kind || ' batch, token usage: ' || usage AS quote, usage FROM batch WHERE usage >= 0.9
  UNION ALL
  SELECT artifact, line, line, rank, ts, 'token_usage ' || value, value FROM sample WHERE name = 'token_usage' AND value >= 0.85
  UNION ALL
  SELECT artifact, line, line_end, rank, ts, text, NULL FROM log WHERE kind = 'retracted')
ORDER BY usage DESC NULLS LAST LIMIT 2

-- evidence: policy_timeout
-- says: the prefetch policy is `timeout`, whose end is decided by a vote inside the waiting-queue loop
-- known: SELECT count(*) > 0 FROM cfg WHERE key IN ('hicache_storage_prefetch_policy', 'model_path')
SELECT artifact, line, line AS line_end, quote FROM cfg WHERE key = 'hicache_storage_prefetch_policy' AND value = 'timeout'

-- evidence: spec_on
-- says: speculative decoding is on ({value})
-- known: SELECT count(*) > 0 FROM cfg WHERE key IN ('speculative_algorithm', 'model_path')
SELECT artifact, line, line AS line_end, quote, value FROM cfg WHERE key = 'speculative_algorithm' AND value IS NOT NULL AND value NOT IN ('None', 'null', '')

-- evidence: timeouts_set
-- says: request time-outs are on ({key}={value}), each rank decides by its own clock
-- known: SELECT count(*) > 0 FROM cfg WHERE source LIKE '%environment%' OR source LIKE '%env%'
SELECT artifact, line, line AS line_end, quote, key, value FROM cfg
  WHERE key IN ('SGLANG_REQ_RUNNING_TIMEOUT', 'SGLANG_REQ_WAITING_TIMEOUT') AND try_cast(replace(value, '"', '') AS DOUBLE) > 0

-- evidence: backend_without_pp_key
-- says: the keys of backend {value} carry no pipeline stage: stages overwrite each other's pages
SELECT artifact, line, line AS line_end, quote, value FROM cfg WHERE key = 'hicache_storage_backend' AND value IN ('nixl', 'hf3fs', 'eic', 'aibrix')

-- evidence: pool_pressure
-- says: a pool was near its edge ({what})
-- known: SELECT (SELECT count(*) FROM batch WHERE usage IS NOT NULL) + (SELECT count(*) FROM sample WHERE name = 'hicache_host_used_tokens') > 0
SELECT artifact, line, line AS line_end, rank, ts, 'token usage: ' || usage AS quote, 'token usage ' || usage AS what FROM batch WHERE usage >= 0.9
UNION ALL
SELECT artifact, line, line, rank, ts, 'token_usage ' || value, 'token usage ' || value FROM sample WHERE name = 'token_usage' AND value >= 0.85
UNION ALL
SELECT artifact, line, line_end, rank, ts, text, 'requests were retracted' FROM log WHERE kind = 'retracted'
UNION ALL
SELECT artifact, NULL, NULL, rank, NULL, 'submission ' || d || ' refused', 'no room for ' || b || ' tokens' FROM event WHERE kind = 'submit' AND c = 1 AND a IN (0, 1)
UNION ALL
SELECT u.artifact, u.line, u.line, u.rank, u.ts, u.name || ' ' || CAST(u.value AS BIGINT), 'host pool used to ' || CAST(100 * u.value / t.value AS BIGINT) || ' %'
FROM sample u JOIN sample t ON t.rank IS NOT DISTINCT FROM u.rank AND t.artifact = u.artifact AND t.name = 'hicache_host_total_tokens'
WHERE u.name = 'hicache_host_used_tokens' AND t.value > 0 AND u.value / t.value >= 0.95
LIMIT 2

-- evidence: hicache_possible
-- says: nothing says that HiCache is off
SELECT NULL AS artifact WHERE NOT EXISTS (SELECT 1 FROM cfg WHERE key = 'enable_hierarchical_cache' AND lower(value) = 'false')
  AND (NOT EXISTS (SELECT 1 FROM log WHERE kind = 'tree_cache' AND (fields->>'hicache') = 'False')
       OR EXISTS (SELECT 1 FROM cfg WHERE key = 'enable_hierarchical_cache' AND lower(value) = 'true'))
