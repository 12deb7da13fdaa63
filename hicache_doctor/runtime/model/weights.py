"""The weights of the small transformer: seeded a layer at a time, so that every split over stages and ranks is the same
function."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from hicache_doctor.runtime.config import ModelShape
from hicache_doctor.runtime.model.sizes import rope_dim
from hicache_doctor.runtime.world import mix

SEED = 20
"""Not the run's seed: pages in a store stay valid for runs with another workload."""
EPS = 1e-6
ROPE_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights, whole or one TP rank's share. Matrices are (in, out); per-head ones start with the head.

    MHA uses ``wk`` and ``wv``; MLA ``wkv_a`` (to the latent and its rotary key), ``kv_norm``, ``w_kc`` and ``w_vc``
    (from the latent to a head's K and V).
    """

    attn_norm: torch.Tensor
    mlp_norm: torch.Tensor
    wq: torch.Tensor  # hidden, heads, q dim
    wo: torch.Tensor  # heads, head dim, hidden
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    wk: torch.Tensor | None = None
    wv: torch.Tensor | None = None
    wkv_a: torch.Tensor | None = None
    kv_norm: torch.Tensor | None = None
    w_kc: torch.Tensor | None = None
    w_vc: torch.Tensor | None = None

    def share(self, tp: int, tp_size: int) -> Layer:
        """The share of one TP rank: its heads and its slice of the MLP; what all ranks need is not split."""
        if tp_size == 1:
            return self

        def part(x: torch.Tensor | None, dim: int) -> torch.Tensor | None:
            return None if x is None else x.chunk(tp_size, dim)[tp].contiguous()

        def some(x: torch.Tensor, dim: int) -> torch.Tensor:
            return x.chunk(tp_size, dim)[tp].contiguous()

        return Layer(
            self.attn_norm,
            self.mlp_norm,
            some(self.wq, 1),
            some(self.wo, 0),
            some(self.gate, 1),
            some(self.up, 1),
            some(self.down, 0),
            part(self.wk, 1),
            part(self.wv, 1),
            self.wkv_a,
            self.kv_norm,
            part(self.w_kc, 0),
            part(self.w_vc, 0),
        )


@dataclass(frozen=True, slots=True)
class Ends:
    """What stands before the first layer and after the last."""

    embed: torch.Tensor
    norm: torch.Tensor
    head: torch.Tensor


class _Dice:
    """Seeded normal numbers for one layer."""

    def __init__(self, layer: int) -> None:
        self._g = torch.Generator().manual_seed(mix(SEED, layer) >> 1)

    def matrix(self, *size: int, fan_in: int) -> torch.Tensor:
        """A matrix whose product keeps the size of what it gets."""
        x = torch.randn(*size, generator=self._g, dtype=torch.float64)
        return x / math.sqrt(fan_in)

    def scale(self, n: int) -> torch.Tensor:
        """A norm's weight, near one."""
        return 1 + torch.randn(n, generator=self._g, dtype=torch.float64) / 10


def layer_weights(shape: ModelShape, layer: int) -> Layer:
    """The whole weights of layer ``layer`` of the model."""
    d, h, heads, dim = _Dice(layer), shape.hidden, shape.heads, shape.head_dim
    inter = 2 * h
    mla = shape.kind == "mla"
    rope = rope_dim(shape) if mla else 0
    base = {
        "attn_norm": d.scale(h),
        "mlp_norm": d.scale(h),
        "wq": d.matrix(h, heads, dim + rope, fan_in=h),
        "wo": d.matrix(heads, dim, h, fan_in=heads * dim),
        "gate": d.matrix(h, inter, fan_in=h),
        "up": d.matrix(h, inter, fan_in=h),
        "down": d.matrix(inter, h, fan_in=inter),
    }
    if not mla:
        return Layer(**base, wk=d.matrix(h, heads, dim, fan_in=h), wv=d.matrix(h, heads, dim, fan_in=h))
    return Layer(
        **base,
        wkv_a=d.matrix(h, shape.kv_rank + rope, fan_in=h),
        kv_norm=d.scale(shape.kv_rank),
        w_kc=d.matrix(heads, shape.kv_rank, dim, fan_in=shape.kv_rank),
        w_vc=d.matrix(heads, shape.kv_rank, dim, fan_in=shape.kv_rank),
    )


def end_weights(shape: ModelShape) -> Ends:
    """Embedding, last norm and output matrix."""
    d = _Dice(-1)
    return Ends(
        d.matrix(shape.vocab, shape.hidden, fan_in=1),
        d.scale(shape.hidden),
        d.matrix(shape.hidden, shape.vocab, fan_in=shape.hidden),
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Root-mean-square norm over the last dimension."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of (..., tokens, heads, dim) at ``positions`` (..., tokens); halves are rotated (NeoX style)."""
    half = x.shape[-1] // 2
    steps = torch.arange(half, dtype=torch.float64, device=x.device) / half
    angle = positions[..., None, None].to(torch.float64) * ROPE_BASE**-steps
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
