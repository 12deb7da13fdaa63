"""What a run of the reference runtime is made of: the same on every rank, known before it starts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hicache_doctor.errors import UsageError
from hicache_doctor.runtime.faults import NO_FAULTS, FaultPlan
from hicache_doctor.runtime.fixes import ALL, Fixes
from hicache_doctor.runtime.workload import Workload
from hicache_doctor.runtime.world import Topology


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The small transformer. ``kind`` null has no weights: KV content is a hash of token prefix and layer range."""

    kind: str = "null"  # null | mha | mla
    layers: int = 4
    hidden: int = 32
    heads: int = 4
    head_dim: int = 8
    vocab: int = 509
    kv_rank: int = 16
    layer_partition: tuple[int, ...] = ()

    def partition(self, pp_size: int) -> tuple[int, ...]:
        """Layers of each stage; what does not divide goes to the last ones, as upstream's even split does."""
        if self.layer_partition:
            return self.layer_partition
        base, rest = divmod(self.layers, pp_size)
        return tuple(base + (1 if p >= pp_size - rest else 0) for p in range(pp_size))


@dataclass(frozen=True, slots=True)
class Config:
    """One run. Sizes are pages of ``page_size`` tokens unless they say tokens; times are nanoseconds."""

    topo: Topology = field(default_factory=lambda: Topology(pp_size=2))
    fixes: Fixes = ALL
    faults: FaultPlan = NO_FAULTS
    workload: Workload = field(default_factory=Workload)
    model: ModelShape = field(default_factory=ModelShape)
    seed: int = 1
    steps: int = 5000
    tree: str = "hiradix"  # hiradix | unified
    page_size: int = 4
    device_pages: int = 96
    host_pages: int = 160
    host_bytes: int = 0
    """A fixed host size (``--hicache-size``): pages follow from the stage's layers, so that stages may differ."""
    write_policy: str = "write_through"  # write_through | write_through_selective | write_back
    load_back_threshold: int = 10
    """Tokens."""
    load_back_quota: int = 0
    """Tokens a load back may take; 0: no quota."""
    max_running: int = 8
    """Requests a microbatch."""
    max_prefill_tokens: int = 256
    chunk_tokens: int = 64
    dynamic_chunking: bool = False
    chunk_smooth: float = 0.75
    chunk_alignment: int = 8
    """Tokens; upstream 64, with chunks of thousands."""
    context_tokens: int = 4096
    l3: str | None = None  # None | memory | file | mooncake
    l3_path: str = ""
    prefetch_policy: str = "timeout"  # best_effort | wait_complete | timeout
    prefetch_threshold: int = 8
    """Tokens."""
    prefetch_timeout_base: int = 2_000_000_000
    prefetch_timeout_per_ki_token: int = 100_000_000
    prefetch_timeout_max: int = 30_000_000_000
    io_batch: int = 4
    """Pages an L3 batch (upstream: 128)."""
    backup_acks: str = "agreed"  # agreed | local (the seed)
    scheduler: str = "replicated"  # replicated | planned (PP0's centralised plan)
    disaggregation: str = "null"  # null | prefill
    dp_attention: bool = False
    dp_policy: str = "round_robin"
    waiting_timeout: int = 0
    running_timeout: int = 0
    wire_timeout: int = 20_000_000_000
    trace: bool = False
    """Record locks, allocations and LRU stamps too (real runs do)."""
    debug: bool = False
    """Check the ownership of slots at every copy and forward."""

    def check(self) -> None:
        """Refuse what no run can be made of.

        Raises:
            UsageError: the grid does not fit the model, or a size makes no sense.
        """
        topo, shape = self.topo, self.model
        sizes = {"dp": topo.dp_size, "pp": topo.pp_size, "cp": topo.cp_size, "tp": topo.tp_size}
        for name, size in sizes.items():
            if size < 1:
                raise UsageError(f"impossible topology: {name}_size is {size}; it must be at least 1")
        if shape.layer_partition and len(shape.layer_partition) != topo.pp_size:
            raise UsageError(f"a layer partition of {len(shape.layer_partition)} parts for {topo.pp_size} stages")
        if min(shape.partition(topo.pp_size)) < 1:
            raise UsageError(f"impossible topology: {topo.pp_size} stages for {shape.layers} layers; a stage needs one")
        if shape.heads % topo.tp_size:
            raise UsageError(f"impossible topology: {shape.heads} heads cannot be split over tp_size {topo.tp_size}")
        if min(self.page_size, self.device_pages, self.max_running, self.chunk_tokens) < 1:
            raise UsageError("page size, device pages, running requests and chunk size must be at least 1")

    def but(self, **changes: Any) -> Config:
        """The same run with some fields changed."""
        return replace(self, **changes)
