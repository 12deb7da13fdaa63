"""Kernel lines from dmesg, journald, syslog or a console: GPU faults, OOM kills, segfaults, machine checks.

Kinds: those of :mod:`kernel_gpu`, ``kernel_oom_kill``, ``kernel_segfault``. A monotonic stamp (``[ 1843.308145]``) goes
into ``fields["uptime"]``; a stamp without a year into ``fields["clock"]``, with no ``ts``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hicache_doctor.artifacts.clock_text import seconds
from hicache_doctor.artifacts.kernel_gpu import named_gpu, read_gpu, xid_table
from hicache_doctor.artifacts.process_title import rank_of_title
from hicache_doctor.evidence.rows import LogRecord

__all__ = ["LITERALS", "looks_like_kernel_log", "parse", "xid_table"]

# At least one of these stands in every line that this reader knows: for the prefilter of big logs.
LITERALS = (
    "Xid ", "XidCriticalError", "fallen off the bus", "NVRM: ", "PCIe Bus Error", "AER: ", "oom-kill", "oom_reaper",
    "ut of memory: ", "System OOM", " segfault at ", "general protection", "trap invalid opcode", "Hardware Error]",
    "EDAC MC", "Machine check", "Memory failure: 0x",
)  # fmt: skip
_OOM = re.compile(r"\boom-kill:(?P<body>constraint=\S*.*)$")
_KILLED = re.compile(
    r"(?:(?P<memcg>Memory cgroup )?[Oo]ut of memory:? .*?)?\bKill(?:ed)? process (?P<pid>\d{1,10}) "
    r"\((?P<name>[^)]*)\)(?P<rest>.*)$"
)
_REAPED = re.compile(r"oom_reaper: reaped process (?P<pid>\d{1,10}) \((?P<name>[^)]*)\)")
_INVOKED = re.compile(r"(?P<name>\S+) invoked oom-killer: ")
_KUBELET = re.compile(r"System OOM encountered, victim process: (?P<name>.{1,64}?), pid: (?P<pid>\d{1,10})")
_RSS = re.compile(r"(total-vm|anon-rss|file-rss|shmem-rss):(\d{1,18})kB")
_SEGFAULT = re.compile(
    r"(?P<name>[\w.:/<>-]{1,64})\[(?P<pid>\d{1,10})\]:? (?P<what>segfault|general protection(?: fault)?|"
    r"trap (?:invalid opcode|divide error))\b(?: at (?P<at>[0-9a-f]+))?.*?(?: in (?P<lib>[^\s\[]+))?(?:\[|$)"
)
_UPTIME = re.compile(r"\[\s*(\d{1,10}\.\d{3,9})\]")
_KMSG = re.compile(r"^\d{1,4},\d{1,10},(?P<us>\d{1,18}),[^;]{1,80};")
_SHORT = re.compile(r"\b((?:[A-Z][a-z]{2}|\d{1,2}月) {1,2}\d{1,2} \d{2}:\d{2}:\d{2})\b")
# `dmesg -H`: the time of day to the minute, then seconds since the line before.
_RELATIVE = re.compile(r"^\[(?:(?P<month>[A-Z][a-z]{2}) ?(?P<day>\d{1,2}) (?P<at>\d{2}:\d{2})|\s*\+\d{1,9}\.\d{6})\]")
_LEVEL = re.compile(r"^(?:<\d{1,3}>|(?:kern|user|daemon|syslog) *:\s*\w+ *: )")
_HOST = re.compile(r"^(?:\S+ {1,2}\d{1,2} \S+ |\S+ )?(\S+) kernel: ")
_CLIP = 600
_LONGEST = 4000
_NEAR = 3


def maybe(text: str) -> bool:
    """Whether one of ``LITERALS`` stands in the line."""
    return len(text) < _LONGEST and any(literal in text for literal in LITERALS)


def looks_like_kernel_log(text: str) -> bool:
    """True when the text has a line that this reader knows, or looks like dmesg throughout."""
    lines = text.splitlines()
    if any(maybe(x) and _read(x) for x in lines):
        return True
    lines = [x for x in lines[:2000] if len(x) < _LONGEST]
    stamped = sum(bool(_UPTIME.match(_LEVEL.sub("", x.lstrip("> ")))) or " kernel: " in x for x in lines)
    return stamped >= 3 and stamped * 2 > len(lines)


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[LogRecord]:
    """The records, in order. ``offset`` is 0: readers of text get no byte offsets. Never raises."""
    out: list[LogRecord] = []
    minute: str | None = None
    named: tuple[int, str | None] = (0, None)
    for at, (number, text) in enumerate(lines):
        if m := _RELATIVE.match(text):
            minute = f"{m['month']} {m['day']} {m['at']}:00" if m["at"] else minute
        if "NVRM" in text and len(text) < _LONGEST and (pci := named_gpu(text)):
            named = (at, pci)
        found = _read(text)
        if found is None:
            continue
        kind, fields, start = found
        if kind == "kernel_xid" and fields["pci"] is None and at - named[0] < _NEAR:
            fields["pci"] = named[1]
        ts = _stamps(text, text[:start], fields, minute)
        pid = fields.get("pid")
        rank = rank_of_title(fields.get("name"))
        out.append(LogRecord(artifact, number, number, 0, ts, rank, kind, fields, text.strip()[:_CLIP], 0, pid))
    return out


def _stamps(text: str, head: str, fields: dict[str, Any], minute: str | None) -> float | None:
    """The time of a line; uptime, clock and host go into the fields."""
    if up := _UPTIME.search(head):
        fields["uptime"] = float(up.group(1))
    elif kmsg := _KMSG.match(text):
        fields["uptime"] = int(kmsg["us"]) / 1e6
        return None
    if host := _HOST.match(text):
        fields["host"] = host.group(1)
    ts = seconds(head)
    if ts is None and (short := _SHORT.search(head)):
        fields["clock"] = short.group(1)
    elif ts is None and minute is not None and _RELATIVE.match(text):
        fields["clock"] = minute
    return ts


def _read(text: str) -> tuple[str, dict[str, Any], int] | None:
    """(kind, fields, where the message starts) of one line."""
    if len(text) >= _LONGEST:
        return None
    if found := read_gpu(text):
        return found
    if "oom" in text or "emory" in text or "OOM" in text or "Killed process" in text:
        for reader in (_oom, _killed, _reaped):
            if killed := reader(text):
                return "kernel_oom_kill", *killed
    if ("segfault" in text or "trap" in text or "protection" in text) and (m := _SEGFAULT.search(text)):
        fields = {k: v for k, v in m.groupdict().items() if v} | {"pid": int(m.group("pid"))}
        return "kernel_segfault", fields, m.start()
    return None


def _oom(text: str) -> tuple[dict[str, Any], int] | None:
    m = _OOM.search(text)
    if m is None:
        return None
    body = dict(p.partition("=")[::2] for p in m.group("body").split(","))
    pid = body.get("pid", "")
    memcg = "MEMCG" in body.get("constraint", "")
    return {
        "event": "constraint",
        "pid": int(pid[:10]) if re.fullmatch("[0-9]+", pid) else None,
        "name": body.get("task"),
        "constraint": body.get("constraint"),
        "memcg": memcg,
        "cgroup": body.get("task_memcg") or body.get("oom_memcg"),
    }, m.start()


def _killed(text: str) -> tuple[dict[str, Any], int] | None:
    if m := _KUBELET.search(text):
        return {"event": "victim", "pid": int(m["pid"]), "name": m["name"], "memcg": False}, m.start()
    m = _KILLED.search(text)
    # Old kernels say it in a line of its own, with the sizes; without them it may be anybody's sentence.
    if m is None or not ("ut of memory" in text or "-rss:" in m["rest"]):
        return None
    sizes = {k.replace("-", "_") + "_kb": int(v) for k, v in _RSS.findall(m.group("rest"))}
    memcg = m.group("memcg") is not None
    return {"event": "killed", "pid": int(m.group("pid")), "name": m.group("name"), "memcg": memcg} | sizes, m.start()


def _reaped(text: str) -> tuple[dict[str, Any], int] | None:
    """The reaper and the one who asked for memory: what remains after the kill says nothing about sizes."""
    if m := _REAPED.search(text):
        return {"event": "reaped", "pid": int(m.group("pid")), "name": m.group("name")}, m.start()
    if m := _INVOKED.search(text):
        return {"event": "invoked", "name": m.group("name"), "pid": None}, m.start()
    return None
