"""What all backends share: page hashes become names, a call serves a leading run, and nothing that breaks is raised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hicache_doctor.runtime.model.base import Model
from hicache_doctor.runtime.storage.base import Naming
from hicache_doctor.runtime.world import World, mix


@dataclass(frozen=True, slots=True)
class Latency:
    """What a call costs in nanoseconds: a base, so much a page, and up to ``jitter`` percent on top.

    The dice belong to the n-th call of its kind on the rank, not to the order in which threads happen to come.
    """

    base: int = 0
    page: int = 0
    jitter: int = 0
    seed: int = 0

    def of(self, rank: int, kind: int, nth: int, pages: int) -> int:
        """The cost of one call."""
        cost = self.base + self.page * pages
        span = cost * self.jitter // 100
        return cost + mix(mix(self.seed, rank), 4 * nth + kind) % (span + 1) if span else cost


NO_LATENCY = Latency()
EXISTS, GET, PUT = 0, 1, 2


class PageStorage:
    """A backend as one rank sees it; implements :class:`~hicache_doctor.runtime.world.Storage`.

    A backend fills in the calls with an underscore. They serve a leading run of the keys and return how long it is;
    they may raise OSError, which is logged as one line and counts as nothing served.
    """

    name = "storage"

    def __init__(self, world: World, model: Model, naming: Naming, latency: Latency = NO_LATENCY) -> None:
        self.world = world
        self.model = model
        self.naming = naming
        self.latency = latency
        self._calls = [0, 0, 0]

    def exists(self, keys: Sequence[int]) -> int:
        """Length of the contiguous prefix of ``keys`` that is stored."""
        self._pay(EXISTS, len(keys))
        try:
            return self._present(keys)
        except OSError as e:
            return self._broken("query", e)

    def get(self, keys: Sequence[int], pages: Sequence[int]) -> int:
        """Read pages into the host pool; how many leading ones came."""
        self._pay(GET, len(keys))
        try:
            data = self._read(keys)
        except OSError as e:
            return self._broken("read", e)
        for n, (page, one) in enumerate(zip(pages, data, strict=False)):
            try:
                self.model.write_host(page, one)
            except ValueError as e:  # a page of a stage with other layers, under a shared key (#15175, #21901)
                self.world.log(f"Short read for {self.naming.key(keys[n])}: {e}", "ERROR")
                return n
        if len(data) < len(keys):
            self.world.log(f"Failed to fetch {self.naming.key(keys[len(data)])} from {self.name} storage.", "WARNING")
        return len(data)

    def put(self, keys: Sequence[int], pages: Sequence[int]) -> int:
        """Write pages of the host pool; how many leading ones are stored. What is there already stays as it is."""
        self._pay(PUT, len(keys))
        try:
            return self._write(keys, [self.model.read_host(page) for page in pages])
        except OSError as e:
            return self._broken("write", e)

    def empty(self) -> None:
        """Forget everything, for all ranks: the service was restarted."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what the backend holds."""

    def _present(self, keys: Sequence[int]) -> int:
        raise NotImplementedError

    def _read(self, keys: Sequence[int]) -> list[bytes]:
        raise NotImplementedError

    def _write(self, keys: Sequence[int], data: Sequence[bytes]) -> int:
        raise NotImplementedError

    def _pay(self, kind: int, pages: int) -> None:
        if self.latency is not NO_LATENCY:
            nth = self._calls[kind]
            self._calls[kind] = nth + 1
            self.world.sleep(self.latency.of(self.world.rank, kind, nth, pages))

    def _broken(self, verb: str, error: OSError) -> int:
        self.world.log(f"{self.name} storage: {verb} failed: {error.strerror or error}", "ERROR")
        return 0
