"""What a version has: the whole table that was read in the wheels, and everything between the releases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.knowledge.records import features, pull_requests
from hicache_doctor.knowledge.releases import (
    VersionRange,
    affected_by,
    contains_fix,
    default_tree_class,
    feature_value,
    has_feature,
    parse_spec,
    release_of,
    releases,
    tree_classes,
)

MATRIX = json.loads((Path(__file__).parent / "matrix.json").read_text(encoding="utf-8"))
NAMES: list[str] = MATRIX["releases"]
CELL = {"T": True, "f": False, ".": None}
JOINT = {"UnifiedRadixCache": "27489", "HiRadixCache": "26923", "HiMambaRadixCache": "26923"}


@pytest.mark.parametrize("row", MATRIX["rows"])
def test_every_cell_of_the_matrix(row: str) -> None:
    for part, cells in MATRIX["rows"][row].items():
        for name, cell in zip(NAMES, cells, strict=True):
            if row.startswith("feature:"):
                answer = has_feature(name, row.removeprefix("feature:"), part or None)
            else:
                answer = contains_fix(name, JOINT[part] if row == "26923+27489" else row, part or None)
            assert answer is CELL[cell], (row, part, name)


def test_every_release_of_the_matrix_is_known() -> None:
    assert [r.version for r in releases() if r.examined] == NAMES
    assert [r.version for r in releases() if not r.examined] == [
        "0.5.3.post1", "0.5.3.post2", "0.5.4.post1", "0.5.4.post2", "0.5.5.post1", "0.5.5.post2", "0.5.6.post1",
    ]  # fmt: skip
    assert [r.number for r in releases()] == sorted(r.number for r in releases())
    dates = [r.date for r in releases() if r.date]
    assert dates == sorted(dates)


def test_values_that_differ_by_release() -> None:
    assert feature_value("0.5.14", "prefetch_capacity_limit") == "0.8*(host-device)"
    assert feature_value("0.5.15", "prefetch_capacity_limit") == "0.5*host"
    assert feature_value(VersionRange.of("0.5.14", "0.5.15"), "prefetch_capacity_limit") is None
    assert feature_value("0.5.16", "tree_core_default") is None
    assert feature_value("0.5.21", "tree_core_default") == "rust"
    assert {f.id for f in features().values() if f.values} == {"prefetch_capacity_limit", "tree_core_default"}


@pytest.mark.parametrize(
    ("version", "pr", "tree", "has"),
    [
        ("0.5.18", 27010, None, False),
        ("0.5.19", 27010, None, True),
        ("0.5.13", 26923, "HiRadixCache", False),
        ("0.5.14", 26923, "HiRadixCache", True),
        ("0.5.14", 26923, "UnifiedRadixCache", None),  # that class has #27489
        ("0.5.12.post1", 27489, "UnifiedRadixCache", False),
        ("0.5.13", 27489, "UnifiedRadixCache", True),
        ("0.5.17", 27285, "HiMambaRadixCache", False),
        ("0.5.22", 27010, "HiRadixCache", None),  # no such class there
        ("0.5.15", 29258, "HiRadixCache", True),  # not a matter of the class
        ("0.5.23", 31425, None, False),  # open
        ("0.5.24", 31425, None, None),  # open when last seen
        ("0.5.24", 27010, None, True),
        ("0.4.9", 15372, None, False),
        ("0.5.3.post1", 15175, None, False),
        ("latest", 27010, None, None),
        ("0.5.14", 999999, None, None),
        ("0.5.14", 28902, None, None),  # an issue
        ("0.5.14", "bytedance-iaas#677", None, None),  # a fork's
        ("0.5.6", 14494, None, False),  # merged 2025-12-07: not before, surely in the next main-line release
        ("0.5.6.post2", 14494, None, None),
        ("0.5.7", 14494, None, True),
    ],
)
def test_contains_fix(version: str, pr: int | str, tree: str | None, has: bool | None) -> None:
    assert contains_fix(version, pr, tree) is has


@pytest.mark.parametrize(
    ("version", "pr", "has"),
    [
        # 908 commits past 0.5.12.post1: what 0.5.13 brings is unknown, what was merged after its date is missing
        ("0.5.12.post2.dev908+g2c8357f79", 23309, True),
        ("0.5.12.post2.dev908+g2c8357f79", 27285, None),
        ("0.5.12.post2.dev908+g2c8357f79", 26923, False),
        ("0.5.12.post2.dev908+g2c8357f79", 27010, False),
        ("0.5.12.dev143+g7be02c51d", 23060, True),
        ("0.5.12.dev143+g7be02c51d", 23309, None),
        ("0.5.12.dev143+g7be02c51d", 27285, False),
        # merged before 0.5.14 was tagged, released with 0.5.15: its branch was cut before
        ("0.5.14.dev5", 28916, None),
        ("0.5.14.dev5", 29405, False),
        ("0.5.20rc1", 27010, True),
        ("0.5.20rc1", 37143, None),
        ("0.5.20rc1", 38959, False),
        ("0.5.13.post9", 27285, True),
        ("0.5.13.post9", 26923, None),
        ("0.5.24.dev5", 38959, True),
        ("0.5.24.dev5", 31425, None),
        ("0.5.24.dev0+g1234567", 15372, None),  # any older commit prints this
        ("0.5.14+vendor.1", 26923, True),
        ("0.5.14+vendor.1", 27010, None),  # may be a backport
    ],
)
def test_between_the_releases(version: str, pr: int, has: bool | None) -> None:
    assert contains_fix(version, pr) is has


@pytest.mark.parametrize(
    ("low", "high", "pr", "tree", "has"),
    [
        ("0.5.13", "0.5.16", 27285, None, True),
        ("0.5.13", "0.5.16", 29258, None, None),
        ("0.5.13", "0.5.14", 29258, None, False),
        ("0.5.13", None, 27285, None, True),
        ("0.5.13", None, 28916, None, None),
        (None, "0.5.12.post1", 27285, None, False),
        ("0.5.19", None, 31425, None, None),
        ("0.5.19", None, 27010, "HiRadixCache", True),  # only 0.5.19 and 0.5.20 ship the class
        ("0.5.16", "0.5.13", 27285, None, None),  # empty
        (None, None, 27285, None, None),
    ],
)
def test_ranges(low: str | None, high: str | None, pr: int, tree: str | None, has: bool | None) -> None:
    assert contains_fix(VersionRange.of(low, high), pr, tree) is has


RELEASES = st.sampled_from(releases())
MERGED = st.sampled_from([r.id for r in pull_requests().values() if r.upstream and r.merged])


@given(MERGED, RELEASES, RELEASES)
def test_a_later_release_never_loses_a_fix(pr: str, one: object, other: object) -> None:
    earlier, later = sorted([one, other], key=lambda release: release.number)  # type: ignore[attr-defined]
    if contains_fix(earlier.version, pr) is True:  # type: ignore[attr-defined]
        assert contains_fix(later.version, pr) is True  # type: ignore[attr-defined]


@given(MERGED, st.sampled_from([r.version for r in releases() if r.main_line]), st.integers(1, 2000))
def test_a_development_build_never_contradicts_its_neighbours(pr: str, coming: str, commits: int) -> None:
    build = contains_fix(f"{coming}.dev{commits}", pr)
    index = [r.version for r in releases()].index(coming)
    if build is False:
        assert contains_fix(coming, pr) is False
    if build is True:
        assert contains_fix(coming, pr) is True
    if index and contains_fix(releases()[index - 1].version, pr) is True and releases()[index - 1].main_line:
        assert build is True


@pytest.mark.parametrize(
    ("version", "spec", "affected"),
    [
        ("0.5.12.post1", "<0.5.13", True),
        ("0.5.13", "<0.5.13", False),
        ("0.5.12.post1", "<=0.5.12", False),
        ("0.5.12.post1", ">0.5.12", True),
        ("0.5.14", ">=0.5.13,<0.5.15", True),
        ("0.5.13.post1", " >= 0.5.13 , < 0.5.15 ", True),
        ("lmsysorg/sglang:v0.5.15-cu129", ">=0.5.13,<0.5.15", False),
        ("0.5.14", "!=0.5.14", False),
        ("0.5.14", "==0.5.14", True),
        ("0.5.24", ">=0.5.23", True),
        ("0.5.12.post2.dev908+g2c8357f79", "<0.5.13", None),
        ("0.5.12.post2.dev908+g2c8357f79", "<0.5.12", False),
        ("0.5.12.post2.dev908+g2c8357f79", "<0.5.14", True),
        ("0.5.20rc1", "<0.5.20", None),
        ("0.5.12+vendor.1", "<0.5.13", None),
        ("0.5.14+vendor.1", "<0.5.13", False),
        ("latest", "<0.5.13", None),
        ("latest", "", True),
    ],
)
def test_affected_by(version: str, spec: str, affected: bool | None) -> None:
    assert affected_by(version, spec) is affected


@pytest.mark.parametrize(
    ("low", "high", "spec", "affected"),
    [
        ("0.5.13", "0.5.14", ">=0.5.13,<0.5.15", True),
        ("0.5.13", "0.5.16", ">=0.5.13,<0.5.15", None),
        ("0.5.15", None, "<0.5.15", False),
        ("0.5.15", None, "<0.6", None),
        (None, "0.5.12", "<0.5.13", True),
        (None, "0.5.12", ">=0.5.3", None),
        (None, None, "<0.5.13", None),
    ],
)
def test_ranges_against_a_spec(low: str | None, high: str | None, spec: str, affected: bool | None) -> None:
    assert affected_by(VersionRange.of(low, high), spec) is affected


@pytest.mark.parametrize("spec", ["0.5.13", "~=0.5.13", "<", "<0.5.13,", "<latest"])
def test_a_wrong_spec_is_refused_with_an_example(spec: str) -> None:
    with pytest.raises(ValueError, match=r"write for example '>=0\.5\.13,<0\.5\.15'"):
        parse_spec(spec)


def test_the_class_that_a_model_gets() -> None:
    assert default_tree_class("0.5.18") == "HiRadixCache"
    assert default_tree_class("0.5.19") == default_tree_class("0.5.24") == "UnifiedRadixCache"
    assert default_tree_class("0.5.19.dev3") is None
    assert default_tree_class("0.5.16", "dsa") == "UnifiedRadixCache"
    assert default_tree_class("0.5.15.post1", "dsa") == "HiRadixCache"
    assert default_tree_class("0.5.12", "mamba") == "HiMambaRadixCache"
    assert default_tree_class(VersionRange.of("0.5.13", "0.5.18")) == "HiRadixCache"
    assert default_tree_class("latest") is None
    assert tree_classes("0.5.20") == ("HiRadixCache", "UnifiedRadixCache")
    assert tree_classes("0.5.21") == ("UnifiedRadixCache",)
    release = release_of("v0.5.12")
    assert release and release.unified_opt_in and release.date == "2026-05-16"
    assert release_of("0.5.12.dev3") is None
