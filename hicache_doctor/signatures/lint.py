"""Checking a rule base for meaning: dangling names, unreachable nodes, SQL that does not compile, empty templates.

Findings say ``file:line:column``, what is wrong and, where a name is wrong, the nearest right one.
"""

from __future__ import annotations

import difflib
import re
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hicache_doctor.evidence import decisions
from hicache_doctor.evidence.store import Store
from hicache_doctor.knowledge.records import lookup
from hicache_doctor.knowledge.releases import parse_spec
from hicache_doctor.signatures.load import RuleBase
from hicache_doctor.signatures.model import Evidence, Node, Rule

ASK_OPERATORS = {"any", "all", "not", "version"}
ALWAYS = {"n"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding; an ``error`` makes ``rules check`` fail, a ``warning`` doesn't."""

    where: str
    severity: Literal["error", "warning"]
    what: str


def check(base: RuleBase) -> list[Finding]:
    """Every finding, in the order of the files."""
    found: list[Finding] = []
    for part in (_rules, _nodes, _reach, _evidence, _unused):
        found += part(base)
    return sorted(found, key=lambda f: (f.where.rsplit(":", 2)[0], f.severity, f.where))


def asked_names(ask: Any) -> Iterator[str]:
    """The names of evidence inside an ``ask`` expression."""
    if isinstance(ask, str):
        yield ask
    elif isinstance(ask, dict):
        for operator, operand in ask.items():
            if operator == "version":
                continue
            for item in operand if isinstance(operand, list) else [operand]:
                yield from asked_names(item)


def _rules(base: RuleBase) -> Iterator[Finding]:
    for rule in base.rules.values():
        path = base.files[f"rule:{rule.id}"]
        for name in _names_of(rule):
            if name not in base.evidence:
                yield _dangling(path, name, base.evidence)
        for other in rule.look_alikes:
            if other not in base.rules:
                yield Finding(_where(path, other), "error", _near("no rule", other, base.rules))
        numbers = [*rule.fixes, *rule.root_cause_by_tree.values(), *(n for g in rule.fixes_by_tree.values() for n in g)]
        for number in [*numbers, *([rule.root_cause_pr] if rule.root_cause_pr else [])]:
            if lookup(number) is None:
                yield Finding(_where(path, str(number)), "error", f"#{number} is not in the knowledge base")
        for number in [*rule.fixes, *(n for group in rule.fixes_by_tree.values() for n in group)]:
            pr = lookup(number)
            if pr is not None and not pr.merged:
                yield Finding(_where(path, str(number)), "error", f"#{number} is {pr.state}, no fix to name")
        if rule.versions is not None:
            yield from _spec(path, rule.versions)


def _names_of(rule: Rule) -> Iterator[str]:
    yield from (*rule.text, *rule.config, *rule.observed, *rule.parted, *rule.supports, *rule.excludes, *rule.chain)
    for named in (rule.culprits_from, rule.victims_from):
        for entry in [named] if isinstance(named, str) else named or []:
            yield from [entry] if isinstance(entry, str) else entry
    yield from (a.only_if for a in rule.actions if a.only_if)
    yield from (n.unless for n in rule.next if n.unless)


def _nodes(base: RuleBase) -> Iterator[Finding]:
    for node in base.nodes.values():
        path = base.files[f"node:{node.node}"]
        if node.verdict is not None:
            if node.verdict not in base.rules:
                yield Finding(_node(path, node.node), "error", _near("no rule", node.verdict, base.rules))
            if node.root_cause_pr is not None and lookup(node.root_cause_pr) is None:
                yield Finding(_node(path, node.node), "error", f"#{node.root_cause_pr} is not in the knowledge base")
            continue
        for target in (node.yes, node.no, node.unknown):
            if target not in base.nodes:
                yield Finding(_node(path, node.node), "error", _near("no node", target or "", base.nodes))
        yield from _ask(base, path, node, node.ask)


def _ask(base: RuleBase, path: Path, node: Node, ask: Any) -> Iterator[Finding]:
    if isinstance(ask, str):
        if ask not in base.evidence:
            yield _dangling(path, ask, base.evidence)
        return
    if not isinstance(ask, dict) or len(ask) != 1 or next(iter(ask)) not in ASK_OPERATORS:
        what = f"`ask` of {node.node!r}: write a name, or one of {{any: […]}}, {{all: […]}}, {{not: …}}, {{version: …}}"
        yield Finding(_node(path, node.node), "error", what)
        return
    ((operator, operand),) = ask.items()
    if operator == "version":
        yield from _spec(path, str(operand))
        return
    for item in operand if isinstance(operand, list) else [operand]:
        yield from _ask(base, path, node, item)


def _spec(path: Path, spec: str) -> Iterator[Finding]:
    try:
        parse_spec(spec)
    except ValueError as e:
        yield Finding(_where(path, spec), "error", str(e))


def _reach(base: RuleBase) -> Iterator[Finding]:
    if base.start not in base.nodes:
        yield Finding("rules/path:1:1", "error", f"no node named {base.start!r}, where the path begins")
        return
    reached: set[str] = set()
    todo = [base.start]
    while todo:
        name = todo.pop()
        if name in reached or name not in base.nodes:
            continue
        reached.add(name)
        node = base.nodes[name]
        todo += [t for t in (node.yes, node.no, node.unknown) if t]
    for name in base.nodes:
        if name not in reached:
            yield Finding(_node(base.files[f"node:{name}"], name), "error", f"no way leads to the node {name!r}")
    leaves = {base.nodes[n].verdict for n in reached}
    for rule in base.rules.values():
        if rule.id not in leaves:
            what = f"no leaf of the path names {rule.id}: it can only stand beside another verdict"
            yield Finding(_where(base.files[f"rule:{rule.id}"], rule.id), "warning", what)
    yield from _loops(base)


def _loops(base: RuleBase) -> Iterator[Finding]:
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> Iterator[Finding]:
        if name in trail:
            loop = " -> ".join([*trail[trail.index(name) :], name])
            yield Finding(_node(base.files[f"node:{name}"], name), "error", f"the path runs in a circle: {loop}")
            return
        if name in done or name not in base.nodes:
            return
        node = base.nodes[name]
        for target in (node.yes, node.no, node.unknown):
            if target:
                yield from visit(target, (*trail, name))
        done.add(name)

    yield from visit(base.start, ())


def _evidence(base: RuleBase) -> Iterator[Finding]:
    """Every view compiles against an empty incident, and its sentence names only columns that it has."""
    import duckdb

    from hicache_doctor.signatures.diagnose import derive

    with Store.create() as store:
        derive(store, base)
        decisions.create_views(store, base.events, base.event_words)
        tables = {r["name"] for r in store.rows("SELECT table_name AS name FROM information_schema.tables")}
        for item in base.evidence.values():
            where = f"{item.file}:{item.line}:1"
            if item.needs is not None and item.needs not in tables:
                yield Finding(where, "error", _near("no table", item.needs, tables))
            try:
                cursor = store.con.execute(item.sql)
                columns = {d[0] for d in cursor.description or []}
                cursor.fetchall()
                if item.known is not None:
                    store.con.execute(item.known).fetchall()
            except duckdb.Error as e:
                first = (str(e).strip().splitlines() or ["?"])[0]
                yield Finding(where, "error", f"evidence {item.name!r} does not compile: {first}")
                continue
            yield from _template(item, columns, where)


def _template(item: Evidence, columns: set[str], where: str) -> Iterator[Finding]:
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(item.says) if name}
    except ValueError as e:
        yield Finding(where, "error", f"`says` of {item.name!r}: {e}")
        return
    for name in sorted(names - columns - ALWAYS):
        yield Finding(where, "error", f"`says` of {item.name!r} names {{{name}}}, which its SQL does not return")
    if "artifact" not in columns:
        yield Finding(where, "error", f"evidence {item.name!r} returns no `artifact` to cite (NULL for a derived fact)")


def _unused(base: RuleBase) -> Iterator[Finding]:
    used = {n for rule in base.rules.values() for n in _names_of(rule)}
    used |= {n for node in base.nodes.values() for n in asked_names(node.ask)}
    for item in base.evidence.values():
        if item.name not in used:
            yield Finding(
                f"{item.file}:{item.line}:1", "warning", f"no rule and no node asks for evidence {item.name!r}"
            )


def _dangling(path: Path, name: str, known: Iterable[str]) -> Finding:
    return Finding(_where(path, name), "error", _near("no evidence", name, known))


def _near(what: str, name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"{what} named {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")


def _node(path: Path, name: str) -> str:
    """``file:line:column`` of the name where the node is defined, not where another one leads to it."""
    return _where(path, name, r"\bnode:\s*[\"']?")


def _where(path: Path, word: str, before: str = r"(?<![\w.])") -> str:
    """``file:line:column`` of the first place where ``word`` stands."""
    pattern = re.compile(rf"{before}({re.escape(word)})(?![\w])")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for number, line in enumerate(lines, 1):
        m = pattern.search(line)
        if m is not None:
            return f"{path}:{number}:{m.start(1) + 1}"
    return f"{path}:1:1"
