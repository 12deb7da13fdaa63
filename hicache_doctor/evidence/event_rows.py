"""Probe events written by hand, for the cases of rules and for tests: a table of ``ranks step kind key a b c d``.

``PP0,PP1 0-9 batch $ $ 0 64 128``: each named rank (a dot stands for the space in ``PP0.TP1``) gets the event at each
step of the range, ``$`` is the step. Numbers that have words are written as words (``submit 7 write 64 no_room 3``),
what is left out is 0, ``-`` is 0, and ``#`` begins a remark. Within a step the order is that of the table.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from typing import Any

from hicache_doctor.evidence.rows import Event

COLUMNS = ("key", "a", "b", "c", "d")
STEP_NS = 1_000_000


def parse(text: str, kinds: list[dict[str, Any]], words: list[dict[str, Any]]) -> list[Event]:
    """The events of a table, rank by rank in order of steps; ``kinds`` and ``words`` are the vocabulary of events.

    Raises:
        ValueError: a line is wrong; the message has its number and the nearest right word.
    """
    meaning = {kind["kind"]: kind for kind in kinds}
    numbers = {name: {word: n for n, word in table.items()} for entry in words for name, table in entry.items()}
    found: dict[str, list[tuple[int, str, list[int]]]] = defaultdict(list)
    for line, row in enumerate(text.splitlines(), 1):
        parts = row.split("#", 1)[0].split()
        if not parts:
            continue
        if len(parts) < 3 or len(parts) > 3 + len(COLUMNS):
            raise ValueError(f"line {line}: write `ranks step kind key a b c d`, not {row.strip()!r}")
        kind = meaning.get(parts[2])
        if kind is None:
            raise ValueError(f"line {line}: {_near('kind', parts[2], meaning)}")
        for step in _steps(parts[1], line):
            values = [
                _value(kind, column, word, step, numbers, line)
                for column, word in zip(COLUMNS, parts[3:], strict=False)
            ]
            values += [0] * (len(COLUMNS) - len(values))
            for rank in parts[0].split(","):
                found[rank.replace(".", " ")].append((step, parts[2], values))
    out = []
    for rank, events in found.items():
        events.sort(key=lambda event: event[0])
        for record, (step, name, values) in enumerate(events):
            key, a, b, c, d = values
            out.append(
                Event(f"events/{rank}.ring", rank, step, step * STEP_NS, 0, name, key, a, b, c, d, record, record)
            )
    return out


def _steps(text: str, line: int) -> range:
    first, _, last = text.partition("-")
    try:
        return range(int(first), int(last or first) + 1)
    except ValueError:
        raise ValueError(f"line {line}: a step is a number or a range such as 0-9, not {text!r}") from None


def _value(
    kind: dict[str, Any], column: str, word: str, step: int, numbers: dict[str, dict[str, int]], line: int
) -> int:
    if word == "$":
        return step
    if word == "-":
        return 0
    try:
        return int(word, 0)
    except ValueError:
        table = numbers.get(str(kind.get(column)), {})
        if word not in table:
            raise ValueError(f"line {line}: {_near(str(kind.get(column)), word, table)}") from None
        return table[word]


def _near(what: str, word: str, known: dict[str, Any]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"no {what} {word!r}" + (f"; did you mean {close[0]!r}?" if close else "")
