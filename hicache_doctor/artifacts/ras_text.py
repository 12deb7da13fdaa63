"""``ncclras`` output (NCCL RAS, 2.24 and later): the communicator table and the errors and warnings below it.

Kinds: ``ras_ok``, ``ras_mismatch``, ``ras_incomplete``, ``ras_error``, ``ras_dead``, ``ras_timeout``. A table row says
the status of a group of communicators; a warning adds the counts of one operation, and ``ras_rank`` the ranks that the
tool chose to list: those ahead or those behind, whichever are fewer. A mismatch of one operation is normal while a job
works, and OK does not exclude a hang: the last operation may have been launched by all and finished by none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hicache_doctor.artifacts.ras_rows import rank_rows
from hicache_doctor.evidence.rows import LogRecord, Row

_ERRORS = "OK|MISMATCH|INCOMPLETE|ERROR"
_ROW = re.compile(
    rf"^\s*(\d{{1,6}})((?:\s+[\d-]{{1,15}}){{4,6}})\s+([A-Z][A-Z,+/]*)\s+((?:{_ERRORS})(?:[,+/ ]*(?:{_ERRORS}))*)\s*$"
)
_WARNING = re.compile(rf"^\s*#(\d{{1,6}}-\d{{1,6}})\s+\(([0-9a-f]+)\)\s+((?:{_ERRORS})\b.*?)\s*$")
_JOB = re.compile(r"^\s*(INCOMPLETE|DEAD|TIMEOUT)\s*$")
_VERSION = re.compile(r"^NCCL version (\S+)(?: compiled with CUDA (\S+))?")
_COUNT = re.compile(
    r"^\s*(\d{1,6}) ranks? (?:has|have) (?:(?:launched up to operation|launched|completed) (\d{1,18})|"
    r"not launched any operations)"
)
_OPERATION = re.compile(r"different (\w+) operation counts")
_WHERE = (
    r"GPU (?P<gpu>\d{1,4})(?: \(NVML (?P<nvml>\d{1,4})\))? managed by process (?P<pid>\d{1,10}) on node (?P<node>\S+)"
)
_RANK = re.compile(
    r"^\s*Rank (?P<rank>\d{1,6})(?: has (?:launched up to operation (?P<count>\d{1,18})|(?P<none>not launched any)"
    r" operations|status (?P<status>[A-Z]+))| reported (?P<error>[\w ]+?))?"
    rf" -- (?:{_WHERE}|\[process information not found\])"
)
_PROCESS = re.compile(r"^\s*Process (?P<pid>\d{1,10}) on node (?P<node>\S+) managing GPUs? (?P<gpu>[\d,]+)")
_CLIP = 300


def looks_like_ras(text: str) -> bool:
    """True for ncclras output, whole or in part."""
    lines = text.splitlines()
    return any(_WARNING.match(x) for x in lines) or ("Communicators..." in text and any(_ROW.match(x) for x in lines))


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[Row]:
    """The records, in order, each followed by those of its ranks; ``offset`` is 0. Never raises."""
    reader = _Reader(artifact)
    for number, text in lines:
        if len(text) <= 4000:
            reader.feed(number, text)
    return [row for record in reader.records for row in (record, *rank_rows(record))]


class _Reader:
    def __init__(self, artifact: str) -> None:
        self.records: list[LogRecord] = []
        self._artifact = artifact
        self._version: str | None = None
        self._block: LogRecord | None = None
        self._count: int | None = None

    def feed(self, number: int, text: str) -> None:
        if m := _VERSION.match(text):
            self._version = m.group(1)
        elif m := _ROW.match(text):
            self._add(number, m.group(4), {"group": m.group(1), "status": m.group(3)}, text)
            self._block = None
        elif m := _WARNING.match(text):
            fields: dict[str, Any] = {
                "comm": m.group(1),
                "hash": m.group(2),
                "operation": None,
                "counts": [],
                "ranks": [],
            }
            self._block = self._add(number, m.group(3), fields, text)
        elif m := _JOB.match(text):
            self._block = self._add(number, m.group(1), {"processes": []}, text)
        elif self._block is not None and text.strip() and not self._extend(self._block, number, text):
            self._block = None

    def _add(self, number: int, errors: str, fields: dict[str, Any], text: str) -> LogRecord:
        kinds = ("mismatch", "error", "incomplete", "dead", "timeout")
        kind = next((k for k in kinds if k.upper() in errors), "ok")
        fields |= {"errors": errors, "nccl_version": self._version}
        record = LogRecord(self._artifact, number, number, 0, None, None, f"ras_{kind}", fields, text.strip()[:_CLIP])
        self.records.append(record)
        self._count = None
        return record

    def _extend(self, block: LogRecord, number: int, text: str) -> bool:
        fields = block.fields
        if m := _OPERATION.search(text):
            if fields.get("operation") is not None:  # one record an operation: each has counts of its own
                again = {k: fields.get(k) for k in ("comm", "hash")} | {"counts": [], "ranks": []}
                block = self._block = self._add(block.line, fields["errors"], again, block.text.split(";")[0])
            block.fields["operation"], self._count = m.group(1), None
        elif m := _COUNT.match(text):
            counts = fields.setdefault("counts", [])
            before = counts[-1]["ranks"] if counts and not fields.get("ranks") else None
            counts.append({"ranks": int(m.group(1)), "operation": int(m.group(2) or 0)})
            # The ranks below two groups of one size may be of either.
            self._count = None if before == counts[-1]["ranks"] else counts[-1]["operation"]
        elif m := _RANK.match(text):
            fields.setdefault("ranks", []).append(self._rank(m, fields.get("operation") is not None))
        elif m := _PROCESS.match(text):
            fields.setdefault("processes", []).append({"pid": int(m["pid"]), "node": m["node"], "gpu": m["gpu"]})
        elif not text.startswith(" "):
            return False
        block.line_end = number
        block.text = f"{block.text}; {text.strip()}"[:_CLIP]
        return True

    def _rank(self, m: re.Match[str], counted: bool) -> dict[str, Any]:
        rank: dict[str, Any] = {"rank": int(m["rank"])}
        if m["pid"]:
            rank |= {"gpu": m["gpu"], "pid": int(m["pid"]), "node": m["node"]}
        count = int(m["count"]) if m["count"] else 0 if m["none"] else self._count if counted else None
        extra = {"count": count, "status": m["status"], "error": m["error"]}
        return rank | {k: v for k, v in extra.items() if v is not None}
