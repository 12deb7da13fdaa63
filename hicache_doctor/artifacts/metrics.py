"""Prometheus text exposition and OpenMetrics: scrapes of SGLang's ``/metrics``, also after a relay.

Names lose their prefix (``sglang:x`` and ``sglang_x`` → ``x``). Of histograms only ``_sum``, ``_count`` and the +Inf
bucket are kept. Several scrapes in one text are told apart by ``labels["scrape"]`` (0 first; absent when there is only
one): a scrape ends where a series is repeated, at ``# EOF`` or at a line with a date.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hicache_doctor.artifacts.clock_text import seconds
from hicache_doctor.evidence.rows import Sample

_SERIES = re.compile(
    r"^\s*(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*)\})?\s+"
    r"(?P<value>[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|Inf|NaN|inf|nan))"
    r"(?:\s+(?P<ts>-?\d+(?:\.\d+)?))?\s*(?:# \{.*)?$"
)
_LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_TYPE = re.compile(r"^# (?:HELP|TYPE|UNIT) \S+")
_OURS = re.compile(r"^\s*sglang[:_]\w+(?:\{[^}]*\})?\s+[-+\d.]", re.M)
_EPOCH = re.compile(r"#.*?(?<![\w.])((?:1[4-9]|2[0-9])\d{8}(?:\.\d{1,9})?)(?![\w.])")
_PREFIX = re.compile(r"^(?:sglang[:_])")
_UNESCAPE = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
# Label → part of the rank, in the order of SGLang's own prefix.
_RANK = (("dp_rank", "DP"), ("pp_rank", "PP"), ("attn_cp_rank", "ATTN_CP"), ("tp_rank", "TP"), ("moe_ep_rank", "EP"))


def looks_like_metrics(head: str) -> bool:
    """True when the head of a file reads like a scrape."""
    kinds = len(re.findall(r"^# (?:HELP|TYPE) [A-Za-z_:][\w:]* ", head, re.M))
    ours = len(_OURS.findall(head))
    return (ours >= 1 and (kinds >= 1 or ours >= 2 or "{" in head)) or kinds >= 2


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[Sample]:
    """The samples, in order. Never raises."""
    samples: list[Sample] = []
    scrape, seen = 0, set[tuple[str, str]]()
    at: float | None = None
    for number, text in lines:
        m = _SERIES.match(text) if len(text) < 20000 else None
        if m is None:
            stamp = None if _TYPE.match(text) or len(text) > 400 else _stamp(text)
            if seen and (stamp is not None or text.startswith("# EOF")):
                scrape, seen = scrape + 1, set()
            at = at if stamp is None else stamp
            continue
        key = (m.group("name"), m.group("labels") or "")
        if key in seen:
            scrape, seen = scrape + 1, set()
        seen.add(key)
        labels = labels_of(m.group("labels") or "")
        if labels.get("le", "+Inf") not in ("+Inf", "inf") and m.group("name").endswith("_bucket"):
            continue
        sample = _sample(m, labels, number, artifact)
        sample.ts = at if sample.ts is None else sample.ts
        sample.labels["scrape"] = scrape
        samples.append(sample)
    last = max((s.labels["scrape"] for s in samples), default=0)
    with_ep = any(s.labels.get("moe_ep_rank", "0") not in ("", "0") for s in samples)
    for s in samples:
        s.rank = rank_of(s.labels, with_ep)
        if last == 0:
            del s.labels["scrape"]
    return samples


def _stamp(text: str) -> float | None:
    """The time of a line between scrapes; in a comment also as seconds since 1970."""
    at = seconds(text)
    epoch = _EPOCH.match(text) if at is None else None
    return float(epoch[1]) if epoch else at


def labels_of(text: str) -> dict[str, str]:
    """``a="1",b="x"`` → a dict; what cannot be read is left out."""
    return {k: re.sub(r'\\[n"\\]', lambda m: _UNESCAPE[m.group()], v) for k, v in _LABEL.findall(text)}


def plain_name(name: str) -> str:
    """``sglang:x`` and ``sglang_x`` → ``x``."""
    return _PREFIX.sub("", name)


def rank_of(labels: Mapping[str, object], with_ep: bool = False) -> str | None:
    """``PP0 TP0`` from the rank labels; the expert rank is named only when asked for (all zero: size 1)."""
    parts = []
    for label, part in _RANK:
        value = str(labels.get(label, ""))
        if value.isdecimal() and value.isascii() and (part != "EP" or with_ep):
            parts.append(f"{part}{int(value[:9])}")
    return " ".join(parts) if any(p[:2] in ("PP", "TP", "DP") for p in parts) else None


def _sample(m: re.Match[str], labels: dict[str, str], number: int, artifact: str) -> Sample:
    ts = None
    if m.group("ts"):
        # Prometheus writes milliseconds, OpenMetrics seconds.
        ts = float(m.group("ts")[:20])
        ts = ts / 1000.0 if ts > 1e11 else ts
    pid = labels.get("pid", "")
    return Sample(
        artifact,
        number,
        None,
        int(pid) if pid.isascii() and pid.isdecimal() and len(pid) < 11 else None,
        ts,
        plain_name(m.group("name")),
        float(m.group("value")),
        dict(labels),
    )
