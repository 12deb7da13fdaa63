"""Which DP group gets what: the decisions of SGLang's data-parallel controller, without its loop.

Three classes of message go three ways. A request goes to one group, by policy or because a router chose already. A
message about every worker (block, profile) goes to all of them. Any other control message goes only to the first rank
of each TP group, which passes it on over the broadcast it already has. Each way of getting this wrong has its own
outcome, so the wrong ways are faults here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hicache_doctor.errors import UsageError
from hicache_doctor.runtime.scheduler.load import Board, Load
from hicache_doctor.runtime.world import Topology

REFRESH_NS = 20_000_000
"""Snapshots are read at most this often; in between the budget counts what it has sent itself."""
MISROUTE_EVERY = 4
"""Of the messages of a class, each n-th goes wrong under ``faults.misroute``; the first one does."""
POLICIES = ("round_robin", "follow_bootstrap_room", "total_requests", "total_tokens")
MISROUTES = ("", "twice", "missed", "control_to_all")


class MessageClass(Enum):
    """What decides who receives a message."""

    GENERATE = "generate"
    """Generate and embed."""
    WORKERS = "workers"
    """Block and profile."""
    CONTROL = "control"
    """Everything else: abort, flush, get state …"""


class DPBudget:
    """What the controller believes each group has: its last snapshot, and what was sent since.

    A snapshot is applied once, known by its stamp: applied again it would undo the counting in between, and a burst
    would go to one group as a whole.
    """

    def __init__(self, groups: int) -> None:
        self.requests = [0] * groups
        self.tokens = [0] * groups
        self.applied = [Load(0, 0, 0)] * groups
        """The snapshot that each group's count began from (stamp 0: none yet)."""
        self._refreshed: int | None = None

    def due(self, now: int) -> bool:
        """Whether snapshots should be read again, at ``now`` nanoseconds; if so, the next 20 ms have none."""
        if self._refreshed is not None and now - self._refreshed < REFRESH_NS:
            return False
        self._refreshed = now
        return True

    def refresh(self, board: Board) -> list[tuple[int, Load]]:
        """The snapshots that are new, by group. They are physical progress: observe them, then :meth:`apply`."""
        loads = ((group, board.read(group)) for group in range(len(self.applied)))
        return [(g, load) for g, load in loads if load is not None and load.stamp != self.applied[g].stamp]

    def apply(self, group: int, load: Load) -> bool:
        """Believe a snapshot, unless it was applied already."""
        if load.stamp == self.applied[group].stamp:
            return False
        self.applied[group] = load
        self.requests[group], self.tokens[group] = load.requests, load.tokens
        return True

    def pick(self, policy: str) -> int:
        """The group with the fewest requests, or tokens (ties: fewer requests); then the lowest number."""
        if policy == "total_requests":
            return self.requests.index(min(self.requests))
        return min(range(len(self.tokens)), key=lambda g: (self.tokens[g], self.requests[g], g))

    def sent(self, group: int, tokens: int) -> None:
        """A request of ``tokens`` prompt tokens went there: count it before the group says so itself."""
        self.requests[group] += 1
        self.tokens[group] += tokens


@dataclass(slots=True)
class Dispatched:
    """Where a message goes: global ranks, in order, and for a request its DP groups (two only when misrouted)."""

    ranks: tuple[int, ...]
    groups: tuple[int, ...] = ()
    misrouted: bool = False


class Dispatcher:
    """Picks receivers. Requests enter a group at its first rank (stage 0, TP 0); the stages behind hear from there."""

    def __init__(
        self,
        topo: Topology,
        policy: str = "round_robin",
        misroute: str = "",
        *,
        dp_attention: bool = False,
        local_control_broadcast: bool = False,
    ) -> None:
        if policy not in POLICIES:
            raise UsageError(f"DP policy {policy!r}: policies are {', '.join(POLICIES)}")
        if misroute not in MISROUTES:
            raise UsageError(f"misroute {misroute!r}: values are {', '.join(m for m in MISROUTES if m)}")
        self.budget = DPBudget(topo.dp_size)
        self._topo = topo
        self._policy = policy
        self._misroute = misroute
        self._entries = tuple(topo.rank(0, 0, dp) for dp in range(topo.dp_size))
        # Under DP attention all groups are one TP group, so one rank passes a control message on to all.
        self._one_tp_group = dp_attention and not local_control_broadcast
        self._next = 0
        self._seen = dict.fromkeys(MessageClass, 0)

    def entry(self, group: int) -> int:
        """The rank at which requests enter a DP group."""
        return self._entries[group]

    @property
    def relayed(self) -> bool:
        """Whether one rank alone gets control messages and passes them on to the other groups."""
        return self._one_tp_group

    def receivers(self) -> tuple[int, ...]:
        """All ranks that a message could be sent to: those that need a line to the controller."""
        if self._misroute == "control_to_all":
            return tuple(sorted({*self._entries, *self._everyone()}))
        return self._entries

    def request(self, tokens: int, routed: int = -1, bootstrap_room: int | None = None) -> Dispatched:
        """The group of a request with ``tokens`` prompt tokens; ``routed`` is a router's choice and wins.

        Raises:
            UsageError: the router named a group that isn't there, or the policy needs a bootstrap room.
        """
        group = self._route(routed) if routed >= 0 else self._pick(bootstrap_room)
        self.budget.sent(group, tokens)
        if self._goes_wrong("twice", MessageClass.GENERATE) and len(self._entries) > 1:
            other = (group + 1) % len(self._entries)
            return Dispatched((self._entries[group], self._entries[other]), (group, other), True)
        return Dispatched((self._entries[group],), (group,))

    def workers(self) -> Dispatched:
        """Receivers of a message about every worker."""
        if self._goes_wrong("missed", MessageClass.WORKERS):
            return Dispatched(self._entries[:-1], misrouted=True)
        return Dispatched(self._entries)

    def control(self) -> Dispatched:
        """Receivers of any other control message: the first rank of each TP group."""
        right = self._entries[:1] if self._one_tp_group else self._entries
        if self._goes_wrong("control_to_all", MessageClass.CONTROL):
            return Dispatched(self._everyone(), misrouted=True)
        return Dispatched(right)

    def dispatch(self, kind: MessageClass, tokens: int = 0, routed: int = -1, room: int | None = None) -> Dispatched:
        """Receivers of a message of any class."""
        if kind is MessageClass.GENERATE:
            return self.request(tokens, routed, room)
        return self.workers() if kind is MessageClass.WORKERS else self.control()

    def _route(self, routed: int) -> int:
        if routed >= len(self._entries):
            raise UsageError(f"routed_dp_rank {routed}: there are {len(self._entries)} groups")
        return routed

    def _pick(self, room: int | None) -> int:
        groups = len(self._entries)
        if self._policy == "follow_bootstrap_room":
            if room is None:
                raise UsageError("follow_bootstrap_room: the request has no bootstrap room; send it through the router")
            return room % groups
        if self._policy == "round_robin":
            group = self._next
            self._next = (group + 1) % groups
            return group
        return self.budget.pick(self._policy)

    def _everyone(self) -> tuple[int, ...]:
        """All who could be reached by mistake: the groups that share a TP group, else all ranks of stage 0."""
        if self._one_tp_group and len(self._entries) > 1:
            return self._entries
        t = self._topo
        return tuple(
            t.rank(0, tp, dp, cp) for dp in range(t.dp_size) for cp in range(t.cp_size) for tp in range(t.tp_size)
        )

    def _goes_wrong(self, fault: str, kind: MessageClass) -> bool:
        n = self._seen[kind]
        self._seen[kind] = n + 1
        return self._misroute == fault and n % MISROUTE_EVERY == 0


def loads_of(vector: Sequence[int]) -> list[tuple[int, Load]]:
    """Snapshots as they pass through ``world.observe``: (group, stamp, requests, tokens) one after another."""
    return [(vector[i], Load(vector[i + 1], vector[i + 2], vector[i + 3])) for i in range(0, len(vector), 4)]


def vector_of(loads: Sequence[tuple[int, Load]]) -> tuple[int, ...]:
    """The inverse of :func:`loads_of`."""
    return tuple(n for group, load in loads for n in (group, *load.vector()))
