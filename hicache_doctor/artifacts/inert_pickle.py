"""SGLang's crash pickle without SGLang: every class in it becomes a record that only remembers what it was given.

``find_class`` answers any name with a type made on the spot, and imports nothing; calling one, building one and setting
its state fill the record and do nothing else. So the pickle's classes, enumerations, tensors and dates cost memory and
time, which :mod:`limited` bounds, and cannot act. What leaves here is plain: settings as text, and a few numbers a
request. Imports the standard library only: it runs in a child.

The dump (``dump_requests_before_crash`` of the tokenizer manager, up to 0.5.23) is a dict: ``server_args`` (an object,
a dict, or None), since 0.5.17 ``config_updates`` and ``resolved_config``, ``requests`` as tuples of request object,
output, created and finished time, ``launch_command``.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from hicache_doctor.artifacts.plain_pickle import refusal

MOST_REQUESTS = 20_000
LONGEST_VALUE, LONGEST_COMMAND, LONGEST_PROMPT = 2_000, 20_000, 500
_MOST_CLASSES = 20_000
_MOST_SETTINGS = 5_000
_BUFFER = 1 << 20
_DEEPEST, _WIDEST = 6, 200


class Record:
    """What stands for any object: the arguments it was made with, its state, its items."""

    named = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Record:
        record = super().__new__(cls)
        record.__dict__ = {"args": args, "kwargs": kwargs, "state": {}, "items": []}
        return record

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes anything."""

    def __call__(self, *args: Any, **kwargs: Any) -> Record:
        return Record(self, *args, **kwargs)

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self.__dict__["state"].update(part)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__["items"].append((key, value))

    def append(self, value: Any) -> None:
        self.__dict__["items"].append(value)

    def extend(self, values: Any) -> None:
        self.__dict__["items"].extend(values)

    add = append

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class _Inert(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BufferedReader(io.BytesIO(data), _BUFFER))
        self._classes: dict[str, type[Record]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """A record's type for any name; nothing is imported."""
        full = f"{module}.{name}"[:400]
        found = self._classes.get(full)
        if found is None:
            if len(self._classes) >= _MOST_CLASSES:
                raise pickle.UnpicklingError("names too many classes")
            found = self._classes[full] = type("Record", (Record,), {"named": full})
        return found

    def persistent_load(self, _: Any) -> Any:
        """Something outside, which stays there."""
        return Record()


def summary(data: bytes, options: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """What an incident needs of a crash pickle; ``other`` alone when it is none of SGLang's.

    ``options``: ``prompts``, whether a clipped prompt is kept.

    Raises:
        Refused: it is damaged.
    """
    try:
        dump = _Inert(data).load()
    except (MemoryError, RecursionError):
        raise
    except Exception as e:
        raise refusal(e, data, classes=True) from None
    if type(dump) is not dict or "requests" not in dump or not ({"server_args", "launch_command"} & dump.keys()):
        return {"other": True}, []
    requests = dump["requests"] if type(dump["requests"]) is list else []
    command = dump.get("launch_command")
    header = {
        "server_args": dict(_settings(dump.get("server_args"))),
        "resolved_config": dict(_settings(dump.get("resolved_config"))),
        "launch_command": command[:LONGEST_COMMAND] if type(command) is str else None,
        "requests": [_request(r, bool(options.get("prompts"))) for r in requests[:MOST_REQUESTS]],
        "more": max(0, len(requests) - MOST_REQUESTS),
    }
    return header, []


def _settings(args: Any) -> Iterator[tuple[str, str]]:
    """Names and values as SGLang's log has them: texts without quotes, ``None``, ``True``, containers as written."""
    for name, value in list(_fields(args).items())[:_MOST_SETTINGS]:
        if type(name) is str and not name.startswith("_"):
            if isinstance(value, Record) and _is_member(value):
                value = value.__dict__["args"][0]
            text = value if type(value) is str else "".join(_shown(value))
            yield name[:200], text[:LONGEST_VALUE]


def _fields(thing: Any) -> dict[Any, Any]:
    if type(thing) is dict:
        return thing
    if not isinstance(thing, Record):
        return {}
    state = thing.__dict__["state"]
    if state:
        return dict(state)
    # Made by a function that got its fields: (function, class, fields) or keyword arguments.
    given = next((a for a in reversed(thing.__dict__["args"]) if type(a) is dict), None)
    return dict(given if given is not None else thing.__dict__["kwargs"])


def _shown(value: Any, depth: int = 0) -> Iterator[str]:
    """A value as Python writes it, cut in depth and width; an enumeration's member by what it was made of."""
    if isinstance(value, Record):
        yield from (
            _shown(value.__dict__["args"][0], depth + 1)
            if _is_member(value) and depth < _DEEPEST
            else (f"<{type(value).named or 'object'}>",)
        )
    elif isinstance(value, (list, tuple, set, frozenset, dict)):
        if depth >= _DEEPEST:
            yield "…"
            return
        brackets = "[]" if isinstance(value, list) else "()" if isinstance(value, tuple) else "{}"
        yield brackets[0]
        for i, item in enumerate(value):
            if i >= _WIDEST:
                yield ", …"
                break
            yield ", " if i else ""
            yield from _shown(item, depth + 1)
            if isinstance(value, dict):
                yield ": "
                yield from _shown(value[item], depth + 1)
        yield brackets[1]
    elif isinstance(value, type):
        yield str(getattr(value, "named", value.__name__))
    elif isinstance(value, (str, bytes, bytearray)):
        yield repr(value[:LONGEST_VALUE])
    elif isinstance(value, int) and value.bit_length() > 256:
        yield "<a huge number>"
    else:
        yield repr(value)


def _is_member(record: Record) -> bool:
    args = record.__dict__["args"]
    return len(args) == 1 and isinstance(args[0], (str, int)) and not record.__dict__["state"]


def _request(request: Any, prompts: bool) -> dict[str, Any]:
    parts = list(request) if isinstance(request, (tuple, list)) else [request]
    thing, given, created, finished = [*parts[:4], None, None, None, None][:4]
    asked = _fields(thing)
    out: dict[Any, Any] = given if type(given) is dict else {}
    said = out.get("meta_info")
    meta: dict[Any, Any] = said if type(said) is dict else {}
    ended = meta.get("finish_reason") is not None
    found = {
        "rid": _rid(asked.get("rid"), meta.get("id")),
        "prompt_tokens": _first(
            _count, meta.get("prompt_tokens"), asked.get("input_ids"), meta.get("prompt_token_ids")
        ),
        "output_tokens": _first(_count, meta.get("completion_tokens"), out.get("output_ids")),
        "cached_tokens": _first(_count, meta.get("cached_tokens")),
        "created": _first(_time, created),
        "ended": _first(_time, finished),
        "finished": ended,
    }
    if prompts and type(text := asked.get("text")) is str:
        found["prompt"] = text[:LONGEST_PROMPT]
    return found


def _rid(*candidates: Any) -> str | None:
    for c in candidates:
        if type(c) is list and c:
            c = c[0]
        if type(c) in (str, int):
            return str(c)[:200] if type(c) is str or c.bit_length() < 256 else None
    return None


def _first(read: Callable[[Any], Any], *candidates: Any) -> Any:
    return next((v for c in candidates if (v := read(c)) is not None), None)


def _count(value: Any) -> int | None:
    """A number of tokens, or the length of a list of token ids (of lists of them, for a batch)."""
    if type(value) is int:
        return value if 0 <= value < 1 << 40 else None
    if type(value) is not list:
        return None
    if value and all(type(v) is list for v in value[:_WIDEST]):
        return sum(len(v) for v in value if type(v) is list)
    return len(value)


def _time(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 < value < 1e11 else None
