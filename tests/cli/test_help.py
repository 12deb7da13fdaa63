"""Help costs nothing, has examples, and what isn't built yet is refused with one line."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import typer.main
from doctor import Ran, commands, one_line, process, script

from hicache_doctor import __version__
from hicache_doctor.cli import COMMANDS, LATER, app

HEAVY = {"torch", "pandas", "plotly", "duckdb", "pyarrow", "numpy", "jinja2", "yaml", "re2", "ahocorasick_rs"}
PROBE = """
import contextlib, io, json, sys
from hicache_doctor.cli import main
out = io.StringIO()
with contextlib.redirect_stdout(out):
    try:
        main(json.loads(sys.argv[1]))
    except SystemExit as e:
        code = e.code
print(json.dumps({"code": code, "modules": sorted(sys.modules), "out": out.getvalue()}))
"""


def test_every_command_is_listed_here() -> None:
    group = typer.main.get_command(app)
    found: list[tuple[str, ...]] = []
    for name in COMMANDS:
        command = group.get_command(None, name)  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found += [(name, sub) for sub in inner] if inner else [(name,)]
    assert sorted(found) == sorted(commands())


@pytest.mark.parametrize("command", [(), *commands()], ids=" ".join)
def test_help_has_examples_and_imports_nothing_heavy(command: tuple[str, ...]) -> None:
    probe = script(PROBE, json.dumps([*command, "--help"]))
    assert probe.code == 0, probe.err
    result = json.loads(probe.out)
    assert result["code"] == 0
    assert HEAVY.isdisjoint(result["modules"])
    assert "Examples:" in result["out"]
    assert " ".join(["hicache-doctor", *command]) in result["out"]
    assert max(len(line) for line in result["out"].splitlines()) < 100


def test_the_package_and_version_import_nothing_heavy() -> None:
    probe = script(PROBE, json.dumps(["--version"]))
    result = json.loads(probe.out)
    assert result["out"] == f"hicache-doctor {__version__}\n"
    assert HEAVY.isdisjoint(result["modules"])


def test_options_are_described() -> None:
    for name in COMMANDS:
        command = typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined]
        for one in getattr(command, "commands", {"": command}).values():
            for parameter in one.params:
                assert parameter.help, (name, one.name, parameter.name)


def test_no_arguments_is_help() -> None:
    ran = process()
    assert ran.code == 2 and "Commands:" in ran.out + ran.err


@pytest.mark.parametrize("name", LATER)
def test_a_command_of_a_later_version_is_refused_and_never_pretended(run: Callable[..., Ran], name: str) -> None:
    ran = run(name, "--anything")
    assert (ran.code, ran.out) == (2, "")
    assert one_line(ran.err)
    assert f"'{name}' ({LATER[name]}) is not part of this version yet" in ran.err


@pytest.mark.parametrize(
    "args", [["analyse"], ["rules", "lint"], ["kb", "find"], ["analyze"], ["analyze", "x", "--format", "sarif"],
             ["analyze", "x", "--life", "0"], ["query", "x"], ["--nothing"], ["rules", "list", "--format", "xml"]],
)  # fmt: skip
def test_a_wrong_command_line_is_exit_code_2(run: Callable[..., Ran], args: list[str]) -> None:
    ran = run(*args)
    assert (ran.code, ran.out) == (2, "")
    assert one_line(ran.err) and ran.err.rstrip().endswith("--help")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["analyse"], "No such command 'analyse'; see hicache-doctor --help"),
        (["analyze"], "see hicache-doctor analyze --help"),
        (["rules", "lint"], "No such command 'lint'"),
        (["live", "--attach", "1"], "'live' (attach to a running deployment) is not part of this version yet"),
        (["rules", "show", "Z9"], "no rule 'Z9'; `hicache-doctor rules list` shows them"),
        (["an\x1b[31m"], "No such command 'an\\x1b[31m'"),
    ],
)
def test_a_refusal_is_one_line_of_a_process_too(args: list[str], text: str) -> None:
    ran = process(*args)
    assert (ran.code, ran.out) == (2, "")
    assert one_line(ran.err) and text in ran.err
