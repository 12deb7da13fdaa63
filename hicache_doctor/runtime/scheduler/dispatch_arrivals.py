"""Arrivals of a replica behind the DP controller: letters from its line, in the order in which they came.

When a letter comes is physical, so what each step reads passes through ``world.observe`` ("arrive"). What is then held
back is protocol: a turn until its predecessor has its answer, any request while the workers are blocked, and an abort
behind its request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hicache_doctor.probes.kinds import Kind, Msg
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.scheduler.arrivals import (
    ABORT,
    MAX_MESSAGES,
    MESSAGE,
    REQUEST,
    Ended,
    FaultAborts,
    Message,
)
from hicache_doctor.runtime.scheduler.dp_controller import LETTER
from hicache_doctor.runtime.workload import Request
from hicache_doctor.runtime.world import Line, Vector, World

STOP, BLOCK, UNBLOCK = int(Msg.STOP), int(Msg.BLOCK), int(Msg.UNBLOCK)
DISPATCH, LOAD_SNAPSHOT = int(Kind.DISPATCH), int(Kind.LOAD_SNAPSHOT)
ARRIVE = "arrive"
REPORT_EVERY = 4
"""Steps between two load snapshots."""


class Inbox:
    """A line, read through ``observe``: what a tape says came at this step comes now, whatever the line says."""

    def __init__(self, world: World, line: Line) -> None:
        self._world = world
        self._line = line
        self._read: list[Vector] = []
        self._ahead: list[Message] = []

    def open(self) -> list[Vector]:
        """The letters of this step."""
        for letter in self._line.poll():
            if letter[:2] in self._ahead:
                self._ahead.remove((letter[0], letter[1]))  # the tape had it before the line
            else:
                self._read.append(letter)
        flat = self._world.observe(ARRIVE, tuple(n for letter in self._read for n in letter))
        came = [flat[i : i + LETTER] for i in range(0, len(flat), LETTER)]
        for letter in came:
            for i, read in enumerate(self._read):
                if read[:2] == letter[:2]:
                    del self._read[i]
                    break
            else:
                self._ahead.append((letter[0], letter[1]))
        return came


class DispatchArrivals:
    """What the controller sends to the first rank of a replica; see :class:`Arrivals`.

    Records what the controller says of its decision: each dispatch, and each snapshot that it rests on for the first
    time. Under DP attention the first group's rank passes control messages on to the other groups' (``relayed``).
    """

    def __init__(self, world: World, line: Line, requests: Sequence[Request], config: Config, *, relayed: bool) -> None:
        self._world = world
        self._line = line
        self._inbox = Inbox(world, line)
        self._requests = requests
        self._faults = FaultAborts(config.faults)
        self._relayed = relayed
        self._relay: list[Message] = []
        self._pending: list[Message] = []
        self._open: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._blocked = False
        self._ended = False
        self._stamp = 0

    def poll(
        self, step: int, done: Mapping[int, Ended], states: Mapping[int, str], room: int = MAX_MESSAGES
    ) -> list[Message]:
        """The messages that are due."""
        self._hear()
        out = self._due(done, room)
        out += self._faults.due(step, states, room - len(out))
        if step % REPORT_EVERY == 0:
            self._report(done)
        return out

    @property
    def exhausted(self) -> bool:
        """Whether the last letter is there and nothing is held back."""
        return self._ended and not self._pending and not self._relay

    def _hear(self) -> None:
        world = self._world
        for kind, rid, group, policy, load, stamp, requests, tokens in self._inbox.open():
            if kind == STOP:
                self._ended = True
                continue
            if stamp != self._stamp:
                self._stamp = stamp
                world.record(LOAD_SNAPSHOT, 0, requests, tokens, stamp)
            if kind == REQUEST:
                world.record(DISPATCH, rid, group, policy, load)
            control = kind not in (REQUEST, BLOCK, UNBLOCK)
            (self._relay if control and self._relayed and world.at.dp == 0 else self._pending).append((kind, rid))
        if self._relayed:
            now, self._relay = self._relay[:MAX_MESSAGES], self._relay[MAX_MESSAGES:]
            flat = (len(now), *(n for message in now for n in message))
            vec = world.broadcast("mlp", flat + (0,) * (MESSAGE - len(flat)), "recv_requests")
            self._pending += [(vec[1 + 2 * i], vec[2 + 2 * i]) for i in range(vec[0])]

    def _due(self, done: Mapping[int, Ended], room: int) -> list[Message]:
        out: list[Message] = []
        kept: list[Message] = []
        held: list[int] = []
        requests = 0
        pending = self._pending
        for i, (kind, rid) in enumerate(pending):
            if len(out) >= room:
                kept += pending[i:]
                break
            if kind == REQUEST:
                after = self._requests[rid].after
                if self._blocked or requests >= MAX_MESSAGES // 2 or (after >= 0 and after not in done):
                    kept.append((kind, rid))
                    held.append(rid)
                    continue
                requests += 1
                before = self._lengths.get(after, 0) if after not in done else len(done[after].tokens)
                self._lengths[rid] = self._open[rid] = before + len(self._requests[rid].tokens)
            elif kind == ABORT and rid in held:
                kept.append((kind, rid))
                continue
            elif kind in (BLOCK, UNBLOCK):
                self._blocked = kind == BLOCK
            out.append((kind, rid))
            if kind == UNBLOCK:
                kept += pending[i + 1 :]  # what was held back goes first
                break
        self._pending = kept
        return out

    def _report(self, done: Mapping[int, Ended]) -> None:
        for rid in [rid for rid in self._open if rid in done]:
            del self._open[rid]
        waiting = [rid for kind, rid in self._pending if kind == REQUEST]
        tokens = sum(self._open.values()) + sum(len(self._requests[rid].tokens) for rid in waiting)
        self._line.report((self._world.now(), len(self._open) + len(waiting), tokens))


class DirectMessages:
    """Letters to a rank whose messages come over a broadcast: nobody should send any, and here they count twice."""

    def __init__(self, world: World, line: Line) -> None:
        self._inbox = Inbox(world, line)

    def poll(self) -> list[Message]:
        """All that came."""
        return [(letter[0], letter[1]) for letter in self._inbox.open() if letter[0] != STOP]
