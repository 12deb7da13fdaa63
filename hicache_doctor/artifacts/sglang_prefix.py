"""SGLang's own line prefix: ``[2026-05-28 02:19:20 PP1 TP0] msg``.

Canonical order is DP, PP, ATTN_CP, MOE_DP, TP, EP, each only where its size is above 1, so no rank at all is common.
Old releases print ``TP0 PP1``; some put a word before (``DisaggregationMode.IGPUDECODE TP1``); reporters cut the stamp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from hicache_doctor.artifacts import when

_STAMPED = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?((?: [^\s\[\]]+)*)\](?: |$)?", re.ASCII)
_NAME = "ATTN_CP|MOE_DP|CP|DP|PP|TP|EP"
RANK_TOKEN = rf"(?:{_NAME})\d+"
"""One rank of a prefix, such as ``PP1``, as a part of a pattern."""
_BARE = re.compile(rf"\[({RANK_TOKEN}(?: {RANK_TOKEN})*)\](?: |$)", re.ASCII)
_TOKEN = re.compile(rf"({_NAME})(\d{{1,6}})", re.ASCII)
_KEY = {"DP": "dp", "PP": "pp", "ATTN_CP": "cp", "CP": "cp", "MOE_DP": "moe_dp", "TP": "tp", "EP": "ep"}
_ORDER = (("dp", "DP"), ("pp", "PP"), ("cp", "ATTN_CP"), ("moe_dp", "MOE_DP"), ("tp", "TP"), ("ep", "EP"))


class Prefix(NamedTuple):
    """What the prefix says; ``text`` is the message after it, indentation kept."""

    ts: float | None
    tokens: Mapping[str, int]
    label: str
    text: str
    words: tuple[str, ...] = ()


@lru_cache(maxsize=4096)
def rank_tokens(text: str) -> tuple[Mapping[str, int], str, tuple[str, ...]]:
    """``TP0 PP1`` → ({"tp": 0, "pp": 1}, "PP1 TP0", ()); words that are no rank token come last."""
    tokens: dict[str, int] = {}
    words = []
    for word in text.split():
        m = _TOKEN.fullmatch(word)
        if m is None:
            words.append(word)
        else:
            tokens[_KEY[m[1]]] = int(m[2])
    label = " ".join(f"{name}{tokens[key]}" for key, name in _ORDER if key in tokens)
    return tokens, label, tuple(words)


@lru_cache(maxsize=4096)
def _seconds(text: str) -> float | None:
    return when.iso(text)


def parse_prefix(text: str) -> Prefix | None:
    """The prefix at the start of a peeled line, or None where there is none.

    A stamp alone is a prefix without ranks; without a stamp every word must be a rank token (``[Gloo] …`` is text).
    """
    if text[:1] != "[":
        return None
    m = _STAMPED.match(text)
    if m is None:
        m = _BARE.match(text)
        if m is None:
            return None
        tokens, label, _ = rank_tokens(m[1])
        return Prefix(None, tokens, label, text[m.end() :])
    ts = _seconds(m[1])
    if ts is not None and m[2]:
        ts += float(f"0.{m[2]}")
    tokens, label, words = rank_tokens(m[3])
    return Prefix(ts, tokens, label, text[m.end() :], words)
