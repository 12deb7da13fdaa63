"""Gauges over time, as views over the samples: several scrapes, files of one scrape each, or a range query.

``gauge_slope``: one row a series (rank, process, name and labels): first and last value, the slope an hour by least
squares with its fit, how long. ``gauge_end``: the last quarter of a series, whether it stands still and for how long.
``token_stop``: the token counters of a rank that stand for five minutes or more while requests run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

VIEWS = r"""
CREATE OR REPLACE VIEW gauge_point AS
  SELECT artifact, line, rank, pid, name, ts, value,
         regexp_replace(CAST(labels AS VARCHAR), ',?\s*"scrape":\s*\d+', '') AS series
  FROM sample WHERE ts IS NOT NULL AND isfinite(value);
CREATE OR REPLACE VIEW gauge_slope AS
  SELECT rank, pid, name, series, arg_min(artifact, ts) AS artifact, arg_min(line, ts) AS line,
         arg_max(artifact, ts) AS last_artifact, arg_max(line, ts) AS last_line, count(DISTINCT ts) AS n,
         arg_min(value, ts) AS first, arg_max(value, ts) AS last, min(value) AS lowest, max(value) AS highest,
         regr_slope(value, ts) * 3600 AS per_hour, coalesce(regr_r2(value, ts), 1) AS r2,
         (max(ts) - min(ts)) / 3600 AS hours
  FROM gauge_point GROUP BY rank, pid, name, series HAVING count(DISTINCT ts) >= 3;
CREATE OR REPLACE VIEW gauge_end AS
  WITH p AS (
    SELECT *, row_number() OVER w AS back, count(*) OVER (PARTITION BY rank, pid, name, series) AS n
    FROM gauge_point WINDOW w AS (PARTITION BY rank, pid, name, series ORDER BY ts DESC, line DESC))
  SELECT rank, pid, name, series, arg_max(artifact, ts) AS artifact, arg_max(line, ts) AS line, any_value(n) AS n,
         min(value) = max(value) AS still, min(value) AS lowest, arg_max(value, ts) AS last,
         max(ts) - min(ts) AS seconds
  FROM p WHERE back <= greatest(3, n // 4) GROUP BY rank, pid, name, series HAVING any_value(n) >= 4;
CREATE OR REPLACE VIEW token_stop AS
  SELECT t.*, r.lowest AS running FROM gauge_end t JOIN gauge_end r ON r.rank IS NOT DISTINCT FROM t.rank
    AND r.pid IS NOT DISTINCT FROM t.pid AND r.series = t.series AND r.name = 'num_running_reqs' AND r.lowest > 0
  WHERE t.name IN ('generation_tokens_total', 'prompt_tokens_total') AND t.still AND t.seconds >= 300 AND t.last > 0
    AND NOT EXISTS (SELECT 1 FROM gauge_end o WHERE o.name IN ('generation_tokens_total', 'prompt_tokens_total')
                    AND o.rank IS NOT DISTINCT FROM t.rank AND o.pid IS NOT DISTINCT FROM t.pid AND NOT o.still);
"""


def derive(store: Store) -> None:
    """Create the views."""
    store.con.execute(VIEWS)
