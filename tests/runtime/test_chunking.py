"""Dynamic chunking: the curve, the chunks, and that every rank computes the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.runtime.fixes import ALL, Fix
from hicache_doctor.runtime.scheduler.chunking import (
    SCALE,
    ChunkSizer,
    Curve,
    FitError,
    fit,
    pack,
    prefill_buffer,
    profile_token_counts,
    sample_lengths,
    unpack,
)

CHUNK = 8192
CURVE = Curve(3 * SCALE, 20_000 * SCALE, 5_000_000 * SCALE)
SIZER = ChunkSizer(CURVE, CHUNK, page=64, context=131_072, max_prefill=16_384)
NO_FLOOR = ALL.without(Fix.CHUNK_FLOOR)

curves = st.builds(
    Curve, st.integers(1, 50 * SCALE), st.integers(0, 10**5 * SCALE), st.integers(-(10**6) * SCALE, 10**7 * SCALE)
)
sizers = st.builds(
    ChunkSizer,
    curves,
    st.integers(4, 300).map(lambda n: 4 * n),
    st.sampled_from([1, 4, 16, 64]),
    st.integers(64, 20_000),
    st.integers(16, 4096),
    st.sampled_from([0.0, 0.25, 0.75, 1.0]),
    st.sampled_from([1, 8, 64]),
    st.just(100),
    st.sampled_from([ALL, NO_FLOOR, ALL.without(Fix.CHUNK_ALIGNMENT)]),
)


def measured(curve: Curve, lengths: tuple[int, ...]) -> list[int]:
    return [curve.at(n) for n in lengths]


def test_lengths_fall_from_a_quarter_above_the_chunk() -> None:
    lengths = sample_lengths(CHUNK)
    assert (len(lengths), lengths[0], lengths[0] - lengths[1], lengths[-1]) == (128, 10240, 80, 80)
    assert len(sample_lengths(CHUNK, ALL.without(Fix.CHUNK_ALIGNMENT))) == 32
    assert sample_lengths(64) == tuple(range(80, 0, -1))  # too small for 128 steps


@given(st.integers(1, 50_000))
def test_lengths_are_positive_and_all_different(chunk: int) -> None:
    lengths = sample_lengths(chunk)
    assert all(a > b for a, b in pairwise(lengths))
    assert not lengths or lengths[-1] >= 1
    assert prefill_buffer(chunk, 0) >= max([*lengths, chunk])


def test_the_prefill_buffer_holds_the_first_sample() -> None:
    assert prefill_buffer(8192, 4096) == 10240
    assert prefill_buffer(8192, 20000) == 20000
    assert prefill_buffer(7, 1) == 9


def test_a_curve_is_found_again_and_the_first_sample_does_not_matter() -> None:
    lengths = sample_lengths(CHUNK)
    times = measured(CURVE, lengths)
    assert fit(lengths, times) == CURVE
    times[0] *= 40  # no warm-up
    assert fit(lengths, times) == CURVE
    assert fit(lengths, times, ALL.without(Fix.CHUNK_FIRST_SAMPLE)) != CURVE


@given(curves.map(lambda c: replace(c, a=c.a + SCALE // 100)), st.integers(256, 20_000))
def test_any_curve_is_found_again_to_the_rounding_of_a_nanosecond(curve: Curve, chunk: int) -> None:
    lengths = sample_lengths(chunk)
    found = fit(lengths, measured(curve, lengths))
    for n in lengths:
        assert abs(found.at(n) - curve.at(n)) <= 3 + n * n // SCALE


def test_what_allows_no_curve_is_refused() -> None:
    lengths = sample_lengths(CHUNK)
    with pytest.raises(FitError, match="7 samples, 8 are needed"):
        fit(lengths[:8], [1] * 8)
    with pytest.raises(FitError, match="must be positive"):
        fit(lengths, [1_000_000 + 5 * n for n in lengths])
    with pytest.raises(FitError, match="must be positive"):
        fit(lengths, [10**12 - n * n for n in lengths])
    with pytest.raises(FitError, match="three different lengths"):
        fit([5] * 20, list(range(20)))
    falling = fit(lengths, [7 * n * n - 900 * n + 10**7 for n in lengths])
    assert (falling.a, falling.b) == (7 * SCALE, 0)


def test_raw_samples_travel_as_one_vector() -> None:
    lengths = sample_lengths(CHUNK)
    times = measured(CURVE, lengths)
    assert fit(*unpack(pack(lengths, times))) == CURVE


def test_idle_groups_are_told() -> None:
    assert profile_token_counts(4, 2, 100) == (0, 0, 100, 0)
    assert profile_token_counts(1, 0, 100) is None
    assert profile_token_counts(4, 2, 100, ALL.without(Fix.CHUNK_IDLE_GROUPS)) is None


def test_chunks_shrink_to_a_quarter_and_end_before_the_context() -> None:
    sizes = [SIZER.predict(n) for n in range(8192, 131_072, 8192)]
    known = [s for s in sizes if s is not None]
    assert known == sorted(known, reverse=True) and len(known) == len(sizes)
    assert sizes[0] == 5312
    assert known[-1] == 2368
    assert replace(SIZER, smooth=1.0).predict(122_880) == CHUNK // 4  # the floor; the solution is smaller
    assert replace(SIZER, smooth=1.0, fixes=NO_FLOOR).predict(122_880) == 448
    assert SIZER.predict(131_072 - 100 - 130) == 128
    assert SIZER.predict(131_072 - 100 - 63) is None
    assert SIZER.predict(200_000) is None


def test_before_15372_a_page_was_the_unit() -> None:
    assert replace(SIZER, page=16).unit == 64
    assert replace(SIZER, page=48).unit == 96
    before = replace(SIZER, page=16, fixes=ALL.without(Fix.CHUNK_ALIGNMENT))
    assert before.unit == 16
    size = before.predict(8192)
    assert size is not None and size % 16 == 0 and size % 64


@given(sizers, st.integers(0, 30_000))
def test_a_chunk_is_aligned_and_within_all_caps(sizer: ChunkSizer, history: int) -> None:
    size = sizer.predict(history)
    if size is None:
        return
    assert size >= sizer.unit and size % sizer.unit == 0 and size % sizer.page == 0
    assert size <= sizer.max_prefill
    assert history + size <= sizer.context - sizer.margin


@given(sizers, st.integers(0, 30_000))
def test_a_solution_takes_the_target_time(sizer: ChunkSizer, history: int) -> None:
    x, a, b = sizer.solve(history), sizer.curve.a, sizer.curve.b
    assert 0 <= x <= sizer.chunk

    def cost(n: int) -> int:
        return a * n * n + (2 * a * history + b) * n

    assert cost(x) <= sizer.target < cost(x + 1)


@given(sizers, st.integers(0, 30_000), st.integers(0, 5_000))
def test_more_history_never_means_a_longer_chunk(sizer: ChunkSizer, history: int, more: int) -> None:
    a, b = sizer.predict(history), sizer.predict(history + more)
    assert (b or 0) <= (a or 0)
