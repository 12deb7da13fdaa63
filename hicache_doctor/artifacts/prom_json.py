"""Answers of Prometheus' HTTP API (``/api/v1/query_range``, ``/query``) and VictoriaMetrics exports, as Samples.

Names and ranks are those of the text pages. A query that aggregates (``sum by (pp_rank) (…)``) loses the name: such
series are left out, because nothing tells what they count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from hicache_doctor.artifacts.json_text import Document, Finder, Numbered, documents
from hicache_doctor.artifacts.metrics import plain_name, rank_of
from hicache_doctor.evidence.rows import Sample

_LOOKS = re.compile(r'"resultType"\s*:\s*"(?:matrix|vector)"|"metric"\s*:\s*\{[^{}]*"__name__"')
_MOST_POINTS = 400_000
_NAME = "__name__"


def looks_like_prom_json(text: str) -> bool:
    """True when the text holds such an answer."""
    return _LOOKS.search(text) is not None


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[Sample]:
    """The samples, series by series, each in order of time. Never raises."""
    numbered = Numbered(lines)
    out: list[Sample] = []
    for document in documents(numbered.text):
        for series, line in _series(document, numbered):
            out += _samples(series, line, artifact, _MOST_POINTS - len(out))
            if len(out) >= _MOST_POINTS:
                return out
    return out


def _series(document: Document, numbered: Numbered) -> Iterator[tuple[dict[str, Any], int]]:
    """Each series of a document, with the line on which its metric stands."""
    value = document.value
    data = value.get("data", value) if isinstance(value, dict) else value
    result = data.get("result", [data]) if isinstance(data, dict) else data
    find = Finder(numbered, document.begin, document.end)
    for one in result if isinstance(result, list) else []:
        if isinstance(one, dict) and isinstance(one.get("metric"), dict):
            yield one, find.line(_NAME, one["metric"].get(_NAME))


def _samples(series: dict[str, Any], line: int, artifact: str, room: int) -> Iterator[Sample]:
    labels = {str(k)[:80]: str(v)[:400] for k, v in series["metric"].items()}
    name = labels.pop(_NAME, "")
    le = labels.get("le", "+Inf")
    if not name or (name.endswith("_bucket") and le not in ("+Inf", "inf")):
        return
    rank = rank_of(labels, labels.get("moe_ep_rank", "0") not in ("", "0"))
    pid = labels.get("pid", "")
    known = int(pid) if re.fullmatch(r"[0-9]{1,10}", pid) else None
    for ts, text in _points(series)[: max(0, room)]:
        value = _number(text)
        at = _number(ts)
        if value is not None and at is not None:
            yield Sample(artifact, line, rank, known, at, plain_name(name), value, dict(labels))


def _points(series: dict[str, Any]) -> list[tuple[Any, Any]]:
    values, stamps = series.get("values"), series.get("timestamps")
    if isinstance(values, list) and isinstance(stamps, list):  # VictoriaMetrics: two lists, times in ms
        return [(t / 1000 if isinstance(t, (int, float)) else None, v) for t, v in zip(stamps, values, strict=False)]
    pairs = values if isinstance(values, list) else [series.get("value")]
    return [(p[0], p[1]) for p in pairs if isinstance(p, list) and len(p) == 2]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value[:40] if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
