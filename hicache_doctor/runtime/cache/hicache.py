"""The cache of one rank over its three tiers: what both tree kinds share.

The decisions that ranks must take together (how many acks, when a prefetch ends) are in ``hiradix_cache`` and
``unified_radix_cache``, which differ as the released classes do. What stands on a stack of a hang or a crash stands in
both, even where it is the same: there the file and the class must be the released ones.
"""

from __future__ import annotations

from typing import Any

from hicache_doctor.probes.kinds import Capacity, Kind, Q, Tier, Why
from hicache_doctor.runtime.cache.cache_controller import HiCacheController
from hicache_doctor.runtime.cache.hicache_storage import HiCacheStorage
from hicache_doctor.runtime.cache.memory_pool import PagePool, pool
from hicache_doctor.runtime.cache.radix_tree import RadixTree
from hicache_doctor.runtime.cache.stats import Stats
from hicache_doctor.runtime.cache.tree_node import Match, TreeNode
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.fixes import Fix
from hicache_doctor.runtime.model.base import Model
from hicache_doctor.runtime.world import Finish, Storage, Vector, Work, World

SUBMIT, START = int(Kind.SUBMIT), int(Kind.START)
WRITE, LOAD = int(Q.WRITE), int(Q.LOAD)
NO_ROOM = int(Why.NO_ROOM)
SENDS_HELD = int(Kind.SENDS_HELD)
HELD_EVERY = 8


class HiCache(HiCacheStorage):
    """Tree, pools and controller; sizes in pages. ``model`` owns the bytes."""

    unified = False

    def __init__(self, world: World, config: Config, model: Model, storage: Storage | None) -> None:
        self.world = world
        self.record = world.record
        self.config = config
        self.fixes = config.fixes
        self.page_size = config.page_size
        self.device = pool(config.device_pages, world, Tier.DEVICE, trace=config.trace)
        host_pages = self.host_capacity(model)
        self.host = pool(host_pages, world, Tier.HOST, trace=config.trace)
        wall = not self.unified and Fix.LOGICAL_CLOCK not in self.fixes
        self.tree = RadixTree(world, self.device, self.host, self.page_size, wall_clock=wall, trace=config.trace)
        self.tree.on_hit = self._inc_hit_count
        if config.write_policy == "write_back":
            self.tree.before_drop = self._write_before_drop
        self.cache_controller = HiCacheController(world, config, model, storage)
        self.ongoing_write_through: dict[int, tuple[TreeNode, list[int], list[int]]] = {}
        self.ongoing_load_back: dict[int, TreeNode] = {}
        self.work_list: list[Work] = []
        self.stats = Stats()
        self.init_storage()
        leads = Fix.PREFETCH_VOTES in self.fixes
        self.storage_vote = self._all_reduce if leads else self._all_reduce_attn_groups
        self.asks_storage = world.at.pp == 0 or not leads
        self.threshold = 2 if config.write_policy == "write_through_selective" else 1
        self._counts = [0, 0, 0, 0]
        self._refusals = {q: [f for f in config.faults.refuse if f.queue == q] for q in ("write", "load")}
        self._attempts = {"write": 0, "load": 0}
        self._next_id = 0
        self._loading: Finish | None = None
        self.may_vote = True
        self.checks = 0
        self.batches = 0
        world.record(START, int(Capacity.DEVICE_TOKENS), config.device_pages * self.page_size)
        world.record(START, int(Capacity.HOST_TOKENS), host_pages * self.page_size)
        world.record(START, int(Capacity.PAGE_SIZE), self.page_size)

    # -- capacity
    def host_capacity(self, model: Model) -> int:
        """Host pages. A size in bytes divides by the bytes of this stage's layers, so that stages differ unless they
        take the minimum (#29258)."""
        config, w = self.config, self.world
        if not config.host_bytes:
            return config.host_pages
        pages = config.host_bytes // model.page_bytes()
        if Fix.HOST_CAPACITY in self.fixes and w.topo.pp_size > 1:
            (pages,) = w.all_reduce("pp", "min", (pages,), "host_capacity")
        return pages

    # -- agreement (the tree kinds implement it)
    def check_prefetch_progress(self, rid: int) -> bool:
        """Whether a waiting request need not wait for its prefetch any more; settles it then."""
        raise NotImplementedError

    def check_hicache_events(self) -> None:
        """Consume what finished: every rank the same number, on every step."""
        raise NotImplementedError

    def _all_reduce(self, vec: Vector, op: str, label: str) -> Vector:
        """What the first stage's ranks agree on, passed down the stages."""
        raise NotImplementedError

    def _all_reduce_attn_groups(self, vec: Vector, op: str, label: str) -> Vector:
        """What the ranks of one stage agree on."""
        raise NotImplementedError

    def note_held_sends(self) -> None:
        """Every few checks: the sends of the count that nobody has waited for."""
        if self.checks % HELD_EVERY == 0 and self.world.topo.pp_size > 1:
            self.record(SENDS_HELD, 0, len(self.work_list), self.stats.syncs, self.batches)

    # -- L1 to L2
    def _inc_hit_count(self, node: TreeNode) -> None:
        """Counts a hit; a hot node is written through. Write-back never counts."""
        if self.config.write_policy == "write_back":
            return
        node.hit_count += 1
        if node.host_value is None and node.hit_count >= self.threshold:
            self.write_backup(node)

    def write_backup(self, node: TreeNode) -> int:
        """Copy a node to the host: pages written, 0 when its parent isn't backed up (no holes) or there is no room.

        The node counts as backed up from here on, long before the copy is done. A refusal for lack of room is a
        decision of this rank alone, unless the ranks agree on it (#31425, open).
        """
        parent = node.parent
        if parent is not None and parent.parent is not None and parent.host_value is None:
            return 0
        n = len(node.hashes)
        host = self._reserve_host(n)
        number = self._counts[WRITE]
        self._counts[WRITE] = number + 1
        self.record(SUBMIT, node.key, WRITE, n * self.page_size, 0 if host is not None else NO_ROOM, number)
        if host is None:
            self.stats.write_refused += 1
            return 0
        self.tree.make_backed(node, host)
        self.tree.inc_lock_ref(node)
        self._next_id += 1
        self.ongoing_write_through[self._next_id] = (node, list(node.hashes), host)
        assert node.value is not None
        self.cache_controller.start_writing([(self._next_id, node.value, host)])
        self.stats.writes += n
        return n

    def _reserve_host(self, n: int) -> list[int] | None:
        """Host pages, after evicting once; None when there are none, a fault takes them away, or another rank has none
        (#31425)."""
        nth = self._attempts["write"]
        self._attempts["write"] = nth + 1
        if n > self.host.available:
            self.tree.evict_host(n - self.host.available)
        return self._commit(self.host, None if self._refused("write", nth) else self.host.alloc(n))

    def _commit(self, pool: PagePool, pages: list[int] | None) -> list[int] | None:
        """Reserve, take the minimum over all ranks, commit or give back: an operation exists everywhere or nowhere."""
        if Fix.ALLOCATION not in self.fixes or not self.may_vote:
            return pages
        everywhere = self._agreed(pages is not None)
        if pages is not None and not everywhere:
            pool.give_back(pages)
            return None
        return pages

    def _refused(self, queue: str, nth: int) -> bool:
        at = self.world.at
        return any(
            f.pp == at.pp and f.tp in (-1, at.tp) and f.nth <= nth < f.nth + f.count for f in self._refusals[queue]
        )

    def _agreed(self, mine: bool) -> bool:
        vec: Vector = (int(mine),)
        topo = self.world.topo
        if topo.tp_size > 1:
            vec = self.world.all_reduce("tp", "min", vec, "allocation")
        if topo.pp_size > 1:
            vec = self.world.all_reduce("pp", "min", vec, "allocation")
        return bool(vec[0])

    def _finish_write_through_ack(self, ack_id: int) -> None:
        node, hashes, pages = self.ongoing_write_through.pop(ack_id)
        self.tree.dec_lock_ref(node)
        if self.cache_controller.storage is not None:
            self.write_backup_storage(node, hashes, pages)

    def _write_before_drop(self, node: TreeNode) -> None:
        """Write-back: copy a node to the host before its device pages go, and wait for it. Leaves go first, so its
        parent need not be backed up yet: it will be when its own turn comes, or take what is below it with it."""
        if node.host_value is not None:
            return
        host = self._reserve_host(len(node.hashes))
        if host is None:
            return
        assert node.value is not None
        finish = self.cache_controller.write_engine.submit(self.cache_controller.model.write_back(node.value, host))
        finish.synchronize()
        self.tree.make_backed(node, host)
        if self.cache_controller.storage is not None:
            self.write_backup_storage(node, list(node.hashes), host)

    # -- L2 to L1
    def init_load_back(self, match: Match) -> list[int]:
        """Bring the host part of a match back to the device: its new pages, or none (then they are recomputed).

        All or nothing: not below the threshold, not above the quota, one eviction and one retry for room.
        """
        node = match.last_host_node
        evicted: list[TreeNode] = []
        while node.value is None:
            evicted.append(node)
            assert node.parent is not None
            node = node.parent
        evicted.reverse()
        ancestor, last = node, match.last_host_node
        n = sum(len(e.hashes) for e in evicted)
        config = self.config
        if not n or n * self.page_size < config.load_back_threshold:
            return []
        quota = config.load_back_quota
        if quota and n * self.page_size > quota:
            return []
        tree = self.tree
        tree.inc_lock_ref(ancestor)
        # Making room on the device may make room on the host too: the source must outlive the eviction.
        tree.protect_host(last)
        nth = self._attempts["load"]
        self._attempts["load"] = nth + 1
        if n > self.device.available:
            tree.evict(n - self.device.available)
        pages = self._commit(self.device, None if self._refused("load", nth) else self.device.alloc(n))
        number = self._counts[LOAD]
        self._counts[LOAD] = number + 1
        self.record(SUBMIT, last.key, LOAD, n * self.page_size, 0 if pages is not None else NO_ROOM, number)
        if pages is None:
            tree.release_host(last)
            tree.dec_lock_ref(ancestor)
            self.world.log(
                f"load_back: FAILED to load {n * self.page_size} tokens for node {last.key & 0xFFFF} even after "
                f"eviction (evictable_size={tree.evictable * self.page_size})",
                "WARNING",
            )
            return []
        host: list[int] = []
        i = 0
        for e in evicted:
            m = len(e.hashes)
            assert e.host_value is not None
            host += e.host_value
            tree.make_resident(e, pages[i : i + m])
            i += m
        tree.dec_lock_ref(ancestor)
        tree.inc_lock_ref(last)
        self._next_id += 1
        self.ongoing_load_back[self._next_id] = last
        self.cache_controller.load(self._next_id, host, pages)
        self.stats.load_backs += 1
        return pages

    def ready_to_load_host_cache(self) -> None:
        """Submit the loads of this batch as one copy."""
        finish = self.cache_controller.start_loading()
        if finish is not None:
            self._loading = finish

    def wait_layer(self, layer: int) -> None:
        """The forward of a layer waits for that layer of the load that is under way, and for no other."""
        if self._loading is not None:
            self._loading.wait_layer(layer)

    def _finish_load_ack(self, op_id: int) -> None:
        last = self.ongoing_load_back.pop(op_id)
        self.tree.release_host(last)
        self.tree.dec_lock_ref(last)

    # -- requests
    def cache_unfinished_req(self, req: Any, *, chunked: bool) -> None:
        """Put the computed full pages of a request into the tree and hand its lock over to the deeper node."""
        n = req.computed // self.page_size
        tree = self.tree
        node, path = tree.insert(req.hashes, req.pages, n, count_hits=not chunked)
        req.pages[:n] = path
        tree.inc_lock_ref(node)
        tree.dec_lock_ref(req.last_node)
        req.last_node = node

    def cache_finished_req(self, req: Any) -> None:
        """Put a request's pages into the tree, free the tail and let go of its path."""
        n = req.computed // self.page_size
        tree = self.tree
        _, path = tree.insert(req.hashes, req.pages, n, count_hits=True)
        self.device.give_back(req.pages[n:])
        req.pages = path
        tree.dec_lock_ref(req.last_node)
        req.last_node = tree.root

    def idle(self) -> bool:
        """Nothing under way in any tier (a read that was settled early still is, until its last ack)."""
        return not (
            self.ongoing_write_through or self.ongoing_load_back or self.ongoing_prefetch or self.ongoing_backup
        ) and (not self.reads_under_way)

    def close(self) -> None:
        """End the background threads and wait for the last sends."""
        for work in self.work_list:
            work.wait()
        self.work_list = []
        self.cache_controller.close()
