"""Wrappers that only their repetition betrays: what a file does on nearly every line, learned from its first lines.

``812: text`` may be a line-number gutter or a message; it is a gutter when the numbers grow over the whole sample.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from hicache_doctor.artifacts import payload
from hicache_doctor.artifacts.layers import Outer, layer_for

_GUTTER = re.compile(r" {0,8}(\d{1,9})(?::|-(?=\D)|\t|$)(?!\d\d:\d\d\b)", re.ASCII)
_GUTTER_BLANK = re.compile(r" {0,8}\d{1,9}[:-](?: |$)", re.ASCII)
_LABEL = re.compile(r" {0,4}(\d{1,5}): ", re.ASCII)
_GREP_NUMBERED = re.compile(r"([^\s:|\[\](){}\"'=,]{1,200}?)([:-])(\d{1,9})\2")
_GREP = re.compile(r"([^\s:|\[\](){}\"'=,]{1,200}\.(?:log|txt|out|err|gz|\d+)):")
_STERN = re.compile(r"([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?) ([a-z0-9](?:[a-z0-9-]*[a-z0-9])?)(?: |$)")
_SERVICE = re.compile(r"([A-Za-z][\w.-]*) +\|(?: |$)", re.ASCII)
_SUPERVISED = re.compile(r"\[20\d\d-\d\d-\d\d[ T][\d:.,]+Z?\] \[([A-Za-z][\w.:-]*)\]:(?: |$)", re.ASCII)
_RECORD = re.compile(
    r"\[20\d\d-\d\d-\d\d|\[(?:PP|TP|DP|ATTN_CP)\d|20\d\d-\d\d-\d\d[T ]|\{\"|Traceback \(|  File \"|\[rank\d"
    r"|\[pod/|\(\w+ pid=|Process \d|Thread "
    # The first lines of other artefacts: metrics, the kernel, nvidia-smi, NCCL RAS, a JSON document.
    r"|# (?:HELP|TYPE) |sglang[:_]\w+\{|\[ *\d+\.\d{6}\] |\[[A-Z][a-z]{2} [A-Z][a-z]{2} .\d \d\d:\d\d:\d\d 20\d\d\]"
    r"|NVRM: |\+-{20}|={5,}NVSMI|NCCL version \d|[{\[]$"
)
_BARE_QUOTE = re.compile(r'(?<!\\)"')

GUTTER, LABEL, GREP, STERN, SERVICE, SUPERVISED, ESCAPED = (1 << i for i in range(7))


class Habits:
    """What was learned. ``known`` is a set of bits; each habit is taken off a line at most once."""

    __slots__ = ("blank", "known", "names", "pairs")

    def __init__(self) -> None:
        self.known = 0
        self.blank = False  # whether a blank follows the gutter's colon
        self.names: set[str] = set()
        self.pairs: set[tuple[str, str]] = set()

    def study(self, lines: Sequence[str]) -> bool:
        """Look for one more habit in lines whose known wrappers are off. True when one was found."""
        lines = [line for line in lines if line.strip()]
        if len(lines) < 4:
            return False
        for bit, found in ((GUTTER, _gutter), (LABEL, _label), (GREP, _grep), (ESCAPED, _escaped)):
            if not self.known & bit and found(lines):
                self.known |= bit
                if bit == GUTTER:
                    self.blank = all(_GUTTER_BLANK.match(line) for line in lines)
                return True
        if not self.known & STERN and (pairs := _pairs(lines)):
            self.known, self.pairs = self.known | STERN, pairs
            return True
        for bit, form in ((SERVICE, _SERVICE), (SUPERVISED, _SUPERVISED)):
            if not self.known & bit and (names := _names(lines, form)):
                self.known, self.names = self.known | bit, self.names | names
                return True
        return False

    def strip(self, text: str, seen: Outer) -> str | None:
        """One learned layer off, or None."""
        left = self.known & ~seen.used
        if not left:
            return None
        if left & GUTTER and (m := _GUTTER.match(text)):
            seen.used |= GUTTER
            return text[m.end() + (self.blank and text[m.end() : m.end() + 1] == " ") :]
        if left & LABEL and (m := _LABEL.match(text)):
            seen.used |= LABEL
            seen.rank = int(m[1])
            seen.writer(f"task{m[1]}")
            return text[m.end() :]
        if left & GREP and (m := _GREP_NUMBERED.match(text) or _GREP.match(text)):
            seen.used |= GREP
            seen.hints["file"] = m[1]
            seen.writer(m[1])
            return text[m.end() :]
        if left & STERN and (m := _STERN.match(text)) and (m[1], m[2]) in self.pairs:
            seen.used |= STERN
            seen.hints.update(pod=m[1], container=m[2])
            seen.writer(m[1], m[2])
            return text[m.end() :]
        return self._named(text, seen, left)

    def _named(self, text: str, seen: Outer, left: int) -> str | None:
        if left & SERVICE and (m := _SERVICE.match(text)) and m[1] in self.names:
            seen.used |= SERVICE
            seen.hints["service"] = m[1]
            seen.writer(m[1])
            return text[m.end() :]
        if left & SUPERVISED and (m := _SUPERVISED.match(text)) and m[1] in self.names:
            seen.used |= SUPERVISED
            seen.stamp(text[1 : text.index("]")])
            seen.writer(m[1])
            return text[m.end() :]
        if left & ESCAPED and "\\" in text:
            whole = payload.unescape(text, any_escape=True)
            if whole is not None:
                seen.used |= ESCAPED
            return whole
        return None


def _begins(text: str) -> bool:
    """Whether this looks like the start of a record or of a wrapper: what a true prefix leaves behind."""
    layer = layer_for(text[:1]) if text else None
    return _RECORD.match(text) is not None or (layer is not None and layer(text, Outer()) is not None)


def _gutter(lines: Sequence[str]) -> bool:
    numbers = [int(m[1]) for line in lines if (m := _GUTTER.match(line))]
    return len(numbers) >= 0.95 * len(lines) and all(a < b for a, b in pairwise(numbers))


def _label(lines: Sequence[str]) -> bool:
    numbers = [m[1] for line in lines if (m := _LABEL.match(line))]
    return len(numbers) >= 0.95 * len(lines) and len(set(numbers)) * 3 <= len(numbers)


def _grep(lines: Sequence[str]) -> bool:
    hits = [m for line in lines if (m := _GREP_NUMBERED.match(line) or _GREP.match(line))]
    return len(hits) >= 0.9 * len(lines) and any(_begins(m.string[m.end() :]) for m in hits)


def _escaped(lines: Sequence[str]) -> bool:
    return any('\\"' in line for line in lines) and not any(_BARE_QUOTE.search(line) for line in lines)


def _pairs(lines: Sequence[str]) -> set[tuple[str, str]]:
    hits = [m for line in lines if (m := _STERN.match(line)) and re.search(r"[-\d]", m[1])]
    counts = Counter((m[1], m[2]) for m in hits)
    pairs = {pair for pair, n in counts.items() if n >= 3}
    covered = sum(counts[pair] for pair in pairs)
    if covered < 0.8 * len(lines) or not any(_begins(m.string[m.end() :]) for m in hits):
        return set()
    return pairs


def _names(lines: Sequence[str], form: re.Pattern[str]) -> set[str]:
    hits = [m for line in lines if (m := form.match(line))]
    names = {name for name, n in Counter(m[1] for m in hits).items() if n >= 3}
    if len(hits) < 0.6 * len(lines) or not any(_begins(m.string[m.end() :]) for m in hits):
        return set()
    return names
