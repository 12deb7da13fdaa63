"""A run's configuration as plain JSON and back: for the launcher, and for the truth beside a crash dump."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from hicache_doctor.errors import UsageError
from hicache_doctor.runtime import faults, fixes
from hicache_doctor.runtime.config import Config, ModelShape
from hicache_doctor.runtime.workload import Workload
from hicache_doctor.runtime.world import Topology


def to_json(config: Config) -> dict[str, Any]:
    """The configuration as JSON's own types; switches by number."""
    raw = asdict(config)
    raw["fixes"] = {"on": config.fixes.names(), "unmodelled": list(config.fixes.unmodelled)}
    return raw


def from_json(raw: dict[str, Any]) -> Config:
    """The configuration that :func:`to_json` wrote; fields that are left out have their defaults.

    Raises:
        UsageError: a field is unknown or a part has the wrong form.
    """
    known = {f.name for f in fields(Config)}
    for key in raw:
        if key not in known:
            raise UsageError(f"configuration: no field {key!r}")
    done: dict[str, Any] = dict(raw)
    try:
        if "topo" in raw:
            done["topo"] = Topology(**raw["topo"])
        if "fixes" in raw:
            on = fixes.parse(",".join(["none", *raw["fixes"]["on"]]))
            done["fixes"] = fixes.Fixes(on.on, on.ack_counts, tuple(raw["fixes"].get("unmodelled", ())))
        if "faults" in raw:
            done["faults"] = faults.from_dict(raw["faults"])
        if "workload" in raw:
            done["workload"] = Workload(**raw["workload"])
        if "model" in raw:
            shape = dict(raw["model"])
            shape["layer_partition"] = tuple(shape.get("layer_partition", ()))
            done["model"] = ModelShape(**shape)
        return Config(**done)
    except (TypeError, KeyError) as e:
        raise UsageError(f"configuration: {e}") from None


def truth(config: Config, scenario: str, *, replayed: bool) -> dict[str, Any]:
    """What was really done: scenario, switches, faults, seed, and all of the configuration."""
    whole = to_json(config)
    return {
        "scenario": scenario,
        "fixes": config.fixes.names(),
        "faults": whole["faults"],
        "seed": config.seed,
        "replayed": replayed,
        "config": whole,
    }


def truth_beside(dump: Path) -> Path:
    """Where the truth about a dump lies: beside it, never in it."""
    return dump.with_name(dump.name.removesuffix(".dump") + ".truth.json")
