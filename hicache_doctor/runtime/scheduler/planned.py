"""Batches by plan: what the first stage sends, and how a follower builds its batch from it."""

from __future__ import annotations

from hicache_doctor.probes.kinds import Kind
from hicache_doctor.runtime.pipeline.plan import Entry, Plan, PlanError, decode, longest
from hicache_doctor.runtime.scheduler.arrivals import MAX_MESSAGES
from hicache_doctor.runtime.scheduler.schedule_batch import Req, ScheduleBatch
from hicache_doctor.runtime.scheduler.state import SchedulerState

PLANNED = int(Kind.PLAN)


class SchedulerPlanMixin(SchedulerState):
    """The two sides of a plan."""

    def init_plan(self) -> None:
        """Nothing dropped, nothing sent."""
        self.planned = self.config.scheduler == "planned" and self.world.topo.pp_size > 1
        self.intents = []
        self.asked = False
        self.refused = (-1, 0)
        self.given_up = []
        self.plan_work = None

    def send_plan(self, batch: ScheduleBatch | None) -> None:
        """Tell the other stages what this step does (first stage)."""
        entries: tuple[Entry, ...] = ()
        if batch is not None:
            entries = tuple(Entry(r.rid, r.prefix, r.extend) for r in batch.reqs)
        chunked = batch.chunked.rid if batch is not None and batch.chunked is not None else -1
        decoding = batch is not None and batch.decode
        gone, given_up = tuple(self.intents), tuple(self.given_up)
        plan = Plan(entries, decoding, chunked, self.asked, self.refused, gone, given_up)
        self.intents = []
        self._hand_on(plan)

    def _hand_on(self, plan: Plan) -> None:
        if self.last_stage:
            return
        if self.plan_work is not None:
            self._pp_commit_comm_work(self.plan_work)
        self.plan_work = self.world.isend(self.next_rank, "plan", plan.encode(), "plan")

    def recv_plan(self) -> Plan:
        """Take the plan of the stage before and hand it on (later stages)."""
        most = longest(self.config.max_running, MAX_MESSAGES)
        plan = decode(self.world.recv(self.prev_rank, "plan", most, "plan"))
        self._hand_on(plan)
        return plan

    def build_batch_from_plan(self, plan: Plan) -> ScheduleBatch | None:
        """This stage's batch, with the plan's requests and lengths.

        Raises:
            PlanError: the tree or the queues of this stage cannot honour it; the message names request, node, lengths.
        """
        if plan.settle:
            self.tree_cache.bulk_check_prefetch_progress([r.rid for r in self.waiting_queue])
        chunked: Req | None = None
        picked: list[Req] = []
        entries = () if plan.decode else plan.entries
        for i, entry in enumerate(entries):
            self.record(PLANNED, entry.rid, self.forwards, i, entry.prefix, entry.extend)
            req = self._planned_prefill(entry)
            picked.append(req)
            if plan.chunked == entry.rid:
                chunked = req
        self._try_refused(*plan.refused)
        if plan.decode or plan.retracted:
            for i, entry in enumerate(plan.entries):
                self.record(PLANNED, entry.rid, self.forwards, i, entry.prefix, entry.extend)
                picked.append(self._planned_decode(entry))
            self._retract([r for r in self.slot.running if r.rid in plan.retracted])
            self.slot.running = list(picked)
        elif picked:
            self.chunked_req = chunked
        self.tree_cache.ready_to_load_host_cache()
        return self._batch(picked, decode=plan.decode, chunked=chunked) if picked else None

    def _try_refused(self, rid: int, tokens: int) -> None:
        """The leader tried one request in vain. Trying changes the tree (splits, stamps, evictions), so all do."""
        if rid < 0:
            return
        if self.chunked_req is not None and self.chunked_req.rid == rid:
            fits = self._extend(self.chunked_req, self.chunked_req.computed, tokens)
        else:
            fits = any(r.rid == rid and self._admit(r, tokens) for r in self.waiting_queue)
        if fits:
            raise PlanError(f"plan has no room for request {rid} ({tokens} tokens), this stage has")

    def _planned_decode(self, entry: Entry) -> Req:
        for req in self.slot.running:
            if req.rid == entry.rid:
                break
        else:
            raise PlanError(f"plan decodes request {entry.rid}, which this stage is not running")
        if req.computed != entry.prefix:
            raise PlanError(
                f"plan decodes request {entry.rid} at {entry.prefix} tokens, this stage holds {req.computed}"
            )
        if not self._extend_by_one(req):
            raise PlanError(f"plan decodes request {entry.rid}, and this stage has no page left for it")
        return req

    def _planned_prefill(self, entry: Entry) -> Req:
        size = self.page_size
        if self.chunked_req is not None and self.chunked_req.rid == entry.rid:
            req = self.chunked_req
            if req.computed != entry.prefix:
                raise PlanError(
                    f"plan goes on with request {entry.rid} at {entry.prefix} tokens, this stage holds {req.computed}"
                )
        else:
            found = [r for r in self.waiting_queue if r.rid == entry.rid]
            if not found:
                raise PlanError(f"plan starts request {entry.rid}, which is not waiting on this stage")
            req = found[0]
            # Admitted as the leader did it, lookup and load back included, for these change the tree.
            if not self._admit(req, entry.extend):
                raise PlanError(
                    f"plan computes {entry.extend} tokens of request {entry.rid}, this stage has room for "
                    f"{self.tree_cache.device.available * self.page_size}"
                )
            if (req.prefix, req.extend) != (entry.prefix, entry.extend):
                raise PlanError(
                    f"plan gives request {entry.rid} a prefix of {entry.prefix} and {entry.extend} new tokens, node "
                    f"{req.last_node.key:x} of this stage ends at {req.prefix} and leaves {req.extend}"
                )
            self.waiting_queue.remove(req)
            return req
        if not self._extend(req, entry.prefix, entry.extend) or req.extend != entry.extend:
            raise PlanError(
                f"plan computes {entry.extend} tokens of request {entry.rid}, this stage has room for "
                f"{self.tree_cache.device.available * size}"
            )
        return req
