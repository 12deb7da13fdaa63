"""What the first rank of a replica pulls in. Without a DP controller: by step, as workload and fault plan say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hicache_doctor.probes.kinds import Msg
from hicache_doctor.runtime.faults import FaultPlan
from hicache_doctor.runtime.workload import Request

REQUEST, ABORT = int(Msg.REQUEST), int(Msg.ABORT)
MAX_MESSAGES = 16
"""A step takes in at most so many, so that a message between stages has a fixed size."""
MESSAGE = 1 + 2 * MAX_MESSAGES
Message = tuple[int, int]
"""Message class and rid."""


class Ended(Protocol):
    """A request that has ended."""

    tokens: list[int]
    """Prompt and output."""


class Arrivals(Protocol):
    """Where the first rank of a replica gets its messages from."""

    def poll(
        self, step: int, done: Mapping[int, Ended], states: Mapping[int, str], room: int = MAX_MESSAGES
    ) -> list[Message]:
        """What arrives at this step; not more than there is room for."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing will come any more."""


class FaultAborts:
    """Aborts of the fault plan that hit a replica at a step, or when its request reaches a state."""

    def __init__(self, faults: FaultPlan) -> None:
        self._todo = [f for f in faults.aborts if f.state not in ("agreed", "bootstrap")]

    def due(self, step: int, states: Mapping[int, str], room: int) -> list[Message]:
        """Those of this step; one that finds no room is lost, or waits as long as the state lasts."""
        out: list[Message] = []
        for fault in list(self._todo):
            if (fault.step == step or (fault.state and states.get(fault.rid) == fault.state)) and len(out) < room:
                self._todo.remove(fault)
                out.append((ABORT, fault.rid))
        return out


class WorkloadArrivals:
    """Arrivals as a function of the step and of what ended before: no clock, no observation."""

    def __init__(self, requests: list[Request], faults: FaultPlan, mine: Mapping[int, int] | None = None) -> None:
        self._todo = [r for r in requests if mine is None or r.rid in mine]
        self._faults = FaultAborts(faults)
        self._gone: list[tuple[int, int]] = []

    def poll(
        self, step: int, done: Mapping[int, Ended], states: Mapping[int, str], room: int = MAX_MESSAGES
    ) -> list[Message]:
        """The requests that are due, then the aborts that are due."""
        out: list[Message] = []
        rest: list[Request] = []
        for i, r in enumerate(self._todo):
            if r.step > step or len(out) >= min(room, MAX_MESSAGES // 2):
                rest += self._todo[i:]
                break
            if r.after >= 0 and r.after not in done:
                rest.append(r)
                continue
            out.append((REQUEST, r.rid))
            if r.abort_after >= 0:
                self._gone.append((step + 1 + r.abort_after, r.rid))
        self._todo = rest
        for item in list(self._gone):
            due, rid = item
            if due <= step and len(out) < room:
                self._gone.remove(item)
                if rid not in done:
                    out.append((ABORT, rid))
        out += self._faults.due(step, states, room - len(out))
        return out

    @property
    def exhausted(self) -> bool:
        """Whether all requests have come."""
        return not self._todo
