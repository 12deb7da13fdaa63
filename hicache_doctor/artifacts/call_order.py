"""Which end of a written call chain is the innermost: known outer and inner functions decide."""

from __future__ import annotations

import re
from collections.abc import Sequence

_OUTER = re.compile(
    r"run_scheduler_process|(?:run_|dispatch_)?event_loop\w*|_?main|spawn_main|<module>|_bootstrap(?:_inner)?|"
    r"get_next_batch_to_run|get_new_batch_prefill"
)
_INNER = re.compile(
    r"_?all_?reduce\w*|_?broadcast\w*|_?recv\w*|_?isend|_?irecv|_?send\w*|wait\w*|barrier|all_gather\w*|synchronize|"
    r"acquire|poll|epoll_wait|select|clock_nanosleep|writing_check|loading_check"
)


def innermost_first(names: Sequence[str]) -> bool | None:
    """True, False, or None when the chain itself does not tell. ``names`` are bare function names."""
    middle = (len(names) - 1) / 2
    outer = [i for i, n in enumerate(names) if _OUTER.fullmatch(n)]
    if outer and (mean := sum(outer) / len(outer)) != middle:
        return mean > middle
    inner = [i for i, n in enumerate(names) if _INNER.fullmatch(n)]
    if inner and (mean := sum(inner) / len(inner)) != middle:
        return mean < middle
    return None


def known_function(name: str) -> bool:
    """True for a function that a scheduler's stack is likely to hold."""
    return bool(_OUTER.fullmatch(name) or _INNER.fullmatch(name))
