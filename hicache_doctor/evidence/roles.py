"""Who failed first and who failed because of it: the order of proof.

An exception of its own beats a native crash, that beats a time-out text, that beats "closed by peer", that beats a bare
SIGQUIT. Time stamps only order ranks of the same proof: clocks of hosts are not to be trusted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hicache_doctor.evidence import deaths

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

ORDER = ("own", "native", "timeout", "peer_closed", "signal")

CREATE = """
CREATE OR REPLACE TABLE rank_role (
  rank VARCHAR, proof VARCHAR, role VARCHAR, artifact VARCHAR, line BIGINT, line_end BIGINT, ts DOUBLE,
  type VARCHAR, message VARCHAR, thread VARCHAR, quote VARCHAR, place VARCHAR, position BIGINT)
"""

WITNESSES = """
WITH own AS (
  SELECT e.rank, e.proof, e.artifact, e.line, e.line_end, e.ts, e.type, e.message, e.thread, p.place,
         e.type || CASE WHEN e.message = '' THEN '' ELSE ': ' || e.message END AS quote
  FROM exception e LEFT JOIN place p ON p.stack = e.stack
  WHERE e.proof <> 'analyser' AND e.type <> ''),
native AS (
  SELECT rank, 'native', artifact, line, line_end, ts, 'Fatal Python error', (fields->>'what'), NULL, NULL, text
  FROM log WHERE kind = 'fatal_python'
  UNION ALL
  SELECT rank, 'native', artifact, line, line, ts, signal, quote, NULL, NULL, quote FROM native_death),
late AS (
  SELECT rank, 'timeout', artifact, line, line_end, ts, 'timeout', text, NULL, NULL, text
  FROM log WHERE kind IN ('nccl_timeout', 'watchdog_timeout', 'gloo_timeout')
     OR (kind = 'nccl_pg_status' AND text LIKE '%watchdog at work%'))
SELECT * FROM own UNION ALL SELECT * FROM native UNION ALL SELECT * FROM late
ORDER BY artifact, line
"""


def derive(store: Store) -> None:
    """Fill ``rank_role`` (one row a rank, its strongest and earliest proof) and the ``role`` of each exception."""
    deaths.derive(store)
    store.con.execute(CREATE)
    witnesses = store.rows(WITNESSES)
    named = bool(
        store.value("SELECT count(*) FROM log WHERE kind IN ('scheduler_exception', 'sigquit') OR rank LIKE '%P%'")
    )
    best: dict[str | None, dict[str, Any]] = {}
    for w in witnesses:
        if w["rank"] is None and ((named and not _of_a_scheduler(w)) or w["proof"] == "signal"):
            continue
        known = best.get(w["rank"])
        if known is None or _key(w) < _key(known):
            best[w["rank"]] = w
    ranked = sorted(best.values(), key=_key)
    top = ranked[0]["proof"] if ranked else None
    rows = []
    for position, w in enumerate(ranked):
        role = "victim"
        if w["proof"] == top and top in {"own", "native"}:
            role = "first"
        elif top in {"timeout", "peer_closed", "signal"}:
            role = "victim" if w["proof"] in {"peer_closed", "signal"} else "unknown"
        rows.append({**w, "role": role, "position": position})
    store.fill("rank_role", rows)
    store.con.execute(
        "UPDATE exception SET role = r.role FROM rank_role r "
        "WHERE exception.rank IS NOT DISTINCT FROM r.rank AND exception.artifact = r.artifact "
        "AND exception.line = r.line"
    )
    store.con.execute(
        "UPDATE exception SET role = 'victim' WHERE role = 'unknown' AND proof IN ('peer_closed', 'signal')"
    )


def _of_a_scheduler(w: dict[str, Any]) -> bool:
    """Where ranks have names, an exception without one (a client's, the HTTP server's) counts only when its frames
    are a scheduler's."""
    return w["place"] not in {None, "elsewhere"} or w["proof"] != "own"


def _key(w: dict[str, Any]) -> tuple[int, float, str, int]:
    return (
        ORDER.index(w["proof"]) if w["proof"] in ORDER else len(ORDER),
        w["ts"] if w["ts"] is not None else float("inf"),
        w["artifact"],
        w["line"] or 0,
    )
