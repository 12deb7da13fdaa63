"""``ncclras`` output (NCCL RAS, 2.24 and later): the communicator table and the warnings below it.

Kinds: ``ras_ok``, ``ras_mismatch``, ``ras_incomplete``, ``ras_error``. A table row says the status of a group of
communicators; a warning adds the operation counts and the ranks that the tool chose to list (those ahead or those
behind, whichever are fewer). OK does not exclude a hang.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hicache_doctor.evidence.rows import LogRecord

_ERRORS = "OK|MISMATCH|INCOMPLETE|ERROR"
_ROW = re.compile(
    rf"^\s*(\d{{1,6}})((?:\s+[\d-]{{1,15}}){{4,6}})\s+([A-Z][A-Z,+/]*)\s+((?:{_ERRORS})(?:[,+/ ]*(?:{_ERRORS}))*)\s*$"
)
_WARNING = re.compile(rf"^\s*#(\d{{1,6}}-\d{{1,6}})\s+\(([0-9a-f]+)\)\s+((?:{_ERRORS})\b.*?)\s*$")
_VERSION = re.compile(r"^NCCL version (\S+)(?: compiled with CUDA (\S+))?")
_COUNT = re.compile(r"^\s*(\d{1,6}) ranks? (?:has|have) (?:launched up to operation|launched|completed) (\d{1,18})")
_OPERATION = re.compile(r"different (\w+) operation counts")
_RANK = re.compile(r"^\s*Rank (\d{1,6}) -- GPU (\S+) managed by process (\d{1,10}) on node (\S+)")
_CLIP = 300


def looks_like_ras(text: str) -> bool:
    """True for ncclras output, whole or in part."""
    lines = text.splitlines()
    return any(_WARNING.match(x) for x in lines) or ("Communicators..." in text and any(_ROW.match(x) for x in lines))


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[LogRecord]:
    """The records, in order; ``offset`` is 0. Never raises."""
    out: list[LogRecord] = []
    block: LogRecord | None = None
    version: str | None = None
    for number, text in lines:
        if len(text) > 4000:
            continue
        if m := _VERSION.match(text):
            version = m.group(1)
        elif m := _ROW.match(text):
            fields = {"group": m.group(1), "status": m.group(3), "errors": m.group(4), "nccl_version": version}
            out.append(_record(artifact, number, m.group(4), fields, text))
        elif m := _WARNING.match(text):
            fields = {"comm": m.group(1), "hash": m.group(2), "errors": m.group(3), "nccl_version": version}
            fields |= {"operation": None, "counts": [], "ranks": []}
            block = _record(artifact, number, m.group(3), fields, text)
            out.append(block)
        elif block is not None and text.strip():
            block = block if _extend(block, number, text) else None
    return out


def _record(artifact: str, number: int, errors: str, fields: dict[str, Any], text: str) -> LogRecord:
    kind = next((k for k in ("mismatch", "error", "incomplete") if k.upper() in errors), "ok")
    return LogRecord(artifact, number, number, 0, None, None, f"ras_{kind}", fields, text.strip()[:_CLIP])


def _extend(block: LogRecord, number: int, text: str) -> bool:
    fields = block.fields
    if m := _OPERATION.search(text):
        fields["operation"] = m.group(1)
    elif m := _COUNT.match(text):
        fields["counts"].append({"ranks": int(m.group(1)), "operation": int(m.group(2))})
    elif m := _RANK.match(text):
        rank = {"rank": int(m.group(1)), "gpu": m.group(2), "pid": int(m.group(3)), "node": m.group(4)}
        fields["ranks"].append(rank)
    elif not text.startswith(" "):
        return False
    block.line_end = number
    block.text = f"{block.text}; {text.strip()}"[:_CLIP]
    return True
