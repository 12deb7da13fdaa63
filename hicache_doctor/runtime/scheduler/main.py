"""One rank's life: groups, cache, scheduler, integrity at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hicache_doctor.runtime import server_log
from hicache_doctor.runtime.cache.hicache import HiCache
from hicache_doctor.runtime.cache.hiradix_cache import HiRadixCache
from hicache_doctor.runtime.cache.integrity import check as check_integrity
from hicache_doctor.runtime.cache.unified_radix_cache import UnifiedRadixCache
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.model.base import Model
from hicache_doctor.runtime.model.open import open_model
from hicache_doctor.runtime.scheduler.arrivals import Arrivals, WorkloadArrivals
from hicache_doctor.runtime.scheduler.dispatch_arrivals import DispatchArrivals
from hicache_doctor.runtime.scheduler.scheduler import Scheduler
from hicache_doctor.runtime.storage.open import open_storage
from hicache_doctor.runtime.workload import Request
from hicache_doctor.runtime.world import Storage, Topology, World

TREES: dict[str, type[HiCache]] = {"hiradix": HiRadixCache, "unified": UnifiedRadixCache}


def base_groups(topo: Topology, *, dp_attention: bool) -> list[tuple[str, list[int]]]:
    """The groups of the scheduler thread, in the one order in which all ranks make them."""
    out: list[tuple[str, list[int]]] = []
    cps, tps = range(topo.cp_size), range(topo.tp_size)
    for d in range(topo.dp_size):
        for p in range(topo.pp_size):
            if topo.tp_size > 1:
                out += [("tp", [topo.rank(p, t, d, c) for t in tps]) for c in cps]
            if topo.tp_size * topo.cp_size > 1:
                out.append(("fwd", [topo.rank(p, t, d, c) for c in cps for t in tps]))
    if topo.cp_size > 1:
        out += [("cp", ranks) for ranks in topo.lines("cp")]
    if topo.pp_size > 1:
        out += [("pp", ranks) for ranks in topo.lines("pp")]
    if dp_attention and topo.dp_size > 1:
        out += [("mlp", ranks) for ranks in topo.lines("dp")]
    return out


def _storage(config: Config, world: World, model: Model) -> Storage | None:
    return open_storage(config, world, model) if config.l3 is not None else None


def open_arrivals(world: World, config: Config, requests: list[Request]) -> Arrivals:
    """From the controller's line, or where there is no controller the replica's own share of the workload, by step."""
    topo, at = world.topo, world.at
    if world.line is not None and at.tp == at.cp == 0:
        return DispatchArrivals(world, world.line, requests, config, relayed=config.dp_attention)
    mine = {r.rid: 1 for r in requests if r.rid % topo.dp_size == at.dp}
    return WorkloadArrivals(requests, config.faults, mine)


def run_rank(
    world: World,
    config: Config,
    make_model: Callable[[Config, World], Model] = open_model,
    make_storage: Callable[[Config, World, Model], Storage | None] = _storage,
    requests: list[Request] | None = None,
) -> dict[str, Any]:
    """Run one rank to its end; returns counts, outputs and what the integrity check found (JSON types only)."""
    if requests is None:
        requests = config.workload.build(config.seed)
    for name, ranks in base_groups(world.topo, dp_attention=config.dp_attention):
        world.new_group(name, ranks)
    model = make_model(config, world)
    cache = TREES[config.tree](world, config, model, make_storage(config, world, model))
    world.log(server_log.kv_cache(config.device_pages * config.page_size, config.device_pages * model.page_bytes()))
    world.log(server_log.host_pool(cache.host.size * config.page_size, config.write_policy))
    if config.l3 is not None:
        world.log(server_log.storage_backend(config.l3))
    world.log(server_log.pool_sizes(config))
    arrivals = open_arrivals(world, config, requests)
    scheduler = Scheduler(world, config, model, cache, requests, arrivals)
    scheduler.profile_and_init_predictor()
    started = world.now()
    if scheduler.disaggregated:
        scheduler.event_loop_pp_disagg_prefill()
    else:
        scheduler.event_loop_pp()
    loop_ns = world.now() - started
    cache.close()
    stats = cache.stats
    samples = getattr(model, "samples", [])
    return {
        "logits": [[s.rid, s.position, s.top, s.margin] for s in samples],
        "steps": scheduler.step,
        "loop_ns": loop_ns,
        "batches": scheduler.forwards,
        "outputs": {r.rid: r.tokens[r.prompt :] for r in scheduler.done.values()},
        "prompts": {r.rid: len(r.tokens) - r.output for r in scheduler.done.values()},
        "aborted": sorted(r.rid for r in scheduler.done.values() if r.aborted),
        "hits": {"l1": scheduler.hits_device, "l2": stats.hits_host, "l3": stats.hits_storage},
        "evictions": {"l1": cache.tree.evicted_device, "l2": cache.tree.evicted_host},
        "load_backs": stats.load_backs,
        "prefetches": {"settled": stats.settled, "revoked": stats.revoked, "aborted": stats.aborted},
        "writes": stats.writes,
        "write_refused": stats.write_refused,
        "backups": stats.backups,
        "syncs": stats.syncs,
        "retracted": scheduler.retracted,
        "integrity": check_integrity(cache, scheduler),
    }
