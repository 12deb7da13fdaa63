"""The radix tree against the naive cache: the same lookups, the same copies in each tier, the same victims."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from hicache_doctor.runtime.cache.memory_pool import PagePool
from hicache_doctor.runtime.cache.naive import NaiveCache
from hicache_doctor.runtime.cache.radix_tree import RadixTree, TreeNode
from hicache_doctor.runtime.world import mix

DEVICE = 18
PROMPTS = st.lists(st.integers(1, 2), min_size=1, max_size=9)


def chain(tokens: list[int]) -> list[int]:
    """Chain hashes, a token a page."""
    out: list[int] = []
    for token in tokens:
        out.append(mix(out[-1] if out else 0, token))
    return out


class NoWorld:
    """A world whose only event is that nothing is recorded."""

    def record(self, *event: int) -> None:
        pass


class CacheMachine(RuleBasedStateMachine):
    """Each rule does the same to both; ``held`` are locked prefixes, ``guarded`` protected host copies."""

    held = Bundle("held")
    guarded = Bundle("guarded")

    @initialize(write_back=st.booleans(), host_pages=st.sampled_from((4, 14)))
    def start(self, write_back: bool, host_pages: int) -> None:
        self.device, self.host = PagePool(DEVICE), PagePool(host_pages)
        world: Any = NoWorld()
        self.tree = RadixTree(world, self.device, self.host, 1, wall_clock=False, trace=False)
        self.naive = NaiveCache()
        self.copies: list[tuple[int, list[int] | None]] = []
        self.refusing = False
        if write_back:
            self.tree.before_drop = self.copy_before_drop
            self.naive.before_drop = self.repeat_copy

    # -- write-back: the tree decides, the naive cache must come to the same victim at the same moment
    def copy_before_drop(self, node: TreeNode) -> bool:
        if node.host_value is not None:
            return False
        pages = self.reserve_host(len(node.hashes))
        self.copies.append((node.key, pages))
        if pages is not None:
            self.tree.make_backed(node, pages)
        return pages is not None

    def reserve_host(self, n: int) -> list[int] | None:
        if self.refusing:
            return None
        if n > self.host.available:
            self.tree.evict_host(n - self.host.available)
        return self.host.alloc(n)

    def repeat_copy(self, key: int, n: int) -> list[int] | None:
        there, pages = self.copies.pop(0)
        assert there == key
        free = self.host.size - sum(p.host is not None for p in self.naive.pages.values())
        if n > free and not self.refusing:
            self.naive.evict_host(n - free)
        return pages

    def evict(self, n: int) -> int:
        freed = self.tree.evict(n)
        assert self.naive.evict(n) == freed
        assert not self.copies
        return freed

    # -- requests
    def found(self, hashes: list[int]) -> tuple[list[int], TreeNode, TreeNode, int]:
        match = self.tree.match(hashes, len(hashes))
        assert self.naive.match(hashes, len(hashes)) == (match.pages, match.host_pages)
        return match.pages, match.last_device_node, match.last_host_node, match.host_pages

    def room(self, n: int) -> list[int] | None:
        if n > self.device.available:
            self.evict(n - self.device.available)
        return self.device.alloc(n)

    @rule(tokens=PROMPTS)
    def lookup(self, tokens: list[int]) -> None:
        self.found(chain(tokens))

    @rule(tokens=PROMPTS)
    def compute(self, tokens: list[int]) -> None:
        """A request: match, lock, take pages for the rest, insert, unlock."""
        hashes = chain(tokens)
        pages, node, _, _ = self.found(hashes)
        self.tree.inc_lock_ref(node)
        self.naive.lock(hashes[: len(pages)], 1)
        new = self.room(len(hashes) - len(pages))
        if new is not None:
            self.put(hashes, pages + new)
        self.tree.dec_lock_ref(node)
        self.naive.lock(hashes[: len(pages)], -1)

    @rule(tokens=PROMPTS)
    def compute_unaware(self, tokens: list[int]) -> None:
        """A request that was admitted before another one put the same prefix in: all its pages are its own."""
        hashes = chain(tokens)
        own = self.room(len(hashes))
        if own is not None:
            self.put(hashes, own)

    def put(self, hashes: list[int], own: list[int]) -> None:
        node, path = self.tree.insert(hashes, own, len(hashes), count_hits=False)
        assert node.key == hashes[-1]
        assert self.naive.insert(hashes, own, len(hashes)) == path

    @rule(target=held, tokens=PROMPTS)
    def hold(self, tokens: list[int]) -> Any:
        hashes = chain(tokens)
        pages, node, _, _ = self.found(hashes)
        if not pages:
            return multiple()
        self.tree.inc_lock_ref(node)
        self.naive.lock(hashes[: len(pages)], 1)
        return node, hashes[: len(pages)]

    @rule(item=consumes(held))
    def let_go(self, item: tuple[TreeNode, list[int]]) -> None:
        node, hashes = item
        self.tree.dec_lock_ref(node)
        self.naive.lock(hashes, -1)

    # -- tiers
    @rule(tokens=PROMPTS)
    def write_through(self, tokens: list[int]) -> None:
        """The node in which a lookup ends on the device gets a host copy, unless that would leave a hole."""
        hashes = chain(tokens)
        _, node, _, _ = self.found(hashes)
        if node is self.tree.root or node.host_value is not None:
            return
        assert node.parent is not None
        if node.parent.host_value is None:
            return
        n = len(node.hashes)
        short = n - self.host.available
        if short > 0:
            freed = self.tree.evict_host(short)
            assert self.naive.evict_host(short) == freed
        host = self.host.alloc(n)
        if host is not None:
            self.naive.back(node.hashes, host)
            self.tree.make_backed(node, host)

    @rule(tokens=PROMPTS)
    def load_back(self, tokens: list[int]) -> None:
        """All of the host part of a match, or nothing."""
        hashes = chain(tokens)
        _, _, last, n = self.found(hashes)
        if not n:
            return
        evicted: list[TreeNode] = []
        node = last
        while node.value is None:
            evicted.insert(0, node)
            assert node.parent is not None
            node = node.parent
        n = sum(len(e.hashes) for e in evicted)
        start = hashes.index(evicted[0].hashes[0])
        self.tree.inc_lock_ref(node)
        self.tree.protect_host(last)
        self.naive.lock(hashes[:start], 1)
        self.naive.protect(hashes[: start + n], 1)
        pages = self.room(n)
        i = 0
        for e in evicted if pages is not None else ():
            assert pages is not None
            m = len(e.hashes)
            self.tree.make_resident(e, pages[i : i + m])
            self.naive.load(e.hashes, pages[i : i + m])
            i += m
        self.tree.release_host(last)
        self.tree.dec_lock_ref(node)
        self.tree.offer(last)
        self.naive.lock(hashes[:start], -1)
        self.naive.protect(hashes[: start + n], -1)

    @rule(tokens=PROMPTS)
    def fetch(self, tokens: list[int]) -> None:
        """What L3 holds behind a backed-up prefix arrives in the host."""
        hashes = chain(tokens)
        match = self.tree.match(hashes, len(hashes))
        pages, on_host = self.naive.match(hashes, len(hashes))
        known = len(pages) + on_host
        anchor = match.last_host_node if on_host else match.last_device_node
        if anchor.host_value is None or known == len(hashes):
            return
        host = self.host.alloc(len(hashes) - known)
        if host is None:
            return
        node = self.tree.attach(anchor, hashes[known:], None, host)
        self.naive.attach_host(hashes, known, host)
        self.tree.offer(node)

    @rule(target=guarded, tokens=PROMPTS)
    def guard(self, tokens: list[int]) -> Any:
        """A backup to L3 or a prefetch that has its anchor here keeps the host copies."""
        hashes = chain(tokens)
        _, _, node, _ = self.found(hashes)
        if node is self.tree.root:
            return multiple()
        prefix = hashes[: hashes.index(node.key) + 1]
        self.tree.protect_host(node)
        self.naive.protect(prefix, 1)
        return node, prefix

    @rule(item=consumes(guarded))
    def unguard(self, item: tuple[TreeNode, list[int]]) -> None:
        node, prefix = item
        self.tree.release_host(node)
        self.naive.protect(prefix, -1)

    @rule(refusing=st.booleans())
    def refuse(self, refusing: bool) -> None:
        """Copies before a drop find no room, however much is free."""
        self.refusing = refusing

    @rule(n=st.integers(1, DEVICE))
    def make_room(self, n: int) -> None:
        self.evict(n)

    @rule(n=st.integers(1, DEVICE))
    def make_room_on_the_host(self, n: int) -> None:
        freed = self.tree.evict_host(n)
        assert self.naive.evict_host(n) == freed

    # -- what must hold
    @invariant()
    def same_pages_in_the_same_places(self) -> None:
        if not hasattr(self, "tree"):
            return
        seen: dict[int, tuple[Any, ...]] = {}
        ends = set()
        for node in self.tree.nodes():
            ends.add(node.key)
            for i, h in enumerate(node.hashes):
                device = None if node.value is None else node.value[i]
                host = None if node.host_value is None else node.host_value[i]
                seen[h] = (device, host, node.lock_ref, node.host_ref)
        wanted = {h: (p.device, p.host, p.locks, p.host_refs) for h, p in self.naive.pages.items()}
        assert seen == wanted
        assert ends == {h for h, p in self.naive.pages.items() if p.ends_run}
        assert self.tree.digest == self.naive.digest()

    @invariant()
    def ledgers_and_pools_add_up(self) -> None:
        if not hasattr(self, "tree"):
            return
        assert self.tree.evictable == self.naive.evictable()
        assert self.tree.protected == self.naive.protected()
        device = [p.device for p in self.naive.pages.values() if p.device is not None]
        host = [p.host for p in self.naive.pages.values() if p.host is not None]
        assert sorted(device + self.device.free) == list(range(1, DEVICE + 1))
        assert sorted(host + self.host.free) == list(range(1, self.host.size + 1))

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        for node in self.tree.nodes():
            while node.lock_ref > sum(c.lock_ref for c in node.children.values()):
                self.tree.dec_lock_ref(node)
            while node.host_ref > sum(c.host_ref for c in node.children.values()):
                self.tree.release_host(node)
        self.tree.before_drop = lambda node: False
        self.tree.evict(DEVICE)
        self.tree.evict_host(self.host.size)
        assert self.tree.nodes() == []
        assert (self.device.available, self.host.available) == (DEVICE, self.host.size)
        assert (self.tree.evictable, self.tree.protected, self.tree.digest) == (0, 0, 0)


CacheMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestCache = CacheMachine.TestCase


def test_what_hangs_below_a_run_without_a_copy_goes_with_it_unless_somebody_reads_it() -> None:
    machine = CacheMachine()
    machine.start(write_back=True, host_pages=14)
    machine.compute([1, 1])
    machine.compute([1, 1, 2])
    machine.make_room(1)
    guarded = machine.guard([1, 1, 2])
    machine.refuse(refusing=True)
    assert machine.evict(2) == 0, "its only copy would be lost, and with it the way to what is being read"
    machine.unguard(guarded)
    assert machine.evict(2) == 2
    machine.same_pages_in_the_same_places()
    assert machine.tree.nodes() == [] and machine.tree.evicted_host == 1
    machine.teardown()
