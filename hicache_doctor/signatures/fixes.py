"""Which pull requests repair a verdict's cause: only merged ones, and never one that the user's release contains."""

from __future__ import annotations

from hicache_doctor.knowledge.records import lookup
from hicache_doctor.knowledge.releases import contains_fix
from hicache_doctor.signatures.facts import Facts
from hicache_doctor.signatures.model import Node, Rule
from hicache_doctor.signatures.verdict import Fix


def root_cause(rule: Rule, tree: str | None) -> int | None:
    """The PR that repairs the cause, whatever its state; by cache class where the rule tells them apart."""
    if tree is not None and tree in rule.root_cause_by_tree:
        return rule.root_cause_by_tree[tree]
    return rule.root_cause_pr


def fixes_of(rule: Rule, leaf: Node, facts: Facts, root: int | None) -> tuple[str | None, list[Fix]]:
    """The state of the root-cause PR and the fixes to name."""
    if leaf.root_cause_pr is not None:
        numbers = [leaf.root_cause_pr]
    elif facts.tree is not None and facts.tree in rule.fixes_by_tree:
        numbers = rule.fixes_by_tree[facts.tree]
    elif rule.fixes_by_tree:
        numbers = sorted({n for group in rule.fixes_by_tree.values() for n in group})
    else:
        numbers = rule.fixes
    record = lookup(root) if root is not None else None
    out = []
    for number in numbers:
        pr = lookup(number)
        if pr is None or not pr.merged or not pr.upstream:
            continue
        inside = None if facts.version is None else contains_fix(facts.version, number, _part(number, facts.tree))
        if inside is True:
            continue
        first = pr.first_release or (pr.first_release_between or {}).get("by")
        out.append(Fix(pr=number, state=pr.state, first_release=first, in_your_release=inside, title=pr.title))
    return (record.state if record is not None else None), out


def _part(number: int, tree: str | None) -> str | None:
    """The tree class matters only for a PR that reached the classes in different releases."""
    pr = lookup(number)
    if tree is None or pr is None or tree not in pr.first_release_by_part:
        return None
    return tree
