"""What the runtime logs is read by our readers, and says of no release that it is the one."""

from __future__ import annotations

import json
import re

from hicache_doctor.artifacts.batch_line import parse_batch
from hicache_doctor.artifacts.launch import parse
from hicache_doctor.artifacts.vocabulary import load
from hicache_doctor.runtime import server_log
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.world import Topology

CONFIG = Config(topo=Topology(pp_size=4, tp_size=2), host_bytes=500_000_000, l3="memory", tree="unified")


def test_every_line_is_known_and_bounds_no_release() -> None:
    texts = [
        server_log.INIT_BEGIN,
        server_log.init_ends(0.031),
        server_log.kv_cache(384, 98304),
        server_log.host_pool(640, "write_through"),
        server_log.storage_backend("memory"),
        server_log.pool_sizes(CONFIG),
        server_log.watchdog_timeout(300),
    ]
    found = {}
    for text in texts:
        assert not re.search(r"0\.5\.\d", text)
        for match in load().match(text):
            found[match.entry.kind] = match.fields
            assert match.entry.releases is None, text
    assert {"init_distributed", "kv_cache_allocated", "storage_backend", "pool_sizes", "watchdog_timeout"} <= set(found)
    assert found["hicache_initialized"]["tokens"] == "640"


def test_the_arguments_are_read_back() -> None:
    text = json.dumps(server_log.arguments(CONFIG), indent=1)
    rows = parse(list(enumerate(text.splitlines(), 1)), "server_info.json")
    values = {row.key: row.value for row in rows}
    assert "sglang_release_bound" not in values
    assert (values["pp_size"], values["tp_size"], values["hicache_storage_backend"]) == ("4", "2", "file")
    assert (values["hicache_size"], values["hicache_write_policy"]) == ("0.5", "write_through")
    assert values["chunked_prefill_size"] == "64"


def test_batch_lines_are_read_back() -> None:
    text = server_log.prefill_batch(
        seqs=2, new=192, cached=64, usage=0.394, running=1, queue=3, bootstrap=0, inflight=1, throughput=667.03
    )
    assert parse_batch(text) == ("prefill", 2, 192, 64, 0.39, 1, 3)
    text = server_log.decode_batch(running=4, tokens=100, usage=0.25, queue=2, throughput=9.5)
    assert parse_batch(text) == ("decode", None, None, None, 0.25, 4, 2)


def test_what_is_said_when_something_goes_wrong_is_known() -> None:
    texts = {
        server_log.backup_failed(3): "storage_write_failed",
        server_log.chunk_profile(0, 64): "dynamic_chunk",
        server_log.chunk_profile_failed(ValueError("x")): "dynamic_chunk",
        server_log.subprocess_crashed(2, 77, -9): "subprocess_crashed",
        server_log.scheduler_exception("Traceback"): "scheduler_exception",
        server_log.SIGQUIT: "sigquit",
    }
    for text, kind in texts.items():
        assert kind in {m.entry.kind for m in load().match(text)}
