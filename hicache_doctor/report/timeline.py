"""One lane a rank around the first failure: batches, log records and exceptions, as a plotly figure.

The store is only read, and never more than :data:`POINTS` points of it: the nearest to the failure.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hicache_doctor.report.clean import printable
from hicache_doctor.signatures.verdict import Verdict

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

BEFORE = 300.0
AFTER = 60.0
EXCEPTIONS, LOGS, BATCHES = 500, 1500, 3000
POINTS = EXCEPTIONS + LOGS + BATCHES
LATEST = 4e9  # the year 2096: a time stamp beyond it is a misread number
LOG_KINDS = 6
TEXT = 240

# Middle tones that stand on a light and on a dark page.
_BATCHES = {"prefill": "#4c8dbf", "decode": "#9aa2a9"}
_RED = {"first": "#d6453d", "victim": "#e0908b", "unknown": "#c76b98"}
_LOGS = ("#b8892b", "#6f9e52", "#8d79b8", "#4f9f96", "#b5713f", "#7d8794")

_EXCEPTIONS = """
SELECT ts, rank, role AS kind, type || ': ' || message AS text, artifact, line, count(*) OVER () AS total
FROM exception WHERE ts BETWEEN $1 AND $2 ORDER BY abs(ts - $3), artifact, line LIMIT $4"""
_LOG = """
SELECT ts, rank, kind, text, artifact, line, count(*) OVER () AS total
FROM log WHERE ts BETWEEN $1 AND $2 ORDER BY abs(ts - $3), artifact, line LIMIT $4"""
_BATCH = """
SELECT ts, rank, kind, concat_ws(', ', kind || ' batch', '#new-seq ' || new_seq, '#new-token ' || new_token,
  '#cached-token ' || cached_token, '#running-req ' || running, '#queue-req ' || queue) AS text,
  artifact, line, count(*) OVER () AS total
FROM batch WHERE ts BETWEEN $1 AND $2 ORDER BY abs(ts - $3), artifact, line LIMIT $4"""


@dataclass(frozen=True, slots=True)
class Timeline:
    """A figure as JSON (for a script data block: no ``<`` in it), its height in pixels, and what it leaves out."""

    figure: str
    height: int
    points: int
    left_out: int


def build_timeline(verdict: Verdict, store: Store) -> Timeline | None:
    """The timeline, or None when nothing in the store has a time."""
    at = first_failure(verdict, store)
    if at is None:
        return None
    window = [at - BEFORE, at + AFTER, at]
    groups = [
        (query, offset, store.rows(query, [*window, limit]))
        for query, offset, limit in ((_BATCH, -0.2, BATCHES), (_LOG, 0.0, LOGS), (_EXCEPTIONS, 0.2, EXCEPTIONS))
    ]
    points = [row for _, _, rows in groups for row in rows]
    if not points:
        return None
    ranks = sorted({str(r["rank"]) for r in points if r["rank"] is not None}, key=_natural)
    lanes = {rank: i for i, rank in enumerate(ranks)}
    if any(r["rank"] is None for r in points):
        lanes[""] = len(lanes)
    traces: list[dict[str, Any]] = []
    for query, offset, rows in groups:
        traces += _traces(query, offset, rows, lanes)
    left_out = sum(rows[0]["total"] - len(rows) for _, _, rows in groups if rows)
    height = 130 + 30 * len(lanes)
    return Timeline(_figure(traces, lanes, at, height), height, len(points), left_out)


def first_failure(verdict: Verdict, store: Store) -> float | None:
    """The time of the first failure: that of the verdict's chain, else the first exception, else the last record."""
    for link in verdict.evidence_chain:
        for c in link.citations:
            if c.line is not None:
                sql = "SELECT min(ts) FROM exception WHERE artifact = ? AND line = ?"
                at = store.value(sql, [c.artifact, c.line])
                if at is not None and 0 <= at <= LATEST:
                    return float(at)
    at = store.value("SELECT coalesce(min(ts) FILTER (role = 'first'), min(ts)) FROM exception")
    if at is None:
        at = store.value("SELECT max(ts) FROM (SELECT ts FROM log UNION ALL SELECT ts FROM batch)")
    return float(at) if at is not None and 0 <= at <= LATEST else None


def _traces(query: str, offset: float, rows: list[dict[str, Any]], lanes: dict[str, int]) -> list[dict[str, Any]]:
    """One trace a kind; the rarest kinds of log records share one."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_kind.setdefault(str(row["kind"]), []).append(row)
    kinds = sorted(by_kind, key=lambda k: (-len(by_kind[k]), k))
    if query is _LOG and len(kinds) > LOG_KINDS:
        rest = kinds[LOG_KINDS - 1 :]
        by_kind["other records"] = [row for k in rest for row in by_kind[k]]
        kinds = [*kinds[: LOG_KINDS - 1], "other records"]
    out = []
    for i, kind in enumerate(kinds):
        name, marker = _look(query, kind, i)
        chosen = sorted(by_kind[kind], key=lambda r: r["ts"])
        out.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": _shown(name),
                "x": [_iso(r["ts"]) for r in chosen],
                "y": [lanes["" if r["rank"] is None else str(r["rank"])] + offset for r in chosen],
                "hovertext": [_hover(r) for r in chosen],
                "hoverinfo": "text",
                "marker": marker,
            }
        )
    return out


def _look(query: str, kind: str, index: int) -> tuple[str, dict[str, Any]]:
    """The name in the legend and the marker of one kind."""
    if query is _BATCH:
        return f"{kind} batch", {"color": _BATCHES.get(kind, "#4c8dbf"), "size": 8, "symbol": "line-ns-open"}
    if query is _LOG:
        return kind, {"color": _LOGS[index], "size": 6, "symbol": "circle"}
    name = {"first": "exception, first", "victim": "exception, victim"}.get(kind, "exception")
    return name, {"color": _RED.get(kind, _RED["unknown"]), "size": 10, "symbol": "diamond"}


def _figure(traces: list[dict[str, Any]], lanes: dict[str, int], at: float, height: int) -> str:
    import plotly.graph_objects as go

    labels = [_shown(rank or "rank unknown") for rank in lanes]
    line = {"type": "line", "x0": _iso(at), "x1": _iso(at), "y0": 0, "y1": 1, "yref": "paper"}
    figure = go.Figure(
        data=traces,
        layout={
            "height": height,
            "margin": {"l": 10, "r": 10, "t": 10, "b": 30},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": {"type": "date", "tickformat": "%H:%M:%S", "showgrid": True, "zeroline": False},
            "yaxis": {
                "tickvals": list(lanes.values()),
                "ticktext": labels,
                "range": [len(lanes) - 0.4, -0.6],
                "automargin": True,
                "fixedrange": True,
                "showgrid": False,
                "zeroline": False,
            },
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            "hovermode": "closest",
            "dragmode": "zoom",
            "shapes": [{**line, "line": {"color": _RED["first"], "width": 1, "dash": "dot"}}],
        },
    )
    figure.layout.template = None
    text: str = figure.to_json(engine="json")
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _hover(row: dict[str, Any]) -> str:
    where = f"{row['artifact']}:{row['line']}"
    text = str(row["text"] or "")[:TEXT]
    lines = [f"{row['rank'] or 'rank unknown'}  {_iso(row['ts'])[11:23]}"]
    lines += [text[i : i + 80] for i in range(0, len(text), 80)]
    return "<br>".join(_shown(line) for line in [*lines, where])


def _shown(text: str) -> str:
    """Plotly reads a subset of HTML in labels; artefact text is never to be read as such."""
    return html.escape(printable(text))


def _iso(ts: float) -> str:
    from datetime import datetime, timezone

    return datetime.fromtimestamp(ts, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")


def _natural(text: str) -> list[tuple[int, str]]:
    import re

    return [(int(part), "") if part.isdigit() and part.isascii() else (-1, part) for part in re.split(r"(\d+)", text)]
