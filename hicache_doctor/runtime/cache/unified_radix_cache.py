"""UnifiedRadixCache: one merged vote for all queues; the LRU clock is a counter."""

from __future__ import annotations

from hicache_doctor.probes.kinds import Kind, Site
from hicache_doctor.runtime.cache.cache_controller import PrefetchOperation
from hicache_doctor.runtime.cache.hicache import HiCache
from hicache_doctor.runtime.cache.hiradix_cache import ACK_QUEUES, count_ready
from hicache_doctor.runtime.fixes import Fix
from hicache_doctor.runtime.world import Vector

DRAIN = int(Kind.DRAIN)
EVENTS = int(Site.HICACHE_EVENTS)


class UnifiedRadixCache(HiCache):
    """The tree of releases from 0.5.19 (hybrid models earlier)."""

    unified = True

    def check_hicache_events(self) -> None:
        """Consume what finished, the same number on every rank."""
        self.checks += 1
        if Fix.BOUNDED_SENDS in self.fixes:
            self._drain_async_work()
        else:
            self._reap_completed_async_work()
        self.note_held_sends()
        controller = self.cache_controller
        storage = controller.storage is not None
        mode = self.fixes.ack_counts
        if Fix.VOTE_UNIFIED not in self.fixes or mode != "pp0":
            self._writing_and_loading()
            if storage:
                self._storage_queues()
            return
        # One vector of acks and queue lengths: everyone must come here, with or without work (#27489).
        vec: Vector = (0, 0)
        if self.world.at.pp == 0:
            write, load = controller.ack_write_queue, controller.ack_load_queue
            vec = self.world.observe("acks", (count_ready(write), count_ready(load)), (len(write), len(load)))
            if write or load:
                self.record(ACK_QUEUES, 0, len(write), len(load), *vec)
        vec = self._all_reduce(vec, "min", "hicache_events")
        if vec[0] or vec[1]:
            self.record(DRAIN, 0, self.checks, vec[0], vec[1], EVENTS)
            self.writing_check(vec[0])
            self.loading_check(vec[1])
        if storage:
            self._storage_queues()

    def _writing_and_loading(self) -> None:
        """Before #27489 a rank that had nothing in flight returned here without a vote."""
        if Fix.VOTE_UNIFIED in self.fixes or self.ongoing_write_through:
            self.writing_check(None)
        if Fix.VOTE_UNIFIED in self.fixes or self.ongoing_load_back:
            self.loading_check(None)

    def _own_count(self, kind: str, ready: int, depth: int) -> int:
        """The count of a vote of its own: as the first stage says, or as this stage's ranks agree."""
        mode = self.fixes.ack_counts
        seen: Vector = (0,)
        if self.world.at.pp == 0 or mode != "pp0":
            seen = self.world.observe(kind, (ready,), (depth,))
        if mode == "pp0":
            return self._all_reduce(seen, "min", kind)[0]
        (n,) = self._all_reduce_attn_groups(seen, "min", kind) if kind == "writing_check" else seen
        if mode == "beat" and self.world.topo.pp_size > 1:
            self._pp_sync((n,))
        return n

    def writing_check(self, finish_count: int | None) -> None:
        """Finish the write-through acks; the count is agreed already, or voted on here."""
        queue = self.cache_controller.ack_write_queue
        if finish_count is None:
            finish_count = self._own_count("writing_check", count_ready(queue), len(queue))
            if finish_count:
                self.record(DRAIN, 0, self.checks, finish_count, 0, int(Site.WRITING_CHECK))
        while finish_count > 0:
            ack = queue.pop(0)
            ack.finish_event.synchronize()
            for ack_id in ack.ids:
                self._finish_write_through_ack(ack_id)
            finish_count -= 1

    def loading_check(self, finish_count: int | None) -> None:
        """Finish the load acks."""
        queue = self.cache_controller.ack_load_queue
        if finish_count is None:
            finish_count = self._own_count("loading_check", count_ready(queue), len(queue))
            if finish_count:
                self.record(DRAIN, 0, self.checks, 0, finish_count, int(Site.LOADING_CHECK))
        while finish_count > 0:
            ack = queue.pop(0)
            ack.finish_event.synchronize()
            for ack_id in ack.ids:
                self._finish_load_ack(ack_id)
            finish_count -= 1

    def _storage_queues(self) -> None:
        """An agreed number of answers out of each L3 queue."""
        seen = self.storage_seen()
        agreed = self.storage_vote(seen, "min", "drain_storage")
        self.drain_storage_queues(agreed, seen)

    # -- prefetch
    def check_prefetch_progress(self, rid: int) -> bool:
        """Whether a waiting request need not wait any more. A vote only under the policy `timeout` (#36425)."""
        op = self.ongoing_prefetch.get(rid)
        if op is None:
            return True
        if Fix.VOTE_OUTSIDE_LOOP in self.fixes:
            return False
        stop = self._can_terminate_prefetch(op)
        if stop:
            self._settle_agreed(op)
        return stop

    def _can_terminate_prefetch(self, op: PrefetchOperation) -> bool:
        if self.config.prefetch_policy != "timeout":
            return op.done or self.config.prefetch_policy == "best_effort"
        late = self.observed_late(op) if self.asks_storage else 0
        vec = self.storage_vote((late,), "max", "check_prefetch")
        return bool(vec[0]) or op.done

    # -- the stages
    def _all_reduce(self, vec: Vector, op: str, label: str) -> Vector:
        """What the first stage's ranks agree on, passed down the stages: a later stage brings nothing of its own."""
        if self.world.at.pp == 0:
            vec = self._all_reduce_attn_groups(vec, op, label)
        return self._pp_sync(vec) if self.world.topo.pp_size > 1 else vec

    def _all_reduce_attn_groups(self, vec: Vector, op: str, label: str) -> Vector:
        """Over the CP and TP ranks of one stage."""
        topo = self.world.topo
        if topo.cp_size > 1:
            vec = self.world.all_reduce("cp", op, vec, label)
        if topo.tp_size > 1:
            vec = self.world.all_reduce("tp", op, vec, label)
        return vec

    def _pp_sync(self, vec: Vector) -> Vector:
        """One link of the chain: take the vector of the stage before, hand it on. All calls share one tag, so that a
        stage that skips a call reads the next one's value."""
        w, topo = self.world, self.world.topo
        at = w.at
        self.stats.syncs += 1
        if at.pp > 0:
            vec = w.recv(topo.rank(at.pp - 1, at.tp, at.dp, at.cp), "sync", len(vec), "pp_sync")
        if at.pp < topo.pp_size - 1:
            self.work_list.append(w.isend(topo.rank(at.pp + 1, at.tp, at.dp, at.cp), "sync", vec, "pp_sync"))
        return vec

    def _drain_async_work(self) -> None:
        """Wait for the sends of the round before: nothing piles up, and a stage cannot run away (#28916)."""
        for work in self.work_list:
            work.wait()
        self.work_list.clear()

    def _reap_completed_async_work(self) -> None:
        """Before #28916: let go of what is completed. A gloo send never says so unless it is waited for (#28902)."""
        while self.work_list and self.work_list[0].is_completed():
            self.work_list.pop(0)
