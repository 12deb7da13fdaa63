"""Make a known incident, diagnose it from its evidence alone, and prove the diagnosis by counterfactual.

The simulation finds a schedule that breaks in the asked form; real processes replay its observations. The run's dump is
analysed like anyone's. Then the failed run is repeated on the tape of its leader with the verdict's one repair, and
with the smallest set of repairs after which no decision stream differs.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hicache_doctor.bundle import taken
from hicache_doctor.errors import DoctorError, UsageError
from hicache_doctor.incident import Tools, analyze
from hicache_doctor.runtime import config_file, scenarios, sim_dump, sim_run
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.fixes import Fix
from hicache_doctor.runtime.scenarios import Scenario
from hicache_doctor.runtime.sim_run import SimRun
from hicache_doctor.runtime.spec import Options
from hicache_doctor.runtime.streams import summary
from hicache_doctor.runtime.world import CONTROLLER, Tape
from hicache_doctor.signatures.verdict import Verdict

Say = Callable[[str], None]
WORLDS = ("simulation", "processes")
MOST_REPAIRS = 3


@dataclass(slots=True)
class Trial:
    """A counterfactual run: which repairs were switched on, and what still differs or fails."""

    fixes: list[int]
    steps: int
    diverged: dict[str, Any] | None
    signature: str | None

    @property
    def clean(self) -> bool:
        """Nothing differs and nothing failed."""
        return self.diverged is None and self.signature is None

    def to_json(self) -> dict[str, Any]:
        """For the JSON form."""
        return {"fixes": self.fixes, "steps": self.steps, "diverged": self.diverged, "signature": self.signature}


@dataclass(slots=True)
class Reproduction:
    """What came of it."""

    scenario: Scenario
    world: str
    seed: int
    tries: int
    dump: Path
    verdict: Verdict
    root_only: Trial | None
    repaired: Trial | None
    notes: list[str] = field(default_factory=list)

    @property
    def reproduced(self) -> bool:
        """The incident was made and a counterfactual came out clean."""
        return self.repaired is not None and self.repaired.clean

    def to_json(self) -> dict[str, Any]:
        """The command's contract: signature, verdict, counterfactual."""
        repaired = self.repaired
        return {
            "schema_version": 1,
            "signature": self.scenario.name,
            "world": self.world,
            "seed": self.seed,
            "dump": str(self.dump),
            "verdict": self.verdict.model_dump(mode="json"),
            "counterfactual": {
                "fixes": repaired.fixes if repaired else [],
                "steps": repaired.steps if repaired else 0,
                "diverged": repaired.diverged if repaired else None,
                "root_cause_only": None
                if self.root_only is None
                else {"signature": self.root_only.signature, "diverged": self.root_only.diverged},
            },
            "notes": self.notes,
        }


def scenario_of(name: str) -> Scenario:
    """The scenario of a signature or of a row of the matrix.

    Raises:
        UsageError: there is none.
    """
    found = scenarios.BY_NAME.get(name) or scenarios.BY_NAME.get(name.upper())
    if found is None:
        known = ", ".join(scenarios.BY_NAME)
        raise UsageError(
            f"no scenario reproduces {name!r}; there are: {known}. `rules list` says why the others cannot"
        )
    return found


def find(scenario: Scenario, *, say: Say = lambda text: None, start: int | None = None) -> tuple[SimRun, int, int]:
    """The first schedule, counted from the scenario's seed, that breaks in the asked form: run, seed, tries.

    Raises:
        DoctorError: none of the schedules did.
    """
    first = scenario.seed if start is None else start
    for tries, seed in enumerate(range(first, first + scenario.seeds), 1):
        run = sim_run.run(scenario.configured(seed), seed=seed)
        if scenario.shows(run):
            say(f"schedule {seed} breaks as asked ({run.outcome.how} after {run.steps} rank-steps)")
            return run, seed, tries
    raise DoctorError(f"{scenario.name}: none of {scenario.seeds} schedules broke in the form {scenario.form!r}")


def reproduce(
    name: str,
    out: Path,
    *,
    world: str = "simulation",
    force: bool = False,
    say: Say = lambda text: None,
    tools: Tools | None = None,
    start: int | None = None,
) -> Reproduction:
    """Make the incident, write ``out`` (a crash.dump), analyse it, run the counterfactuals. ``start`` is the first
    schedule to try.

    Raises:
        UsageError: no such scenario or world, or ``out`` exists.
        DoctorError: no schedule shows the form, or it cannot be written.
    """
    scenario = scenario_of(name)
    if world not in WORLDS:
        raise UsageError(f"no world {world!r}; worlds are {', '.join(WORLDS)}")
    if world == "processes" and not scenario.real:
        raise UsageError(f"{scenario.name} is shown by the simulation only; leave out --world processes")
    tools = tools or Tools.load()
    run, seed, tries = find(scenario, say=say, start=start)
    tapes = run.tapes()
    notes: list[str] = []
    if world == "processes":
        tapes = _for_real(scenario, run, out, force=force, say=say, notes=notes)
    else:
        sim_dump.write(out, run.config, run.outcome, force=force)
        said = config_file.truth(run.config, scenario.name, replayed=False) | {"seed": seed}
        config_file.truth_beside(out).write_text(json.dumps(said, indent=1) + "\n")
    say(f"analysing {out}")
    verdict = diagnose(out, tools)
    root_only, repaired = counterfactual(scenario, run.config, tapes, verdict, tools=tools, say=say)
    return Reproduction(scenario, world, seed, tries, out, verdict, root_only, repaired, notes)


def diagnose(dump: Path, tools: Tools) -> Verdict:
    """The verdict on one dump, by the one service that everyone uses."""
    result = analyze([str(dump)], tools=tools)
    try:
        return result.verdict
    finally:
        result.store.close()


def counterfactual(
    scenario: Scenario,
    config: Config,
    tapes: Mapping[int, Tape],
    verdict: Verdict,
    *,
    tools: Tools,
    say: Say = lambda text: None,
) -> tuple[Trial | None, Trial | None]:
    """The failed run again on its leader's tape: with the verdict's one repair, with the smallest set that helps."""
    leaders = {r: _without_clock(t) for r, t in tapes.items() if r == CONTROLLER or config.topo.place(r).pp == 0}
    off = [f for f in Fix if f not in config.fixes]
    if config.fixes.ack_counts != "pp0" and Fix.ACK_COUNTS not in off:
        off.append(Fix.ACK_COUNTS)
    root = next((f for f in off if f.value == verdict.root_cause_pr), None)
    root_only: Trial | None = None
    if root is not None:
        root_only = _trial(config, leaders, (root,), tools)
        say(f"with #{root.value} alone: {_told(root_only)}")
        if root_only.clean:
            return root_only, root_only
    likely = [f for f in scenario.off if f is not root]
    others = [f for f in off if f is not root and f not in likely]
    pool = ([root] if root else []) + likely + others
    for size in range(1, MOST_REPAIRS + 1):
        for chosen in itertools.combinations(pool, size):
            if root is not None and root not in chosen:
                continue
            if root_only is not None and chosen == (root,):
                continue
            trial = _trial(config, leaders, chosen, None)
            if trial.clean:
                say(f"smallest set of repairs: {', '.join(f'#{n}' for n in trial.fixes)}")
                return root_only, trial
    say("no small set of repairs makes the run clean")
    return root_only, None


def _trial(config: Config, leaders: Mapping[int, Tape], chosen: tuple[Fix, ...], tools: Tools | None) -> Trial:
    """One repeat. With ``tools`` a repeat that still fails is diagnosed; without, its ending is named."""
    again = config.but(fixes=config.fixes.plus(*chosen))
    run = sim_run.run(again, seed=config.seed, replay=dict(leaders))
    parted = run.differences()
    signature: str | None = None
    if run.outcome.how != "done" or run.integrity() or run.wrong_tokens():
        signature = run.outcome.how
        if tools is not None:
            signature = _named(run, tools) or signature
    diverged = summary(parted[0], config.topo) if parted else None
    return Trial([f.value for f in chosen], run.steps, diverged, signature)


def _without_clock(tape: Tape) -> Tape:
    """A tape without its LRU stamps: a repaired run walks its tree at other moments, and stamps of two clocks in one
    tree would evict in an order that no clock gave."""
    return [entry for entry in tape if entry[0][1] != "clock"]


def _named(run: SimRun, tools: Tools) -> str | None:
    folder = Path(tempfile.mkdtemp(prefix="hicache-doctor-trial-"))
    try:
        dump = folder / "crash.dump"
        sim_dump.write(dump, run.config, run.outcome)
        return diagnose(dump, tools).signature
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _told(trial: Trial) -> str:
    if trial.clean:
        return f"no divergence in {trial.steps} rank-steps"
    what = f"it still ends as {trial.signature}" if trial.signature else "it ends well"
    if trial.diverged:
        what += f", and the stream {trial.diverged['stream']} differs at step {trial.diverged['step']}"
    return what


def _for_real(
    scenario: Scenario, run: SimRun, out: Path, *, force: bool, say: Say, notes: list[str]
) -> dict[int, Tape]:
    """Real processes on the simulated run's observations; returns what they observed."""
    from hicache_doctor.runtime import launch

    if out.exists() and not force:
        raise taken(out)
    folder = Path(tempfile.mkdtemp(prefix="hicache-doctor-run-"))
    config = run.config
    if config.l3 is not None:
        config = config.but(l3="file", l3_path=str(folder / "l3"))
    replay = run.tapes()
    try:
        say(f"starting {config.topo.n} processes on the schedule's observations")
        options = Options(watchdog=4, grace=1.5, keep=True, scenario=scenario.name)
        report = launch.run(config, folder / "run", replay=replay, options=options)
        say(f"real processes: {report.outcome} after {report.seconds:.1f} s")
        assert report.dump is not None
        shutil.copyfile(report.dump, out)
        shutil.copyfile(config_file.truth_beside(report.dump), config_file.truth_beside(out))
        notes += report.notes
        return report.tapes()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
