"""The fixes that a verdict names: merged, not in the release, and those of the tree class that runs."""

from __future__ import annotations

from typing import Any

import pytest
from small_incident import BASE, facts

from hicache_doctor.knowledge.records import lookup
from hicache_doctor.knowledge.releases import contains_fix, releases
from hicache_doctor.knowledge.versions import VersionRange
from hicache_doctor.signatures.fixes import fixes_of, root_cause
from hicache_doctor.signatures.model import Node, Rule

LEAF = Node(node="x", verdict="X1")
MERGED, OPEN, BY_TREE = 29258, 31425, {"UnifiedRadixCache": [27489], "HiRadixCache": [26923]}
TREES = (None, "HiRadixCache", "HiMambaRadixCache", "UnifiedRadixCache")


def rule(**given: Any) -> Rule:
    return Rule.model_validate({"id": "X1", "title": "t", "text": ["x"], **given})


def named(of: Rule, version: Any = None, tree: str | None = None, leaf: Node = LEAF) -> list[int]:
    return [f.pr for f in fixes_of(of, leaf, facts(version, tree), root_cause(of, tree))[1]]


def test_a_merged_fix_is_named_until_the_release_has_it() -> None:
    fixed = rule(fixes=[MERGED])
    assert named(fixed, "0.5.14") == [MERGED]
    assert named(fixed, "0.5.15") == named(fixed, "0.5.23") == []
    _, (fix,) = fixes_of(fixed, LEAF, facts("0.5.14"), MERGED)
    assert (fix.state, fix.first_release, fix.in_your_release) == ("merged", "0.5.15", False)


@pytest.mark.parametrize("version", [None, "latest", VersionRange.of("0.5.13", "0.5.16")])
def test_an_unknown_release_says_unknown(version: Any) -> None:
    _, (fix,) = fixes_of(rule(fixes=[MERGED]), LEAF, facts(version), MERGED)
    assert fix.in_your_release is None


def test_a_range_that_wholly_has_it_names_none_and_one_that_wholly_lacks_it_says_so() -> None:
    assert named(rule(fixes=[MERGED]), VersionRange.of("0.5.15", None)) == []
    _, (fix,) = fixes_of(rule(fixes=[MERGED]), LEAF, facts(VersionRange.of("0.5.12", "0.5.14")), MERGED)
    assert fix.in_your_release is False


def test_an_open_one_is_the_root_cause_and_never_a_fix() -> None:
    state, fixes = fixes_of(rule(fixes=[OPEN, MERGED], root_cause_pr=OPEN), LEAF, facts("0.5.14"), OPEN)
    assert state == "open"
    assert [f.pr for f in fixes] == [MERGED]
    assert named(rule(fixes=[99999999])) == []


def test_by_tree_class() -> None:
    by_tree = rule(fixes_by_tree=BY_TREE, root_cause_by_tree={"UnifiedRadixCache": 27489}, root_cause_pr=26923)
    assert named(by_tree, "0.5.12", "UnifiedRadixCache") == [27489]
    assert named(by_tree, "0.5.12", "HiRadixCache") == [26923]
    assert named(by_tree, "0.5.12") == [26923, 27489]
    assert named(by_tree, "0.5.13", "UnifiedRadixCache") == []
    assert root_cause(by_tree, "UnifiedRadixCache") == 27489
    assert root_cause(by_tree, "HiRadixCache") == root_cause(by_tree, None) == 26923


def test_a_leaf_may_name_the_one_fix() -> None:
    leaf = Node(node="x", verdict="X1", root_cause_pr=27010)
    assert named(rule(fixes=[MERGED]), "0.5.14", leaf=leaf) == [27010]
    assert named(rule(fixes=[MERGED]), "0.5.19", leaf=leaf) == []
    assert named(rule(), "0.5.14", leaf=Node(node="x", verdict="X1", root_cause_pr=OPEN)) == []


@pytest.mark.parametrize("tree", TREES)
def test_no_shipped_rule_ever_names_an_open_fix_or_one_that_the_release_has(tree: str | None) -> None:
    leaves = [n for n in BASE.nodes.values() if n.verdict is not None]
    for release in releases():
        known = facts(release.version, tree)
        for leaf in leaves:
            of = BASE.rules[str(leaf.verdict)]
            for fix in fixes_of(of, leaf, known, leaf.root_cause_pr or root_cause(of, tree))[1]:
                record = lookup(fix.pr)
                assert record is not None and record.merged, (leaf.node, fix.pr)
                part = tree if tree in record.first_release_by_part else None
                assert contains_fix(release.version, fix.pr, part) is not True, (leaf.node, release.version, fix.pr)
                assert fix.in_your_release is not True
                assert fix.first_release is not None
