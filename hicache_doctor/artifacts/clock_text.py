"""Written times → seconds since the epoch. A time without a zone is read as UTC; without a year it is None."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

_ISO = re.compile(
    r"(\d{4})[-/](\d{2})[-/](\d{2})(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?)?"
    r"\s?(Z|UTC|[+-]\d{2}:?\d{2})?"
)
_C = re.compile(
    r"(?:\w{3} )?([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d{2}):(\d{2}):(\d{2})(?:\.\d+)? (?:([A-Z]{3,4}) )?(\d{4})"
)
# `date` in the C.UTF-8 and en_US locales: "Tue 24 Feb 2026 10:41:08 PM UTC".
_DATE = re.compile(
    r"(?:\w{3},? )?(\d{1,2}) ([A-Z][a-z]{2}) (\d{4}),? (\d{2}):(\d{2}):(\d{2})(?:\s?([AP]M))?(?: ([A-Z]{3,4}))?"
)
_EPOCH = re.compile(r"\d{9,10}(?:\.\d+)?$|\d{13}$")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def seconds(text: str) -> float | None:
    """The first time written in ``text``, or None. Never raises."""
    text = text.strip()
    try:
        if _EPOCH.match(text):
            return float(text) / (1000.0 if len(text) == 13 and "." not in text else 1.0)
        return _iso(text) or _c(text) or _date(text)
    except (ValueError, OverflowError):
        return None


def _iso(text: str) -> float | None:
    m = _ISO.search(text)
    if m is None:
        return None
    year, month, day = (int(m.group(i)) for i in (1, 2, 3))
    hour, minute, second = (int(m.group(i) or 0) for i in (4, 5, 6))
    fraction = int((m.group(7) or "0").ljust(9, "0")) / 1e9
    return datetime(year, month, day, hour, minute, second, tzinfo=_zone(m.group(8))).timestamp() + fraction


def _zone(text: str | None) -> timezone:
    if text is None or text in ("Z", "UTC"):
        return timezone.utc
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes))


def _c(text: str) -> float | None:
    m = _C.search(text)
    if m is None or m.group(1) not in _MONTHS:
        return None
    month = _MONTHS.index(m.group(1)) + 1
    parts = int(m.group(7)), month, int(m.group(2)), int(m.group(3)), int(m.group(4)), int(m.group(5))
    return datetime(*parts, tzinfo=timezone.utc).timestamp()


def _date(text: str) -> float | None:
    m = _DATE.search(text)
    if m is None or m.group(2) not in _MONTHS:
        return None
    hour = int(m.group(4))
    if m.group(7) is not None:
        hour = hour % 12 + (12 if m.group(7) == "PM" else 0)
    month = _MONTHS.index(m.group(2)) + 1
    parts = int(m.group(3)), month, int(m.group(1)), hour, int(m.group(5)), int(m.group(6))
    return datetime(*parts, tzinfo=timezone.utc).timestamp()
