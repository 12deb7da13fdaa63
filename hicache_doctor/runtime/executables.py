"""Tools that a package brings along as programs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def find(name: str) -> str | None:
    """The program: beside this interpreter, where pip puts it, or on the path; None when there is none."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)
