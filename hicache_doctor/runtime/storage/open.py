"""Make the L3 backend that a config asks for."""

from __future__ import annotations

from hicache_doctor.errors import UsageError
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.model.base import Model
from hicache_doctor.runtime.storage.base import naming
from hicache_doctor.runtime.storage.faulty import NOMINAL, FaultyStorage, concerns
from hicache_doctor.runtime.storage.file import FileStorage
from hicache_doctor.runtime.storage.memory import MemoryStorage, Shelf
from hicache_doctor.runtime.storage.pages import Latency, PageStorage
from hicache_doctor.runtime.world import World, mix

BACKENDS = ("memory", "file", "mooncake")


def model_name(config: Config) -> str:
    """The model as keys name it: whatever decides what is in a page, besides the tokens and the rank."""
    m = config.model
    return f"{m.kind}-{m.layers}x{m.hidden}h{m.heads}v{m.vocab}p{config.page_size}"


def open_storage(config: Config, world: World, model: Model, shelf: Shelf | None = None) -> PageStorage | FaultyStorage:
    """The backend of one rank, behind its fault plan if that has anything for it.

    ``shelf`` is what the ranks of a simulation share; without one a rank of ``memory`` is alone. ``l3_path`` is the
    folder of ``file`` and the service's address of ``mooncake``. Close it in the end.

    Raises:
        UsageError: no such backend, or something that it needs is missing.
    """
    if config.l3 not in BACKENDS:
        raise UsageError(f"L3 backend {config.l3!r}: backends are {', '.join(BACKENDS)}")
    named = naming(config.l3, model_name(config), config.topo, world.at, config.fixes, mla=config.model.kind == "mla")
    inner: PageStorage
    if config.l3 == "memory":
        latency = Latency(NOMINAL.base, NOMINAL.page, config.faults.jitter, mix(config.seed, config.faults.seed))
        inner = MemoryStorage(world, model, named, Shelf() if shelf is None else shelf, latency)
    elif not config.l3_path:
        raise UsageError(f"L3 backend {config.l3} needs l3_path (a folder, or the service's address)")
    elif config.l3 == "file":
        inner = FileStorage(world, model, named, config.l3_path)
    else:
        from hicache_doctor.runtime.storage.mooncake import MooncakeStorage

        inner = MooncakeStorage(world, model, named, config.l3_path, config.io_batch)
    if concerns(config.faults, world.at, world.rank):
        return FaultyStorage(inner, world, config.faults)
    return inner
