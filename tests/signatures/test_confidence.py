"""Certain, likely, possible: the rule of the design, by construction."""

from __future__ import annotations

from typing import Any

import pytest
from small_incident import ANSWERS, empty, facts

from hicache_doctor.knowledge.versions import VersionRange
from hicache_doctor.signatures.candidates import Candidates
from hicache_doctor.signatures.load import RuleBase
from hicache_doctor.signatures.match import Evaluator
from hicache_doctor.signatures.model import Rule

IN, OUT, UNKNOWN, STRADDLING = "0.5.12", "0.5.14", None, VersionRange.of("0.5.12", "0.5.14")
PHRASES = {
    "excluded_version": "needs {spec}, yours is {version}", "excluded_by": "{claim}",
    "excluded_config": "absent: {name}", "excluded_text": "no sign: {name}", "also_because": "also {claim}",
}  # fmt: skip


def rule(rule_id: str = "X1", **given: Any) -> Rule:
    return Rule.model_validate({"id": rule_id, "title": "t", "text": ["yes"], **given})


def level(of: Rule, version: Any = UNKNOWN) -> tuple[str, str]:
    with empty() as store:
        known = facts(version)
        found = Candidates(RuleBase(evidence=ANSWERS), Evaluator(store, ANSWERS, known), known).confidence(of)
    return found[0], found[1]


@pytest.mark.parametrize(
    ("config", "version", "expected"),
    [
        (["yes"], IN, ("certain", "certain")),
        (["yes"], UNKNOWN, ("likely", "likely_config")),
        (["yes"], STRADDLING, ("likely", "likely_config")),
        (["yes", "unknown"], IN, ("likely", "likely_version")),
        (["no"], IN, ("likely", "likely_version")),
        (["unknown"], UNKNOWN, ("possible", "possible")),
        (["unknown"], STRADDLING, ("possible", "possible")),
        ([], UNKNOWN, ("possible", "possible")),
        ([], IN, ("certain", "certain")),
    ],
)
def test_text_release_and_configuration(config: list[str], version: Any, expected: tuple[str, str]) -> None:
    assert level(rule(config=config, versions="<0.5.13"), version) == expected


def test_an_observed_divergence_is_certain_unless_the_release_forbids_it() -> None:
    seen = rule(config=["yes"], observed=["no", "yes"], versions="<0.5.13")
    assert level(seen, UNKNOWN) == ("certain", "certain_observed")
    assert level(seen, OUT)[0] != "certain"
    assert level(rule(config=["unknown"], observed=["yes"], versions="<0.5.13"))[0] == "possible"


def test_the_first_difference_of_the_streams_is_certain_whatever_is_left_unsaid() -> None:
    seen = rule(config=["yes", "unknown"], parted=["no", "yes"], versions="<0.5.13")
    assert level(seen, UNKNOWN) == level(seen, IN) == ("certain", "certain_observed")
    assert level(seen, OUT)[0] != "certain"
    assert level(rule(config=["no"], parted=["yes"]))[0] == "possible"
    assert level(rule("A", form="A", parted=["yes"])) == ("certain", "certain_observed")


def test_without_a_bound_or_a_variant_nothing_is_certain_by_text() -> None:
    assert level(rule(config=["yes"]), IN) == ("likely", "likely_no_bound")
    assert level(rule(config=["unknown"]), IN) == ("possible", "possible")
    assert level(rule("A", form="A", config=["yes"]), IN) == ("likely", "likely_form")
    assert level(rule("A", form="A"), IN) == ("possible", "possible")
    assert level(rule("x", kind="other_cause"), IN) == ("likely", "likely_no_bound")


def candidates(rules: list[Rule], version: Any, ask: Any) -> Any:
    base = RuleBase(evidence=ANSWERS, phrases=PHRASES, rules={r.id: r for r in rules})
    with empty() as store:
        known = facts(version)
        return ask(Candidates(base, Evaluator(store, ANSWERS, known), known))


def test_each_excluded_rule_names_the_datum_that_rules_it_out() -> None:
    chosen = rule("A1", form="A", look_alikes=["Y", "W"])
    rules = [
        chosen,
        rule("A2", form="A", versions="<0.5.13"),
        rule("A3", form="A", excludes=["no", "yes"]),
        rule("A4", form="A", config=["yes", "no"]),
        rule("A5", form="A", text=["no"]),
        rule("A6", form="A"),
        rule("Y", excludes=["yes"]),
        rule("Z", excludes=["yes"]),
    ]
    out = {e.signature: e for e in candidates(rules, OUT, lambda c: c.excluded(chosen))}
    assert list(out) == ["Y", "A2", "A3", "A4", "A5"]
    assert out["A2"].because == "needs <0.5.13, yours is 0.5.14"
    assert (out["A3"].because, out["A3"].citations[0].line) == ("yes of PP0", 7)
    assert out["A4"].because == "absent: no"
    assert out["A5"].because == "no sign: no"


def test_beside_a_signature_stand_only_independent_ones_that_are_likely() -> None:
    chosen = rule("A1", form="A", look_alikes=["Y"])
    rules = [
        chosen,
        rule("A2", form="A", config=["yes"]),
        rule("D", config=["yes"]),
        rule("G", config=["unknown"]),
        rule("H", config=["yes"], status="test"),
        rule("L", config=["yes"], excludes=["yes"]),
        rule("Y", config=["yes"]),
    ]
    also = candidates(rules, IN, lambda c: c.also(chosen))
    assert [(a.signature, a.confidence, a.because) for a in also] == [("D", "likely", "also yes of PP0")]
    undetermined = rule("undetermined", kind="undetermined")
    every = candidates(rules, IN, lambda c: c.also(undetermined))
    assert [a.signature for a in every] == ["A1", "A2", "D", "G", "Y"]
