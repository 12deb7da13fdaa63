"""L3 in a real Mooncake store over TCP: the client of one rank.

Facts measured with 0.3.13: ``put`` of a present key keeps the old bytes and succeeds; a full pool evicts silently; the
pages of a client whose process was killed still *exist* until its lease ends but cannot be read; with the master gone
every call blocks for about four seconds.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from hicache_doctor.errors import UsageError
from hicache_doctor.runtime.model.base import Model
from hicache_doctor.runtime.storage.base import Naming
from hicache_doctor.runtime.storage.mooncake_service import free_ports, missing
from hicache_doctor.runtime.storage.pages import NO_LATENCY, Latency, PageStorage
from hicache_doctor.runtime.world import World

SEGMENT_BYTES = 64 << 20
"""What each rank lends to the pool."""
BUFFER_BYTES = 16 << 20
LEAST_PAGE = 4096


class _Staging:
    """Registered memory that pages pass through: zero copy from there on, and the host pool needn't be pinned."""

    def __init__(self, store: Any, pages: int, size: int) -> None:
        self.size = size
        self.pages = pages
        self.memory = ctypes.create_string_buffer(pages * size)
        self.at = ctypes.addressof(self.memory)
        self.lock = threading.Lock()
        rc = store.register_buffer(self.at, pages * size)
        if rc:
            raise OSError(f"register_buffer: error {rc}")

    def slot(self, n: int) -> int:
        return self.at + n * self.size


class MooncakeStorage(PageStorage):
    """One rank's client. ``address`` is what :class:`MooncakeService` gives: ``host:rpc port/metadata port``."""

    name = "Mooncake"

    def __init__(
        self, world: World, model: Model, naming: Naming, address: str, batch: int, latency: Latency = NO_LATENCY
    ) -> None:
        super().__init__(world, model, naming, latency)
        lacking = missing()
        if lacking:
            raise UsageError(lacking)
        host, rpc, metadata = _parse(address)
        os.environ.setdefault("GLOG_minloglevel", "2")
        # Otherwise it announces the address of the first network card.
        os.environ.setdefault("MC_TCP_BIND_ADDRESS", host)
        from mooncake.store import MooncakeDistributedStore

        self._store: Any = MooncakeDistributedStore()
        me = f"{host}:{free_ports(1)[0]}"
        where = f"http://{host}:{metadata}/metadata"
        rc = self._store.setup(me, where, SEGMENT_BYTES, BUFFER_BYTES, "tcp", "", f"{host}:{rpc}")
        if rc:
            raise UsageError(f"mooncake: no service answers at {address} (setup: error {rc})")
        # The IO thread reads while the backup thread writes.
        size = max(model.page_bytes(), LEAST_PAGE)
        self._out, self._in = (_Staging(self._store, max(1, batch), size) for _ in range(2))

    def empty(self) -> None:
        """Forget everything, for all ranks."""
        self._store.remove_all(True)

    def close(self) -> None:
        """Leave the pool; the pages in this rank's segment go with it."""
        for staging in (self._out, self._in):
            self._store.unregister_buffer(staging.at)
        self._store.close()

    def _present(self, keys: Sequence[int]) -> int:
        return _leading([r == 1 for r in self._store.batch_is_exist([self.naming.key(k) for k in keys])])

    def _read(self, keys: Sequence[int]) -> list[bytes]:
        out: list[bytes] = []
        with self._in.lock:
            for part in _parts(keys, self._in.pages):
                slots = [self._in.slot(n) for n in range(len(part))]
                sizes = [self._in.size] * len(part)
                got = self._store.batch_get_into([self.naming.key(k) for k in part], slots, sizes)
                for slot, n in zip(slots, got, strict=True):
                    if n <= 0:
                        return out
                    out.append(ctypes.string_at(slot, n))
        return out

    def _write(self, keys: Sequence[int], data: Sequence[bytes]) -> int:
        done = 0
        with self._out.lock:
            for part in _parts(keys, self._out.pages):
                mine = data[done : done + len(part)]
                slots = [self._out.slot(n) for n in range(len(part))]
                for slot, one in zip(slots, mine, strict=True):
                    ctypes.memmove(slot, one, len(one))
                names = [self.naming.key(k) for k in part]
                stored = _leading([r == 0 for r in self._store.batch_put_from(names, slots, [len(d) for d in mine])])
                done += stored
                if stored < len(part):
                    self.world.log(f"Failed to put {names[stored]} into Mooncake.", "ERROR")
                    break
        return done


def _parse(address: str) -> tuple[str, int, int]:
    try:
        host, ports = address.rsplit(":", 1)
        rpc, metadata = ports.split("/")
        return host, int(rpc), int(metadata)
    except ValueError:
        raise UsageError(f"mooncake address {address!r}: expected host:rpc port/metadata port") from None


def _parts(keys: Sequence[int], n: int) -> Iterator[Sequence[int]]:
    for at in range(0, len(keys), n):
        yield keys[at : at + n]


def _leading(flags: Sequence[bool]) -> int:
    return next((n for n, ok in enumerate(flags) if not ok), len(flags))
