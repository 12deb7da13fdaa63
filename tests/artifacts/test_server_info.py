"""Answers of /server_info and /get_model_info, in every nesting."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.artifacts.launch import parse
from hicache_doctor.artifacts.server_info import read_answers
from hicache_doctor.evidence.rows import Sample, Setting
from tests.artifacts.small import mutations, numbered, text_of

TEXT = text_of("server_info.json")
ANSWER: dict[str, Any] = json.loads(TEXT)
ARGS = {k: v for k, v in ANSWER.items() if k != "version"}
GIB = 1024.0**3


def settings(text: str) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for row in parse(numbered(text), "x"):
        if isinstance(row, Setting):
            assert row.source == "server_info"
            out.setdefault(row.key, []).append(row.value)
    return out


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        json.dumps(ANSWER),
        "$ curl -s localhost:30000/get_server_info\n" + json.dumps(ANSWER),
        json.dumps({"server_args": {k: v for k, v in ANSWER.items() if k != "version"}, "version": "0.5.14"}),
        json.dumps(
            {"server_args": json.dumps({k: v for k, v in ANSWER.items() if k != "version"}), "version": "0.5.14"}
        ),
    ],
    ids=["pretty", "one line", "below a prompt", "nested", "nested as text"],
)
def test_settings_of_one_answer(text: str) -> None:
    found = settings(text)
    assert (found["pp_size"], found["tp_size"], found["sglang_version"]) == (["2"], ["2"], ["0.5.14"])
    assert (found["enable_hierarchical_cache"], found["admin_api_key"]) == (["True"], ["None"])
    assert found["disable_cuda_graph_bs"] == ["[1, 2]"]
    assert found["api_key"] == ["***"]
    assert "abcd1234efgh5678" not in str(found)
    assert "internal_states" not in found


def test_memory_of_every_state() -> None:
    samples = [r for r in parse(numbered(TEXT), "x") if isinstance(r, Sample)]
    first = {s.name: s.value for s in samples if s.labels["state"] == 0}
    assert first == {
        "weight_bytes": 30.5 * GIB, "kv_cache_bytes": 20.25 * GIB, "cuda_graph_bytes": 1.5 * GIB,
        "max_total_num_tokens": 464256.0, "gen_throughput": 12.5, "max_running_requests": 64.0,
    }  # fmt: skip
    assert {s.labels["state"]: s.value for s in samples if s.name == "max_total_num_tokens"} == {
        0: 464256.0,
        1: 464192.0,
    }
    assert {s.rank for s in samples} == {None}
    lines = TEXT.split("\n")
    assert all('"memory_usage"' in lines[(s.line or 0) - 1] for s in samples)
    assert len({s.line for s in samples}) == 2


def test_states_that_name_their_rank() -> None:
    answer = ANSWER | {"internal_states": [{"pp_rank": 1, "tp_rank": 0, "memory_usage": {"kvcache": 2}}]}
    (sample,) = [r for r in parse(numbered(json.dumps(answer)), "x") if isinstance(r, Sample)]
    assert (sample.rank, sample.value) == ("PP1 TP0", 2 * GIB)


@pytest.mark.parametrize(
    "document",
    [[ANSWER, ANSWER | {"pp_size": 4}], {"prefill": [ANSWER], "decode": [ANSWER | {"pp_size": 4}]}],
    ids=["an array", "halves of a router"],
)
def test_several_answers(document: object) -> None:
    text = json.dumps(document, indent=1)
    found = settings(text)
    assert (found["pp_size"], found["sglang_version"]) == (["2", "4"], ["0.5.14", "0.5.14"])
    two = [
        r for r in parse(numbered(json.dumps(document, indent=1)), "x") if isinstance(r, Setting) and r.key == "pp_size"
    ]
    assert two[0].line != two[1].line


def test_a_model_info() -> None:
    found = settings('{"model_path": "/opt/models/Qwen3-32B", "is_generation": true, "weight_version": "default"}')
    assert found == {"model_path": ["/opt/models/Qwen3-32B"], "is_generation": ["True"], "weight_version": ["default"]}


def test_the_rest_of_the_text_is_read_as_before() -> None:
    rows = parse(numbered("image: lmsysorg/sglang:v0.5.16-cu129\n" + TEXT + "export SGLANG_LOG_MS=1\n"), "x")
    by_key = {r.key: (r.value, r.source) for r in rows if isinstance(r, Setting)}
    assert by_key["SGLANG_LOG_MS"] == ("1", "environment")
    assert by_key["image"][1] == "image tag"


def test_no_secret_passes_in_a_list() -> None:
    answer = ANSWER | {"lora_paths": [{"name": "a", "hf_token": "hf_abcdefghijklmnopqrstuv"}]}
    assert "hf_abcdefgh" not in str(parse(numbered(json.dumps(answer)), "x"))


@pytest.mark.parametrize("text", ['{"model": "x"}', "[1, 2]", '{"data": [{"id": "m"}]}', '{"model_path": ', "{}"])
def test_other_json_is_none(text: str) -> None:
    assert read_answers(numbered(text), "x") == ([], set())


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 900) | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["model_path", "server_args", "internal_states", "memory_usage", "kvcache", "prefill"]),
            inner,
        )
    ),
    max_leaves=20,
)


@given(mutations(TEXT))
def test_never_raises(text: str) -> None:
    parse(numbered(text), "x")


@given(JUNK)
def test_never_raises_for_other_json(value: Any) -> None:
    parse(numbered(json.dumps({"model_path": "m", "server_args": value, "internal_states": value})), "x")
