"""A dump of torch's flight recorder as columns, for the parent: :mod:`flight_recorder` makes rows of them.

Each column is taken by one comprehension over what a dump of torch's has, and value by value only where that fails (a
key is missing, a number is text): two thousand entries are four milliseconds. Nothing of an entry is believed: numbers
are checked to be numbers, texts are cut, every text is sent once. Imports the standard library only.
"""

from __future__ import annotations

import json
import marshal
from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from hicache_doctor.artifacts.plain_pickle import Refused, load

NONE = -(1 << 63)
"""Stands for a number that is not there."""
LONGEST_NAME, LONGEST_SIZES, LONGEST_MEMBERS = 120, 200, 20_000
MOST_GROUPS, MOST_FRAMES = 4096, 100
MOST_TEXTS = 1 << 16
_LOOKED_AT = 100
_TORCH = ("-packages/torch/", "/torch/distributed/")
# No entry of a real dump takes fewer bytes: a dump that has more of them repeats one by its number.
_LEAST_BYTES = 16

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
    records = _numbers(entries, "record_id")
    if any(a > b for a, b in pairwise(records)):
        order = sorted(range(len(entries)), key=records.__getitem__)
        entries = [entries[i] for i in order]
        records = array("q", [records[i] for i in order])
    created = _created(entries)
    groups, group = _groups(entries)
    ops, op = _texts(entries, "profiling_name", LONGEST_NAME)
    states, state = _texts(entries, "state", LONGEST_NAME)
    shapes, shape = _shapes(entries)
    sites, site = _sites(entries)
    if max(len(groups), len(ops), len(states)) > MOST_TEXTS:
        raise Refused("names more groups or operations than a job can have")
    retired = _retired(entries)
    sequence = _numbers(entries, "collective_seq_id", "seq_id")
    pg = _numbers(entries, "pg_id")
    names = [e.get("thread_id") for e in entries]
    threads = {t if type(t) is str else _text(t, 40): i for i, t in enumerate(names)}  # of each, its last operation
    header = {
        "version": _text(dump.get("version"), 20),
        "library": _text(dump.get("comm_lib_version") or dump.get("nccl_version"), 40),
        "rank": _whole(dump.get("rank")),
        "host": _text(dump.get("host_name"), LONGEST_NAME),
        "entries": len(entries),
        "others": len(all_entries) - len(entries),
        "groups": groups,
        "ops": ops,
        "states": states,
        "shapes": shapes,
        "sites": sites,
        "config": _config(dump.get("pg_config")),
        "status": _status(dump.get("pg_status")),
        "ids": sorted({(p, g) for p, g in zip(pg, group, strict=True) if p != NONE})[:MOST_GROUPS],
        "last": sorted(threads.values())[-MOST_GROUPS:],
        "stacks": list(_stacks(entries, records, retired, len(threads) < 2)),
    }
    return header, [records, sequence, created, group, op, state, shape, site, retired]


def _numbers(entries: list[Entry], key: str, *older: str) -> array[int]:
    """One number an entry; ``older``: what the key was called before."""
    try:
        return array("q", [e[key] for e in entries])
    except (KeyError, TypeError, OverflowError):
        names = (key, *older)
        values = [_whole(next((e[n] for n in names if n in e), None)) for e in entries]
        return array("q", [NONE if v is None else v for v in values])


def _created(entries: list[Entry]) -> array[int]:
    """When each was issued, in nanoseconds since the epoch."""
    if entries and "time_created_ns" not in entries[0] and "time_created_us" in entries[0]:
        return array("q", [t if t == NONE else t * 1000 for t in _numbers(entries, "time_created_us")])
    return _numbers(entries, "time_created_ns")


def _texts(entries: list[Entry], key: str, longest: int) -> tuple[list[str], array[int]]:
    """The texts that occur, and which of them each entry has."""
    try:
        found, codes = _coded([e[key] for e in entries])
        if all(type(v) is str for v in found):
            return [v[:longest] for v in found], codes
    except (KeyError, TypeError):
        pass
    return _coded([_text(e.get(key), longest) or "" for e in entries])


def _groups(entries: list[Entry]) -> tuple[list[tuple[str, str]], array[int]]:
    """The process groups that occur, by name and description, and the group of each entry."""
    try:
        found, codes = _coded([e["process_group"] for e in entries])
        if all(type(v) is tuple and len(v) == 2 for v in found):
            return [(_name(v[0]), _name(v[1])) for v in found], codes
    except (KeyError, TypeError):
        pass
    return _coded([_group(e) for e in entries])


def _group(entry: Entry) -> tuple[str, str]:
    pair = entry.get("process_group")
    if isinstance(pair, (list, tuple)) and len(pair) == 2:
        return _name(pair[0]), _name(pair[1])
    name = entry.get("pg_name", entry.get("pg_id"))
    return _name(name), _name(entry.get("pg_desc"))


def _shapes(entries: list[Entry]) -> tuple[list[tuple[str | None, str | None]], array[int]]:
    """The input's sizes (JSON) and types that occur together, and which of them each entry has."""
    try:
        # Lists cannot be keys; their marshalled bytes can, and cost a quarter of their text.
        found, codes = _coded([marshal.dumps((e["input_sizes"], e["input_dtypes"]), 2) for e in entries])
    except KeyError:
        found, codes = _coded([marshal.dumps((e.get("input_sizes"), e.get("input_dtypes")), 2) for e in entries])
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


def _sites(entries: list[Entry]) -> tuple[list[str], array[int]]:
    """The call sites that occur, and that of each entry (-1: none). Entries share the frames of one place."""
    sites: dict[str, int] = {}
    known: dict[int, int] = {}  # of a frame, by its identity: its site, or -1 for one of torch's own
    out = array("i")
    for e in entries:
        code = -1
        frames = e.get("frames")
        if type(frames) is list:
            for f in frames[:MOST_FRAMES]:
                code = known.get(id(f), -2)
                if code == -2:
                    code = known[id(f)] = _site(f, sites)
                if code >= 0:
                    break
        out.append(code)
    return list(sites), out


def _site(frame: Any, sites: dict[str, int]) -> int:
    name, file, line = _frame(frame)
    if not name or file is None or any(part in file for part in _TORCH):
        return -1
    base = file.replace("\\", "/").rsplit("/", 1)[-1]
    return sites.setdefault(f"{name} {base}:{line or 0}", len(sites))


def _frame(frame: Any) -> tuple[str, str | None, int | None]:
    if not isinstance(frame, dict):
        return "", None, None
    return _name(frame.get("name")), _text(frame.get("filename"), 400), _whole(frame.get("line"))


def _retired(entries: list[Entry]) -> array[int]:
    """Whether the watchdog is done with each: 1, 0, or -1 where the version does not say."""
    try:
        return array("b", [1 if e["retired"] else 0 for e in entries])
    except KeyError:
        return array("b", [-1 if "retired" not in e else 1 if e["retired"] else 0 for e in entries])


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


def _coded(values: list[Any]) -> tuple[list[Any], array[int]]:
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
