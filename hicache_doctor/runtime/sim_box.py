"""Messages between two ranks, and gloo's words for what goes wrong with them."""

from __future__ import annotations

from collections import deque
from typing import Any

from hicache_doctor.runtime.sim_kernel import Kernel, Task
from hicache_doctor.runtime.world import PeerLost, WireAbort

INT_BYTES = 8
FIRST_PORT = 29500
_GLOO = "/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc"


def peer_lost(rank: int) -> PeerLost:
    """gloo's words for a dead peer; the port stands for the rank."""
    return PeerLost(
        f"[{_GLOO}:553] Connection closed by peer [127.0.0.1]:{FIRST_PORT + rank}. This is typically caused by a "
        "remote worker crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️"
    )


def too_long(ints: int, room: int) -> WireAbort:
    """gloo's words for a message that is longer than the posted buffer."""
    return WireAbort(
        f"[enforce fail at {_GLOO}:456] op.preamble.length <= op.nbytes. {ints * INT_BYTES} vs {room * INT_BYTES}. "
        "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?"
    )


class Box:
    """All messages of one (source, destination, tag): sends without a posted receive, or receives that wait."""

    __slots__ = ("recvs", "recvs_posted", "sends", "sends_started")

    def __init__(self) -> None:
        self.sends: deque[SimWork] = deque()
        self.recvs: deque[Task] = deque()
        self.sends_started = 0
        self.recvs_posted = 0


class SimWork:
    """The handle of a send. ``payload`` travels by reference: gloo copies nothing before the rendezvous."""

    __slots__ = ("_completed", "dst", "kernel", "label", "payload", "tag", "taken", "waiter")

    def __init__(self, kernel: Kernel, payload: Any, dst: int, tag: str, label: str) -> None:
        self.kernel = kernel
        self.payload = payload
        self.dst = dst
        self.tag = tag
        self.label = label
        self.taken = False
        self.waiter: Task | None = None
        self._completed = False

    def wait(self) -> None:
        """Block until the peer has posted the receive."""
        if not self.taken:
            kernel = self.kernel
            if self.dst in kernel.lost:
                raise peer_lost(self.dst)
            self.waiter = kernel.current
            kernel.block(("send", self.dst, self.tag, self.label))
        self._completed = True

    def is_completed(self) -> bool:
        """False until :meth:`wait` returned."""
        return self._completed
