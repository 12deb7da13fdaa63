"""A prefix cache without a tree: one entry a page, linear scans, nothing kept up to date that can be counted.

It says what :class:`~hicache_doctor.runtime.cache.radix_tree.RadixTree` must do, and is slow enough to be believed. A
run of pages ends where a lookup or an insertion ended; runs are what is evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hicache_doctor.probes.kinds import Tier
from hicache_doctor.runtime.world import mix


@dataclass(slots=True)
class NaivePage:
    """One page: the hash of the page before it (0: none), its copies, who holds it, when it was last used."""

    before: int
    device: int | None
    host: int | None
    stamp: int
    locks: int = 0
    host_refs: int = 0
    ends_run: bool = False


class NaiveCache:
    """Pages by chain hash. ``freed_device`` and ``freed_host`` collect the page numbers that it lets go."""

    def __init__(self) -> None:
        self.pages: dict[int, NaivePage] = {}
        self.time = 0
        self.freed_device: list[int] = []
        self.freed_host: list[int] = []
        self.before_drop: Callable[[int, int], list[int] | None] = lambda key, n: None
        """Write-back: called with the last hash and the length of a run that is about to lose its only copy; returns
        the host pages it was copied to."""

    # -- looking up and putting in
    def match(self, hashes: Sequence[int], n: int) -> tuple[list[int], int]:
        """Device pages from the start, and how many pages behind them only the host has."""
        path = self._walk(hashes, n)
        found = [self.pages[h] for h in path]
        return [p.device for p in found if p.device is not None], sum(p.device is None for p in found)

    def _walk(self, hashes: Sequence[int], n: int) -> list[int]:
        """The known prefix, stamped, with a run's end at its end."""
        self.time += 1
        path: list[int] = []
        while len(path) < n and hashes[len(path)] in self.pages:
            path.append(hashes[len(path)])
        for h in path:
            self.pages[h].stamp = self.time
        if path:
            self.pages[path[-1]].ends_run = True
        return path

    def insert(self, hashes: Sequence[int], own: Sequence[int], n: int) -> list[int]:
        """The path's device pages; a duplicate of what is there already is let go."""
        known = len(self._walk(hashes, n))
        for i in range(n):
            page = self.pages.get(hashes[i])
            if page is None:
                page = NaivePage(hashes[i - 1] if i else 0, own[i], None, self.time)
                self.pages[hashes[i]] = page
            elif page.device is None:
                page.device = own[i]
            elif page.device != own[i]:
                self.freed_device.append(own[i])
        if n > known:
            self.pages[hashes[n - 1]].ends_run = True
        return [d for h in hashes[:n] if (d := self.pages[h].device) is not None]

    def attach_host(self, hashes: Sequence[int], known: int, host: Sequence[int]) -> None:
        """Pages behind the first ``known`` that came from L3 into the host."""
        for i, page in enumerate(host, known):
            self.pages[hashes[i]] = NaivePage(hashes[i - 1] if i else 0, None, page, 0)
        self.pages[hashes[known + len(host) - 1]].ends_run = True

    def back(self, run: Sequence[int], host: Sequence[int]) -> None:
        """The pages of a run have host copies."""
        for h, page in zip(run, host, strict=True):
            self.pages[h].host = page

    def load(self, run: Sequence[int], device: Sequence[int]) -> None:
        """The pages of a run have device copies again."""
        for h, page in zip(run, device, strict=True):
            self.pages[h].device = page

    # -- references
    def lock(self, hashes: Sequence[int], by: int) -> None:
        """Hold a whole prefix on the device (``by`` 1), or let go of it (-1)."""
        for h in hashes:
            self.pages[h].locks += by

    def protect(self, hashes: Sequence[int], by: int) -> None:
        """Hold the host copies of a prefix, or let go of them."""
        for h in hashes:
            self.pages[h].host_refs += by

    # -- runs
    def runs(self) -> list[list[int]]:
        """All runs, each from its first page to its last."""
        out = []
        for last, page in self.pages.items():
            if page.ends_run:
                run = [last]
                while (before := self.pages[run[0]].before) and not self.pages[before].ends_run:
                    run.insert(0, before)
                out.append(run)
        return out

    def _children(self, run: Sequence[int]) -> list[list[int]]:
        return [r for r in self.runs() if self.pages[r[0]].before == run[-1]]

    def _below(self, run: Sequence[int]) -> list[list[int]]:
        out: list[list[int]] = []
        for child in self._children(run):
            out += [child, *self._below(child)]
        return out

    def _oldest(self, runs: list[list[int]]) -> list[int] | None:
        return min(runs, key=lambda r: (self.pages[r[-1]].stamp, r[-1]), default=None)

    # -- eviction
    def evict(self, want: int) -> int:
        """Free device pages, the least recently used run first among those with no resident run behind them."""
        freed = 0
        passed_over: list[list[int]] = []
        while freed < want:
            run = self._oldest([r for r in self.runs() if r not in passed_over and self._may_leave_device(r)])
            if run is None:
                break
            if self.pages[run[-1]].host is None:
                copied = self.before_drop(run[-1], len(run))
                if copied is not None:
                    self.back(run, copied)
            backed = self.pages[run[-1]].host is not None
            below = self._below(run)
            if not backed and any(self.pages[r[-1]].locks or self.pages[r[-1]].host_refs for r in below):
                passed_over.append(run)
                continue
            for h in run:
                self._drop_device(h)
            freed += len(run)
            if not backed:
                for h in [h for r in (*below, run) for h in r]:
                    self._forget(h)
        return freed

    def _may_leave_device(self, run: Sequence[int]) -> bool:
        page = self.pages[run[-1]]
        resident = any(self.pages[r[-1]].device is not None for r in self._children(run))
        return page.device is not None and not page.locks and not resident

    def evict_host(self, want: int) -> int:
        """Free host pages of runs that are not on the device and have nothing behind them."""
        freed = 0
        while freed < want:
            run = self._oldest([r for r in self.runs() if self._may_leave_host(r)])
            if run is None:
                break
            freed += len(run)
            for h in run:
                self._forget(h)
        return freed

    def _may_leave_host(self, run: Sequence[int]) -> bool:
        page = self.pages[run[-1]]
        return page.device is None and not page.locks and not page.host_refs and not self._children(run)

    def _drop_device(self, h: int) -> None:
        page = self.pages[h]
        assert page.device is not None
        self.freed_device.append(page.device)
        page.device = None

    def _forget(self, h: int) -> None:
        page = self.pages.pop(h)
        if page.host is not None:
            self.freed_host.append(page.host)

    # -- sums
    def evictable(self) -> int:
        """Resident pages that nobody holds."""
        return sum(p.device is not None and not p.locks for p in self.pages.values())

    def protected(self) -> int:
        """Resident pages that somebody holds."""
        return sum(p.device is not None and p.locks > 0 for p in self.pages.values())

    def digest(self) -> int:
        """What a tree's digest must be: which runs have a copy in which tier."""
        out = 0
        for run in self.runs():
            page = self.pages[run[-1]]
            if page.device is not None:
                out ^= mix(run[-1], int(Tier.DEVICE))
            if page.host is not None:
                out ^= mix(run[-1], int(Tier.HOST))
        return out
