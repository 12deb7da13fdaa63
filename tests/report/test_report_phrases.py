"""The shared wording."""

from __future__ import annotations

from typing import Any

import pytest
from report_signatures import BASE, certain_a1, open_b2

from hicache_doctor.report import phrases
from hicache_doctor.signatures.verdict import Citation, Fix, Verdict


@pytest.mark.parametrize(
    ("ranks", "folded"),
    [
        ([], []),
        (["PP0 TP0"], ["PP0 TP0"]),
        (["PP0 TP0", "PP0 TP1"], ["PP0 TP0", "PP0 TP1"]),
        (["PP0 TP2", "PP0 TP1", "PP0 TP0", "PP1 TP0", "PP0 TP7"], ["PP0 TP0-2", "PP0 TP7", "PP1 TP0"]),
        (["rank 1", "rank 2", "rank 3", "odd"], ["rank 1-3", "odd"]),
        (["rank 01", "rank 99999999999"], ["rank 01", "rank 99999999999"]),
    ],
)
def test_runs_of_ranks_are_folded(ranks: list[str], folded: list[str]) -> None:
    assert phrases.rank_list(ranks) == folded


@pytest.mark.parametrize(
    ("citation", "place"),
    [
        (Citation(artifact="a.log"), "a.log"),
        (Citation(artifact="a.log", line=3), "a.log:3"),
        (Citation(artifact="a.log", line=3, line_end=3), "a.log:3"),
        (Citation(artifact="a.log", line=3, line_end=9), "a.log:3-9"),
        (Citation(artifact="ring", record=0), "ring record 0"),
    ],
)
def test_places(citation: Citation, place: str) -> None:
    assert phrases.place(citation) == place


def merged(**more: Any) -> Fix:
    return Fix(pr=1, state="merged", **more)


@pytest.mark.parametrize(
    ("fix", "words"),
    [
        (merged(first_release="0.5.13", in_your_release=False), "merged, first in 0.5.13, not in your 0.5.12"),
        (merged(first_release="0.5.1", in_your_release=True), "merged, first in 0.5.1, already in your 0.5.12"),
        (merged(first_release="0.5.13"), "merged, first in 0.5.13, your release is unknown"),
        (merged(in_your_release=False), "merged, in no release yet, not in your 0.5.12"),
        (Fix(pr=1, state="open"), "still open, in no release"),
        (Fix(pr=1, state="closed"), "closed unmerged, in no release"),
    ],
)  # fmt: skip
def test_fixes(fix: Fix, words: str) -> None:
    v = Verdict(status="signature", title="t", fixes=[fix], settings={"sglang_version": "0.5.12"}, **BASE)
    assert [c.words for c in phrases.causes(v)] == [words]


def test_the_root_cause_comes_first_whatever_its_state() -> None:
    assert [(c.pr, c.root) for c in phrases.causes(certain_a1())] == [(27285, True), (28916, False)]
    assert [(c.pr, c.words) for c in phrases.causes(open_b2())] == [(31425, "still open, in no release")]


def test_every_rank_has_a_line_in_the_last_minute() -> None:
    v = certain_a1()
    four = phrases.last_minute(v, 4)
    assert {r.rank for r in four} == {"PP0 TP0", "PP0 TP1", "PP1 TP0", "PP1 TP1"}
    assert [r.time for r in four] == sorted(r.time or "" for r in four)
    assert [r.rank for r in phrases.last_minute(v, 1)] == ["PP1 TP0"]
    assert len(phrases.last_minute(v, None)) == 8


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        (None, ""),
        ("2026-05-11T03:12:44.812345Z", "03:12:44.812"),
        ("2026-05-11 03:12:44", "03:12:44"),
        ("2026-05-11 03:12:44+00:00", "03:12:44"),
        ("uptime 12.5", "uptime 12.5"),
    ],
)
def test_clock(time: str | None, shown: str) -> None:
    assert phrases.clock(time) == shown


@pytest.mark.parametrize(
    ("n", "words"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2_311_004, "2.3 MB"), (10**13, "10.0 TB")]
)
def test_size(n: int, words: str) -> None:
    assert phrases.size(n) == words
