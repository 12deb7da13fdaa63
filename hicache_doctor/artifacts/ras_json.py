"""``ncclras -f json`` (NCCL 2.28 and later): the counts of every rank of every communicator.

It has no verdict of its own, so a record is made as the text report would: ``ras_mismatch`` for an operation whose
counts differ between the ranks, ``ras_incomplete`` and ``ras_dead`` for ranks that did not answer, ``ras_error`` for
ranks whose state is an ``ncclResult`` that means an error, else ``ras_ok``. NCCL 2.28.9 leaves out a comma before the
status of a missing rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from hicache_doctor.artifacts.clock_text import seconds
from hicache_doctor.artifacts.json_text import Document, Finder, Numbered, documents
from hicache_doctor.artifacts.ras_rows import rank_rows
from hicache_doctor.evidence.rows import LogRecord, Row

_LOOKS = re.compile(r'"communicators"\s*:\s*\[')
_LOST_COMMA = re.compile(r'("nvml_dev"\s*:\s*-?\d{1,6})(\s*"status")')
_IN_PROGRESS = 7  # ncclInProgress; 1 to 6 are errors
_MOST_COMMUNICATORS = 4096


def looks_like_ras_json(text: str) -> bool:
    """True when the text holds such a report."""
    return _LOOKS.search(text) is not None and '"nccl_version"' in text


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[Row]:
    """The records, in order, each followed by those of its ranks. Never raises."""
    mended = [(n, _LOST_COMMA.sub(r"\1,\2", t) if len(t) < 1 << 20 else t) for n, t in _joined(lines)]
    numbered = Numbered(mended)
    out: list[Row] = []
    for document in documents(numbered.text):
        if isinstance(document.value, dict) and isinstance(document.value.get("communicators"), list):
            for record in _Report(document, numbered, artifact).records():
                out += [record, *rank_rows(record)]
    return out


def _joined(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lost comma belongs to the end of the line before ``"status"``."""
    for i, (number, text) in enumerate(lines):
        following = lines[i + 1][1] if i + 1 < len(lines) else ""
        lost = following.lstrip().startswith('"status"') and re.fullmatch(r'\s*"\w+"\s*:\s*-?\d{1,10}\s*', text)
        yield number, text.rstrip() + "," if lost else text


class _Report:
    def __init__(self, document: Document, numbered: Numbered, artifact: str) -> None:
        self._data = document.value
        self._find = Finder(numbered, document.begin, document.end)
        self._artifact = artifact
        self._ts = seconds(str(self._data.get("timestamp", "")))
        self._version = str(self._data.get("nccl_version", ""))[:40]

    def records(self) -> Iterator[LogRecord]:
        for i, comm in enumerate(self._data["communicators"][:_MOST_COMMUNICATORS]):
            if not isinstance(comm, dict):
                continue
            name = str(comm.get("hash", ""))
            line = self._find.line("hash", name)
            base = {"comm": str(i), "hash": name.removeprefix("0x"), "size": comm.get("size")}
            ranks = [r for r in _list(comm, "ranks") if isinstance(r, dict)]
            missing = [r for r in _list(comm, "missing_ranks") if isinstance(r, dict)]
            found = [*_mismatches(ranks), *_errors(ranks), *_missing(missing)] or [("ok", {})]
            for kind, fields in found:
                yield self._record(kind, line, base | fields)

    def _record(self, kind: str, line: int, fields: dict[str, Any]) -> LogRecord:
        fields |= {"errors": kind.upper(), "nccl_version": self._version}
        text = f"communicator {fields['hash']} {kind.upper()}"
        if fields.get("counts"):
            counts = ", ".join(f"{c['ranks']} at {c['operation']}" for c in fields["counts"][:8])
            text += f": {fields['operation']} counts: {counts}"
        return LogRecord(self._artifact, line, line, 0, self._ts, None, f"ras_{kind}", fields, text[:300])


def _mismatches(ranks: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    per_operation: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for rank in ranks:
        counts = rank.get("collective_counts")
        for operation, count in counts.items() if isinstance(counts, dict) else ():
            if isinstance(count, int):
                per_operation.setdefault(str(operation)[:40], {}).setdefault(count, []).append(rank)
    for operation, groups in per_operation.items():
        if len(groups) > 1:
            listed = [_rank(r) | {"count": n} for n, members in sorted(groups.items()) for r in members]
            counts = [{"ranks": len(g), "operation": n} for n, g in groups.items()]
            counts.sort(key=lambda c: (-c["ranks"], -c["operation"]))
            yield "mismatch", {"operation": operation, "counts": counts, "ranks": listed}


def _errors(ranks: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    failed = []
    for rank in ranks:
        status = rank.get("status")
        codes = [status.get(k) for k in ("init_state", "async_error")] if isinstance(status, dict) else []
        code = next((c for c in codes if isinstance(c, int) and 0 < c < _IN_PROGRESS), None)
        if code is not None:
            failed.append(_rank(rank) | {"error": f"ncclResult {code}"})
    if failed:
        yield "error", {"ranks": failed}


def _missing(ranks: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind, key in (("dead", "considered_dead"), ("incomplete", "unresponsive")):
        chosen = [r for r in ranks if isinstance(r.get("status"), dict) and r["status"].get(key) is True]
        if kind == "incomplete":
            chosen = [r for r in chosen if r["status"].get("considered_dead") is not True]
        if chosen:
            yield kind, {"ranks": [_rank(r) for r in chosen]}


def _rank(rank: dict[str, Any]) -> dict[str, Any]:
    numbers = {k: v for k in ("rank", "pid") if isinstance(v := rank.get(k), int) and 0 <= v < 1 << 31}
    return {"rank": -1, "gpu": str(rank.get("cuda_dev", ""))[:10], "node": str(rank.get("host", ""))[:80]} | numbers


def _list(data: dict[str, Any], key: str) -> list[Any]:
    value = data.get(key)
    return value if isinstance(value, list) else []
