"""Decision streams: aligned by ordinal, parted exactly where they part."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hicache_doctor.evidence import streams
from hicache_doctor.evidence.rows import LogRecord, Row, Sample
from tests.evidence.filled import Entry, log, prefills, store

STARTED: list[Row] = [log("init_distributed", "PP0"), log("init_distributed", "PP1")]
# No two entries are alike, so that a shift has one answer only.
LONG: list[Entry] = [(1 + i % 3, 64 * (i + 1), 16 * (i % 7)) for i in range(60)]


def derived(rows: list[Row], page: int | None = 16) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    with store(rows) as s:
        streams.derive(s, page)
        return s.rows("SELECT * FROM stream_pair"), s.rows("SELECT * FROM divergence ORDER BY ordinal")


def two(
    a: list[Entry], b: list[Entry], usage_a: list[float] | None = None, usage_b: list[float] | None = None
) -> list[Row]:
    return prefills("PP0", a, usage_a) + prefills("PP1", b, usage_b)


def changed(entries: list[Entry], at: int, entry: Entry) -> list[Entry]:
    return [*entries[:at], entry, *entries[at + 1 :]]


def test_equal_streams_agree() -> None:
    (pair,), found = derived(STARTED + two(LONG, LONG))
    assert (pair["rank_a"], pair["rank_b"], pair["common"], pair["shift"]) == ("PP0", "PP1", 60, 0)
    assert not pair["diverged"] and found == []


def test_a_rank_that_is_behind_has_not_diverged() -> None:
    (pair,), found = derived(STARTED + two(LONG, LONG[:50]))
    assert pair["common"] == 50 and found == []


def test_the_first_difference_is_the_divergence() -> None:
    (pair,), (found,) = derived(STARTED + two(LONG[:31], changed(LONG[:31], 30, (1, 99, 32))))
    assert pair["diverged"]
    assert (found["stream"], found["ordinal"], found["common"], found["sure"]) == ("prefill batch", 30, 30, True)
    assert (found["rank_a"], found["line_a"], found["artifact_b"], found["line_b"]) == ("PP0", 31, "PP1.log", 31)
    assert found["value_b"] == "#new-seq 1, #new-token 99, #cached-token 32"


@pytest.mark.parametrize(("cached", "page", "whole"), [(32 + 32, 16, True), (33, 16, False), (64, 1, None)])
def test_a_difference_of_whole_pages_is_said(cached: int, page: int, whole: bool | None) -> None:
    a = [*LONG[:10], (1, 640, 32)]
    _, (found,) = derived(STARTED + two(a, changed(a, 10, (1, 640, cached))), page)
    assert (found["delta"], found["page_multiple"]) == (cached - 32, whole)


@pytest.mark.parametrize(("cut_a", "cut_b", "shift"), [(7, 0, -7), (0, 7, 7), (3, 3, 0), (0, 40, 40)])
def test_cut_heads_are_shifted_to_fit(cut_a: int, cut_b: int, shift: int) -> None:
    # GIVEN logs without their beginnings, which part at the end
    a = [*LONG, (1, 1, 1)]
    b = [*LONG, (1, 2, 1)]
    (pair,), (found,) = derived(two(a[cut_a:], b[cut_b:]))
    # THEN they are aligned by what they hold, and the difference is found where it is
    assert pair["shift"] == shift
    assert (found["line_a"] + cut_a, found["line_b"] + cut_b) == (61, 61)


def test_streams_with_nothing_in_common_prove_nothing() -> None:
    (pair,), found = derived(two(LONG[:20], [(9, 9, i) for i in range(20)]))
    assert pair["common"] == 0 and not pair["diverged"] and found == []


def test_from_the_start_even_the_first_batch_may_differ_but_it_is_not_sure() -> None:
    _, (found,) = derived(STARTED + two([(1, 5, 0)], [(1, 6, 0)]))
    assert (found["ordinal"], found["sure"]) == (0, False)


@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("side", ["a", "b"])
def test_lost_lines_are_no_divergence(lost: int, side: str) -> None:
    short = LONG[:20] + LONG[20 + lost :]
    _, found = derived(STARTED + (two(short, LONG) if side == "a" else two(LONG, short)))
    assert found == []


def test_the_fullest_rank_speaks_for_its_stage_and_groups_are_kept_apart() -> None:
    rows: list[Row] = []
    for dp in ("DP0", "DP1"):
        rows += prefills(f"{dp} PP0 TP0", LONG[:20]) + prefills(f"{dp} PP0 TP1", LONG[:5])
    rows += prefills("DP0 PP1 TP0", LONG[:20]) + prefills("DP1 PP1 TP0", changed(LONG[:20], 9, (7, 7, 7)))
    pairs, _ = derived(rows)
    assert {(p["rank_a"], p["rank_b"], p["common"]) for p in pairs} == {
        ("DP0 PP0 TP0", "DP0 PP1 TP0", 20),
        ("DP1 PP0 TP0", "DP1 PP1 TP0", 9),
    }


def test_lines_of_a_rotated_log_are_one_stream() -> None:
    # GIVEN PP1's stream in two files, the older one named later
    rows = prefills("PP1", LONG)
    for row in rows:
        assert hasattr(row, "artifact")
        row.artifact = "x.log.1" if row.line <= 30 else "x.log"
        row.line = row.line if row.line <= 30 else row.line - 30
    (pair,), found = derived([*STARTED, *prefills("PP0", LONG), *rows])
    assert pair["common"] == 60 and found == []


# -- token usage --------------------------------------------------------------------------------------------------


def test_usage_that_drifts_apart_is_found_at_its_first_batch() -> None:
    usage = [0.3] * 12
    drifting = [0.3] * 5 + [0.4] * 7
    _, (found,) = derived(STARTED + two(LONG[:12], LONG[:12], usage, drifting))
    assert (found["stream"], found["ordinal"]) == ("token usage after the prefill batch", 5)
    assert (found["value_a"], found["value_b"]) == ("token usage 0.30", "token usage 0.40")
    assert found["sure"]


@pytest.mark.parametrize(
    "other",
    [
        [0.3] * 5 + [0.4] * 2 + [0.3] * 5,  # shorter than a drift
        [0.34] * 12,  # rounding
        [0.3] * 12,
    ],
)
def test_usage_that_comes_back_is_no_drift(other: list[float]) -> None:
    assert derived(STARTED + two(LONG[:12], LONG[:12], [0.3] * 12, other))[1] == []


def test_after_other_batches_usage_says_nothing() -> None:
    b = changed(LONG[:12], 3, (5, 5, 5))
    _, found = derived(STARTED + two(LONG[:12], b, [0.1] * 12, [0.1] * 3 + [0.9] * 9))
    assert all(f["stream"] == "prefill batch" for f in found)


# -- prefetches ---------------------------------------------------------------------------------------------------


def settled(rank: str, line: int, rid: str, loaded: int, outcome: str = "success") -> LogRecord:
    return log("prefetch_agreed", rank, line, outcome=outcome, rid=rid, loaded=str(loaded), synced="1", matched="0")


def test_prefetches_are_compared_by_request() -> None:
    rows: list[Row] = [settled("PP0", 1, "a", 64), settled("PP0", 2, "b", 128), settled("PP0", 3, "c", 64)]
    rows += [settled("PP1", 1, "b", 64), settled("PP1", 2, "a", 64), settled("PP1", 3, "d", 8)]
    _, (found,) = derived(rows, 64)
    assert (found["stream"], found["key"], found["ordinal"], found["delta"]) == ("settled prefetch", "b", 1, 64)
    assert (found["value_a"], found["value_b"]) == ("success, loaded 128", "success, loaded 64")
    assert found["page_multiple"] is True


def test_another_outcome_is_a_difference_too() -> None:
    _, (found,) = derived([settled("PP0", 1, "a", 0), settled("PP1", 1, "a", 0, "dropped")])
    assert found["delta"] == 0 and found["page_multiple"] is None


def test_ranks_of_one_stage_are_not_compared() -> None:
    assert derived([settled("PP0 TP0", 1, "a", 0), settled("PP0 TP1", 1, "a", 64)])[1] == []


# -- views and nothing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["prefetch", "capacity", "rss_slope", "rss_slope_idle", "divergence", "stream_pair"])
def test_without_data_every_view_is_empty(view: str) -> None:
    with store() as s:
        streams.derive(s, None)
        assert s.rows(f"SELECT * FROM {view}") == []
        assert streams.first(s) is None


def test_capacities_of_log_and_metrics() -> None:
    rows: list[Row] = [
        log("host_pool_tokens", "PP0", pool="kv", tokens="65536"),
        log("host_pool_tokens", "PP0", pool="mamba", tokens="7"),
        log("hicache_initialized", "PP1", tokens="65472"),
        Sample("m.prom", 3, "PP1", None, None, "hicache_host_total_tokens", 65472.0),
    ]
    with store(rows) as s:
        streams.derive(s, None)
        found = s.rows("SELECT rank, tokens, source FROM capacity ORDER BY ALL")
    assert [(r["rank"], r["tokens"], r["source"]) for r in found] == [
        ("PP0", 65536, "log"),
        ("PP1", 65472, "log"),
        ("PP1", 65472, "metric"),
    ]


def test_the_slope_of_memory() -> None:
    rows = [Sample("rss.csv", i, "PP0", 1, 60.0 * i, "rss_bytes", 1e9 + 1e6 * i) for i in range(61)]
    with store(rows) as s:
        streams.derive(s, None)
        (slope,) = s.rows("SELECT * FROM rss_slope")
    assert slope["per_hour"] == pytest.approx(60e6) and slope["hours"] == 1.0 and slope["growth"] == 60e6


def test_the_earliest_of_several_is_the_first() -> None:
    rows = two([*LONG[:20], (1, 1, 1)], [*LONG[:20], (1, 2, 1)])
    rows += [settled("PP0", 7, "a", 64), settled("PP1", 7, "a", 0)]
    with store(STARTED + rows) as s:
        streams.derive(s, 64)
        first = streams.first(s)
    assert first is not None and first["stream"] == "settled prefetch"


# -- properties ---------------------------------------------------------------------------------------------------

ENTRY = st.tuples(st.integers(1, 9), st.integers(1, 4096), st.integers(0, 4096))


@given(st.lists(ENTRY, min_size=streams.MIN_COMMON + 1, max_size=40), ENTRY, st.data())
def test_one_mutated_entry_is_found_exactly_there(stream: list[Entry], other: Entry, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(stream) - 1))
    assume(stream[at] != other and len(set(stream)) == len(stream) and other not in stream)
    _, found = derived(STARTED + two(stream, changed(stream, at, other)))
    assert [(f["ordinal"], f["line_a"], f["line_b"]) for f in found] == [(at, at + 1, at + 1)]
    assert found[0]["sure"] == (at >= streams.MIN_COMMON)


@given(st.lists(ENTRY, max_size=40), st.booleans())
def test_identical_streams_never_part(stream: list[Entry], from_start: bool) -> None:
    assert derived((STARTED if from_start else []) + two(stream, stream))[1] == []


@given(st.lists(ENTRY, min_size=20, max_size=40, unique=True), st.integers(0, 8), st.integers(0, 8))
def test_cut_heads_never_make_a_divergence(stream: list[Entry], cut_a: int, cut_b: int) -> None:
    assert derived(two(stream[cut_a:], stream[cut_b:]))[1] == []
