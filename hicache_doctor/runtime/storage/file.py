"""L3 as files, one a page: needs no service and outlives every process."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from hicache_doctor.runtime.model.base import Model
from hicache_doctor.runtime.storage.base import Naming
from hicache_doctor.runtime.storage.pages import NO_LATENCY, Latency, PageStorage
from hicache_doctor.runtime.world import World


class FileStorage(PageStorage):
    """Pages under a folder, in 256 folders by the first byte of their hash.

    A page appears by a rename, so a reader sees the whole of it or nothing, also when its writer was killed.
    """

    name = "HiCacheFile"  # as SGLang's log calls it

    def __init__(
        self, world: World, model: Model, naming: Naming, folder: str | Path, latency: Latency = NO_LATENCY
    ) -> None:
        super().__init__(world, model, naming, latency)
        self.folder = str(folder)

    def path(self, key: int) -> str:
        """Where a page lies."""
        return f"{self.folder}/{key >> 56:02x}/{self.naming.key(key)}.bin"

    def empty(self) -> None:
        """Forget everything, for all ranks."""
        for name in os.listdir(self.folder) if os.path.isdir(self.folder) else ():
            if len(name) == 2:
                # Aside first: a writer that is under way loses its page, as it would to a restarted service.
                gone = f"{self.folder}/.gone-{name}-{os.getpid()}"
                os.replace(f"{self.folder}/{name}", gone)
                shutil.rmtree(gone, ignore_errors=True)

    def _present(self, keys: Sequence[int]) -> int:
        for n, key in enumerate(keys):
            if not os.path.exists(self.path(key)):
                return n
        return len(keys)

    def _read(self, keys: Sequence[int]) -> list[bytes]:
        out = []
        for key in keys:
            try:
                with open(self.path(key), "rb") as f:
                    out.append(f.read())
            except OSError:
                break
        return out

    def _write(self, keys: Sequence[int], data: Sequence[bytes]) -> int:
        for n, (key, one) in enumerate(zip(keys, data, strict=True)):
            path = self.path(key)
            if os.path.exists(path):
                continue
            try:
                self._write_one(path, one)
            except OSError as e:
                self.world.log(f"Failed to save tensor {self.naming.key(key)}: {e.strerror or e}", "ERROR")
                return n
        return len(keys)

    def _write_one(self, path: str, data: bytes) -> None:
        # Two ranks may write one name (MLA's, or a shared key), and two threads of a rank: each its own draft.
        draft = f"{path}.{os.getpid()}-{threading.get_ident()}"
        try:
            f = open(draft, "wb")  # noqa: SIM115
        except FileNotFoundError:  # the first page of this folder, or the store was emptied
            os.makedirs(os.path.dirname(path), exist_ok=True)
            f = open(draft, "wb")  # noqa: SIM115
        with f:
            f.write(data)
        os.replace(draft, path)
