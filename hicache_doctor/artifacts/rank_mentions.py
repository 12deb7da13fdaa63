"""Ranks as people name them in notes: ``TP0, TP2``, ``PP1 TP0-3``, ``rank 3``, ``ranks 1, 2 and 5–7``."""

from __future__ import annotations

import re

_ORDER = ("DP", "PP", "ATTN_CP", "CP", "MOE_DP", "TP", "EP")
_RANGE = r"(?:\s*(?:-|–|—|~|\.{2,3}|…|\bto\b)\s*"
_TOKEN = re.compile(
    rf"(?<![A-Za-z0-9])(ATTN_CP|MOE_DP|DP|PP|CP|TP|EP) ?(\d{{1,4}}){_RANGE}(?:\1 ?)?(\d{{1,4}}))?(?!\w)"
)
_JOINT = re.compile(r"[\s_/]*")
_NUMBERED = re.compile(rf"\branks?[\s#:]*(\d{{1,4}}(?:{_RANGE}\d{{1,4}})|\s*(?:,|&|\band\b)\s*\d{{1,4}})*)", re.I)
_NUMBERS = re.compile(rf"(\d{{1,4}}){_RANGE}(\d{{1,4}}))?")
_MOST = 1024


def rank_mentions(text: str) -> list[str]:
    """The rank labels named in ``text``, in order, without repeats; ranges are spelt out.

    A later mention inherits the earlier one's leading parts: ``PP0 TP0, TP1`` is ``PP0 TP0`` and ``PP0 TP1``.
    """
    labels: list[str] = []
    parts: dict[str, int] = {}
    end: int | None = None
    upto: int | None = None
    for m in _TOKEN.finditer(text.replace("_TP", " TP").replace("_PP", " PP").replace("_EP", " EP")):
        dim, number = m.group(1), int(m.group(2))
        joined = end is not None and upto is None and _JOINT.fullmatch(m.string, end, m.start()) is not None
        if joined and parts and dim not in parts:
            parts[dim] = number
        else:
            _add(labels, parts, upto)
            before = _ORDER[: _ORDER.index(dim)]
            parts = {d: v for d, v in parts.items() if d in before} | {dim: number}
        upto = int(m.group(3)) if m.group(3) else None
        end = m.end()
    _add(labels, parts, upto)
    for m in _NUMBERED.finditer(text):
        for n in _NUMBERS.finditer(m.group(1)):
            first, last = int(n.group(1)), int(n.group(2) or n.group(1))
            labels += [f"rank {i}" for i in range(first, min(last, first + _MOST) + 1)]
    return list(dict.fromkeys(labels))


def _add(labels: list[str], parts: dict[str, int], upto: int | None) -> None:
    if not parts:
        return
    *leading, (dim, first) = parts.items()
    head = "".join(f"{d}{v} " for d, v in leading)
    last = first if upto is None else min(upto, first + _MOST)
    labels += [f"{head}{dim}{i}" for i in range(first, last + 1)]
