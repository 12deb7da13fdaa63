"""The cache's business with L3: backups after the write to the host, and prefetches while a request waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hicache_doctor.probes.kinds import Kind, Q, Why
from hicache_doctor.runtime.cache.cache_controller import HiCacheController, PrefetchOperation
from hicache_doctor.runtime.cache.memory_pool import PagePool
from hicache_doctor.runtime.cache.radix_tree import RadixTree
from hicache_doctor.runtime.cache.stats import Stats
from hicache_doctor.runtime.cache.tree_node import Match, TreeNode
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.fixes import Fix, Fixes
from hicache_doctor.runtime.world import Queue, Vector, World

SUBMIT, SETTLE, STOP = int(Kind.SUBMIT), int(Kind.SETTLE), int(Kind.PREFETCH_STOP)
DRAIN_STORAGE = int(Kind.DRAIN_STORAGE)
PREFETCH, BACKUP = int(Q.PREFETCH), int(Q.BACKUP)


class HiCacheStorage:
    """The L3 half of :class:`~hicache_doctor.runtime.cache.hicache.HiCache`, which makes what is only declared here."""

    world: World
    record: Callable[..., None]
    config: Config
    fixes: Fixes
    page_size: int
    host: PagePool
    tree: RadixTree
    cache_controller: HiCacheController
    stats: Stats
    checks: int
    storage_vote: Callable[[Vector, str, str], Vector]
    """The first stage's word passed down (#27010); before, what the ranks of a stage agree on."""
    asks_storage: bool
    """Whether this rank's own observations enter that vote."""
    _counts: list[int]
    _next_id: int

    def init_storage(self) -> None:
        """Nothing under way."""
        self.ongoing_prefetch: dict[int, PrefetchOperation] = {}
        self.ongoing_backup: dict[int, TreeNode] = {}
        self.reads_under_way = 0
        self.hits_due = 0
        self.acks_due = 0

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

    def storage_seen(self) -> Vector:
        """Lengths of the three queues of L3 answers as this rank brings them into the vote."""
        if self.asks_storage or self.config.backup_acks == "local":
            controller = self.cache_controller
            queues = (controller.prefetch_hit_queue, controller.ack_prefetch_queue, controller.ack_backup_queue)
            return self.world.observe("storage", tuple(q.qsize() for q in queues), self.storage_bound())
        return (0, 0, 0)

    def drain_storage_queues(self, agreed: Vector, seen: Vector) -> None:
        """Take the agreed number of answers out of each queue; a follower blocks until it has that many."""
        hits, acks, backups = agreed
        if self.config.backup_acks == "local":
            # The seed's way: what is written to L3 is nobody else's business. It is: it frees host pages.
            backups = seen[2]
        if not (hits or acks or backups):
            return
        self.record(DRAIN_STORAGE, 0, self.checks, hits, acks, backups)
        controller = self.cache_controller
        for op, hit in self._drain_queue(controller.prefetch_hit_queue, hits):
            self.drain_hit(op, hit)
        for op, progress, last in self._drain_queue(controller.ack_prefetch_queue, acks):
            self.drain_ack(op, progress, last)
        for op_id, done in self._drain_queue(controller.ack_backup_queue, backups):
            self._finish_backup_ack(op_id, done)

    @staticmethod
    def _drain_queue(queue: Queue, n: int) -> list[tuple[Any, ...]]:
        return [queue.get() for _ in range(n)]

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
            self._return_pages(op)

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
            self._return_pages(op)
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
            child = self.tree.step_down(node, hashes, i, completed)
            if child is None:
                break
            m = len(child.hashes)
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

    def _return_pages(self, op: PrefetchOperation) -> None:
        self.host.give_back(op.host_pages)
        op.host_pages = []

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
            self._return_pages(op)

    def bulk_check_prefetch_progress(self, rids: list[int]) -> None:
        """One vote for the whole waiting queue and its settlements, outside the loop (#33029, open)."""
        ops = [op for rid in rids if (op := self.ongoing_prefetch.get(rid)) is not None]
        if not ops:
            return
        late: Vector = (0,) * len(ops)
        if self.asks_storage:
            late = tuple(self.observed_late(op) for op in ops)
        late = self.storage_vote(late, "max", "check_prefetch")
        for op, stop in zip(ops, late, strict=True):
            if stop or op.done:
                self._settle_agreed(op)

    def _settle_agreed(self, op: PrefetchOperation) -> None:
        if Fix.PREFETCH_VOTES not in self.fixes:
            # Up to 0.5.18: the minimum over the TP ranks of the stage, none over the stages ("896 vs 0").
            (op.completed,) = self.storage_vote((op.completed,), "min", "check_prefetch")
        self.settle(op)

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
