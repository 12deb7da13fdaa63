"""The door between protocol code and everything that blocks, ticks, starts a thread, moves a byte or rolls dice.

Protocol modules import this file and plain standard-library containers, nothing else that touches the outside. Two
worlds implement :class:`World`: real processes (gloo, threads, wall clock) and the deterministic simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

MASK = (1 << 64) - 1
Vector = tuple[int, ...]
TapeKey = tuple[int, str, int]
"""(step, or ordinal of a background operation; kind of observation; n-th of that kind there)."""
Tape = Sequence[tuple[TapeKey, Vector]]

CONTROLLER = -1
"""The DP controller's key among the tapes of ranks."""


def mix(a: int, b: int) -> int:
    """A 64-bit hash of two integers that is the same in every process, Python version and run (never ``hash()``)."""
    x = (a * 0x9E3779B97F4A7C15 + b + 0x632BE59BD9B4E019) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    return x ^ (x >> 27)


class Rand:
    """A 64-bit linear congruential generator: the standard library's may change between versions."""

    __slots__ = ("state",)

    def __init__(self, seed: int) -> None:
        self.state = mix(seed, 0x5EED)

    def below(self, n: int) -> int:
        """A number in [0, n)."""
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & MASK
        return ((self.state >> 33) * n) >> 31


class PeerLost(RuntimeError):
    """A member of the group is gone; the message is gloo's (``Connection closed by peer``)."""


class WireAbort(RuntimeError):
    """A message longer than the posted buffer: gloo aborts the receiving process (SIGABRT)."""


class Stop(BaseException):
    """Ends a task whose world is being closed; protocol code never catches it."""


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a rank in the grid."""

    dp: int
    pp: int
    cp: int
    tp: int


@dataclass(frozen=True, slots=True)
class Topology:
    """The grid dp × pp × cp × tp; ranks count tp fastest, then cp, pp, dp."""

    pp_size: int = 1
    tp_size: int = 1
    dp_size: int = 1
    cp_size: int = 1

    @property
    def n(self) -> int:
        """How many ranks there are."""
        return self.dp_size * self.pp_size * self.cp_size * self.tp_size

    @property
    def sizes(self) -> dict[str, int]:
        """The grid under SGLang's argument names."""
        return {
            "dp_size": self.dp_size,
            "pp_size": self.pp_size,
            "attn_cp_size": self.cp_size,
            "tp_size": self.tp_size,
        }

    def rank(self, pp: int, tp: int, dp: int = 0, cp: int = 0) -> int:
        """The global rank at a position."""
        return ((dp * self.pp_size + pp) * self.cp_size + cp) * self.tp_size + tp

    def place(self, rank: int) -> Place:
        """The position of a global rank."""
        rest, tp = divmod(rank, self.tp_size)
        rest, cp = divmod(rest, self.cp_size)
        dp, pp = divmod(rest, self.pp_size)
        return Place(dp, pp, cp, tp)

    def lines(self, axis: str) -> list[list[int]]:
        """The rank lists that run along one axis (``dp``, ``pp``, ``cp`` or ``tp``), by their first ranks."""
        inner = ("tp", "cp", "pp", "dp").index(axis)
        sizes = (self.tp_size, self.cp_size, self.pp_size, self.dp_size)
        stride = math.prod(sizes[:inner])
        span = stride * sizes[inner]
        firsts = (base + i for base in range(0, self.n, span) for i in range(stride))
        return [list(range(first, first + span, stride)) for first in firsts]

    def label(self, rank: int) -> str:
        """What SGLang's log prefix calls the rank: ``PP1 TP0``, with ``DP0`` and ``ATTN_CP0`` where there are more."""
        at = self.place(rank)
        names = [f"DP{at.dp}"] if self.dp_size > 1 else []
        if self.pp_size > 1:
            names.append(f"PP{at.pp}")
        if self.cp_size > 1:
            names.append(f"ATTN_CP{at.cp}")
        names.append(f"TP{at.tp}")
        return " ".join(names)


class Finish(Protocol):
    """The finish event of one copy (a CUDA event on a GPU)."""

    def query(self) -> bool:
        """Whether the copy is done, without blocking."""

    def synchronize(self) -> None:
        """Block until the copy is done."""

    def wait_layer(self, layer: int) -> None:
        """Block until layer ``layer`` (0-based within the stage) of the copy is done."""


@dataclass(slots=True)
class Copy:
    """One batched copy between tiers: ``run(layer)`` moves the bytes of one layer of all pages."""

    pages: int
    layers: int
    run: Callable[[int], None]


class Engine(Protocol):
    """A copy stream: copies finish in the order of submission."""

    def submit(self, copy: Copy) -> Finish:
        """Start a copy; never blocks."""


class Queue(Protocol):
    """A FIFO between one producer and one consumer."""

    def put(self, item: Any) -> None:
        """Append; never blocks."""

    def get(self) -> Any:
        """Take the first item; blocks while empty."""

    def qsize(self) -> int:
        """How many items wait."""


class Task(Protocol):
    """A thread of a rank."""

    def join(self) -> None:
        """Block until it has ended."""


class Work(Protocol):
    """The handle of an asynchronous send."""

    def wait(self) -> None:
        """Block until the peer has posted the receive (gloo: a send is a rendezvous)."""

    def is_completed(self) -> bool:
        """False until :meth:`wait` returned, even when the peer has the message (gloo, torch 2.13)."""


@dataclass(slots=True)
class Proxy:
    """What one stage hands to the next: hidden states of ``tokens`` tokens (SGLang's PPProxyTensors)."""

    tokens: int
    hidden: Any


class Storage(Protocol):
    """An L3 backend as one rank sees it. Keys are page hashes; the backend adds model and rank names.

    ``pages`` are host page numbers. A call returns how many *leading* pages it served and never raises for what is
    missing or broken: SGLang's backends log and return short.
    """

    def exists(self, keys: Sequence[int]) -> int:
        """Length of the contiguous prefix of ``keys`` that is stored."""

    def get(self, keys: Sequence[int], pages: Sequence[int]) -> int:
        """Read pages into the host pool."""

    def put(self, keys: Sequence[int], pages: Sequence[int]) -> int:
        """Write pages of the host pool."""


class Line(Protocol):
    """From a rank to the DP controller and back."""

    def poll(self) -> list[Vector]:
        """The letters that came since the last call; never blocks. Physical progress: observe them."""

    def report(self, load: Vector) -> None:
        """The group's load (stamp, requests, tokens), for the controller to look at when it likes; never blocks."""


class World(Protocol):
    """One rank's view of its world. Every method that may block says so."""

    rank: int
    topo: Topology
    at: Place
    step: int
    line: Line | None
    """Only of a rank that the DP controller sends to."""

    # -- time
    def now(self) -> int:
        """Nanoseconds, monotonic; enters decisions only through :meth:`observe`."""

    def sleep(self, ns: int) -> None:
        """Block for ``ns``."""

    def tick(self, step: int) -> None:
        """A new scheduler step begins."""

    # -- tasks
    def spawn(self, name: str, fn: Callable[..., None], *args: Any) -> Task:
        """Start a thread; an exception in it kills the rank."""

    def queue(self, name: str) -> Queue:
        """A new queue."""

    def engine(self, name: str) -> Engine:
        """The copy stream ``write`` (device to host) or ``load`` (host to device)."""

    # -- wire
    def new_group(self, name: str, ranks: Sequence[int]) -> None:
        """Make a process group under ``name``. A collective of its members: blocks until all of them call it with the
        same ranks. A rank outside ``ranks`` returns at once."""

    def all_reduce(self, group: str, op: str, vec: Vector, label: str) -> Vector:
        """Element-wise ``min``, ``max`` or ``sum``; blocks for the last member."""

    def broadcast(self, group: str, vec: Vector, label: str) -> Vector:
        """The vector of the group's first member; all vectors have the same length."""

    def isend(self, dst: int, tag: str, vec: Vector, label: str) -> Work:
        """Start a send to a global rank."""

    def recv(self, src: int, tag: str, n: int, label: str) -> Vector:
        """Receive into a buffer of ``n`` integers, with gloo's rules: a shorter message leaves the tail at -1, a
        longer one raises WireAbort (in real processes SIGABRT)."""

    def isend_proxy(self, dst: int, proxy: Proxy, label: str) -> Work:
        """Send a self-describing proxy (metadata first, as upstream's tensor dict)."""

    def recv_proxy(self, src: int, label: str) -> Proxy:
        """Receive whatever proxy the peer sent next."""

    # -- evidence
    def observe(
        self, kind: str, seen: Vector, bound: Vector | None = None, at: int | None = None, nth: int | None = None
    ) -> Vector:
        """The one door for physical progress (ready acks, queue lengths, lateness, arrivals): taped, or replayed.

        A replayed count never exceeds ``bound`` (what this run has in flight), so that a tape of another run cannot
        look like a queue that is popped empty; and where the taped run had nothing more in flight, a count says nothing
        about what this one has more. The scheduler's thread is keyed by its step; a background thread has no
        step and names ``at`` (the ordinal of its operation) and ``nth`` itself.
        """

    def record(self, kind: int, key: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> None:
        """One probe event; see ``probes/kinds.py``."""

    def log(self, text: str, level: str = "INFO") -> None:
        """One line of the rank's log, in SGLang's format."""


class Observations:
    """The tape of one rank: records what was observed, or replays another run's."""

    __slots__ = ("_at", "_n", "log", "misses", "tape")

    def __init__(self, replay: Tape | None = None) -> None:
        self.log: list[tuple[TapeKey, Vector]] = []
        self.misses = 0
        self.tape: Mapping[TapeKey, Vector] | None = None
        if replay is not None:
            self.tape = {(k[0], k[1], k[2]): tuple(v) for k, v in replay}
        self._at = -1
        self._n: dict[str, int] = {}

    def __call__(self, step: int, kind: str, seen: Vector, bound: Vector | None, nth: int | None = None) -> Vector:
        """``seen``, or what the tape says was seen at (step, kind, nth). ``misses``: not so replayed."""
        if nth is None:
            if step != self._at:
                self._at = step
                self._n.clear()
            nth = self._n.get(kind, 0)
            self._n[kind] = nth + 1
        key = (step, kind, nth)
        taped = None if self.tape is None else self.tape.get(key)
        if self.tape is not None and taped is None:
            self.misses += 1
        if bound is None:
            if taped is not None:
                seen = taped
            self.log.append((key, seen))
            return seen
        if taped is not None:
            *values, full = taped
            # What was all there was may be more in this run, what was late is late again, nothing comes from nowhere.
            seen = tuple(
                min(max(t, s) if full >> i & 1 else t, b)
                for i, (t, s, b) in enumerate(zip(values, seen, bound, strict=True))
            )
            self.misses += seen != tuple(values)
        complete = sum(1 << i for i, (s, b) in enumerate(zip(seen, bound, strict=True)) if s == b)
        self.log.append((key, (*seen, complete)))
        return seen
