"""The README can't rot: every command is in it, and what it shows can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from hicache_doctor.cli import COMMANDS, LATER, app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [p for p in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if p.is_file()]

pytestmark = pytest.mark.skipif(not (ROOT / "README.md").is_file(), reason="there is no README.md yet")


def command_of(*path: str) -> Any:
    command: Any = typer.main.get_command(app)
    for name in path:
        command = command.get_command(None, name)
    return command


def invocations(page: Path) -> Iterator[list[str]]:
    """The arguments of each `$ hicache-doctor …` in the console blocks of a page, behind a pipe too."""
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M):
        for line in re.findall(r"^\$ (.*)$", block.replace("\\\n", " "), re.M):
            for part in re.split(r"\s(?:\||&&|;)\s", line):
                words = shlex.split(part, comments=True)
                if words and words[0] == "hicache-doctor":
                    yield words[1:]


def test_every_command_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        inner = getattr(command_of(name), "commands", {"": None})
        for sub in inner:
            assert re.search(rf"\b{re.escape(f'{name} {sub}'.strip())}\b", text), f"{name} {sub}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_what_is_shown_can_be_typed(page: Path) -> None:
    for args in invocations(page):
        name, rest = args[0], args[1:]
        assert name not in LATER, f"{page.name} shows {name}, which is not part of this version"
        assert name in COMMANDS or name.startswith("--"), args
        command = command_of(name)
        if hasattr(command, "commands"):
            name, rest = rest[0], rest[1:]
            command = command.commands[name]
        with command.make_context(name, list(rest), resilient_parsing=True) as context:
            command.make_parser(context).parse_args(list(rest))  # an option that doesn't exist raises


def test_the_readme_shows_something() -> None:
    assert len(list(invocations(ROOT / "README.md"))) >= 5


def test_options_named_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    known = {
        o for c in (("analyze",), ("runtime", "run"), ("reproduce",)) for p in command_of(*c).params for o in p.opts
    }
    for option in re.findall(r"`(--[a-z-]+)", text):
        assert option in known | {"--help", "--version"}, option


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
