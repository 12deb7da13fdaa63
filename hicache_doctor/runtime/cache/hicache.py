"""The cache of one rank over its three tiers: what both tree kinds share.

The decisions that ranks must take together (how many acks, when a prefetch ends) are in ``hiradix_cache`` and
``unified_radix_cache``, which differ as the released classes do.
"""

from __future__ import annotations

from typing import Any

from hicache_doctor.probes.kinds import Capacity, Kind, Q, Why
from hicache_doctor.runtime.cache.cache_controller import HiCacheController, PrefetchOperation
from hicache_doctor.runtime.cache.memory_pool import PagePool
from hicache_doctor.runtime.cache.radix_tree import Match, RadixTree, TreeNode
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.fixes import Fix
from hicache_doctor.runtime.model.base import Model
from hicache_doctor.runtime.world import Finish, Storage, Vector, Work, World

SUBMIT, SETTLE, STOP, START = int(Kind.SUBMIT), int(Kind.SETTLE), int(Kind.PREFETCH_STOP), int(Kind.START)
SENDS_HELD, ACK_QUEUES = int(Kind.SENDS_HELD), int(Kind.ACK_QUEUES)
WRITE, LOAD, PREFETCH, BACKUP = int(Q.WRITE), int(Q.LOAD), int(Q.PREFETCH), int(Q.BACKUP)
NO_ROOM = int(Why.NO_ROOM)


class Stats:
    """Counts for the report, in pages unless they say otherwise."""

    __slots__ = (
        "aborted",
        "backups",
        "hits_host",
        "hits_storage",
        "load_backs",
        "load_failed",
        "loaded_pages",
        "revoked",
        "settled",
        "syncs",
        "write_refused",
        "writes",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)


class HiCache:
    """Tree, pools and controller; sizes in pages. ``model`` owns the bytes."""

    unified = False

    def __init__(self, world: World, config: Config, model: Model, storage: Storage | None) -> None:
        self.world = world
        self.record = world.record
        self.config = config
        self.fixes = config.fixes
        self.page_size = config.page_size
        self.device = PagePool(config.device_pages)
        host_pages = self.host_capacity(model)
        self.host = PagePool(host_pages)
        wall = not self.unified and Fix.LOGICAL_CLOCK not in self.fixes
        self.tree = RadixTree(world, self.device, self.host, self.page_size, wall_clock=wall, debug=config.debug)
        self.tree.on_hit = self._inc_hit_count
        if config.write_policy == "write_back":
            self.tree.before_drop = self._write_before_drop
        self.cache_controller = HiCacheController(world, config, model, storage)
        self.ongoing_write_through: dict[int, tuple[TreeNode, list[int], list[int]]] = {}
        self.ongoing_load_back: dict[int, TreeNode] = {}
        self.ongoing_prefetch: dict[int, PrefetchOperation] = {}
        self.ongoing_backup: dict[int, TreeNode] = {}
        self.work_list: list[Work] = []
        self.stats = Stats()
        self.threshold = 2 if config.write_policy == "write_through_selective" else 1
        self._counts = [0, 0, 0, 0]
        self._pending_writes: list[tuple[TreeNode, list[int]]] = []
        self._refusals = {q: [f for f in config.faults.refuse if f.queue == q] for q in ("write", "load")}
        self._attempts = {"write": 0, "load": 0}
        self._next_id = 0
        self._loading: Finish | None = None
        self.reads_under_way = 0
        self.hits_due = 0
        self.acks_due = 0
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
            (agreed,) = w.all_reduce("pp", "min", (pages,), "host_capacity")
            pages = agreed
        return pages

    # -- agreement (the tree kinds implement it)
    def check_prefetch_progress(self, rid: int) -> bool:
        """Whether a waiting request need not wait for its prefetch any more; settles it then."""
        raise NotImplementedError

    def bulk_check_prefetch_progress(self, rids: list[int]) -> None:
        """The verdicts on all waiting prefetches in one vote (#33029, open)."""
        raise NotImplementedError

    def check_hicache_events(self) -> None:
        """Consume what finished: every rank the same number, on every step."""
        raise NotImplementedError

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
        if Fix.ALLOCATION not in self.fixes or not self.may_vote or self._agreed(pages is not None) or pages is None:
            return pages
        pool.give_back(pages)
        return None

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

    def _write_before_drop(self, node: TreeNode) -> bool:
        """Write-back: copy a node to the host before its device pages go, and wait for it."""
        if node.host_value is not None or (node.parent is not self.tree.root and not self._backed_parent(node)):
            return False
        host = self._reserve_host(len(node.hashes))
        if host is None:
            return False
        assert node.value is not None
        finish = self.cache_controller.write_engine.submit(self.cache_controller.model.write_back(node.value, host))
        finish.synchronize()
        self.tree.make_backed(node, host)
        if self.cache_controller.storage is not None:
            self.write_backup_storage(node, list(node.hashes), host)
        return True

    @staticmethod
    def _backed_parent(node: TreeNode) -> bool:
        return node.parent is not None and node.parent.host_value is not None

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
            self.stats.load_failed += 1
            self.world.log(
                f"load_back: FAILED to load {n * self.page_size} tokens for node {last.key & 0xFFFF} even after eviction "
                f"(evictable_size={tree.evictable * self.page_size})",
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
        self.stats.loaded_pages += n
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

    # -- L2 to L3
    def write_backup_storage(self, node: TreeNode, hashes: list[int], pages: list[int]) -> None:
        """Hand the pages that were written to the backup thread; they stay protected until its ack."""
        self.tree.protect_host(node)
        self._next_id += 1
        self.ongoing_backup[self._next_id] = node
        number = self._counts[BACKUP]
        self._counts[BACKUP] = number + 1
        self.record(SUBMIT, hashes[-1], BACKUP, len(hashes) * self.page_size, 0, number)
        self.cache_controller.backup_queue.put((self._next_id, hashes, pages))

    def _finish_backup_ack(self, op_id: int, done: int) -> None:
        node = self.ongoing_backup.pop(op_id)
        node.stored = True
        self.stats.backups += done
        self.tree.release_host(node)

    # -- L3 to L2
    def prefetch_from_storage(self, rid: int, match: Match, hashes: list[int], n: int) -> None:
        """Ask L3 for the rest of a prompt, while the request waits. Host pages are taken when the hit is known."""
        # The deepest node that matched; a refill below one that isn't backed up would leave a hole.
        anchor = match.last_host_node if match.host_pages else match.last_device_node
        start = len(match.pages) + match.host_pages
        rest = hashes[start:n]
        tokens = len(rest) * self.page_size
        number = self._counts[PREFETCH]
        self._counts[PREFETCH] = number + 1
        why = 0
        if anchor.host_value is None:
            why = int(Why.PARENT_NOT_BACKED_UP)
        elif tokens < self.config.prefetch_threshold:
            why = int(Why.BELOW_THRESHOLD)
        elif self.prefetch_rate_limited():
            why = int(Why.RATE_LIMITED)
        if why != int(Why.BELOW_THRESHOLD):
            self.record(SUBMIT, rid, PREFETCH, tokens, why, number)
        if why:
            return
        self.tree.protect_host(anchor)
        op = PrefetchOperation(rid, number, rest, anchor, self.world.now())
        op.occupied = tokens
        self.cache_controller.prefetch_tokens_occupied += tokens
        self.ongoing_prefetch[rid] = op
        self.reads_under_way += 1
        self.hits_due += 1
        self.cache_controller.prefetch_queue.put(op)

    def storage_bound(self) -> Vector:
        """How many answers of each L3 queue can still come: what a replayed count must not exceed."""
        return self.hits_due, self.acks_due, len(self.ongoing_backup)

    def prefetch_rate_limited(self) -> bool:
        """Whether speculative reads hold half of the host pool already."""
        return self.cache_controller.prefetch_tokens_occupied * 2 >= self.host.size * self.page_size

    def drain_hit(self, op: PrefetchOperation, hit: int) -> None:
        """The ranks agreed how much L3 holds: take host pages for it, a shorter prefix if need be, or revoke."""
        self.hits_due -= 1
        limit = -(-self.config.prefetch_threshold // self.page_size)
        if op.settled or op.terminated:
            hit = 0
        pages = self.host.alloc(hit) if hit >= limit else None
        if pages is None and hit >= limit:
            self.tree.evict_host(hit - self.host.available)
            hit = min(hit, self.host.available)
            pages = self.host.alloc(hit) if hit >= limit else None
        if pages is None:
            if not op.settled:
                self.stats.revoked += 1
                self.record(STOP, op.rid, int(Why.REVOKED), op.occupied)
            op.done = True
            self.reads_under_way -= 1
            self._release_prefetch(op)
            return
        op.hit = hit
        op.host_pages = pages
        self.acks_due += -(-hit // self.config.io_batch) + 1
        self.cache_controller.prefetch_buffer.put((op, hit, pages))

    def drain_ack(self, op: PrefetchOperation, agreed: int, last: bool) -> None:
        """Agreed progress; after the last ack nobody writes into the pages any more."""
        self.acks_due -= 1
        if not last:
            if not op.settled:
                op.completed = agreed
            return
        op.done = True
        self.reads_under_way -= 1
        if op.settled:
            self.host.give_back(op.host_pages)
            op.host_pages = []

    def settle(self, op: PrefetchOperation) -> None:
        """Attach what arrived on all ranks below the anchor as a host hit; return the rest."""
        del self.ongoing_prefetch[op.rid]
        completed = min(op.completed, op.hit)
        matched = loaded = 0
        if op.anchor is not None and op.hit:
            matched, loaded = self._attach_fetched(op, completed)
        op.settled = True
        op.terminated = not op.done
        self._release_prefetch(op)
        if op.done:
            self.host.give_back(op.host_pages)
            op.host_pages = []
        size = self.page_size
        why = int(Why.COMPLETED) if completed == op.hit else int(Why.TIMED_OUT)
        self.record(SETTLE, op.rid, completed * size, matched * size, loaded * size, why)
        if op.hit:
            self.stats.settled += 1
            self.stats.hits_storage += loaded

    def _attach_fetched(self, op: PrefetchOperation, completed: int) -> tuple[int, int]:
        """Pages (already there, newly attached). ``op.host_pages`` keeps what is left over."""
        node, i = op.anchor, 0
        hashes, pages = op.hashes, op.host_pages
        stamp = self.tree.tick()
        left: list[int] = []
        matched = 0
        while i < completed:
            child = node.children.get(hashes[i])
            if child is None:
                break
            m = len(child.hashes)
            if i + m > completed or hashes[i + m - 1] != child.key:
                m = self.tree._common(child, hashes, i, completed)
                child = self.tree.split(child, m)
            if child.host_value is None:
                # Resident but not backed up: what was fetched becomes its host copy.
                self.tree.make_backed(child, pages[i : i + m])
            else:
                left += pages[i : i + m]
                matched += m
            child.last_access = stamp
            i += m
            node = child
        if i < completed:
            node = self.tree.attach(node, hashes[i:completed], None, pages[i:completed])
            node.last_access = stamp
        self.tree.offer(node)
        op.host_pages = left + pages[completed:]
        if op.host_pages and not op.done:
            # The reader may still write behind `completed`; duplicates in front of it can go at once.
            self.host.give_back(left)
            op.host_pages = pages[completed:]
        return matched, completed - matched

    def _release_prefetch(self, op: PrefetchOperation) -> None:
        """Give back the reservation and the anchor, once."""
        if op.anchor is None:
            return
        self.cache_controller.prefetch_tokens_occupied -= op.occupied
        op.occupied = 0
        self.tree.release_host(op.anchor)
        op.anchor = None

    def release_aborted_request(self, rid: int, *, in_bootstrap: bool = False) -> None:
        """A waiting request went away. Its reader goes on to its full number of acks; nothing becomes visible.

        No collective here: an abort that votes waits for ranks that never abort (≤ 0.5.18). Before #30053 an abort in
        the bootstrap queue kept the reservation.
        """
        op = self.ongoing_prefetch.get(rid)
        if op is None:
            return
        if in_bootstrap and Fix.ABORT_LEAK not in self.fixes:
            return
        del self.ongoing_prefetch[rid]
        op.terminated = True
        op.settled = True
        self.stats.aborted += 1
        self.record(STOP, rid, int(Why.ABORTED), op.occupied)
        self._release_prefetch(op)
        if op.done:
            self.host.give_back(op.host_pages)
            op.host_pages = []

    def observed_late(self, op: PrefetchOperation) -> int:
        """:meth:`prefetch_late` through the door for observations, by request: another run may ask about others too."""
        return self.world.observe("late", (self.prefetch_late(op),), None, op.rid, self.world.step)[0]

    def prefetch_late(self, op: PrefetchOperation) -> int:
        """Whether the policy ends a prefetch now, by this rank's clock: 1 or 0."""
        config = self.config
        if config.prefetch_policy == "best_effort":
            return 1
        if config.prefetch_policy == "wait_complete":
            return 0
        tokens = len(op.hashes) * self.page_size
        limit = config.prefetch_timeout_base + config.prefetch_timeout_per_ki_token * tokens // 1024
        return int(self.world.now() - op.started > min(limit, config.prefetch_timeout_max))

    # -- requests
    def cache_unfinished_req(self, req: Any, *, chunked: bool) -> None:
        """Put the computed full pages of a request into the tree and hand its lock over to the deeper node."""
        n = req.computed // self.page_size
        tree = self.tree
        node, path = tree.insert(req.hashes, req.pages, n, count_hits=not chunked)
        req.pages[:n] = path
        req.cached_pages = n
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
