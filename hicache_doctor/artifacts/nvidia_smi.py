"""``nvidia-smi`` output, the table and ``--query-gpu`` CSV: quoted, with simple gauges a GPU.

100 % at low power on one GPU with idle peers is what a spinning collective looks like: the rules judge, not we.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hicache_doctor.artifacts.byte_units import to_bytes
from hicache_doctor.artifacts.clock_text import seconds
from hicache_doctor.artifacts.process_title import rank_of_title
from hicache_doctor.evidence.rows import LogRecord, Sample

_BANNER = re.compile(r"NVIDIA-SMI\s+(\d[\d.]*).*?Driver Version:\s*(\d[\d.]*)")
_GPU = re.compile(r"^\|\s+(\d{1,2})\s+\S.*\|\s*[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:")
_STATE = re.compile(
    r"^\|.*?(?P<power>\d{1,5})W\s*/\s*\d+W\s*\|\s*(?P<used>\d{1,9}MiB)\s*/\s*(?P<total>\d{1,9}MiB)\s*\|\s*(?P<util>\d{1,3})%"
)
_PROCESS = re.compile(r"^\|\s+(\d{1,2})\s+\S+\s+\S+\s+(\d{1,10})\s+[CG+]+\s+(\S.*?)\s+(\d{1,9}MiB)\s*\|")
_QUERY = {
    "index": None, "utilization.gpu": "gpu_utilization_percent", "power.draw": "gpu_power_watts",
    "memory.used": "gpu_memory_used_bytes", "memory.total": "gpu_memory_total_bytes",
    "temperature.gpu": "gpu_temperature_celsius",
}  # fmt: skip
_NUMBER = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(MiB|W|%)?")


def looks_like_nvidia_smi(text: str) -> bool:
    """True for the table's banner or a query's header."""
    return _BANNER.search(text) is not None or any(len(_query(x)) >= 2 for x in text.splitlines()[:50])


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[LogRecord | Sample]:
    """One ``nvidia_smi`` record a table (its whole extent), and Samples labelled with ``gpu``. Never raises."""
    out: list[LogRecord | Sample] = []
    record: LogRecord | None = None
    at: float | None = None
    gpu: str | None = None
    columns: list[str] = []
    for number, text in lines:
        if len(text) > 4000:
            continue
        if m := _BANNER.search(text):
            fields = {"version": m.group(1), "driver": m.group(2)}
            record = LogRecord(artifact, number, number, 0, at, None, "nvidia_smi", fields, text.strip()[:300])
            out.append(record)
            continue
        if len(_query(text)) >= 2:
            columns = [c.strip() for c in text.split(",")]
            out.append(LogRecord(artifact, number, number, 0, at, None, "nvidia_smi", {}, text.strip()[:300]))
        elif columns and text.count(",") == len(columns) - 1:
            out += _query_row(columns, text, number, artifact)
        elif text.lstrip().startswith(("|", "+")) and record is not None:
            record.line_end = number
            if m := _GPU.match(text):
                gpu = m.group(1)
            elif m := _STATE.match(text):
                out += _state(m, gpu, number, artifact, at)
            elif m := _PROCESS.match(text):
                out.append(_process(m, number, artifact, at))
        elif (stamp := seconds(text)) is not None:
            at = stamp
            if record is not None and record.ts is None and record.line == number + 1:
                record.ts = stamp
    return out


def _state(m: re.Match[str], gpu: str | None, number: int, artifact: str, at: float | None) -> list[Sample]:
    values = {
        "gpu_utilization_percent": float(m.group("util")),
        "gpu_power_watts": float(m.group("power")),
        "gpu_memory_used_bytes": to_bytes(m.group("used")) or 0.0,
        "gpu_memory_total_bytes": to_bytes(m.group("total")) or 0.0,
    }
    return [Sample(artifact, number, None, None, at, name, value, {"gpu": gpu}) for name, value in values.items()]


def _process(m: re.Match[str], number: int, artifact: str, at: float | None) -> Sample:
    title = m.group(3)
    labels = {"gpu": m.group(1), "title": title}
    value = to_bytes(m.group(4)) or 0.0
    return Sample(
        artifact, number, rank_of_title(title), int(m.group(2)), at, "gpu_process_memory_bytes", value, labels
    )


def _query(text: str) -> list[str]:
    """The known columns of a ``--query-gpu`` header."""
    return [c for c in (x.strip().split(" ")[0] for x in text.split(",")) if c in _QUERY and c != "index"]


def _query_row(columns: list[str], text: str, number: int, artifact: str) -> list[Sample]:
    cells = dict(zip((c.split(" ")[0] for c in columns), (c.strip() for c in text.split(",")), strict=False))
    at = seconds(cells.get("timestamp", ""))
    out = []
    for column, name in _QUERY.items():
        m = _NUMBER.fullmatch(cells.get(column, ""))
        if name is not None and m is not None:
            # Without units in the row, the header's unit is MiB all the same.
            value = float(m.group(1)) * (1024.0**2 if column.startswith("memory.") else 1.0)
            out.append(Sample(artifact, number, None, None, at, name, value, {"gpu": cells.get("index")}))
    return out
