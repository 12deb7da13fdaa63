"""Amounts of memory as tools write them → bytes."""

from __future__ import annotations

import re

_AMOUNT = re.compile(r"\s*(\d{1,18}(?:[.,]\d{1,9})?)\s*([KMGTP]?)(i?B?|b)\s*", re.I)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def to_bytes(text: str, default: str = "") -> float | None:
    """``19Gi``, ``31.52 MB``, ``412004kB``, ``6.1g`` → bytes, in powers of 1024 as free, top, ps and memray count.

    ``default`` is the unit (``K``, ``M``, ``G``) of a bare number. None when it is no amount.
    """
    m = _AMOUNT.fullmatch(text)
    if m is None:
        return None
    unit = m.group(2).upper() or ("" if m.group(3) else default)
    return float(m.group(1).replace(",", ".")) * 1024.0 ** _POWER[unit]
