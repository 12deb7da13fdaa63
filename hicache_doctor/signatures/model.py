"""What a rule file, a path node and a named piece of evidence may say. pydantic, because people write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Answer3 = Literal["yes", "no", "unknown"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RuleAction(Strict):
    """Something to do; ``if`` names evidence that must be yes for it to be said."""

    when: Literal["before_restart", "now", "upgrade"]
    do: str
    command: str | None = None
    only_if: str | None = Field(default=None, alias="if")


class RuleNext(Strict):
    """What to collect; said when ``unless`` (named evidence) is not yes."""

    why: str
    command: str | None = None
    unless: str | None = None


class Rule(Strict):
    """One signature, look-alike or honest other verdict.

    ``text``: evidence that is the literal text (any one counts); ``config``: all must be yes for the configuration to
    agree; ``observed``: any one makes the divergence itself observed; ``parted``: any one is the first difference of
    the decision streams, which makes it certain whatever of the configuration the artefacts leave unsaid; ``excludes``:
    any yes rules it out.
    """

    id: str
    kind: Literal["signature", "other_cause", "out_of_scope", "healthy", "undetermined"] = "signature"
    form: Literal["A", "B", "C"] | None = None
    title: str
    status: Literal["experimental", "test", "stable"] = "stable"
    text: list[str] = Field(default_factory=list)
    config: list[str] = Field(default_factory=list)
    observed: list[str] = Field(default_factory=list)
    parted: list[str] = Field(default_factory=list)
    supports: list[str] = Field(default_factory=list)
    excludes: list[str] = Field(default_factory=list)
    versions: str | None = None
    root_cause_pr: int | None = None
    root_cause_by_tree: dict[str, int] = Field(default_factory=dict)
    fixes: list[int] = Field(default_factory=list)
    fixes_by_tree: dict[str, list[int]] = Field(default_factory=dict)
    chain: list[str] = Field(default_factory=list)
    first_rank: Literal["role", "none", "evidence"] = "role"
    culprits_from: str | list[str | list[str]] | None = None
    """Evidence that names the culprits; of a list the first entry that names any (an entry may be several)."""
    victims_from: str | list[str] | None = None
    look_alikes: list[str] = Field(default_factory=list)
    actions: list[RuleAction] = Field(default_factory=list)
    next: list[RuleNext] = Field(default_factory=list)
    sources: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _text_needed(self) -> Rule:
        if self.kind == "signature" and not self.text and len(self.id) > 1:
            raise ValueError("a signature needs `text`: the evidence that is its literal text")
        return self


class Node(Strict):
    """One turning of the diagnosis path: a question with three answers, or a leaf with a verdict.

    ``ask`` is a name of evidence, or ``{any: […]}``, ``{all: […]}``, ``{not: …}``, ``{version: "<0.5.13"}``.
    """

    node: str
    question: str | None = None
    ask: str | dict[str, Any] | None = None
    yes: str | None = None
    no: str | None = None
    unknown: str | None = None
    verdict: str | None = None
    root_cause_pr: int | None = None
    because: str | None = None

    @model_validator(mode="after")
    def _leaf_or_question(self) -> Node:
        if (self.verdict is None) == (self.ask is None):
            raise ValueError("a node has either `verdict` (a leaf) or `ask` with `yes`, `no` and `unknown`")
        if self.ask is not None and not (self.yes and self.no and self.unknown and self.question):
            raise ValueError("a question needs `question`, `yes`, `no` and `unknown`")
        return self


@dataclass(frozen=True, slots=True)
class Evidence:
    """A named SQL view: rows = yes, no rows = no, unless ``known`` says that it could not have been seen.

    Without a row in the table ``needs`` it is not even asked: its views exist only where there is something to see.
    """

    name: str
    says: str
    sql: str
    known: str | None
    file: str
    line: int
    needs: str | None = None
