"""What a thread waits for (its GPU, another process, the disk, a lock, work to do), by ``rules/vocabulary/sides.yaml``.

Only native frames tell it for sure: ``all_reduce`` is a function of Python whether gloo waits in it on the wire or the
CUDA stream is synchronized. Where there are none, the place says what such a wait is for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SIDES = ("gpu", "cpu", "wire", "disk", "idle")
# What linkers, compilers and tools add to a symbol's name.
_SUFFIX = re.compile(r"@.*| \((?:inlined|in .*)\)$| \[clone.*|\.(?:constprop|part|isra|cold)\b.*")
# Beyond so many frames of Python a frame no longer says what the thread waits for, only on whose behalf.
_NEAR = 4


@dataclass(slots=True)
class SideRule:
    """One entry of the table."""

    side: str
    names: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    weak: bool = False

    def matches(self, name: str, file: str) -> bool:
        """Whether a frame of this name and file is meant."""
        return (not self.names or any(_fits(name, p) for p in self.names)) and (
            not self.files or any(_fits(file, p) for p in self.files)
        )


def load_sides(raw: Iterable[Mapping[str, Any]]) -> list[SideRule]:
    """The rules from the parsed table."""
    return [SideRule(**item) for item in raw]


def side_of(frames: Sequence[Mapping[str, Any]], place: str | None, table: Sequence[SideRule]) -> str:
    """The side of a stack (``frames`` innermost first); ``place`` is what its place says, if it says anything."""
    if place == "idle":
        return place
    weak: str | None = None
    for frame in _near(frames):
        name, file = _SUFFIX.sub("", frame["function"]), frame["file"] or ""
        rule = next((r for r in table if r.matches(name, file)), None)
        if rule is None:
            continue
        if not rule.weak:
            return rule.side
        weak = weak or rule.side
    return place or weak or "cpu"


def _near(frames: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    python = 0
    for frame in frames:
        python += not frame["native"]
        if python > _NEAR:
            return
        yield frame


def _fits(text: str, pattern: str) -> bool:
    if pattern.startswith("*"):
        return pattern.strip("*") in text
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern
