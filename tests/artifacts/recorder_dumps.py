"""Small flight-recorder dumps for tests, as values: pickle or print them."""

from __future__ import annotations

from typing import Any

START = 1_796_000_000_000_000_000
TORCH = "/usr/lib/python3/dist-packages/torch/distributed/"
SGLANG = "/sgl-workspace/sglang/python/sglang/srt/"


def frames(*names: str, file: str = "hiradix_cache.py") -> list[dict[str, Any]]:
    """A stack, innermost first, below torch's own two frames."""
    own = [{"name": n, "filename": SGLANG + file, "line": 100 + i} for i, n in enumerate(names)]
    torch = [
        {"name": "all_reduce", "filename": TORCH + "distributed_c10d.py", "line": 3245},
        {"name": "wrapper", "filename": TORCH + "c10d_logger.py", "line": 83},
    ]
    return torch + own


def entry(
    i: int, name: str = "nccl:all_reduce", group: str = "1", seq: int | None = None, **more: Any
) -> dict[str, Any]:
    """The entry of record ``i``; finished unless told otherwise."""
    return {
        "record_id": i,
        "pg_id": int(group),
        "process_group": (group, "undefined"),
        "thread_name": "sglang::schedul",
        "thread_id": "139642014079872",
        "collective_seq_id": i + 1 if seq is None else seq,
        "p2p_seq_id": 0,
        "op_id": i + 1,
        "profiling_name": name,
        "time_created_ns": START + i * 1_000_000,
        "input_sizes": [[16, 5120]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[16, 5120]],
        "output_dtypes": ["BFloat16"],
        "state": "completed",
        "time_discovered_started_ns": START + i * 1_000_000 + 1000,
        "time_discovered_completed_ns": START + i * 1_000_000 + 2000,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": " " in name,
        "frames": frames("forward", "event_loop_pp"),
    } | more


HANGS: dict[str, Any] = {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}


def dump(entries: list[dict[str, Any]], groups: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """A dump of version 2.10; ``groups``: name → members as torch writes them."""
    groups = {"1": "[0, 1]"} if groups is None else groups
    last = {str(e["pg_id"]): e["collective_seq_id"] for e in entries}
    done = {str(e["pg_id"]): e["collective_seq_id"] for e in entries if e["retired"]}
    return {
        "version": "2.10",
        "pg_config": {name: {"name": name, "desc": "undefined", "ranks": ranks} for name, ranks in groups.items()},
        "comm_lib_version": "2.28.3",
        "pg_status": {
            pg: {
                "last_enqueued_collective": n,
                "last_started_collective": n,
                "last_completed_collective": done.get(pg, -1),
            }
            for pg, n in last.items()
        },
        "entries": entries,
    } | more


def gloo(entries: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A dump as gloo's recorder writes it: no members, no states, one id for different groups."""
    for e in entries:
        e.update(state="scheduled", time_discovered_started_ns=None, time_discovered_completed_ns=None, pg_id=1)
    config = {"": {"name": "", "desc": "", "ranks": "[]"}}
    return dump(entries, pg_config=config, comm_lib_version="", **more)
