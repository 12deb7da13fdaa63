"""How far ranks got in their NCCL groups, as views over the log: torch's watchdog lines and NCCL's RAS reports.

``watchdog_work``: one row a rank, group and operation that timed out; ``gap`` is what was enqueued behind it. Nothing
behind it means that the CPU side waits there, much behind it that the CPU side ran on and the GPU or a peer stalls.
``log_standing``: the last operation that each rank enqueued in each group, as it said when something had timed out.
``ras_stuck``: mismatches of a RAS report that no second report shows to advance.
``gpu_load``: what ``nvidia-smi`` showed of each GPU that somebody uses, on average, and whose it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

VIEWS = """
CREATE OR REPLACE VIEW watchdog_work AS
  SELECT *, enqueued - work AS gap FROM (
    SELECT artifact, line, line_end, rank, ts, text, coalesce(regexp_extract(fields->>'group', '^[^ (]+'), '?') AS grp,
           try_cast(coalesce(fields->>'work', fields->>'work2') AS BIGINT) AS work,
           try_cast(fields->>'enqueued' AS BIGINT) AS enqueued, try_cast(fields->>'completed' AS BIGINT) AS completed
    FROM log WHERE kind = 'nccl_pg_status')
  WHERE work IS NOT NULL AND enqueued >= work
  QUALIFY row_number() OVER (PARTITION BY artifact, rank, grp, work ORDER BY line) = 1;
CREATE OR REPLACE VIEW log_standing AS
  SELECT g.rank, g.grp, any_value(g.descr) AS descr, max(g.enqueued) AS enqueued,
         arg_max(g.artifact, g.enqueued) AS artifact, arg_max(g.line, g.enqueued) AS line
  FROM group_status g JOIN log l ON l.artifact = g.artifact AND l.line = g.line
  WHERE g.source = 'log' AND g.rank IS NOT NULL AND l.kind IN ('nccl_pg_status', 'nccl_dump_status')
  GROUP BY g.rank, g.grp;
CREATE OR REPLACE VIEW ras_stuck AS
  WITH m AS (
    SELECT *, fields->>'hash' AS hash, fields->>'operation' AS operation, try_cast(fields->>'least' AS BIGINT) AS least
    FROM log WHERE kind = 'ras_mismatch'),
  moving AS (SELECT hash, operation FROM m WHERE least IS NOT NULL GROUP BY ALL HAVING min(least) < max(least))
  SELECT m.* FROM m LEFT JOIN moving o ON o.hash = m.hash AND o.operation = m.operation
  WHERE o.hash IS NULL AND (m.hash IS NOT NULL OR NOT EXISTS (
    SELECT 1 FROM m k JOIN moving v ON v.hash = k.hash WHERE k.artifact = m.artifact));
CREATE OR REPLACE VIEW gpu_load AS
  WITH g AS (
    SELECT artifact, labels->>'gpu' AS gpu, name, value, line, rank FROM sample WHERE labels->>'gpu' IS NOT NULL),
  owner AS (SELECT artifact, gpu, min(rank) AS rank FROM g WHERE name = 'gpu_process_memory_bytes' GROUP BY ALL)
  SELECT g.artifact, g.gpu, min(g.line) AS line, o.rank,
         avg(g.value) FILTER (name = 'gpu_utilization_percent') AS util,
         avg(g.value) FILTER (name = 'gpu_power_watts') AS watts,
         max(g.value) FILTER (name = 'gpu_memory_used_bytes') AS used
  FROM g LEFT JOIN owner o ON o.artifact = g.artifact AND o.gpu = g.gpu
  WHERE g.name IN ('gpu_utilization_percent', 'gpu_power_watts', 'gpu_memory_used_bytes')
  GROUP BY g.artifact, g.gpu, o.rank HAVING coalesce(used, 1e10) > 1e9;
"""


def derive(store: Store) -> None:
    """Create the views."""
    store.con.execute(VIEWS)
