"""The JSON contract."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from report_verdicts import VERDICTS

from hicache_doctor.report.json_form import SCHEMA_FILE, render_json, schema_text, write_schema
from hicache_doctor.shipped import rules_dir
from hicache_doctor.signatures.verdict import Verdict

SCHEMA = json.loads(schema_text())


def test_the_shipped_schema_is_that_of_the_model(tmp_path: Path) -> None:
    shipped = rules_dir() / SCHEMA_FILE
    again = "python -c \"from hicache_doctor.report.json_form import *; write_schema(Path('rules'))\""
    assert json.loads(shipped.read_text(encoding="utf-8")) == SCHEMA, f"stale; run: {again}"
    assert write_schema(tmp_path).read_text(encoding="utf-8") == schema_text()
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_is_valid_deterministic_and_comes_back(name: str) -> None:
    text = render_json(VERDICTS[name]())
    assert text == render_json(VERDICTS[name]())
    document = json.loads(text)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    if name != "hostile":  # its NaN comes back as null
        assert Verdict.model_validate(document) == VERDICTS[name]()


def test_nothing_unseen_is_raw_and_nothing_is_lost() -> None:
    v = VERDICTS["hostile"]()
    v.title = "\U000e0041" + v.title
    text = render_json(v)
    text.encode("utf-8")
    assert not [c for c in text if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202e\u2028")]
    assert json.loads(text)["title"] == v.title
    assert json.loads(text)["settings"]["pp_size"] is None


def test_mappings_are_sorted_and_fields_are_not() -> None:
    v = VERDICTS["certain_a1"]()
    v.settings = {"b": {2, 1}, "a": (Path("x"), 1.5, float("inf"), True)}
    document = json.loads(render_json(v))
    assert list(document)[:4] == ["schema_version", "status", "signature", "form"]
    assert document["settings"] == {"a": ["x", 1.5, None, True], "b": [1, 2]}
    assert list(document["settings"]) == ["a", "b"]
