"""Kernel lines from dmesg, journald or a console: Xid, OOM kills, segfaults, machine checks.

Kinds: ``kernel_xid``, ``kernel_oom_kill``, ``kernel_segfault``, ``kernel_mce``. A monotonic stamp
(``[ 1843.308145]``) goes into ``fields["uptime"]``; a stamp without a year gives no ``ts``. What an Xid means is data
in ``rules/vocabulary/xid.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from hicache_doctor.artifacts.clock_text import seconds
from hicache_doctor.artifacts.process_title import rank_of_title
from hicache_doctor.errors import DoctorError
from hicache_doctor.evidence.rows import LogRecord
from hicache_doctor.shipped import rules_dir

_PID = r"pid\s*=\s*'?(?P<pid>\d{1,10}|<unknown>|[^,\s']*)'?"
_XID = re.compile(
    rf"(?:NVRM: )?\bXid \((?P<pci>[^()]*)\): (?P<xid>\d{{1,5}})(?:, {_PID})?"
    r"(?:, name\s*=\s*'?(?P<name>[^,']*?)'?(?=,|$))?"
)
_OFF_BUS = re.compile(
    # The sentence may be wrapped over three lines of the kernel's; the last one alone says it.
    r"NVRM:(?:.*?\bGPU\b(?:.*?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}))?)?.*fallen off the bus"
)
_OOM = re.compile(r"\boom-kill:(?P<body>constraint=\S*.*)$")
_KILLED = re.compile(
    r"(?P<memcg>Memory cgroup )?[Oo]ut of memory:? .*?Kill(?:ed)? process (?P<pid>\d{1,10}) "
    r"\((?P<name>[^)]*)\)(?P<rest>.*)$"
)
_REAPED = re.compile(r"oom_reaper: reaped process (?P<pid>\d{1,10}) \((?P<name>[^)]*)\)")
_INVOKED = re.compile(r"(?P<name>\S+) invoked oom-killer: ")
_RSS = re.compile(r"(total-vm|anon-rss|file-rss|shmem-rss):(\d{1,18})kB")
_SEGFAULT = re.compile(
    r"(?P<name>[\w.:/<>-]{1,64})\[(?P<pid>\d{1,10})\]:? (?P<what>segfault|general protection(?: fault)?|"
    r"trap (?:invalid opcode|divide error))\b(?: at (?P<at>[0-9a-f]+))?.*?(?: in (?P<lib>[^\s\[]+))?(?:\[|$)"
)
_MCE = re.compile(r"\bmce: .*(?:Hardware Error|Machine [Cc]heck)|Machine [Cc]heck Exception|EDAC \S+: .*\bUE\b")
_UPTIME = re.compile(r"\[\s*(\d{1,10}\.\d{3,9})\]")
_SHORT = re.compile(r"\b([A-Z][a-z]{2} {1,2}\d{1,2} \d{2}:\d{2}:\d{2})\b")
_HOST = re.compile(r"^(?:\S+ {1,2}\d{1,2} \S+|\S+) (\S+) kernel: ")
_CLIP = 600
_LONGEST = 4000


@cache
def xid_table() -> dict[int, dict[str, Any]]:
    """Xid → family, cause and meaning; empty when the shipped data cannot be read."""
    import yaml

    try:
        data = yaml.safe_load((rules_dir() / "vocabulary" / "xid.yaml").read_text(encoding="utf-8"))
        return {int(row["xid"]): row for row in data}
    except (DoctorError, OSError, yaml.YAMLError, TypeError, KeyError, ValueError):
        return {}


def looks_like_kernel_log(text: str) -> bool:
    """True when the text has a line that this reader knows, or looks like dmesg throughout."""
    lines = [x for x in text.splitlines()[:2000] if len(x) < _LONGEST]
    if any(_read(x) for x in lines):
        return True
    stamped = sum(bool(_UPTIME.match(x.lstrip("> ")) or " kernel: " in x) for x in lines)
    return stamped >= 3 and stamped * 2 > len(lines)


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[LogRecord]:
    """The records, in order. ``offset`` is 0: readers of text get no byte offsets. Never raises."""
    out: list[LogRecord] = []
    for number, text in lines:
        found = _read(text)
        if found is None:
            continue
        kind, fields, start = found
        head = text[:start]
        if up := _UPTIME.search(head):
            fields["uptime"] = float(up.group(1))
        if host := _HOST.match(text):
            fields["host"] = host.group(1)
        ts = seconds(head)
        if ts is None and (short := _SHORT.search(head)):
            fields["clock"] = short.group(1)
        pid = fields.get("pid")
        rank = rank_of_title(fields.get("name"))
        out.append(LogRecord(artifact, number, number, 0, ts, rank, kind, fields, text.strip()[:_CLIP], 0, pid))
    return out


def _read(text: str) -> tuple[str, dict[str, Any], int] | None:
    """(kind, fields, where the message starts) of one line."""
    if len(text) >= _LONGEST:
        return None
    if "Xid" in text and (m := _XID.search(text)):
        return "kernel_xid", _xid(int(m.group("xid")), m), m.start()
    if "fallen off" in text and (m := _OFF_BUS.search(text)):
        return "kernel_xid", _xid(79, m) | {"inferred": True}, m.start()
    if "oom" in text or "emory" in text:
        for reader in (_oom, _killed, _reaped):
            if found := reader(text):
                return "kernel_oom_kill", *found
    if ("segfault" in text or "trap" in text or "protection" in text) and (m := _SEGFAULT.search(text)):
        fields = {k: v for k, v in m.groupdict().items() if v} | {"pid": int(m.group("pid"))}
        return "kernel_segfault", fields, m.start()
    if m := _MCE.search(text):
        return "kernel_mce", {}, m.start()
    return None


def _xid(code: int, m: re.Match[str]) -> dict[str, Any]:
    groups = m.groupdict()
    known = xid_table().get(code, {})
    pid, name = groups.get("pid") or "", (groups.get("name") or "").strip()
    return {
        "xid": code,
        "pci": re.sub(r"^PCI:", "", groups.get("pci") or "") or None,
        "pid": int(pid) if re.fullmatch("[0-9]+", pid) else None,
        "name": name if name and name != "<unknown>" else None,
        "family": known.get("family", "gpu_unknown"),
        "cause": known.get("cause"),
        "meaning": known.get("meaning"),
    }


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
    m = _KILLED.search(text)
    if m is None:
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
