"""The words of every era are those that our readers know of it."""

from __future__ import annotations

import re

import pytest
from packaging.specifiers import SpecifierSet

from hicache_doctor.artifacts.batch_line import parse_batch
from hicache_doctor.artifacts.server_args import parse_server_args
from hicache_doctor.artifacts.vocabulary import load
from hicache_doctor.runtime import server_log
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.server_log import Words
from hicache_doctor.runtime.world import Topology

ERAS = ("0.5.12.post1", "0.5.13", "0.5.14", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.22", "0.5.23")
CONFIG = Config(topo=Topology(pp_size=4, tp_size=2), host_bytes=500_000_000, l3="memory", tree="unified")


def lines(era: str, config: Config = CONFIG) -> list[str]:
    words = Words.of(era)
    settled = server_log.prefetch("7f3a", local=96, agreed=64, matched=0, loaded=64, occupied=0, words=words)
    texts = [
        server_log.server_args(server_log.arguments(config), words),
        server_log.INIT_BEGIN,
        server_log.init_ends(0.031),
        server_log.kv_cache(384, 98304),
        server_log.host_pool(640, 163840, words),
        server_log.storage_backend("memory"),
        *server_log.tree_cache(config.tree, words),
        server_log.pool_sizes(config),
        settled,
        server_log.watchdog_timeout(300),
    ]
    return [text for text in texts if text is not None]


@pytest.mark.parametrize("era", ERAS)
def test_every_line_fits_its_era_and_names_none(era: str) -> None:
    found = {}
    for text in lines(era):
        assert not re.search(r"0\.5\.\d", text)
        for match in load().match(text):
            found[match.entry.kind] = match.fields
            if match.entry.releases is not None:
                assert SpecifierSet(match.entry.releases, prereleases=True).contains(era), (era, text)
    assert {"init_distributed", "kv_cache_allocated", "storage_backend", "pool_sizes", "watchdog_timeout"} <= set(found)
    assert ("host_pool_tokens" in found) != ("host_pool_gb" in found)
    prefetch = found.get("prefetch_agreed") or found.get("prefetch_local_synced")
    assert (prefetch is None) == (era == "0.5.12.post1")
    if prefetch is not None:
        assert (prefetch["rid"], prefetch["synced"], prefetch["loaded"]) == ("7f3a", "64", "64")
        assert ("local" in prefetch) == (era < "0.5.19")
    assert found.get("tree_cache", {"impl": "UnifiedRadixCache"})["impl"] == "UnifiedRadixCache"
    assert ("tree_cache" in found) == (era != "0.5.12.post1")


@pytest.mark.parametrize("era", ["0.5.14", "0.5.23"])
def test_the_arguments_are_read_back(era: str) -> None:
    values, cut = parse_server_args(lines(era)[0])
    assert not cut
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
        server_log.host_capacity_synced(640, 600): "host_capacity_synced",
        server_log.subprocess_crashed(2, 77, -9): "subprocess_crashed",
        server_log.scheduler_exception("Traceback"): "scheduler_exception",
        server_log.SIGQUIT: "sigquit",
    }
    for text, kind in texts.items():
        assert kind in {m.entry.kind for m in load().match(text)}


def test_an_old_hiradix_tree_says_nothing_of_a_prefetch() -> None:
    said = [
        server_log.prefetch(1, local=1, agreed=1, matched=0, loaded=1, occupied=0, words=Words.of(era), tree="hiradix")
        for era in ("0.5.16", "0.5.17")
    ]
    assert said[0] is None and said[1] is not None
