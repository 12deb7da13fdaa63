"""The same transformer without any cache: every token's whole prefix is computed anew, all layers in one process.

Written apart from the paged code on purpose (dense causal attention, MLA in its unabsorbed form): what both agree on is
not a shared mistake.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from hicache_doctor.runtime.config import Config, ModelShape
from hicache_doctor.runtime.model.weights import Ends, Layer, end_weights, layer_weights, rms_norm, rotate


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run without cache says. ``logits`` and ``margins`` belong to ``tokens``: the winner's logit, and how far
    the second one is behind it (below about 1e-9 a difference of tokens proves nothing)."""

    tokens: tuple[int, ...]
    logits: tuple[float, ...]
    margins: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token of a request that a run without cache would not have given; ``behind`` is the logit it lacks."""

    request: int
    index: int
    got: int
    expected: int
    behind: float


@lru_cache(maxsize=4)
def _weights(shape: ModelShape) -> tuple[Ends, tuple[Layer, ...]]:
    return end_weights(shape), tuple(layer_weights(shape, i) for i in range(shape.layers))


def uncached_tokens(config: Config, prompt: Sequence[int], n: int) -> Answer:
    """``n`` greedy tokens after ``prompt``."""
    return uncached(config, [prompt], [n])[0]


def uncached(config: Config, prompts: Sequence[Sequence[int]], counts: Sequence[int], batch: int = 64) -> list[Answer]:
    """``counts[i]`` greedy tokens after ``prompts[i]``; prompts of like length are computed together."""
    out: dict[int, Answer] = {}
    for group in _groups([len(p) for p in prompts], batch):
        rows = [list(prompts[i]) for i in group]
        tops: list[list[float]] = [[] for _ in group]
        margins: list[list[float]] = [[] for _ in group]
        live = [k for k, i in enumerate(group) if counts[i] > 0]
        while live:
            logits = _last_logits(config.model, [rows[k] for k in live])
            best = logits.topk(2, -1)
            for k, (top, second), token in zip(
                live, best.values.tolist(), best.indices[:, 0].tolist(), strict=True
            ):  # fmt: skip
                rows[k].append(token)
                tops[k].append(top)
                margins[k].append(top - second)
            live = [k for k in live if len(tops[k]) < counts[group[k]]]
        for k, i in enumerate(group):
            out[i] = Answer(tuple(rows[k][len(prompts[i]) :]), tuple(tops[k]), tuple(margins[k]))
    return [out[i] for i in range(len(prompts))]


def differences(
    config: Config, prompts: Sequence[Sequence[int]], produced: Sequence[Sequence[int]], batch: int = 64
) -> list[Difference]:
    """The first wrong token of each request that has one.

    If every token is the greedy one after the tokens before it, the whole answer is what a run without cache gives: one
    forward pass a request instead of one a token.
    """
    return compare(config, prompts, produced, [()] * len(prompts), batch)[0]


def compare(
    config: Config,
    prompts: Sequence[Sequence[int]],
    produced: Sequence[Sequence[int]],
    tops: Sequence[Sequence[float]],
    batch: int = 64,
) -> tuple[list[Difference], float]:
    """As :func:`differences`, and the largest distance between the logit with which a token was chosen (``tops``, as
    far as they are known) and the one it has without a cache."""
    found = []
    largest = 0.0
    for group in _groups([len(p) + len(t) for p, t in zip(prompts, produced, strict=True)], batch):
        logits = _all_logits(config.model, [[*prompts[i], *produced[i]] for i in group])
        for row, i in zip(logits, group, strict=True):
            own = row[len(prompts[i]) - 1 :]
            for k, got in enumerate(produced[i]):
                expected = int(own[k].argmax())
                if got != expected:
                    found.append(Difference(i, k, got, expected, float(own[k][expected] - own[k][got])))
                    break
            for k, (token, top) in enumerate(zip(produced[i], tops[i], strict=False)):
                largest = max(largest, abs(float(own[k][token]) - top))
    return sorted(found, key=lambda d: d.request), largest


def _groups(lengths: Sequence[int], batch: int) -> Iterator[list[int]]:
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    for at in range(0, len(order), batch):
        yield order[at : at + batch]


def _last_logits(shape: ModelShape, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    at = torch.tensor([len(r) - 1 for r in rows])
    ends, hidden = _hidden(shape, rows)
    return _logits(ends, hidden[torch.arange(len(rows)), at])


def _all_logits(shape: ModelShape, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    return _logits(*_hidden(shape, rows))


def _logits(ends: Ends, hidden: torch.Tensor) -> torch.Tensor:
    logits = rms_norm(hidden, ends.norm) @ ends.head
    logits[..., 0] = float("-inf")
    return logits


def _hidden(shape: ModelShape, rows: Sequence[Sequence[int]]) -> tuple[Ends, torch.Tensor]:
    """The states after the last layer, (rows, longest, hidden); what stands behind a row's end is padding."""
    ends, layers = _weights(shape)
    longest = max(map(len, rows))
    ids = torch.tensor([[*r, *[0] * (longest - len(r))] for r in rows])
    positions = torch.arange(longest)
    future = torch.ones(longest, longest, dtype=torch.bool).triu(1)
    x = ends.embed[ids]
    for w in layers:
        x = x + _attend(shape, w, rms_norm(x, w.attn_norm), positions, future)
        h = rms_norm(x, w.mlp_norm)
        x = x + (torch.nn.functional.silu(h @ w.gate) * (h @ w.up)) @ w.down
    return ends, x


def _attend(
    shape: ModelShape, w: Layer, x: torch.Tensor, positions: torch.Tensor, future: torch.Tensor
) -> torch.Tensor:
    q = torch.einsum("bti,ihd->bthd", x, w.wq)
    if shape.kind == "mla":
        assert w.wkv_a is not None and w.kv_norm is not None and w.w_kc is not None and w.w_vc is not None
        a = x @ w.wkv_a
        c = rms_norm(a[..., : shape.kv_rank], w.kv_norm)
        shared = rotate(a[..., None, shape.kv_rank :], positions).expand(-1, -1, shape.heads, -1)
        dim = shape.head_dim
        q = torch.cat((q[..., :dim], rotate(q[..., dim:], positions)), -1)
        k = torch.cat((torch.einsum("btr,hrd->bthd", c, w.w_kc), shared), -1)
        v = torch.einsum("btr,hrd->bthd", c, w.w_vc)
    else:
        assert w.wk is not None and w.wv is not None
        q = rotate(q, positions)
        k = rotate(torch.einsum("bti,ihd->bthd", x, w.wk), positions)
        v = torch.einsum("bti,ihd->bthd", x, w.wv)
    scores = torch.einsum("bqhd,bshd->bhqs", q, k) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    return torch.einsum("bqhd,hdo->bqo", torch.einsum("bhqs,bshd->bqhd", weights, v), w.wo)
