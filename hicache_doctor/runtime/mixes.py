"""Named workloads for ``runtime run --workload``: what arrives, pools small enough that every tier has work, and the
least of that work without which equal tokens would prove nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from hicache_doctor.errors import UsageError
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.faults import FaultPlan
from hicache_doctor.runtime.workload import Workload

TIGHT = {"device_pages": 70, "host_pages": 70}
REREAD = Workload(requests=60, prefixes=14, prefix=60, suffix=8, gap=6, new_tokens=3)


@dataclass(frozen=True, slots=True)
class Mix:
    """One workload. ``floors``: least counts by name of the report, ``hits.l2`` and the like."""

    says: str
    workload: Workload
    config: Mapping[str, Any] = field(default_factory=dict)
    floors: Mapping[str, int] = field(default_factory=dict)


MIXES: Mapping[str, Mix] = {
    "shared": Mix(
        "a few shared prefixes, decode after prefill",
        Workload(),
        {"device_pages": 64, "host_pages": 160},
        {"hits.l1": 150, "hits.l2": 20, "evictions.l1": 40, "load_backs": 3},
    ),
    "turns": Mix(
        "conversations of three turns",
        Workload(requests=60, turns=3, prefix=24, suffix=16),
        {"device_pages": 64, "host_pages": 240},
        {"hits.l1": 150, "hits.l2": 20, "load_backs": 3},
    ),
    "aborts": Mix(
        "every third client goes away",
        Workload(requests=80, aborts=35, new_tokens=10),
        {"device_pages": 64},
        {"hits.l1": 150, "hits.l2": 10, "aborted": 8},
    ),
    "chunked": Mix(
        "prompts longer than a chunk",
        Workload(requests=40, prefix=150, suffix=60),
        {"chunk_tokens": 32, "device_pages": 160, "host_pages": 240},
        {"hits.l1": 300, "hits.l2": 30, "load_backs": 3},
    ),
    "dynamic": Mix(
        "the same with chunk sizes that were measured",
        Workload(requests=40, prefix=150, suffix=60),
        {"chunk_tokens": 32, "device_pages": 160, "host_pages": 240, "dynamic_chunking": True},
        {"hits.l1": 300, "hits.l2": 30},
    ),
    "reread": Mix(
        "more prefixes than the host holds, so that L3 is read",
        REREAD,
        TIGHT,
        {"hits.l1": 50, "hits.l2": 30, "hits.l3": 40, "prefetches.settled": 8, "prefetches.revoked": 5},
    ),
    "restart": Mix(
        "L3 is restarted empty in the middle",
        replace(REREAD, requests=80),
        {**TIGHT, "faults": FaultPlan(restart_l3=120)},
        {"hits.l2": 30, "hits.l3": 20, "prefetches.settled": 5, "prefetches.revoked": 5},
    ),
    "gone": Mix(
        "clients go away while L3 is being read",
        replace(REREAD, requests=80, aborts=50),
        TIGHT,
        {"hits.l2": 10, "hits.l3": 20, "prefetches.settled": 5, "aborted": 4},
    ),
    "back": Mix(
        "write-back: the host is written when the device evicts",
        REREAD,
        {"write_policy": "write_back", "device_pages": 70, "host_pages": 300},
        {"hits.l1": 50, "hits.l2": 60, "load_backs": 5},
    ),
    "planned": Mix(
        "the first stage's plan instead of replicated schedulers",
        REREAD,
        {"scheduler": "planned", **TIGHT},
        {"hits.l1": 50, "hits.l2": 5, "load_backs": 1},
    ),
    "burst": Mix(
        "everything at once",
        Workload(requests=60, gap=0),
        {"device_pages": 120, "host_pages": 160},
        {"hits.l1": 200, "evictions.l1": 20},
    ),
    "idle": Mix("a few requests, then a long silence", Workload(requests=10, idle_tail=300), floors={"hits.l1": 10}),
}


def apply(config: Config, text: str) -> Config:
    """``config`` with a named mix, or with ``key=value`` pairs of the workload (``requests=500,turns=3``).

    Raises:
        UsageError: neither; the message names what there is.
    """
    name, _, rest = text.partition(",")
    if "=" in name:
        name, rest = "shared", text
    if name not in MIXES:
        raise UsageError(f"no workload {name!r}; there are {', '.join(MIXES)}, or key=value pairs such as requests=200")
    mix = MIXES[name]
    known = [f.name for f in fields(Workload) if f.name != "name"]
    values = {f: getattr(mix.workload, f) for f in known}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        if key not in known or not value.lstrip("-").isdigit():
            raise UsageError(f"workload: {pair!r} is not understood; keys are {', '.join(known)}, values whole numbers")
        values[key] = int(value)
    changes = dict(mix.config)
    if "faults" in changes and not config.faults.quiet:
        del changes["faults"]
    return config.but(workload=Workload(**values, name=name), **changes)
