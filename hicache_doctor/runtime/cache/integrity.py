"""What must hold when nothing is under way: nothing leaked, nothing locked, no orphan."""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hicache_doctor.runtime.cache.hicache import HiCache
    from hicache_doctor.runtime.scheduler.scheduler import Scheduler


def check(cache: HiCache, scheduler: Scheduler | None = None) -> list[str]:
    """Sentences about what is wrong; empty when all is well."""
    tree = cache.tree
    wrong: list[str] = []
    device: list[int] = []
    host: list[int] = []
    resident = 0
    for node in tree.nodes():
        parent = node.parent
        name = f"node {node.key:x}"
        if parent is None or parent.children.get(node.hashes[0]) is not node:
            wrong.append(f"{name} is not a child of its parent")
            continue
        if node.lock_ref or node.host_ref:
            wrong.append(f"{name} is still referenced (lock_ref {node.lock_ref}, host {node.host_ref})")
        if node.value is None and node.host_value is None:
            wrong.append(f"{name} has no copy in any tier")
        if node.value is not None:
            resident += len(node.value)
            device += node.value
            if parent.value is None:
                wrong.append(f"{name} is resident below an evicted parent")
            if len(node.value) != len(node.hashes):
                wrong.append(f"{name} has {len(node.value)} device pages for {len(node.hashes)}")
        if node.host_value is not None:
            host += node.host_value
            if parent.host_value is None and cache.config.write_policy != "write_back":
                wrong.append(f"{name} is backed up below a parent that is not")
            if len(node.host_value) != len(node.hashes):
                wrong.append(f"{name} has {len(node.host_value)} host pages for {len(node.hashes)}")
        resident_children = sum(c.value is not None for c in node.children.values())
        if resident_children != node.resident_children:
            wrong.append(f"{name} counts {node.resident_children} resident children, has {resident_children}")
    for tier, used, pool in (("device", device, cache.device), ("host", host, cache.host)):
        if len(set(used)) != len(used):
            wrong.append(f"a {tier} page belongs to two nodes")
        if sorted(used + pool.free) != list(range(1, pool.size + 1)):
            missing = pool.size - len(used) - len(pool.free)
            wrong.append(
                f"{tier} pool: {len(used)} in the tree + {len(pool.free)} free of {pool.size} ({missing} leaked)"
            )
    if tree.evictable != resident or tree.protected:
        wrong.append(f"ledger: evictable {tree.evictable} of {resident} resident, protected {tree.protected}")
    under_way: dict[str, Sized] = {
        "ongoing_write_through": cache.ongoing_write_through,
        "ongoing_load_back": cache.ongoing_load_back,
        "ongoing_prefetch": cache.ongoing_prefetch,
        "ongoing_backup": cache.ongoing_backup,
        "ack_write_queue": cache.cache_controller.ack_write_queue,
        "ack_load_queue": cache.cache_controller.ack_load_queue,
    }
    wrong += [f"{len(v)} left in {name}" for name, v in under_way.items() if v]
    if cache.cache_controller.prefetch_tokens_occupied:
        wrong.append(f"prefetch_tokens_occupied is {cache.cache_controller.prefetch_tokens_occupied}")
    if scheduler is not None and scheduler.busy:
        wrong.append("requests are still queued or running")
    return wrong
