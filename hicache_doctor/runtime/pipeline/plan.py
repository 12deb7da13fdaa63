"""The centralised plan: the first stage forms the batch, the others build theirs from what it says.

An alternative to replicated schedulers (the seed's; in no release). A follower that cannot honour the plan on its own
tree stops and says why: it never computes other lengths than it was told, nor reads slots that it does not own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hicache_doctor.runtime.world import Vector

HEAD = 8


class PlanError(RuntimeError):
    """A follower's tree does not have what the plan counts on."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of a planned batch; tokens."""

    rid: int
    prefix: int
    extend: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What all stages do in a step.

    ``chunked`` is the request whose prompt goes on in a later step, or -1; ``settle`` asks for the verdict on the
    waiting prefetches first; ``refused`` (rid, tokens) found no room; ``dropped`` requests end here, because their
    clients are gone, ``retracted`` ones wait again.
    """

    entries: tuple[Entry, ...] = ()
    decode: bool = False
    chunked: int = -1
    settle: bool = False
    refused: tuple[int, int] = (-1, 0)
    dropped: tuple[int, ...] = ()
    retracted: tuple[int, ...] = ()

    def encode(self) -> Vector:
        """As a message."""
        flat = [
            len(self.entries),
            int(self.decode),
            self.chunked,
            int(self.settle),
            *self.refused,
            len(self.dropped),
            len(self.retracted),
        ]
        for e in self.entries:
            flat += (e.rid, e.prefix, e.extend)
        return (*flat, *self.dropped, *self.retracted)


def longest(running: int, messages: int) -> int:
    """Integers of the longest plan: ``running`` requests run in a step at most, and are given up in another; of
    ``messages`` each may drop one. A chunk that goes on counts as one more."""
    return HEAD + 3 * (running + 1) + running + messages


def decode(vec: Sequence[int]) -> Plan:
    """The plan in a message."""
    n, is_decode, chunked, settle, rid, tokens, dropped, retracted = vec[:HEAD]
    at = HEAD + 3 * n
    entries = tuple(Entry(*vec[i : i + 3]) for i in range(HEAD, at, 3))
    end = at + dropped
    return Plan(
        entries,
        bool(is_decode),
        chunked,
        bool(settle),
        (rid, tokens),
        tuple(vec[at:end]),
        tuple(vec[end : end + retracted]),
    )
