"""Memory of processes and hosts as pasted from a shell: ``ps``, ``top -b``, ``free``, ``/proc/PID/status``, meminfo.

Blocks may follow one another with date lines between them: each sample carries the time last seen above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hicache_doctor.artifacts.byte_units import to_bytes
from hicache_doctor.artifacts.clock_text import seconds
from hicache_doctor.artifacts.process_title import rank_of_title
from hicache_doctor.evidence.rows import Sample

_HEADER = re.compile(r"^(?=.*\bPID\b)(?=.*\b(?:RSS|RES|VSZ)\b)\s*(?:USER|PID|UID|F|S|RSS|PPID|STAT)\b", re.I)
_FREE = re.compile(r"^\s*total\s+used\s+free\s+shared\s+buff", re.I)
_FREE_ROW = re.compile(r"^\s*(Mem|Swap):\s+(\S.*)$")
_STATUS = re.compile(r"^(Vm(?:RSS|Size|HWM|Swap)|Rss(?:Anon|File|Shmem)):\s+(\d{1,18}) kB\s*$")
_MEMINFO = re.compile(
    r"^(MemTotal|MemFree|MemAvailable|Shmem|Cached|SwapTotal|SwapFree|AnonPages):\s+(\d{1,18}) kB\s*$"
)
_STATUS_ID = re.compile(r"^(Name|Pid|Threads):\s+(\S.*?)\s*$")
_TOP_TIME = re.compile(r"^top - (\d{2}:\d{2}:\d{2})")
_STATUS_NAMES = {
    "VmRSS": "rss_bytes", "VmSize": "vsz_bytes", "VmHWM": "rss_peak_bytes", "VmSwap": "swap_bytes",
    "RssAnon": "rss_anon_bytes", "RssFile": "rss_file_bytes", "RssShmem": "rss_shmem_bytes",
    "MemTotal": "mem_total_bytes", "MemFree": "mem_free_bytes", "MemAvailable": "mem_available_bytes",
    "Shmem": "shmem_bytes", "Cached": "mem_cached_bytes", "SwapTotal": "swap_total_bytes",
    "SwapFree": "swap_free_bytes", "AnonPages": "anon_pages_bytes",
}  # fmt: skip
_FREE_NAMES = {
    "total": "mem_total_bytes", "used": "mem_used_bytes", "free": "mem_free_bytes", "shared": "shmem_bytes",
    "buff/cache": "mem_buff_cache_bytes", "available": "mem_available_bytes",
}  # fmt: skip
_COLUMNS = {"RSS": "rss_bytes", "RES": "rss_bytes", "VSZ": "vsz_bytes", "VIRT": "vsz_bytes", "SHR": "shared_bytes"}
_TAIL = ("COMMAND", "CMD", "ARGS")
# Without a header (`ps … | grep scheduler`) the command that was pasted with its output names the columns.
_PS_COMMAND = re.compile(r"\bps\s+(?:\S+\s+)*?-?\w*o[ =]?([a-z%]+(?:,[a-z%:]+)+)")


def looks_like_process_table(text: str) -> bool:
    """True when the text holds one of these blocks."""
    lines = text.splitlines()
    return (
        any(_HEADER.match(x) or _FREE.match(x) or _PS_COMMAND.search(x) for x in lines)
        or sum(bool(_STATUS.match(x)) for x in lines) >= 2
        or (sum(bool(_MEMINFO.match(x)) for x in lines) >= 3)
    )


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[Sample]:
    """The samples, in order: name in ``*_bytes``, pid and rank where told. Never raises."""
    return list(_Reader(artifact).read(lines))


class _Reader:
    def __init__(self, artifact: str) -> None:
        self.artifact = artifact
        self.at: float | None = None
        self.columns: list[str] = []
        self.free: list[str] = []
        self.pid: int | None = None
        self.title: str | None = None

    def read(self, lines: Sequence[tuple[int, str]]) -> Iterator[Sample]:
        for number, raw in lines:
            text = raw.rstrip("\r")
            if len(text) > 20000:
                continue
            if _HEADER.match(text):
                self.columns = text.upper().split()
            elif m := _PS_COMMAND.search(text):
                self.columns = [c.partition(":")[0].upper() for c in m.group(1).split(",")]
            elif _FREE.match(text):
                self.free = text.lower().split()
            elif m := _FREE_ROW.match(text):
                yield from self._free(number, m.group(1), m.group(2).split())
            elif m := _STATUS.match(text) or _MEMINFO.match(text):
                host = m.group(1) in ("Shmem", "Cached", "AnonPages") or m.group(1)[:3] in ("Mem", "Swa")
                title = None if host else self.title
                yield self._sample(
                    number, _STATUS_NAMES[m.group(1)], float(m.group(2)) * 1024, None if host else self.pid, title
                )
            elif m := _STATUS_ID.match(text):
                self._identity(m.group(1), m.group(2))
            elif self.columns and (found := self._process(number, text)):
                yield from found
            elif text.strip():
                stamp = seconds(text)
                self.at = self.at if stamp is None else stamp
                if stamp is not None:
                    self.pid = self.title = None

    def _identity(self, key: str, value: str) -> None:
        if key == "Name":
            self.title, self.pid = value, None
        elif key == "Pid" and value.isascii() and value.isdecimal():
            self.pid = int(value[:10])

    def _free(self, number: int, row: str, cells: list[str]) -> Iterator[Sample]:
        names = self.free or ["total", "used", "free", "shared", "buff/cache", "available"]
        # Bare numbers: `free -b`, `free` (KiB), `free -m` and `free -g` are told apart by their length only.
        longest = max(map(len, cells))
        unit = "" if longest > 10 else "K" if longest > 6 else "M" if longest > 4 else "G"
        for name, cell in zip(names, cells, strict=False):
            value = to_bytes(cell, unit)
            if value is not None and name in _FREE_NAMES:
                known = _FREE_NAMES[name] if row == "Mem" else f"swap_{name}_bytes"
                yield self._sample(number, known, value, None, None)

    def _process(self, number: int, text: str) -> list[Sample]:
        tail = next((i for i, c in enumerate(self.columns) if c in _TAIL), len(self.columns))
        cells = text.split(None, tail)
        if len(cells) < min(tail, len(self.columns)) or "PID" not in self.columns[: len(cells)]:
            return []
        pid = cells[self.columns.index("PID")]
        if not re.fullmatch(r"[0-9]{1,10}", pid):
            return []
        title = cells[tail].strip() if len(cells) > tail else None
        out = []
        for i, column in enumerate(self.columns[: len(cells)]):
            value = to_bytes(cells[i], "K") if column in _COLUMNS else None
            if value is not None:
                out.append(self._sample(number, _COLUMNS[column], value, int(pid), title))
        return out

    def _sample(self, number: int, name: str, value: float, pid: int | None, title: str | None) -> Sample:
        labels = {"title": title} if title else {}
        return Sample(self.artifact, number, rank_of_title(title), pid, self.at, name, value, labels)
