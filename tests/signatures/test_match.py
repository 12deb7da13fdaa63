"""Answers and their logic: three values, evaluated once, and templates that run nothing."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_incident import ANSWERS, empty, facts

from hicache_doctor.errors import RuleError
from hicache_doctor.knowledge.versions import VersionRange
from hicache_doctor.signatures.match import Answer, Evaluator, citation, fill, stamp

VALUES = ("yes", "no", "unknown")
ORDER = {"no": 0, "unknown": 1, "yes": 2}


def asked(expression: Any, version: Any = None) -> str:
    with empty() as store:
        return Evaluator(store, ANSWERS, facts(version)).ask(expression)[0]


@pytest.mark.parametrize("name", ["yes", "no", "unknown"])
def test_a_name_answers_by_its_rows(name: str) -> None:
    assert asked(name) == name


def test_rows_are_a_yes_and_none_a_no_when_it_could_have_been_seen() -> None:
    assert asked("known") == "no"
    assert asked("yes_though_unseen") == "yes"


@pytest.mark.parametrize(("a", "b"), list(product(VALUES, VALUES)))
def test_any_is_the_greatest_and_all_the_least(a: str, b: str) -> None:
    assert asked({"any": [a, b]}) == max(a, b, key=ORDER.__getitem__)
    assert asked({"all": [a, b]}) == min(a, b, key=ORDER.__getitem__)
    both = {"all": [a, b]}
    assert asked({"not": both}) == asked({"any": [{"not": a}, {"not": b}]})


@pytest.mark.parametrize(("value", "flipped"), [("yes", "no"), ("no", "yes"), ("unknown", "unknown")])
def test_not(value: str, flipped: str) -> None:
    assert asked({"not": value}) == flipped
    assert asked({"not": {"not": value}}) == value


def test_nothing_at_all() -> None:
    assert asked({"any": []}) == "no"
    assert asked({"all": []}) == "yes"


@pytest.mark.parametrize(
    ("version", "spec", "answer"),
    [
        ("0.5.12", "<0.5.13", "yes"),
        ("0.5.13", "<0.5.13", "no"),
        (None, "<0.5.13", "unknown"),
        ("latest", "<0.5.13", "unknown"),
        (VersionRange.of("0.5.12", "0.5.14"), "<0.5.13", "unknown"),
        (VersionRange.of("0.5.13", "0.5.14"), "<0.5.13", "no"),
        (VersionRange.of(None, "0.5.12"), "<0.5.13", "yes"),
        ("0.5.14", ">=0.5.13,<0.5.15", "yes"),
        ("0.5.14+vendor.3", ">=0.5.13,<0.5.15", "unknown"),  # anything may have been backported
    ],
)
def test_version(version: Any, spec: str, answer: str) -> None:
    assert asked({"version": spec}, version) == answer
    assert asked({"all": ["yes", {"version": spec}]}, version) == answer


def test_citations_are_those_that_decided() -> None:
    with empty() as store:
        evaluator = Evaluator(store, ANSWERS, facts())
        assert [c.line for c in evaluator.ask({"any": ["no", "yes", "unknown"]})[1]] == [7]
        assert [c.line for c in evaluator.ask({"all": ["yes", "yes"]})[1]] == [7, 7]
        assert evaluator.ask({"any": ["no", "unknown"]})[1] == []


def test_every_name_is_evaluated_once() -> None:
    with empty() as store:
        evaluator = Evaluator(store, ANSWERS, facts())
        first = evaluator.answer("yes")
        assert evaluator.answer("yes") is first
        evaluator.ask({"all": ["yes", "no"]})
        assert set(evaluator.asked) == {"yes", "no"}


def test_a_wrong_name_and_wrong_sql_are_rule_errors() -> None:
    with empty() as store:
        evaluator = Evaluator(store, ANSWERS, facts())
        with pytest.raises(RuleError, match="no evidence named 'nothing'"):
            evaluator.answer("nothing")
        with pytest.raises(RuleError, match=r"^e\.sql:6:1: evidence 'broken': Catalog Error") as caught:
            evaluator.answer("broken")
        assert "\n" not in str(caught.value)


def test_a_claim_is_filled_from_the_first_row_and_the_number_of_rows() -> None:
    rows = [{"rank": "PP1", "x": 2.5}, {"rank": "PP0", "x": 1}]
    assert Answer("e", "yes", rows, "{n} rows, first {rank} with {x:.1f}").claim() == "2 rows, first PP1 with 2.5"
    assert Answer("e", "no", [], "{n} rows, first {rank}").claim() == "0 rows, first a rank"


class Secret:
    token = "hunter2"

    def __getitem__(self, key: str) -> str:
        return self.token

    def __str__(self) -> str:
        return "shown"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{a}", "shown"),
        ("{a.token}", "?"),
        ("{a.__class__.__mro__}", "?"),
        ("{a[token]}", "?"),
        ("{missing}", "?"),
        ("{none}", "?"),
        ("{}", "?"),
        ("{0}", "?"),
        ("{{a}}", "{a}"),
        ("{number:.2f}", "1.50"),
        ("{a:.2f}", "shown"),
        ("{missing:.2f}", "?"),
        ("{number:d}", "1.5"),
        ("{word:>6}", "   x y"),
    ],
)
def test_templates_name_fields_and_reach_nothing_else(template: str, text: str) -> None:
    assert fill(template, {"a": Secret(), "none": None, "number": 1.5, "word": "x y"}) == text


@pytest.mark.parametrize("value", ["{n}", "{a.token}", "{0}", "{", "}", "{{", "%s%n", "\x1b[31m", "${x}", "a{b!r:>9}"])
def test_values_are_never_read_as_templates(value: str) -> None:
    assert fill("[{x}]", {"x": value, "n": 3, "a": Secret()}) == f"[{value}]"


@given(st.dictionaries(st.sampled_from(["a", "b", "n"]), st.one_of(st.none(), st.text(), st.floats(), st.integers())))
def test_no_value_makes_a_template_fail(values: dict[str, Any]) -> None:
    fill("{a} of {b:.1f}, {n:d} {n!r:>4}", values)


def test_a_citation_needs_an_artifact_and_clips_its_quote() -> None:
    assert citation({"artifact": None, "line": 3}) is None
    cited = citation({"artifact": "a", "line": 3, "quote": "x" * 1000, "ts": 0.5})
    assert cited is not None
    assert (cited.line, cited.line_end, cited.time, len(cited.quote or "")) == (3, 3, "1970-01-01T00:00:00.500", 400)


def test_a_citation_takes_whatever_types_a_rules_sql_returns() -> None:
    cited = citation({"artifact": 3, "line": Decimal(3), "rank": 1, "quote": 2.5, "ts": Decimal("0.0"), "record": "x"})
    assert cited is not None
    assert (cited.artifact, cited.line, cited.rank, cited.quote, cited.record) == ("3", 3, "1", "2.5", None)
    assert cited.time == "1970-01-01T00:00:00"


@pytest.mark.parametrize("ts", [None, "now", float("nan"), float("inf"), 1e300, -1e300])
def test_a_time_that_is_none(ts: Any) -> None:
    assert stamp(ts) is None


def test_evidence_that_needs_rows_is_not_even_asked_without_them() -> None:
    broken = replace(ANSWERS["broken"], needs="event")
    unseen = replace(broken, name="unseen", known="SELECT broken")
    with empty() as store:
        asking = Evaluator(store, {"broken": broken, "unseen": unseen}, facts())
        assert (asking.answer("broken").value, asking.answer("unseen").value) == ("no", "unknown")
