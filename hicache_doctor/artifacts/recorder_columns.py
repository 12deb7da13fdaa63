"""A dump of torch's flight recorder as columns, for the parent: :mod:`flight_recorder` makes rows of them.

Each column is taken by one comprehension over what a dump of torch's has, and value by value only where that fails (a
key is missing, a number is text): two thousand entries are four milliseconds. Nothing of an entry is believed: numbers
are checked to be numbers, texts are cut, every text is sent once. Imports the standard library only.
"""

from __future__ import annotations

import contextlib
import json
import marshal
from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import gt, itemgetter
from typing import Any

from hicache_doctor.artifacts.plain_pickle import Refused, load

NONE = -(1 << 63)
"""Stands for a number that is not there."""
LONGEST_NAME, LONGEST_SIZES, LONGEST_MEMBERS = 120, 200, 20_000
MOST_GROUPS, MOST_FRAMES = 4096, 100
MOST_TEXTS = 1 << 16
_LOOKED_AT, _TORCH_FRAMES = 100, 6
_KEYS = (
    "pg_id", "collective_seq_id", "time_created_ns", "process_group", "profiling_name", "state", "input_sizes",
    "input_dtypes", "retired", "thread_id", "is_p2p", "frames",
)  # fmt: skip
_TORCH = ("-packages/torch/", "/torch/distributed/")
# SGLang's own wrappers of torch's calls: the same for every caller, so the call site is further out.
_WRAPPERS = frozenset({
    "_all_reduce", "_all_reduce_attn_groups", "_all_reduce_prefetch_groups", "_pp_sync", "broadcast_pyobj",
    "_broadcast_reqs_across_ranks", "point_to_point_pyobj", "barrier",
})  # fmt: skip
_WRAPPER_FILES = frozenset({"parallel_state.py", "communication_op.py", "pynccl.py", "base_device_communicator.py"})
# No entry of a real dump takes fewer bytes: a dump that has more of them repeats one by its number.
_LEAST_BYTES = 40
MOST_ENTRIES = 1_000_000

Columns = tuple[dict[str, Any], list[Any]]
Entry = dict[Any, Any]


def of_pickle(data: bytes, _: dict[str, Any]) -> Columns:
    """The columns of a pickled dump.

    Raises:
        Refused: it is no plain pickle, or no dump.
    """
    return columns(load(data), len(data))


def of_json(data: bytes, _: dict[str, Any]) -> Columns:
    """The columns of a dump in JSON.

    Raises:
        Refused: it is no JSON, or no dump.
    """
    try:
        dump = json.loads(data)
    except json.JSONDecodeError as e:
        raise Refused(f"is no complete JSON ({e.msg})", e.pos) from None
    except ValueError as e:
        raise Refused(f"is no JSON ({str(e)[:80]})") from None
    return columns(dump, len(data))


def columns(dump: Any, size: int) -> Columns:
    """The header and the buffers of a dump of any version; version 1 is a bare list of entries.

    Raises:
        Refused: it is no dump, or has more entries than its bytes can hold.
    """
    if isinstance(dump, list) and any(isinstance(e, dict) and "profiling_name" in e for e in dump[:_LOOKED_AT]):
        dump = {"version": "1", "entries": dump}
    if not isinstance(dump, dict) or not ("entries" in dump or "pg_config" in dump or "pg_status" in dump):
        raise Refused("holds no flight recorder")
    found = dump.get("entries")
    all_entries = found if isinstance(found, list) else []
    if len(all_entries) * _LEAST_BYTES > size:
        raise Refused(f"has {len(all_entries)} entries in {size} bytes")
    entries = [e for e in all_entries if type(e) is dict]
    others = len(all_entries) - len(entries)
    entries = entries[-MOST_ENTRIES:]
    records = _numbers([e.get("record_id") for e in entries])
    if any(map(gt, records.tolist(), records[1:].tolist())):
        order = sorted(range(len(entries)), key=records.__getitem__)
        entries = [entries[i] for i in order]
        records = array("q", [records[i] for i in order])
    ids, sequence, created, pairs, names, states, sizes, types, retired, threads, messages, frames = _taken(entries)
    pg = _numbers(ids)
    groups, group = _groups(pairs)
    ops, op = _texts(names)
    conditions, state = _texts(states)
    shapes, shape = _shapes(sizes, types)
    sites, site = _sites(frames)
    if max(len(groups), len(ops), len(conditions)) > MOST_TEXTS:
        raise Refused("names more groups or operations than a job can have")
    done = array("b", [-1 if r is None else 1 if r else 0 for r in retired])
    last = _last(threads)
    header = {
        "version": _text(dump.get("version"), 20),
        "library": _text(dump.get("comm_lib_version") or dump.get("nccl_version"), 40),
        "rank": _whole(dump.get("rank")),
        "host": _text(dump.get("host_name"), LONGEST_NAME),
        "entries": len(entries),
        "others": others,
        "before": len(all_entries) - others - len(entries),
        "groups": groups,
        "ops": ops,
        "states": conditions,
        "shapes": shapes,
        "sites": sites,
        "config": _config(dump.get("pg_config")),
        "status": _status(dump.get("pg_status")),
        "ids": _ids(pg, group),
        "last": last[-MOST_GROUPS:],
        "stacks": list(_stacks(entries, records, done, len(last) < 2)),
    }
    message = array("b", [1 if m is True else 0 for m in messages])
    return header, [records, _numbers(sequence), _numbers(created), group, op, state, shape, site, done, message]


def _taken(entries: list[Entry]) -> list[Sequence[Any]]:
    """The values of all entries by key, None where there is none."""
    try:
        # In one pass, because a look at an entry costs more than taking something from it.
        columns = list(zip(*map(itemgetter(*_KEYS), entries), strict=True))
        return list(columns) if columns else [() for _ in _KEYS]
    except KeyError:
        return [_older(entries, key) for key in _KEYS]


def _older(entries: list[Entry], key: str) -> list[Any]:
    """The values of ``key``, or of what it was called before."""
    if key == "process_group":
        return [e.get(key) or (e.get("pg_name", e.get("pg_id")), e.get("pg_desc")) for e in entries]
    if key == "collective_seq_id":
        return [e.get(key, e.get("seq_id")) for e in entries]
    if key == "time_created_ns":
        return [e.get(key, _thousandfold(e.get("time_created_us"))) for e in entries]
    return [e.get(key) for e in entries]


def _thousandfold(value: Any) -> int | None:
    number = _whole(value)
    return None if number is None else number * 1000


def _numbers(values: Sequence[Any]) -> array[int]:
    try:
        return array("q", values)
    except (TypeError, OverflowError):
        found = [_whole(v) for v in values]
        return array("q", [NONE if v is None else v for v in found])


def _texts(values: Sequence[Any]) -> tuple[list[str], array[int]]:
    """The texts that occur, and which of them each entry has."""
    if set(map(type, values)) <= {str}:
        found, codes = _coded(values)
        return [v[:LONGEST_NAME] for v in found], codes
    return _coded([_name(v) for v in values])


def _groups(pairs: Sequence[Any]) -> tuple[list[tuple[str, str]], array[int]]:
    """The process groups that occur, by name and description, and the group of each entry."""
    with contextlib.suppress(TypeError):  # a list, as in JSON
        found, codes = _coded(pairs)
        if all(type(v) is tuple and len(v) == 2 for v in found):
            return [(_name(v[0]), _name(v[1])) for v in found], codes
    return _coded(
        [(_name(p[0]), _name(p[1])) if isinstance(p, (list, tuple)) and len(p) == 2 else ("", "") for p in pairs]
    )


def _ids(pg: array[int], group: array[int]) -> list[tuple[int, int]]:
    """Which id and which group occur together."""
    one = dict(zip(group, pg, strict=True))
    if list(map(one.__getitem__, group)) == pg.tolist():
        return sorted((p, g) for g, p in one.items() if p != NONE)[:MOST_GROUPS]
    return sorted({(p, g) for p, g in zip(pg, group, strict=True) if p != NONE})[:MOST_GROUPS]


def _last(threads: Sequence[Any]) -> list[int]:
    """The last operation of each thread."""
    try:
        return sorted(dict(zip(threads, range(len(threads)), strict=True)).values())
    except TypeError:
        return sorted({_text(t, 40): i for i, t in enumerate(threads)}.values())


def _shapes(sizes: Sequence[Any], types: Sequence[Any]) -> tuple[list[tuple[str | None, str | None]], array[int]]:
    """The input's sizes (JSON) and types that occur together, and which of them each entry has."""
    try:
        # Lists cannot be keys; their marshalled bytes can, and cost a quarter of their text.
        found, codes = _coded([marshal.dumps(pair, 2) for pair in zip(sizes, types, strict=True)])
    except ValueError:
        raise Refused("has sizes that are nested too deeply") from None
    return [_shape(*marshal.loads(v)) for v in found], codes


def _shape(sizes: Any, types: Any) -> tuple[str | None, str | None]:
    shown = None
    if isinstance(sizes, (list, tuple)) and len(sizes) <= LONGEST_SIZES:
        inner = [list(s)[:LONGEST_SIZES] if isinstance(s, (list, tuple)) else s for s in sizes]
        if all(isinstance(n, int) for s in inner for n in (s if isinstance(s, list) else [s])):
            shown = json.dumps(inner)[:LONGEST_SIZES]
    if not isinstance(types, (list, tuple)):
        return shown, _text(types, LONGEST_NAME)
    names = dict.fromkeys(_name(t) for t in types[:LONGEST_SIZES])
    return shown, ",".join(names)[:LONGEST_NAME] or None


def _sites(stacks: Sequence[Any]) -> tuple[list[str], array[int]]:
    """The call sites that occur, and that of each entry (-1: none). Entries share the frames of one place."""
    sites: dict[str, int] = {}
    known: dict[int, int] = {}  # of a frame, by its identity: its site, or -1 for a wrapper
    depth = 0
    while depth < _TORCH_FRAMES and set(map(type, stacks)) == {list} and min(map(len, stacks)) > depth:
        # As a rule all of them have as many of torch's frames above their own.
        level = list(map(itemgetter(depth), stacks))
        ids = list(map(id, level))
        known |= {i: _site(f, sites) for i, f in dict(zip(ids, level, strict=True)).items()}
        codes = array("i", map(known.__getitem__, ids))
        if min(codes) >= 0:
            return list(sites), codes
        depth = depth + 1 if max(codes) < 0 else _TORCH_FRAMES
    return list(sites), array("i", [_first_site(s, sites, known) for s in stacks])


def _first_site(frames: Any, sites: dict[str, int], known: dict[int, int]) -> int:
    for f in frames[:MOST_FRAMES] if isinstance(frames, list) else ():
        code = known.get(id(f))
        if code is None:
            code = known[id(f)] = _site(f, sites)
        if code >= 0:
            return code
    return -1


def _site(frame: Any, sites: dict[str, int]) -> int:
    name, file, line = _frame(frame)
    if not name or file is None or any(part in file for part in _TORCH):
        return -1
    base = file.replace("\\", "/").rsplit("/", 1)[-1]
    if name.rsplit(".", 1)[-1] in _WRAPPERS or base in _WRAPPER_FILES:
        return -1
    return sites.setdefault(f"{name} {base}:{line or 0}", len(sites))


def _frame(frame: Any) -> tuple[str, str | None, int | None]:
    if not isinstance(frame, dict):
        return "", None, None
    return _name(frame.get("name")), _text(frame.get("filename"), 400), _whole(frame.get("line"))


def _config(config: Any) -> dict[str, tuple[str, str]]:
    """Of each group: what it is for, and its members as written."""
    if not isinstance(config, dict):
        return {}
    return {
        _name(name): (_name(c.get("desc")), _members(c.get("ranks")))
        for name, c in _first(config.items(), MOST_GROUPS)
        if isinstance(c, dict)
    }


def _members(ranks: Any) -> str:
    """The ranks of a group as written: the text of a list, or a list."""
    if isinstance(ranks, (list, tuple)):
        return ",".join(str(n) for n in ranks[:LONGEST_MEMBERS] if isinstance(n, int) and 0 <= n < 1 << 31)
    return _text(ranks, LONGEST_MEMBERS) or ""


def _status(status: Any) -> list[tuple[str, int | None, int | None, int | None]]:
    if not isinstance(status, dict):
        return []
    names = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return [
        (_name(pg), _whole(counts.get(names[0])), _whole(counts.get(names[1])), _whole(counts.get(names[2])))
        for pg, counts in _first(status.items(), MOST_GROUPS)
        if isinstance(counts, dict)
    ]


def _stacks(entries: list[Entry], records: array[int], retired: array[int], alone: bool) -> Iterator[dict[str, Any]]:
    """The stacks of the oldest operation that is not finished, and of the last one."""
    if not entries:
        return
    last = len(entries) - 1
    oldest = next((i for i, r in enumerate(retired) if not r), None)
    for i in dict.fromkeys(i for i in (oldest, last) if i is not None):
        frames = entries[i].get("frames")
        if isinstance(frames, list) and frames:
            yield {
                "index": i,
                "record": None if records[i] == NONE else records[i],
                "thread": _text(entries[i].get("thread_name"), LONGEST_NAME),
                "alone": alone,
                "finished": retired[i] != 0,
                "frames": [_frame(f) for f in frames[:MOST_FRAMES]],
            }


def _coded(values: Sequence[Any]) -> tuple[list[Any], array[int]]:
    codes: dict[Any, int] = dict.fromkeys(values, 0)
    for i, value in enumerate(codes):
        codes[value] = i
    return list(codes), array("i", map(codes.__getitem__, values))


def _whole(value: Any) -> int | None:
    """A number of 64 bits, from a number or a text; None for anything else."""
    if isinstance(value, str) and len(value) <= 20:
        try:
            value = int(value)
        except ValueError:
            return None
    if isinstance(value, float) and abs(value) < 1 << 62:
        value = int(value)
    return int(value) if isinstance(value, int) and NONE < value < 1 << 63 else None


def _text(value: Any, longest: int) -> str | None:
    """A text, or a number as one; None for anything else."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value[:longest]
    return str(value) if isinstance(value, int) and abs(value) < 1 << 63 else None


def _name(value: Any) -> str:
    return _text(value, LONGEST_NAME) or ""


def _first(items: Iterable[tuple[Any, Any]], most: int) -> Iterator[tuple[Any, Any]]:
    for i, item in enumerate(items):
        if i >= most:
            return
        yield item
