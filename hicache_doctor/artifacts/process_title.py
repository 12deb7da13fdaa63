"""A process title (``sglang::scheduler_PP1_TP0``) and the rank that it names."""

from __future__ import annotations

import re

_SCHEDULER = re.compile(r"sglang::\w*?scheduler((?:[ _][A-Z][A-Z_]{0,12}?\d{1,6})+)(?![0-9A-Za-z])")
_TOKEN = re.compile(r"[ _]([A-Z][A-Z_]*?\d+)")


def rank_of_title(title: str | None) -> str | None:
    """``sglang::scheduler_DP0_PP1_TP0_EP0`` or ``sglang::scheduler PP1 TP0`` → ``DP0 PP1 TP0 EP0`` / ``PP1 TP0``.

    None when the title names no rank: another process, a title cut by ``top``, or tp=1 and pp=1.
    """
    found = _SCHEDULER.search(title or "")
    return " ".join(_TOKEN.findall(found.group(1))) if found else None
