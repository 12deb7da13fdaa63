"""Time stamps as logs print them: explicit formats only, never a guess; what isn't known is None.

Every function returns seconds since the epoch. A stamp without a zone is read as UTC, which is what SGLang's
containers run in; whether an outer stamp had a zone is told by :func:`has_zone`. Formats without a year need the
caller's year. Years outside 2000–2099 are not believed.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from functools import lru_cache

ZONE = r"(?:Z|UTC|[+-]\d\d:?\d\d)"
STAMP = rf"\d{{4}}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{{1,9}})?(?: ?{ZONE})?"

_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(?: ?(Z|UTC|[+-]\d\d(?::?\d\d)?))?", re.ASCII
)
_ASCEND = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d):(\d\d):(\d\d):(\d{3})", re.ASCII)
_KERNEL = re.compile(r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) ([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})",
                     re.ASCII)  # fmt: skip
_GLOG = re.compile(r"[DIWEFC]?(\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d+))?", re.ASCII)
_DMY = re.compile(r"(\d\d)/(\d\d)/(\d{4}) (\d\d):(\d\d):(\d\d)(?: ([AP]M))?", re.ASCII)
_JOURNAL = re.compile(r"([^\W\d_]{3,9}\.?|\d{1,2}月) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.(\d+))?")

_NAMES = {  # as `date +%b` and journald print them, each language's own months in order
    "zh_ja": "1月 2月 3月 4月 5月 6月 7月 8月 9月 10月 11月 12月",
    "en": "jan feb mar apr may jun jul aug sep oct nov dec",
    "fr": "janv. févr. mars avril mai juin juil. août sept. oct. nov. déc.",
    "fr_no_dot": "janv févr mars avr mai juin juil août sept oct nov déc",
    "de": "jan feb mär apr mai jun jul aug sep okt nov dez",
    "de_long": "jan. feb. märz apr. mai juni juli aug. sept. okt. nov. dez.",
    "es": "ene feb mar abr may jun jul ago sep oct nov dic",
    "es_sept": "ene. feb. mar. abr. may. jun. jul. ago. sept. oct. nov. dic.",
    "it": "gen feb mar apr mag giu lug ago set ott nov dic",
    "pt": "jan fev mar abr mai jun jul ago set out nov dez",
}
MONTHS = {name: i for names in _NAMES.values() for i, name in enumerate(names.split(), 1)}


@lru_cache(maxsize=4096)
def _day(date: str) -> float | None:
    """Midnight UTC of ``YYYY-MM-DD``."""
    year, month, day = date.split("-")
    if not 2000 <= int(year) < 2100:
        return None
    try:
        return datetime(int(year), int(month), int(day), tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def _at(date: str, hour: str, minute: str, second: str, fraction: str | None) -> float | None:
    midnight = _day(date)
    h, m, s = int(hour), int(minute), int(second)
    if midnight is None or h > 23 or m > 59 or s > 60:
        return None
    return midnight + h * 3600 + m * 60 + s + (float(f"0.{fraction}") if fraction else 0.0)


def iso(text: str) -> float | None:
    """``2026-06-24T17:38:03.765641375+02:00`` and its kin: blank or T, any fraction, any zone or none."""
    m = _ISO.fullmatch(text)
    if m is None:
        return None
    at = _at(m[1], m[2], m[3], m[4], m[5])
    zone = m[6]
    if at is None or zone in (None, "Z", "UTC"):
        return at
    digits = zone[1:].replace(":", "")
    offset = int(digits[:2]) * 3600 + int(digits[2:] or 0) * 60
    return at - offset if zone[0] == "+" else at + offset


def has_zone(text: str) -> bool:
    """Whether an ISO stamp says its zone."""
    m = _ISO.fullmatch(text)
    return m is not None and m[6] is not None


def ascend(text: str) -> float | None:
    """``2026-06-04 15:40:34:813``: milliseconds after a colon, as torch_npu prints them."""
    m = _ASCEND.fullmatch(text)
    return _at(m[1], m[2], m[3], m[4], m[5]) if m else None


def kernel(text: str) -> float | None:
    """``Tue Jun 23 08:04:31 2026``: ``dmesg -T`` and ctime."""
    m = _KERNEL.fullmatch(text)
    month = MONTHS.get(m[1].lower()) if m else None
    if m is None or month is None:
        return None
    return _at(f"{m[6]}-{month}-{m[2]}", m[3], m[4], m[5], None)


def glog(text: str, year: int | None) -> float | None:
    """``E0116 07:02:59.408227`` (glog) and ``E226 11:16:37.104512039`` (torch: the month without its zero)."""
    m = _GLOG.fullmatch(text)
    return _at(f"{year}-{m[1]}-{m[2]}", m[3], m[4], m[5], m[6]) if m and year else None


def dmy(text: str) -> float | None:
    """``20/12/2014 02:07:22 PM``: day first; a month above twelve is not swapped, it is unknown."""
    m = _DMY.fullmatch(text)
    if m is None:
        return None
    hour = int(m[4])
    if m[7]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if m[7] == "PM" else 0)
    return _at(f"{m[3]}-{m[2]}-{m[1]}", str(hour), m[5], m[6], None)


def journal(text: str, year: int | None) -> float | None:
    """``déc. 19 02:07:16``: journald and syslog, month in the machine's language."""
    m = _JOURNAL.fullmatch(text)
    month = MONTHS.get(m[1].lower()) if m else None
    if m is None or month is None or not year:
        return None
    return _at(f"{year}-{month}-{m[2]}", m[3], m[4], m[5], m[6])


def epoch(number: float) -> float | None:
    """Seconds, milli-, micro- or nanoseconds since 1970; the four can't be confused between 2000 and 2099."""
    for unit in (1, 10**3, 10**6, 10**9):
        if 946684800 <= number / unit < 4102444800:
            return number / unit
    return None


def when(text: str, year: int | None = None) -> float | None:
    """Any of the formats above, told by its shape."""
    for known in (iso, ascend, kernel, dmy):
        at = known(text)
        if at is not None:
            return at
    at = glog(text, year)
    return at if at is not None else journal(text, year)
