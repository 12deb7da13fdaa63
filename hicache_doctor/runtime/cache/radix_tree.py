"""The radix tree over page hashes: matching, splitting, locking and eviction of two tiers.

A node's key is the run of chain hashes of its pages. A chain hash covers the whole prefix, so equal hashes mean equal
prefixes and a node is named by its last one on every rank. Resident nodes form a prefix from the root, and so do nodes
with a host copy: each tier is evicted from its leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from hicache_doctor.probes.kinds import Kind, Tier
from hicache_doctor.runtime.cache.memory_pool import PagePool
from hicache_doctor.runtime.cache.tree_node import Match, TreeNode
from hicache_doctor.runtime.world import World, mix

EVICT, CLOCK = int(Kind.EVICT), int(Kind.CLOCK)
DEVICE, HOST = int(Tier.DEVICE), int(Tier.HOST)


class RadixTree:
    """Tree and ledgers of one rank; sizes are pages. ``on_hit`` is called for each node that an insert meets."""

    def __init__(
        self, world: World, device: PagePool, host: PagePool, page_size: int, *, wall_clock: bool, trace: bool
    ) -> None:
        self.world = world
        self.record = world.record
        self.device, self.host = device, host
        self.page_size = page_size
        self.wall_clock = wall_clock
        self.trace = trace
        self.root = TreeNode([], None)
        self.root.value, self.root.host_value = [], []
        self.root.lock_ref = self.root.host_ref = 1
        self.time = 0
        self.evictable = 0
        self.protected = 0
        self.digest = 0
        self.evicted_device = 0
        self.evicted_host = 0
        self._device_heap: list[tuple[int, int, TreeNode]] = []
        self._host_heap: list[tuple[int, int, TreeNode]] = []
        self.on_hit: Callable[[TreeNode], None] = lambda node: None
        self.before_drop: Callable[[TreeNode], None] = lambda node: None

    # -- the clock
    def tick(self) -> int:
        """The stamp of one walk. The wall clock is an observation; the logical one counts walks (#22759)."""
        if self.wall_clock:
            self.time = self.world.observe("clock", (self.world.now(),))[0]
        else:
            self.time += 1
        return self.time

    # -- walking
    def match(self, hashes: Sequence[int], n: int) -> Match:
        """The longest known prefix of the first ``n`` hashes; splits the node in which it ends (a lookup changes the
        tree) and stamps the path."""
        stamp = self.tick()
        node, i = self.root, 0
        pages: list[int] = []
        last_device = last_host = self.root
        host_pages = 0
        while i < n:
            child = self.step_down(node, hashes, i, n)
            if child is None:
                break
            m = len(child.hashes)
            child.last_access = stamp
            if self.trace:
                self.record(CLOCK, child.key, stamp)
            if child.value is not None:
                pages += child.value
                last_device = child
            elif child.host_value is not None:
                host_pages += m
            if child.host_value is not None:
                last_host = child
            i += m
            node = child
        return Match(pages, last_device, last_host, host_pages)

    def step_down(self, node: TreeNode, hashes: Sequence[int], i: int, n: int) -> TreeNode | None:
        """The child of ``node`` that goes on with page ``i`` of the first ``n``, cut where it stops agreeing; None when
        no page agrees."""
        child = node.children.get(hashes[i])
        if child is None:
            return None
        m = len(child.hashes)
        if i + m > n or hashes[i + m - 1] != child.key:
            child = self.split(child, self._common(child, hashes, i, n))
        return child

    @staticmethod
    def _common(child: TreeNode, hashes: Sequence[int], i: int, n: int) -> int:
        """How many pages of the child agree; equal chain hashes imply equal prefixes, so bisection is enough."""
        run = child.hashes
        low, high = 1, min(len(run), n - i)
        while low < high:
            middle = (low + high + 1) // 2
            if run[middle - 1] == hashes[i + middle - 1]:
                low = middle
            else:
                high = middle - 1
        return low

    def split(self, child: TreeNode, m: int) -> TreeNode:
        """Cut a node after ``m`` pages; returns the upper half. Both halves keep references and hit count."""
        if m == len(child.hashes):
            return child
        parent = child.parent
        assert parent is not None and 0 < m < len(child.hashes)
        upper = TreeNode(child.hashes[:m], parent)
        upper.lock_ref, upper.host_ref = child.lock_ref, child.host_ref
        upper.hit_count, upper.last_access = child.hit_count, child.last_access
        if child.value is not None:
            upper.value, child.value = child.value[:m], child.value[m:]
            upper.resident_children = 1
            self.digest ^= mix(upper.key, DEVICE)
        if child.host_value is not None:
            upper.host_value, child.host_value = child.host_value[:m], child.host_value[m:]
            self.digest ^= mix(upper.key, HOST)
        child.hashes = child.hashes[m:]
        child.parent = upper
        parent.children[upper.hashes[0]] = upper
        upper.children[child.hashes[0]] = child
        return upper

    def insert(
        self, hashes: Sequence[int], pages: list[int], n: int, *, count_hits: bool
    ) -> tuple[TreeNode, list[int]]:
        """Put the first ``n`` pages of a request into the tree.

        Returns the deepest node and the path's pages. Where the tree has a page already the request's own copy is a
        duplicate and freed; an evicted node adopts the freshly computed pages.
        """
        stamp = self.tick()
        node, i = self.root, 0
        path: list[int] = []
        while i < n:
            child = self.step_down(node, hashes, i, n)
            if child is None:
                child = self.attach(node, list(hashes[i:n]), pages[i:n], None)
                child.last_access = stamp
                path += pages[i:n]
                i = n
                node = child
                if count_hits:
                    self.on_hit(child)
                break
            m = len(child.hashes)
            child.last_access = stamp
            own = pages[i : i + m]
            if child.value is None:
                self.make_resident(child, own)
            else:
                if own != child.value:
                    self.device.give_back([p for p, q in zip(own, child.value, strict=True) if p != q])
                if count_hits:
                    self.on_hit(child)
            path += child.value or ()
            i += m
            node = child
        self.offer(node)
        return node, path

    def attach(
        self, parent: TreeNode, hashes: list[int], value: list[int] | None, host_value: list[int] | None
    ) -> TreeNode:
        """A new leaf."""
        node = TreeNode(hashes, parent)
        parent.children[hashes[0]] = node
        if value is not None:
            self.make_resident(node, value)
        if host_value is not None:
            self.make_backed(node, host_value)
        return node

    def make_resident(self, node: TreeNode, pages: list[int]) -> None:
        """The node has device pages now."""
        node.value = pages
        assert node.parent is not None
        node.parent.resident_children += 1
        if node.lock_ref:
            self.protected += len(pages)
        else:
            self.evictable += len(pages)
        self.digest ^= mix(node.key, DEVICE)

    def make_backed(self, node: TreeNode, pages: list[int]) -> None:
        """The node has host pages now."""
        node.host_value = pages
        self.digest ^= mix(node.key, HOST)

    # -- references
    def inc_lock_ref(self, node: TreeNode) -> None:
        """Protect the path to the root from device eviction."""
        if self.trace:
            self.record(int(Kind.LOCK), node.key, node.lock_ref + 1)
        while node.parent is not None:
            if node.lock_ref == 0 and node.value is not None:
                self.evictable -= len(node.value)
                self.protected += len(node.value)
            node.lock_ref += 1
            node = node.parent

    def dec_lock_ref(self, node: TreeNode) -> None:
        """Undo one :meth:`inc_lock_ref` of the same node."""
        if self.trace:
            self.record(int(Kind.UNLOCK), node.key, node.lock_ref - 1)
        while node.parent is not None:
            node.lock_ref -= 1
            if node.lock_ref == 0:
                if node.value is not None:
                    self.evictable += len(node.value)
                    self.protected -= len(node.value)
                self.offer(node)
            node = node.parent

    def protect_host(self, node: TreeNode) -> None:
        """Keep the host copies of the path."""
        while node.parent is not None:
            node.host_ref += 1
            node = node.parent

    def release_host(self, node: TreeNode) -> None:
        """Undo one :meth:`protect_host` of the same node."""
        while node.parent is not None:
            node.host_ref -= 1
            if node.host_ref == 0:
                self.offer(node)
            node = node.parent

    # -- eviction
    def offer(self, node: TreeNode) -> None:
        """Put a node that may be evicted into the heap of its tier; stamps are brought up to date when it is popped."""
        if node.lock_ref:
            return
        if node.value is not None:
            if not node.resident_children and not node.in_device_heap:
                node.in_device_heap = True
                heappush(self._device_heap, (node.last_access, node.key, node))
        elif not node.host_ref and not node.children and not node.in_host_heap and node.host_value is not None:
            node.in_host_heap = True
            heappush(self._host_heap, (node.last_access, node.key, node))

    def evict(self, want: int) -> int:
        """Free at least ``want`` device pages, least recently used leaves first: the one place where a node leaves L1.

        A backed-up node is demoted, another one is lost (after ``before_drop`` had its chance: write-back).
        """
        freed = 0
        heap = self._device_heap
        while freed < want and heap:
            stamp, _, node = heappop(heap)
            node.in_device_heap = False
            if node.lock_ref or node.value is None or node.resident_children:
                continue
            if node.last_access != stamp:
                self.offer(node)
                continue
            pages = node.value
            parent = node.parent
            assert parent is not None
            self.before_drop(node)
            if node.host_value is None and node.children and not self._drop_below(node):
                continue
            freed += len(pages)
            self.evictable -= len(pages)
            self.device.give_back(pages)
            node.value = None
            parent.resident_children -= 1
            self.digest ^= mix(node.key, DEVICE)
            self.evicted_device += 1
            self.record(EVICT, node.key, DEVICE, len(pages) * self.page_size, node.last_access, self.evicted_device)
            if node.host_value is None:
                del parent.children[node.hashes[0]]
                node.parent = None
            else:
                self.offer(node)
            self.offer(parent)
        return freed

    def _drop_below(self, node: TreeNode) -> bool:
        """Free the host copies below a node that leaves without one (write-back with a full host): what hangs below a
        hole is of no use. False when something there is still referenced; nothing is freed then."""
        below = self._below(node)
        if any(n.lock_ref or n.host_ref for n in below):
            return False
        for n in reversed(below):
            self._drop_host_copy(n)
            n.parent = None
        node.children.clear()
        return True

    def _drop_host_copy(self, node: TreeNode) -> None:
        pages = node.host_value
        assert pages is not None
        self.host.give_back(pages)
        node.host_value = None
        self.digest ^= mix(node.key, HOST)
        self.evicted_host += 1
        self.record(EVICT, node.key, HOST, len(pages) * self.page_size, node.last_access, self.evicted_host)

    def evict_host(self, want: int) -> int:
        """Free at least ``want`` host pages; never the copy of a node that is still resident (#28614)."""
        freed = 0
        heap = self._host_heap
        while freed < want and heap:
            stamp, _, node = heappop(heap)
            node.in_host_heap = False
            if node.value is not None or node.lock_ref or node.host_ref or node.children or node.host_value is None:
                continue
            if node.last_access != stamp:
                self.offer(node)
                continue
            parent = node.parent
            assert parent is not None
            freed += len(node.hashes)
            self._drop_host_copy(node)
            del parent.children[node.hashes[0]]
            node.parent = None
            self.offer(parent)
        return freed

    def nodes(self) -> list[TreeNode]:
        """All nodes but the root, parents first."""
        return self._below(self.root)

    @staticmethod
    def _below(node: TreeNode) -> list[TreeNode]:
        out: list[TreeNode] = []
        todo = [node]
        while todo:
            node = todo.pop()
            children = list(node.children.values())
            out += children
            todo += children
        return out
