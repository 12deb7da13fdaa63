"""memray as text: leak listings, ``memray summary`` tables and ``memray stats``.

Samples are named ``memray_live_bytes`` (``memray_total_bytes`` for stats), one an allocation site, with labels
function, file, line, n (allocations) and note; the rank and pid come from the header line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hicache_doctor.artifacts.byte_units import to_bytes
from hicache_doctor.artifacts.process_title import rank_of_title
from hicache_doctor.artifacts.rank_mentions import rank_mentions
from hicache_doctor.evidence.rows import Sample

_SIZE = r"\d{1,15}(?:\.\d{1,6})?\s?(?:[KMGT]i?)?B"
_HEAD = re.compile(r"\bmemray\b")
_PID = re.compile(r"(?:attach|pid|PID)\b\D{0,24}?(\d{2,10})\b")
_SITE = re.compile(
    rf"^\W*(?P<size>{_SIZE})\s+(?:n=(?P<n>\d{{1,15}})\s+)?(?P<function>[\w.<>:~]+)\s+@\s+(?P<file>\S+?):(?P<line>\d{{1,8}})"
    r"\s*(?:\((?P<note>[^)]*)\))?\s*$"
)
# memray tree and pasted listings: "1.402GB  (415112 allocs)  isend  torch/distributed/distributed_c10d.py:2561  note".
_LIVE = re.compile(
    rf"^\W*(?P<size>{_SIZE})\s+(?:\((?P<n>\d{{1,15}}) alloc\w*\)\s+)?(?P<function>[\w.<>:~]+)\s+"
    r"(?P<file>[^\s:]+\.\w+):(?P<line>\d{1,8})(?:\s+(?P<note>\S.*))?$"
)
# memray stats: "	- make_list:/src/a.py:24 -> 1.2MB"; by count: "-> 3000".
_STATS = re.compile(
    rf"^\s*-\s+(?P<function>[\w.<>]+):(?P<file>[^:\s]+):(?P<line>\d{{1,8}})\s+->\s+(?:(?P<size>{_SIZE})|(?P<n>\d{{1,15}}))\s*$"
)
# memray summary: a table of location, <Total Memory>, %, Own Memory, %, Allocation Count.
_TABLE = re.compile(
    rf"^\s*[│|┃]\s*(?P<function>[\w.<>]+) at (?P<file>\S+?)(?::(?P<line>\d{{1,8}}))?\s*[│|]\s*"
    rf"(?P<size>{_SIZE})\s*[│|]\s*[\d.]+%\s*[│|]\s*(?P<own>{_SIZE})\s*[│|]\s*[\d.]+%\s*[│|]\s*(?P<n>\d{{1,15}})"
)
_TOTAL = re.compile(rf"total leaked:\s*(?P<size>{_SIZE})", re.I)
_RECORDS = re.compile(r"leaked allocation records:\s*(\d{1,15})", re.I)


def looks_like_memray(text: str) -> bool:
    """True for a text that names memray (or leak sites) and lists sizes by place."""
    lines = text.splitlines()
    sites = sum(bool(_SITE.match(x) or _LIVE.match(x) or _STATS.match(x) or _TABLE.match(x)) for x in lines)
    return sites >= 2 or (sites >= 1 and _HEAD.search(text) is not None)


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[Sample]:
    """The samples, in order. Never raises."""
    samples: list[Sample] = []
    rank: str | None = None
    pid: int | None = None
    for number, text in lines:
        if len(text) > 4000:
            continue
        if _HEAD.search(text):
            named = rank_mentions(text)
            rank = rank_of_title(text) or (named[0] if len(named) == 1 else rank)
            found = _PID.search(text)
            pid = int(found.group(1)) if found else pid
        found_here = _total(text) or _site(text)
        value = to_bytes(found_here[1]) if found_here else None
        if found_here is not None and value is not None:
            samples.append(Sample(artifact, number, rank, pid, None, found_here[0], value, found_here[2]))
    return samples


def _total(text: str) -> tuple[str, str, dict[str, Any]] | None:
    """(name, size, labels) of the listing's total."""
    m = _TOTAL.search(text)
    if m is None:
        return None
    records = _RECORDS.search(text)
    return "memray_leaked_bytes", m.group("size"), {"n": int(records.group(1))} if records else {}


def _site(text: str) -> tuple[str, str, dict[str, Any]] | None:
    """(name, size, labels) of one allocation site; memory of its own where the table tells it from the total."""
    m = _SITE.match(text) or _LIVE.match(text) or _TABLE.match(text) or _STATS.match(text)
    if m is None or m.group("size") is None:
        return None
    g = m.groupdict()
    labels: dict[str, Any] = {"function": g["function"], "file": g["file"]}
    labels |= {k: int(g[k]) for k in ("line", "n") if g.get(k)}
    labels |= {"note": g["note"]} if g.get("note") else {}
    return "memray_total_bytes" if m.re is _STATS else "memray_live_bytes", g.get("own") or g["size"], labels
