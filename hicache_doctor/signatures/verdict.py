"""The verdict: the contract of ``analyze --format json`` (fields may be added, never renamed)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1

Status = Literal["signature", "other_cause", "out_of_scope", "healthy", "undetermined"]
Confidence = Literal["certain", "likely", "possible"]


class Part(BaseModel):
    # A reader of the contract must accept fields that a newer version adds.
    model_config = ConfigDict(extra="ignore")


class Citation(Part):
    """Where a datum was read: an artefact and its line (1-based), or a record (0-based) for what has no lines."""

    artifact: str
    line: int | None = None
    line_end: int | None = None
    record: int | None = None
    rank: str | None = None
    time: str | None = None
    quote: str | None = None


class Link(Part):
    """One link of the evidence chain, from the visible error back towards the cause."""

    claim: str
    citations: list[Citation] = Field(default_factory=list)


class OtherCause(Part):
    id: str
    title: str


class FirstDivergence(Part):
    stream: str
    ordinal: int
    values: dict[str, str]
    citations: list[Citation] = Field(default_factory=list)


class Ranks(Part):
    expected: int | None = None
    seen: list[str] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list)


class Fix(Part):
    pr: int
    state: str
    first_release: str | None = None
    in_your_release: bool | None = None
    title: str | None = None


class Action(Part):
    when: Literal["before_restart", "now", "upgrade"]
    do: str
    command: str | None = None


class Also(Part):
    signature: str
    confidence: Confidence
    because: str
    citations: list[Citation] = Field(default_factory=list)


class OtherIncident(Part):
    time: str | None = None
    title: str
    citations: list[Citation] = Field(default_factory=list)


class InventoryRow(Part):
    artifact: str
    kind: str
    bytes: int
    read: Literal["all", "part", "none"]
    note: str = ""


class Excluded(Part):
    signature: str
    because: str
    citations: list[Citation] = Field(default_factory=list)


class NextEvidence(Part):
    why: str
    command: str | None = None


class Step(Part):
    """One turning of the walk along the diagnosis path."""

    node: str
    question: str
    answer: Literal["yes", "no", "unknown"]
    citations: list[Citation] = Field(default_factory=list)


class LastMinute(Part):
    """What one rank printed in the last minute before the first failure."""

    rank: str | None
    time: str | None
    text: str
    artifact: str
    line: int | None = None


class Verdict(Part):
    """What ``analyze`` says. See DESIGN section 5 for the meaning of each field."""

    schema_version: int = SCHEMA_VERSION
    status: Status
    signature: str | None = None
    form: str | None = None
    title: str
    confidence: Confidence | None = None
    confidence_because: str | None = None
    other_cause: OtherCause | None = None
    first_divergence: FirstDivergence | None = None
    ranks: Ranks = Field(default_factory=Ranks)
    first_failing_rank: str | None = None
    culprits: list[str] = Field(default_factory=list)
    victims: list[str] = Field(default_factory=list)
    evidence_chain: list[Link] = Field(default_factory=list)
    root_cause_pr: int | None = None
    root_cause_state: str | None = None
    fixes: list[Fix] = Field(default_factory=list)
    actions: list[Action] = Field(default_factory=list)
    also: list[Also] = Field(default_factory=list)
    other_incidents: list[OtherIncident] = Field(default_factory=list)
    inventory: list[InventoryRow] = Field(default_factory=list)
    excluded: list[Excluded] = Field(default_factory=list)
    next_evidence: list[NextEvidence] = Field(default_factory=list)
    path: list[Step] = Field(default_factory=list)
    settings: dict[str, Any] = Field(default_factory=dict)
    last_minute: list[LastMinute] = Field(default_factory=list)
    rules_evaluated: list[dict[str, Any]] = Field(default_factory=list)
    tool_version: str
    knowledge_as_of: str


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the contract (draft 2020-12), as shipped in ``rules/verdict.schema.json``."""
    schema = Verdict.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema
