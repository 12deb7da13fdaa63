"""Wrap a whole log as shippers, launchers and people wrap it; the tests of every reader use this.

``WRAPPERS[name](lines, rng)`` wraps physical lines; ``wrap_nested`` picks a random compatible nesting; ``unwrap`` is
what the readers do. Blanks at the end of a line don't survive, and ``table`` loses leading blanks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone

from hicache_doctor.artifacts.wrappers import Logical, Peeler

Wrapper = Callable[[list[str], random.Random], list[str]]
_EPOCH = datetime(2026, 6, 4, 3, 58, 55, tzinfo=timezone.utc)


def _clock(rng: random.Random) -> Iterator[datetime]:
    now = _EPOCH
    while True:
        yield now
        now += timedelta(microseconds=rng.randrange(900_000))


def _zoned(now: datetime, digits: int = 9, zone: str = "Z") -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond:06d}418"[:digits] + zone


def cri(lines: list[str], rng: random.Random) -> list[str]:
    """containerd: long lines arrive in ``P`` parts, ended by an ``F``."""
    out = []
    for line, now in zip(lines, _clock(rng), strict=False):
        stamp = _zoned(now, 9, "+02:00")
        while len(line) > 60 and rng.random() < 0.3:
            at = rng.randrange(1, len(line))
            if line[at - 1].isspace():  # such a part is real, but what wraps it from outside may lose the blank
                continue
            out.append(f"{stamp} stderr P {line[:at]}")
            line = line[at:]
        out.append(f"{stamp} stderr F {line}")
    return out


def compose(lines: list[str], rng: random.Random) -> list[str]:
    return [f"sglang-1  | {line}" if line else "sglang-1  |" for line in lines]


def compose_named(lines: list[str], rng: random.Random) -> list[str]:
    return [f"prefill     | {line}" for line in lines]


def kubectl_prefix(lines: list[str], rng: random.Random) -> list[str]:
    return [f"[pod/sglang-prefill-7d9c/sglang] {line}" for line in lines]


def stern(lines: list[str], rng: random.Random) -> list[str]:
    return [f"sglang-prefill-0 main {line}" for line in lines]


def jsonl(lines: list[str], rng: random.Random) -> list[str]:
    """One JSON object a line, sometimes two on one line."""
    shape = rng.choice(["log", "docker", "message", "body"])
    objects = []
    for line, now in zip(lines, _clock(rng), strict=False):
        stamp = _zoned(now)
        one = {
            "log": {"log": line},
            "docker": {"log": line + "\n", "stream": "stderr", "time": stamp},
            "message": {"@timestamp": stamp, "kubernetes": {"pod_name": "p-0", "container_name": "c"}, "message": line},
            "body": {"ts": int(now.timestamp() * 1000), "severity": "INFO", "body": line},
        }[shape]
        objects.append(json.dumps(one, ensure_ascii=rng.random() < 0.5))
    out: list[str] = []
    for text in objects:
        if out and rng.random() < 0.1:
            out[-1] += " " + text
        else:
            out.append(text)
    return out


def ray(lines: list[str], rng: random.Random) -> list[str]:
    colour = rng.random() < 0.5
    name = "(SGLangEngine pid=17467, ip=192.0.2.91)"
    head = f"\x1b[36m{name}\x1b[0m" if colour else name
    return [f"{head} {line}" for line in lines]


def torchrun(lines: list[str], rng: random.Random) -> list[str]:
    return [f"[rank2]: {line}" for line in lines]


def torchrun_tee(lines: list[str], rng: random.Random) -> list[str]:
    return [f"[default3]:{line}" for line in lines]


def journald(lines: list[str], rng: random.Random) -> list[str]:
    month = rng.choice(["Jun", "juin", "déc.", "Dez", "dic", "févr.", "mag"])
    stamps = (f"{month} 04 {now:%H:%M:%S}" for now in _clock(rng))
    return [f"{stamp} host-c bash[2211352]: {line}" for line, stamp in zip(lines, stamps, strict=False)]


def syslog(lines: list[str], rng: random.Random) -> list[str]:
    return [f'<30>1 {_zoned(now, 6)} host-c sglang 411 - [x@1 a="b ]"] {line}'
            for line, now in zip(lines, _clock(rng), strict=False)]  # fmt: skip


def supervisor(lines: list[str], rng: random.Random) -> list[str]:
    return [f"[{now:%Y-%m-%d %H:%M:%S}] [/bin/sh]: {line}" for line, now in zip(lines, _clock(rng), strict=False)]


def supervisor_named(lines: list[str], rng: random.Random) -> list[str]:
    return [f"[{now:%Y-%m-%d %H:%M:%S}] [prefill]: {line}" for line, now in zip(lines, _clock(rng), strict=False)]


def table(lines: list[str], rng: random.Random) -> list[str]:
    """A log viewer's table copied into an issue: leading blanks are lost."""
    out = []
    for line, now in zip(lines, _clock(rng), strict=False):
        out.append(f"  |   | {now:%Y-%m-%d %H:%M:%S}.{now.microsecond // 1000:03d} | {line.strip()} |  ")
    return [*out[:1], "-- | -- | --", *out[1:]]


def viewer(lines: list[str], rng: random.Random) -> list[str]:
    return [f"{now:%Y-%m-%d %H:%M:%S}.{now.microsecond // 1000:03d} | {line}"
            for line, now in zip(lines, _clock(rng), strict=False)]  # fmt: skip


def quote(lines: list[str], rng: random.Random) -> list[str]:
    depth = rng.choice([1, 1, 2])
    return [("> " * depth + line).rstrip() if not line else "> " * depth + line for line in lines]


def fence(lines: list[str], rng: random.Random) -> list[str]:
    return ["```" + rng.choice(["", "zsh", "log", "text"]), *lines, "```"]


def ansi(lines: list[str], rng: random.Random) -> list[str]:
    out = []
    for line in lines:
        words = line.split(" ")
        for i, word in enumerate(words):
            if word and rng.random() < 0.2:
                words[i] = f"\x1b[{rng.choice(['32', '1;36', '2'])}m{word}\x1b[0m"
        out.append(" ".join(words))
    return out


def crlf(lines: list[str], rng: random.Random) -> list[str]:
    return [line + "\r" for line in lines]


def script(lines: list[str], rng: random.Random) -> list[str]:
    return ['Script started on 2026-06-04 03:58:55+00:00 [COMMAND="kubectl logs p"]', *crlf(lines, rng),
            'Script done on 2026-06-04 03:59:55+00:00 [COMMAND_EXIT_CODE="0"]']  # fmt: skip


def rfc3339(lines: list[str], rng: random.Random) -> list[str]:
    bracket = rng.random() < 0.5
    out = []
    for line, now in zip(lines, _clock(rng), strict=False):
        stamp = _zoned(now, rng.choice([3, 6, 8, 9]))
        out.append(f"[{stamp}] {line}" if bracket else f"{stamp} {line}")
    return out


def rfc3339_first(lines: list[str], rng: random.Random) -> list[str]:
    """The stamp stands on a record's first line only."""
    return [f"{_zoned(now, 3)} {line}" if line.startswith("[") else line
            for line, now in zip(lines, _clock(rng), strict=False)]  # fmt: skip


def json_escaped(lines: list[str], rng: random.Random) -> list[str]:
    return [json.dumps(line, ensure_ascii=rng.random() < 0.5)[1:-1] for line in lines]


def html(lines: list[str], rng: random.Random) -> list[str]:
    known = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}
    return ["".join(known.get(c, c) for c in line) for line in lines]


def gutter(lines: list[str], rng: random.Random) -> list[str]:
    start = rng.randrange(1, 900)
    form = rng.choice(["{:5d}: {}", "{}:{}", "{:6d}\t{}"])
    return [form.format(start + i, line) for i, line in enumerate(lines)]


def grep_names(lines: list[str], rng: random.Random) -> list[str]:
    return [f"pod-1.log:{812 + i}:{line}" for i, line in enumerate(lines)]


def terminal(lines: list[str], rng: random.Random) -> list[str]:
    return [line.ljust(160) for line in lines]


def csv(lines: list[str], rng: random.Random) -> list[str]:
    """A Grafana export, newest first."""
    rows = ['"{}","{}"'.format(_zoned(now, 3), line.replace('"', '""'))
            for line, now in zip(lines, _clock(rng), strict=False)]  # fmt: skip
    return ['"Time","Line"', *reversed(rows)]


WRAPPERS: dict[str, Wrapper] = {
    "cri": cri, "compose": compose, "compose_named": compose_named, "kubectl_prefix": kubectl_prefix, "stern": stern,
    "jsonl": jsonl, "ray": ray, "torchrun": torchrun, "torchrun_tee": torchrun_tee, "journald": journald,
    "syslog": syslog, "supervisor": supervisor, "supervisor_named": supervisor_named, "table": table,
    "viewer": viewer, "quote": quote, "fence": fence, "ansi": ansi, "crlf": crlf, "script": script,
    "rfc3339": rfc3339, "rfc3339_first": rfc3339_first, "json_escaped": json_escaped, "html": html,
    "gutter": gutter, "grep_names": grep_names, "terminal": terminal, "csv": csv,
}  # fmt: skip
LOSES_INDENT = frozenset({"table"})
OUTERMOST = frozenset({"csv"})
LEARNED = frozenset({"compose_named", "stern", "supervisor_named", "json_escaped", "gutter", "grep_names"})


def nesting(rng: random.Random, depth: int = 2) -> tuple[str, ...]:
    """Names of compatible wrappers, innermost first."""
    names: list[str] = []
    while len(names) < depth:
        name = rng.choice(sorted(WRAPPERS))
        last = len(names) == depth - 1
        if name in names or (name in OUTERMOST and not last):
            continue
        if name in LEARNED and LEARNED.intersection(names):
            continue  # two habits at once are nobody's
        if name == "rfc3339_first" and names:
            continue
        if name == "json_escaped" and {"jsonl", "syslog", "html"}.intersection(names):
            continue  # no quote is left to show it, or those of the inner layer would be taken for its own
        if name == "terminal" and "cri" in names:
            continue  # it would pad the middle of a record
        names.append(name)
    return tuple(names)


def wrap(lines: Sequence[str], names: Sequence[str], rng: random.Random) -> list[str]:
    """Wrap in each of ``names``, innermost first."""
    out = list(lines)
    for name in names:
        out = WRAPPERS[name](out, rng)
    return out


def wrap_nested(lines: Sequence[str], rng: random.Random, depth: int = 2) -> list[str]:
    """Wrap in a random compatible nesting. ``nesting`` with an equal rng tells which."""
    return wrap(lines, nesting(rng, depth), rng)


def unwrap_all(lines: Sequence[str]) -> list[Logical]:
    """What a reader does with a file: learn from its head, feed every line, flush."""
    peeler = Peeler(year=2026)
    peeler.learn(lines[:200])
    out, offset = [], 0
    for number, line in enumerate(lines, 1):
        out += peeler.feed(number, offset, line)
        offset += len(line.encode(errors="surrogatepass")) + 1
    return out + peeler.flush()


def unwrap(lines: Sequence[str]) -> list[str]:
    """The logical lines' texts."""
    return [one.text for one in unwrap_all(lines)]
