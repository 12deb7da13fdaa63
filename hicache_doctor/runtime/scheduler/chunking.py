"""Dynamic chunking: chunks of a long prompt shrink so that each takes as long as the first (behaviours section 9).

PP0 measures once, f(l) = a·l² + b·l + c is fitted, and a continuing chunk behind L tokens gets the x that solves
f(L + x) − f(L) = T, T being what a first chunk takes. A latency is a number of one rank, so it may enter only once: raw
samples are broadcast and every rank computes the same from them. All of it is integer arithmetic here, so "the same"
needs no promise from a linear algebra library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

from hicache_doctor.runtime.fixes import ALL, Fix, Fixes

SCALE = 1 << 28
"""Coefficients are nanoseconds times this; up to half a minute fits into 64 bits."""
SAMPLES = 128
SAMPLES_BEFORE = 32
"""Before #15372."""
LEAST_SAMPLES = 8
ALIGNMENT = 64
CONTEXT_MARGIN = 100
MILLE = 1000


class FitError(ValueError):
    """The samples allow no curve; the caller warns and keeps fixed chunks."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Prefill time of l tokens in nanoseconds times SCALE: a·l² + b·l + c."""

    a: int
    b: int
    c: int

    def at(self, tokens: int) -> int:
        """Nanoseconds that ``tokens`` tokens take."""
        return (self.a * tokens * tokens + self.b * tokens + self.c) // SCALE

    def vector(self) -> tuple[int, int, int]:
        """As it travels between ranks."""
        return self.a, self.b, self.c


def sample_lengths(chunk: int, fixes: Fixes = ALL) -> tuple[int, ...]:
    """Token counts to measure, from 1.25 · chunk downward.

    128 of them (32 before #15372) in equal steps; a chunk too small for that many has fewer, a token apart.
    """
    count = SAMPLES if Fix.CHUNK_ALIGNMENT in fixes else SAMPLES_BEFORE
    top = chunk * 5 // 4
    step = max(1, top // count)
    return tuple(length for i in range(count) if (length := top - i * step) >= 1)


def prefill_buffer(chunk: int, max_prefill: int) -> int:
    """Tokens that a prefill batch must be able to hold: the first sample is a quarter longer than a chunk."""
    return max(chunk, max_prefill, -(-chunk * 5 // 4))


def profile_token_counts(dp_size: int, dp: int, tokens: int, fixes: Fixes = ALL) -> tuple[int, ...] | None:
    """Under DP attention the profiling batch tells the global token counts, and the other groups join it with an idle
    batch. Without #17339 there are none, and the groups' collectives don't match."""
    if dp_size == 1 or Fix.CHUNK_IDLE_GROUPS not in fixes:
        return None
    return tuple(tokens if i == dp else 0 for i in range(dp_size))


def pack(lengths: Sequence[int], latencies: Sequence[int]) -> tuple[int, ...]:
    """Raw samples as one vector for the broadcast: lengths, then nanoseconds."""
    return (*lengths, *latencies)


def unpack(vector: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lengths and latencies of a broadcast."""
    half = len(vector) // 2
    return tuple(vector[:half]), tuple(vector[half:])


def fit(lengths: Sequence[int], latencies: Sequence[int], fixes: Fixes = ALL) -> Curve:
    """Least squares over (tokens, nanoseconds), exactly: normal equations and Cramer's rule in whole numbers.

    The first sample is dropped (#17198: it was measured without a warm-up). A negative b is taken for 0.

    Raises:
        FitError: too few samples, or latency doesn't grow faster than the length.
    """
    pairs = list(zip(lengths, latencies, strict=True))
    if Fix.CHUNK_FIRST_SAMPLE in fixes:
        pairs = pairs[1:]
    if len(pairs) < LEAST_SAMPLES:
        raise FitError(f"{len(pairs)} samples, {LEAST_SAMPLES} are needed")
    s0, s1, s2, s3, s4 = (sum(x**k for x, _ in pairs) for k in range(5))
    t0, t1, t2 = (sum(y * x**k for x, y in pairs) for k in range(3))
    whole = _det(s4, s3, s2, s3, s2, s1, s2, s1, s0)
    if whole == 0:
        raise FitError("fewer than three different lengths")
    a = _det(t2, s3, s2, t1, s2, s1, t0, s1, s0) * SCALE // whole
    b = _det(s4, t2, s2, s3, t1, s1, s2, t0, s0) * SCALE // whole
    c = _det(s4, s3, t2, s3, s2, t1, s2, s1, t0) * SCALE // whole
    if a <= 0:
        raise FitError(f"the quadratic coefficient is {a / SCALE:.3g} ns, it must be positive")
    return Curve(a, max(b, 0), c)


def _det(a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int, i: int) -> int:
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)


@dataclass(frozen=True, slots=True)
class ChunkSizer:
    """Solves for the next chunk; a pure function of the history, so that no rank has to ask another."""

    curve: Curve
    chunk: int
    page: int
    context: int
    max_prefill: int
    smooth: float = 0.75
    """How far from the fixed size towards the solution (``SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR``)."""
    alignment: int = ALIGNMENT
    margin: int = CONTEXT_MARGIN
    fixes: Fixes = ALL

    @property
    def unit(self) -> int:
        """What sizes are multiples of: a page, and since #15372 64 tokens at least."""
        if Fix.CHUNK_ALIGNMENT not in self.fixes:
            return self.page
        return -(-max(self.page, self.alignment) // self.page) * self.page

    @property
    def target(self) -> int:
        """T: what a first chunk takes above an empty one, in the curve's unit."""
        return self.curve.a * self.chunk * self.chunk + self.curve.b * self.chunk

    def solve(self, history: int) -> int:
        """The x of f(history + x) − f(history) = T, rounded down."""
        a = self.curve.a
        slope = 2 * a * history + self.curve.b
        return (isqrt(slope * slope + 4 * a * self.target) - slope) // (2 * a)

    def predict(self, history: int) -> int | None:
        """Tokens of the next chunk of a request with ``history`` tokens before it; None: use the fixed size.

        Only for continuing chunks: the first one has the fixed size, that is what T is.
        """
        unit = self.unit
        size = self.chunk + round(self.smooth * MILLE) * (self.solve(history) - self.chunk) // MILLE
        # #16140: tiny chunks behind a long history cost more than they balance.
        if Fix.CHUNK_FLOOR in self.fixes:
            size = max(size, self.chunk // 4)
        size = max(size // unit * unit, unit)
        size = min(size, self.context - history - self.margin, self.max_prefill)
        size = size // unit * unit
        return size if size >= unit else None
