"""Answers of Prometheus' API and VictoriaMetrics exports."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.artifacts.prom_json import looks_like_prom_json, parse
from tests.artifacts.small import mutations, numbered, text_of

RANGE = text_of("query_range.json")


def test_a_range_gives_every_point_of_every_rank() -> None:
    assert looks_like_prom_json(RANGE)
    samples = parse(numbered(RANGE), "x")
    queue = [(s.rank, s.ts, s.value) for s in samples if s.name == "num_queue_reqs" and s.rank == "PP1 TP0"]
    assert queue[:2] == [("PP1 TP0", 1782315600.0, 0.0), ("PP1 TP0", 1782315900.0, 9.0)]
    assert len(samples) == 30
    assert samples[0].labels["instance"] == "10.0.0.1:30000" and "__name__" not in samples[0].labels


def test_lines_of_a_pretty_answer() -> None:
    text = json.dumps(json.loads(RANGE), indent=2)
    for sample in parse(numbered(text), "x"):
        assert '"__name__"' in text.split("\n")[(sample.line or 0) - 1]
        assert sample.name in text.split("\n")[(sample.line or 0) - 1]


def test_an_instant_and_an_underscored_name() -> None:
    series = {"metric": {"__name__": "sglang_token_usage", "dp_rank": "1", "tp_rank": "0"}, "value": [1.5e9, "0.5"]}
    text = json.dumps({"status": "success", "data": {"resultType": "vector", "result": [series]}})
    (sample,) = parse(numbered("$ curl …\n" + text), "x")
    assert (sample.name, sample.rank, sample.ts, sample.value, sample.line) == ("token_usage", "DP1 TP0", 1.5e9, 0.5, 2)


def test_an_export_of_victoria_metrics() -> None:
    line = {
        "metric": {"__name__": "sglang:x", "pp_rank": "1"},
        "values": [1, 4],
        "timestamps": [1782315882000, 1782315942000],
    }
    text = "\n".join(json.dumps(line) for _ in range(2))
    assert looks_like_prom_json(text)
    samples = parse(numbered(text), "x")
    assert [(s.ts, s.value, s.line) for s in samples] == [
        (1782315882.0, 1.0, 1), (1782315942.0, 4.0, 1), (1782315882.0, 1.0, 2), (1782315942.0, 4.0, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        '{"status": "error", "errorType": "bad_data", "error": "unknown function"}',
        '{"data": {"resultType": "scalar", "result": [1, "2"]}}',
        '{"metric": "loss", "value": 3}',
        json.dumps({"data": {"resultType": "matrix", "result": [{"metric": {"pp_rank": "0"}, "values": [[1, "2"]]}]}}),
    ],
)
def test_what_says_no_name_gives_nothing(text: str) -> None:
    assert parse(numbered(text), "x") == []


def test_buckets_but_the_last_are_left_out() -> None:
    def one(le: str) -> dict[str, Any]:
        return {"metric": {"__name__": "sglang:t_bucket", "le": le}, "values": [[1782315882, "3"]]}

    text = json.dumps({"data": {"resultType": "matrix", "result": [one("0.1"), one("+Inf")]}})
    assert [s.labels["le"] for s in parse(numbered(text), "x")] == ["+Inf"]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 2000) | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["metric", "__name__", "values", "value", "timestamps", "result"]), inner)
    ),
    max_leaves=20,
)


@given(mutations(RANGE))
def test_never_raises(text: str) -> None:
    looks_like_prom_json(text)
    parse(numbered(text), "x")


@given(st.lists(JUNK, max_size=4))
def test_never_raises_for_other_json(result: list[Any]) -> None:
    try:
        text = json.dumps({"data": {"resultType": "matrix", "result": result}})
    except ValueError:  # Python refuses to write very long integers
        return
    parse(numbered(text), "x")
