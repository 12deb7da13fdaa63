"""Who owns which page while: the three streams touch disjoint slots, and in debug mode this is where that is checked.

A copy owns its pages from its submission until it has moved their last layer, and layer by layer: the forward pass may
read layer 0 of a page whose layer 3 is still on its way (row 5 of the design: compute, load and write streams run at
once on slots that are disjoint by ownership).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


class OwnershipError(AssertionError):
    """Two streams use one page at the same time and one of them writes it."""


@dataclass(slots=True)
class Claim:
    """The use of some pages by one copy; ``layer`` is the first layer that is not done yet."""

    stream: str
    writes: bool
    pages: tuple[int, ...]
    layers: int
    layer: int = 0


class Ledger:
    """The claims on the pages of one tier.

    The scheduler's thread adds claims, the copy's thread advances them. No lock: every claim is advanced by one thread
    only and looked up by page, and one look-up, one store, one deletion in a dict are atomic in CPython.
    """

    __slots__ = ("claims", "tier")

    def __init__(self, tier: str) -> None:
        self.tier = tier
        self.claims: dict[str, dict[int, Claim]] = {"load": {}, "write": {}}

    def claim(self, stream: str, pages: Iterable[int], layers: int, *, writes: bool) -> Claim:
        """A copy on ``stream`` (``load`` or ``write``) was submitted.

        Raises:
            OwnershipError: another copy uses one of the pages, and one of the two writes it.
        """
        mine = Claim(stream, writes, tuple(pages), layers)
        for page in mine.pages:
            for theirs in self.claims.values():
                other = theirs.get(page)
                if other is not None and (writes or other.writes) and other.layer < layers:
                    self._collide(stream, writes, page, 0, other)
        own = self.claims[stream]
        for page in mine.pages:
            own[page] = mine
        return mine

    def layer_done(self, claim: Claim, layer: int) -> None:
        """The copy has moved all layers up to ``layer``."""
        claim.layer = layer + 1
        if claim.layer < claim.layers:
            return
        own = self.claims[claim.stream]
        for page in claim.pages:
            if own.get(page) is claim:
                own.pop(page, None)

    def compute(self, layer: int, reads: Iterable[int], writes: Iterable[int]) -> None:
        """The forward pass is about to read and write pages in one layer.

        Raises:
            OwnershipError: it would read a layer that is still being loaded, or write one that a copy still needs.
        """
        loading, writing = self.claims["load"], self.claims["write"]
        for page in reads:
            other = loading.get(page)
            if other is not None and other.writes and layer >= other.layer:
                self._collide("compute", False, page, layer, other)
        for page in writes:
            for theirs in (loading, writing):
                other = theirs.get(page)
                if other is not None and layer >= other.layer:
                    self._collide("compute", True, page, layer, other)

    def _collide(self, stream: str, writes: bool, page: int, layer: int, other: Claim) -> None:
        verb, their = ("writes" if writes else "reads"), ("writing" if other.writes else "reading")
        raise OwnershipError(
            f"{stream} {verb} {self.tier} page {page} layer {layer} while {other.stream} is {their} it "
            f"(done up to layer {other.layer} of {other.layers})"
        )


def claim_copy(
    ledgers: tuple[Ledger, Ledger], stream: str, read: Sequence[int], write: Sequence[int], layers: int
) -> Callable[[int], None]:
    """Claim both ends of a copy between device and host (``ledgers`` in this order); returns what the copy calls when
    it has moved a layer.

    Raises:
        OwnershipError: see :meth:`Ledger.claim`.
    """
    device, host = ledgers
    source, target = (host, device) if stream == "load" else (device, host)
    reading = source.claim(stream, read, layers, writes=False)
    writing = target.claim(stream, write, layers, writes=True)

    def layer_done(layer: int) -> None:
        source.layer_done(reading, layer)
        target.layer_done(writing, layer)

    return layer_done
