"""Make the model that a config asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from hicache_doctor.errors import UsageError
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.model.base import Model
from hicache_doctor.runtime.model.null import NullModel
from hicache_doctor.runtime.world import World

if TYPE_CHECKING:
    from hicache_doctor.runtime.model.transformer import TensorWorld

KINDS = ("null", "mha", "mla")


def open_model(config: Config, world: World) -> Model:
    """The null model, or the transformer (which needs torch, and a world that can add up tensors if TP > 1).

    Raises:
        UsageError: no such kind, a shape that the grid cannot hold, or torch is missing.
    """
    kind = config.model.kind
    if kind not in KINDS:
        raise UsageError(f"model kind {kind!r}: kinds are {', '.join(KINDS)}")
    if kind == "null":
        return NullModel(config, world)
    try:
        from hicache_doctor.runtime.model.transformer import TransformerModel
    except ImportError:
        raise UsageError(f"model kind {kind} needs torch: pip install 'hicache-doctor[runtime]'") from None
    return TransformerModel(config, cast("TensorWorld", world))
