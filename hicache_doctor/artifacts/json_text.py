"""JSON documents within a text: whole, one after the other, or below a shell prompt, and the lines of their parts."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

LARGEST = 32 << 20
_MOST_TRIES = 200
_KEY = re.compile(r'"(\w{1,120})"\s*:')
# A log line may begin with a bracket, too: an object has a name next, an array its first object.
_BEGINS = re.compile(r'^[^\S\n]*(?=\{\s{0,80}"|\[\s{0,80}\{)', re.M)


class Numbered:
    """Numbered lines joined to one text, which still knows the line of each place."""

    def __init__(self, lines: Sequence[tuple[int, str]]) -> None:
        self.text = "\n".join(t for _, t in lines)
        self._numbers = [n for n, _ in lines]
        self._starts: list[int] = []
        at = 0
        for _, t in lines:
            self._starts.append(at)
            at += len(t) + 1

    def line(self, offset: int) -> int:
        """The number of the line that holds the place."""
        return self._numbers[max(0, bisect_right(self._starts, offset) - 1)] if self._numbers else 1


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON value and where it stands in the text."""

    value: Any
    begin: int
    end: int


def documents(text: str) -> Iterator[Document]:
    """Each object or array that begins a line, in order. Never raises; of a text above ``LARGEST`` there are none."""
    if len(text) > LARGEST:
        return
    decoder = json.JSONDecoder()
    at = tries = 0
    while tries < _MOST_TRIES and (m := _BEGINS.search(text, at)) is not None:
        try:
            value, end = decoder.raw_decode(text, m.end())
        except (ValueError, RecursionError):
            tries, at = tries + 1, m.end() + 1
            continue
        yield Document(value, m.end(), end)
        at = end


class Finder:
    """Finds parts of a document in the order in which it writes them: each search begins where the last one ended."""

    def __init__(self, numbered: Numbered, begin: int, end: int) -> None:
        self._numbered = numbered
        self._at, self._end = begin, end

    def line(self, key: str, value: object = None) -> int:
        """The line of ``"key": value`` (any value when None); that of the part found last when there is none."""
        shown = "" if value is None else re.escape(json.dumps(value))
        m = re.compile(rf'"{re.escape(key)}"\s*:\s*{shown}').search(self._numbered.text, self._at, self._end)
        if m is not None:
            self._at = m.end()
        return self._numbered.line(self._at)


class Keys:
    """Where each key of a document stands, first, second and so on."""

    def __init__(self, numbered: Numbered, begin: int, end: int) -> None:
        self._numbered = numbered
        self._begin = begin
        self._places: dict[str, list[int]] = {}
        for m in _KEY.finditer(numbered.text, begin, end):
            self._places.setdefault(m[1], []).append(m.start())

    def line(self, key: str, nth: int = 0) -> int:
        """The line of the ``nth`` time that the key is written (the last one when there are fewer)."""
        places = self._places.get(key, [self._begin])
        return self._numbered.line(places[min(nth, len(places) - 1)])
