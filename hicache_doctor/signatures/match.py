"""Evaluating named evidence over the store, lazily and once each."""

from __future__ import annotations

import datetime as dt
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hicache_doctor.errors import RuleError
from hicache_doctor.signatures.model import Answer3, Evidence
from hicache_doctor.signatures.verdict import Citation

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store
    from hicache_doctor.signatures.facts import Facts

SECONDS = 20.0
MAX_CITATIONS = 4


@dataclass(slots=True)
class Answer:
    """What one piece of evidence says: yes, no or unknown, with the rows behind it."""

    name: str
    value: Answer3
    rows: list[dict[str, Any]] = field(default_factory=list)
    says: str = ""

    def claim(self) -> str:
        """The sentence of the evidence, filled from its first row."""
        row = dict(self.rows[0]) if self.rows else {}
        row["rank"] = row.get("rank") or "a rank"  # one that the artefact does not name
        return fill(self.says, {"n": len(self.rows), **row})

    def citations(self, limit: int = MAX_CITATIONS) -> list[Citation]:
        """Where the rows were read."""
        return [c for r in self.rows[:limit] if (c := citation(r)) is not None]


class _Plain(string.Formatter):
    """``{name}`` only: no attributes, no indices, no code; a missing name stays visible as ``?``."""

    def get_field(self, field_name: str, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        value = kwargs.get(field_name)
        return ("?" if value is None else value), field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        try:
            return str(super().format_field(value, format_spec))
        except (ValueError, TypeError):
            return str(value)


def fill(template: str, values: Mapping[str, Any]) -> str:
    """A template of the rules with its named fields filled in."""
    return _Plain().vformat(template, (), values)


def citation(row: Mapping[str, Any]) -> Citation | None:
    """The citation columns of an evidence row; None when it cites nothing (a derived fact).

    A rule's SQL decides the types (``0.0`` is a DECIMAL), so each column is brought to the type that it must have.
    """
    artifact = row.get("artifact")
    if artifact is None:
        return None
    line = _whole(row.get("line"))
    rank, quote = row.get("rank"), row.get("quote")
    return Citation(
        artifact=str(artifact),
        line=line,
        line_end=_whole(row.get("line_end")) or line,
        record=_whole(row.get("record")),
        rank=None if rank is None else str(rank),
        time=stamp(row.get("ts")),
        quote=None if quote is None else str(quote)[:400],
    )


def _whole(value: Any) -> int | None:
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def stamp(ts: Any) -> str | None:
    """Epoch seconds as ISO 8601 (UTC as far as the artefact said); None for what is no time."""
    if ts is None:
        return None
    try:
        text = dt.datetime.fromtimestamp(float(ts), dt.timezone.utc).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, TypeError, ValueError):
        return None
    return text.replace("+00:00", "").removesuffix(".000")


class Evaluator:
    """Answers questions about one incident."""

    def __init__(self, store: Store, evidence: Mapping[str, Evidence], facts: Facts) -> None:
        self._store = store
        self._evidence = evidence
        self._facts = facts
        self._answers: dict[str, Answer] = {}
        self._filled: dict[str, bool] = {}

    @property
    def asked(self) -> dict[str, Answer]:
        """Every answer given so far."""
        return self._answers

    def answer(self, name: str) -> Answer:
        """The answer of a named piece of evidence.

        Raises:
            RuleError: no such evidence, or its SQL fails.
        """
        if name not in self._answers:
            self._answers[name] = self._evaluate(name)
        return self._answers[name]

    def ask(self, expression: str | dict[str, Any]) -> tuple[Answer3, list[Citation]]:
        """Kleene's three-valued logic over names: ``{any}``, ``{all}``, ``{not}``, ``{version}``."""
        if isinstance(expression, str):
            answer = self.answer(expression)
            return answer.value, answer.citations()
        ((operator, operand),) = expression.items()
        if operator == "version":
            known = self._facts.version_in(str(operand))
            return ("unknown" if known is None else "yes" if known else "no"), self._facts.version_citations
        if operator == "not":
            value, citations = self.ask(operand)
            flipped: dict[Answer3, Answer3] = {"yes": "no", "no": "yes", "unknown": "unknown"}
            return flipped[value], citations
        parts = [self.ask(e) for e in operand]
        values = [v for v, _ in parts]
        decisive: Answer3 = "yes" if operator == "any" else "no"
        default: Answer3 = "no" if operator == "any" else "yes"
        result: Answer3 = decisive if decisive in values else "unknown" if "unknown" in values else default
        return result, [c for v, cs in parts if v == result or operator == "all" for c in cs][:MAX_CITATIONS]

    def _holds(self, table: str) -> bool:
        if table not in self._filled:
            self._filled[table] = bool(self._store.value(f'SELECT count(*) FROM (SELECT 1 FROM "{table}" LIMIT 1)'))
        return self._filled[table]

    def _evaluate(self, name: str) -> Answer:
        import duckdb

        item = self._evidence.get(name)
        if item is None:
            raise RuleError("rules", f"no evidence named {name!r}; `hicache-doctor rules check` finds such names")
        if item.needs is not None and not self._holds(item.needs):
            return Answer(name, "no" if item.known is None else "unknown", [], item.says)
        try:
            rows = self._store.rows(item.sql, seconds=SECONDS)
            if rows:
                return Answer(name, "yes", rows, item.says)
            if item.known is not None and not self._store.value(item.known):
                return Answer(name, "unknown", [], item.says)
        except duckdb.Error as e:
            first = (str(e).strip().splitlines() or ["?"])[0]
            raise RuleError(f"{item.file}:{item.line}:1", f"evidence {name!r}: {first}") from None
        return Answer(name, "no", [], item.says)
