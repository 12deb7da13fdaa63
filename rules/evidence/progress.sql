-- How far ranks got in their NCCL groups: torch's watchdog lines and NCCL's own RAS counts.

-- evidence: cpu_stopped
-- says: {rank} enqueued nothing behind operation {work} of group {grp}, which timed out: its CPU side waits there, the GPU has no more to do
SELECT artifact, line, line_end, rank, ts, text AS quote, work, grp FROM watchdog_work WHERE enqueued BETWEEN work AND work + 1 ORDER BY artifact, line LIMIT 4

-- evidence: gpu_behind
-- says: {rank} had enqueued {gap} operations behind the one of group {grp} that timed out: its CPU side ran on, the GPU or a peer stalls
SELECT artifact, line, line_end, rank, ts, text AS quote, gap, grp FROM watchdog_work WHERE gap >= 8 ORDER BY artifact, line LIMIT 4

-- evidence: group_left_behind
-- says: in group {grp} {rank} has enqueued {enqueued} operations, {other} {more}: it did not join the ones between
SELECT a.artifact, a.line, a.line AS line_end, a.rank, 'last enqueued work: ' || a.enqueued AS quote, a.grp, a.enqueued, b.rank AS other, b.enqueued AS more
FROM log_standing a JOIN log_standing b ON b.grp = a.grp AND b.rank <> a.rank AND b.enqueued > a.enqueued
ORDER BY b.enqueued - a.enqueued DESC, a.artifact, a.line LIMIT 3

-- evidence: desync_report
-- says: torch's own report: ranks {ranks} did not join collective {seq} that others are in
SELECT artifact, line, line_end, rank, ts, text AS quote, (fields->>'ranks') AS ranks, coalesce(fields->>'seq', '1') AS seq FROM log
WHERE kind IN ('nccl_desync', 'nccl_desync_never') LIMIT 2

-- evidence: ras_behind
-- says: {rank} has launched {count} {operation} operations of a communicator, others {most}
SELECT artifact, line, line_end, rank, ts, text AS quote, (fields->>'count') AS count, (fields->>'operation') AS operation, (fields->>'most') AS most
FROM log WHERE kind = 'ras_rank' AND try_cast(fields->>'behind' AS BIGINT) > 0 AND EXISTS (SELECT 1 FROM ras_stuck s WHERE s.artifact = log.artifact)
ORDER BY try_cast(fields->>'behind' AS BIGINT) DESC, line LIMIT 4

-- evidence: ras_unreachable
-- says: a process of the job does not answer NCCL's own network any more
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE kind IN ('ras_dead', 'ras_incomplete') LIMIT 3

-- evidence: gpu_spins_alone
-- says: GPU {gpu} ({rank}) is at {util} % with only {watts} W, the others ({idle}) at 0 %: it spins in a collective that they have not entered
SELECT b.artifact, b.line, b.line AS line_end, b.rank, printf('GPU %s: %.0f %%, %.0f W', b.gpu, b.util, b.watts) AS quote, b.gpu,
       CAST(b.util AS BIGINT) AS util, CAST(b.watts AS BIGINT) AS watts, (SELECT count(*) FROM gpu_load i WHERE i.artifact = b.artifact AND i.util <= 5) AS idle
FROM gpu_load b WHERE b.util >= 95 AND b.watts < 250
  AND (SELECT count(*) FROM gpu_load o WHERE o.artifact = b.artifact AND o.util > 5) = 1
  AND EXISTS (SELECT 1 FROM gpu_load i WHERE i.artifact = b.artifact AND i.util <= 5)
ORDER BY b.artifact, b.gpu LIMIT 2

-- evidence: gpus_spin_together
-- says: all {n} GPUs are at 100 % with little power: they wait inside collectives, nobody computes
SELECT artifact, min(line) AS line, min(line) AS line_end, printf('%d GPUs, %.0f W on average', count(*), avg(watts)) AS quote, count(*) AS n
FROM gpu_load GROUP BY artifact HAVING count(*) >= 2 AND min(util) >= 95 AND max(watts) < 250 LIMIT 2
