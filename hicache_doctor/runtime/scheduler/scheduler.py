"""The scheduler of one rank: receive, form a batch, forward, result.

Every rank of a replica runs this same code on the same messages; what may differ between ranks is what they observe,
and that only enters where the cache asks the others.
"""

from __future__ import annotations

from collections.abc import Callable

from hicache_doctor.probes.kinds import Found, Kind, Msg
from hicache_doctor.runtime.cache.hicache import HiCache
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.fixes import Fix
from hicache_doctor.runtime.model.base import ForwardBatch, Model
from hicache_doctor.runtime.scheduler.aborts import SchedulerAbortMixin
from hicache_doctor.runtime.scheduler.arrivals import Arrivals
from hicache_doctor.runtime.scheduler.chunk_profile import SchedulerChunkMixin
from hicache_doctor.runtime.scheduler.disagg_prefill import SchedulerDisaggregationPrefillMixin
from hicache_doctor.runtime.scheduler.planned import SchedulerPlanMixin
from hicache_doctor.runtime.scheduler.schedule_batch import Req, ScheduleBatch, Slot
from hicache_doctor.runtime.scheduler.scheduler_output_processor_mixin import SchedulerOutputProcessorMixin
from hicache_doctor.runtime.scheduler.scheduler_pp_mixin import SchedulerPPMixin
from hicache_doctor.runtime.workload import Request
from hicache_doctor.runtime.world import MASK, World

BATCH, DECODE, DIGEST = int(Kind.BATCH), int(Kind.DECODE), int(Kind.DIGEST)
RECV_MSG, CHUNK = int(Kind.RECV_MSG), int(Kind.CHUNK)
REQUEST, ABORT, TIMEOUT = int(Msg.REQUEST), int(Msg.ABORT), int(Msg.TIMEOUT)
BLOCK, UNBLOCK = int(Msg.BLOCK), int(Msg.UNBLOCK)
NOTHING, QUEUES, POOL = int(Found.NOTHING), int(Kind.QUEUES), int(Kind.POOL)
GAUGES_EVERY = 8


class Scheduler(
    SchedulerPPMixin,
    SchedulerPlanMixin,
    SchedulerChunkMixin,
    SchedulerDisaggregationPrefillMixin,
    SchedulerAbortMixin,
    SchedulerOutputProcessorMixin,
):
    """One rank's scheduler."""

    def __init__(
        self, world: World, config: Config, model: Model, cache: HiCache, requests: list[Request], arrivals: Arrivals
    ) -> None:
        self.world = world
        self.record = world.record
        self.config = config
        self.fixes = config.fixes
        self.model = model
        self.tree_cache = cache
        self.requests = requests
        self.arrivals = arrivals
        self.page_size = config.page_size
        self.depth = world.topo.pp_size
        self.slots = [Slot() for _ in range(self.depth)]
        self.slot = self.slots[0]
        self.cur_batch = None
        self.waiting_queue = []
        self.chunked_req = None
        self.pending_chunked_abort = False
        self.chunks = None
        self.done = {}
        self.messages = 0
        self.forwards = 0
        self.hits_device = 0
        self.retracted = 0
        self.batch_full_at = [(a, b) for r, a, b in config.faults.batch_full if r == world.rank]
        self.init_pp()
        self.init_plan()
        self.init_disaggregation()

    # -- messages
    def process_input_requests(self, messages: list[tuple[int, int]]) -> None:
        """What arrived takes effect in order. A request touches no cache but the pool accounts of its prefetch."""
        for kind, rid in messages:
            effect = NOTHING
            if kind == REQUEST:
                self.handle_generate_request(rid)
            elif kind in (ABORT, TIMEOUT):
                if self.planned:
                    # Only an intent until the plan says so.
                    if self.first_stage:
                        self.intents.append(rid)
                    continue
                effect = self.abort_request(rid)
            elif kind not in (BLOCK, UNBLOCK):  # those take effect where requests come in
                self.apply_consensus(kind, rid)
            self._took_effect(kind, rid, effect)
        if self.step % GAUGES_EVERY == 0:
            cache = self.tree_cache
            occupied = cache.cache_controller.prefetch_tokens_occupied
            waiting = len(self.waiting_queue)
            self.record(QUEUES, 0, len(self.bootstrapping), waiting, len(cache.ongoing_prefetch), occupied)
            size, tree = self.page_size, cache.tree
            free = (cache.device.available * size, cache.host.available * size)
            self.record(POOL, 0, *free, tree.evictable * size, tree.protected * size)

    def _took_effect(self, kind: int, rid: int, effect: int) -> None:
        self.record(RECV_MSG, rid, kind, self.messages, effect, self.step % self.depth)
        self.messages += 1

    def handle_generate_request(self, rid: int) -> None:
        """Queue a request; its prefetch starts while it waits."""
        spec = self.requests[rid]
        prompt = list(spec.tokens)
        if spec.after >= 0:
            before = self.done[spec.after]
            prompt = before.tokens + prompt
        req = Req(spec, prompt, self.page_size, self.tree_cache.tree.root, self.world.now())
        if self.disaggregated:
            # The prefill side hands a request over with its first token.
            req.limit = 1
        if len(prompt) + req.limit > self.tree_cache.device.size * self.page_size:
            self.world.log(f"Request {rid} is longer than the KV pool and was refused.", "WARNING")
            self._end(req, aborted=True)
            return
        if self.disaggregated:
            self.add_to_bootstrap(req)
        else:
            self.waiting_queue.append(req)
        self._prefetch_kvcache(req)

    def _prefetch_kvcache(self, req: Req) -> None:
        cache = self.tree_cache
        if cache.cache_controller.storage is None:
            return
        n = (len(req.tokens) - 1) // self.page_size
        cache.prefetch_from_storage(req.rid, cache.tree.match(req.hashes, n), req.hashes, n)

    # -- forming
    def get_next_batch_to_run(self) -> ScheduleBatch | None:
        """The batch of this step: drain acks, settle prefetches, match and load back, allocate and lock."""
        idle = not self.waiting_queue and self.chunked_req is None and not self.slot.running
        if not idle or Fix.IDLE_EVENTS in self.fixes:
            # Before #20560 an idle scheduler did not come here, so finished writes were not noticed.
            self.tree_cache.check_hicache_events()
        plan = self.recv_plan() if self.planned and not self.first_stage else None
        # Under a plan the leader decides alone: the others cannot vote before they have it.
        self.tree_cache.may_vote = not self.planned
        for rid in self.intents if plan is None else plan.dropped:
            self._took_effect(ABORT, rid, self.abort_request(rid))
        if self.pending_chunked_abort:
            self.pending_chunked_abort = False
            self._abort_chunked()
        if self.chunked_req is not None:
            self.tree_cache.cache_unfinished_req(self.chunked_req, chunked=True)
        self._drop_aborted()
        batch = self.build_batch_from_plan(plan) if plan is not None else self._form()
        self.tree_cache.may_vote = True
        return batch

    def _form(self) -> ScheduleBatch | None:
        self.asked = False
        self.refused = (-1, 0)
        self.given_up = []
        batch = self.get_new_batch_prefill()
        if batch is None and self.slot.running:
            batch = self.update_running_batch()
        if self.planned:
            self.send_plan(batch)
        return batch

    def get_new_batch_prefill(self) -> ScheduleBatch | None:
        """A prefill batch, or None. A load back whose request found no room after all is submitted too: its pages are
        locked until its ack."""
        batch = self._get_new_batch_prefill_raw()
        self.tree_cache.ready_to_load_host_cache()
        return batch

    def _get_new_batch_prefill_raw(self) -> ScheduleBatch | None:
        if not self.waiting_queue and self.chunked_req is None:
            return None
        config, cache = self.config, self.tree_cache
        room = config.max_running - len(self.slot.running)
        if room <= 0 and (self.chunked_req is None or room <= -config.max_running):
            return None
        storage = cache.cache_controller.storage is not None
        budget = self.chunk_size()
        picked: list[Req] = []
        chunked: Req | None = None
        if self.chunked_req is not None:
            req = self.chunked_req
            n = min(len(req.tokens) - req.computed, budget)
            if self._extend(req, req.computed, n):
                picked.append(req)
                budget -= n
                room -= 1
                chunked = req if req.prefix + req.extend < len(req.tokens) else None
            else:
                self.refused = (req.rid, n)
                return None
        if chunked is None and self.waiting_queue:
            if storage and Fix.VOTE_OUTSIDE_LOOP in self.fixes:
                self.asked = True
                cache.bulk_check_prefetch_progress([r.rid for r in self.waiting_queue])
            waiting = list(self.waiting_queue)
            # A rank may know already that nothing can be admitted, or find out by asking about each request: the batch
            # is the same, the number of questions is not (#30760).
            full_early = any(a <= self.step <= b for a, b in self.batch_full_at)
            if full_early and all(r.rid in cache.ongoing_prefetch for r in waiting):
                waiting = []
            for req in waiting:
                if full_early and (room <= 0 or budget < self.page_size):
                    break
                if storage and not cache.check_prefetch_progress(req.rid):
                    continue
                if room <= 0 or budget < self.page_size:
                    break
                if not self._admit(req, budget):
                    self.refused = (req.rid, budget)
                    break
                self.waiting_queue.remove(req)
                picked.append(req)
                room -= 1
                budget -= req.extend
                if req.prefix + req.extend < len(req.tokens):
                    chunked = req
                    break
        self.chunked_req = chunked
        if not picked:
            return None
        return self._batch(picked, decode=False, chunked=chunked)

    def chunk_size(self) -> int:
        """Tokens of this step's prefill: the base, or what the fitted model says for a continuing chunk."""
        base = self.config.chunk_tokens
        req = self.chunked_req
        if self.chunks is None or req is None:
            return base
        chosen = self.chunks.predict(req.computed)
        self.record(CHUNK, req.rid, req.computed, chosen or base, base)
        return chosen or base

    def _admit(self, req: Req, budget: int) -> bool:
        """Match, load back, allocate, lock; False when there is no room (nothing is kept then)."""
        cache, tree, size = self.tree_cache, self.tree_cache.tree, self.page_size
        match = tree.match(req.hashes, (len(req.tokens) - 1) // size)
        total = -(-(len(req.tokens) + req.limit - req.output) // size)
        if total - len(match.pages) > cache.device.available + tree.evictable:
            return False
        node = match.last_device_node
        # Before anything is loaded or evicted, the path must be safe.
        tree.inc_lock_ref(node)
        pages = match.pages
        if match.host_pages:
            loaded = cache.init_load_back(match)
            if loaded:
                pages = pages + loaded
                tree.inc_lock_ref(match.last_host_node)
                tree.dec_lock_ref(node)
                node = match.last_host_node
                cache.stats.hits_host += len(loaded)
        req.pages = pages
        req.last_node = node
        prefix = len(pages) * size
        n = min(len(req.tokens) - prefix, budget)
        if not self._extend(req, prefix, n):
            tree.dec_lock_ref(node)
            req.pages = []
            req.last_node = tree.root
            return False
        self.hits_device += len(match.pages)
        req.started = self.world.now()
        return True

    def _extend(self, req: Req, prefix: int, n: int) -> bool:
        """Take device pages for ``n`` tokens after ``prefix``; an unfinished chunk ends on a page."""
        size = self.page_size
        if prefix + n < len(req.tokens):
            n -= n % size
        if n <= 0:
            return False
        pages = self._alloc_device(-(-(prefix + n) // size) - len(req.pages))
        if pages is None:
            return False
        req.pages = req.pages + pages
        req.prefix, req.extend = prefix, n
        return True

    def _alloc_device(self, n: int) -> list[int] | None:
        """Pages for new tokens, after evicting what is needed."""
        cache = self.tree_cache
        if n > cache.device.available:
            cache.tree.evict(n - cache.device.available)
        return cache.device.alloc(n)

    def update_running_batch(self) -> ScheduleBatch | None:
        """A decode batch: one slot more a request; without room the last ones go back to waiting."""
        running = self.slot.running
        ready: list[Req] = []
        for i, req in enumerate(running):
            if not self._extend_by_one(req):
                self._retract(running[i:])
                running = running[:i]
                break
            ready.append(req)
        self.slot.running = running
        return self._batch(ready, decode=True, chunked=None) if ready else None

    def _extend_by_one(self, req: Req) -> bool:
        """Make room for the token of a decode; False when there is no page for it."""
        if req.computed == len(req.pages) * self.page_size:
            pages = self._alloc_device(1)
            if pages is None:
                return False
            req.pages = req.pages + pages
        req.prefix, req.extend = req.computed, 1
        return True

    def _retract(self, reqs: list[Req]) -> None:
        """Give up requests for lack of room: their KV stays in the tree, they wait again with what they have said."""
        for req in reqs:
            self.given_up.append(req.rid)
            self.tree_cache.cache_finished_req(req)
            req.pages, req.computed = [], 0
            self.retracted += 1
        self.waiting_queue[:0] = reqs

    def _batch(self, reqs: list[Req], *, decode: bool, chunked: Req | None) -> ScheduleBatch:
        ordinal = self.forwards
        self.forwards = ordinal + 1
        record = self.record
        tokens = 0
        if decode:
            names = 0
            for req in reqs:
                names = (names * 0x9E3779B97F4A7C15 + req.rid + 1) & MASK
            tokens = len(reqs)
            record(DECODE, names, ordinal, len(reqs))
        else:
            for i, req in enumerate(reqs):
                tokens += req.extend
                record(BATCH, req.rid, ordinal, i, req.prefix, req.extend)
            record(DIGEST, self.tree_cache.tree.digest, ordinal)
        self.tree_cache.batches += 1
        forward = ForwardBatch(ordinal, [r.item() for r in reqs], tokens, decode, self.tree_cache.wait_layer)
        return ScheduleBatch(ordinal, reqs, decode, forward, None, chunked)

    def run_batch(self, batch: ScheduleBatch, forward: Callable[[ForwardBatch], object]) -> object:
        """Compute a batch; its KV is there when this returns."""
        out = forward(batch.forward)
        for req in batch.reqs:
            req.computed = req.prefix + req.extend
        return out

    @property
    def busy(self) -> bool:
        """Whether anything is waiting or under way."""
        return bool(self.waiting_queue or self.chunked_req or self.bootstrapping) or any(
            s.running or s.batch for s in self.slots
        )
