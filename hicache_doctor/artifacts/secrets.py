"""Secrets and prompts are dropped when text is read, before it reaches a table, a quote, a report or an error text.

A line is first searched for trigger words (about a microsecond); the patterns of :mod:`secret_shapes` see only lines
that have one. What is dropped leaves ``***`` behind (token ids their number), so that a second pass changes nothing.
Where the end of a value cannot be seen, everything to the end of the line goes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hicache_doctor.artifacts import secret_shapes as shapes
from hicache_doctor.artifacts.secret_values import DROPPED, replacement

_LONGEST_KEY_BLOCK = 256

_SURROGATE = re.compile("[\ud800-\udfff]")

_find: Callable[[str], list[str]] | None = None
_leads: Callable[[str], list[int]] | None = None


def scrub(text: str) -> str:
    """``text`` without secrets, prompts and token ids. Never raises; ``scrub(scrub(x)) == scrub(x)``."""
    if not _triggered(text):
        return text
    text = _scrub(text)
    if "\n" not in text:
        return text
    scrubber = Scrubber()
    return "\n".join(scrubber.line(line) for line in text.split("\n"))


class Scrubber:
    """Scrubs the lines of one artefact in order, and remembers what goes on in the next line.

    That is: private key blocks, YAML ``name:`` and ``value:`` on two lines, block scalars (``password: |``), an
    option in one line and its value in the next, and lists of token ids printed over several lines.
    """

    def __init__(self) -> None:
        self._state: Callable[[str], str | None] | None = None
        self._left = 0
        self._indent = 0

    def line(self, text: str) -> str:
        """The line, scrubbed. Never raises."""
        if self._state is None and not _triggered(text):
            return text
        try:
            return self._line(text)
        except Exception:  # whatever it is, nothing unseen may pass
            self._state = None
            return DROPPED

    def _line(self, text: str) -> str:
        if self._state is not None:
            out = self._state(text)
            if out is not None:
                return out
        if not _triggered(text):
            return text
        self._look_ahead(text)
        return _scrub(text)

    def _look_ahead(self, text: str) -> None:
        """What ``text`` leaves open."""
        if (begin := shapes.KEY_BLOCK_BEGIN.search(text)) and not shapes.KEY_BLOCK_END.search(text, begin.end()):
            self._state, self._left = self._in_key_block, _LONGEST_KEY_BLOCK
        elif shapes.NAME_OF_PAIR.search(text):
            self._state, self._left = self._value_of_pair, 3
        elif shapes.BARE_OPTION.search(text):
            self._state = self._value_of_option
        elif block := shapes.BLOCK_SCALAR.match(text):
            self._state, self._indent = self._in_block, len(block.group(1))
        elif shapes.OPEN_IDS.search(text):
            self._state, self._left = self._in_ids, 1 << 20

    def _in_key_block(self, text: str) -> str | None:
        self._left -= 1
        if end := shapes.KEY_BLOCK_END.search(text):
            self._state = None
            return DROPPED + _scrub(text[end.start() :])
        if not self._left:
            self._state = None
        lead, _, word = text.rstrip().rpartition(" ")
        if shapes.BASE64_LINE.fullmatch(word) and (not lead or len(word) >= 24):
            return f"{lead} {DROPPED}" if lead else DROPPED
        return None

    def _value_of_pair(self, text: str) -> str | None:
        self._left -= 1
        if not self._left:
            self._state = None
        if not (pair := shapes.VALUE_OF_PAIR.search(text)):
            if text.strip() and not text.lstrip().startswith("#"):
                self._state = None
            return None
        self._state = None
        if shapes.SCALAR_MARK.fullmatch(pair.group(2)):
            self._state, self._indent = self._in_block, len(text) - len(text.lstrip(" -"))
            return text
        if shapes.NOTHING_SECRET.match(pair.group(2)):
            return None
        return f"{text[: pair.start(2)]}{DROPPED}"

    def _value_of_option(self, text: str) -> str | None:
        self._state = None
        item = shapes.LIST_ITEM.match(text)
        return f"{item.group(1)}{DROPPED}" if item and not item.group(2).startswith(("-", DROPPED)) else None

    def _in_block(self, text: str) -> str | None:
        indent = len(text) - len(text.lstrip(" "))
        if not text.strip():
            return text
        if indent <= self._indent:
            self._state = None
            return None
        return f"{' ' * indent}{DROPPED}"

    def _in_ids(self, text: str) -> str | None:
        self._left -= 1
        numbers = shapes.IDS_GO_ON.match(text)
        if not numbers or not self._left:
            self._state = None
            return None
        if "]" in numbers.group():
            self._state = None
        lead = text[: len(text) - len(text.lstrip())]
        return f"{lead}…{text[numbers.end('ids') :]}"


def _triggered(text: str) -> bool:
    try:
        found = (_find or _finder())(text)
    except UnicodeError:  # lone surrogates: undecodable bytes of a log, which the automaton refuses
        found = (_find or _finder())(_SURROGATE.sub("?", text))
    return bool(found) or text[:5] in shapes.EDGE_WORDS or text[-5:] in shapes.EDGE_WORDS


def _finder() -> Callable[[str], list[str]]:
    """The searches for trigger words and for beginnings of keys: automata, or regular expressions where they lack."""
    global _find, _leads  # noqa: PLW0603 (built once, when first needed: importing this module costs nothing)
    try:
        import ahocorasick_rs as ac

        dfa = ac.Implementation.DFA
        triggers: Any = ac.AhoCorasick(shapes.TRIGGERS, matchkind=ac.MatchKind.LeftmostFirst, implementation=dfa)
        leads: Any = ac.AhoCorasick(shapes.LEADS, matchkind=ac.MatchKind.Standard, implementation=dfa)
        _leads = lambda text: [m[1] for m in leads.find_matches_as_indexes(text, overlapping=True)]  # noqa: E731
        _find = triggers.find_matches_as_strings
    except ImportError:
        either = re.compile(f"(?={'|'.join(map(re.escape, shapes.LEADS))})")
        _leads = lambda text: [m.start() for m in either.finditer(text)]  # noqa: E731
        _find = re.compile("|".join(map(re.escape, shapes.TRIGGERS))).findall
    return _find


def _scrub(text: str) -> str:
    try:
        text = shapes.KEY_BLOCK.sub(r"\1***", text)
        text = _values(text)
        for literals, pattern, instead in shapes.SHAPES:
            if any(literal in text for literal in literals):
                text = pattern.sub(instead, text)
        return text
    except Exception:  # a fault of ours must not let a secret through
        return DROPPED


def _values(text: str) -> str:
    """Drop the values of keys that are secret."""
    parts: list[str] = []
    done = 0
    for at in _starts(text):
        if at < done or not (key := shapes.KEY.match(text, at)):
            continue
        drop = replacement(text, key)
        if drop is not None:
            start, end, instead = drop
            parts += (text[done:start], instead)
            done = max(end, key.end())
    if not parts:
        return text
    parts.append(text[done:])
    return "".join(parts)


def _starts(text: str) -> list[int]:
    """Where a key may begin."""
    low = text.lower()
    if len(low) != len(text):  # a letter such as İ: positions would be off
        low = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    if _leads is None:
        _finder()
    found = _leads(_SURROGATE.sub("?", low)) if _leads else []
    return sorted({at + (low[at] in "?&;") for at in found})
