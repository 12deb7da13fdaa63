"""A small real transformer over paged KV: what prefix reuse has to leave unchanged, token for token.

Import this module only where torch is there; callers import it lazily. On a machine with CUDA the weights and the
device KV live on the GPU and each copy direction has its stream; that path has never run on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

import torch

from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.model import sizes
from hicache_doctor.runtime.model.attention import (
    Rows,
    forward_absorb_core,
    forward_absorb_prepare,
    forward_normal_core,
    forward_normal_prepare,
)
from hicache_doctor.runtime.model.base import ForwardBatch
from hicache_doctor.runtime.model.ledger import Ledger, claim_copy
from hicache_doctor.runtime.model.weights import Ends, Layer, end_weights, layer_weights, rms_norm
from hicache_doctor.runtime.world import Copy, Proxy, World

W = TypeVar("W", Layer, Ends)


class TensorWorld(World, Protocol):
    """A world that can also add up tensors: the one of real processes."""

    def all_reduce_tensor(self, group: str, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """The sum over the group; may be done in place."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled token and how far it was from being another one."""

    rid: int
    position: int
    token: int
    margin: float
    top: float
    """The winner's logit."""
    logits: torch.Tensor | None


class Decoder:
    """One layer of one rank."""

    def __init__(self, weights: Layer, config: Config, world: TensorWorld) -> None:
        self._w = weights
        self._dim = config.model.head_dim
        self._mla = config.model.kind == "mla"
        self._world = world
        self._replicas = world.topo.cp_size
        self._ranks = world.topo.tp_size * world.topo.cp_size

    def forward(
        self, rows: Rows, hidden: torch.Tensor, residual: torch.Tensor, cache: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states and residual after this layer; ``cache`` (slots, kv dim) gets the new tokens' KV."""
        residual = residual + hidden
        hidden = self.self_attn(rows, rms_norm(residual, self._w.attn_norm), cache)
        residual = residual + hidden
        return self.mlp(rms_norm(residual, self._w.mlp_norm)), residual

    def self_attn(self, rows: Rows, hidden: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        """Attention; the received hidden states are viewed with this stage's own token count here."""
        prepare = forward_absorb_prepare if self._mla else forward_normal_prepare
        core = forward_absorb_core if self._mla else forward_normal_core
        q, kv = prepare(self._w, rows, hidden, self._dim)
        cache.index_copy_(0, rows.out_slots, kv)
        return self._sum(core(self._w, rows, q, cache))

    def mlp(self, hidden: torch.Tensor) -> torch.Tensor:
        """SwiGLU."""
        gated = torch.nn.functional.silu(hidden @ self._w.gate) * (hidden @ self._w.up)
        return self._sum(gated @ self._w.down)

    def _sum(self, x: torch.Tensor) -> torch.Tensor:
        """Over the TP ranks. Context-parallel ranks are in the same group and compute the same, hence the division."""
        if self._ranks == 1:
            return x
        x = self._world.all_reduce_tensor("fwd", x, "forward")
        return x / self._replicas if self._replicas > 1 else x


class TransformerModel:
    """One stage's layers on one rank. Implements :class:`~hicache_doctor.runtime.model.base.Model`.

    ``samples`` keeps every sampled token with its margin, and its logits if ``keep_logits``.
    """

    def __init__(
        self, config: Config, world: TensorWorld, *, keep_logits: bool = False, device: str | None = None
    ) -> None:
        shape, topo = config.model, world.topo
        start, end = sizes.layer_range(shape, topo, world.at)
        self.layers = end - start
        self.first = world.at.pp == 0
        self.last = world.at.pp == topo.pp_size - 1
        self.samples: list[Sampled] = []
        self._keep = keep_logits
        self._hidden = shape.hidden
        self._page = config.page_size
        self._at = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._cuda = self._at.type == "cuda"
        shares = [layer_weights(shape, i).share(world.at.tp, topo.tp_size) for i in range(start, end)]
        self._decoders = [Decoder(_moved(w, self._at), config, world) for w in shares]
        self._ends = _moved(end_weights(shape), self._at) if self.first or self.last else None
        self._bytes = sizes.page_bytes(shape, self.layers, config.page_size, topo.tp_size)
        width = sizes.kv_dim(shape, topo.tp_size)
        pages = config.device_pages + 1
        self.device = torch.zeros(self.layers, pages * self._page, width, dtype=torch.float64, device=self._at)
        pages = sizes.host_pages(config, self._bytes) + 1
        self.host = torch.zeros(
            self.layers, pages * self._page, width, dtype=torch.float64, pin_memory=self._cuda
        )  # fmt: skip
        self.ledger = (Ledger("device"), Ledger("host")) if config.debug else None
        cuda: Any = torch.cuda
        self._computed = cuda.Event() if self._cuda else None
        self._streams: dict[str, Any] = {x: cuda.Stream() for x in ("write", "load")} if self._cuda else {}

    def forward(self, batch: ForwardBatch, proxy: Proxy | None) -> Proxy | list[int]:
        """Compute the batch; see :class:`Model`.

        Raises:
            RuntimeError: torch's ``shape '[…]' is invalid for input of size …`` when the proxy has other tokens.
        """
        if not batch.items:
            return self._idle(proxy)
        rows = Rows.of(batch.items, batch.tokens, self._page, self._at)
        if proxy is None:
            assert self._ends is not None
            hidden = self._ends.embed[rows.ids]
            residual = torch.zeros_like(hidden)
        else:
            hidden, residual = proxy.hidden.to(self._at)
        for layer, decoder in enumerate(self._decoders):
            batch.wait_layer(layer)
            if self.ledger is not None:
                self.ledger[0].compute(layer, rows.read_pages, rows.write_pages)
            hidden, residual = decoder.forward(rows, hidden, residual, self.device[layer])
        if self._computed is not None:
            self._computed.record()
        if not self.last:
            return Proxy(batch.tokens, torch.stack((hidden, residual)))
        return self._sample(batch, (hidden + residual)[rows.last])

    def _idle(self, proxy: Proxy | None) -> Proxy | list[int]:
        """An empty batch, as DP attention has them; the whole group is idle, so nothing is summed up."""
        nothing = torch.zeros(0, self._hidden, dtype=torch.float64, device=self._at)
        if proxy is not None:
            nothing = proxy.hidden[0].view(0, self._hidden)  # another length breaks here too
        return [] if self.last else Proxy(0, torch.stack((nothing, nothing)))

    def _sample(self, batch: ForwardBatch, hidden: torch.Tensor) -> list[int]:
        """Greedy. Token 0 is never sampled: it means no token."""
        assert self._ends is not None
        logits = rms_norm(hidden, self._ends.norm) @ self._ends.head
        logits[:, 0] = float("-inf")
        best = logits.topk(2, -1)
        tokens: list[int] = []
        rows = zip(batch.items, logits, best.values.tolist(), best.indices[:, 0].tolist(), strict=True)
        for item, row, (top, second), token in rows:
            if item.sample:
                tokens.append(token)
                kept = row.cpu().clone() if self._keep else None
                at = item.start + len(item.ids)
                self.samples.append(Sampled(item.rid, at, token, top - second, top, kept))
        return tokens

    def write_back(self, device: Sequence[int], host: Sequence[int]) -> Copy:
        """Device pages to host pages."""
        return self._copy("write", self.device, device, self.host, host)

    def load(self, host: Sequence[int], device: Sequence[int]) -> Copy:
        """Host pages to device pages."""
        return self._copy("load", self.host, host, self.device, device)

    def _copy(
        self, stream: str, source: torch.Tensor, read: Sequence[int], target: torch.Tensor, write: Sequence[int]
    ) -> Copy:
        """``run`` is called by the world's copy thread, layer by layer; a layer is moved when it returns."""
        by_page = (self.layers, -1, self._page * source.shape[-1])
        from_, to = source.view(by_page), target.view(by_page)
        a, b = torch.tensor(read, device=source.device), torch.tensor(write, device=target.device)
        layer_done = claim_copy(self.ledger, stream, read, write, self.layers) if self.ledger is not None else None

        def run(layer: int) -> None:
            if self._cuda:
                self._run_on_stream(stream, layer, from_, a, to, b)
            else:
                to[layer].index_copy_(0, b, from_[layer].index_select(0, a))
            if layer_done is not None:
                layer_done(layer)

        return Copy(len(read), self.layers, run)

    def _run_on_stream(
        self, stream: str, layer: int, from_: torch.Tensor, a: torch.Tensor, to: torch.Tensor, b: torch.Tensor
    ) -> None:
        """One layer on the direction's own stream, after what the forward pass enqueued (never run on a GPU yet)."""
        on = self._streams[stream]
        if self._computed is not None:
            on.wait_event(self._computed)
        with torch.cuda.stream(on):
            moved = from_[layer].index_select(0, a).to(to.device, non_blocking=True)
            if to.is_cuda:
                to[layer].index_copy_(0, b, moved)
            done = on.record_event()
        done.synchronize()
        if not to.is_cuda:
            to[layer].index_copy_(0, b, moved)

    def read_host(self, page: int) -> bytes:
        """The bytes of one host page, all layers of the stage."""
        at = page * self._page
        data: bytes = self.host[:, at : at + self._page].contiguous().numpy().tobytes()
        return data

    def write_host(self, page: int, data: bytes) -> None:
        """Fill a host page from L3.

        Raises:
            ValueError: the data has another size than a page (it is of a stage with other layers, say).
        """
        if len(data) != self._bytes:
            raise ValueError(f"{len(data)} bytes for a page of {self._bytes}")
        at = page * self._page
        target = self.host[:, at : at + self._page]
        target.copy_(torch.frombuffer(bytearray(data), dtype=torch.float64).view(target.shape))

    def page_bytes(self) -> int:
        """Bytes of one page of this stage, all layers."""
        return self._bytes


def _moved(weights: W, device: torch.device) -> W:
    """The same weights on another device."""
    if device.type == "cpu":
        return weights
    parts: dict[str, Any] = {f.name: getattr(weights, f.name) for f in fields(weights)}
    for name, x in parts.items():
        parts[name] = None if x is None else x.to(device)
    return type(weights)(**parts)
