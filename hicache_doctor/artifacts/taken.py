"""When a file was taken, as far as it says outside of its content: by its name, or by its modification time."""

from __future__ import annotations

import os
import re
from datetime import datetime, timezone

from hicache_doctor.artifacts.source import Source

_STAMP = re.compile(
    r"(?<!\d)(20\d\d)[-_.]?([01]\d)[-_.]?([0-3]\d)[-_T. ]{0,2}([0-2]\d)[-_:.h]?([0-5]\d)[-_:.m]?([0-5]\d)(?!\d)"
)
_EPOCH = re.compile(r"(?<!\d)(1[6-9]\d{8}|2[01]\d{8})(?:\.(\d{1,6}))?(?!\d)")


def taken(source: Source, own: bool) -> tuple[float | None, str | None]:
    """Seconds since the epoch, and ``name`` or ``mtime`` for where they come from; None where neither says anything.

    The file's name counts before that of its folder. ``own``: the file is the user's, not one that we unpacked, whose
    modification time would be now.
    """
    for part in reversed(source.path.replace("!", "/").split("/")[-2:]):
        if (at := in_name(part)) is not None:
            return at, "name"
    try:
        return (os.stat(source.file).st_mtime, "mtime") if own else (None, None)
    except OSError:
        return None, None


def in_name(name: str) -> float | None:
    """The time in a file's name (``pp0_20261130-031244.txt``, ``1764472364.txt``), read as UTC."""
    if m := _STAMP.search(name):
        year, month, day, hour, minute, second = (int(m[i]) for i in range(1, 7))
        try:
            return datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc).timestamp()
        except ValueError:
            return None
    m = _EPOCH.search(name)
    return float(m[0].rstrip(".")) if m else None
