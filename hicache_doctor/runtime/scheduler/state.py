"""What the parts of a scheduler share: its attributes, and the methods by which one part asks another."""

from __future__ import annotations

from collections.abc import Callable

from hicache_doctor.runtime.cache.hicache import HiCache
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.fixes import Fixes
from hicache_doctor.runtime.model.base import ForwardBatch, Model
from hicache_doctor.runtime.scheduler.arrivals import Arrivals
from hicache_doctor.runtime.scheduler.chunking import ChunkSizer
from hicache_doctor.runtime.scheduler.schedule_batch import Req, ScheduleBatch, Slot
from hicache_doctor.runtime.workload import Request
from hicache_doctor.runtime.world import Work, World


class SchedulerState:
    """Declarations only; each part says how it makes its own."""

    world: World
    record: Callable[..., None]
    config: Config
    fixes: Fixes
    model: Model
    tree_cache: HiCache
    requests: list[Request]
    arrivals: Arrivals
    page_size: int
    depth: int
    """Microbatch positions: as many as stages."""
    slots: list[Slot]
    slot: Slot
    cur_batch: ScheduleBatch | None
    waiting_queue: list[Req]
    chunked_req: Req | None
    pending_chunked_abort: bool
    chunks: ChunkSizer | None
    done: dict[int, Req]
    messages: int
    forwards: int
    hits_device: int
    retracted: int

    # -- the pipeline
    step: int
    prev_rank: int
    next_rank: int
    first_stage: bool
    last_stage: bool
    send_req_work: Work | None
    send_proxy_work: Work | None
    send_output_works: list[Work]
    slot_of_result: Slot
    idle_steps: int

    # -- the plan
    planned: bool
    intents: list[int]
    asked: bool
    refused: tuple[int, int]
    given_up: list[int]
    plan_work: Work | None

    # -- the bootstrap queue
    disaggregated: bool
    bootstrapping: list[Req]
    consensus_works: list[Work]
    consensus_out: int
    local_aborts: set[int]
    agreed_good: list[int]
    agreed_bad: list[int]
    judged: set[int]

    def process_input_requests(self, messages: list[tuple[int, int]]) -> None:
        """What arrived takes effect."""
        raise NotImplementedError

    def _took_effect(self, kind: int, rid: int, effect: int) -> None:
        """One message took effect."""
        raise NotImplementedError

    def abort_request(self, rid: int) -> int:
        """The client of a request is gone."""
        raise NotImplementedError

    def abort_in_bootstrap(self, rid: int) -> int | None:
        """The same for a request that still connects."""
        raise NotImplementedError

    def check_timeouts(self) -> None:
        """Requests time out by this rank's clock, where that is still so."""
        raise NotImplementedError

    def late_requests(self) -> list[int]:
        """Requests that waited or ran for too long."""
        raise NotImplementedError

    def process_bootstrap_queue(self) -> None:
        """One pass of the consensus."""
        raise NotImplementedError

    def verdicts_due(self) -> list[tuple[int, int]]:
        """What the consensus decided, as messages."""
        raise NotImplementedError

    def get_next_batch_to_run(self) -> ScheduleBatch | None:
        """The batch of this step."""
        raise NotImplementedError

    def run_batch(self, batch: ScheduleBatch, forward: Callable[[ForwardBatch], object]) -> object:
        """Compute a batch."""
        raise NotImplementedError

    def process_batch_result(self, batch: ScheduleBatch, tokens: list[int]) -> None:
        """Tokens of a batch."""
        raise NotImplementedError

    def _admit(self, req: Req, budget: int) -> bool:
        """Match, load back, allocate, lock."""
        raise NotImplementedError

    def _extend(self, req: Req, prefix: int, n: int) -> bool:
        """Take device pages for new tokens."""
        raise NotImplementedError

    def _extend_by_one(self, req: Req) -> bool:
        """Make room for the token of a decode."""
        raise NotImplementedError

    def _batch(self, reqs: list[Req], *, decode: bool, chunked: Req | None) -> ScheduleBatch:
        """What the model is given."""
        raise NotImplementedError

    def _retract(self, reqs: list[Req]) -> None:
        """Requests go back to waiting."""
        raise NotImplementedError

    def _finish(self, req: Req) -> None:
        """A request ends, and its pages go to the tree."""
        raise NotImplementedError

    def _end(self, req: Req, *, aborted: bool) -> None:
        """A request ends."""
        raise NotImplementedError

    def _pp_commit_comm_work(self, work: Work) -> None:
        """Wait for a send of an earlier step."""
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """Whether anything is waiting or under way."""
        raise NotImplementedError
