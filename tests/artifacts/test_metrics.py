"""Scrapes of /metrics."""

from __future__ import annotations

import pytest
from hypothesis import given

from hicache_doctor.artifacts.metrics import looks_like_metrics, parse
from tests.artifacts.small import mutations, numbered, text_of

TWO_SCRAPES = """2026-03-01T10:00:00Z
sglang:num_running_reqs{engine_type="unified",model_name="m",moe_ep_rank="1",pp_rank="0",tp_rank="1"} 3.0
2026-03-01T10:01:00Z
sglang:num_running_reqs{engine_type="unified",model_name="m",moe_ep_rank="1",pp_rank="0",tp_rank="1"} 4.0 1772359260000
"""


def test_ranks_and_raw_labels() -> None:
    text = text_of("metrics_pp.prom")
    assert looks_like_metrics(text)
    samples = parse(numbered(text), "m.prom")
    first, second, *_ = samples
    assert (first.name, first.rank, first.value, first.line) == ("hicache_host_total_tokens", "PP0 TP0", 2580736.0, 3)
    assert (second.rank, second.value, second.labels["pp_rank"]) == ("PP1 TP0", 2328960.0, "1")
    assert "scrape" not in first.labels


def test_histograms_keep_sum_count_and_inf() -> None:
    text = text_of("metrics_2024.prom")
    names = [(s.name, s.labels.get("le")) for s in parse(numbered(text), "x") if "time_to_first" in s.name]
    stem = "time_to_first_token_seconds"
    assert names == [(f"{stem}_sum", None), (f"{stem}_bucket", "+Inf"), (f"{stem}_count", None)]
    by_name = {s.name: s for s in parse(numbered(text), "x")}
    assert by_name["num_aborted_requests_total"].value == 142.0
    assert by_name["num_aborted_requests_total"].rank is None
    assert by_name["process_resident_memory_bytes"].value == 7.31201e9


def test_repeated_scrapes_are_numbered_and_dated() -> None:
    a, b = parse(numbered(TWO_SCRAPES), "x")
    assert (a.labels["scrape"], b.labels["scrape"]) == (0, 1)
    assert (a.ts, b.ts) == (1772359200.0, 1772359260.0)
    assert a.rank == "PP0 TP1 EP1"


def test_a_relay_and_open_metrics() -> None:
    text = (
        'sglang_cache_hit_rate{instance="10.0.0.1:30000",job="a",dp_rank="1",tp_rank="0"} NaN\n'
        'sglang_x{a="q\\"}{"} 1 # {trace_id="b"} 1.0\n# EOF\nsglang_y 2\n'
    )
    assert looks_like_metrics(text)
    a, b, c = parse(numbered(text), "x")
    assert (a.name, a.rank, a.value != a.value) == ("cache_hit_rate", "DP1 TP0", True)
    assert b.labels == {"a": 'q"}{', "scrape": 0}
    assert (c.name, c.labels) == ("y", {"scrape": 1})


@pytest.mark.parametrize(
    "between",
    [
        "# scrape {epoch}",
        "# {epoch}.250",
        "{epoch}",
        "Wed Jun 24 15:44:42 UTC 2026",
        "HTTP/1.1 200 OK\ndate: Wed, 24 Jun 2026 15:44:42 GMT\ncontent-type: text/plain; version=1.0.0\n",
        "# 2026-06-24T15:44:42Z",
    ],
)
def test_what_dates_a_scrape(between: str) -> None:
    text = between.format(epoch=1782315882) + '\nsglang:x{pp_rank="0"} 1\n# TYPE sglang:y gauge\nsglang:y 2\n'
    assert [int(s.ts or 0) for s in parse(numbered(text), "x")] == [1782315882] * 2


@pytest.mark.parametrize("comment", ["# TYPE sglang:x1782315882 gauge", "# build 11782315882", "# 0x1782315882", "# x"])
def test_comments_without_a_time(comment: str) -> None:
    assert [s.ts for s in parse(numbered(f"{comment}\nsglang:x 1\n"), "x")] == [None]


def test_a_log_is_no_scrape() -> None:
    assert not looks_like_metrics("[2026-01-01 00:00:00 TP0] Prefill batch, #new-seq: 1\n# comment\n")


@given(mutations(text_of("metrics_2024.prom"), TWO_SCRAPES))
def test_never_raises(text: str) -> None:
    looks_like_metrics(text)
    parse(numbered(text), "x")
