"""One run of the whole protocol in the simulated world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hicache_doctor.runtime import streams
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.model.base import Model
from hicache_doctor.runtime.model.null import NullModel
from hicache_doctor.runtime.scheduler.dp_controller import DataParallelController
from hicache_doctor.runtime.scheduler.main import run_rank
from hicache_doctor.runtime.sim_dp import SimDesk
from hicache_doctor.runtime.sim_kernel import Chooser
from hicache_doctor.runtime.sim_outcome import Outcome
from hicache_doctor.runtime.simulation import Simulation
from hicache_doctor.runtime.storage.memory import Shelf
from hicache_doctor.runtime.storage.open import open_storage
from hicache_doctor.runtime.workload import Request
from hicache_doctor.runtime.world import CONTROLLER, Storage, Tape, World, mix


@dataclass(slots=True)
class SimRun:
    """A finished simulation: how it ended, what each rank that ended returned, and where streams first part."""

    config: Config
    outcome: Outcome
    requests: list[Request]
    shelf: Shelf
    controller: SimDesk | None = None
    """The DP controller's, where there are several groups."""

    def tapes(self) -> dict[int, Tape]:
        """All tapes, as a replay takes them in either world."""
        tapes: dict[int, Tape] = {r: self.outcome.tape(r) for r in range(self.config.topo.n)}
        if self.controller is not None:
            tapes[CONTROLLER] = self.controller.tape
        return tapes

    @property
    def results(self) -> dict[int, dict[str, Any]]:
        """By rank; ranks that did not come to their end are left out."""
        out = self.outcome
        found = {r: out.result(r) for r in range(self.config.topo.n)}
        return {r: result for r, result in found.items() if isinstance(result, dict)}

    @property
    def steps(self) -> int:
        """Rank-steps: the steps of all ranks together."""
        return sum(self.outcome.step(r) for r in range(self.config.topo.n))

    def differences(self) -> list[streams.Difference]:
        """Where replicated ranks decided differently, earliest first."""
        return streams.differences(self.config.topo, {r: self.outcome.events(r) for r in range(self.config.topo.n)})

    def wrong_tokens(self) -> list[int]:
        """Requests whose tokens are not those of a run without any cache, on any rank."""
        wrong: set[int] = set()
        for result in self.results.values():
            wrong |= set(wrong_tokens(self.config, self.requests, result))
        return sorted(wrong)

    def integrity(self) -> list[str]:
        """What the ranks' integrity checks found."""
        label = self.config.topo.label
        return [f"{label(r)}: {text}" for r, result in sorted(self.results.items()) for text in result["integrity"]]


def run(
    config: Config,
    *,
    seed: int = 0,
    choices: Sequence[int] | Chooser | None = None,
    preempt: int = 0,
    replay: Mapping[int, Tape | None] | None = None,
    shelf: Shelf | None = None,
    cascade: bool = False,
    keep_events: bool = True,
) -> SimRun:
    """Run ``config`` to its end, its first failure, or a deadlock. Without a real service ``l3`` is kept in memory;
    ``shelf`` hands over what an earlier run stored."""
    config.check()
    if config.l3 is not None:
        config = config.but(l3="memory")
    requests = config.workload.build(config.seed)
    shelf = shelf or Shelf()

    def storage(c: Config, w: World, m: Model) -> Storage | None:
        return open_storage(c, w, m, shelf) if c.l3 else None

    def main(world: World) -> dict[str, Any]:
        return run_rank(world, config, NullModel, storage, requests)

    simulation = Simulation(
        config.topo,
        main,
        seed=seed,
        choices=choices,
        preempt=preempt,
        replay=replay,
        faults=config.faults,
        max_steps=config.steps + 8,
        cascade=cascade,
        keep_events=keep_events,
    )
    desk: SimDesk | None = None
    if config.topo.dp_size > 1:
        tape = None if replay is None else replay.get(CONTROLLER)
        desk = SimDesk(simulation, DataParallelController(config, requests), tape)
    return SimRun(config, simulation.run(), requests, shelf, desk)


def wrong_tokens(config: Config, requests: Sequence[Request], result: Mapping[str, Any]) -> list[int]:
    """Requests of one rank whose output differs from the null model's without a cache; an aborted one counts as far as
    it got. A turn is checked against its predecessor's real answer, so that one error is reported once."""
    outputs: Mapping[int, list[int]] = {int(k): v for k, v in result["outputs"].items()}
    texts: dict[int, list[int]] = {}
    wrong = []
    for spec in requests:
        got = outputs.get(spec.rid)
        if got is None:
            continue
        tokens = [*texts.get(spec.after, ()), *spec.tokens]
        state = 0
        for token in tokens:
            state = mix(state, token)
        for token in got:
            if token != 1 + mix(state, 7) % (config.model.vocab - 1):
                wrong.append(spec.rid)
                break
            state = mix(state, token)
        texts[spec.rid] = tokens + got
    return wrong
