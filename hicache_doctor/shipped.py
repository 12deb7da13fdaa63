"""Where the data that ships with the package lies: ``rules/`` and ``samples/``.

In a wheel they are inside the package (``_shipped/``); in a checkout (editable install) they are at its root.
This module is the only one that knows both places.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hicache_doctor.errors import DoctorError


@cache
def shipped(name: str) -> Path:
    """The folder ``name`` (``"rules"`` or ``"samples"``) as shipped.

    Raises:
        DoctorError: the installation is incomplete.
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "_shipped" / name, package.parent / name):
        if candidate.is_dir():
            return candidate
    raise DoctorError(f"the folder {name!r} is missing from this installation; reinstall hicache-doctor")


def rules_dir() -> Path:
    """The shipped ``rules/`` folder."""
    return shipped("rules")
