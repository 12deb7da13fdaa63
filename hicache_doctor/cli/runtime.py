"""``hicache-doctor runtime run``: the reference PP + L2/L3 cache runtime in real processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hicache_doctor.cli import output
from hicache_doctor.cli.options import Format, FormatOption, examples, group
from hicache_doctor.errors import InputError, UsageError

app = group("runtime", "Run the reference runtime.")


@app.callback()
def _group() -> None:
    """Run the reference PP + L2/L3 cache runtime, instrumented."""


@app.command(
    epilog=examples(
        "runtime run --pp 2 --out run1",
        "runtime run --pp 2 --tp 2 --l3 file --workload reread --model mla --out run2",
        "runtime run --pp 2 --fixes 0.5.12 --faults plan.yaml --out run3",
        "runtime run --fixes all,27285=local --workload turns --out run4",
    )
)
def run(
    out: Annotated[Path, typer.Option("--out", help="A new or empty folder for logs, rings, tapes, crash.dump.")],
    pp: Annotated[int, typer.Option("--pp", help="Pipeline stages.")] = 2,
    tp: Annotated[int, typer.Option("--tp", help="Tensor-parallel ranks a stage.")] = 1,
    dp: Annotated[int, typer.Option("--dp", help="Replicas behind the DP controller.")] = 1,
    cp: Annotated[int, typer.Option("--cp", help="Context-parallel ranks a stage.")] = 1,
    l3: Annotated[str, typer.Option("--l3", help="none, file or mooncake.")] = "none",
    workload: Annotated[str, typer.Option("--workload", help="A named mix and key=value pairs.")] = "shared",
    fixes: Annotated[str, typer.Option("--fixes", help="all, none, a release, +PR,-PR, PR=value.")] = "all",
    faults: Annotated[Path | None, typer.Option("--faults", help="A fault plan in YAML.")] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Stop after so many scheduler steps.")] = 5000,
    model: Annotated[str, typer.Option("--model", help="null, mha or mla.")] = "mha",
    tree: Annotated[str, typer.Option("--tree", help="hiradix or unified.")] = "hiradix",
    scheduler: Annotated[str, typer.Option("--scheduler", help="replicated or planned.")] = "replicated",
    prefetch_policy: Annotated[str, typer.Option(help="When a prefetch ends, as SGLang names it.")] = "timeout",
    write_policy: Annotated[str, typer.Option(help="When L2 is written, as SGLang names it.")] = "write_through",
    dynamic_chunking: Annotated[bool, typer.Option("--dynamic-chunking", help="Profile and fit chunk sizes.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of workload and faults.")] = 1,
    watchdog: Annotated[float, typer.Option("--watchdog", min=0.5, help="Seconds without progress are a hang.")] = 20.0,
    form: FormatOption = Format.terminal,
) -> None:
    """Run ranks as real processes over gloo; a failure leaves crash.dump, and the truth beside it. Exit 0: all checks
    passed; 1: a rank failed, tokens differ or the integrity check found something."""
    import dataclasses

    from hicache_doctor.runtime import launch, mixes, release
    from hicache_doctor.runtime.config import Config, ModelShape
    from hicache_doctor.runtime.faults import NO_FAULTS, from_dict
    from hicache_doctor.runtime.run_report import summarise
    from hicache_doctor.runtime.spec import Options
    from hicache_doctor.runtime.world import Topology

    for name, value, allowed in (
        ("--l3", l3, ("none", "file", "mooncake")),
        ("--model", model, ("null", "mha", "mla")),
        ("--tree", tree, ("hiradix", "unified")),
        ("--scheduler", scheduler, ("replicated", "planned")),
        ("--prefetch-policy", prefetch_policy, ("best_effort", "wait_complete", "timeout")),
        ("--write-policy", write_policy, ("write_through", "write_through_selective", "write_back")),
    ):
        if value not in allowed:
            raise UsageError(f"{name}: {value!r} is none of {', '.join(allowed)}")
    switches = release.resolve(fixes, tree)
    if switches.unmodelled:
        listed = ", ".join(f"#{n}" for n in switches.unmodelled)
        typer.echo(f"hicache-doctor: fixes of that release that the runtime does not model: {listed}", err=True)
    plan = NO_FAULTS if faults is None else from_dict(_yaml(faults), str(faults))
    config = Config(
        topo=Topology(pp_size=pp, tp_size=tp, dp_size=dp, cp_size=cp),
        fixes=switches,
        faults=plan if faults is not None else dataclasses.replace(plan, seed=seed),
        model=ModelShape(kind=model),
        seed=seed,
        steps=steps,
        tree=tree,
        scheduler=scheduler,
        prefetch_policy=prefetch_policy,
        write_policy=write_policy,
        dynamic_chunking=dynamic_chunking,
        trace=True,
        l3=None if l3 == "none" else l3,
        l3_path="" if l3 == "none" else str(out.absolute() / "l3"),
    )
    config = mixes.apply(config, workload)
    report = launch.run(config, out, on_progress=_progress, options=Options(watchdog=watchdog))
    if sys.stderr.isatty():
        typer.echo("", err=True)
    summary = summarise(config, report)
    if form is Format.json:
        output.write(json.dumps(summary.to_json(), indent=1), None, force=False)
    else:
        output.write(_text(summary.to_json()), None, force=False)
    raise typer.Exit(0 if summary.ok else 130 if report.outcome == "interrupted" else 1)


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(f"{path}: {e.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        where = getattr(e, "problem_mark", None)
        line = f" line {where.line + 1}" if where is not None else ""
        raise UsageError(
            f"{path}:{line} is no YAML; a plan is a mapping such as copy_lag: [{{pp: 1, steps: 6}}]"
        ) from None
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: a fault plan is a mapping such as copy_lag: [{{pp: 1, steps: 6}}]")
    return raw


def _progress(said: dict[str, Any]) -> None:
    if said.get("type") == "progress" and sys.stderr.isatty():
        steps = said["steps"]
        typer.echo(f"\rsteps {min(steps)}–{max(steps)} of {len(steps)} ranks", err=True, nl=False)


def _text(said: dict[str, Any]) -> str:
    ended = f"{said['steps']} steps, {said['seconds']} s"
    if said["ranks_checked"]:
        lines = [f"{said['outcome']}: {said['requests']} requests in {ended}", *_counted(said)]
    else:
        lines = [f"{said['outcome']}: {ended}; no rank came to its end, so nothing was counted or checked"]
    lines.append("exit        " + ", ".join(f"{k} {v}" for k, v in said["exit"].items()))
    if said["dump"]:
        lines.append(f"dump        {said['dump']}  (hicache-doctor analyze {said['dump']})")
    return "\n".join(lines + [f"note        {n}" for n in said["notes"]])


def _counted(said: dict[str, Any]) -> list[str]:
    equal = {True: "equal to a run without cache", False: "DIFFERENT from a run without cache", None: "not compared"}
    lines = [f"tokens      {said['tokens_compared']} compared, {equal[said['tokens_equal_to_uncached']]}"]
    if said["largest_logit_difference"] is not None:
        lines.append(
            f"logits      differ by {said['largest_logit_difference']:.1e} at most; "
            f"the closest choice had a margin of {said['smallest_margin']:.1e}"
        )
    lines += [
        "hits        " + ", ".join(f"{k} {v}" for k, v in said["hits"].items()) + " pages",
        "evictions   " + ", ".join(f"{k} {v}" for k, v in said["evictions"].items()) + " nodes",
        f"load backs  {said['load_backs']}",
        "prefetches  " + ", ".join(f"{k} {v}" for k, v in said["prefetches"].items()),
    ]
    partly = "" if said["ranks_checked"] == len(said["exit"]) else f" on the {said['ranks_checked']} ranks that ended"
    return lines + (
        [f"integrity   {text}" for text in said["integrity"]] or [f"integrity   nothing leaked, nothing locked{partly}"]
    )
