"""Single layers that log shippers, launchers and people put around a line. Each takes one away, or says None.

A layer sees the line's start only and never touches what is SGLang's, torch's, NCCL's, the kernel's or py-spy's own.
Exactly one blank goes with a prefix: what follows is the payload's indentation.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hicache_doctor.artifacts import when


class Outer:
    """What the layers taken off so far told about the line: its writer, when, and hints."""

    __slots__ = ("hints", "rank", "stream", "ts", "used")

    def __init__(self) -> None:
        self.stream: tuple[str, ...] = ()
        self.ts: float | None = None
        self.rank: int | None = None
        self.hints: dict[str, str] = {}
        self.used = 0  # learned layers already taken off: each goes once

    def copy(self) -> Outer:
        twin = Outer()
        twin.stream, twin.ts, twin.rank, twin.used = self.stream, self.ts, self.rank, self.used
        twin.hints = dict(self.hints)
        return twin

    def writer(self, *names: str) -> None:
        self.stream += names

    def stamp(self, text: str) -> None:
        """Note an outer ISO stamp; the outermost believable one stays."""
        if self.ts is None:
            self.ts = when.iso(text)
            if self.ts is not None and not when.has_zone(text):
                self.hints["zone"] = "none"


Layer = Callable[[str, Outer], "str | None"]
_ZONED = rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{{1,9}})?{when.ZONE}"
_LEVEL = "(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|TRACE|SUCCESS)"

_LEAD = re.compile(rf"({when.STAMP})(?: ?\| ?|[ \t]|$)", re.ASCII)
_BRACKET_LEAD = re.compile(rf"\[({_ZONED})\](?: |$)", re.ASCII)
_HOST_UNIT = re.compile(r"([\w.-]+) ([\w@./:-]+)\[(\d+)\]:(?: |$)", re.ASCII)
_LOGURU = re.compile(rf"{_LEVEL} *\| ([\w.<>]+:[\w.<>]+:\d+) - ", re.ASCII)
_PYTHON = re.compile(rf"(?:- )?(?:[\w.]+ - )?\[?{_LEVEL}\]?(?:: | - | )(?=[^\s-])", re.ASCII)
_SUPERVISOR = re.compile(rf"\[({when.STAMP})\] \[(/[^\]\s]*)\]:(?: |$)", re.ASCII)
_POD = re.compile(r"\[pod/([^/\]\s]+)/([^/\]\s]+)\](?: |$)")
_RANK = re.compile(r" ?\[(rank)(\d{1,6})\](?:: ?| )", re.ASCII)
_TEE = re.compile(r"\[(default|trainer|worker)(\d{1,6})\]:", re.ASCII)
_MPI = re.compile(r"\[\d+,(\d{1,6})\]<(stdout|stderr)>: ?", re.ASCII)
_LOST_ESCAPE = re.compile(r"\[\d{1,3}(?:;\d{1,3})*m")
_RAY = re.compile(r"\(([^()\s,]+)((?:,? (?:rank|pid|ip|actor_id|node_id|job_id)=[^\s,()]+)+)\)(?: |$)")
_RAYLET = re.compile(r"\((raylet|autoscaler|scheduler|gcs_server)((?:, ip=[^\s,()]+)?|(?: \+\w+)?)\)(?: |$)")
_RAY_FIELD = re.compile(r"(\w+)=([^\s,()]+)")
_VLLM = re.compile(rf"{_LEVEL} \d\d-\d\d \d\d:\d\d:\d\d \[[\w./]+:\d+\](?: |$)", re.ASCII)
_JOURNAL = re.compile(
    r"((?:[^\W\d_]{3,9}\.?) {1,2}\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)?) ([\w.-]+) ([\w@./:-]+?)(?:\[(\d+)\])?:(?: |$)"
)
_SYSLOG = re.compile(
    r'<\d{1,3}>1 (\S+) (\S+) (\S+) (\S+) (\S+) (?:-|(?:\[(?:[^\]"]|"(?:[^"\\]|\\.)*")*\])+)(?: \ufeff?|$)'
)
_PRIORITY = re.compile(r"<\d{1,3}>(?=[^\W\d_]{3})")
_COMPOSE = re.compile(r"([\w.@-]*[-_.]\d[\w.@]*) +\|(?: |$)", re.ASCII)
_TABLE = re.compile(rf"([ |]*)({when.STAMP}) \|(?: (.*)|$)", re.ASCII | re.DOTALL)


def _digit(text: str, seen: Outer) -> str | None:
    m = _LEAD.match(text)
    if m is None:
        return None
    rest = text[m.end() :]
    if "|" in m[0] and "T" in m[1][:11] and "|" in rest:
        rest = text[m.end(1) + 1 :]  # not a viewer's column: the pipe begins a table that was logged
    seen.stamp(m[1])
    if host := _HOST_UNIT.match(rest):  # journalctl -o short-iso
        _unit(seen, host[1], host[2], host[3])
        return rest[host.end() :]
    if "T" in m[1][:11] or not rest:
        return rest  # a shipper's stamp: the level after it, if any, is the program's own
    level = _LOGURU.match(rest) or (_PYTHON.match(rest) if "|" not in m[0] else None)
    if level is not None:
        seen.hints["level"] = level[1]
        return rest[level.end() :]
    return rest


def _unit(seen: Outer, host: str, unit: str, pid: str | None) -> None:
    seen.hints.update(host=host, unit=unit)
    seen.writer(host, unit)
    if pid:
        seen.hints["pid"] = pid
        seen.writer(pid)


def _bracket(text: str, seen: Outer) -> str | None:
    second = text[1:2]
    if second.isdigit():
        if m := _BRACKET_LEAD.match(text):
            seen.stamp(m[1])
        elif m := _SUPERVISOR.match(text):
            seen.stamp(m[1])
            seen.writer(m[2])
            seen.hints["supervised"] = m[2]
        elif m := _MPI.match(text):
            seen.rank = int(m[1])
            seen.writer(m[2], f"rank{m[1]}")
        else:
            m = _LOST_ESCAPE.match(text)
    elif second == "p" and (m := _POD.match(text)):
        seen.hints.update(pod=m[1], container=m[2])
        seen.writer(m[1], m[2])
    elif second in "rdtw":
        return _rank(text, seen)
    else:
        return None
    return text[m.end() :] if m else None


def _rank(text: str, seen: Outer) -> str | None:
    m = _TEE.match(text) or _RANK.match(text)  # torchrun's tee adds no blank: those that follow are the payload's
    if m is None:
        return None
    seen.writer(m[1] + m[2])
    if m[1] == "rank":
        seen.rank = int(m[2])
    else:
        seen.hints["local_rank"] = m[2]
    return text[m.end() :]


def _paren(text: str, seen: Outer) -> str | None:
    m = _RAYLET.match(text) or _RAY.match(text)
    if m is None:
        return None
    fields = dict(_RAY_FIELD.findall(m[2]))
    if m.re is _RAY and "pid" not in fields:
        return None
    name = m[1]
    seen.hints["actor"] = name
    seen.hints.update({key: fields[key] for key in ("pid", "ip") if key in fields})
    seen.writer(name, *fields.values())
    if fields.get("rank", "").isdecimal():
        seen.rank = int(fields["rank"][:6])
    if name.startswith(("EngineCore", "Worker_", "APIServer", "VllmWorker")):
        seen.hints["engine"] = "vllm"
    return text[m.end() :]


def _letter(text: str, seen: Outer) -> str | None:
    if "|" in text[:80] and (m := _COMPOSE.match(text)):
        seen.hints["service"] = m[1]
        seen.writer(m[1])
        return text[m.end() :]
    if m := _VLLM.match(text):
        seen.hints.update(engine="vllm", level=m[1])
        return text[m.end() :]
    m = _JOURNAL.match(text)
    if m is None or m[1].split(" ", 1)[0].lower() not in when.MONTHS:
        return None
    seen.hints.setdefault("stamp", m[1])  # no year: the caller that knows one asks when.journal
    _unit(seen, m[2], m[3], m[4])
    return text[m.end() :]


def _angle(text: str, seen: Outer) -> str | None:
    if text[0] == ">":
        if text.startswith(">>>") and text[3:4] in (" ", ""):
            return None  # a Python prompt
        return text[2:] if text[1:2] == " " else text[1:]
    m = _SYSLOG.match(text)
    if m is not None:
        seen.stamp(m[1])
        _unit(seen, m[2], m[3], m[4] if m[4] != "-" else None)
        return text[m.end() :]
    m = _PRIORITY.match(text)
    return text[m.end() :] if m else None


def _blank(text: str, seen: Outer) -> str | None:
    if text.startswith(" [rank"):
        return _rank(text, seen)
    m = _TABLE.match(text)
    if m is None or "|" not in m[1]:
        return None
    seen.stamp(m[2])
    seen.hints["indent"] = "lost"
    cell = (m[3] or "").rstrip()
    return cell[:-1].rstrip() if cell.endswith("|") else cell


def _mark(text: str, seen: Outer) -> str | None:
    return text[1:]


_FIRST: dict[str, Layer] = {"[": _bracket, "(": _paren, ">": _angle, "<": _angle, " ": _blank, "|": _blank,
                            "\ufeff": _mark}  # fmt: skip
_FIRST.update(dict.fromkeys("0123456789", _digit))


def layer_for(first: str) -> Layer | None:
    """The layer that may begin with this character."""
    known = _FIRST.get(first)
    if known is None and (first.isalpha() or first == "_"):
        return _letter
    return known


_BARE_STARTS = frozenset({"[PP", "[TP", "[DP", "[AT", "   ", "  F"})


def surely_bare(text: str) -> bool:
    """Whether a line surely has nothing to peel: the fast path for SGLang's own lines and traceback frames."""
    if text[:3] == "[20" and text[5:6] == "-":
        if text[20:22] != "] " and text[20:21] != " " and text[20:21] != ".":
            return False
        if text[11:12] == "T" or text[20:23] == "] [" or text[20:21] == "." or text.find("[20", 1) > 0:
            return False
    else:
        if text[:3] not in _BARE_STARTS or text.find("[20", 1) > 0:
            return False
        if text[0] == " " and text.lstrip(" ")[:1] in ("|", "", "`", "~", "-"):
            return False
    return not (
        "\x1b" in text
        or text[-1] in " \r\t"
        or "\\" in text
        or "&" in text
        or "\r" in text
        or "[0m" in text
        or "](http" in text
        or "[rank" in text
        or "^[[" in text
        or "\n" in text
        or "Traceback (most recent call last): " in text
        or text.endswith("across cluster]")
        or "across cluster] (Ray" in text
    )
