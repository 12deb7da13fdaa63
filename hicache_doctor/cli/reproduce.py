"""``hicache-doctor reproduce``: make a known incident, diagnose it, prove the diagnosis by counterfactual."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hicache_doctor.cli import output
from hicache_doctor.cli.options import Format, FormatOption, examples

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command(
    epilog=examples(
        "reproduce A1",
        "reproduce C1 -o c1.dump --format json",
        "reproduce B1 --world processes -o b1.dump",
    )
)
def reproduce(
    signature: Annotated[str, typer.Argument(help="A signature id such as A1, or a row of the matrix.")],
    world: Annotated[str, typer.Option("--world", help="simulation or processes (needs torch).")] = "simulation",
    target: Annotated[Path, typer.Option("-o", "--output", help="The dump to write.")] = Path("crash.dump"),
    force: Annotated[bool, typer.Option("--force", help="Replace the dump if it exists.")] = False,
    form: FormatOption = Format.terminal,
) -> None:
    """Run the workload, switches and faults that bring the signature about, write the dump, analyse it like any other,
    and repeat the failed run with the repair. Exit 0: reproduced, and the counterfactual was clean."""
    from hicache_doctor.reproduce import reproduce as make

    done = make(
        signature, target, world=world, force=force, say=lambda text: typer.echo(f"hicache-doctor: {text}", err=True)
    )
    said = done.to_json()
    output.write(json.dumps(said, indent=1) if form is Format.json else _text(said), None, force=False)
    raise typer.Exit(0 if done.reproduced else 1)


def _text(said: dict[str, Any]) -> str:
    verdict, counter = said["verdict"], said["counterfactual"]
    named = verdict["signature"] or verdict["status"]
    root = f"#{verdict['root_cause_pr']}" if verdict["root_cause_pr"] else "no single PR"
    lines = [
        f"{said['signature']} in the {said['world']} (schedule {said['seed']}): {said['dump']}",
        f"verdict         {named} ({verdict['confidence'] or 'no confidence'}): {verdict['title']}",
        f"root cause      {root}",
    ]
    first = verdict["first_divergence"]
    if first:
        values = "; ".join(f"{rank}: {value}" for rank, value in first["values"].items())
        lines.append(f"parted at       {first['stream']} {first['ordinal']} — {values}")
    only = counter["root_cause_only"]
    if only is not None:
        still = "clean" if not only["signature"] and not only["diverged"] else f"still {only['signature'] or 'differs'}"
        lines.append(f"with the root   {root} alone: {still}")
    if counter["fixes"]:
        fixes = ", ".join(f"#{n}" for n in counter["fixes"])
        lines.append(
            f"counterfactual  same workload, same observations, with {fixes}: no divergence in {counter['steps']} "
            "rank-steps"
        )
    else:
        lines.append("counterfactual  no small set of repairs makes this run clean")
    return "\n".join(lines)
