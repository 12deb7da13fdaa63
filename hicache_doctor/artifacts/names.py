"""Names that strangers chose, made fit to show: one line, no control characters, no way out of a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence

_LONGEST = 240
_BYTE_ESCAPES = range(0xDC80, 0xDD00)


def shown(name: str) -> str:
    """``name`` as text that can be printed: control, format and undecodable characters escaped, never too long."""
    text = name if name.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in name)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 :]}"


def _escape(c: str) -> str:
    code = ord(c)
    if code in _BYTE_ESCAPES:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def member(raw: bytes | str) -> tuple[str, str]:
    """A member's name for display, and a note if something about the name is odd (else an empty one)."""
    name = raw if isinstance(raw, str) else raw.decode("utf-8", "surrogateescape")
    odd = []
    if any(ord(c) in _BYTE_ESCAPES for c in name):
        odd.append("is not UTF-8")
    if not all(c.isprintable() or ord(c) in _BYTE_ESCAPES for c in name):
        odd.append("has control characters")
    parts = name.replace("\\", "/").split("/")
    if name[:1] in ("/", "\\") or name[1:3] in (":/", ":\\"):
        odd.append("is absolute")
    if ".." in parts:
        odd.append("leads out of the archive")
    if len(name) > _LONGEST:
        odd.append("is too long to show")
    kept = ["(..)" if p == ".." else p for p in parts if p not in ("", ".")]
    text = shown("/".join(kept)) or "(no name)"
    return text, f"its name in the archive {' and '.join(odd)}" if odd else ""


class Taken:
    """Display paths given so far: a second owner of the same path gets ``#2``, and so on."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}

    def unique(self, path: str) -> str:
        n = self._count.get(path, 0)
        while n and f"{path}#{n + 1}" in self._count:
            n += 1
        self._count[path] = n + 1
        if not n:
            return path
        again = f"{path}#{n + 1}"
        self._count[again] = 1
        return again


def labels(paths: Sequence[str]) -> list[str]:
    """For each path its shortest tail that no other one shares: ``a/pp0.log`` and ``b/pp0.log``."""
    parts = [[p for p in os.path.abspath(path).split(os.sep) if p] for path in paths]
    tails = [1] * len(parts)
    while True:
        now = ["/".join(p[-n:]) for p, n in zip(parts, tails, strict=True)]
        clash = [i for i, label in enumerate(now) if tails[i] < len(parts[i]) and now.count(label) > 1]
        if not clash:
            return [shown(label) or "(root)" for label in now]
        for i in clash:
            tails[i] += 1
