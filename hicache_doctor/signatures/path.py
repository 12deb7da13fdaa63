"""Walking the diagnosis path: questions answered by named evidence, turning by turn, to a leaf."""

from __future__ import annotations

from dataclasses import dataclass

from hicache_doctor.errors import RuleError
from hicache_doctor.signatures.load import RuleBase
from hicache_doctor.signatures.match import Evaluator
from hicache_doctor.signatures.model import Node
from hicache_doctor.signatures.verdict import Step

MAX_STEPS = 200


@dataclass(slots=True)
class Walk:
    """The turnings taken and the leaf reached."""

    steps: list[Step]
    leaf: Node


def walk(base: RuleBase, evaluator: Evaluator) -> Walk:
    """Follow the path from its start.

    Raises:
        RuleError: a node that doesn't exist, or a loop.
    """
    steps: list[Step] = []
    name = base.start
    for _ in range(MAX_STEPS):
        node = base.nodes.get(name)
        if node is None:
            raise RuleError("rules/path", f"no node named {name!r}")
        if node.verdict is not None:
            return Walk(steps, node)
        assert node.ask is not None
        value, citations = evaluator.ask(node.ask)
        steps.append(Step(node=node.node, question=node.question or "", answer=value, citations=citations[:2]))
        target = {"yes": node.yes, "no": node.no, "unknown": node.unknown}[value]
        assert target is not None
        name = target
    raise RuleError("rules/path", f"the path does not end within {MAX_STEPS} turnings (a loop?)")
