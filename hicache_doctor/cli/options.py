"""What the command groups share: the form of an answer, the examples below a help text."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer


class Format(str, Enum):
    """How an answer is written."""

    terminal = "terminal"
    json = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="terminal or json.")]


def group(name: str, about: str) -> typer.Typer:
    """A group of commands: plain help (rich costs start-up time), and our own one-line errors."""
    return typer.Typer(
        name=name,
        help=about,
        no_args_is_help=True,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
    )


def examples(*lines: str) -> str:
    """An epilog of runnable lines; the leading mark keeps the help from joining them."""
    return "\b\nExamples:\n" + "\n".join(f"  hicache-doctor {line}" for line in lines)
