"""The wire of a real rank: torch.distributed over gloo, loopback only.

Functions carry the names that a stack of a hung SGLang rank shows (``send_tensor_dict``, ``recv_object``, …); below
them stand torch's own ``all_reduce``, ``broadcast``, ``isend``, ``recv`` and ``new_group``. What gloo does is not
softened: a message that is shorter than the buffer is accepted, a longer one aborts the receiver, a dead peer is a
RuntimeError with gloo's own text, and a hung call ends only by the time-out.
"""

from __future__ import annotations

import functools
import zlib
from array import array
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hicache_doctor.probes.kinds import Kind, Op
from hicache_doctor.runtime.recording import Record
from hicache_doctor.runtime.wire_names import GROUPS, OPS, SITES, members_key
from hicache_doctor.runtime.world import Proxy, Vector

# Upstream sends all of pp_sync under tag 2 (#27285) and so mixes messages of different length on one queue.
TAGS = {
    "sync": 2, "req.n": 3, "req": 4, "proxy.meta": 5, "proxy": 6, "out.n": 7, "out": 8, "plan.n": 9, "plan": 10,
    "cons.n": 11, "cons": 12, "chunk.n": 13, "chunk": 14, "capacity": 15, "timeouts": 16,
}  # fmt: skip
_FREE_TAGS = 1000
_REDUCE = {"min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX, "sum": dist.ReduceOp.SUM}
# A proxy's metadata: tokens, code of the payload, rank and up to six dimensions of the tensor.
_NOTHING, _INTEGERS, _TENSOR = 0, 1, 2
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8)
_DIMS = 6
_META = 3 + _DIMS


@functools.cache
def tag_number(name: str) -> int:
    """The number under which a tag travels: the same in every process and run."""
    return TAGS.get(name) or _FREE_TAGS + zlib.crc32(name.encode()) % (1 << 30)


def _integers(vec: Sequence[int]) -> torch.Tensor:
    """A tensor of integers; a third of what ``torch.tensor`` of a sequence costs, many times a step."""
    return torch.frombuffer(array("q", vec), dtype=torch.int64) if vec else torch.empty(0, dtype=torch.int64)


class _Cells:
    """A tensor that is used again and again, and its memory as Python's own integers."""

    __slots__ = ("_blank", "cells", "tensor")

    def __init__(self, n: int) -> None:
        self._blank = array("q", [-1]) * n
        self.cells = self._blank[:]
        self.tensor = torch.frombuffer(self.cells, dtype=torch.int64) if n else torch.empty(0, dtype=torch.int64)

    def blank(self) -> torch.Tensor:
        """The tensor, all -1: what a message that is shorter than its buffer leaves behind shows."""
        self.cells[:] = self._blank
        return self.tensor

    def fill(self, vec: Vector) -> torch.Tensor:
        """The tensor with these values."""
        self.cells[:] = array("q", vec)
        return self.tensor


class GlooWork:
    """The handle of a send. gloo copies nothing, so the tensors live here until the peer has taken them."""

    __slots__ = ("_done", "_sent")

    def __init__(self, sent: list[tuple[Any, torch.Tensor]]) -> None:
        self._sent = sent
        self._done = False

    def wait(self) -> None:
        """Block until the peer has posted the receive."""
        for work, _ in self._sent:
            work.wait()
        self._sent = []
        self._done = True

    def is_completed(self) -> bool:
        """True once :meth:`wait` returned; gloo says no before that, even when the peer has the message (#28916)."""
        return self._done


class GlooWire:
    """All of a rank's groups and point-to-point messages; the default process group must exist.

    ``beat`` is called when an operation ended. A collective's seq counts per group, a message's per peer and tag.
    """

    def __init__(self, timeout: int, record: Record, beat: Callable[[], None], device: str = "cpu") -> None:
        """``timeout`` in nanoseconds, for the groups made here; the default group has its own."""
        self.rank: int = dist.get_rank()
        self._timeout = timedelta(microseconds=timeout / 1000)
        self._record = record
        self._beat = beat
        self._device = device
        self._groups: dict[str, tuple[Any, tuple[int, ...]]] = {"world": (None, tuple(range(dist.get_world_size())))}
        self._calls: dict[str, int] = {}
        self._sends: dict[tuple[int, str], int] = {}
        self._recvs: dict[tuple[int, str], int] = {}
        # By group, or peer and tag, and size: each of them is one thread's, which waits until its operation has ended.
        self._cells: dict[tuple[str | int, str, int], _Cells] = {}

    # -- groups -------------------------------------------------------------------------------------------------

    def new_group(self, name: str, ranks: Sequence[int]) -> None:
        """Make a group of ``ranks``; blocks for its members only, until all of them call it with the same list as their
        n-th call."""
        self._record(Kind.NEW_GROUP, members_key(ranks), GROUPS.get(name, 0), len(ranks), 0, 0)
        if self.rank not in ranks:
            # torch counts the groups that a process knows into the name under which the members meet: count this one
            # too, or a later group of ours and of its members would have two names.
            dist.distributed_c10d._world.pg_names[object()] = f"of others: {name}"
            return
        group = dist.new_group(list(ranks), timeout=self._timeout, backend="gloo", use_local_synchronization=True)
        self._groups[name] = (group, tuple(ranks))
        self._beat()

    def all_reduce(self, name: str, op: str, vec: Vector, label: str) -> Vector:
        """Element-wise ``min``, ``max`` or ``sum`` of integers."""
        buffer = self._buffer(name, "", len(vec))
        self._reduce(name, op, buffer.fill(vec), label)
        return tuple(buffer.cells)

    def all_reduce_tensor(self, name: str, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """The sum over the group of a model's tensor, in place where it lies in host memory."""
        held = tensor.cpu() if tensor.is_cuda else tensor
        self._reduce(name, "sum", held, label)
        return held.to(tensor.device)

    def broadcast(self, name: str, vec: Vector, label: str) -> Vector:
        """The vector of the group's first member."""
        group, ranks = self._groups[name]
        buffer = self._buffer(name, "", len(vec))
        seq = self._enter(name, Op.BROADCAST, len(vec), label)
        dist.broadcast(buffer.fill(vec), ranks[0], group=group)
        self._leave(name, seq)
        return tuple(buffer.cells)

    def _buffer(self, name: str | int, tag: str, n: int) -> _Cells:
        key = (name, tag, n)
        found = self._cells.get(key)
        if found is None:
            found = self._cells[key] = _Cells(n)
        return found

    def _reduce(self, name: str, op: str, tensor: torch.Tensor, label: str) -> None:
        group, _ = self._groups[name]
        seq = self._enter(name, OPS[op], tensor.numel(), label)
        dist.all_reduce(tensor, _REDUCE[op], group=group)
        self._leave(name, seq)

    def _enter(self, name: str, op: int, size: int, label: str) -> int:
        seq = self._calls.get(name, 0)
        self._calls[name] = seq + 1
        self._record(Kind.COLLECTIVE, seq, GROUPS.get(name, 0), op, size, SITES.get(label, 0))
        return seq

    def _leave(self, name: str, seq: int) -> None:
        self._record(Kind.COLLECTIVE_END, seq, GROUPS.get(name, 0), 0, 0, 0)
        self._beat()

    # -- messages -----------------------------------------------------------------------------------------------

    def isend(self, dst: int, tag: str, vec: Vector, label: str) -> GlooWork:
        """Start to send integers."""
        self._sending(dst, tag, len(vec), label)
        return GlooWork([self._start(_integers(vec), dst, tag)])

    def recv(self, src: int, tag: str, n: int, label: str) -> Vector:
        """Receive into ``n`` integers, which are -1 where the message was shorter."""
        seq = self._receiving(src, tag, n, label)
        buffer = self._buffer(src, tag, n)
        dist.recv(buffer.blank(), src, tag=tag_number(tag))
        self._received(seq, src, n, label)
        return tuple(buffer.cells)

    def send_tensor_dict(self, dst: int, proxy: Proxy, label: str) -> GlooWork:
        """Start to send a proxy: its metadata, then its payload."""
        meta, payload = _packed(proxy)
        self._sending(dst, "proxy", proxy.tokens, label)
        sent = [self.send_object(dst, meta)]
        if payload is not None:
            sent.append(self._start(payload, dst, "proxy"))
        return GlooWork(sent)

    def send_object(self, dst: int, meta: Vector) -> tuple[Any, torch.Tensor]:
        """Start to send the metadata of a proxy."""
        return self._start(_integers(meta), dst, "proxy.meta")

    def recv_tensor_dict(self, src: int, label: str) -> Proxy:
        """Receive whatever proxy comes next; the size of its events is 0, for it is not known before."""
        seq = self._receiving(src, "proxy", 0, label)
        tokens, code, dims, *shape = self.recv_object(src)
        hidden: Any = None
        if code == _INTEGERS:
            hidden = tuple(self._payload(src, shape[:1], torch.int64).tolist())
        elif code >= _TENSOR:
            hidden = self._payload(src, shape[:dims], _DTYPES[code - _TENSOR]).to(self._device)
        self._received(seq, src, 0, label)
        return Proxy(tokens, hidden)

    def recv_object(self, src: int) -> Vector:
        """Receive the metadata of a proxy."""
        buffer = self._buffer(src, "proxy.meta", _META)
        dist.recv(buffer.blank(), src, tag=tag_number("proxy.meta"))
        return tuple(buffer.cells)

    def _payload(self, src: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(tuple(shape), dtype=dtype)
        if tensor.numel():
            dist.recv(tensor, src, tag=tag_number("proxy"))
        return tensor

    def _start(self, tensor: torch.Tensor, dst: int, tag: str) -> tuple[Any, torch.Tensor]:
        return dist.isend(tensor, dst, tag=tag_number(tag)), tensor

    def _sending(self, dst: int, tag: str, size: int, label: str) -> None:
        seq = self._sends.get((dst, tag), 0)
        self._sends[dst, tag] = seq + 1
        self._record(Kind.SEND, seq, dst, SITES.get(label, 0), size, 0)

    def _receiving(self, src: int, tag: str, size: int, label: str) -> int:
        seq = self._recvs.get((src, tag), 0)
        self._recvs[src, tag] = seq + 1
        self._record(Kind.RECV, seq, src, SITES.get(label, 0), size, 0)
        return seq

    def _received(self, seq: int, src: int, size: int, label: str) -> None:
        self._record(Kind.RECV_END, seq, src, SITES.get(label, 0), size, 0)
        self._beat()


def _packed(proxy: Proxy) -> tuple[Vector, torch.Tensor | None]:
    """Metadata and payload (None where there is nothing to send)."""
    hidden = proxy.hidden
    if hidden is None:
        return (proxy.tokens, _NOTHING, 0, *(0,) * _DIMS), None
    if isinstance(hidden, torch.Tensor):
        tensor = hidden.detach().cpu().contiguous()
        code = _TENSOR + _DTYPES.index(tensor.dtype)
    else:
        tensor = _integers(hidden)
        code = _INTEGERS
    shape = tuple(tensor.shape)
    meta = (proxy.tokens, code, len(shape), *shape, *(0,) * (_DIMS - len(shape)))
    return meta, tensor if tensor.numel() else None
