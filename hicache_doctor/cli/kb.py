"""``hicache-doctor kb``: look things up in the shipped knowledge of pull requests and releases."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from dataclasses import asdict
from enum import Enum
from typing import Annotated, Any

import typer

from hicache_doctor.cli.options import Format, FormatOption, examples, group
from hicache_doctor.errors import UsageError
from hicache_doctor.knowledge.prs import (
    PullRequest,
    affects,
    fixes_in,
    knowledge_as_of,
    lookup,
    missing_in,
    select,
    undecided_in,
)
from hicache_doctor.knowledge.releases import contains_fix, releases, tree_classes
from hicache_doctor.knowledge.versions import Version, parse_version

SCHEMA_VERSION = 1
NARROW = 72
"""Below this many columns a table's titles would be cut to a few letters, so a row takes two lines instead."""

app = group("kb", "Pull requests, releases, and which fix is in which release.")


class StateOption(str, Enum):
    """What became of a pull request or issue."""

    merged = "merged"
    open = "open"
    closed = "closed"
    closed_unmerged = "closed_unmerged"


class TreeClass(str, Enum):
    """SGLang's tree classes with HiCache."""

    hiradix = "HiRadixCache"
    himamba = "HiMambaRadixCache"
    unified = "UnifiedRadixCache"


VersionArgument = Annotated[str, typer.Argument(help="A release, a build's version or an image tag.")]
TreeOption = Annotated[TreeClass | None, typer.Option("--tree", help="Answer for one tree class.")]
ChangesOption = Annotated[bool, typer.Option("--changes", help="Also features, defaults and performance work.")]


@app.command(
    "list",
    epilog=examples("kb list --state merged", "kb list --signature A2", "kb list --signature C --format json"),
)
def list_(
    state: Annotated[StateOption | None, typer.Option(help="Only records in this state.")] = None,
    signature: Annotated[str | None, typer.Option(help="Only this signature; a bare letter is the whole form.")] = None,
    format: FormatOption = Format.terminal,
) -> None:
    """List pull requests and issues."""
    found = select(state.value if state else None, signature)
    if format is Format.json:
        _print_json({"pull_requests": [_brief(record) for record in found]})
        return
    _print_records(found)
    _note(f"{len(found)} records, knowledge as of {knowledge_as_of()}")


@app.command(epilog=examples("kb show 27010", "kb show bytedance-iaas#670", "kb show 28902 --format json"))
def show(
    pr: Annotated[str, typer.Argument(metavar="PR", help="A number (SGLang's own) or owner#number.")],
    format: FormatOption = Format.terminal,
) -> None:
    """Show one pull request or issue."""
    record = lookup(pr)
    if record is None:
        raise UsageError(f"{pr!r} is no pull request or issue in the knowledge; `hicache-doctor kb list` shows them")
    if format is Format.json:
        _print_json({"pull_request": _full(record)})
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100_000
    for name, value in _card(record):
        text = f"{name + ':':<16}{value}" if name else value
        hanging = " " * 16 if name else "  "
        fill = textwrap.TextWrapper(
            max(width, 30), subsequent_indent=hanging, break_on_hyphens=False, break_long_words=False
        )
        _line(fill.fill(text))


@app.command("fixed-in", epilog=examples("kb fixed-in 0.5.16", "kb fixed-in lmsysorg/sglang:v0.5.12-cu129"))
def fixed_in(
    version: VersionArgument,
    tree: TreeOption = None,
    changes: ChangesOption = False,
    format: FormatOption = Format.terminal,
) -> None:
    """List the fixes that a version has; + marks what it brought first."""
    _answer(_known(version), "fixes", tree, changes, format)


@app.command("missing-in", epilog=examples("kb missing-in 0.5.16", "kb missing-in 0.5.13 --tree HiRadixCache"))
def missing_in_(
    version: VersionArgument,
    tree: TreeOption = None,
    changes: ChangesOption = False,
    format: FormatOption = Format.terminal,
) -> None:
    """List the merged fixes that a version lacks."""
    _answer(_known(version), "missing", tree, changes, format)


def _answer(where: Version, key: str, tree: TreeClass | None, changes: bool, format: Format) -> None:
    """Print the fixes that a version has (``key`` fixes) or lacks (``missing``), and those that cannot be told."""
    name = tree.value if tree else None
    if name and name not in tree_classes(where):
        raise UsageError(
            f"{where.number} ships no {name}; it has {', '.join(tree_classes(where)) or 'none that is known'}"
        )
    fixes = (fixes_in if key == "fixes" else missing_in)(where, name, changes=changes)
    unknown = undecided_in(where, name, changes=changes)
    if format is Format.json:
        rows = [{**_brief(fix.pr), "first_here": fix.first_here} for fix in fixes]
        version = {"given": where.text, "number": where.number, "kind": where.kind}
        unsure = [_brief(fix.pr) for fix in unknown]
        _print_json({"version": version, "tree_class": name, key: rows, "unknown": unsure})
        return
    _print_records([fix.pr for fix in fixes], {fix.pr.id for fix in fixes if fix.first_here}, name)
    said = "it has" if key == "fixes" else "it lacks"
    _note(f"{where.number} ({where.kind}): {len(fixes)} fixes that {said}, knowledge as of {knowledge_as_of()}")
    if unknown:
        numbers = ", ".join(f"#{fix.pr.number}" for fix in unknown)
        _note(f"cannot be told from the version: {numbers}; a scan of the installed tree decides")
    if where.pep440 and where.pep440 > releases()[-1].number:
        _note(f"newer than the newest release in the knowledge ({releases()[-1].version})")


def _known(text: str) -> Version:
    """The version that a person wrote.

    Raises:
        UsageError: it names no release, so there is nothing to answer.
    """
    version = parse_version(text)
    if not version.known or (version.kind == "development" and not version.commits):
        because = version.because or "a .dev0 build does not say where it stands"
        raise UsageError(f"{text!r} is no version that can be placed ({because}); write for example 0.5.16")
    return version


def _brief(record: PullRequest) -> dict[str, Any]:
    """The fields of a list row."""
    return {
        "id": record.id,
        "number": record.number,
        "repo": record.repo,
        "kind": record.kind,
        "role": record.role,
        "state": record.state,
        "first_release": record.first_release,
        "first_release_by_part": dict(record.first_release_by_part),
        "signatures": list(record.signatures),
        "title": record.title,
        "url": record.url,
    }


def _full(record: PullRequest) -> dict[str, Any]:
    """Every field, and in which known releases the code and the fault are."""
    names = [release.version for release in releases()]
    carried = [name for name in names if contains_fix(name, record.id) is True]
    faulty = [name for name in names if affects(name, record.id) is True]
    return {**asdict(record), "releases_with_it": carried, "releases_affected": faulty}


def _card(record: PullRequest) -> list[tuple[str, str]]:
    between = record.first_release_between or {}
    parts = record.first_release_by_part
    first = record.first_release or (f"after {between['after']}, by {between['by']}" if between else "none")
    when = record.merged_or_closed or " to ".join(day or "?" for day in record.merged_or_closed_between or ())
    rows = [
        ("", f"{_reference(record.id)}  {record.title}{'' if record.title_exact else '  (title approximate)'}"),
        ("state", f"{record.state}{' ' + when if when else ''} ({record.kind} of {record.repo})"),
        ("opened", record.opened or ""),
        ("first release", first if record.kind == "pr" else ""),
        ("by class", ", ".join(f"{name} {at or 'never'}" for name, at in sorted(parts.items()))),
        ("affected", "; ".join(record.affected_specs)),
        ("signatures", ", ".join(record.signatures)),
        ("summary", record.summary),
        *((("workaround", text)) for text in record.workarounds),
        *((name.replace("_", " "), ", ".join(map(_reference, ids))) for name, ids in record.relations.items()),
        ("note", record.note or ""),
        ("url", record.url),
    ]
    return [(name, value) for name, value in rows if value]


def _reference(name: str) -> str:
    return name if "#" in name else f"#{name}"


def _first(record: PullRequest, tree: str | None) -> str:
    parts = record.first_release_by_part
    if tree and parts:
        return parts.get(tree) or "never"
    by = (record.first_release_between or {}).get("by")
    return record.first_release or (f"<={by}" if by else "-")


def _print_records(records: list[PullRequest], first_here: set[str] | None = None, tree: str | None = None) -> None:
    """A table on a terminal, two lines a record on a narrow one, and one tab-separated line a record into a pipe."""
    marks = first_here or set()
    rows = [
        (
            "+" if r.id in marks else " ",
            _reference(r.id),
            r.state,
            _first(r, tree),
            ",".join(r.signatures) or "-",
            r.title,
        )
        for r in records
    ]
    if not sys.stdout.isatty():
        for row in rows:
            _line("\t".join(row))
        return
    width = shutil.get_terminal_size().columns
    if width < NARROW:
        for mark, number, state, first, signatures, title in rows:
            _line(f"{mark} {number} {state} {first} {signatures}")
            _line(f"    {title}" if len(title) + 4 <= width else f"    {title[: max(8, width - 7)]}...")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for name in (" ", "PR", "state", "first", "signatures"):
        table.add_column(name, no_wrap=True, max_width=18)
    table.add_column("title", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(width=width).print(table)


def _print_json(body: dict[str, Any]) -> None:
    document = {"schema_version": SCHEMA_VERSION, "knowledge_as_of": knowledge_as_of(), **body}
    _line(json.dumps(document, indent=2))


def _line(text: str) -> None:
    """One line of data; letters that the terminal's encoding lacks become a question mark."""
    encoding = sys.stdout.encoding or "utf-8"
    typer.echo(text.encode(encoding, "replace").decode(encoding))


def _note(text: str) -> None:
    typer.echo(text, err=True)
