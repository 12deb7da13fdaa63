"""The ``kb`` commands: data on stdout, talk on stderr, one clear line for what is unknown."""

from __future__ import annotations

import io
import json
import re

import pytest
from typer.testing import CliRunner, Result

from hicache_doctor.cli import kb
from hicache_doctor.errors import UsageError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(kb.app, list(arguments))


def data(*arguments: str) -> dict[str, object]:
    result = run(*arguments, "--format", "json")
    assert result.exit_code == 0
    document: dict[str, object] = json.loads(result.stdout)
    assert document["schema_version"] == 1
    assert document["knowledge_as_of"] == "2026-11-30"
    return document


def test_fixed_in_marks_what_the_release_brought() -> None:
    result = run("fixed-in", "0.5.16")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert any(line.startswith("+\t#29405\tmerged\t0.5.16\tA9\t") for line in lines)
    assert any(line.startswith(" \t#29258\tmerged\t0.5.15\t") for line in lines)
    assert not any("#27010" in line or "#31425" in line for line in lines)
    assert "knowledge as of 2026-11-30" in result.stderr


def test_missing_in() -> None:
    result = run("missing-in", "lmsysorg/sglang:v0.5.16-cu129")
    assert "#27010" in result.stdout and "#29258" not in result.stdout


def test_a_development_build_says_what_cannot_be_told() -> None:
    result = run("missing-in", "0.5.12.post2.dev908+g2c8357f79")
    assert "#27285" not in result.stdout
    assert "cannot be told" in result.stderr and "#27285" in result.stderr
    document = data("missing-in", "0.5.12.post2.dev908+g2c8357f79")
    assert document["version"] == {
        "given": "0.5.12.post2.dev908+g2c8357f79", "number": "0.5.12.post2.dev908", "kind": "development",
    }  # fmt: skip
    assert 27285 in [row["number"] for row in document["unknown"]]  # type: ignore[attr-defined]


def test_json_of_fixed_in() -> None:
    rows = {row["number"]: row for row in data("fixed-in", "0.5.14", "--tree", "HiRadixCache")["fixes"]}  # type: ignore[attr-defined]
    assert rows[26923]["first_here"] is True
    assert rows[27285]["first_release_by_part"] == {
        "HiMambaRadixCache": None, "HiRadixCache": "0.5.13", "UnifiedRadixCache": "0.5.13",
    }  # fmt: skip


def test_list_filters() -> None:
    lines = run("list", "--signature", "A2", "--state", "merged").stdout.splitlines()
    assert [line.split("\t")[1] for line in lines] == ["#29258"]
    assert len(data("list")["pull_requests"]) > 100  # type: ignore[arg-type]


def test_show() -> None:
    text = run("show", "27010").stdout
    assert "first release:  0.5.19" in text and "https://github.com/sgl-project/sglang/pull/27010" in text
    record = data("show", "28902")["pull_request"]
    assert record["releases_affected"] == ["0.5.13", "0.5.13.post1", "0.5.14"]  # type: ignore[index]
    assert run("show", "bytedance-iaas#670").stdout.startswith("bytedance-iaas#670")
    assert "first release:  none" in run("show", "31425").stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["show", "1"], "'1' is no pull request or issue in the knowledge"),
        (["show", "what"], "'what' is no pull request"),
        (["fixed-in", "latest"], "'latest' is no version that can be placed (names no release)"),
        (["missing-in", "0.5.24.dev0"], "does not say where it stands"),
        (["fixed-in", "0.5.22", "--tree", "HiRadixCache"], "0.5.22 ships no HiRadixCache; it has UnifiedRadixCache"),
    ],
)
def test_what_is_unknown_is_one_clear_line(arguments: list[str], text: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == 2
    assert text in str(result.exception) and "\n" not in str(result.exception)
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [["list", "--state", "lost"], ["fixed-in"], ["list", "--format", "xml"]])
def test_a_wrong_command_line_is_exit_code_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize("command", ["list", "show", "fixed-in", "missing-in"])
def test_help_has_examples(command: str) -> None:
    assert f"hicache-doctor kb {command}" in run(command, "--help").stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_a_terminal_is_never_overrun(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    screen = Terminal()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout", screen)
    kb.list_()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= columns
    assert "\x1b[3" not in screen.getvalue()
    assert sum("#27010 " in line for line in lines) == 1
