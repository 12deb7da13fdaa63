"""hicache-doctor: forensics for SGLang with pipeline parallelism and HiCache.

``hicache_doctor.open(path)`` opens a kept incident database for notebooks; everything else is behind the CLI and
:mod:`hicache_doctor.incident`. Importing this package costs nothing: heavy libraries are imported where used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from hicache_doctor.evidence.store import Store

__version__ = "0.1.0"
__all__ = ["__version__", "open"]


def open(path: str | Path) -> Store:
    """Open an incident database (``analyze --db FILE``) read-only.

    Returns a :class:`~hicache_doctor.evidence.store.Store`; ``.frame("collective")`` gives a pandas frame.

    Raises:
        hicache_doctor.errors.InputError: the file is missing or is no incident database.
    """
    from hicache_doctor.evidence.store import Store

    return Store.open(path)
