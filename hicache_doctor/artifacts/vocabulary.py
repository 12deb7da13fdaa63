"""The vocabulary: which log lines matter, as data in ``rules/vocabulary/``.

An entry declares the literals of which one must be present (the prefilter looks for nothing else) and a pattern whose
named groups become the record's fields. A new line is a data change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from hicache_doctor.errors import RuleError
from hicache_doctor.shipped import rules_dir

Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
FILES = ("sglang.yaml", "torch.yaml", "engines.yaml")


class Entry(BaseModel):
    """One kind of line."""

    model_config = ConfigDict(extra="forbid")

    kind: str
    literals: list[str]
    pattern: str
    releases: str | None = None
    keep: Literal["all", "ends"] = "all"
    starts_life: bool = False
    ends_life: bool = False


class Proof(BaseModel):
    """A class of exceptions by what they prove about the rank that raised them."""

    model_config = ConfigDict(extra="forbid")

    proof: str
    words: list[str]


@dataclass(frozen=True, slots=True)
class Match:
    """An entry that matched, with its fields."""

    entry: Entry
    fields: dict[str, Any]


class Vocabulary:
    """All entries, ready to match single lines."""

    def __init__(self, entries: Iterable[Entry], proofs: Iterable[Proof]) -> None:
        from ahocorasick_rs import AhoCorasick

        self.entries = list(entries)
        self.proofs = list(proofs)
        self._patterns = [re.compile(e.pattern) for e in self.entries]
        self._literals: list[str] = []
        self._owner: list[int] = []
        for i, e in enumerate(self.entries):
            self._literals += e.literals
            self._owner += [i] * len(e.literals)
        self._automaton = AhoCorasick(self._literals)
        self.by_kind = {e.kind: e for e in self.entries}

    @property
    def literals(self) -> list[str]:
        """Every literal, for the prefilter."""
        return list(self._literals)

    def match(self, text: str) -> Iterator[Match]:
        """The entries that match ``text``, each once, in the order of the files."""
        hits = self._automaton.find_matches_as_indexes(text, overlapping=True)
        if not hits:
            return
        for i in sorted({self._owner[h[0]] for h in hits}):
            m = self._patterns[i].search(text)
            if m is not None:
                yield Match(self.entries[i], {k: v for k, v in m.groupdict().items() if v is not None})

    def proof_of(self, exception: str) -> str:
        """The proof class of ``"Type: message"``: ``own`` unless a class's words are in it."""
        for p in self.proofs:
            if any(w in exception for w in p.words):
                return p.proof
        return "own"


def load(folder: Path | None = None) -> Vocabulary:
    """The shipped vocabulary (or that of another rules folder).

    Raises:
        RuleError: an entry is wrong.
    """
    base = (folder or rules_dir()) / "vocabulary"
    entries = [e for name in FILES for e in _entries(base / name, Entry)]
    return Vocabulary(entries, _entries(base / "proofs.yaml", Proof))


def _entries(path: Path, model: type[Any]) -> list[Any]:
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
        return [model.model_validate(item) for item in raw or []]
    except (OSError, yaml.YAMLError, ValidationError) as e:
        raise RuleError(str(path), str(e).splitlines()[0]) from None
