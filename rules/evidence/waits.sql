-- Who waits for whom: the tables of the wait-for graph. A call lacks the ranks that others wait for in it.

-- evidence: waits_found
-- says: {waiters} ranks wait for {rank}
SELECT c.artifact, c.line, c.record, c.rank, c.quote, c.waiters FROM wait_culprit c
WHERE c.reason = 'alone_inside' OR EXISTS (SELECT 1 FROM wait_edge e WHERE NOT e.idle) ORDER BY c.component, c.rank LIMIT 8

-- evidence: wait_not_entered
-- says: {rank} never entered {call} of group {grp}; {waiter} waits in it
SELECT e.artifact, e.line, e.record, e.quote, c.rank, e.operation || coalesce(' ' || e.seq, '') AS call, e.grp, e.rank AS waiter FROM wait_culprit c
JOIN wait_edge e ON e.on_rank = c.rank AND e.why = 'not_entered' AND c.reason <> 'cycle' ORDER BY c.component, c.rank, e.rank LIMIT 8

-- evidence: wait_queued_behind
-- says: {rank} has {call} of group {grp}, in which {waiter} waits, queued behind {detail}, which does not end
SELECT e.artifact, e.line, e.record, e.quote, c.rank, e.operation || coalesce(' ' || e.seq, '') AS call, e.grp, e.detail, e.rank AS waiter FROM wait_culprit c
JOIN wait_edge e ON e.on_rank = c.rank AND e.why = 'queued_behind' AND c.reason <> 'cycle' ORDER BY c.component, c.rank, e.rank LIMIT 8

-- evidence: wait_not_started
-- says: {rank} has not started {detail} on its device, {waiter} has
SELECT e.artifact, e.line, e.record, e.quote, c.rank, e.operation, e.detail, e.rank AS waiter FROM wait_culprit c
JOIN wait_edge e ON e.on_rank = c.rank AND e.why = 'not_started' AND c.reason <> 'cycle' ORDER BY c.component, c.rank, e.rank LIMIT 8

-- evidence: wait_alone_inside
-- says: {rank} is still in {operation}, which all other members have behind them
SELECT artifact, line, record, quote, rank, operation FROM wait_culprit WHERE reason = 'alone_inside' ORDER BY position LIMIT 8

-- evidence: wait_no_message
-- says: {rank} has no counterpart of the {operation} in which {waiter} waits for it
SELECT e.artifact, e.line, e.record, e.quote, c.rank, e.operation, e.rank AS waiter FROM wait_culprit c
JOIN wait_edge e ON e.on_rank = c.rank AND e.why = 'no_message' AND c.reason <> 'cycle' ORDER BY c.component, c.rank, e.rank LIMIT 8

-- evidence: wait_no_dump
-- says: nothing shows {rank}, and {waiter} waits for it in {operation}
SELECT e.artifact, e.line, e.record, e.quote, c.rank, e.operation, e.rank AS waiter FROM wait_culprit c
JOIN wait_edge e ON e.on_rank = c.rank AND e.why IN ('no_dump', 'no_time_out') WHERE c.reason IN ('no_dump', 'no_time_out')
ORDER BY c.component, c.rank, e.rank LIMIT 8

-- evidence: wait_elsewhere
-- says: {rank} stands in {detail} while {waiter} waits for it in {operation}
SELECT e.artifact, e.line, e.record, e.quote, c.rank, e.operation, e.detail, e.rank AS waiter FROM wait_culprit c
JOIN wait_edge e ON e.on_rank = c.rank AND e.why = 'elsewhere' AND c.reason <> 'cycle' ORDER BY c.component, c.rank, e.rank LIMIT 8

-- evidence: wait_circle
-- says: {n} ranks wait for each other; {rank} is in {operation} and waits for {next}
SELECT c.artifact, c.line, c.record, c.quote, c.rank, coalesce(c.operation, 'a call') AS operation, count(*) OVER (PARTITION BY c.cycle) AS n,
       coalesce(d.rank, first_value(c.rank) OVER (PARTITION BY c.cycle ORDER BY c.position)) AS next
FROM wait_cycle c LEFT JOIN wait_cycle d ON d.cycle = c.cycle AND d.position = c.position + 1
ORDER BY c.cycle, c.position LIMIT 8

-- evidence: wait_other_call
-- says: under one number of group {grp} {rank} is in {operation} and {other} in {detail}
SELECT artifact, line, record, rank, quote, on_rank AS other, operation, detail, grp FROM wait_edge WHERE why = 'other_call' ORDER BY grp, rank LIMIT 4

-- evidence: wait_other_size
-- says: {call} of group {grp} is of one size or type on {rank} and of another on {other}: {quote} against {detail}
SELECT artifact, line, record, rank, quote, on_rank AS other, operation || coalesce(' ' || seq, '') AS call, detail, grp FROM wait_edge
WHERE why IN ('other_size', 'other_type') ORDER BY grp, rank LIMIT 4

-- evidence: wait_size_parties
-- says: {rank} is one of those that brought different sizes to one call
SELECT artifact, record, rank, quote FROM wait_culprit WHERE reason IN ('other_size', 'other_type') ORDER BY rank

-- evidence: call_skipped
-- says: {rank} skipped the {nth} {operation} and went on to {next}
SELECT artifact, record, rank, quote, ts, other, grp, seq,
       CAST(seq AS VARCHAR) || CASE WHEN seq % 100 IN (11, 12, 13) THEN 'th' WHEN seq % 10 = 1 THEN 'st' WHEN seq % 10 = 2 THEN 'nd'
                                    WHEN seq % 10 = 3 THEN 'rd' ELSE 'th' END AS nth,
       operation || coalesce(' of ' || site, '') AS operation, next_operation || coalesce(' of ' || next_site, '') AS next
FROM skipped_call WHERE kind = 'skipped' ORDER BY ts, grp, rank LIMIT 4

-- evidence: calls_swapped
-- says: {other} and {rank} called {operation} and {next} of group {grp} in swapped order, from call {seq} on
SELECT artifact, record, rank, quote, ts, other, grp, seq, operation || coalesce(' of ' || site, '') AS operation,
       next_operation || coalesce(' of ' || next_site, '') AS next
FROM skipped_call WHERE kind = 'swapped'
UNION ALL
SELECT other_artifact, other_record, other, other_quote, ts, rank, grp, seq, next_operation || coalesce(' of ' || next_site, ''),
       operation || coalesce(' of ' || site, '')
FROM skipped_call WHERE kind = 'swapped' ORDER BY 5, 7, 3 LIMIT 4

-- evidence: calls_parted
-- says: call {seq} of group {grp} is {operation} on {other} and {next} on {rank}
SELECT artifact, record, rank, quote, ts, other, grp, seq, operation || coalesce(' of ' || site, '') AS operation,
       next_operation || coalesce(' of ' || next_site, '') AS next
FROM skipped_call WHERE kind = 'parted' ORDER BY ts, grp, rank LIMIT 4

-- evidence: wait_all_inside
-- says: all members that a dump shows are in {call} of group {grp}, and it does not end
SELECT artifact, line, record, rank, quote, operation || coalesce(' ' || seq, '') AS call, grp FROM wait_node n
WHERE state = 'waiting' AND source = 'flight_recorder' AND NOT EXISTS (SELECT 1 FROM wait_edge e WHERE e.rank = n.rank)
  AND NOT EXISTS (SELECT 1 FROM wait_culprit) ORDER BY rank LIMIT 4
