"""What becomes of a batch's tokens: requests go on, end, or stay in chunks."""

from __future__ import annotations

from hicache_doctor.probes.kinds import Kind
from hicache_doctor.runtime import server_log
from hicache_doctor.runtime.scheduler.schedule_batch import Req, ScheduleBatch
from hicache_doctor.runtime.scheduler.state import SchedulerState

FINISH = int(Kind.FINISH)


class SchedulerOutputProcessorMixin(SchedulerState):
    """Results."""

    def process_batch_result(self, batch: ScheduleBatch, tokens: list[int]) -> None:
        """Tokens of a batch: requests go on, end, or stay in chunks."""
        k = 0
        slot = self.slot_of_result
        for req, item in zip(batch.reqs, batch.forward.items, strict=True):
            if not item.sample:
                if req.aborted:
                    self._finish(req)
                continue
            token = tokens[k]
            k += 1
            if req.aborted:
                self._finish(req)
                continue
            req.tokens.append(token)
            req.extend_hashes()
            if req.finished:
                if batch.decode:
                    slot.running.remove(req)
                self._finish(req)
            elif not batch.decode:
                self.tree_cache.cache_unfinished_req(req, chunked=False)
                slot.running.append(req)
        if batch.decode:
            slot.running = [r for r in slot.running if not r.aborted]
        if self.world.at.tp == 0:
            self._log_batch(batch)

    def _finish(self, req: Req) -> None:
        if req.rid in self.done:
            return  # a request that was aborted between two of its chunks ends with the first of them
        self.tree_cache.cache_finished_req(req)
        self._end(req, aborted=req.aborted)

    def _end(self, req: Req, *, aborted: bool) -> None:
        req.aborted = aborted
        self.done[req.rid] = req
        self.record(FINISH, req.rid, req.output, int(aborted))

    def _log_batch(self, batch: ScheduleBatch) -> None:
        cache = self.tree_cache
        usage = 1 - (cache.device.available + cache.tree.evictable) / cache.device.size
        running = sum(len(s.running) for s in self.slots)
        if not batch.decode:
            items = batch.forward.items
            cached = sum(i.start for i in items)
            text = server_log.prefill_batch(
                seqs=len(items),
                new=batch.forward.tokens,
                cached=cached,
                usage=usage,
                running=running,
                queue=len(self.waiting_queue),
            )
            self.world.log(text)
        elif batch.ordinal % 40 == 0:
            tokens = sum(r.computed for r in batch.reqs)
            self.world.log(
                server_log.decode_batch(running=running, tokens=tokens, usage=usage, queue=len(self.waiting_queue))
            )
