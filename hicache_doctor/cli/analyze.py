"""``hicache-doctor analyze``: from whatever the crash left to a verdict."""

from __future__ import annotations

import re
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hicache_doctor.cli import output
from hicache_doctor.errors import UsageError

if TYPE_CHECKING:
    from hicache_doctor.incident import Options, Result

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


class Format(str, Enum):
    """How the verdict is written."""

    terminal = "terminal"
    json = "json"
    html = "html"
    markdown = "markdown"


@app.command(
    epilog="""\b
Examples:
  hicache-doctor analyze crash.dump
  hicache-doctor analyze pp0.log pp1.log stacks/ metrics.prom --explain
  hicache-doctor analyze bundle.tar.zst --format html -o report.html
  kubectl logs prefill-0 --previous | hicache-doctor analyze - --sglang 0.5.14
  hicache-doctor analyze logs/ --rank pod-7.txt='PP1 TP0' --last 30m --db incident.duckdb

Exit codes: 0 analysed, 1 a signature was found (with --exit-code), 2 usage, 3 nothing readable."""
)
def analyze(
    paths: Annotated[
        list[str], typer.Argument(help="Files, folders, archives; '-' is standard input.", show_default=False)
    ],
    form: Annotated[Format, typer.Option("--format", help="One format a run.")] = Format.terminal,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write to this file instead of standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let -o replace an existing file (never an input).")] = False,
    db: Annotated[Path | None, typer.Option("--db", help="Keep the evidence as this DuckDB file.")] = None,
    rules: Annotated[list[Path] | None, typer.Option("--rules", help="A directory of your own rules.")] = None,
    sglang: Annotated[str | None, typer.Option("--sglang", help="The release, when no artefact states it.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting that you know.")
    ] = None,
    ranks: Annotated[
        list[str] | None, typer.Option("--rank", metavar="FILE='PP1 TP0'", help="Whose file it is.")
    ] = None,
    life: Annotated[
        int | None, typer.Option("--life", min=1, help="Which life of a restarted process (1 = first).")
    ] = None,
    last: Annotated[str | None, typer.Option("--last", metavar="30m", help="Only the last part of the logs.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only from this time on (ISO 8601).")
    ] = None,
    whole_hash: Annotated[bool, typer.Option("--hash", help="Digest whole files, not their ends.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show the walked path and every rule.")] = False,
    keep_prompts: Annotated[
        bool, typer.Option("--keep-prompts", help="Keep the clipped prompts of a crash dump's requests.")
    ] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 when a signature was found.")] = False,
) -> None:
    """Read what the crash left and say which failure it is, which rank began, and which PR repairs it."""
    from hicache_doctor import incident

    if out is not None:
        output.check(out, force=force, inputs=paths)
    options = _options(rules, sglang, settings, ranks, life, last, since, whole_hash, db, explain, keep_prompts)
    result = incident.analyze(paths, options, stdin=sys.stdin.buffer if "-" in paths else None)
    try:
        text = _render(result, form, explain, to_file=out is not None)
        output.write(text, out, force=force, inputs=paths)
    finally:
        result.store.close()
    if not result.readable:
        typer.echo(f"hicache-doctor: nothing readable among the inputs: {_why(result)}", err=True)
        raise typer.Exit(3)
    if exit_code and result.verdict.status == "signature":
        raise typer.Exit(1)


def _render(result: Result, form: Format, explain: bool, *, to_file: bool) -> str:
    if form is Format.json:
        from hicache_doctor.report.json_form import render_json

        return render_json(result.verdict)
    if form is Format.html:
        from hicache_doctor.report.html import render_html

        return render_html(result.verdict, result.store)
    if form is Format.markdown:
        from hicache_doctor.report.markdown import render_markdown

        return render_markdown(result.verdict)
    from hicache_doctor.report.terminal import render_terminal

    terminal = sys.stdout.isatty() and not to_file
    return render_terminal(
        result.verdict, explain=explain, width=output.width(terminal), color=output.want_color(terminal) and not to_file
    )


def _why(result: Result) -> str:
    """The first input and what is wrong with it, and how many more there are."""
    from hicache_doctor.report.clean import printable

    rows = result.verdict.inventory
    if not rows:
        return "the folder is empty"
    more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
    return printable(f"{rows[0].artifact}: {rows[0].note}{more}")


def _options(
    rules: list[Path] | None,
    sglang: str | None,
    settings: list[str] | None,
    ranks: list[str] | None,
    life: int | None,
    last: str | None,
    since: str | None,
    whole_hash: bool,
    db: Path | None,
    explain: bool,
    keep_prompts: bool,
) -> Options:
    from hicache_doctor.incident import Options, parse_time

    known = _pairs(settings or [], "--set", "KEY=VALUE")
    if sglang is not None:
        from hicache_doctor.knowledge.versions import parse_version

        if not parse_version(sglang).known:
            raise UsageError(f"--sglang {sglang!r} is no SGLang version; write for example 0.5.14")
        known["sglang_version"] = sglang
    return Options(
        settings=known,
        ranks=_pairs(ranks or [], "--rank", "FILE='PP1 TP0'"),
        rules=rules or [],
        life=life,
        last=_duration(last) if last is not None else None,
        since=parse_time(since) if since is not None else None,
        whole_digest=whole_hash,
        db=db,
        explain=explain,
        keep_prompts=keep_prompts,
    )


def _pairs(items: list[str], option: str, form: str) -> dict[str, str]:
    out = {}
    for item in items:
        key, sep, value = item.partition("=")
        if not sep or not key:
            raise UsageError(f"{option} {item!r}: write {option} {form}")
        out[key.strip()] = value.strip()
    return out


def _duration(text: str) -> float:
    m = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if m is None:
        raise UsageError(f"--last {text!r} is no duration; write for example 30m, 2h or 90s")
    return float(m[1]) * {"s": 1, "": 1, "m": 60, "h": 3600, "d": 86400}[m[2]]
