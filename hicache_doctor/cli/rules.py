"""``hicache-doctor rules``: list, show, check and test the rules that decide, and start a new one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hicache_doctor.cli import output
from hicache_doctor.cli.options import Format, FormatOption, examples, group
from hicache_doctor.errors import UsageError

app = group("rules", "List, show, check and test the rules that decide.")


FolderArgument = Annotated[
    Path | None, typer.Argument(help="A directory of your own rules, on top of the shipped ones.")
]

TEMPLATE = """\
id: X1
title: What the reader must know in one line
text: [own_exception]          # evidence that is the literal text
config: [pp_on, hicache_on]    # all of these must agree
versions: ">=0.5.13,<0.5.15"
root_cause_pr: 29258
fixes: [29258]
chain: [own_exception]         # from the visible error back to the cause
actions:
  - {when: now, do: "What to do now.", command: "--a-flag"}
sources: ["#29258"]
"""
NODE_TEMPLATE = """\
# A node of the same name replaces the shipped one: this asks a question of yours first, then the shipped one.
- node: start
  question: Is it the incident of our own rule?
  ask: my_evidence
  yes: X1
  no: shipped_start
  unknown: shipped_start
- node: shipped_start
  question: Do the artefacts come from an SGLang deployment?
  ask: sglang_seen
  yes: gpu
  no: stranger
  unknown: stranger
- {node: X1, verdict: X1}
"""
EVIDENCE_TEMPLATE = """\
-- evidence: my_evidence
-- says: {rank} printed our own line
SELECT artifact, line, line_end, rank, ts, text AS quote FROM log WHERE text LIKE '%our own line%' LIMIT 3
"""


@app.command("list", epilog=examples("rules list", "rules list --format json"))
def list_rules(form: FormatOption = Format.terminal) -> None:
    """Every rule: id, kind, affected releases, title, and which scenario reproduces it or why none does."""
    from hicache_doctor.signatures.matrix import load_matrix

    base, matrix = _load(None), load_matrix()
    rows = [
        {"id": r.id, "kind": r.kind, "form": r.form, "status": r.status, "versions": r.versions, "title": r.title}
        | (matrix.reproducible(r.id) if r.kind == "signature" else {})
        for r in base.rules.values()
    ]
    if form is Format.json:
        _json({"rules": rows})
        return
    for row in rows:
        typer.echo(f"{row['id']:20} {row['kind']:13} {row['versions'] or '':18} {row['title']}")
        if row.get("reproduced_by"):
            typer.echo(f"{'':20} reproduced by {', '.join(row['reproduced_by'])}")
        elif row.get("not_reproduced"):
            typer.echo(f"{'':20} not reproduced: {row['not_reproduced']}")


@app.command(epilog=examples("rules show A2", "rules show A2 --format json"))
def show(
    rule_id: Annotated[str, typer.Argument(metavar="ID", help="A signature or other verdict, such as A2.")],
    form: FormatOption = Format.terminal,
) -> None:
    """One rule: what it asks, where it was read, and how the path leads to it."""
    base = _load(None)
    rule = base.rules.get(rule_id)
    if rule is None:
        raise UsageError(f"no rule {rule_id!r}; `hicache-doctor rules list` shows them")
    names = dict.fromkeys([*rule.text, *rule.config, *rule.observed, *rule.supports, *rule.excludes])
    leaves = [n.node for n in base.nodes.values() if n.verdict == rule_id]
    ways = [
        f"{n.node} ({answer}): {n.question}"
        for n in base.nodes.values()
        for answer in ("yes", "no", "unknown")
        if getattr(n, answer) in leaves
    ]
    if form is Format.json:
        _json(
            {"rule": rule.model_dump(by_alias=True), "file": base.files[f"rule:{rule_id}"].name, "reached_from": ways}
        )
        return
    import yaml

    kept = {k: v for k, v in rule.model_dump(by_alias=True).items() if v not in (None, [], {})}
    typer.echo(yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=100).rstrip())
    typer.echo("evidence:")
    for name in names:
        typer.echo(f"  {name}: {base.evidence[name].says}")
    typer.echo("reached from:")
    for way in ways:
        typer.echo(f"  {way}")


@app.command(epilog=examples("rules check", "rules check my-rules/"))
def check(folder: FolderArgument = None, form: FormatOption = Format.terminal) -> None:
    """Look for wrong keys, dangling names, unreachable nodes and SQL that doesn't compile; exit 1 on an error."""
    from hicache_doctor.signatures.lint import check as lint

    findings = lint(_load(folder))
    errors = sum(f.severity == "error" for f in findings)
    if form is Format.json:
        _json({"findings": [{"where": f.where, "severity": f.severity, "what": f.what} for f in findings]})
    else:
        for f in findings:
            typer.echo(f"{f.where}: {f.severity}: {f.what}")
        typer.echo(f"{errors} errors, {len(findings) - errors} warnings", err=True)
    if errors:
        raise typer.Exit(1)


@app.command(epilog=examples("rules test", "rules test my-rules/"))
def test(folder: FolderArgument = None, form: FormatOption = Format.terminal) -> None:
    """Run every rule's own cases and the healthy logs, which must raise nothing; exit 1 when one fails."""
    from hicache_doctor.rule_cases import run

    outcomes = list(run((folder,) if folder else ()))
    failed = [o for o in outcomes if o.problem is not None]
    if form is Format.json:
        _json({"cases": [{"rule": o.rule, "name": o.name, "problem": o.problem} for o in outcomes]})
    else:
        for o in failed:
            typer.echo(f"{o.rule}: {o.name}: {o.problem}")
        typer.echo(f"{len(outcomes) - len(failed)} passed, {len(failed)} failed", err=True)
    if failed or not outcomes:
        raise typer.Exit(1)


@app.command(epilog=examples("rules new my-rules/"))
def new(folder: Annotated[Path, typer.Argument(help="A directory to create.")]) -> None:
    """Start a directory of your own rules: one rule, one node, one piece of evidence."""
    if folder.exists():
        raise UsageError(f"{folder} exists; choose another name")
    files = {"signatures/X1.yaml": TEMPLATE, "path/50_mine.yaml": NODE_TEMPLATE, "evidence/mine.sql": EVIDENCE_TEMPLATE}
    for name, text in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        output.write(text, target, force=False)
        typer.echo(str(target))


def _load(folder: Path | None) -> Any:
    from hicache_doctor.signatures.load import load

    return load([folder] if folder else [])


def _json(value: dict[str, Any]) -> None:
    output.write(json.dumps({"schema_version": 1, **value}, indent=1, ensure_ascii=False), None, force=False)
