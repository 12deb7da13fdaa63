"""Times that a shipper wrote around a line, or that a file's name holds: rows that their readers could not date.

A stamp without its year (``déc. 19 02:07:16``: syslog and journald) becomes a time once other rows of the incident show
the year.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from statistics import median

from hicache_doctor.artifacts import when
from hicache_doctor.artifacts.wrappers import Logical
from hicache_doctor.evidence.rows import Batch, ExceptionRow, LogRecord, Row, Sample

_NAME = re.compile(
    r"(?<!\d)(20\d\d)-?([01]\d)-?([0-3]\d)[T_. -]([0-2]\d)[-:_.]?([0-5]\d)[-:_.]?([0-5]\d)(Z|[+-]\d{4})?(?!\d)"
)
_NAME_EPOCH = re.compile(r"(?<!\d)(?:1[4-9]|2[0-9])\d{8}(?:\d{3})?(?!\d)")


def complete(rows: Sequence[Row], lines: Mapping[int, Logical]) -> None:
    """Give dated rows without a time the one around their line, and kernel lines their host.

    A console's lines (seconds since the start) are left alone unless syslog wrote them: they were read at once, later.
    """
    for row in rows:
        if not isinstance(row, (LogRecord, Sample)):
            continue
        item = lines.get(row.line or 0)
        if item is None:
            continue
        logged = "unit" in item.hints
        fields = row.fields if isinstance(row, LogRecord) else {}
        if row.ts is None and item.outer_ts is not None and (logged or "uptime" not in fields):
            row.ts = item.outer_ts
        if isinstance(row, LogRecord) and row.kind.startswith("kernel_"):
            if logged and "host" in item.hints:
                fields.setdefault("host", item.hints["host"])
            if row.ts is None and "stamp" in item.hints:
                fields.setdefault("clock", item.hints["stamp"])


def with_dates(logical: Sequence[Logical]) -> list[tuple[int, str]]:
    """The numbered lines for readers; a line that is nothing but a time (between two scrapes) gets it back.

    Where most lines carry a stamp it is a shipper's, and an empty line is just empty.
    """
    shipped = 2 * sum(item.outer_ts is not None for item in logical) > len(logical)
    return [(item.line, _date(item) if not (item.text or shipped) else item.text) for item in logical]


def _date(item: Logical) -> str:
    at = item.outer_ts
    return "" if at is None or item.stream else datetime.fromtimestamp(at, timezone.utc).isoformat()


def from_name(rows: Sequence[Row], artifact: str) -> None:
    """Date the samples of one scrape by the time in the file's name (``metrics_2026-06-24T15-44-42.prom``).

    Nothing is dated where a row of the file has a time already, or where several scrapes would get the same.
    """
    samples = [r for r in rows if isinstance(r, Sample)]
    if not samples or any(s.ts is not None or "scrape" in s.labels for s in samples):
        return
    at = time_of_name(artifact.replace("!", "/").rpartition("/")[2])
    for sample in samples if at is not None else ():
        sample.ts = at


def time_of_name(name: str) -> float | None:
    """The time that a file name says, to the second: digits in the order of ISO 8601, or seconds since 1970."""
    if m := _NAME.search(name):
        return when.iso(f"{m[1]}-{m[2]}-{m[3]}T{m[4]}:{m[5]}:{m[6]}{m[7] or ''}")
    epoch = _NAME_EPOCH.search(name)
    return when.epoch(float(epoch[0])) if epoch else None


def add_years(rows: Mapping[str, Sequence[Row]]) -> None:
    """Date rows that say a ``clock`` but no year: in the year that brings them nearest to the rest of the incident."""
    waiting = [r for own in rows.values() for r in own if isinstance(r, LogRecord) and _undated(r)]
    if not waiting:
        return
    dated = (LogRecord, Batch, ExceptionRow, Sample)
    known = [r.ts for own in rows.values() for r in own if isinstance(r, dated) and r.ts is not None]
    if not known:
        return
    around = median(known)
    year = datetime.fromtimestamp(around, timezone.utc).year
    for row in waiting:
        clock = str(row.fields["clock"])
        ways = [t for y in (year - 1, year, year + 1) if (t := when.journal(clock, y)) is not None]
        row.ts = min(ways, key=lambda t: abs(t - around), default=None)


def _undated(row: LogRecord) -> bool:
    return row.ts is None and "clock" in row.fields
