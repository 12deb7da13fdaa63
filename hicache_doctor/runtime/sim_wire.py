"""gloo as it was measured (torch 2.13), between tasks of one simulation.

- A send is a rendezvous: ``wait`` returns when the peer has *posted* the receive; ``is_completed`` is False until then.
- First in, first out per (source, destination, tag); other tags overtake. A skipped receive makes the next one read the
  older message, silently.
- A short message leaves the tail of the buffer; a long one aborts the receiver (SIGABRT).
- ``all_reduce`` waits for the last member. ``broadcast`` is gloo's binomial tree: a member waits for the data to come
  down to it and for its own children to be there, never for the others.
- Collectives pair by their ordinal on the group. Other kinds at one ordinal hang all; equal shapes pair silently, with
  values mixed, which is noted in :attr:`Wire.mispaired`; unequal sizes of an ``all_reduce`` abort the smaller side
  (gloo may also let both time out).
- Who waits for a rank that dies gets ``PeerLost`` at once, so does every later call that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from hicache_doctor.probes.kinds import Kind, Op
from hicache_doctor.runtime.sim_box import Box, SimWork, peer_lost, too_long
from hicache_doctor.runtime.sim_groups import Collective, Group, Meeting, Seat
from hicache_doctor.runtime.sim_kernel import Kernel, Task
from hicache_doctor.runtime.wire_names import GROUPS, OPS, SITES, members_key
from hicache_doctor.runtime.world import Proxy, Stop, Vector

_SEND, _RECV, _RECV_END = int(Kind.SEND), int(Kind.RECV), int(Kind.RECV_END)
_COLLECTIVE, _COLLECTIVE_END, _NEW_GROUP = int(Kind.COLLECTIVE), int(Kind.COLLECTIVE_END), int(Kind.NEW_GROUP)
_BROADCAST = int(Op.BROADCAST)


class Mispaired(NamedTuple):
    """Two operations of different call sites that met: ``where`` is a group, or ``tag:`` and a tag; ``seq`` the ordinal
    on it."""

    where: str
    seq: int
    rank: int
    label: str
    other_rank: int
    other_label: str


class Wire:
    """What all ranks share: boxes, groups to be, and who is gone."""

    __slots__ = ("boxes", "kernel", "meetings", "mispaired")

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.boxes: dict[tuple[int, int, str], Box] = {}
        self.meetings: dict[tuple[int, tuple[int, ...]], Meeting] = {}
        self.mispaired: list[Mispaired] = []

    def box(self, src: int, dst: int, tag: str) -> Box:
        """The box of a direction and a tag."""
        box = self.boxes.get((src, dst, tag))
        if box is None:
            box = self.boxes[src, dst, tag] = Box()
        return box

    def lose(self, lost: int) -> None:
        """Whoever is blocked on a rank that is gone learns of it, as far as it talks to it."""
        kernel = self.kernel
        for task in kernel.tasks:
            if task.why is not None and not task.over and self._needs(task, lost):
                if task.why[0] in ("all_reduce", "broadcast"):
                    c, pos = task.value
                    c.waiting.pop(pos, None)
                task.error = peer_lost(lost)
                kernel.wake(task)

    @staticmethod
    def _needs(task: Task, lost: int) -> bool:
        why = task.why
        if why is None:
            return False
        if why[0] in ("recv", "send"):
            return bool(why[1] == lost)
        if why[0] == "new_group":
            return lost in why[2]
        if why[0] not in ("all_reduce", "broadcast"):
            return False
        c, pos = task.value
        if c.kind == "broadcast" and not c.broken:
            return bool(c.cut_off(pos, {lost: True}) == lost)
        return lost in c.group.members

    def holders(self, task: Task) -> tuple[int, ...]:
        """The ranks that a blocked task waits for: the edges of the wait-for graph."""
        why = task.why
        if why is None:
            return ()
        if why[0] in ("recv", "send"):
            return (why[1],)
        if why[0] in ("all_reduce", "broadcast"):
            c, pos = task.value
            return tuple(c.holders(pos))
        if why[0] == "new_group":
            here = self.meetings[why[3], why[2]].here
            return tuple(rank for rank in why[2] if rank not in here)
        return ()


class WireEnd:
    """One rank's end of the wire: the wire methods of :class:`~hicache_doctor.runtime.world.World`.

    ``_event`` appends one tuple to the rank's events; it is called directly, for speed.
    """

    __slots__ = (
        "_boxes_in",
        "_boxes_out",
        "_event",
        "_groups_made",
        "_seats",
        "keep_ends",
        "kernel",
        "rank",
        "step",
        "wire",
    )

    def __init__(self, wire: Wire, rank: int, event: Callable[[tuple[int, ...]], None], keep_ends: bool) -> None:
        self.wire = wire
        self.kernel = wire.kernel
        self.rank = rank
        self.step = 0
        self.keep_ends = keep_ends
        self._event = event
        self._boxes_out: dict[tuple[int, str], Box] = {}
        self._boxes_in: dict[tuple[int, str], Box] = {}
        self._seats: dict[str, Seat] = {}
        self._groups_made = 0

    # -- from one rank to another

    def isend(self, dst: int, tag: str, vec: Vector, label: str) -> SimWork:
        """Start a send to a global rank."""
        return self._start(dst, tag, vec, len(vec), label)

    def isend_proxy(self, dst: int, proxy: Proxy, label: str) -> SimWork:
        """Send a self-describing proxy; it has a tag of its own."""
        return self._start(dst, "proxy", proxy, proxy.tokens, label)

    def recv(self, src: int, tag: str, n: int, label: str) -> Vector:
        """Receive into a buffer of ``n`` integers: a shorter message leaves the tail at -1, a longer one aborts."""
        vec: Vector = self._take(src, tag, n, label)
        size = len(vec)
        if size == n:
            return vec
        if size > n:
            raise too_long(size, n)
        return tuple(vec) + (-1,) * (n - size)

    def recv_proxy(self, src: int, label: str) -> Proxy:
        """Receive whatever proxy the peer sent next; ``size`` of its event is 0, for its size is not known before."""
        sent: Proxy = self._take(src, "proxy", 0, label)
        return Proxy(sent.tokens, sent.hidden)

    def _start(self, dst: int, tag: str, payload: Any, size: int, label: str) -> SimWork:
        box = self._boxes_out.get((dst, tag))
        if box is None:
            box = self._boxes_out[dst, tag] = self.wire.box(self.rank, dst, tag)
        kernel = self.kernel
        seq = box.sends_started
        box.sends_started = seq + 1
        self._event((_SEND, self.step, kernel.current.no, kernel.time, seq, dst, SITES.get(label, 0), size, 0))
        if kernel.lost and dst in kernel.lost:
            raise peer_lost(dst)
        work = SimWork(kernel, payload, dst, tag, label)
        if box.recvs:
            task = box.recvs.popleft()
            work.taken = True
            task.value = work
            task.why = None
            kernel.ready.append(task)
        else:
            box.sends.append(work)
        if kernel.preempt:
            kernel.breathe()
        return work

    def _take(self, src: int, tag: str, size: int, label: str) -> Any:
        box = self._boxes_in.get((src, tag))
        if box is None:
            box = self._boxes_in[src, tag] = self.wire.box(src, self.rank, tag)
        kernel = self.kernel
        seq = box.recvs_posted
        box.recvs_posted = seq + 1
        site = SITES.get(label, 0)
        task = kernel.current
        self._event((_RECV, self.step, task.no, kernel.time, seq, src, site, size, 0))
        if kernel.lost and src in kernel.lost:
            raise peer_lost(src)
        work: SimWork
        if box.sends:
            work = box.sends.popleft()
            work.taken = True
            waiter = work.waiter
            if waiter is not None:
                waiter.why = None
                kernel.ready.append(waiter)
        else:
            box.recvs.append(task)
            kernel.block(("recv", src, tag, label))
            work = task.value
            task.value = None
        if work.label != label:
            self.wire.mispaired.append(Mispaired(f"tag:{tag}", seq, self.rank, label, src, work.label))
        if self.keep_ends:
            self._event((_RECV_END, self.step, task.no, kernel.time, seq, src, site, size, 0))
        if kernel.preempt:
            kernel.breathe()
        return work.payload

    # -- groups

    def new_group(self, name: str, ranks: Sequence[int]) -> None:
        """Make a group; blocks until all members call it with the same list as their n-th call."""
        members = tuple(ranks)
        kernel, meetings = self.kernel, self.wire.meetings
        ordinal = self._groups_made
        self._groups_made = ordinal + 1
        code, key = GROUPS.get(name, 0), members_key(members)
        self._event((_NEW_GROUP, self.step, kernel.current.no, kernel.time, key, code, len(members), 0, 0))
        if self.rank not in members:
            return
        for rank in members:
            if rank in kernel.lost:
                raise peer_lost(rank)
        meeting = meetings.get((ordinal, members))
        if meeting is None:
            meeting = meetings[ordinal, members] = Meeting(members)
        meeting.here.append(self.rank)
        task = kernel.current
        if len(meeting.here) < len(members):
            meeting.waiting.append(task)
            kernel.block(("new_group", name, members, ordinal))
            group: Group = task.value
            task.value = None
        else:
            del meetings[ordinal, members]
            group = Group(members)
            for other in meeting.waiting:
                other.value = group
                kernel.wake(other)
        self._seats[name] = Seat(name, group, members.index(self.rank))

    def all_reduce(self, group: str, op: str, vec: Vector, label: str) -> Vector:
        """Element-wise ``min``, ``max`` or ``sum``; where members disagree on it, the first one's counts (measured)."""
        seat = self._seats[group]
        c = self._enter(seat, "all_reduce", OPS[op], vec, label)
        if seat.pos == 0:
            c.op = op
        kernel = self.kernel
        if c.missing:
            self._await(c, seat, label)
        else:
            c.reduce()
            for task in c.waiting.values():
                task.why = None
                kernel.ready.append(task)
            if kernel.preempt:
                kernel.breathe()
        if self.keep_ends:
            self._event((_COLLECTIVE_END, self.step, kernel.current.no, kernel.time, c.seq, seat.code, 0, 0, 0))
        return c.out

    def broadcast(self, group: str, vec: Vector, label: str) -> Vector:
        """The vector of the group's first member, into a buffer of ``len(vec)``: shorter keeps the own tail."""
        seat = self._seats[group]
        c = self._enter(seat, "broadcast", _BROADCAST, vec, label)
        kernel, pos = self.kernel, seat.pos
        for freed in c.flow(pos):
            if freed in c.waiting:
                if c.free(freed):
                    kernel.wake(c.waiting.pop(freed))
                elif kernel.lost and (gone := c.cut_off(freed, kernel.lost)) >= 0:
                    c.waiting[freed].error = peer_lost(gone)
                    kernel.wake(c.waiting.pop(freed))
        if not c.free(pos):
            if kernel.lost and (gone := c.cut_off(pos, kernel.lost)) >= 0:
                raise peer_lost(gone)
            self._await(c, seat, label)
        elif kernel.preempt:
            kernel.breathe()
        if self.keep_ends:
            self._event((_COLLECTIVE_END, self.step, kernel.current.no, kernel.time, c.seq, seat.code, 0, 0, 0))
        sent: Vector = c.vecs[0]
        size = len(sent)
        if size == len(vec):
            return sent
        if size > len(vec):
            raise too_long(size, len(vec))
        return sent + vec[size:]

    def _enter(self, seat: Seat, kind: str, op: int, vec: Vector, label: str) -> Collective:
        """Arrive at this rank's next ordinal of the group."""
        kernel, group, size, seq = self.kernel, seat.group, len(vec), seat.seq
        seat.seq = seq + 1
        self._event(
            (_COLLECTIVE, self.step, kernel.current.no, kernel.time, seq, seat.code, op, size, SITES.get(label, 0))
        )
        if kernel.lost:
            for rank in (group.parent(seat.pos),) if kind == "broadcast" else group.members:
                if rank in kernel.lost:
                    raise peer_lost(rank)
        c = group.open.get(seq)
        if c is None:
            c = group.open[seq] = Collective(group, kind, seq, self.rank, label, size)
        elif c.broken or c.kind != kind or (c.size != size and kind == "all_reduce"):
            self._clash(c, seat, kind, size, label)
        elif c.label != label:
            self.wire.mispaired.append(Mispaired(seat.name, seq, self.rank, label, c.rank, c.label))
        c.vecs[seat.pos] = vec
        c.missing -= 1
        if not c.missing:
            del group.open[seq]
        return c

    def _await(self, c: Collective, seat: Seat, label: str) -> None:
        task = self.kernel.current
        c.waiting[seat.pos] = task
        task.value = (c, seat.pos)
        self.kernel.block((c.kind, seat.name, c.seq, label))
        task.value = None

    def _clash(self, c: Collective, seat: Seat, kind: str, size: int, label: str) -> NoReturn:
        """Another kind or another size is there already: the smaller side aborts, or everybody hangs for good."""
        kernel = self.kernel
        if c.kind == kind and not c.broken:
            if size < c.size:
                c.broken = True
                raise too_long(c.size, size)
            smaller = c.waiting.pop(next(iter(c.waiting)))
            smaller.error = too_long(size, c.size)
            kernel.wake(smaller)
        c.broken = True
        kernel.current.value = (c, seat.pos)
        kernel.block((kind, seat.name, c.seq, label))
        raise Stop
