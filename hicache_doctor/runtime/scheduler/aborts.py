"""Requests that end before their time: the client is gone, or they waited or ran for too long."""

from __future__ import annotations

from hicache_doctor.probes.kinds import Found, Msg
from hicache_doctor.runtime.fixes import Fix
from hicache_doctor.runtime.scheduler.schedule_batch import Req
from hicache_doctor.runtime.scheduler.state import SchedulerState

TIMEOUT, NOTHING = int(Msg.TIMEOUT), int(Found.NOTHING)


class SchedulerAbortMixin(SchedulerState):
    """Aborts and time-outs."""

    def abort_request(self, rid: int) -> int:
        """The client is gone. A waiting request leaves at once, a running one when its batch comes round. Says where
        the request was found."""
        for i, req in enumerate(self.waiting_queue):
            if req.rid == rid:
                del self.waiting_queue[i]
                self.tree_cache.release_aborted_request(rid)
                self._end(req, aborted=True)
                return int(Found.WAITING)
        found_early = self.abort_in_bootstrap(rid)
        if found_early is not None:
            return found_early
        if self.chunked_req is not None and self.chunked_req.rid == rid:
            # Not taken apart here: executed where every rank passes, at the start of the next step.
            self.pending_chunked_abort = True
            return int(Found.CHUNKED)
        slots = self.slots
        found: list[Req] = []
        if Fix.ABORT_SLOTS not in self.fixes:
            # Before #29405 only the current slot and the batch in hand were looked at; the last stage, whose results
            # are there at once, has none in hand.
            slots = [self.slot]
            if self.cur_batch is not None and not self.model.last:
                found = [r for r in self.cur_batch.reqs if r.rid == rid]
        for slot in slots:
            found += [r for r in slot.running if r.rid == rid]
            if slot.batch is not None:
                found += [r for r in slot.batch.reqs if r.rid == rid]
        for req in found:
            req.aborted = True
        return int(Found.RUNNING) if found else NOTHING

    def check_timeouts(self) -> None:
        """Before #37143 every rank asks its own clock; since then the first rank's verdict comes as a message."""
        config = self.config
        if Fix.TIMEOUTS in self.fixes or not (config.waiting_timeout or config.running_timeout):
            return
        for rid in self.late_requests():
            self._took_effect(TIMEOUT, rid, self.abort_request(rid))

    def late_requests(self) -> list[int]:
        """Requests that waited or ran for too long, by this rank's clock."""
        now, config = self.world.now(), self.config
        asked: list[tuple[int, bool]] = []
        if config.waiting_timeout:
            asked = [(r.rid, now - r.arrived > config.waiting_timeout) for r in self.waiting_queue]
        if config.running_timeout:
            for slot in self.slots:
                asked += [(r.rid, now - r.started > config.running_timeout) for r in slot.running if not r.aborted]
        observe = self.world.observe
        return [rid for rid, late in asked if observe("timed_out", (int(late),), None, rid, self.step)[0]]

    def _abort_chunked(self) -> None:
        req = self.chunked_req
        if req is None:
            return
        self.chunked_req = None
        req.aborted = True
        if not any(s.batch is not None and req in s.batch.reqs for s in self.slots):
            self._finish(req)

    def _drop_aborted(self) -> None:
        running = self.slot.running
        for req in running:
            if req.aborted:
                self._finish(req)
        if any(r.aborted for r in running):
            self.slot.running = [r for r in running if not r.aborted]
