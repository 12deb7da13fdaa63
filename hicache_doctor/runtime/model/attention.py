"""Attention over the paged KV, in the two shapes that the cache meets: MHA keeps K and V, MLA keeps one latent.

Function names follow SGLang's, because a stack is read by people (and by rules) that know those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hicache_doctor.runtime.model.base import ForwardItem
from hicache_doctor.runtime.model.weights import Layer, rms_norm, rotate


@dataclass(frozen=True, slots=True)
class Rows:
    """Where a batch's tokens stand: the T new ones in a row, and padded to (requests, longest extend).

    ``out_slots`` (T): where each token's KV goes. ``read_slots`` (B, L): the slots of positions 0 to L - 1, padded with
    slot 0 (page 0 is never handed out). ``hidden`` (B, 1, Q, L): what a query must not see. ``last`` (B): the row of
    each request's last token.
    """

    tokens: int
    ids: torch.Tensor
    positions: torch.Tensor
    out_slots: torch.Tensor
    read_slots: torch.Tensor
    hidden: torch.Tensor
    at: tuple[torch.Tensor, torch.Tensor]
    last: torch.Tensor
    read_pages: tuple[int, ...]
    write_pages: tuple[int, ...]

    @staticmethod
    def of(items: Sequence[ForwardItem], tokens: int, page: int, device: torch.device) -> Rows:
        """The rows of a batch whose extend lengths sum up to ``tokens``."""
        ids: list[int] = []
        positions: list[int] = []
        out: list[int] = []
        row: list[int] = []
        column: list[int] = []
        last: list[int] = []
        ends = [i.start + len(i.ids) for i in items]
        read = torch.zeros(len(items), max(ends), dtype=torch.int64)
        read_pages: list[int] = []
        write_pages: list[int] = []
        for b, (item, end) in enumerate(zip(items, ends, strict=True)):
            slots = [item.pages[p // page] * page + p % page for p in range(end)]
            read[b, :end] = torch.tensor(slots)
            ids += item.ids
            positions += range(item.start, end)
            out += slots[item.start :]
            row += [b] * len(item.ids)
            column += range(len(item.ids))
            last.append(len(ids) - 1)
            read_pages += item.pages
            write_pages += item.pages[item.start // page :]
        at_row, at_column = torch.tensor(row, device=device), torch.tensor(column, device=device)
        at = torch.tensor(positions, device=device)
        query = torch.zeros(len(items), max(column) + 1, dtype=torch.int64, device=device)
        query[at_row, at_column] = at
        return Rows(
            tokens,
            torch.tensor(ids, device=device),
            at,
            torch.tensor(out, device=device),
            read.to(device),
            (torch.arange(read.shape[1], device=device) > query[:, :, None])[:, None],
            (at_row, at_column),
            torch.tensor(last, device=device),
            tuple(read_pages),
            tuple(write_pages),
        )

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        """(T, …) → (B, Q, …)."""
        out = x.new_zeros(self.hidden.shape[0], self.hidden.shape[2], *x.shape[1:])
        out[self.at] = x
        return out


def view_as_mine(x: torch.Tensor, rows: Rows, heads: int, head_dim: int) -> torch.Tensor:
    """Rows of heads, with this stage's own token count. torch refuses any other: the first view where the numbers do
    not divide, the second where they do (a multiple of the tokens would look like more heads)."""
    return x.view(rows.tokens, -1, head_dim).view(rows.tokens, heads, head_dim)


def forward_normal_prepare(
    w: Layer, rows: Rows, hidden: torch.Tensor, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Q (T, heads, dim) and the KV of the new tokens (T, 2 · heads · dim) of MHA."""
    assert w.wk is not None and w.wv is not None
    heads = w.wq.shape[1]
    q = view_as_mine(hidden @ w.wq.flatten(1), rows, heads, head_dim)
    k = view_as_mine(hidden @ w.wk.flatten(1), rows, heads, head_dim)
    v = hidden @ w.wv.flatten(1)
    q, k = rotate(q, rows.positions), rotate(k, rows.positions)
    return q, torch.cat((k.flatten(1), v), -1)


def forward_absorb_prepare(
    w: Layer, rows: Rows, hidden: torch.Tensor, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Q in the latent's space (T, heads, rank + rope) and the latent of the new tokens (T, rank + rope) of MLA."""
    assert w.wkv_a is not None and w.kv_norm is not None and w.w_kc is not None
    heads, width = w.wq.shape[1:]
    q = view_as_mine(hidden @ w.wq.flatten(1), rows, heads, width)
    nope, rope = q[..., :head_dim], rotate(q[..., head_dim:], rows.positions)
    rank = w.kv_norm.shape[0]
    latent = hidden @ w.wkv_a
    c = rms_norm(latent[:, :rank], w.kv_norm)
    k_rope = rotate(latent[:, None, rank:], rows.positions)[:, 0]
    return torch.cat((torch.einsum("thd,hrd->thr", nope, w.w_kc), rope), -1), torch.cat((c, k_rope), -1)


def forward_normal_core(w: Layer, rows: Rows, q: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """MHA of the new tokens over the cache (slots, 2 · heads · dim) of one layer: (T, hidden)."""
    heads, dim = q.shape[1:]
    kv = cache[rows.read_slots].view(*rows.read_slots.shape, 2, heads, dim)
    weights = _softmax(torch.einsum("bqhd,bshd->bhqs", rows.pad(q), kv[:, :, 0]), rows, dim)
    out = torch.einsum("bhqs,bshd->bqhd", weights, kv[:, :, 1])[rows.at]
    return torch.einsum("thd,hdo->to", out, w.wo)


def forward_absorb_core(w: Layer, rows: Rows, q: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """MLA of the new tokens over the cache (slots, rank + rope) of one layer: (T, hidden)."""
    assert w.w_vc is not None
    latent = cache[rows.read_slots]
    width = w.wq.shape[2]  # scores are those of the heads' own K, so their width is what scales them
    weights = _softmax(torch.einsum("bqhr,bsr->bhqs", rows.pad(q), latent), rows, width)
    mixed = torch.einsum("bhqs,bsr->bqhr", weights, latent[..., : w.w_vc.shape[1]])[rows.at]
    return torch.einsum("thd,hdo->to", torch.einsum("thr,hrd->thd", mixed, w.w_vc), w.wo)


def _softmax(scores: torch.Tensor, rows: Rows, width: int) -> torch.Tensor:
    return (scores / math.sqrt(width)).masked_fill(rows.hidden, float("-inf")).softmax(-1)
