"""Copy streams: pages really move, layer by layer, and take the time that the fault plan says.

On a CPU a stream is a thread. On a GPU it is a CUDA stream with an event a layer. Either way a finish event may be
*gated*: seen as done only some scheduler steps after the submission, so that an order is forced and not left to luck.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from hicache_doctor.runtime.faults import CopyLag, FaultPlan
from hicache_doctor.runtime.world import Copy, Place, Rand, mix

LATENCY = 100_000
"""Nanoseconds before a copy starts to move."""
PAGE = 20_000
"""Nanoseconds a page takes, all layers."""
_STREAMS = {"write": 1, "load": 2}


class Pace:
    """How long each copy of one stream takes, and from which step on it may be seen as done."""

    def __init__(self, name: str, faults: FaultPlan, at: Place, rank: int) -> None:
        self._faults = faults
        self._slow = dict(faults.slow_copy).get(at.pp, 1)
        self._seed = mix(mix(faults.seed, rank), _STREAMS.get(name, 3))
        self._lags = [lag for lag in faults.copy_lag if _meant(lag, name, at)]
        self._count = 0

    def next(self, pages: int, step: int) -> tuple[int, int]:
        """Nanoseconds that the next copy takes, and the first step at which it may be seen."""
        self._count += 1
        swing = Rand(mix(self._seed, self._count)).below(2001) - 1000  # -1 … 1 in thousandths
        took = (LATENCY + pages * PAGE) * self._slow
        took += took * swing * self._faults.jitter // 100_000
        gates = [step + lag.steps for lag in self._lags if self._count % max(1, lag.every) == 0]
        return max(0, took), max(gates, default=step)


def _meant(lag: CopyLag, name: str, at: Place) -> bool:
    return lag.engine == name and lag.pp == at.pp and lag.tp in (-1, at.tp)


class CopyFinish:
    """The finish event of a copy that a thread makes."""

    __slots__ = ("_changed", "_done", "_gate", "_layers", "_step")

    def __init__(self, layers: int, gate: int, step: Callable[[], int], changed: threading.Condition) -> None:
        self._layers = layers
        self._gate = gate
        self._step = step
        self._changed = changed
        self._done = 0

    def query(self) -> bool:
        """Done, and the gate is open."""
        return self._done >= self._layers and self._step() >= self._gate

    def synchronize(self) -> None:
        """Block until the bytes are there; not for the gate, which opens by steps that a blocked rank cannot take."""
        self.wait_layer(self._layers - 1)

    def wait_layer(self, layer: int) -> None:
        """Block until layer ``layer`` (0-based) is there."""
        with self._changed:
            while self._done <= layer:
                self._changed.wait()

    def advance(self) -> None:
        """One more layer is there."""
        with self._changed:
            self._done += 1
            self._changed.notify_all()


class ThreadEngine:
    """A stream that is a thread; copies are made in order."""

    def __init__(self, name: str, pace: Pace, step: Callable[[], int], beat: Callable[[], None]) -> None:
        self._pace = pace
        self._step = step
        self._beat = beat
        self._changed = threading.Condition()
        self._todo: SimpleQueue[tuple[Copy, CopyFinish, int]] = SimpleQueue()
        threading.Thread(target=self._copy_stream, name=f"copy-{name}", daemon=True).start()

    def submit(self, copy: Copy) -> CopyFinish:
        """Queue a copy; never blocks."""
        took, gate = self._pace.next(copy.pages, self._step())
        finish = CopyFinish(copy.layers, gate, self._step, self._changed)
        self._todo.put((copy, finish, took))
        return finish

    def _copy_stream(self) -> None:
        while True:
            copy, finish, took = self._todo.get()
            for layer in range(copy.layers):
                time.sleep(took / copy.layers / 1e9)
                copy.run(layer)
                finish.advance()
                self._beat()


class CudaFinish:
    """The finish event of a copy on a CUDA stream (written with care, not yet run on a GPU)."""

    __slots__ = ("_events", "_gate", "_step")

    def __init__(self, events: list[Any], gate: int, step: Callable[[], int]) -> None:
        self._events = events
        self._gate = gate
        self._step = step

    def query(self) -> bool:
        """Done, and the gate is open."""
        return all(e.query() for e in self._events[-1:]) and self._step() >= self._gate

    def synchronize(self) -> None:
        """Block until the bytes are there."""
        for event in self._events[-1:]:
            event.synchronize()

    def wait_layer(self, layer: int) -> None:
        """Let the compute stream wait for layer ``layer``; the host does not."""
        import torch

        torch.cuda.current_stream().wait_event(self._events[layer])


class CudaEngine:
    """A stream on a GPU (written with care, not yet run on one).

    It starts behind what the compute stream has in flight: a write reads what the forward wrote, a load must not
    overwrite slots that a running forward still reads. A slower copy is made by keeping the stream busy before it.
    """

    CYCLES_PER_NS = 1.5

    def __init__(self, pace: Pace, step: Callable[[], int]) -> None:
        import torch

        self._pace = pace
        self._step = step
        self._stream = torch.cuda.Stream()

    def submit(self, copy: Copy) -> CudaFinish:
        """Enqueue a copy; never blocks if the host pages are pinned."""
        import torch

        took, gate = self._pace.next(copy.pages, self._step())
        events = []
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for layer in range(copy.layers):
                torch.cuda._sleep(int(took / copy.layers * self.CYCLES_PER_NS))
                copy.run(layer)
                event = torch.cuda.Event()
                event.record(self._stream)
                events.append(event)
        return CudaFinish(events, gate, self._step)
