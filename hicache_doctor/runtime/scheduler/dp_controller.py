"""The data-parallel controller at work: sends the workload's requests, aborts and global messages to the DP groups.

Written once for both worlds, against a :class:`Desk`. :meth:`DataParallelController.turn` never blocks: in real
processes the launcher calls it between two looks at its ranks, in the simulation a task of its own does.

What the workload calls a step is a millisecond of the controller's clock, from the moment at which every group has said
its first load. So arrival at a rank is physical: each rank observes it by its own step, and the controller observes the
loads by the ordinal of the request. With both tapes a run repeats itself in the other world.

A turn of a conversation follows its predecessor into its group, whose arrivals hold it back until the answer is there.
The controller need not learn how a request ended; a router's choice counts for the whole conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hicache_doctor.probes.kinds import Msg
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.scheduler.dispatcher import POLICIES, Dispatcher, MessageClass, loads_of, vector_of
from hicache_doctor.runtime.scheduler.load import Board
from hicache_doctor.runtime.workload import Request
from hicache_doctor.runtime.world import Vector

STEP_NS = 1_000_000
LETTER = 8
"""Integers of a letter: message class, rid, group, policy, load of the group as believed before, and the snapshot that
this belief began from (stamp, requests, tokens)."""
END = (int(Msg.STOP), -1, 0, 0, 0, 0, 0, 0)
"""The last letter of every line: nothing will come any more."""
LOADS = "loads"


class Desk(Protocol):
    """What the controller has of its world."""

    @property
    def board(self) -> Board:
        """Where the groups say how busy they are."""

    def now(self) -> int:
        """Nanoseconds, monotonic."""

    def observe(self, kind: str, seen: Vector, at: int) -> Vector:
        """As :meth:`~hicache_doctor.runtime.world.World.observe`, keyed by the ordinal of the request."""

    def send(self, rank: int, letter: Vector) -> None:
        """Put a letter on a rank's line; never blocks."""


@dataclass(frozen=True, slots=True)
class Due:
    """One message of the workload: ``order`` is its place among those of one step."""

    step: int
    order: int
    sort: MessageClass
    kind: int
    rid: int = -1


class DataParallelController:
    """Sends everything in order, each message when it is due. Only for several groups.

    Raises:
        UsageError: policy or fault have no such value.
    """

    def __init__(self, config: Config, requests: Sequence[Request]) -> None:
        self.dispatcher = Dispatcher(
            config.topo, config.dp_policy, config.faults.misroute, dp_attention=config.dp_attention
        )
        self.groups = config.topo.dp_size
        self.ended = False
        self.group_of: dict[int, int] = {}
        self._place = config.topo.place
        self._policy = POLICIES.index(config.dp_policy)
        self._rooms = config.dp_policy == "follow_bootstrap_room"
        self._requests = {r.rid: r for r in requests}
        self._tokens: dict[int, int] = {}
        self._began: int | None = None
        self._next = 0
        self._todo = schedule(config, requests)

    def receivers(self) -> tuple[int, ...]:
        """The ranks that need a line."""
        return self.dispatcher.receivers()

    def turn(self, desk: Desk) -> int | None:
        """Send what is due. Nanoseconds until there is more; None while a group is not ready, and at the end."""
        if self.ended:
            return None
        if self._began is None:
            if any(desk.board.read(group) is None for group in range(self.groups)):
                return None
            self._began = desk.now()
        while self._next < len(self._todo):
            due = self._todo[self._next]
            wait = self._began + due.step * STEP_NS - desk.now()
            if wait > 0:
                return wait
            self._next += 1
            self._send(desk, due)
        for rank in self.receivers():
            desk.send(rank, END)
        self.ended = True
        return None

    def _send(self, desk: Desk, due: Due) -> None:
        if due.sort is MessageClass.GENERATE:
            self._send_request(desk, self._requests[due.rid])
            return
        for rank in self.dispatcher.dispatch(due.sort).ranks:
            desk.send(rank, self._letter(due.kind, due.rid, self._place(rank).dp, 0))

    def _send_request(self, desk: Desk, request: Request) -> None:
        budget = self.dispatcher.budget
        fresh = vector_of(budget.refresh(desk.board)) if budget.due(desk.now()) else ()
        for group, load in loads_of(desk.observe(LOADS, fresh, request.rid)):
            budget.apply(group, load)
        before = list(budget.requests)
        tokens = self._tokens.get(request.after, 0) + len(request.tokens)
        self._tokens[request.rid] = tokens + request.new_tokens
        routed = request.routed % self.groups if request.routed >= 0 else -1
        routed = self.group_of.get(request.after, routed)
        sent = self.dispatcher.request(tokens, routed, request.rid if self._rooms else None)
        self.group_of[request.rid] = sent.groups[0]
        for rank, group in zip(sent.ranks, sent.groups, strict=True):
            desk.send(rank, self._letter(int(Msg.REQUEST), request.rid, group, before[group]))

    def _letter(self, kind: int, rid: int, group: int, load: int) -> Vector:
        return (kind, rid, group, self._policy, load, *self.dispatcher.budget.applied[group].vector())


def schedule(config: Config, requests: Sequence[Request]) -> list[Due]:
    """All messages in the order of sending: of one step requests first, then what ends them, then global ones."""
    out = [Due(r.step, 0, MessageClass.GENERATE, int(Msg.REQUEST), r.rid) for r in requests]
    for r in requests:
        if r.abort_after >= 0:
            out.append(Due(r.step + 1 + r.abort_after, 1, MessageClass.CONTROL, int(Msg.ABORT), r.rid))
    w = config.workload
    if w.block_at >= 0:
        out.append(Due(w.block_at, 2, MessageClass.WORKERS, int(Msg.BLOCK)))
        out.append(Due(w.block_at + w.block_for, 2, MessageClass.WORKERS, int(Msg.UNBLOCK)))
    return sorted(out, key=lambda due: (due.step, due.order, due.rid))
