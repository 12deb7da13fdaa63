"""A launcher as a run has one: its own network, the service, ranks forked from it. Prints what the ranks saw."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.model.null import NullModel
from hicache_doctor.runtime.storage.mooncake_service import MooncakeService, enter_namespace
from hicache_doctor.runtime.storage.open import open_storage
from hicache_doctor.runtime.world import Topology, mix
from tests.runtime.lone_world import LoneWorld

KEYS = [mix(i, 5) for i in range(12)]
TOPO = Topology(pp_size=2)


def rank(address: str, n: int) -> tuple[object, NullModel]:
    """Storage and model of stage ``n``; nine pages take three batches of four."""
    world = LoneWorld(TOPO, n)
    config = Config(topo=TOPO, l3="mooncake", l3_path=address)
    model = NullModel(config, world)
    return open_storage(config, world, model), model


def writer(address: str, out: Path, stop: Callable[[], None]) -> None:
    store, model = rank(address, 0)
    said = {"absent": store.exists(KEYS)}
    for i in range(9):
        model.host[i + 1] = KEYS[i]
    said["put"] = store.put(KEYS[:9], range(1, 10))
    said["exists"] = store.exists(KEYS)
    said["read"] = sum(model.host[p] == k for p, k in zip(range(50, 59), KEYS, strict=False)) + store.get(
        KEYS[:9], range(50, 59)
    )
    said["partial"] = store.get(KEYS, range(60, 72))
    (out / "written").touch()
    stop()
    store.empty()
    said["again"] = store.exists(KEYS)
    store.close()
    (out / "writer").write_text(json.dumps(said))


def reader(address: str, out: Path) -> None:
    mine, model = rank(address, 0)
    said = {"exists": mine.exists(KEYS)}
    mine.get(KEYS[:9], range(1, 10))
    said["right"] = sum(model.host[i + 1] == KEYS[i] for i in range(9))
    other, _ = rank(address, 1)
    said["other_stage"] = other.exists(KEYS)
    other.close()
    mine.close()
    (out / "reader").write_text(json.dumps(said))


def fork(fn: Callable[..., None], *args: object) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            fn(*args)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def until(path: Path) -> None:
    for _ in range(6000):
        if path.exists():
            return
        time.sleep(0.01)
    raise TimeoutError(path)


def main(out: Path, mode: str = "") -> None:
    why = enter_namespace()
    with MooncakeService(out) as service:
        if mode == "hang":
            print(service.pid, flush=True)
            time.sleep(600)
        pid = service.pid
        a = fork(writer, service.address, out, lambda: until(out / "reader"))
        until(out / "written")
        b = fork(reader, service.address, out)
        codes = [os.waitpid(p, 0)[1] for p in (b, a)]
    assert codes == [0, 0], codes
    said = {n: json.loads((out / n).read_text()) for n in ("writer", "reader")}
    print(json.dumps({**said, "pid": pid, "namespace": why, "interfaces": [n for _, n in socket.if_nameindex()]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
