"""``hicache-doctor query``: ask a kept incident database, with the same lock as rule SQL."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from hicache_doctor.cli import output
from hicache_doctor.errors import UsageError

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


class Format(str, Enum):
    """How the rows are written."""

    terminal = "terminal"
    json = "json"


@app.command(
    epilog="""\b
Examples:
  hicache-doctor query incident.duckdb "SELECT rank, proof, quote FROM rank_role"
  hicache-doctor query incident.duckdb "SELECT * FROM divergence" --format json
  hicache-doctor query incident.duckdb "SHOW TABLES"
"""
)
def query(
    file: Annotated[Path, typer.Argument(help="A database written by analyze --db.")],
    sql: Annotated[str, typer.Argument(help="One SELECT.")],
    form: Annotated[Format, typer.Option("--format", help="terminal or json.")] = Format.terminal,
    seconds: Annotated[float, typer.Option("--time-limit", min=0.1, help="Stop after so many seconds.")] = 30.0,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Show at most so many rows on the terminal.")] = 200,
) -> None:
    """Run one SQL statement over an incident database, read-only and without files or network."""
    import duckdb

    from hicache_doctor.evidence.store import Store

    with Store.open(file) as store:
        if store.copied:
            typer.echo(f"hicache-doctor: {file} is being written; this is a copy of its present state", err=True)
        try:
            found = store.rows(sql, seconds=seconds)
        except duckdb.InterruptException:
            raise UsageError(f"the query ran longer than {seconds:g} s; narrow it, or raise --time-limit") from None
        except duckdb.Error as e:
            raise UsageError(f"the query failed: {(str(e).strip().splitlines() or ['?'])[0]}") from None
    if form is Format.json:
        output.write(json.dumps({"schema_version": 1, "rows": found}, default=str, indent=1), None, force=False)
    else:
        output.write(_table(found[:rows], len(found)), None, force=False)


def _table(found: list[dict[str, Any]], total: int) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from hicache_doctor.report.clean import printable

    if not found:
        return "no rows"
    table = Table(box=None, pad_edge=False)
    for name in found[0]:
        table.add_column(Text(printable(name)), overflow="fold")
    for row in found:
        table.add_row(*(Text("" if v is None else printable(str(v))) for v in row.values()))
    terminal = sys.stdout.isatty()
    console = Console(width=output.width(terminal) or 160, color_system="auto" if output.want_color(terminal) else None)
    with console.capture() as capture:
        console.print(table)
    more = f"… {total - len(found)} more rows\n" if total > len(found) else ""
    return capture.get() + more
