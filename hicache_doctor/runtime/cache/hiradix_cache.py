"""HiRadixCache: one vote for write acks, one for load acks, one for the storage queues."""

from __future__ import annotations

from hicache_doctor.probes.kinds import Kind, Site
from hicache_doctor.runtime.cache.cache_controller import HiCacheAck, PrefetchOperation
from hicache_doctor.runtime.cache.hicache import HiCache
from hicache_doctor.runtime.fixes import Fix
from hicache_doctor.runtime.world import Vector

DRAIN = int(Kind.DRAIN)
WRITING, LOADING = int(Site.WRITING_CHECK), int(Site.LOADING_CHECK)
ACK_QUEUES = int(Kind.ACK_QUEUES)


def count_ready(queue: list[HiCacheAck]) -> int:
    """How many acks at the front of a queue are finished on this rank: physical progress, which differs."""
    n = 0
    for ack in queue:
        if not ack.finish_event.query():
            break
        n += 1
    return n


class HiRadixCache(HiCache):
    """The tree of releases up to 0.5.18; its LRU clock is the wall clock unless #22759 is on."""

    def check_hicache_events(self) -> None:
        """Consume what finished, the same number on every rank."""
        self.checks += 1
        if Fix.BOUNDED_SENDS in self.fixes:
            self._drain_async_work()
        else:
            self._reap_completed_async_work()
        self.note_held_sends()
        self.writing_check()
        self.loading_check()
        if self.cache_controller.storage is not None:
            self.drain_storage_control_queues()

    def writing_check(self) -> None:
        """Finish the write-through acks. Everyone must come here: before #26923 a rank without writes did not vote."""
        if not self.ongoing_write_through and Fix.VOTE_HIRADIX not in self.fixes:
            return
        queue = self.cache_controller.ack_write_queue
        mode = self.fixes.ack_counts
        if self.world.at.pp == 0 or mode != "pp0":
            ready = self.world.observe("write_acks", (count_ready(queue),), (len(queue),))
            if queue:
                self.record(ACK_QUEUES, 0, len(queue), len(self.cache_controller.ack_load_queue), ready[0])
        else:
            ready = (0,)
        if mode == "pp0":
            (finish_count,) = self._all_reduce(ready, "min", "writing_check")
        else:
            # Before #27285 each stage drains by its own events; `beat` passes the occasion on, not the count.
            (finish_count,) = self._all_reduce_attn_groups(ready, "min", "writing_check")
            if mode == "beat" and self.world.topo.pp_size > 1:
                self._pp_sync((finish_count,))
        if finish_count:
            self.record(DRAIN, 0, self.checks, finish_count, 0, WRITING)
        while finish_count > 0:
            ack = queue.pop(0)
            ack.finish_event.synchronize()
            for ack_id in ack.ids:
                self._finish_write_through_ack(ack_id)
            finish_count -= 1

    def loading_check(self) -> None:
        """Finish the load acks, counted and agreed like the writes."""
        if not self.ongoing_load_back and Fix.VOTE_HIRADIX not in self.fixes:
            return
        queue = self.cache_controller.ack_load_queue
        mode = self.fixes.ack_counts
        if self.world.at.pp == 0 or mode != "pp0":
            ready = self.world.observe("load_acks", (count_ready(queue),), (len(queue),))
        else:
            ready = (0,)
        if mode == "pp0":
            (finish_count,) = self._all_reduce(ready, "min", "loading_check")
        else:
            # Up to 0.5.12 not even the TP ranks agreed on loads.
            (finish_count,) = ready
            if mode == "beat" and self.world.topo.pp_size > 1:
                self._pp_sync((finish_count,))
        if finish_count:
            self.record(DRAIN, 0, self.checks, 0, finish_count, LOADING)
        while finish_count > 0:
            ack = queue.pop(0)
            ack.finish_event.synchronize()
            for ack_id in ack.ids:
                self._finish_load_ack(ack_id)
            finish_count -= 1

    def drain_storage_control_queues(self) -> None:
        """An agreed number of answers out of each L3 queue."""
        seen = self.storage_seen()
        agreed = self.storage_vote(seen, "min", "drain_storage")
        self.drain_storage_queues(agreed, seen)

    # -- prefetch
    def check_prefetch_progress(self, rid: int) -> bool:
        """Whether a waiting request need not wait any more. Without #33029 each call is a vote, in a loop whose length
        is a rank's own business (#30760)."""
        op = self.ongoing_prefetch.get(rid)
        if op is None:
            return True
        if Fix.VOTE_OUTSIDE_LOOP in self.fixes:
            return False
        stop = self.can_terminate_prefetch(op)
        if stop:
            self._settle_agreed(op)
        return stop

    def can_terminate_prefetch(self, op: PrefetchOperation) -> bool:
        """The first stage's verdict (#27010); before, each stage's own."""
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
