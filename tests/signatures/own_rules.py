"""A user's directory of rules, written into a temporary folder: what the tests of this folder load and check."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

RULE = """\
id: X1
title: An incident of our own
text: [mine]
"""
NODES = """\
- node: start
  question: Is it ours?
  ask: mine
  yes: X1
  no: gpu
  unknown: stranger
- {node: X1, verdict: X1}
"""
SQL = """\
-- evidence: mine
-- says: {rank} printed our own line
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE text LIKE '%our own line%' LIMIT 3
"""
FILES = {"signatures/X1.yaml": RULE, "path/50_mine.yaml": NODES, "evidence/mine.sql": SQL}


def write(folder: Path, files: Mapping[str, str] | None = None) -> Path:
    """A directory of rules that is right, with ``files`` in place of its own ones or beside them."""
    for name, text in {**FILES, **(files or {})}.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder
