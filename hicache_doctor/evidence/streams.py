"""Decision streams as far as logs give them, and the first ordinal at which two of them differ.

Replicated schedulers make the same decisions in the same order, so the k-th prefill batch of two stages must hold the
same requests with the same cached prefix (SGLang issue #22607). Streams are aligned by ordinal, never by time (#34572).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

MIN_COMMON = 4
MAX_SHIFT = 40
RESYNC = 6
DRIFT = 0.05
DRIFT_RUN = 3

CREATE = """
CREATE OR REPLACE TABLE divergence (
  stream VARCHAR, ordinal BIGINT, rank_a VARCHAR, rank_b VARCHAR, value_a VARCHAR, value_b VARCHAR,
  artifact_a VARCHAR, line_a BIGINT, artifact_b VARCHAR, line_b BIGINT, quote_a VARCHAR, quote_b VARCHAR,
  common BIGINT, delta BIGINT, page_multiple BOOLEAN, key VARCHAR, sure BOOLEAN);
CREATE OR REPLACE TABLE stream_pair (
  stream VARCHAR, rank_a VARCHAR, rank_b VARCHAR, common BIGINT, shift BIGINT, diverged BOOLEAN);
"""

VIEWS = """
CREATE OR REPLACE VIEW prefetch AS
  SELECT artifact, line, rank, ts, kind, fields->>'rid' AS rid, fields->>'outcome' AS outcome,
         CAST(fields->>'local' AS BIGINT) AS completed_local, CAST(fields->>'synced' AS BIGINT) AS completed_synced,
         CAST(fields->>'matched' AS BIGINT) AS matched, CAST(fields->>'loaded' AS BIGINT) AS loaded,
         CAST(fields->>'occupied' AS BIGINT) AS occupied, text
  FROM log WHERE kind IN ('prefetch_local_synced', 'prefetch_agreed');
CREATE OR REPLACE VIEW capacity AS
  SELECT rank, tokens, source, artifact, line, quote FROM (
    SELECT rank, CAST(fields->>'tokens' AS BIGINT) AS tokens, 'log' AS source, artifact, line, text AS quote
    FROM log WHERE kind = 'host_pool_tokens' AND fields->>'pool' IN ('kv', 'KV')
    UNION ALL
    SELECT rank, CAST(fields->>'tokens' AS BIGINT), 'log', artifact, line, text
    FROM log WHERE kind = 'hicache_initialized'
    UNION ALL
    SELECT rank, CAST(max(value) AS BIGINT), 'metric', artifact, min(line),
           'hicache_host_total_tokens ' || CAST(max(value) AS BIGINT)
    FROM sample WHERE name = 'hicache_host_total_tokens' GROUP BY rank, artifact)
  WHERE rank IS NOT NULL;
CREATE OR REPLACE VIEW rss_slope AS
  SELECT rank, pid, any_value(artifact) AS artifact, min(line) AS line, count(*) AS n,
         regr_slope(value, ts) * 3600 AS per_hour, regr_r2(value, ts) AS r2, (max(ts) - min(ts)) / 3600 AS hours,
         min(value) AS lowest, max(value) AS highest, arg_max(value, ts) - arg_min(value, ts) AS growth
  FROM sample WHERE name = 'rss_bytes' AND ts IS NOT NULL GROUP BY rank, pid HAVING count(*) >= 4;
CREATE OR REPLACE VIEW rss_slope_idle AS
  WITH pairs AS (
    SELECT s.rank, s.pid, s.ts, s.value, q.value AS qps,
           s.value - lag(s.value) OVER w AS grown, s.ts - lag(s.ts) OVER w AS took, lag(q.value) OVER w AS before
    FROM sample s JOIN sample q ON q.name = 'qps' AND q.artifact = s.artifact AND q.line = s.line
    WHERE s.name = 'rss_bytes' WINDOW w AS (PARTITION BY s.rank, s.pid ORDER BY s.ts))
  SELECT rank, pid, qps = 0 AND before = 0 AS idle, sum(grown) / nullif(sum(took), 0) * 3600 AS per_hour, count(*) AS n
  FROM pairs WHERE took > 0 GROUP BY ALL;
"""


def derive(store: Store, page_size: int | None) -> None:
    """Create the views and fill ``divergence`` and ``stream_pair``."""
    store.con.execute(CREATE)
    store.con.execute(VIEWS)
    _batches(store, page_size)
    _prefetches(store, page_size)


def stage_of(rank: str) -> int | None:
    """The PP position in a rank label."""
    for token in rank.split():
        if token.startswith("PP") and token[2:].isdigit():
            return int(token[2:])
    return None


def _replica(rank: str) -> str:
    """What must be equal for two ranks to replicate each other: the DP group."""
    return " ".join(t for t in rank.split() if t.startswith("DP"))


# -- prefill batches ----------------------------------------------------------------------------------------------


def _batches(store: Store, page_size: int | None) -> None:
    streams: dict[str, list[dict[str, Any]]] = defaultdict(list)
    sql = """SELECT rank, new_seq, new_token, cached_token, usage, artifact, line, ts FROM batch
             WHERE kind = 'prefill' AND rank IS NOT NULL AND new_token IS NOT NULL
             ORDER BY rank, ts NULLS FIRST, artifact, line"""
    for row in store.rows(sql):
        streams[row["rank"]].append(row)
    started = {
        r["rank"] for r in store.rows("SELECT DISTINCT rank FROM log WHERE kind IN ('init_distributed', 'pool_sizes')")
    }
    leaders: dict[tuple[str, int], str] = {}
    for rank in sorted(streams, key=lambda r: (-len(streams[r]), r)):
        stage = stage_of(rank)
        if stage is not None:
            leaders.setdefault((_replica(rank), stage), rank)
    pairs, found = [], []
    for (replica, stage), rank in sorted(leaders.items()):
        if stage == 0 or (replica, 0) not in leaders:
            continue
        first = leaders[(replica, 0)]
        drift = _usage_drift(first, streams[first], rank, streams[rank])
        if drift is not None:
            found.append(drift)
        both = first in started and rank in started
        pair, divergence = _align(first, streams[first], rank, streams[rank], both, page_size)
        pairs.append(pair)
        if divergence is not None:
            found.append(divergence)
    store.fill("stream_pair", pairs)
    store.fill("divergence", found)


def _value(row: dict[str, Any]) -> tuple[int | None, int | None, int | None]:
    return row["new_seq"], row["new_token"], row["cached_token"]


def _align(
    name_a: str, a: list[dict[str, Any]], name_b: str, b: list[dict[str, Any]], from_start: bool, page: int | None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Align two streams by ordinal and find where they part.

    A stream that was cut at its head is shifted to the best fit; a difference after which the two agree again with
    another shift is a lost line, not a divergence.
    """
    va, vb = [_value(r) for r in a], [_value(r) for r in b]
    shift = 0 if from_start else _best_shift(va, vb)
    start_a, start_b = max(0, shift), max(0, -shift)
    n = min(len(va) - start_a, len(vb) - start_b)
    common = 0
    while common < n and va[start_a + common] == vb[start_b + common]:
        common += 1
    pair = {
        "stream": "prefill batch",
        "rank_a": name_a,
        "rank_b": name_b,
        "common": common,
        "shift": shift,
        "diverged": False,
    }
    if common >= n or (common < MIN_COMMON and not from_start):
        return pair, None
    i, j = start_a + common, start_b + common
    if _resyncs(va, vb, i, j):
        return pair, None
    pair["diverged"] = True
    ra, rb = a[i], b[j]
    delta = abs((ra["cached_token"] or 0) - (rb["cached_token"] or 0))
    return pair, {
        "stream": "prefill batch",
        "ordinal": common,
        "rank_a": name_a,
        "rank_b": name_b,
        "value_a": _say(ra),
        "value_b": _say(rb),
        "artifact_a": ra["artifact"],
        "line_a": ra["line"],
        "artifact_b": rb["artifact"],
        "line_b": rb["line"],
        "quote_a": _say(ra),
        "quote_b": _say(rb),
        "common": common,
        "delta": delta,
        "page_multiple": None if not page or page < 2 or not delta else delta % page == 0,
        "key": None,
        "sure": common >= MIN_COMMON,
    }


def _usage_drift(name_a: str, a: list[dict[str, Any]], name_b: str, b: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first of several batches in a row that are equal on both stages but leave the pools differently full: what
    one stage still locks and the other has let go (#27285)."""
    run = 0
    for ordinal, (ra, rb) in enumerate(zip(a, b, strict=False)):
        if _value(ra) != _value(rb) or ra["usage"] is None or rb["usage"] is None:
            return None
        run = run + 1 if abs(ra["usage"] - rb["usage"]) >= DRIFT else 0
        if run == DRIFT_RUN:
            start = ordinal - DRIFT_RUN + 1
            ra, rb = a[start], b[start]
            usage = [f"token usage {r['usage']:.2f}" for r in (ra, rb)]
            said = [f"{_say(r)}, {u}" for r, u in zip((ra, rb), usage, strict=True)]
            return {
                "stream": "token usage after the prefill batch",
                "ordinal": start,
                "rank_a": name_a,
                "rank_b": name_b,
                "value_a": usage[0],
                "value_b": usage[1],
                "artifact_a": ra["artifact"],
                "line_a": ra["line"],
                "artifact_b": rb["artifact"],
                "line_b": rb["line"],
                "quote_a": said[0],
                "quote_b": said[1],
                "common": start,
                "delta": None,
                "page_multiple": None,
                "key": None,
                "sure": True,
            }
    return None


def _say(row: dict[str, Any]) -> str:
    return f"#new-seq {row['new_seq']}, #new-token {row['new_token']}, #cached-token {row['cached_token']}"


def _best_shift(va: list[Any], vb: list[Any]) -> int:
    """The shift of b against a with the longest agreeing run from the start of the overlap; 0 if none agrees."""
    best, best_run = 0, 0
    for shift in sorted(range(-MAX_SHIFT, MAX_SHIFT + 1), key=abs):
        sa, sb = max(0, shift), max(0, -shift)
        run = 0
        while sa + run < len(va) and sb + run < len(vb) and va[sa + run] == vb[sb + run]:
            run += 1
        if run > best_run:
            best, best_run = shift, run
    return best


def _resyncs(va: list[Any], vb: list[Any], i: int, j: int) -> bool:
    """Whether the streams agree again right after a few lines missing on one side."""
    for s in range(1, 4):
        for x, y in ((i + s, j), (i, j + s)):
            if len(va) - x >= RESYNC and len(vb) - y >= RESYNC and va[x : x + RESYNC] == vb[y : y + RESYNC]:
                return True
    return False


# -- prefetches ---------------------------------------------------------------------------------------------------


def _prefetches(store: Store, page_size: int | None) -> None:
    """Settled prefetches by request: what two stages loaded for the same request must be equal."""
    by_request: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    order: list[str] = []
    for row in store.rows("SELECT * FROM prefetch WHERE rank IS NOT NULL AND rid IS NOT NULL ORDER BY artifact, line"):
        if row["rid"] not in by_request:
            order.append(row["rid"])
        by_request[row["rid"]].setdefault(row["rank"], row)
    found = []
    for ordinal, rid in enumerate(order):
        stages: dict[int, dict[str, Any]] = {}
        for rank, row in sorted(by_request[rid].items()):
            stage = stage_of(rank)
            if stage is not None:
                stages.setdefault(stage, row)
        if len(stages) < 2:
            continue
        (_, first), *rest = sorted(stages.items())
        for _, other in rest:
            if (first["outcome"], first["loaded"]) == (other["outcome"], other["loaded"]):
                continue
            delta = abs((first["loaded"] or 0) - (other["loaded"] or 0))
            found.append(
                {
                    "stream": "settled prefetch",
                    "ordinal": ordinal,
                    "rank_a": first["rank"],
                    "rank_b": other["rank"],
                    "value_a": f"{first['outcome']}, loaded {first['loaded']}",
                    "value_b": f"{other['outcome']}, loaded {other['loaded']}",
                    "artifact_a": first["artifact"],
                    "line_a": first["line"],
                    "artifact_b": other["artifact"],
                    "line_b": other["line"],
                    "quote_a": first["text"],
                    "quote_b": other["text"],
                    "common": ordinal,
                    "delta": delta,
                    "page_multiple": None if not page_size or not delta else delta % page_size == 0,
                    "key": rid,
                    "sure": True,
                }
            )
    store.fill("divergence", found)


def first(store: Store) -> dict[str, Any] | None:
    """The earliest divergence by line order of the first stage; None when the streams agree as far as they go."""
    rows = store.rows("SELECT * FROM divergence WHERE sure ORDER BY line_a LIMIT 1")
    return rows[0] if rows else None
