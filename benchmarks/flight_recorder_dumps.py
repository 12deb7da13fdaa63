"""Flight-recorder dumps as torch's C++ writes them (version 2.10, NCCL), by the thousand and without torch.

Protocol 2; texts are memoised, containers are not but for frames, which entries share. Every rank belongs to a tensor
group of 8, a pipeline group of 8 and the world; all of them issue the same operations in the same order and finish
them, so that an analyser has everything to compare and nothing to report.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PREFIX = "nccl_trace_rank_"
TP = PP = 8
START_NS = 1_796_000_000_000_000_000
_TORCH = "/usr/lib/python3/dist-packages/torch/distributed/"
_SGLANG = "/sgl-workspace/sglang/python/sglang/srt/"
_LOOP = [
    ("forward", _SGLANG + "model_executor/model_runner.py", 2204),
    ("forward_batch_generation", _SGLANG + "managers/tp_worker.py", 377),
    ("run_batch", _SGLANG + "managers/scheduler.py", 2466),
    ("event_loop_pp", _SGLANG + "managers/scheduler_pp_mixin.py", 111),
    ("run_scheduler_process", _SGLANG + "managers/scheduler.py", 4041),
]
# What one turn of the loop issues: group, operation, shape, call site.
_TURN = [
    ("tp", "all_reduce", [[4096, 5120]], ("_all_reduce_in_place", _SGLANG + "distributed/parallel_state.py", 712)),
    ("tp", "all_reduce", [[4096, 5120]], ("row_parallel", _SGLANG + "layers/linear.py", 1399)),
    ("tp", "_all_gather_base", [[512, 5120]], ("gather", _SGLANG + "layers/logits_processor.py", 640)),
    ("pp", "broadcast", [[16]], ("_pp_sync", _SGLANG + "mem_cache/unified_radix_cache.py", 396)),
]


class _Writer:
    """Opcodes of protocol 2 as ``torch::jit::Pickler`` writes them."""

    def __init__(self) -> None:
        self._memo: dict[Any, int] = {}

    def value(self, value: Any) -> bytes:
        if value is None:
            return b"N"
        if isinstance(value, bool):
            return b"\x88" if value else b"\x89"
        if isinstance(value, int):
            return integer(value)
        if isinstance(value, bytes):  # already opcodes
            return value
        if isinstance(value, str):
            encoded = value.encode()
            return self._once(value, lambda: b"X" + struct.pack("<I", len(encoded)) + encoded)
        if isinstance(value, tuple):
            return b"".join(map(self.value, value)) + b"\x86"
        if isinstance(value, list):
            return b"](" + b"".join(map(self.value, value)) + b"e"
        if isinstance(value, Frame):
            return self._once(value, lambda: self.value(value.__dict__))
        return b"}(" + b"".join(self.value(k) + self.value(v) for k, v in value.items()) + b"u"

    def _once(self, key: Any, write: Any) -> bytes:
        if key in self._memo:
            n = self._memo[key]
            return b"h" + bytes([n]) if n < 256 else b"j" + struct.pack("<I", n)
        written: bytes = write()
        n = self._memo[key] = len(self._memo)
        return written + (b"q" + bytes([n]) if n < 256 else b"r" + struct.pack("<I", n))


class Frame:
    """A frame that entries share."""

    def __init__(self, name: str, filename: str, line: int) -> None:
        self.name, self.filename, self.line = name, filename, line


def integer(n: int) -> bytes:
    """An integer as the C++ writes it."""
    if 0 <= n < 1 << 8:
        return b"K" + bytes([n])
    if 0 <= n < 1 << 16:
        return b"M" + struct.pack("<H", n)
    if -(1 << 31) <= n < 1 << 31:
        return b"J" + struct.pack("<i", n)
    return b"\x8a\x08" + struct.pack("<q", n)


def groups_of(rank: int, ranks: int) -> dict[str, tuple[str, str, list[int]]]:
    """The rank's groups: what they are for → name, description, members."""
    replica = rank // (TP * PP) * TP * PP
    tp, pp = rank // TP, rank % TP
    return {
        "world": ("0", "default_pg", list(range(ranks))),
        "tp": (str(1 + tp), "undefined", list(range(tp * TP, tp * TP + TP))),
        "pp": (str(1 + ranks // TP + replica // PP + pp), "undefined", [replica + pp + TP * s for s in range(PP)]),
    }


def dump(rank: int, ranks: int, entries: int) -> bytes:
    """One rank's file."""
    w = _Writer()
    groups = groups_of(rank, ranks)
    config = {name: {"name": name, "desc": desc, "ranks": str(members)} for name, desc, members in groups.values()}
    counts = {"tp": 0, "pp": 0}
    frames = [Frame(*f) for f in _LOOP]
    torch = Frame("wrapper", _TORCH + "c10d_logger.py", 83)
    holes = [b"\0HOLE%d\0" % i for i in range(6)]
    turn = []
    for group, op, shape, site in _TURN:
        name, desc, _ = groups[group]
        c10d = Frame(op, _TORCH + "distributed_c10d.py", 3245)
        entry = {
            "record_id": holes[0],
            "pg_id": int(name),
            "process_group": (name, desc),
            "thread_name": "sglang::schedul",
            "thread_id": str(139_642_014_079_872 + rank),
            "collective_seq_id": holes[1],
            "p2p_seq_id": 0,
            "op_id": holes[2],
            "profiling_name": f"nccl:{op}",
            "time_created_ns": holes[3],
            "input_sizes": shape,
            "input_dtypes": ["BFloat16"],
            "output_sizes": shape,
            "output_dtypes": ["BFloat16"],
            "state": "completed",
            "time_discovered_started_ns": holes[4],
            "time_discovered_completed_ns": holes[5],
            "retired": True,
            "timeout_ms": 600000,
            "is_p2p": False,
            "frames": [c10d, torch, Frame(*site), *frames],
        }
        turn.append((group, entry, c10d))
    head = [
        b"\x80\x02}(",
        w.value("version") + w.value("2.10"),
        w.value("pg_config") + w.value(config),
        w.value("comm_lib_version") + w.value("2.28.3"),
    ]
    status = {int(groups[g][0]): n for g, n in _issued(entries).items()}
    head += [
        w.value("pg_status")
        + w.value(
            {
                str(pg): {
                    "last_enqueued_collective": n,
                    "last_started_collective": n,
                    "last_completed_collective": n,
                }
                for pg, n in status.items()
            }
        ),
        w.value("entries") + b"](",
    ]
    out = head
    templates: dict[int, bytes] = {}
    at = START_NS
    for i in range(entries):
        kind = i % len(turn)
        group, entry, _ = turn[kind]
        counts[group] += 1
        at += 250_000
        if i < len(turn):
            text = w.value(entry)
        else:
            if kind not in templates:
                text = w.value(entry).replace(b"%", b"%%")
                for hole in holes:
                    text = text.replace(hole, b"%b")
                templates[kind] = text
            text = templates[kind]
        seq = integer(counts[group])
        values = (integer(i), seq, seq, integer(at), integer(at + 40_000), integer(at + 90_000))
        if i < len(turn):
            for hole, value in zip(holes, values, strict=True):
                text = text.replace(hole, value)
            out.append(text)
        else:
            out.append(text % values)
    out.append(b"eu.")
    return b"".join(out)


def _issued(entries: int) -> dict[str, int]:
    kinds = [group for group, *_ in _TURN]
    return {g: sum(kinds[i % len(kinds)] == g for i in range(entries)) for g in ("tp", "pp")}


def write(folder: Path, ranks: int, entries: int) -> int:
    """All dumps of a job; returns their bytes."""
    size = 0
    for name, data in _files(ranks, entries):
        (folder / name).write_bytes(data)
        size += len(data)
    return size


def _files(ranks: int, entries: int) -> Iterator[tuple[str, bytes]]:
    for rank in range(ranks):
        yield f"{PREFIX}{rank}", dump(rank, ranks, entries)
