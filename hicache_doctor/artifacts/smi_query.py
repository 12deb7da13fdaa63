"""``nvidia-smi`` in columns: ``--query-gpu`` and ``--query-compute-apps`` CSV, ``dmon`` and ``pmon``.

The columns' own names say what they hold, with or without units. A query without its header is read when the command
that made it stands above it, or when its cells have their units (the first of each is the one that people ask for).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hicache_doctor.artifacts.clock_text import seconds
from hicache_doctor.artifacts.process_title import rank_of_title
from hicache_doctor.evidence.rows import LogRecord, Sample

MIB = 1024.0**2
# Column → (name of the sample, factor). memory.* has MiB in the header or the cell, or no unit and is MiB all the same.
GPU_COLUMNS = {
    "utilization.gpu": ("gpu_utilization_percent", 1.0),
    "utilization.memory": ("gpu_memory_utilization_percent", 1.0),
    "power.draw": ("gpu_power_watts", 1.0),
    "power.draw.instant": ("gpu_power_watts", 1.0),
    "power.draw.average": ("gpu_power_watts", 1.0),
    "power.limit": ("gpu_power_limit_watts", 1.0),
    "memory.used": ("gpu_memory_used_bytes", MIB),
    "memory.free": ("gpu_memory_free_bytes", MIB),
    "memory.total": ("gpu_memory_total_bytes", MIB),
    "temperature.gpu": ("gpu_temperature_celsius", 1.0),
    "ecc.errors.uncorrected.volatile.total": ("gpu_ecc_uncorrected_volatile", 1.0),
}
APP_COLUMNS = {"used_gpu_memory": ("gpu_process_memory_bytes", MIB), "used_memory": ("gpu_process_memory_bytes", MIB)}
_NAMES = {"index", "gpu", "uuid", "gpu_uuid", "gpu_bus_id", "pci.bus_id", "name", "gpu_name", "timestamp", "pid",
          "process_name", "serial", "driver_version", "pstate", "count", "mig.mode.current", "gpu_serial"}  # fmt: skip
_COMMAND = re.compile(r"--query-(?:gpu|compute-apps)=(?P<columns>[\w.,]+)")
# dmon and pmon: the first line names the columns, the second their units; both begin with #.
MON_COLUMNS = {
    "pwr": ("gpu_power_watts", 1.0), "gtemp": ("gpu_temperature_celsius", 1.0), "sm": ("gpu_utilization_percent", 1.0),
    "mem": ("gpu_memory_utilization_percent", 1.0), "fb": ("gpu_memory_used_bytes", MIB),
}  # fmt: skip
_NUMBER = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(?:MiB|W|%|C)?")
_MON = re.compile(r"^#\s*(?:Date\s+)?(?:Time\s+)?gpu\s+\w", re.I)
_DATE = re.compile(r"\d{8}")


_UNITS = {"%": "utilization.gpu", "W": "power.draw", "MiB": "memory.used", "MiB2": "memory.total"}
_CELL = re.compile(r"\s*\d{1,9}(?:\.\d{1,6})? (%|W|MiB)\s*")


class Query:
    """The rows below one CSV header (or below the command, without one)."""

    def __init__(self, artifact: str, columns: list[str]) -> None:
        self._artifact = artifact
        self._columns = columns

    @classmethod
    def of(cls, text: str, artifact: str) -> Query | None:
        """The query whose header or whose command this line is."""
        command = _COMMAND.search(text)
        cells = (command["columns"] if command else text).split(",")
        columns = _by_units(cells) or [c.strip().split(" ")[0] for c in cells]
        known = [c for c in columns if c in GPU_COLUMNS or c in APP_COLUMNS]
        if not known or not all(c in GPU_COLUMNS or c in APP_COLUMNS or c in _NAMES or "." in c for c in columns):
            return None
        return cls(artifact, columns) if len(columns) > 1 else None

    def row(self, text: str, number: int) -> list[Sample]:
        """The samples of a row; none when it has other cells."""
        if text.count(",") != len(self._columns) - 1:
            return []
        cells = dict(zip(self._columns, (c.strip() for c in text.split(",")), strict=False))
        at = seconds(cells.get("timestamp", ""))
        pid, title = cells.get("pid", ""), cells.get("process_name")
        labels: dict[str, Any] = {"gpu": cells.get("index") or cells.get("gpu")}
        places = {"pci": ("pci.bus_id", "gpu_bus_id"), "uuid": ("uuid", "gpu_uuid"), "title": ("process_name",)}
        for label, names in places.items():
            if value := next((cells[n] for n in names if cells.get(n)), None):
                labels[label] = value
        out = []
        for column, (name, factor) in {**GPU_COLUMNS, **APP_COLUMNS}.items():
            m = _NUMBER.fullmatch(cells.get(column, ""))
            if m is not None:
                known = int(pid) if re.fullmatch(r"[0-9]{1,10}", pid) else None
                out.append(
                    Sample(self._artifact, number, rank_of_title(title), known, at, name, float(m[1]) * factor, labels)
                )
        return out


def _by_units(cells: list[str]) -> list[str] | None:
    """The columns of a row whose cells have units: an index first, a share and a power among the rest."""
    if not cells[0].strip().isdecimal() or len(cells) < 3:
        return None
    columns = ["index"]
    for i, cell in enumerate(cells[1:]):
        m = _CELL.fullmatch(cell)
        name = _UNITS[m[1]] if m else f"column.{i}"
        columns.append(_UNITS["MiB2"] if name in columns and name == _UNITS["MiB"] else name)
    named = [c for c in columns if not c.startswith("column.")]
    fits = {_UNITS["%"], _UNITS["W"]} <= set(columns) and len(named) == len(set(named))
    return columns if fits else None


class Monitor:
    """The rows of ``nvidia-smi dmon`` or ``pmon``."""

    def __init__(self, artifact: str, header: str) -> None:
        self._artifact = artifact
        self._columns = header.lstrip("# ").lower().split()
        self._process = "pid" in self._columns

    @classmethod
    def of(cls, text: str, artifact: str) -> Monitor | None:
        """The monitor whose first line this is."""
        words = set(text.lower().split())
        known = words & {*MON_COLUMNS, "pid", "ccpm", "pclk"}
        return cls(artifact, text) if _MON.match(text) and len(known) >= 2 else None

    def row(self, text: str, number: int) -> list[Sample]:
        """The samples of a row; none when it is no row."""
        cells = text.split(None, len(self._columns) - 1)
        if text.lstrip().startswith("#") or len(cells) != len(self._columns):
            return []
        row = dict(zip(self._columns, (c.strip() for c in cells), strict=True))
        if not row.get("gpu", "").isdecimal():
            return []
        return list(self._samples(row, number))

    def _samples(self, row: dict[str, str], number: int) -> Iterator[Sample]:
        date, clock = row.get("date", ""), row.get("time", "")
        at = seconds(f"{date[:4]}-{date[4:6]}-{date[6:]}T{clock}") if _DATE.fullmatch(date) else None
        pid, title = row.get("pid", ""), row.get("command")
        if self._process and not pid.isdecimal():
            return
        labels: dict[str, Any] = {"gpu": row["gpu"]} | ({"title": title} if title else {})
        for column, (name, factor) in MON_COLUMNS.items():
            m = _NUMBER.fullmatch(row.get(column, ""))
            if m is not None:
                named = name.replace("gpu_", "gpu_process_").replace("_used", "") if self._process else name
                known = int(pid[:10]) if self._process else None
                yield Sample(
                    self._artifact, number, rank_of_title(title), known, at, named, float(m[1]) * factor, dict(labels)
                )


def heading(text: str, artifact: str, number: int) -> LogRecord:
    """The record of such a table, for the sake of its place."""
    return LogRecord(artifact, number, number, 0, None, None, "nvidia_smi", {}, text.strip()[:300])
