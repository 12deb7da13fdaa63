"""One ``Prefill batch`` / ``Decode batch`` line of any generation, parsed by itself.

The vectorised twin for big logs is :mod:`hicache_doctor.artifacts.batch_lines`; a test holds the two equal.
"""

from __future__ import annotations

import re
from typing import NamedTuple

BATCH = re.compile(r"(?P<kind>Prefill|Decode) batch(?:\s*\[\d+\])?[.,] ?#")
# A count of more than 16 digits is two numbers that run into each other; the twin reads as many.
_FIELDS = {
    "new_seq": re.compile(r"#new-seq: ?(\d{1,16})"),
    "new_token": re.compile(r"#new-token: ?(\d{1,16})"),
    "cached_token": re.compile(r"#cached-token: ?(\d{1,16})"),
    "usage": re.compile(r"(?<!\w )token usage: ?([\d.]+)|full token usage: ?([\d.]+)"),
    "running": re.compile(r"#running-req: ?(\d{1,16})"),
    "queue": re.compile(r"#queue-req: ?(\d{1,16})"),
}


# The two shapes that make up most of every log; anything else is read field by field.
_PREFILL = re.compile(
    r"Prefill batch(?:\s*\[\d+\])?[.,] ?#new-seq: (\d{1,16}), #new-token: (\d{1,16}), #cached-token: (\d{1,16}), "
    r"token usage: (\d+\.\d+), #running-req: (\d{1,16}), #queue-req: (\d{1,16})"
)
_DECODE = re.compile(
    r"Decode batch(?:\s*\[\d+\])?[.,] ?#running-req: (\d{1,16}), #token: \d+, token usage: (\d+\.\d+), "
    r"(?:cuda graph: \w+, )?gen throughput \(token/s\): [\d.]+, #queue-req: (\d{1,16})"
)


class BatchLine(NamedTuple):
    kind: str
    new_seq: int | None
    new_token: int | None
    cached_token: int | None
    usage: float | None
    running: int | None
    queue: int | None


def parse_batch(text: str) -> BatchLine | None:
    """The numbers of a batch line (requests, tokens, share of the pool), or None if ``text`` is none."""
    m = _PREFILL.search(text)
    if m is not None:
        seq, new, cached, usage, running, queue = m.groups()
        return BatchLine("prefill", int(seq), int(new), int(cached), float(usage), int(running), int(queue))
    m = _DECODE.search(text)
    if m is not None:
        return BatchLine("decode", None, None, None, float(m[2]), int(m[1]), int(m[3]))
    m = BATCH.search(text)
    if m is None:
        return None
    tail = text[m.start() :]
    got: dict[str, str | None] = {}
    for name, pattern in _FIELDS.items():
        f = pattern.search(tail)
        got[name] = None if f is None else next(g for g in f.groups() if g is not None)

    def whole(name: str) -> int | None:
        value = got[name]
        return None if value is None else int(value)

    usage_text = got["usage"]
    return BatchLine(
        m["kind"].lower(),
        whole("new_seq"),
        whole("new_token"),
        whole("cached_token"),
        None if usage_text is None or usage_text == "." else float(usage_text),
        whole("running"),
        whole("queue"),
    )
