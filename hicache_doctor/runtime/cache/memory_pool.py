"""Page pools of the device and the host tier: which pages are free. What is in a page is the model's business."""

from __future__ import annotations

from hicache_doctor.probes.kinds import Kind, Tier
from hicache_doctor.runtime.world import World


class PagePool:
    """Free pages of one tier, numbered from 1 (page 0 is the padding page, as upstream)."""

    __slots__ = ("free", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = list(range(size, 0, -1))

    def alloc(self, n: int) -> list[int] | None:
        """``n`` pages, or None when there are fewer: all or nothing."""
        if n > len(self.free):
            return None
        if n == 0:
            return []
        pages = self.free[-n:]
        del self.free[-n:]
        pages.reverse()
        return pages

    def give_back(self, pages: list[int]) -> None:
        """Free pages; the caller owns them."""
        self.free.extend(pages)

    @property
    def available(self) -> int:
        """How many pages are free."""
        return len(self.free)


class TracedPool(PagePool):
    """A pool that records what it hands out and takes back."""

    __slots__ = ("tier", "world")

    def __init__(self, size: int, world: World, tier: Tier) -> None:
        super().__init__(size)
        self.world = world
        self.tier = int(tier)

    def alloc(self, n: int) -> list[int] | None:
        """As of any pool."""
        pages = super().alloc(n)
        if pages:
            self.world.record(int(Kind.ALLOC), 0, self.tier, n, len(self.free))
        return pages

    def give_back(self, pages: list[int]) -> None:
        """As of any pool."""
        super().give_back(pages)
        if pages:
            self.world.record(int(Kind.FREE), 0, self.tier, len(pages), len(self.free))


def pool(size: int, world: World, tier: Tier, *, trace: bool) -> PagePool:
    """The pool of a tier."""
    return TracedPool(size, world, tier) if trace else PagePool(size)
