"""The diagnosis path: every way ends at a leaf, every leaf has its rule, every question can be reached."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, cast

import pytest
from small_incident import BASE

from hicache_doctor.errors import RuleError
from hicache_doctor.signatures.match import Evaluator
from hicache_doctor.signatures.model import Node
from hicache_doctor.signatures.path import walk


class Oracle:
    """Answers by chance, or always alike."""

    def __init__(self, choose: Any) -> None:
        self.choose = choose

    def ask(self, expression: Any) -> tuple[str, list[Any]]:
        return self.choose(expression), []


def walked(choose: Any, base: Any = BASE) -> Any:
    return walk(base, cast("Evaluator", Oracle(choose)))


def test_every_leaf_names_a_rule_and_every_question_leads_on() -> None:
    for node in BASE.nodes.values():
        if node.verdict is not None:
            assert node.verdict in BASE.rules, node.node
        else:
            assert {node.yes, node.no, node.unknown} <= BASE.nodes.keys(), node.node


def test_every_node_can_be_reached() -> None:
    reached, todo = set(), [BASE.start]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            node = BASE.nodes[name]
            todo += [t for t in (node.yes, node.no, node.unknown) if t]
    assert reached == BASE.nodes.keys()


def test_every_signature_has_a_leaf_and_the_amplifier_only_where_nothing_parted_before() -> None:
    leaves = {n.node: n.verdict for n in BASE.nodes.values() if n.verdict}
    assert BASE.rules.keys() == set(leaves.values())
    (amplifier,) = [node for node, verdict in leaves.items() if verdict == "E"]
    to_it = [n for n in BASE.nodes.values() if amplifier in (n.yes, n.no, n.unknown)]
    assert [(n.ask, n.yes, n.no != amplifier) for n in to_it] == [("evict_tie_first", amplifier, True)]


@pytest.mark.parametrize("seed", range(300))
def test_every_way_ends(seed: int) -> None:
    rng = random.Random(seed)
    taken = walked(lambda _: rng.choice(["yes", "no", "unknown"]))
    assert taken.leaf.verdict in BASE.rules
    names = [step.node for step in taken.steps]
    assert len(names) == len(set(names))


def test_nothing_known_ends_undetermined() -> None:
    assert BASE.rules[walked(lambda _: "unknown").leaf.verdict].kind == "undetermined"
    assert BASE.rules[walked(lambda _: "no").leaf.verdict].kind == "undetermined"


def with_nodes(*nodes: Node) -> Any:
    return replace(BASE, nodes={n.node: n for n in nodes})


def question(name: str, target: str) -> Node:
    return Node(node=name, question="?", ask="x", yes=target, no=target, unknown=target)


def test_a_loop_and_a_missing_node_are_rule_errors() -> None:
    with pytest.raises(RuleError, match="does not end within 200 turnings"):
        walked(lambda _: "yes", with_nodes(question("start", "a"), question("a", "start")))
    with pytest.raises(RuleError, match="no node named 'gone'"):
        walked(lambda _: "yes", with_nodes(question("start", "gone")))


def test_the_steps_say_what_was_asked_and_answered() -> None:
    taken = walked(
        lambda _: "no", with_nodes(question("start", "a"), question("a", "end"), Node(node="end", verdict="A"))
    )
    assert [(s.node, s.question, s.answer) for s in taken.steps] == [("start", "?", "no"), ("a", "?", "no")]
    assert taken.leaf.node == "end"
