"""Named workloads for ``runtime run --workload``: what arrives, and pools small enough that every tier has work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hicache_doctor.errors import UsageError
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.workload import Workload

MIXES: Mapping[str, tuple[str, Workload, Mapping[str, Any]]] = {
    "shared": ("a few shared prefixes, decode after prefill", Workload(), {}),
    "turns": ("conversations of three turns", Workload(requests=60, turns=3, prefix=24, suffix=16), {}),
    "aborts": ("every third client goes away", Workload(requests=80, aborts=35, new_tokens=10), {}),
    "chunked": (
        "prompts longer than a chunk",
        Workload(requests=40, prefix=150, suffix=60),
        {"chunk_tokens": 32, "device_pages": 160, "host_pages": 240},
    ),
    "reread": (
        "more prefixes than the host holds, so that L3 is read",
        Workload(requests=60, prefixes=14, prefix=60, suffix=8, gap=6, new_tokens=3),
        {"device_pages": 70, "host_pages": 70},
    ),
    "burst": ("everything at once", Workload(requests=60, gap=0), {"device_pages": 120, "host_pages": 160}),
    "idle": ("a few requests, then a long silence", Workload(requests=10, idle_tail=300), {}),
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
    _, workload, sizes = MIXES[name]
    known = {f.name: f.type for f in fields(Workload) if f.name != "name"}
    values = {f: getattr(workload, f) for f in known}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        if key not in known or not value.lstrip("-").isdigit():
            raise UsageError(f"workload: {pair!r} is not understood; keys are {', '.join(known)}, values whole numbers")
        values[key] = int(value)
    return config.but(workload=Workload(**values, name=name), **sizes)
