"""The rules' own cases: small incidents beside each rule, and logs of healthy deployments that must raise nothing.

``rules/cases/<id>.yaml`` holds a list of ``{name, files: {name: text}, events: [table], expect: {…}}``; ``events`` are
probe events as tables that are put together (:mod:`hicache_doctor.evidence.event_rows`), ``calls`` those of flight
recorders (:mod:`hicache_doctor.evidence.call_rows`), ``expect`` has ``status``, and
``signature`` or ``other_cause``, perhaps ``first_failing_rank``, ``confidence``, the stream of the first divergence as
``parts_in``, a signature beside it as ``also``, or ``not: <id>`` for a negative case.
``rules/cases/healthy/`` holds logs, or folders of logs, for which any signature is a false alarm.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hicache_doctor.errors import RuleError
from hicache_doctor.evidence import call_rows, event_rows
from hicache_doctor.evidence.rows import Row
from hicache_doctor.incident import Options, Tools, analyze
from hicache_doctor.shipped import rules_dir
from hicache_doctor.signatures.verdict import Verdict


class Expectation(BaseModel):
    model_config = ConfigDict(extra="forbid")

    status: str | None = None
    signature: str | None = None
    other_cause: str | None = None
    confidence: str | None = None
    first_failing_rank: str | None = None
    culprits: list[str] | None = None
    root_cause_pr: int | None = None
    parts_in: str | None = None
    also: str | None = None
    never: str | None = Field(default=None, alias="not")


class Case(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    files: dict[str, str] = Field(default_factory=dict)
    events: list[str] = Field(default_factory=list)
    calls: str = ""
    expect: Expectation
    sglang: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case run; ``problem`` is None when it holds."""

    rule: str
    name: str
    problem: str | None


def run(extra: tuple[Path, ...] = ()) -> Iterator[Outcome]:
    """Run the cases of the shipped rules and of every directory of ``extra``.

    Raises:
        RuleError: a rule or a case file is wrong.
    """
    tools = Tools.load(extra)
    for folder in (rules_dir(), *extra):
        for path in sorted((folder / "cases").glob("*.yaml")):
            for case in load(path):
                yield Outcome(path.stem, case.name, _problem(case, tools))
        healthy = folder / "cases" / "healthy"
        if healthy.is_dir():
            for entry in sorted(healthy.iterdir()):
                yield Outcome("healthy", entry.name, _false_alarm(entry, tools))


def load(path: Path) -> list[Case]:
    """The cases of one file.

    Raises:
        RuleError: it cannot be read.
    """
    try:
        raw: list[Any] = yaml.load(
            path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )
        return [Case.model_validate(item) for item in raw or []]
    except (OSError, yaml.YAMLError, ValidationError) as e:
        raise RuleError(f"{path}:1:1", str(e).splitlines()[0]) from None


def _verdict(paths: list[str], tools: Tools, sglang: str | None = None, events: Sequence[Row] = ()) -> Verdict:
    settings = {"sglang_version": sglang} if sglang else {}
    result = analyze(paths, Options(settings=settings), tools=tools, events=events)
    result.store.close()
    return result.verdict


def _problem(case: Case, tools: Tools) -> str | None:
    try:
        events: list[Row] = [*event_rows.parse("\n".join(case.events), tools.base.events, tools.base.event_words)]
    except ValueError as e:
        return f"events, {e}"
    try:
        events += call_rows.parse(case.calls)
    except ValueError as e:
        return f"calls, {e}"
    with tempfile.TemporaryDirectory(prefix="hicache-doctor-case-") as folder:
        for name, text in case.files.items():
            target = Path(folder) / Path(name).name
            target.write_text(text, encoding="utf-8")
        verdict = _verdict([folder], tools, case.sglang, events)
    want = case.expect
    if want.never is not None:
        said = verdict.signature or (verdict.other_cause.id if verdict.other_cause else verdict.status)
        return f"says {said}, which it must not" if said == want.never else None
    got = {
        "status": verdict.status,
        "signature": verdict.signature,
        "other_cause": verdict.other_cause.id if verdict.other_cause else None,
        "confidence": verdict.confidence,
        "first_failing_rank": verdict.first_failing_rank,
        "culprits": verdict.culprits,
        "root_cause_pr": verdict.root_cause_pr,
        "parts_in": verdict.first_divergence.stream if verdict.first_divergence else None,
        "also": want.also if want.also in [a.signature for a in verdict.also] else None,
    }
    wrong = [f"{k} is {got[k]}, not {v}" for k in got if (v := getattr(want, k)) is not None and got[k] != v]
    return "; ".join(wrong) or None


def _false_alarm(entry: Path, tools: Tools) -> str | None:
    verdict = _verdict([str(entry)], tools)
    if verdict.status in {"signature", "other_cause", "out_of_scope"}:
        what = verdict.signature or (verdict.other_cause.id if verdict.other_cause else verdict.status)
        return f"a false alarm: {what}"
    return None
