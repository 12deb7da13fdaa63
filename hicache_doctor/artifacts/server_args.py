"""SGLang's ``server_args=`` log text: ``ServerArgs(k=v, …)`` up to 0.5.18, ``{'k': v, …}`` since 0.5.19.

Read with a small tokeniser over quotes and brackets, never evaluated; the head or tail may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hicache_doctor.artifacts.secret_text import masked

_START = re.compile(r"ServerArgs\(|server_args\s*[=:]\s*\{|resolved_dict\s*=\s*\{")
_RESUME = re.compile(r",\s+(?=[A-Za-z_]\w*=|'[A-Za-z_]\w*':\s)")
_KEY = re.compile(r"\s*(?:([A-Za-z_]\w*)=|['\"]([A-Za-z_]\w*)['\"]\s*:\s*)(.*)$", re.S)
# A log line of another writer that was glued into the middle.
_STAMP = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_OPEN, _CLOSE = "([{", ")]}"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_LONGEST = 200_000


def looks_like_server_args(text: str) -> bool:
    """True when the text holds the start of it, or (cut head) a run of its keys."""
    return _START.search(text) is not None or len(re.findall(r"\bhicache_\w+(?:=|': )", text)) >= 3


def parse_server_args(text: str) -> tuple[dict[str, str], bool]:
    """The arguments as text (strings without quotes, ``None``, ``True``, lists as written), and whether some are cut.

    Secrets are masked. Wrapped lines may be joined by a newline. Never raises.
    """
    text = text[:_LONGEST].replace("\r", "").replace("\n", "")
    start = _START.search(text)
    if start is None:
        head = _RESUME.search(text)
        if head is None:
            return {}, True
        body = text[head.end() :]
    else:
        body = text[start.end() :]
    glued = _STAMP.search(body)
    pieces, closed = _split(body[: glued.start()] if glued else body)
    out: dict[str, str] = {}
    for piece in pieces:
        m = _KEY.match(piece)
        if m is not None:
            key = m.group(1) or m.group(2)
            out[key] = masked(key, _plain(m.group(3).strip()))
    return out, start is None or not closed


def _split(body: str) -> tuple[list[str], bool]:
    """The pieces between top-level commas, and whether the closing bracket was seen (else the last is dropped)."""
    pieces: list[str] = []
    begin, depth = 0, 0
    for i, c in _outside_quotes(body):
        if c in _OPEN:
            depth += 1
        elif c in _CLOSE:
            depth -= 1
            if depth < 0:
                return [*pieces, body[begin:i]], True
        elif c == "," and depth == 0:
            pieces.append(body[begin:i])
            begin = i + 1
    return pieces, False


def _outside_quotes(body: str) -> Iterator[tuple[int, str]]:
    quote, escaped = "", False
    for i, c in enumerate(body):
        if escaped:
            escaped = False
        elif c == "\\" and quote:
            escaped = True
        elif quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        else:
            yield i, c


def _plain(value: str) -> str:
    """A string literal without its quotes; anything else as written."""
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m.group(1), m.group(1)), value[1:-1], flags=re.S)
    return value
