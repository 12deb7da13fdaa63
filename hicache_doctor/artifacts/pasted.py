"""Logs inside the strings of a JSON document: chat exports, tickets, alerts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

LARGEST = 4 << 20
DEEPEST = 40
LOOKS_PASTED = re.compile(r"\n.*\n|\[\d{4}-\d\d-\d\d \d\d:|Traceback \(most recent|sglang")


def json_strings(text: str) -> list[tuple[int, str]]:
    """The strings of a pretty-printed JSON document that look like pasted text, each with the line that holds it.

    Only documents over several lines: single lines are the peeler's. A py-spy dump is no paste. Never raises.
    """
    head = text.lstrip()[:1]
    if head not in ("[", "{") or "\n" not in text.strip() or len(text) > LARGEST or '"owns_gil"' in text:
        return []
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return []
    out = []
    at = 0
    for words in _strings(document, 0):
        if LOOKS_PASTED.search(words) is None:
            continue
        # The document escapes the string; its first characters find the line, in order.
        found = text.find(json.dumps(words, ensure_ascii=False)[:60], at)
        if found < 0:
            found = text.find(json.dumps(words)[:60], at)
        at = max(at, found)
        out.append((text.count("\n", 0, at) + 1, words))
    return out


def _strings(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth < DEEPEST and isinstance(value, dict):
        for item in value.values():
            yield from _strings(item, depth + 1)
    elif depth < DEEPEST and isinstance(value, list):
        for item in value:
            yield from _strings(item, depth + 1)
