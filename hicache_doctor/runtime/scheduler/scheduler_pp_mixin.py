"""The pipeline's loop: messages, proxy tensors and outputs between the stages, microbatches in flight.

A step belongs to one microbatch position. The stage takes the messages of the stage before and hands them on, forms and
launches its batch, then takes the result of the position that comes next. Sends are asynchronous; a handle is waited
for before the next send of its kind.
"""

from __future__ import annotations

from hicache_doctor.probes.kinds import Kind, Msg
from hicache_doctor.runtime.fixes import Fix
from hicache_doctor.runtime.model.base import ForwardBatch
from hicache_doctor.runtime.scheduler.arrivals import MAX_MESSAGES, MESSAGE
from hicache_doctor.runtime.scheduler.disagg_prefill import CONS
from hicache_doctor.runtime.scheduler.dispatch_arrivals import DirectMessages
from hicache_doctor.runtime.scheduler.schedule_batch import ScheduleBatch
from hicache_doctor.runtime.scheduler.state import SchedulerState
from hicache_doctor.runtime.world import Proxy, Vector, Work

STEP, FORWARD, PROXY, IDLE = int(Kind.STEP), int(Kind.FORWARD), int(Kind.PROXY), int(Kind.IDLE_BATCH)
STOP, TIMEOUT = int(Msg.STOP), int(Msg.TIMEOUT)
IDLE_NS = 1_000_000


class SchedulerPPMixin(SchedulerState):
    """What a scheduler does between stages."""

    def init_pp(self) -> None:
        """Neighbours and handles."""
        w = self.world
        topo, at = w.topo, w.at
        self.step = 0
        self.prev_rank = topo.rank((at.pp - 1) % topo.pp_size, at.tp, at.dp, at.cp)
        self.next_rank = topo.rank((at.pp + 1) % topo.pp_size, at.tp, at.dp, at.cp)
        self.first_stage, self.last_stage = at.pp == 0, at.pp == topo.pp_size - 1
        self.send_req_work = None
        self.send_proxy_work = None
        self.send_output_works = []
        self.slot_of_result = self.slots[0]
        self.shared_mlp = self.config.dp_attention and topo.dp_size > 1
        self.mlp_tokens = 0
        self.all_quiet = False
        self.idle_steps = 0
        strays = w.line is not None and (at.tp > 0 or at.cp > 0)
        self.direct = DirectMessages(w, w.line) if strays and w.line is not None else None

    def event_loop_pp(self) -> None:
        """Steps until the first rank says stop."""
        while self._pp_step():
            pass
        self._pp_end()

    def event_loop_pp_disagg_prefill(self) -> None:
        """The same on the prefill side of a disaggregated pair."""
        while self._pp_step():
            pass
        self._pp_end()

    def _pp_step(self) -> bool:
        """One step; False at the end."""
        w, depth = self.world, self.depth
        w.tick(self.step)
        self.slot = self.slots[self.step % depth]
        messages = self.recv_requests()
        if messages and messages[0][0] == STOP:
            return False
        self.process_input_requests(messages)
        if self.disaggregated:
            self.process_bootstrap_queue()
        self.check_timeouts()
        batch = self.get_next_batch_to_run()
        if self.shared_mlp:
            self._mlp_sync(batch)
        self.slot.batch = batch
        self.cur_batch = batch
        if batch is not None:
            self._pp_launch_batch(batch)
        elif self.mlp_tokens:
            self._idle_batch()
        result = self.slots[(self.step + 1) % depth]
        if result.batch is not None:
            self._pp_process_batch_result(result.batch)
            result.batch = None
        elif batch is None and self.first_stage:
            w.sleep(IDLE_NS)
        self.step += 1
        return True

    def _pp_end(self) -> None:
        self._pp_take_results_under_way()
        while self.consensus_out:
            self.world.recv(self.prev_rank, "cons", CONS, "consensus")
            self.consensus_out -= 1
        for work in (self.send_req_work, self.send_proxy_work, *self.send_output_works, *self.consensus_works):
            if work is not None:
                work.wait()

    def _pp_take_results_under_way(self) -> None:
        """When the budget of steps ends a run that is busy, senders still wait for somebody to take their results."""
        stopped = self.step
        for step in range(stopped, stopped + self.depth):
            self.step = step
            result = self.slots[(step + 1) % self.depth]
            if result.batch is not None:
                self._pp_process_batch_result(result.batch)
                result.batch = None
        self.step = stopped

    # -- messages
    def recv_requests(self) -> list[tuple[int, int]]:
        """This step's messages: pulled in by the first rank, handed down the stages, spread over a stage's ranks."""
        w = self.world
        at, topo = w.at, w.topo
        vec: Vector = ()
        if at.tp == 0 and at.cp == 0:
            if self.first_stage:
                vec = self._pull()
            else:
                vec = self._pp_recv_pyobj_from_prev_stage()
        if topo.cp_size > 1 and at.tp == 0:
            vec = self.broadcast_pyobj("cp", vec)
        if topo.tp_size > 1:
            vec = self.broadcast_pyobj("tp", vec)
        if at.tp == 0 and at.cp == 0 and not self.last_stage:
            if self.send_req_work is not None:
                self._pp_commit_comm_work(self.send_req_work)
            self.send_req_work = w.isend(self.next_rank, "req", vec[: 1 + 2 * vec[0]], "recv_requests")
        messages = [(vec[1 + 2 * i], vec[2 + 2 * i]) for i in range(vec[0])]
        return messages if self.direct is None else messages + self.direct.poll()

    def _pull(self) -> Vector:
        """New messages of the outside, on the first rank only."""
        messages: list[tuple[int, int]] = []
        if self.step >= self.config.steps or self._may_stop():
            messages.append((STOP, 0))
        else:
            messages += self.verdicts_due()
            if Fix.TIMEOUTS in self.fixes and (self.config.waiting_timeout or self.config.running_timeout):
                few = min(4, MAX_MESSAGES - len(messages))
                messages += [(TIMEOUT, rid) for rid in self.late_requests()[:few]]
            room = MAX_MESSAGES - len(messages)
            states = self.states() if self.config.faults.aborts else {}
            messages += self.arrivals.poll(self.step, self.done, states, room)
        flat = [len(messages)]
        for kind, rid in messages:
            flat += (kind, rid)
        return tuple(flat)

    def _may_stop(self) -> bool:
        """Whether this replica has come to rest; under DP attention no group stops before all have said so together."""
        return self.all_quiet if self.shared_mlp else self._quiet()

    def _quiet(self) -> bool:
        """Everything has come, has ended and has settled in all tiers. Asked once a step."""
        if not self.arrivals.exhausted or self.busy:
            self.idle_steps = 0
            return False
        self.idle_steps += 1
        return self.idle_steps > self.config.workload.idle_tail + self.depth and self.tree_cache.idle()

    def states(self) -> dict[int, str]:
        """What the requests are doing, for aborts that wait for a state."""
        out: dict[int, str] = {}
        for req in self.waiting_queue:
            out[req.rid] = "prefetching" if req.rid in self.tree_cache.ongoing_prefetch else "waiting"
        for slot in self.slots:
            for req in slot.running:
                out[req.rid] = "running"
        if self.chunked_req is not None:
            out[self.chunked_req.rid] = "chunked"
        for req in self.bootstrapping:
            out[req.rid] = "bootstrapping"
        return out

    def broadcast_pyobj(self, group: str, vec: Vector) -> Vector:
        """The first rank's messages for all ranks of a stage."""
        full = vec + (0,) * (MESSAGE - len(vec))
        return self.world.broadcast(group, full, "recv_requests")

    def _pp_recv_pyobj_from_prev_stage(self) -> Vector:
        return self.world.recv(self.prev_rank, "req", MESSAGE, "recv_requests")

    def _pp_commit_comm_work(self, work: Work) -> None:
        """Wait for a send of an earlier step."""
        work.wait()

    # -- the batch
    def _pp_launch_batch(self, batch: ScheduleBatch) -> None:
        """Receive what the stage before computed, compute, hand on."""
        proxy: Proxy | None = None
        if not self.first_stage:
            proxy = self._pp_recv_proxy_tensors()
            self.record(PROXY, 0, batch.ordinal, proxy.tokens, batch.forward.tokens)

        def forward(work: ForwardBatch) -> object:
            if self.shared_mlp:
                self._mlp_forward(work.tokens)
            return self.model.forward(work, proxy)

        out = self.run_batch(batch, forward)
        self.record(FORWARD, 0, batch.ordinal, batch.forward.tokens, len(batch.reqs))
        if self.last_stage:
            batch.result = out  # type: ignore[assignment]
            if not self.first_stage:
                self._pp_send_output((len(batch.result or ()), *(batch.result or ())))
        else:
            if self.send_proxy_work is not None:
                self._pp_commit_comm_work(self.send_proxy_work)
            self.send_proxy_work = self.world.isend_proxy(self.next_rank, out, "proxy")  # type: ignore[arg-type]

    def _pp_recv_proxy_tensors(self) -> Proxy:
        return self.world.recv_proxy(self.prev_rank, "proxy")

    def _pp_send_output(self, vec: Vector) -> None:
        # The receiver takes a result as many steps later as there are positions: no more than that are under way.
        works = self.send_output_works
        if len(works) >= self.depth:
            self._pp_commit_comm_work(works.pop(0))
        works.append(self.world.isend(self.next_rank, "out", vec, "output"))

    def _pp_process_batch_result(self, batch: ScheduleBatch) -> None:
        """Tokens come from the last stage round the ring; every stage but the last one receives them."""
        self.slot_of_result = self.slots[(self.step + 1) % self.depth]
        if batch.result is None:
            vec = self._pp_recv_dict_from_prev_stage()
            batch.result = list(vec[1 : 1 + max(0, vec[0])])
            if self.world.at.pp < self.world.topo.pp_size - 2:
                self._pp_send_output(vec[: 1 + max(0, vec[0])])
        self.process_batch_result(batch, batch.result)

    def _pp_recv_dict_from_prev_stage(self) -> Vector:
        return self.world.recv(self.prev_rank, "out", 2 + 2 * self.config.max_running, "output")

    # -- DP attention
    def _mlp_sync(self, batch: ScheduleBatch | None) -> None:
        """Under DP attention the groups compute their MLPs together: how many tokens are there, is anyone busy."""
        tokens = batch.forward.tokens if batch is not None else 0
        at_rest = batch is None and self._quiet()
        self.mlp_tokens, active = self.world.all_reduce("mlp", "sum", (tokens, int(not at_rest)), "mlp_sync")
        self.all_quiet = active == 0

    def _idle_batch(self) -> None:
        """Whoever has no batch joins the others' with an empty one."""
        self.record(IDLE, 0, self.forwards, self.mlp_tokens)
        self._mlp_forward(0)

    def _mlp_forward(self, tokens: int) -> None:
        """The collective of the MLPs, here one a batch and not one a layer."""
        self.world.all_reduce("mlp", "sum", (tokens,), "forward")
