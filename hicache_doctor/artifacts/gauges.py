"""Gauges over time in a CSV (or TSV, or ``;``) file: memory of processes, request rates, anything with a number.

Columns are told by their header: a time, a host, a pid, a process title, and numbers. Memory columns are normalised to
bytes and named ``rss_bytes``, ``vsz_bytes``, ``shmem_bytes``, …; other numeric columns keep their name in lower case.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from hicache_doctor.artifacts.byte_units import to_bytes
from hicache_doctor.artifacts.clock_text import seconds
from hicache_doctor.artifacts.process_title import rank_of_title
from hicache_doctor.artifacts.rank_mentions import rank_mentions
from hicache_doctor.artifacts.smi_query import Query
from hicache_doctor.evidence.rows import Sample

_TIME = re.compile(r"ts|time|timestamp|date|datetime|at|when|epoch|_time|@timestamp", re.I)
_HOST = re.compile(r"host|hostname|node|instance|pod|server", re.I)
_PID = re.compile(r"pid|process_?id", re.I)
_TITLE = re.compile(r"title|cmd|cmdline|command|args|name|process|proc|comm|rank", re.I)
_SIZE = re.compile(
    r"(?P<what>working_set|rss|res|resident|rss_?anon|anon|anon_?rss|vsz|virt|vms|shr|shared|shm|shmem|shmem_?rss|pss|uss|"
    r"mem|memory|mem_?used|mem_?total|mem_?free|mem_?available|used|free|total|available|buff_?cache|swap|swap_?used)"
    r"(?:[_ (\[]*(?P<unit>bytes|byte|b|ki?b?|mi?b?|gi?b?|ti?b?)[)\]]?)?",
    re.I,
)
_NAMES = {
    "workingset": "rss",
    "rss": "rss", "res": "rss", "resident": "rss", "vsz": "vsz", "virt": "vsz", "vms": "vsz", "shr": "shared",
    "shared": "shared", "shm": "shmem", "shmem": "shmem", "shmemrss": "rss_shmem", "anon": "rss_anon",
    "anonrss": "rss_anon", "rssanon": "rss_anon", "mem": "mem_used", "memory": "mem_used", "memused": "mem_used",
    "used": "mem_used", "memtotal": "mem_total", "total": "mem_total", "memfree": "mem_free", "free": "mem_free",
    "memavailable": "mem_available", "available": "mem_available", "buffcache": "mem_buff_cache", "swap": "swap_used",
    "swapused": "swap_used", "pss": "pss", "uss": "uss",
}  # fmt: skip
# What a bare `rss` column of ps-like exports holds.
_BARE_UNIT = {"rss": "K", "vsz": "K", "rss_anon": "K", "rss_shmem": "K", "shared": "K"}
_RATE = re.compile(r"qps|rps|req(?:uest)?s?_?(?:per|/)_?s(?:ec(?:ond)?)?|requests_s|req_s", re.I)
_RANK = re.compile(r"(dp|pp|tp)_?rank", re.I)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d{1,3})?")


@dataclass(slots=True)
class _Columns:
    """Which column is what; ``values`` maps a column to (sample name, default unit or None when no memory)."""

    time: int | None = None
    host: int | None = None
    pid: int | None = None
    titles: list[int] = field(default_factory=list)
    values: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    # A long table has one column with the name of the metric and one with its value; ranks have columns of their own.
    metric: int | None = None
    value: int | None = None
    ranks: dict[int, str] = field(default_factory=dict)


def looks_like_gauges(head: str) -> bool:
    """True when the first line is a header with a time and a known gauge or process column."""
    lines = [x for x in head.splitlines() if x.strip()][:2]
    if len(lines) < 2 or Query.of(lines[0], "") is not None:  # nvidia-smi's own reader knows the units
        return False
    columns = _header(_cells(lines[0], _delimiter(lines[0])))
    if columns is None:
        return False
    return columns.pid is not None or columns.metric is not None or bool(columns.titles) or _has_size(columns)


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[Sample]:
    """One Sample a row and numeric column, in order; rows before a header are skipped. Never raises."""
    samples: list[Sample] = []
    columns: _Columns | None = None
    delimiter = ","
    for number, text in lines:
        if not text.strip() or len(text) > 20000:
            continue
        found = _delimiter(text)
        header = _header(_cells(text, found)) if columns is None or _TIME.match(text.strip('"# ')) else None
        if header is not None:
            columns, delimiter = header, found
        elif columns is not None:
            samples += _row(_cells(text, delimiter), columns, number, artifact)
    return samples


def _delimiter(line: str) -> str:
    return max(",\t;|", key=line.count)


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return [c.strip() for c in next(csv.reader([line.strip("\r\n")], delimiter=delimiter), [])]
    except csv.Error:
        return []


def _header(cells: list[str]) -> _Columns | None:
    """The columns, when the cells are names: a time and at least one value."""
    if len(cells) < 2 or any(_NUMBER.fullmatch(c) for c in cells):
        return None
    out = _Columns()
    for i, raw in enumerate(cells):
        name = raw.strip("\"'# ")
        if out.time is None and _TIME.fullmatch(name):
            out.time = i
        elif out.host is None and _HOST.fullmatch(name):
            out.host = i
        elif out.pid is None and _PID.fullmatch(name):
            out.pid = i
        elif name.lower() in ("metric", "metric_name", "__name__"):
            out.metric = i
        elif name.lower() == "value":
            out.value = i
        elif m := _RANK.fullmatch(name):
            out.ranks[i] = m.group(1).upper()
        elif _TITLE.fullmatch(name):
            out.titles.append(i)
        elif name and (value := _value(name)):
            out.values[i] = value
    long = out.metric is not None and out.value is not None
    return out if out.time is not None and (out.values or long) else None


def _value(name: str) -> tuple[str, str | None] | None:
    m = _SIZE.fullmatch(name)
    if m is None:
        plain = re.sub(r"\W+", "_", name.lower()).strip("_")
        plain = "qps" if _RATE.fullmatch(plain) else plain
        return (plain, None) if plain and len(plain) <= 60 else None
    what = _NAMES.get(re.sub(r"_", "", m.group("what").lower()), m.group("what").lower())
    unit = (m.group("unit") or _BARE_UNIT.get(what, "")).upper()[:1]
    return f"{what}_bytes", "" if unit == "B" else unit


def _has_size(columns: _Columns) -> bool:
    return any(unit is not None for _, unit in columns.values.values())


def _row(cells: list[str], columns: _Columns, number: int, artifact: str) -> list[Sample]:
    at = seconds(_cell(cells, columns.time))
    titles = [_cell(cells, i) for i in columns.titles]
    rank = next((r for r in map(rank_of_title, titles) if r), None)
    rank = rank or next((r[0] for r in map(rank_mentions, titles) if len(r) == 1), None)
    ranks = [f"{key}{_cell(cells, i)}" for i, key in columns.ranks.items() if _cell(cells, i).isdecimal()]
    rank = rank or " ".join(sorted(ranks)) or None  # DP, PP, TP: the order of the alphabet
    pid = _cell(cells, columns.pid)
    labels = {"title": max(titles, key=len, default=""), "host": _cell(cells, columns.host)}
    out = []
    if columns.metric is not None and columns.value is not None:
        named, found = _cell(cells, columns.metric), _number(_cell(cells, columns.value))
        if named and found is not None:
            name = re.sub(r"^sglang[:_]", "", named)
            out.append(Sample(artifact, number, rank, None, at, name, found, {}))
    for i, (name, unit) in columns.values.items():
        text = _cell(cells, i)
        value = _number(text) if unit is None else to_bytes(text, unit)
        if value is None:
            continue
        known = {k: v for k, v in labels.items() if v}
        known_pid = int(pid) if re.fullmatch(r"[0-9]{1,10}", pid) else None
        out.append(Sample(artifact, number, rank, known_pid, at, name, value, known))
    return out


def _cell(cells: list[str], index: int | None) -> str:
    return cells[index] if index is not None and index < len(cells) else ""


def _number(text: str) -> float | None:
    return float(text.rstrip("% ")) if _NUMBER.fullmatch(text.rstrip("% ")) else None
