"""L3 in memory: one shelf for all ranks of a simulation, so that two stages can meet on one key as they do outside."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_doctor.runtime.model.base import Model
from hicache_doctor.runtime.storage.base import Naming
from hicache_doctor.runtime.storage.pages import NO_LATENCY, Latency, PageStorage
from hicache_doctor.runtime.world import World


class Shelf:
    """The pages of all ranks by name."""

    __slots__ = ("pages",)

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}


class MemoryStorage(PageStorage):
    """One rank's view of a shelf."""

    name = "memory"

    def __init__(self, world: World, model: Model, naming: Naming, shelf: Shelf, latency: Latency = NO_LATENCY) -> None:
        super().__init__(world, model, naming, latency)
        self.shelf = shelf

    def empty(self) -> None:
        """Forget everything, for all ranks."""
        self.shelf.pages.clear()

    def _present(self, keys: Sequence[int]) -> int:
        name, pages = self.naming.key, self.shelf.pages
        for n, key in enumerate(keys):
            if name(key) not in pages:
                return n
        return len(keys)

    def _read(self, keys: Sequence[int]) -> list[bytes]:
        out = []
        for key in keys:
            data = self.shelf.pages.get(self.naming.key(key))
            if data is None:
                break
            out.append(data)
        return out

    def _write(self, keys: Sequence[int], data: Sequence[bytes]) -> int:
        for key, one in zip(keys, data, strict=True):
            self.shelf.pages.setdefault(self.naming.key(key), one)
        return len(keys)
