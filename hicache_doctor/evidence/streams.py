"""Decision streams as far as logs give them, and the first ordinal at which two of them differ.

Replicated schedulers make the same decisions in the same order, so the k-th prefill batch of two stages must hold the
same requests with the same cached prefix (SGLang issue #22607). Streams are aligned by ordinal, never by time (#34572).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hicache_doctor.evidence.rows import ORDINAL_BASE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
  common BIGINT, delta BIGINT, page_multiple BOOLEAN, key VARCHAR, sure BOOLEAN,
  step BIGINT, tier INTEGER, lane BIGINT, sub BIGINT, record_a BIGINT, record_b BIGINT, ea BIGINT, eb BIGINT);
CREATE OR REPLACE TABLE stream_pair (
  stream VARCHAR, rank_a VARCHAR, rank_b VARCHAR, common BIGINT, shift BIGINT, diverged BOOLEAN);
"""

VIEWS = """
CREATE OR REPLACE VIEW prefetch AS
  SELECT artifact, line, rank, ts, kind, (fields->>'rid') AS rid, (fields->>'outcome') AS outcome,
         CAST(fields->>'local' AS BIGINT) AS completed_local, CAST(fields->>'synced' AS BIGINT) AS completed_synced,
         CAST(fields->>'matched' AS BIGINT) AS matched, CAST(fields->>'loaded' AS BIGINT) AS loaded,
         CAST(fields->>'occupied' AS BIGINT) AS occupied, text
  FROM log WHERE kind IN ('prefetch_local_synced', 'prefetch_agreed');
CREATE OR REPLACE VIEW capacity AS
  SELECT rank, tokens, source, artifact, line, quote, record FROM (
    SELECT rank, CAST(fields->>'tokens' AS BIGINT) AS tokens, 'log' AS source, artifact, line, text AS quote,
           NULL AS record
    FROM log WHERE kind = 'host_pool_tokens' AND (fields->>'pool') IN ('kv', 'KV')
    UNION ALL
    SELECT rank, CAST(fields->>'tokens' AS BIGINT), 'log', artifact, line, text, NULL
    FROM log WHERE kind = 'hicache_initialized'
    UNION ALL
    SELECT rank, CAST(max(value) AS BIGINT), 'metric', artifact, min(line),
           'hicache_host_total_tokens ' || CAST(max(value) AS BIGINT), NULL
    FROM sample WHERE name = 'hicache_host_total_tokens' GROUP BY rank, artifact
    UNION ALL
    SELECT rank, a, 'probe', artifact, NULL, 'host_tokens ' || a, record
    FROM event WHERE kind = 'start' AND key = 2)
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


@dataclass(slots=True)
class _Stream:
    """The prefill batches of one rank in order, as arrays (a big log has millions): requests, new and cached tokens;
    the pool's use; the row in the store. ``base`` batches came before the first one."""

    rank: str
    values: NDArray[np.int64]
    usage: NDArray[np.float64]
    rowid: NDArray[np.int64]
    base: int = 0


def _batches(store: Store, page_size: int | None) -> None:
    counts = store.rows(
        "SELECT rank, count(*) AS n FROM batch WHERE kind = 'prefill' AND rank IS NOT NULL AND new_token IS NOT NULL "
        "GROUP BY rank ORDER BY n DESC, rank"
    )
    leaders: dict[tuple[str, int], str] = {}
    for row in counts:
        stage = stage_of(row["rank"])
        if stage is not None:
            leaders.setdefault((_replica(row["rank"]), stage), row["rank"])
    started = {
        r["rank"] for r in store.rows("SELECT DISTINCT rank FROM log WHERE kind IN ('init_distributed', 'pool_sizes')")
    }
    pairs, found = [], []
    loaded: dict[str, _Stream] = {}
    for (replica, stage), rank in sorted(leaders.items()):
        if stage == 0 or (replica, 0) not in leaders:
            continue
        first = leaders[(replica, 0)]
        if first not in loaded:
            loaded = {first: _load(store, first)}
        a, b = loaded[first], _load(store, rank)
        pair, at = _align(a, b, from_start=first in started and rank in started)
        pairs.append(pair)
        drift = _usage_drift(a, b)
        if drift is not None:
            found.append(_drift_row(store, a, b, drift))
        if at is not None:
            found.append(_difference_row(store, a, b, at, pair["common"], page_size))
    store.fill("stream_pair", pairs)
    store.fill("divergence", found)


def _load(store: Store, rank: str) -> _Stream:
    import numpy as np

    # Within a second the order is that of reading, not of lines: an export may stand newest first.
    columns = store.con.execute(
        "SELECT rowid, coalesce(new_seq, -1) AS s, new_token AS t, coalesce(cached_token, -1) AS c, "
        "coalesce(usage, -1) AS u FROM batch WHERE kind = 'prefill' AND rank = ? AND new_token IS NOT NULL "
        "ORDER BY ts NULLS FIRST, artifact, rowid",
        [rank],
    ).fetchnumpy()
    base = store.value("SELECT sum(value) FROM sample WHERE name = ? AND rank = ?", [ORDINAL_BASE, rank])
    values = np.stack([np.asarray(columns[k], dtype=np.int64) for k in ("s", "t", "c")], axis=1)
    usage = np.asarray(columns["u"], dtype=np.float64)
    return _Stream(rank, values, usage, np.asarray(columns["rowid"], dtype=np.int64), int(base or 0))


def _align(a: _Stream, b: _Stream, *, from_start: bool) -> tuple[dict[str, Any], tuple[int, int] | None]:
    """Align two streams by ordinal and find where they part: the positions in each, or None.

    A stream that was cut at its head is shifted to the best fit, or by the batches that came before its first row. A
    difference after which the two agree again with another shift is a lost line, not a divergence.
    """
    shift = b.base - a.base if from_start else _best_shift(a.values, b.values)
    start_a, start_b = max(0, shift), max(0, -shift)
    n = max(0, min(len(a.values) - start_a, len(b.values) - start_b))
    common = _run(a.values[start_a : start_a + n], b.values[start_b : start_b + n])
    pair = {
        "stream": "prefill batch",
        "rank_a": a.rank,
        "rank_b": b.rank,
        "common": common,
        "shift": shift,
        "diverged": False,
    }
    i, j = start_a + common, start_b + common
    if common >= n or (common < MIN_COMMON and not from_start) or _resyncs(a.values, b.values, i, j):
        return pair, None
    pair["diverged"] = True
    return pair, (i, j)


def _run(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """How many batches agree from the start of two stretches of the same length."""
    equal = (a == b).all(axis=1)
    return int(len(equal) if equal.all() else equal.argmin())


def _best_shift(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """The shift of b against a with the longest agreeing run from the start of the overlap; 0 if none agrees."""
    best, best_run = 0, 0
    for shift in sorted(range(-MAX_SHIFT, MAX_SHIFT + 1), key=abs):
        x, y = a[max(0, shift) :], b[max(0, -shift) :]
        n = min(len(x), len(y))
        run = _run(x[:n], y[:n])
        if run > best_run:
            best, best_run = shift, run
    return best


def _resyncs(a: NDArray[np.int64], b: NDArray[np.int64], i: int, j: int) -> bool:
    """Whether the streams agree again right after a few lines missing on one side."""
    for s in range(1, 4):
        for x, y in ((i + s, j), (i, j + s)):
            if len(a) - x >= RESYNC and len(b) - y >= RESYNC and bool((a[x : x + RESYNC] == b[y : y + RESYNC]).all()):
                return True
    return False


def _usage_drift(a: _Stream, b: _Stream) -> int | None:
    """The first of several batches in a row that are equal on both stages but leave the pools differently full: what
    one stage still locks and the other has let go (#27285). None when there is none."""
    import numpy as np

    if a.base != b.base:
        return None
    n = min(len(a.values), len(b.values))
    n = _run(a.values[:n], b.values[:n])
    ua, ub = a.usage[:n], b.usage[:n]
    apart = (np.abs(ua - ub) >= DRIFT - 1e-9) & (ua >= 0) & (ub >= 0)
    if n < DRIFT_RUN:
        return None
    runs = np.lib.stride_tricks.sliding_window_view(apart, DRIFT_RUN).all(axis=1)
    return int(runs.argmax()) if runs.any() else None


def _row(store: Store, stream: _Stream, position: int) -> dict[str, Any]:
    rows = store.rows(
        "SELECT artifact, line, new_seq, new_token, cached_token, usage FROM batch WHERE rowid = ?",
        [int(stream.rowid[position])],
    )
    return rows[0]


def _difference_row(
    store: Store, a: _Stream, b: _Stream, at: tuple[int, int], common: int, page: int | None
) -> dict[str, Any]:
    ra, rb = _row(store, a, at[0]), _row(store, b, at[1])
    delta = abs((ra["cached_token"] or 0) - (rb["cached_token"] or 0))
    return _divergence(
        "prefill batch",
        a.base + at[0],
        (a.rank, ra, _say(ra), _say(ra)),
        (b.rank, rb, _say(rb), _say(rb)),
        common=common,
        delta=delta,
        page_multiple=None if not page or page < 2 or not delta else delta % page == 0,
        sure=common >= MIN_COMMON,
    )


def _drift_row(store: Store, a: _Stream, b: _Stream, at: int) -> dict[str, Any]:
    ra, rb = _row(store, a, at), _row(store, b, at)
    usage = [f"token usage {r['usage']:.2f}" for r in (ra, rb)]
    return _divergence(
        "token usage after the prefill batch",
        a.base + at,
        (a.rank, ra, usage[0], f"{_say(ra)}, {usage[0]}"),
        (b.rank, rb, usage[1], f"{_say(rb)}, {usage[1]}"),
        common=at,
    )


def _divergence(
    stream: str,
    ordinal: int,
    a: tuple[str, dict[str, Any], str, str],
    b: tuple[str, dict[str, Any], str, str],
    *,
    common: int,
    delta: int | None = None,
    page_multiple: bool | None = None,
    key: str | None = None,
    sure: bool = True,
) -> dict[str, Any]:
    """A row of the table; ``a`` and ``b`` are (rank, where it was read, value, quote)."""
    row: dict[str, Any] = {"stream": stream, "ordinal": ordinal}
    for side, (rank, read, value, quote) in (("a", a), ("b", b)):
        row |= {
            f"rank_{side}": rank,
            f"value_{side}": value,
            f"artifact_{side}": read["artifact"],
            f"line_{side}": read["line"],
            f"quote_{side}": quote,
        }
    return row | {"common": common, "delta": delta, "page_multiple": page_multiple, "key": key, "sure": sure}


def _say(row: dict[str, Any]) -> str:
    return f"#new-seq {row['new_seq']}, #new-token {row['new_token']}, #cached-token {row['cached_token']}"


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
        (_, first_row), *rest = sorted(stages.items())
        for _, other in rest:
            if (first_row["outcome"], first_row["loaded"]) == (other["outcome"], other["loaded"]):
                continue
            delta = abs((first_row["loaded"] or 0) - (other["loaded"] or 0))
            sides = [(r["rank"], r, f"{r['outcome']}, loaded {r['loaded']}", r["text"]) for r in (first_row, other)]
            found.append(
                _divergence(
                    "settled prefetch",
                    ordinal,
                    sides[0],
                    sides[1],
                    common=ordinal,
                    delta=delta,
                    page_multiple=None if not page_size or not delta else delta % page_size == 0,
                    key=rid,
                )
            )
    store.fill("divergence", found)


def first(store: Store) -> dict[str, Any] | None:
    """The earliest divergence by line order of the first stage; None when the streams agree as far as they go."""
    rows = store.rows("SELECT * FROM divergence WHERE sure AND tier IS NULL ORDER BY line_a LIMIT 1")
    return rows[0] if rows else None
