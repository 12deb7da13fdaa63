"""How an L3 page is named, and how backends are made.

Sources: #15175 (mooncake) and #21901 (file) put the pipeline rank into the name; before them two stages shared one.
"""

from __future__ import annotations

from dataclasses import dataclass

from hicache_doctor.runtime.fixes import Fix, Fixes
from hicache_doctor.runtime.world import Place, Topology


@dataclass(frozen=True, slots=True)
class Naming:
    """What stands beside the page hash in a key: everything that must not be shared."""

    model: str
    suffix: str

    def key(self, page_hash: int) -> str:
        """The name of one page."""
        return f"{self.model}_{page_hash:016x}{self.suffix}"


def naming(backend: str, model: str, topo: Topology, at: Place, fixes: Fixes, *, mla: bool) -> Naming:
    """The naming of a rank. Under MLA the latent KV is the same on all TP ranks, so TP is not in the name."""
    with_pp = topo.pp_size > 1 and (Fix.KEY_MOONCAKE if backend == "mooncake" else Fix.KEY_FILE) in fixes
    tp = "" if mla else f"_{at.tp}_{topo.tp_size}"
    pp = f"_{topo.pp_size}_{at.pp}" if with_pp else ""
    return Naming(model, tp + pp)
