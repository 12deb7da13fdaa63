"""The records themselves, and the lists made from them."""

from __future__ import annotations

import re

import pytest

from hicache_doctor.knowledge.prs import (
    affects,
    fixes_in,
    knowledge_as_of,
    lookup,
    missing_in,
    pull_requests,
    reference,
    select,
    undecided_in,
)
from hicache_doctor.knowledge.releases import parse_spec, releases
from hicache_doctor.knowledge.versions import VersionRange

DAY = re.compile(r"20\d\d-\d\d(-\d\d)?")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (27010, "27010"), ("#27010", "27010"), ("sgl-project#27010", "27010"), ("sgl-project/sglang#27010", "27010"),
        ("bytedance-iaas#670", "bytedance-iaas#670"), ("HYGON-AI/sglang-das#261", "HYGON-AI#261"),
        ("https://github.com/sgl-project/sglang/pull/27010/files", "27010"), ("PR 5", None), ("", None),
    ],
)  # fmt: skip
def test_references(written: str | int, name: str | None) -> None:
    assert reference(written) == name


def test_numbers_of_forks_do_not_collide_with_upstream() -> None:
    fork = lookup("bytedance-iaas#670")
    assert fork and fork.number == 670 and not fork.upstream
    assert lookup(670) is None
    assert lookup("hygon-ai#261") is lookup("HYGON-AI#261")


@pytest.mark.parametrize(
    ("pr", "first"),
    [
        (15175, "0.5.8"), (15372, "0.5.7"), (16140, "0.5.7"), (17198, "0.5.9"), (17339, "0.5.8"), (20560, "0.5.10"),
        (21901, "0.5.10"), (23060, "0.5.11"), (26923, "0.5.14"), (27010, "0.5.19"), (27285, "0.5.13"),
        (27489, "0.5.13"), (28916, "0.5.15"), (29258, "0.5.15"), (29405, "0.5.16"), (31425, None), (37143, "0.5.20"),
    ],
)  # fmt: skip
def test_first_releases(pr: int, first: str | None) -> None:
    record = lookup(pr)
    assert record and record.first_release == first


def test_the_leak_is_known_from_its_first_to_its_last_release() -> None:
    leak = lookup(28902)
    assert leak and leak.affected_specs == (">=0.5.13,<0.5.15",)
    assert leak.relations["fixed_by"] == ("28916",)
    affected = [r.version for r in releases() if affects(r.version, 28902)]
    assert affected == ["0.5.13", "0.5.13.post1", "0.5.14"]
    assert affects("0.5.13.dev9", 28902) is None
    assert affects("0.5.14", 10070) is None


def test_fixes_of_a_release_and_which_it_brought_first() -> None:
    fixes = {fix.pr.number: fix.first_here for fix in fixes_in("0.5.16")}
    assert fixes[29258] is False
    assert fixes[29405] is True
    assert 27010 not in fixes
    missing = [fix.pr.number for fix in missing_in("0.5.16")]
    assert 27010 in missing and 29258 not in missing
    changes = {fix.pr.number for fix in fixes_in("0.5.19", changes=True)} - {
        fix.pr.number for fix in fixes_in("0.5.19")
    }
    assert {34406, 34798, 33473, 23309} <= changes


def test_by_class() -> None:
    first = {fix.pr.number for fix in fixes_in("0.5.14", "HiRadixCache") if fix.first_here}
    assert 26923 in first
    assert 27489 not in {fix.pr.number for fix in fixes_in("0.5.14", "HiRadixCache")}
    assert 26923 not in {fix.pr.number for fix in missing_in("0.5.13", "UnifiedRadixCache")}
    assert 27285 in {fix.pr.number for fix in missing_in("0.5.17", "HiMambaRadixCache")}


def test_a_development_build_is_neither_praised_nor_blamed() -> None:
    build = "0.5.12.post2.dev908+g2c8357f79"
    unknown = {fix.pr.number for fix in undecided_in(build)}
    assert {27285, 27489, 27028, 27550} <= unknown
    assert not unknown & {fix.pr.number for fix in [*fixes_in(build), *missing_in(build)]}
    assert not any(fix.first_here for fix in fixes_in(build))


@pytest.mark.parametrize(
    "where", [*(r.version for r in releases()), "0.5.24", "0.5.12.dev143", "0.5.14+own.1", "latest"]
)
def test_only_merged_upstream_pull_requests_are_fixes(where: str) -> None:
    groups = [fixes_in(where, changes=True), missing_in(where, changes=True), undecided_in(where, changes=True)]
    ids = [fix.pr.id for group in groups for fix in group]
    assert len(ids) == len(set(ids)) == sum(r.upstream and r.merged for r in pull_requests().values())
    assert all(fix.pr.merged and fix.pr.upstream and fix.pr.kind == "pr" for group in groups for fix in group)


def test_ranges_have_what_all_their_releases_have() -> None:
    here = {fix.pr.number for fix in fixes_in(VersionRange.of("0.5.15", "0.5.16"))}
    assert 29258 in here and 29405 not in here


def test_selection() -> None:
    assert [r.number for r in select(signature="A2")] == [29054, 29258]
    assert {r.number for r in select("open", "C2")} == {20859, 30760, 33029, 38284}
    form = {r.number for r in select(signature="a")}
    assert {27285, 29258, 27010, 14494} <= form
    assert all(any(s == "C2b" for s in r.signatures) for r in select(signature="C2b"))
    assert len(select()) == len(pull_requests())


def test_the_records_are_well_formed() -> None:
    names = {r.version for r in releases()}
    signature = re.compile(r"[A-Q]|[A-C][1-9]b?|LOOKALIKE")
    for record in pull_requests().values():
        owner = record.repo.split("/")[0]
        assert record.id == (str(record.number) if owner == "sgl-project" else f"{owner}#{record.number}")
        assert (
            record.url
            == f"https://github.com/{record.repo}/{'pull' if record.kind == 'pr' else 'issues'}/{record.number}"
        )
        assert record.state in (("open", "merged", "closed_unmerged") if record.kind == "pr" else ("open", "closed"))
        assert (record.role == "report") == (record.kind == "issue")
        assert record.summary.endswith(".") and 20 < len(record.summary) < 260
        assert all(signature.fullmatch(s) for s in record.signatures), record.id
        assert record.opened is None or DAY.fullmatch(record.opened)
        assert record.first_release is None or record.first_release in names
        assert record.first_release is None or (record.merged and record.upstream)
        assert set(record.first_release_by_part.values()) <= names | {None}
        for spec in record.affected_specs:
            assert parse_spec(spec)
        if record.upstream and record.merged:
            assert not record.arrival.never, record.id
    assert knowledge_as_of() == "2026-11-30"


def test_relations_agree_in_both_directions() -> None:
    pairs = {"fixes": "fixed_by", "supersedes": "superseded_by", "introduced": "introduced_by", "parts": "part_of",
             "followed_by": "follows", "backported_as": "backports"}  # fmt: skip
    records = pull_requests()
    for record in records.values():
        for name, ids in record.relations.items():
            for other in ids:
                assert reference(other) == other
                inverse = {**pairs, **{v: k for k, v in pairs.items()}}.get(name)
                if inverse is None or other not in records:
                    continue
                back = records[other].relations
                answers = [inverse] if inverse != "fixed_by" or record.merged else ["candidate_fixes", "attempts"]
                assert any(record.id in back.get(answer, ()) for answer in answers), (record.id, name, other)
    for record in records.values():
        for other in record.relations.get("fixed_by", ()):
            assert other not in records or records[other].merged, (record.id, other)
