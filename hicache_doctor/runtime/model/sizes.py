"""How large one page of one stage is, and how many pages that makes of a size in bytes."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_doctor.errors import UsageError
from hicache_doctor.runtime.config import Config, ModelShape
from hicache_doctor.runtime.world import Place, Topology

ELEMENT_BYTES = 8
"""The transformer computes in float64, so that a split over stages or ranks can be checked to 1e-9."""


def rope_dim(shape: ModelShape) -> int:
    """Width of the decoupled rotary key of MLA, shared by all heads."""
    return shape.head_dim


def kv_dim(shape: ModelShape, tp_size: int) -> int:
    """Numbers that one token leaves in one layer's cache on one rank: its heads' K and V, or MLA's whole latent."""
    if shape.kind == "mla":
        return shape.kv_rank + rope_dim(shape)
    return 2 * (shape.heads // tp_size) * shape.head_dim


def layer_range(shape: ModelShape, topo: Topology, at: Place) -> tuple[int, int]:
    """First layer of the stage and the one after its last.

    Raises:
        UsageError: the partition does not fit the stages or the layers, or the heads do not divide by TP.
    """
    parts = shape.partition(topo.pp_size)
    check(shape, topo, parts)
    start = sum(parts[: at.pp])
    return start, start + parts[at.pp]


def check(shape: ModelShape, topo: Topology, parts: Sequence[int]) -> None:
    """Refuse a shape that this grid cannot hold.

    Raises:
        UsageError: which number does not fit.
    """
    if len(parts) != topo.pp_size or sum(parts) != shape.layers or min(parts) < 1:
        raise UsageError(
            f"model: {shape.layers} layers cannot be split into {list(parts)} over {topo.pp_size} stages; "
            "every stage needs one at least"
        )
    if shape.kind != "null" and shape.heads % topo.tp_size:
        raise UsageError(f"model: {shape.heads} heads do not divide by tp_size {topo.tp_size}")


def page_bytes(shape: ModelShape, layers: int, page_size: int, tp_size: int) -> int:
    """Bytes of one page of a stage with ``layers`` layers."""
    return layers * page_size * max(1, kv_dim(shape, tp_size)) * ELEMENT_BYTES


def host_pages(config: Config, bytes_per_page: int) -> int:
    """Host pages of a rank before any agreement: ``host_bytes`` divided by what a page takes on this stage (so that
    stages with unequal layers differ, #29258), else ``host_pages``. Agreement only ever lowers it."""
    if config.host_bytes:
        return max(1, config.host_bytes // bytes_per_page)
    return config.host_pages
