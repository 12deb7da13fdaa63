"""The prefill side of a disaggregated pair, as far as its consensus goes: which requests every stage admits.

A request waits in the bootstrap queue until the decode side is connected to every rank. Stages agree by one pass round
the ring, intersection of the ready and union of the failed, and apply the verdict as messages of a later step. What a
rank's own sender says is physical: an observation.
"""

from __future__ import annotations

from hicache_doctor.probes.kinds import Found, Kind, Msg
from hicache_doctor.runtime.fixes import Fix
from hicache_doctor.runtime.scheduler.schedule_batch import Req
from hicache_doctor.runtime.scheduler.state import SchedulerState
from hicache_doctor.runtime.world import Vector, mix

BOOTSTRAP, CONTROL = int(Msg.BOOTSTRAP), int(Msg.CONTROL)
CONSENSUS, QUEUES = int(Kind.CONSENSUS), int(Kind.QUEUES)
LIMIT = 8
CONS = 2 + 2 * LIMIT
FAILED, CONNECTING, READY = 0, 1, 2


class SchedulerDisaggregationPrefillMixin(SchedulerState):
    """Bootstrap queue and consensus."""

    def init_disaggregation(self) -> None:
        """Empty queues."""
        self.disaggregated = self.config.disaggregation == "prefill"
        self.bootstrapping = []
        self.consensus_works = []
        self.consensus_out = 0
        self.local_aborts = set()
        self.agreed_good = []
        self.agreed_bad = []
        self.judged = set()

    def add_to_bootstrap(self, req: Req) -> None:
        """A request starts to connect."""
        self.bootstrapping.append(req)

    def poll_sender(self, req: Req) -> int:
        """What this rank's sender says of a request: connecting for a few steps, then ready; failed when the decode
        side went away, which each rank notices for itself."""
        for fault in self.config.faults.aborts:
            if fault.rid == req.rid and fault.state == "bootstrap" and self.world.at.pp > 0 and self.step >= fault.step:
                return FAILED
        delay = 1 + mix(req.rid, 0xB007) % 4
        return READY if self.step - req.started >= delay else CONNECTING

    def process_bootstrap_queue(self) -> None:
        """One pass of the consensus: take the sets of the stage before, join them with this one's, hand them on."""
        w = self.world
        for req in self.bootstrapping:
            if not req.started:
                req.started = self.step or 1
        if self.first_stage and self.consensus_out >= self.depth:
            vec = w.recv(self.prev_rank, "cons", CONS, "consensus")
            self.consensus_out -= 1
            self._judge(*self._unpack(vec))
        states: Vector = ()
        if self.bootstrapping:
            states = tuple(
                w.observe("kv_poll", (self.poll_sender(r),), None, r.rid, self.step)[0] for r in self.bootstrapping
            )
            if w.topo.tp_size > 1:
                states = w.all_reduce("tp", "min", states, "consensus")
        good = [
            r.rid for r, s in zip(self.bootstrapping, states, strict=False) if s == READY and r.rid not in self.judged
        ]
        bad = [
            r.rid for r, s in zip(self.bootstrapping, states, strict=False) if s == FAILED and r.rid not in self.judged
        ]
        if Fix.CONSENSUS_ABORTS in self.fixes:
            bad += [rid for rid in sorted(self.local_aborts) if rid not in bad and rid not in self.judged]
        elif self.local_aborts or bad:
            # Before #32797 the poll did not see a local abort: neither ready nor failed, for ever.
            hidden = self.local_aborts | set(bad)
            good = [rid for rid in good if rid not in hidden]
            bad = []
        good = [rid for rid in good if rid not in bad][:LIMIT]
        bad = bad[:LIMIT]
        if w.topo.pp_size == 1:
            self._judge(good, bad)
            return
        if not self.first_stage:
            theirs = w.recv(self.prev_rank, "cons", CONS, "consensus")
            their_good, their_bad = self._unpack(theirs)
            good = [rid for rid in their_good if rid in good]
            bad = their_bad + [rid for rid in bad if rid not in their_bad]
            good = [rid for rid in good if rid not in bad]
        if len(self.consensus_works) >= self.depth:
            self._pp_commit_comm_work(self.consensus_works.pop(0))
        vec = (len(good), len(bad[:LIMIT]), *good, *bad[:LIMIT])
        self.consensus_works.append(w.isend(self.next_rank, "cons", vec, "consensus"))
        if self.first_stage:
            self.consensus_out += 1

    @staticmethod
    def _unpack(vec: Vector) -> tuple[list[int], list[int]]:
        n, m = vec[0], vec[1]
        return list(vec[2 : 2 + n]), list(vec[2 + n : 2 + n + m])

    def _judge(self, good: list[int], bad: list[int]) -> None:
        self.agreed_good += [rid for rid in good if rid not in self.judged]
        self.agreed_bad += [rid for rid in bad if rid not in self.judged]
        self.judged |= set(good) | set(bad)

    def verdicts_due(self) -> list[tuple[int, int]]:
        """The verdict of an earlier pass, as messages that all ranks get at the same step (first rank only).

        One pass judges twice ``LIMIT`` at most, which fits into a step's messages.
        """
        if not self.disaggregated:
            return []
        out = [(BOOTSTRAP, rid) for rid in self.agreed_good] + [(CONTROL, rid) for rid in self.agreed_bad]
        self.agreed_good, self.agreed_bad = [], []
        return out

    def apply_consensus(self, kind: int, rid: int) -> None:
        """All stages pop the same requests: verbatim since #31869; before, each looked at its own sender once more."""
        applied = self._apply(kind, rid)
        self.record(CONSENSUS, rid, int(kind == BOOTSTRAP), int(kind == CONTROL), self.messages, int(applied))

    def _apply(self, kind: int, rid: int) -> bool:
        for i, req in enumerate(self.bootstrapping):
            if req.rid != rid:
                continue
            if kind == CONTROL:
                del self.bootstrapping[i]
                self.local_aborts.discard(rid)
                self.tree_cache.release_aborted_request(rid, in_bootstrap=True)
                self._end(req, aborted=True)
                return True
            if Fix.CONSENSUS_VERBATIM not in self.fixes:
                gone = self._gone_since(rid)
                if gone:
                    return False
            del self.bootstrapping[i]
            if rid in self.local_aborts:
                # The client went away between the agreement and now, which every rank has been told.
                self.local_aborts.discard(rid)
                self.tree_cache.release_aborted_request(rid, in_bootstrap=True)
                self._end(req, aborted=True)
            else:
                self.waiting_queue.append(req)
            return True
        return False

    def _gone_since(self, rid: int) -> bool:
        """Whether this stage's sender failed between the agreement and now."""
        gone = any(f.rid == rid and f.state == "agreed" and self.world.at.pp > 0 for f in self.config.faults.aborts)
        return bool(self.world.observe("kv_poll_again", (int(gone),), None, rid, 0)[0])

    def abort_in_bootstrap(self, rid: int) -> int | None:
        """An abort of a request that still connects: every stage marks it, and the consensus takes it out. Says what it
        found, None for a request that isn't here.

        Before #27028 the first stage dropped it at once, and stages behind it never heard of it again.
        """
        for i, req in enumerate(self.bootstrapping):
            if req.rid != rid:
                continue
            if Fix.BOOTSTRAP_ABORTS not in self.fixes:
                if self.first_stage:
                    del self.bootstrapping[i]
                    self.tree_cache.release_aborted_request(rid, in_bootstrap=True)
                    self._end(req, aborted=True)
                    return int(Found.BOOTSTRAP)
                return int(Found.NOTHING)
            self.local_aborts.add(rid)
            return int(Found.BOOTSTRAP)
        return None
