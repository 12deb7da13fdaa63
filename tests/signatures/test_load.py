"""Loading rules: a mistake names file, line, column and the nearest right key; answers stay words."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_rules import NODES, RULE, SQL, write

from hicache_doctor.errors import RuleError
from hicache_doctor.signatures.load import load, parse_evidence


def refused(folder: Path, files: dict[str, str]) -> RuleError:
    with pytest.raises(RuleError) as caught:
        load([write(folder, files)])
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1
    return caught.value


def test_a_right_directory_loads_on_top_of_the_shipped_rules(tmp_path: Path) -> None:
    base = load([write(tmp_path)])
    assert base.rules["X1"].title == "An incident of our own"
    assert base.nodes["start"].ask == "mine" and base.nodes["gpu"].ask == "gpu_fault"
    assert base.files["rule:X1"] == tmp_path / "signatures/X1.yaml"
    assert base.files["rule:A1"].name == "A1.yaml"
    assert base.evidence["mine"].line == 1


def test_a_later_directory_replaces_by_id_and_name(tmp_path: Path) -> None:
    first = write(tmp_path / "a")
    second = write(tmp_path / "b", {"signatures/X1.yaml": RULE.replace("of our own", "of theirs")})
    assert load([first, second]).rules["X1"].title == "An incident of theirs"
    assert load([second, first]).rules["X1"].title == "An incident of our own"


@pytest.mark.parametrize(
    ("name", "text", "place", "what"),
    [
        ("signatures/X1.yaml", RULE + "tex: [mine]\n", "4:1", "unknown key 'tex'; did you mean 'text'?"),
        (
            "signatures/X1.yaml",
            RULE + "root_cause: 1\n",
            "4:1",
            "unknown key 'root_cause'; did you mean 'root_cause_pr'?",
        ),
        (
            "signatures/X1.yaml",
            RULE + "actions:\n  - {when: now, doo: x}\n",
            "5:17",
            "unknown key 'doo'; did you mean 'do'?",
        ),
        (
            "signatures/X1.yaml",
            RULE + "actions:\n  - when: now\n    do: x\n    comand: y\n",
            "7:5",
            "unknown key 'comand'; did you mean 'command'?",
        ),
        ("signatures/X1.yaml", RULE + "actions:\n  - {when: later, do: x}\n", "5:6", "when: Input should be"),
        ("signatures/X1.yaml", "id: X1\ntext: [mine]\n", "1:1", "the key 'title' is missing"),
        ("signatures/X1.yaml", "id: X1\ntitle: t\n", "1:1", "a signature needs `text`"),
        ("signatures/X1.yaml", RULE + "root_cause_pr: many\n", "4:1", "root_cause_pr: Input should be a valid integer"),
        (
            "path/50_mine.yaml",
            NODES + "- {node: n, verdikt: A1}\n",
            "8:13",
            "unknown key 'verdikt'; did you mean 'verdict'?",
        ),
        ("path/50_mine.yaml", NODES + "- {node: n}\n", "8:3", "a node has either `verdict` (a leaf) or `ask`"),
        ("path/50_mine.yaml", NODES + "- {node: n, ask: mine, yes: a, no: b}\n", "8:3", "a question needs `question`"),
        ("signatures/X1.yaml", "id: [X1\ntitle: t\n", "2:6", "no valid YAML: "),
        ("signatures/X1.yaml", "id: X1\n\ttitle: t\n", "2:1", "no valid YAML: "),
    ],
)
def test_a_mistake_says_where_and_what(tmp_path: Path, name: str, text: str, place: str, what: str) -> None:
    error = refused(tmp_path, {name: text})
    assert error.where.startswith(f"{tmp_path / name}:{place}")
    assert what in error.what


def test_the_place_is_that_of_the_wrong_document_of_a_list(tmp_path: Path) -> None:
    same = "- {node: a, verdict: X1}\n"
    error = refused(tmp_path, {"path/50_mine.yaml": NODES + same + same + "- node: b\n  verdict: X1\n  becaus: y\n"})
    assert error.where == f"{tmp_path / 'path/50_mine.yaml'}:12:3"
    assert error.what == "unknown key 'becaus'; did you mean 'because'?"


def test_answers_are_words_and_only_true_is_a_boolean(tmp_path: Path) -> None:
    rule = RULE.replace("id: X1", "id: no").replace("An incident of our own", "yes")
    nodes = NODES.replace("yes: X1", "yes: no").replace(
        "{node: X1, verdict: X1}", "{node: no, verdict: no, because: on}"
    )
    base = load([write(tmp_path, {"signatures/X1.yaml": rule, "path/50_mine.yaml": nodes})])
    assert base.nodes["start"].yes == "no" and base.nodes["no"].verdict == "no"
    assert base.nodes["no"].because == "on"
    assert base.rules["no"].title == "yes"
    error = refused(tmp_path, {"signatures/X1.yaml": RULE.replace("An incident of our own", "true")})
    assert error.what.startswith("title: Input should be a valid string")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "signatures/X1.yaml").write_bytes(b"id: \xff\xfe\n")
    with pytest.raises(RuleError, match=r"X1\.yaml: cannot be read"):
        load([tmp_path])
    with pytest.raises(RuleError, match="no such directory of rules"):
        load([tmp_path / "none"])


def test_an_empty_file_and_a_scalar(tmp_path: Path) -> None:
    assert "X1" not in load([write(tmp_path, {"signatures/X1.yaml": "# nothing yet\n"})]).rules
    refused(tmp_path, {"signatures/X1.yaml": "only words\n"})


def test_code_in_yaml_is_never_run(tmp_path: Path) -> None:
    error = refused(tmp_path, {"signatures/X1.yaml": "id: !!python/object/apply:os.system ['touch /tmp/x']\n"})
    assert "could not determine a constructor" in error.what


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("-- says: x\nSELECT 1", "1:1", "a header before"),
        ("-- evidence: a\nSELECT 1", "1:1", "evidence 'a' needs `-- says:` and a statement"),
        (SQL + "-- evidence: b\n-- says: x\n", "4:1", "evidence 'b' needs"),
    ],
)
def test_a_wrong_sql_file(tmp_path: Path, text: str, place: str, what: str) -> None:
    error = refused(tmp_path, {"evidence/mine.sql": text})
    assert error.where == f"{tmp_path / 'evidence/mine.sql'}:{place}"
    assert what in error.what


def test_the_views_of_one_file(tmp_path: Path) -> None:
    file = tmp_path / "x.sql"
    file.write_text(
        "-- A comment.\n\n-- evidence: one\n-- says: first\nSELECT 1;\n\n"
        "-- evidence: two\n-- says: second\n-- known: SELECT true\n-- a comment inside\nSELECT 2\nWHERE true\n"
    )
    one, two = parse_evidence(file)
    assert (one.name, one.says, one.sql, one.known, one.line) == ("one", "first", "SELECT 1", None, 3)
    assert (two.sql, two.known, two.line) == ("SELECT 2\nWHERE true", "SELECT true", 7)


def test_what_a_view_needs_is_said_for_one_or_for_the_file(tmp_path: Path) -> None:
    file = tmp_path / "x.sql"
    file.write_text(
        "-- needs: event\n-- evidence: one\n-- says: first\nSELECT 1\n"
        "-- evidence: two\n-- says: second\n-- needs: batch\nSELECT 2\n"
    )
    assert [e.needs for e in parse_evidence(file)] == ["event", "batch"]
