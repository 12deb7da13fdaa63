"""``nvidia-smi -q``: one block a GPU, of which utilisation, power, memory, memory errors and processes are read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hicache_doctor.artifacts.byte_units import to_bytes
from hicache_doctor.artifacts.clock_text import seconds
from hicache_doctor.artifacts.process_title import rank_of_title
from hicache_doctor.evidence.rows import LogRecord, Sample

BANNER = re.compile(r"=+NVSMI LOG=+")
_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
_PAIR = re.compile(r"^(\s+)(\S[^:]*?)\s*:\s(.*?)\s*$")
_SECTION = re.compile(r"^(\s+)(\S[^:]*?)\s*$")
_NUMBER = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(?: (MiB|W|%|C))?")
# (section, key) → name of the sample; where several sections have a key, the innermost one is meant.
_VALUES = {
    ("Utilization", "GPU"): "gpu_utilization_percent",
    ("Utilization", "Gpu"): "gpu_utilization_percent",
    ("FB Memory Usage", "Used"): "gpu_memory_used_bytes",
    ("FB Memory Usage", "Total"): "gpu_memory_total_bytes",
    ("Temperature", "GPU Current Temp"): "gpu_temperature_celsius",
    ("Volatile", "SRAM Uncorrectable"): "gpu_ecc_uncorrected_volatile",
    ("Volatile", "SRAM Uncorrectable Parity"): "gpu_ecc_uncorrected_volatile",
    ("Volatile", "SRAM Uncorrectable SEC-DED"): "gpu_ecc_uncorrected_volatile",
    ("Volatile", "DRAM Uncorrectable"): "gpu_ecc_uncorrected_volatile",
}
_POWER = ("Power Draw", "Average Power Draw", "Instantaneous Power Draw")
_FAULTS = {("Remapped Rows", "Remapping Failure Occurred"): "Yes", ("Remapped Rows", "Pending"): "Yes"}


class FullReport:
    """Reads the lines below the banner; ``feed`` them in order."""

    def __init__(self, artifact: str) -> None:
        self._artifact = artifact
        self._at: float | None = None
        self._gpu = -1
        self._pci: str | None = None
        self._path: list[tuple[int, str]] = []
        self._process: dict[str, Any] = {}
        self._powered = False
        self._errors = 0.0

    def feed(self, number: int, text: str) -> Iterator[LogRecord | Sample]:
        """The rows of one line."""
        if m := _GPU.match(text):
            self._gpu, self._pci, self._path = self._gpu + 1, m[1], []
            self._powered, self._errors = False, 0.0
        elif text.startswith("Timestamp"):
            self._at = seconds(text)
        elif m := _PAIR.match(text):
            self._leave(len(m[1]))
            yield from self._pair(number, len(m[1]), m[2], m[3])
        elif m := _SECTION.match(text):
            self._leave(len(m[1]))
            self._path.append((len(m[1]), m[2]))

    def _leave(self, indent: int) -> None:
        while self._path and self._path[-1][0] >= indent:
            self._path.pop()

    def _pair(self, number: int, indent: int, key: str, value: str) -> Iterator[LogRecord | Sample]:
        section = self._path[-1][1] if self._path else ""
        if section == "Processes" or "Processes" in (name for _, name in self._path):
            yield from self._of_process(number, indent, key, value)
            return
        name = _VALUES.get((section, key))
        if key in _POWER and "Power Readings" in section and not self._powered and value[:1].isdigit():
            name, self._powered = "gpu_power_watts", True
        if name is not None and (m := _NUMBER.fullmatch(value)):
            amount = to_bytes(value.replace(" ", "")) if m[2] == "MiB" else float(m[1])
            if name.startswith("gpu_ecc"):
                self._errors = amount = self._errors + (amount or 0.0)
                if not amount:
                    return
                yield self._fault(number, f"{key}: {value}", "uncorrected memory errors")
            yield self._sample(number, name, amount or 0.0)
        if _FAULTS.get((section, key)) == value and key != "Pending":
            yield self._fault(number, f"{key}: {value}", "row remapping failed")

    def _of_process(self, number: int, indent: int, key: str, value: str) -> Iterator[Sample]:
        if key in ("Process ID", "PID"):
            self._process = {"pid": int(value) if re.fullmatch(r"[0-9]{1,10}", value) else None}
            self._path.append((indent, "process"))
        elif key == "Name":
            self._process["title"] = value
        elif key == "Used GPU Memory" and (amount := to_bytes(value.replace(" ", ""))) is not None:
            title = self._process.get("title")
            yield Sample(
                self._artifact, number, rank_of_title(title), self._process.get("pid"), self._at,
                "gpu_process_memory_bytes", amount, self._labels() | ({"title": title} if title else {}),
            )  # fmt: skip

    def _labels(self) -> dict[str, Any]:
        return {"gpu": str(self._gpu), "pci": self._pci}

    def _sample(self, number: int, name: str, value: float) -> Sample:
        return Sample(self._artifact, number, None, None, self._at, name, value, self._labels())

    def _fault(self, number: int, text: str, what: str) -> LogRecord:
        fields = {"what": what, **self._labels()}
        return LogRecord(self._artifact, number, number, 0, self._at, None, "nvidia_smi_note", fields, text)
