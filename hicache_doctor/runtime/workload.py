"""Requests by step: seeded, the same on every rank, independent of how the run goes.

A turn of a conversation arrives a few steps after its predecessor finished; its prompt is the predecessor's prompt and
output and some new tokens, so only its arrival and the outputs depend on the run.
"""

from __future__ import annotations

from dataclasses import dataclass

from hicache_doctor.runtime.world import Rand, mix


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``step`` is its earliest arrival; ``after`` the request whose answer it follows up, or -1.

    ``abort_after`` steps after its arrival the client goes away (-1: never). ``routed``: a router in front has chosen
    its DP group already (that number modulo the groups; -1: it has not).
    """

    rid: int
    step: int
    tokens: tuple[int, ...]
    new_tokens: int
    after: int = -1
    abort_after: int = -1
    routed: int = -1


@dataclass(frozen=True, slots=True)
class Workload:
    """What arrives. ``prefixes`` shared prefixes of about ``prefix`` tokens; ``suffix`` own tokens at most; requests
    arrive 0 to ``gap`` steps apart; ``turns`` a conversation; ``aborts`` in percent."""

    requests: int = 60
    prefixes: int = 6
    prefix: int = 40
    suffix: int = 24
    new_tokens: int = 6
    gap: int = 2
    turns: int = 1
    aborts: int = 0
    vocab: int = 509
    idle_tail: int = 0
    """Steps that PP0 keeps going after the last request ended."""
    routed: int = 0
    """Percent of the conversations whose DP group a router in front has chosen."""
    block_at: int = -1
    """The step at which the DP controller tells all workers to hold new requests back, for ``block_for`` steps (-1:
    never; without a controller nobody says so)."""
    block_for: int = 10
    name: str = "mixed"

    def build(self, seed: int) -> list[Request]:
        """All requests in order of ``rid``."""
        rand, router = Rand(mix(seed, 77)), Rand(mix(seed, 78))
        shared = []
        for _ in range(max(1, self.prefixes)):
            n = self.prefix - rand.below(1 + self.prefix // 3)
            shared.append(tuple(1 + rand.below(self.vocab - 1) for _ in range(n)))
        out: list[Request] = []
        step, turn_of = 0, -1
        for rid in range(self.requests):
            own = tuple(1 + rand.below(self.vocab - 1) for _ in range(1 + rand.below(max(1, self.suffix))))
            new = 1 + rand.below(max(1, self.new_tokens))
            gone = rand.below(30) if self.aborts and rand.below(100) < self.aborts else -1
            if self.turns > 1 and rid % self.turns:
                out.append(Request(rid, step, own, new, turn_of, gone))
            else:
                routed = router.below(1 << 16) if self.routed and router.below(100) < self.routed else -1
                out.append(Request(rid, step, shared[rand.below(len(shared))] + own, new, -1, gone, routed))
            turn_of = rid
            step += rand.below(self.gap + 1)
        return out
