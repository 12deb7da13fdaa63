"""Every rule against the evidence: how sure the chosen one is, what the others lack, what stands beside it."""

from __future__ import annotations

from typing import Any

from hicache_doctor.signatures.facts import Facts
from hicache_doctor.signatures.load import RuleBase
from hicache_doctor.signatures.match import Evaluator, fill
from hicache_doctor.signatures.model import Rule
from hicache_doctor.signatures.verdict import Also, Citation, Confidence, Excluded


class Candidates:
    """The rules of a base, evaluated over one incident."""

    def __init__(self, base: RuleBase, evaluator: Evaluator, facts: Facts) -> None:
        self._base = base
        self._evaluator = evaluator
        self._facts = facts

    def confidence(self, rule: Rule) -> tuple[Confidence, str, dict[str, Any]]:
        """The level, the phrase that says why, and the phrase's fields."""
        observed = [a for name in rule.observed if (a := self._evaluator.answer(name)).value == "yes"]
        parted = [a for name in rule.parted if (a := self._evaluator.answer(name)).value == "yes"]
        unshown = [name for name in rule.config if self._evaluator.answer(name).value != "yes"]
        config = not unshown
        version = self._facts.version_in(rule.versions) if rule.versions else None
        if observed and version is not False and config:
            return "certain", "certain_observed", {"observed": observed[0].claim()}
        if parted and version is not False and all(self._evaluator.answer(n).value != "no" for n in rule.config):
            return "certain", "certain_observed", {"observed": parted[0].claim()}
        if rule.versions is None and rule.kind == "signature" and len(rule.id) > 1:
            return ("likely", "likely_no_bound", {}) if config else ("possible", "possible", {})
        if len(rule.id) == 1 and rule.form is not None:
            return ("likely", "likely_form", {}) if config and rule.config else ("possible", "possible", {})
        if rule.kind == "other_cause":
            return "likely", "likely_no_bound", {}
        if config and version:
            return "certain", "certain", {}
        if version:
            return "likely", "likely_version", {"unshown": ", ".join(unshown).replace("_", " ")}
        if config and rule.config:
            return "likely", "likely_config", {}
        return "possible", "possible", {}

    def excluded(self, chosen: Rule) -> list[Excluded]:
        """Look-alikes and siblings of the chosen rule, each with the datum that rules it out."""
        siblings = [r.id for r in self._base.rules.values() if chosen.form and r.form == chosen.form and len(r.id) > 1]
        if chosen.kind == "undetermined":
            siblings = [r.id for r in self._base.rules.values() if r.kind == "signature" and self._text(r)]
        out = []
        for rule_id in dict.fromkeys([*chosen.look_alikes, *siblings]):
            rule = self._base.rules.get(rule_id)
            if rule is None or rule.id == chosen.id:
                continue
            reason = self._reason(rule)
            if reason is not None:
                out.append(Excluded(signature=rule.id, because=reason[0], citations=reason[1]))
        return out

    def also(self, chosen: Rule) -> list[Also]:
        """Other signatures whose own text is there and which nothing excludes: beside a signature the independent
        ones, for an undetermined verdict every one that remains possible."""
        out = []
        for rule in self._base.rules.values():
            if (
                rule.kind != "signature"
                or rule.id == chosen.id
                or rule.status != "stable"
                or (len(rule.id) == 1 and rule.form)
            ):
                continue
            if chosen.kind == "signature" and (rule.form is not None or rule.id in chosen.look_alikes):
                continue
            text = self._text(rule)
            if text is None or self._reason(rule) is not None:
                continue
            level, _, _ = self.confidence(rule)
            if chosen.kind == "signature" and level == "possible":
                continue
            claim, citations = text
            because = fill(self._base.phrases["also_because"], {"claim": claim})
            out.append(Also(signature=rule.id, confidence=level, because=because, citations=citations))
        return out

    def evaluated(self) -> list[dict[str, Any]]:
        """Every rule with its outcome and the answers behind it, for ``--explain``."""
        out = []
        for rule in self._base.rules.values():
            names = dict.fromkeys([*rule.text, *rule.config, *rule.observed, *rule.parted, *rule.excludes])
            answers = {name: self._evaluator.answer(name).value for name in names}
            text = any(answers[n] == "yes" for n in rule.text)
            outcome = "no text" if not text else "excluded" if self._reason(rule) is not None else "possible"
            out.append({"id": rule.id, "title": rule.title, "outcome": outcome, "evidence": answers})
        return out

    def _text(self, rule: Rule) -> tuple[str, list[Citation]] | None:
        for name in rule.text:
            answer = self._evaluator.answer(name)
            if answer.value == "yes":
                return answer.claim(), answer.citations(2)
        return None

    def _reason(self, rule: Rule) -> tuple[str, list[Citation]] | None:
        """Why a rule is out, by the first datum that says so; None when nothing does."""
        phrases = self._base.phrases
        if rule.versions and self._facts.version_in(rule.versions) is False:
            values = {"spec": rule.versions, "version": self._facts.version_text}
            return fill(phrases["excluded_version"], values), self._facts.version_citations[:1]
        for name in rule.excludes:
            answer = self._evaluator.answer(name)
            if answer.value == "yes":
                return fill(phrases["excluded_by"], {"claim": answer.claim()}), answer.citations(1)
        for name in rule.config:
            if self._evaluator.answer(name).value == "no":
                return fill(phrases["excluded_config"], {"name": name.replace("_", " ")}), []
        if rule.text and all(self._evaluator.answer(n).value == "no" for n in rule.text):
            return fill(phrases["excluded_text"], {"name": rule.text[0].replace("_", " ")}), []
        return None
