"""``nvidia-smi`` output: the table of any driver generation, ``-q``, CSV queries, ``dmon`` and ``pmon``.

Each table is a record ``nvidia_smi`` (its whole extent) with gauges a GPU and a process; what the tool says of a lost
GPU or driver is ``nvidia_smi_fault``. 100 % at low power on one GPU with idle peers is what a spinning collective looks
like: the rules judge, not we.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hicache_doctor.artifacts.byte_units import to_bytes
from hicache_doctor.artifacts.clock_text import seconds
from hicache_doctor.artifacts.process_title import rank_of_title
from hicache_doctor.artifacts.smi_full import BANNER, FullReport
from hicache_doctor.artifacts.smi_query import Monitor, Query, heading
from hicache_doctor.evidence.rows import LogRecord, Sample

_BANNER = re.compile(r"NVIDIA-SMI\s+(\d[\d.]*).*?Driver Version:\s*(\d[\d.]*)")
_GPU = re.compile(r"^\|\s+(\d{1,2})\s+\S.*\|\s*(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
_STATE = re.compile(
    r"^\|.*?(?:(?P<power>\d{1,5})W|N/A|ERR!)\s*/\s*(?:\d+W|N/A|ERR!)\s*\|\s*(?P<used>\d{1,9}MiB)\s*/"
    r"\s*(?P<total>\d{1,9}MiB)\s*\|\s*(?:(?P<util>\d{1,3})%|N/A|ERR!)"
)
_MIG = re.compile(
    r"^\|\s+(?P<gpu>\d{1,2})\s+(?P<gi>\d{1,3})\s+(?P<ci>\d{1,3})\s+(?P<dev>\d{1,3})\s+\|\s*(?P<used>\d{1,9}MiB)\s*/"
    r"\s*(?P<total>\d{1,9}MiB)\s*\|"
)
_PROCESS = re.compile(
    r"^\|\s+(?P<gpu>\d{1,2})\s+(?:(?P<gi>\S+)\s+(?P<ci>\S+)\s+)?(?P<pid>\d{1,10})\s+(?:M\+)?[CG+]+\s+(?P<title>\S.*?)\s+"
    r"(?:(?P<used>\d{1,9}MiB)|N/A)\s*\|"
)
_FAULT = re.compile(
    r"(?P<what>NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver|"
    r"Unable to determine the device handle for GPU ?\S+: (?:GPU is lost|Unknown Error)|GPU is lost\.|"
    r"^No devices were found$|Failed to initialize NVML: \w[\w /-]{0,60})"
)
# Of these only a lost GPU is a fault of the GPU; the others may be a container without one.
_LOST = ("is lost", "Unknown Error")


def looks_like_nvidia_smi(text: str) -> bool:
    """True for the table's banner, a query's header or command, or a monitor's."""
    if _BANNER.search(text) or BANNER.search(text):
        return True
    lines = [x for x in text.splitlines()[:400] if len(x) < 4000]
    return any(_FAULT.search(x) or Query.of(x, "") or Monitor.of(x, "") for x in lines)


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[LogRecord | Sample]:
    """One ``nvidia_smi`` record a table (its whole extent), and Samples labelled with ``gpu``. Never raises."""
    out: list[LogRecord | Sample] = []
    table = _Table(artifact)
    columns: Query | Monitor | None = None
    full: FullReport | None = None
    for number, text in lines:
        if len(text) > 4000:
            continue
        if BANNER.search(text):
            full, columns = FullReport(artifact), None
            out.append(heading(text, artifact, number))
        elif m := _BANNER.search(text):
            full, columns = None, None
            out.append(table.begin(m, number, text))
        elif m := _FAULT.search(text):
            kind = "nvidia_smi_fault" if any(w in text for w in _LOST) else "nvidia_smi_note"
            what = {"what": m["what"]}
            out.append(LogRecord(artifact, number, number, 0, table.at, None, kind, what, text.strip()[:300]))
        elif full is not None and table.record is None:
            out += full.feed(number, text)
        elif columns is not None and (found := columns.row(text, number)):
            out += found
        elif (query := Query.of(text, artifact) or Monitor.of(text, artifact)) is not None:
            columns = query
            out += [heading(text, artifact, number), *columns.row(text, number)]
        elif text.lstrip().startswith(("|", "+")) and table.record is not None:
            out += table.feed(number, text)
        elif (stamp := seconds(text)) is not None:
            table.stamp(stamp, number)
    return out


class _Table:
    """The boxes of the default output."""

    def __init__(self, artifact: str) -> None:
        self.record: LogRecord | None = None
        self.at: float | None = None
        self._artifact = artifact
        self._gpu: dict[str, str] = {}

    def begin(self, m: re.Match[str], number: int, text: str) -> LogRecord:
        fields = {"version": m.group(1), "driver": m.group(2)}
        self.record = LogRecord(
            self._artifact, number, number, 0, self.at, None, "nvidia_smi", fields, text.strip()[:300]
        )
        return self.record

    def stamp(self, at: float, number: int) -> None:
        self.at = at
        if self.record is not None and self.record.ts is None and self.record.line == number + 1:
            self.record.ts = at

    def feed(self, number: int, text: str) -> list[LogRecord | Sample]:
        assert self.record is not None
        self.record.line_end = number
        if m := _GPU.match(text):
            self._gpu = {"gpu": m.group(1), "pci": m["pci"]}
            if "ERR!" in text:
                fields = {"what": "ERR!", **self._gpu}
                fault = LogRecord(
                    self._artifact, number, number, 0, self.at, None, "nvidia_smi_fault", fields, text.strip()[:300]
                )
                return [fault]
        elif m := _MIG.match(text):
            labels = {"gpu": m["gpu"], "mig": f"{m['gi']}/{m['ci']}"}
            return [self._sample(number, "gpu_mig_memory_used_bytes", to_bytes(m["used"]), labels)]
        elif m := _STATE.match(text):
            values = {
                "gpu_utilization_percent": float(m["util"]) if m["util"] else None,
                "gpu_power_watts": float(m["power"]) if m["power"] else None,
                "gpu_memory_used_bytes": to_bytes(m["used"]),
                "gpu_memory_total_bytes": to_bytes(m["total"]),
            }
            return [self._sample(number, k, v, dict(self._gpu)) for k, v in values.items() if v is not None]
        elif (m := _PROCESS.match(text)) and m["used"]:
            labels = {"gpu": m["gpu"], "title": m["title"]}
            if (m["gi"] or "N/A").isdecimal():
                labels["mig"] = f"{m['gi']}/{m['ci']}"
            sample = self._sample(number, "gpu_process_memory_bytes", to_bytes(m["used"]), labels)
            sample.rank, sample.pid = rank_of_title(m["title"]), int(m["pid"])
            return [sample]
        return []

    def _sample(self, number: int, name: str, value: float | None, labels: dict[str, str]) -> Sample:
        return Sample(self._artifact, number, None, None, self.at, name, value or 0.0, dict(labels))
