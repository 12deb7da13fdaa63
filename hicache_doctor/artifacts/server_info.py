"""Answers of SGLang's ``/server_info`` (``/get_server_info``) and ``/get_model_info``: settings, and memory as Samples.

One answer, several one after the other, an array of them, or the prefill and decode halves that a router returns.
``server_args`` and ``internal_states`` may be objects or JSON text. Each internal state is one data-parallel rank's;
only stage 0 answers, so its memory is that of one rank, and no rank is named unless the state names it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from hicache_doctor.artifacts.json_text import Keys, Numbered, documents
from hicache_doctor.artifacts.metrics import rank_of
from hicache_doctor.artifacts.secret_text import MASK, is_secret, masked
from hicache_doctor.artifacts.secrets import scrub
from hicache_doctor.evidence.rows import Row, Sample, Setting

SOURCE = "server_info"
_ARGUMENTS = {"tp_size", "pp_size", "model_path", "served_model_name"}
_LOOKS = re.compile(r'"(?:tp_size|server_args|model_path|pp_size|internal_states)"\s*:|\\"(?:tp_size|model_path)\\"')
_NESTED = ("server_args", "internal_states", "prefill", "decode", "data")
_MOST_ANSWERS = 256
_DEEPEST = 6
_GB = 1024.0**3
# What an internal state says of memory: GB, but for the capacity in tokens.
_MEMORY = {"weight": "weight_bytes", "kvcache": "kv_cache_bytes", "graph": "cuda_graph_bytes"}
_GAUGES = {
    "last_gen_throughput": "gen_throughput", "effective_max_running_requests_per_dp": "max_running_requests",
    "load": "num_used_tokens", "avg_spec_accept_length": "spec_accept_length",
}  # fmt: skip


def looks_like_server_info(text: str) -> bool:
    """True when the text holds such an answer (or the beginning of one)."""
    return _LOOKS.search(text) is not None


def read_answers(lines: Sequence[tuple[int, str]], artifact: str) -> tuple[list[Row], set[int]]:
    """The rows of every answer, in order, secrets masked, and the numbers of the lines that they are written on.

    Both are empty when the text holds no such JSON. Never raises.
    """
    numbered = Numbered(lines)
    out: list[Row] = []
    taken: set[int] = set()
    for document in documents(numbered.text):
        answers = list(islice(_answers(document.value, 0), _MOST_ANSWERS))
        keys = Keys(numbered, document.begin, document.end)
        for n, answer in enumerate(answers):
            out += _settings(answer, keys, n, artifact)
            out += _samples(answer, keys, artifact)
        if answers:
            taken.update(range(numbered.line(document.begin), numbered.line(document.end) + 1))
    return out, taken


def _answers(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    """The answers inside a document: the objects that say arguments, wherever a router put them."""
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        for item in value[:_MOST_ANSWERS]:
            yield from _answers(item, depth + 1)
    elif isinstance(value, dict):
        if _ARGUMENTS & value.keys() or isinstance(_unpacked(value.get("server_args")), dict):
            yield value
            return
        for key in ("prefill", "decode", "data", "workers"):
            yield from _answers(_unpacked(value.get(key)), depth + 1)


def _unpacked(value: Any) -> Any:
    """A value that is JSON text, parsed; anything else as it is."""
    if isinstance(value, str) and value[:1] in ("{", "[") and len(value) < 1 << 20:
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _settings(answer: dict[str, Any], keys: Keys, nth: int, artifact: str) -> Iterator[Setting]:
    nested = _unpacked(answer.get("server_args"))
    merged = {**(nested if isinstance(nested, dict) else {}), **answer}
    for key, value in merged.items():
        if key in _NESTED or isinstance(value, dict) or not isinstance(key, str):
            continue
        known = "sglang_version" if key == "version" else key[:120]
        shown = masked(known, _text(value, key))
        line = keys.line(key, nth)
        yield Setting(known, shown[:2000], SOURCE, artifact, line, None, f'"{key[:120]}": {shown[:160]}')


def _text(value: Any, key: str) -> str:
    if isinstance(value, list):
        return json.dumps(_without_secrets(value, 0))
    return value if isinstance(value, str) else str(value)


def _without_secrets(value: Any, depth: int) -> Any:
    """Lists and objects in a value, with what their own keys call a secret masked."""
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, list):
        return [_without_secrets(v, depth + 1) for v in value[:1000]]
    if isinstance(value, dict):
        return {
            str(k): MASK if is_secret(str(k)) and v else _without_secrets(v, depth + 1)
            for k, v in list(value.items())[:1000]
        }
    return scrub(value) if isinstance(value, str) else value


def _samples(answer: dict[str, Any], keys: Keys, artifact: str) -> Iterator[Sample]:
    states = _unpacked(answer.get("internal_states"))
    for n, state in enumerate(states[:_MOST_ANSWERS] if isinstance(states, list) else []):
        if not isinstance(state, dict):
            continue
        labels = {k: str(state[k]) for k in ("dp_rank", "pp_rank", "tp_rank") if isinstance(state.get(k), int)}
        rank = rank_of(labels)
        where = keys.line("memory_usage", n)
        memory = state.get("memory_usage")
        for name, value in _values(state, memory if isinstance(memory, dict) else {}):
            yield Sample(artifact, where, rank, None, None, name, value, {"state": n, **labels})


def _values(state: dict[str, Any], memory: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for key, name in _MEMORY.items():
        if (value := _number(memory.get(key))) is not None:
            yield name, value * _GB
    if (capacity := _number(memory.get("token_capacity"))) is not None:
        yield "max_total_num_tokens", capacity
    for key, name in _GAUGES.items():
        if (value := _number(state.get(key))) is not None:
            yield name, value


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
