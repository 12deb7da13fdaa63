"""Checking rules for meaning: each kind of finding, and that the shipped rules have none but the listed ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_rules import NODES, RULE, SQL, write

from hicache_doctor.signatures.lint import Finding, asked_names, check
from hicache_doctor.signatures.load import load

KNOWN_WARNINGS = {
    # Asked by no rule yet; each is a fact that a reader of `query` may want.
    "no rule and no node asks for evidence 'abort_seen'",
    "no rule and no node asks for evidence 'stacks_seen'",
    "no rule and no node asks for evidence 'recorder_size_mismatch'",
    "no rule and no node asks for evidence 'ranks_missing'",
    # An amplifier, never a first cause.
    "no leaf of the path names E: it can only stand beside another verdict",
}


def findings(folder: Path, files: dict[str, str] | None = None) -> list[Finding]:
    """What is found in the user's own files."""
    write(folder, files)
    return [f for f in check(load([folder])) if str(folder) in f.where]


def test_the_shipped_rules_are_clean() -> None:
    found = check(load())
    assert [f for f in found if f.severity == "error"] == []
    assert {f.what for f in found} <= KNOWN_WARNINGS


def test_a_right_directory_has_no_finding(tmp_path: Path) -> None:
    assert findings(tmp_path) == []


RULES = "signatures/X1.yaml"
PATH = "path/50_mine.yaml"
VIEWS = "evidence/mine.sql"
LOOP = """\
- {node: a, question: q, ask: mine, yes: b, no: X1, unknown: X1}
- {node: b, question: q, ask: mine, yes: a, no: X1, unknown: X1}
"""


@pytest.mark.parametrize(
    ("name", "text", "place", "what"),
    [
        (RULES, RULE + "config: [pp_onn]\n", "4:10", "no evidence named 'pp_onn'; did you mean 'pp_on'?"),
        (RULES, RULE + "excludes: [zzz]\n", "4:12", "no evidence named 'zzz'"),
        (RULES, RULE + "culprits_from: minee\n", "4:16", "no evidence named 'minee'; did you mean 'mine'?"),
        (RULES, RULE + "next: [{why: w, unless: minn}]\n", "4:25", "no evidence named 'minn'; did you mean 'mine'?"),
        (RULES, RULE + "actions: [{when: now, do: d, if: minx}]\n", "4:34", "no evidence named 'minx'"),
        (RULES, RULE + "look_alikes: [A22]\n", "4:15", "no rule named 'A22'; did you mean 'A2'?"),
        (RULES, RULE + "fixes: [99999999]\n", "4:9", "#99999999 is not in the knowledge base"),
        (RULES, RULE + "root_cause_pr: 77777777\n", "4:16", "#77777777 is not in the knowledge base"),
        (RULES, RULE + "root_cause_by_tree: {HiRadixCache: 77777777}\n", "4:36", "#77777777 is not in"),
        (RULES, RULE + "fixes_by_tree: {HiRadixCache: [77777777]}\n", "4:32", "#77777777 is not in"),
        (RULES, RULE + "fixes: [31425]\n", "4:9", "#31425 is open, no fix to name"),
        (RULES, RULE + "fixes_by_tree: {HiRadixCache: [31425]}\n", "4:32", "#31425 is open, no fix to name"),
        (RULES, RULE + 'versions: "0.5.13"\n', "4:12", "'0.5.13' is no version bound"),
        (RULES, RULE + 'versions: ">=0.5.13 <0.5.15"\n', "4:12", "is no version bound"),
        (PATH, NODES.replace("no: gpu", "no: gpuu"), "1:9", "no node named 'gpuu'; did you mean 'gpu'?"),
        (PATH, NODES.replace("verdict: X1", "verdict: X2"), "7:10", "no rule named 'X2'"),
        (PATH, NODES + "- {node: alone, verdict: X1}\n", "8:10", "no way leads to the node 'alone'"),
        (PATH, NODES.replace("no: gpu", "no: a") + LOOP, "8:10", "the path runs in a circle: a -> b -> a"),
        (PATH, NODES.replace("ask: mine", "ask: mineee"), "3:8", "no evidence named 'mineee'; did you mean 'mine'?"),
        (PATH, NODES.replace("ask: mine", "ask: {all: [mine, {not: mineee}]}"), "3:27", "no evidence named 'mineee'"),
        (PATH, NODES.replace("ask: mine", "ask: {none: [mine]}"), "1:9", "`ask` of 'start': write a name"),
        (PATH, NODES.replace("ask: mine", "ask: {any: [mine], all: [mine]}"), "1:9", "`ask` of 'start': write a name"),
        (PATH, NODES.replace("ask: mine", 'ask: {version: "before 0.5"}'), "3:19", "is no version bound"),
        (PATH, NODES.replace("verdict: X1}", "verdict: X1, root_cause_pr: 77777777}"), "7:10", "#77777777 is not in"),
        (VIEWS, SQL.replace("FROM log", "FROM logs"), "1:1", "evidence 'mine' does not compile: Catalog Error"),
        (VIEWS, SQL.replace("-- says:", "-- known: SELECT nothing\n-- says:"), "1:1", "does not compile: Binder Error"),
        (VIEWS, SQL.replace("FROM log", "FROM read_text('/etc/passwd')"), "1:1", "does not compile: Permission Error"),
        (VIEWS, SQL.replace("{rank}", "{rang}"), "1:1", "names {rang}, which its SQL does not return"),
        (VIEWS, SQL.replace("{rank}", "{rank"), "1:1", "`says` of 'mine': "),
        (VIEWS, SQL.replace("artifact, ", ""), "1:1", "evidence 'mine' returns no `artifact` to cite"),
    ],
)
def test_a_finding_says_where_and_what(tmp_path: Path, name: str, text: str, place: str, what: str) -> None:
    errors = [f for f in findings(tmp_path, {name: text}) if f.severity == "error"]
    at = f"{tmp_path / name}:{place}"
    assert any(f.where == at and what in f.what for f in errors), [(f.where, f.what) for f in errors]


def test_what_nothing_asks_for_is_a_warning(tmp_path: Path) -> None:
    found = findings(tmp_path, {VIEWS: SQL + SQL.replace("mine", "spare"), RULES: RULE})
    assert [(f.severity, f.what) for f in found] == [("warning", "no rule and no node asks for evidence 'spare'")]


def test_a_rule_that_no_leaf_names_is_a_warning(tmp_path: Path) -> None:
    found = findings(tmp_path, {"signatures/X2.yaml": RULE.replace("X1", "X2")})
    assert [(f.severity, f.where) for f in found] == [("warning", f"{tmp_path / 'signatures/X2.yaml'}:1:5")]


def test_a_path_without_a_start(tmp_path: Path) -> None:
    base = load([write(tmp_path)])
    del base.nodes["start"]
    assert any("no node named 'start'" in f.what and f.severity == "error" for f in check(base))


def test_the_names_inside_an_expression() -> None:
    ask = {"all": ["a", {"any": ["b", {"not": "c"}]}, {"version": "<0.5.13"}, {"not": {"any": ["d"]}}]}
    assert list(asked_names(ask)) == ["a", "b", "c", "d"]
    assert list(asked_names("a")) == ["a"]
