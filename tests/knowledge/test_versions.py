"""Version strings as they appear in the wild."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.knowledge.versions import Version, VersionRange, parse_version


@pytest.mark.parametrize(
    ("text", "kind", "number"),
    [
        ("0.5.14", "release", "0.5.14"),
        ("v0.5.12.post1", "release", "0.5.12.post1"),
        ("0.5.10post1", "release", "0.5.10.post1"),
        ("0.5.12.post2.dev908+g2c8357f79", "development", "0.5.12.post2.dev908"),
        ("0.5.12.post2.dev908+g2c8357f79.d20260601", "development", "0.5.12.post2.dev908"),
        ("0.5.12.dev143+g7be02c51d", "development", "0.5.12.dev143"),
        ("lmsysorg/sglang:v0.5.12-cu129", "release", "0.5.12"),
        ("v0.5.14-cu130-amd64", "release", "0.5.14"),
        ("lmsysorg/sglang:v0.5.10.post1-rocm700-mi35x", "release", "0.5.10.post1"),
        ("registry.local:5000/mirror/sglang:v0.5.12@sha256:0f3c", "release", "0.5.12"),
        ("10.0.0.5:5000/sglang:v0.5.12", "release", "0.5.12"),
        ("0.5.14+cu129", "release", "0.5.14"),
        ("sglang[all]==0.5.14", "release", "0.5.14"),
        ("Version: 0.5.14", "release", "0.5.14"),
        ("/opt/wheels/sglang-0.5.14-py3-none-any.whl", "release", "0.5.14"),
        ("sglang-0.5.14.dist-info", "release", "0.5.14"),
        ("0.5.20rc1", "prerelease", "0.5.20rc1"),
        ("v0.5.3rc0-cu126", "prerelease", "0.5.3rc0"),
        ("0.5.14+das.opt1.dtk2604", "vendor", "0.5.14"),
        ("v0.5.12-mypatch", "vendor", "0.5.12"),
    ],
)
def test_reads_what_people_write(text: str, kind: str, number: str) -> None:
    version = parse_version(text)
    assert (version.kind, version.number, version.text) == (kind, number, text)


@pytest.mark.parametrize(
    "text",
    [
        "", "garbage", "sglang:latest", "lmsysorg/sglang:nightly-dev-cu13-20260601-2c8357f79", "0.5", "0.5.12.5",
        "nvcr.io/nvidia/sglang:25.10-py3", "10.0.0.5:5000/sglang:latest", "10.0.0.5:5000/sglang", "0.0.0.dev0",
        "sglang>=0.5.13", "0.5.1\u0663", "v0.5." + "9" * 5000,
    ],
)  # fmt: skip
def test_says_that_it_does_not_know(text: str) -> None:
    version = parse_version(text)
    assert version.kind == "unknown"
    assert version.pep440 is None
    assert version.because


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("0.5.12.post2.dev908+g2c8357f79", "0.5.12.post1"),
        ("0.5.12.post1.dev7", "0.5.12"),
        ("0.5.12.dev143+g7be02c51d", "0.5.11"),
        ("0.5.20rc2.dev3", "0.5.20rc1"),
        ("0.5.24.dev0+g1234567", None),
        ("0.5.14", None),
    ],
)
def test_a_development_build_counts_from_the_tag_before(text: str, tag: str | None) -> None:
    found = parse_version(text).tag
    assert (str(found) if found else None) == tag


NUMBERS = st.builds(
    lambda v, a, b, pre, post, dev, rest: f"{v}0.{a}.{b}{pre}{post}{dev}{rest}",
    st.sampled_from(["", "v", "sglang:", "lmsysorg/sglang:v"]),
    st.integers(0, 9),
    st.integers(0, 30),
    st.sampled_from(["", "rc0", "rc1"]),
    st.sampled_from(["", ".post1", ".post2"]),
    st.sampled_from(["", ".dev0", ".dev908"]),
    st.sampled_from(["", "-cu129", "+g2c8357f79", "+vendor.1", "-patched"]),
)


@given(st.text(max_size=500))
def test_never_raises(text: str) -> None:
    assert isinstance(parse_version(text), Version)


@given(NUMBERS)
def test_never_raises_near_the_truth(text: str) -> None:
    version = parse_version(text)
    assert version.known == (version.kind != "unknown")
    assert version.tag is None or version.pep440 is None or version.tag < version.pep440


@given(st.lists(st.one_of(NUMBERS, st.text(max_size=20)).map(parse_version), min_size=3, max_size=3))
def test_order_is_total(versions: list[Version]) -> None:
    a, b, c = versions
    assert (a < b) + (a == b) + (b < a) == 1
    assert not (a < b < c) or a < c
    assert a != b or hash(a) == hash(b)


def test_order_is_that_of_pep_440() -> None:
    ordered = ["latest", "0.5.12.dev143", "0.5.12", "0.5.12.post1", "0.5.12.post2.dev908", "0.5.13rc1", "0.5.13"]
    assert sorted(map(parse_version, reversed(ordered))) == [parse_version(text) for text in ordered]


def test_ranges_meet() -> None:
    both = VersionRange.of("0.5.13", "0.5.17").intersect(VersionRange.of("0.5.15"))
    assert str(both) == "0.5.15 to 0.5.17"
    assert both.intersect(VersionRange.of(None, "0.5.14")).empty
    assert str(VersionRange()) == "any version"
    with pytest.raises(ValueError, match="known version"):
        VersionRange.of("latest")
