-- Gauges over time: what grows, what stands still. A single scrape says nothing here.

-- evidence: memory_gauge_grows
-- says: {what} of {rank} grows by {gb} GB an hour, for {h} h, as steadily as a leak
-- known: SELECT count(*) > 0 FROM gauge_slope WHERE name IN ('process_resident_memory_bytes', 'container_memory_rss', 'container_memory_working_set_bytes')
SELECT artifact, line, line AS line_end, rank, printf('%s %.1f GB to %.1f GB', name, first / 1e9, last / 1e9) AS quote, name AS what,
       printf('%.1f', per_hour / 1e9) AS gb, printf('%.1f', hours) AS h
FROM gauge_slope WHERE name IN ('process_resident_memory_bytes', 'container_memory_rss', 'container_memory_working_set_bytes')
  AND n >= 4 AND per_hour > 5e8 AND r2 > 0.9 AND last - first > 1e9 ORDER BY per_hour DESC LIMIT 3

-- evidence: queue_grows_on_one_stage
-- says: {what} of {rank} grows from {first} to {last} while that of {other} stands at {still}
-- known: SELECT count(DISTINCT rank) > 1 FROM gauge_slope WHERE name LIKE 'num\_%queue\_reqs' ESCAPE '\'
SELECT g.last_artifact AS artifact, g.last_line AS line, g.last_line AS line_end, g.rank, printf('%s %.0f to %.0f', g.name, g.first, g.last) AS quote,
       g.name AS what, CAST(g.first AS BIGINT) AS first, CAST(g.last AS BIGINT) AS last, s.rank AS other, CAST(s.last AS BIGINT) AS still
FROM gauge_slope g JOIN gauge_slope s ON s.name = g.name AND regexp_extract(s.rank, 'PP\d+') <> regexp_extract(g.rank, 'PP\d+') AND s.n >= 4
WHERE g.name LIKE 'num\_%queue\_reqs' ESCAPE '\' AND g.n >= 4 AND g.r2 > 0.6 AND g.last >= g.first + 8 AND g.last >= 2 * s.highest AND s.highest <= s.lowest + 2
ORDER BY g.last - g.first DESC LIMIT 3

-- evidence: tokens_stand_still
-- says: {what} of {rank} stands at {last} for {min} minutes while {running} requests run
-- known: SELECT count(*) > 0 FROM gauge_end WHERE name IN ('generation_tokens_total', 'prompt_tokens_total')
SELECT artifact, line, line AS line_end, rank, name || ' ' || CAST(last AS BIGINT) AS quote, name AS what, CAST(last AS BIGINT) AS last,
       CAST(seconds / 60 AS BIGINT) AS min, CAST(running AS BIGINT) AS running FROM token_stop ORDER BY seconds DESC LIMIT 3
