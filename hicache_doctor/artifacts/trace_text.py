"""What torch's flight-recorder analyser (``torchfrtrace``, ``fr_trace``) prints, and pasted process-group status.

Kinds: ``frtrace_missing_ranks`` (not all ranks joined), ``frtrace_error`` (a mismatch, with culprits as printed: for
crossed receives the tool's choice is arbitrary), ``frtrace_crash`` (the analyser itself died; that is no incident),
``pg_status`` (``Rank 0: enqueued=…, started=…, completed=…``, one record a rank).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hicache_doctor.evidence.rows import LogRecord

_MISSING = re.compile(r"Not all ranks joining collective[:,]? sequence number: (\d{1,18})")
_ERRORS = re.compile(r"Collective sequence number: (\d{1,18}) has errors")
_KEY = re.compile(
    r"(?:^|\s)(internal record id|group info|collective|missing ranks|input sizes|output sizes|world size|"
    r"expected ranks|collective state|error msg|collective stack trace): ?(.*)$"
)
_CULPRIT = re.compile(r"Culprit rank (\d{1,6})(?:; Error type: ([A-Z_]+))?")
_SIZES = re.compile(
    r"Expected (?:input|output) sizes: '([^']*)' does not match found (?:input|output) sizes: '([^']*)'"
)
_FRAME = re.compile(r"^\s*([\w.<>]+) at (\S+?):(\d{1,8})\s*$")
_GROUP = re.compile(r"\b(?:process[ _]group|PG(?: ID| GUID)?|group)[ :#]*(\d{1,9})\b", re.I)
_STATUS = re.compile(
    r"\branks?\s+(\d{1,5})(?:\s*(?:-|–|to)\s*(\d{1,5}))?\s*:\s*(?:last[_ ])?enqueued\w*\s*[=:]\s*(-?\d{1,18}),\s*"
    r"(?:last[_ ])?started\w*\s*[=:]\s*(-?\d{1,18}),\s*(?:last[_ ])?completed\w*\s*[=:]\s*(-?\d{1,18})",
    re.I,
)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
_CODE = re.compile(r'^\W*File "([^"]*)", line (\d{1,8}), in ')
_RAISED = re.compile(r"^\W*((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit))(?:: (.*))?$")
_ANALYSER = ("flight_recorder/", "fr_trace", "torchfrtrace")
_CLIP = 600


def looks_like_trace_text(text: str) -> bool:
    """True when the text holds the analyser's output, its crash, or a pasted status."""
    if any(x.search(text) for x in (_MISSING, _ERRORS, _STATUS)):
        return True
    return "Traceback" in text and "flight_recorder/" in text


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[LogRecord]:
    """The records, in order; ``offset`` is 0. Never raises."""
    out: list[LogRecord] = []
    block: LogRecord | None = None
    crash: list[tuple[int, str]] | None = None
    group: str | None = None
    for number, raw in lines:
        text = raw.rstrip("\r")
        if len(text) > 20000:
            continue
        found = _MISSING.search(text) or _ERRORS.search(text)
        if found is not None:
            kind = "frtrace_missing_ranks" if found.re is _MISSING else "frtrace_error"
            block = _record(artifact, number, kind, {"seq": int(found.group(1))}, text)
            out.append(block)
        elif _TRACEBACK.search(text):
            block, crash = None, [(number, text)]
        elif crash is not None:
            crash.append((number, text))
            if _RAISED.match(text) or len(crash) > 200:
                out += _crash(crash, artifact)
                crash = None
        elif m := _STATUS.search(text):
            out += _status(m, group, number, text, artifact)
        elif block is not None and _extend(block, number, text):
            pass
        elif m := _GROUP.search(text):
            group = m.group(1)
    return out


def _record(artifact: str, number: int, kind: str, fields: dict[str, Any], text: str) -> LogRecord:
    return LogRecord(artifact, number, number, 0, None, None, kind, fields, text.strip()[:_CLIP])


def _extend(block: LogRecord, number: int, text: str) -> bool:
    """Take one more line of the block; False when it does not belong to it."""
    fields = block.fields
    if m := _KEY.search(text):
        key, value = m.group(1), m.group(2).strip()
        if key == "group info":
            fields["group"], _, desc = value.partition(":")
            fields["group_desc"] = desc or None
        elif key in ("missing ranks", "expected ranks"):
            fields[key.split()[0]] = [int(n) for n in re.findall(r"\d{1,6}", value)]
        elif key in ("internal record id", "world size"):
            name = "record_id" if key == "internal record id" else "world_size"
            fields[name] = int(value) if re.fullmatch(r"[0-9]{1,18}", value) else value
        elif key == "collective state":
            fields["state"] = value
        elif key == "error msg":
            _error(fields, value)
        elif key == "collective stack trace":
            fields["frames"] = []
        else:
            fields[key.replace(" ", "_")] = value
    elif "frames" in fields and (f := _FRAME.match(text)):
        fields["frames"].append(f"{f.group(1)} at {f.group(2)}:{f.group(3)}")
    elif culprits := _CULPRIT.findall(text):
        fields.setdefault("culprits", []).extend(int(r) for r, _ in culprits)
    else:
        return not text.strip()
    block.line_end = number
    return True


def _error(fields: dict[str, Any], value: str) -> None:
    culprits = _CULPRIT.findall(value)
    fields["error"] = value[:_CLIP]
    fields["culprits"] = [int(r) for r, _ in culprits]
    fields["error_type"] = next((t for _, t in culprits if t), None)
    if m := _SIZES.search(value):
        fields["expected_sizes"], fields["found_sizes"] = m.group(1), m.group(2)


def _crash(lines: list[tuple[int, str]], artifact: str) -> list[LogRecord]:
    """The record of a traceback whose innermost code is the analyser's own."""
    codes = [m for _, t in lines if (m := _CODE.match(t))]
    if not codes or not any(word in codes[-1].group(1) for word in _ANALYSER):
        return []
    (first, head), (last, end) = lines[0], lines[-1]
    raised = _RAISED.match(end)
    fields = {
        "exception": raised.group(1) if raised else None,
        "message": (raised.group(2) or "")[:_CLIP] if raised else None,
        "file": codes[-1].group(1).rsplit("/", 1)[-1],
        "line": int(codes[-1].group(2)),
    }
    return [
        LogRecord(
            artifact, first, last, 0, None, None, "frtrace_crash", fields, f"{head.strip()} … {end.strip()}"[:_CLIP]
        )
    ]


def _status(m: re.Match[str], group: str | None, number: int, text: str, artifact: str) -> list[LogRecord]:
    first, last = int(m.group(1)), int(m.group(2) or m.group(1))
    out = []
    for rank in range(first, min(last, first + 1024) + 1):
        counts = {k: int(m.group(i)) for i, k in ((3, "enqueued"), (4, "started"), (5, "completed"))}
        record = _record(artifact, number, "pg_status", {"rank": rank, "group": group} | counts, text)
        record.rank = f"rank {rank}"
        out.append(record)
    return out
