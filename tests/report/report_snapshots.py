"""Whole texts compared with files; HICACHE_DOCTOR_UPDATE_SNAPSHOTS=1 rewrites them."""

from __future__ import annotations

import os
from pathlib import Path

SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = "HICACHE_DOCTOR_UPDATE_SNAPSHOTS"


def check(name: str, text: str) -> None:
    path = SNAPSHOTS / name
    if os.environ.get(UPDATE):
        SNAPSHOTS.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"no snapshot {path.name}; {UPDATE}=1 makes it"
    assert text == path.read_text(encoding="utf-8")
