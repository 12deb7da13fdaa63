"""Incidents whose root cause is known beyond doubt: workload, switches and faults that bring one form about.

What each must be diagnosed as is not written here but in ``rules/matrix.yaml``, before the runs. A seed is a place to
start: a form that depends on the schedule is searched for, in the simulation, from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hicache_doctor.runtime.config import Config, ModelShape
from hicache_doctor.runtime.faults import Abort, CopyLag, FaultPlan, LostKeys, Refuse
from hicache_doctor.runtime.fixes import ALL, Fix, Fixes
from hicache_doctor.runtime.release import released
from hicache_doctor.runtime.sim_run import SimRun
from hicache_doctor.runtime.workload import Workload
from hicache_doctor.runtime.world import Topology

TP2 = Topology(tp_size=2)
PP2_TP2 = Topology(pp_size=2, tp_size=2)
SHORT = Workload(requests=40, gap=14, new_tokens=1)
"""Seldom two requests at once, one token each: ranks are often idle, so who waits for whom shows."""
REREAD = Workload(requests=60, prefixes=14, prefix=60, suffix=8, gap=6, new_tokens=3)
"""More prefixes than the host holds, so that L3 is read."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row. ``form``: what must break (shape, pop, hang, wrong, leak, held, clean); ``stuck`` for a hang: a word of
    each rank's wait. ``base`` is what the switches were before ``off`` was taken out."""

    name: str
    says: str
    config: Config
    form: str
    off: tuple[Fix, ...] = ()
    base: str = "all"
    stuck: dict[int, str] = field(default_factory=dict)
    seed: int = 0
    seeds: int = 60
    real: bool = True
    """Whether real processes can show it too (not what only the simulation's collectives do)."""

    def fixed(self) -> Fixes:
        """The switches of the run."""
        if self.base == "beat":
            return Fixes(ALL.on, "beat")
        base = ALL if self.base == "all" else released(self.base, self.config.tree)
        return base.without(*self.off)

    def configured(self, seed: int) -> Config:
        """The run's configuration for one seed."""
        c = self.config
        plan = c.faults
        faults = FaultPlan(**{**{f: getattr(plan, f) for f in plan.__dataclass_fields__}, "seed": seed + 1})
        return c.but(fixes=self.fixed(), seed=seed + 1, faults=faults)

    def shows(self, run: SimRun) -> bool:
        """Whether a run broke in the form that is asked for."""
        return FORMS[self.form](self, run)


def _raised(run: SimRun, kind: type[BaseException], word: str) -> bool:
    return any(isinstance(f.error, kind) and word in str(f.error) for f in run.outcome.failures[:1])


def _hang(scenario: Scenario, run: SimRun) -> bool:
    if run.outcome.how != "deadlock":
        return False
    at = {w.rank: w.why for w in run.outcome.waits if w.task == "main"}
    return all(any(word in str(part) for part in at.get(rank, ())) for rank, word in scenario.stuck.items())


FORMS: dict[str, Callable[[Scenario, SimRun], bool]] = {
    "shape": lambda s, r: _raised(r, RuntimeError, "is invalid for input of size"),
    "pop": lambda s, r: _raised(r, IndexError, "pop from empty list"),
    "hang": _hang,
    "wrong": lambda s, r: r.outcome.how == "done" and bool(r.wrong_tokens()),
    "leak": lambda s, r: r.outcome.how == "done" and not r.wrong_tokens(),
    "held": lambda s, r: r.outcome.how == "done" and bool(r.integrity()),
    "parted": lambda s, r: r.outcome.how == "done" and bool(r.differences()),
    "clean": lambda s, r: (
        r.outcome.how == "done" and not r.integrity() and not r.wrong_tokens() and not r.differences()
    ),
}


def _uneven(pages: int) -> dict[str, object]:
    """A fixed host size over layers that the stages don't share equally: ``pages`` on the stage with more of them."""
    shape = ModelShape(layers=5)
    per_layer = 2 * shape.heads * shape.head_dim * 8 * 4
    return {"model": shape, "host_bytes": pages * 3 * per_layer}


def _late(pp: int, steps: int = 6) -> FaultPlan:
    return FaultPlan(copy_lag=(CopyLag(pp=pp, steps=steps),))


def _refuse(queue: str, *, pp: int = 0, tp: int = -1, nth: int = 0, count: int = 40) -> FaultPlan:
    return FaultPlan(refuse=(Refuse(queue, nth, pp, tp, count),))


_L3 = Config(workload=REREAD, l3="memory", device_pages=70, host_pages=70)
_PD = Config(disaggregation="prefill", workload=Workload(requests=60))
_TIMEOUT = {"waiting_timeout": 4_000_000, "faults": FaultPlan(clock_jump=((1, 5_000_000, 20),))}

ALL_SCENARIOS = (
    Scenario(
        "A1", "each stage drains acks by its own copy engine", Config(faults=_late(1)), "shape", (Fix.ACK_COUNTS,)
    ),
    Scenario(
        "A2",
        "host pools of one size in bytes hold different numbers of tokens",
        Config(**_uneven(48)),  # type: ignore[arg-type]
        "shape",
        base="0.5.14",
    ),
    Scenario(
        "A3",
        "L3 lost keys on one stage, and no vote crosses the stages",
        _L3.but(faults=FaultPlan(lost_keys=(LostKeys(1, 3),))),
        "shape",
        (Fix.PREFETCH_VOTES,),
    ),
    Scenario(
        "A4",
        "requests are aborted between the stages' agreement and its use",
        _PD.but(faults=FaultPlan(aborts=(Abort(10, -1, "agreed"), Abort(14, -1, "agreed")))),
        "shape",
        (Fix.CONSENSUS_VERBATIM,),
    ),
    Scenario(
        "A5",
        "requests time out by each stage's own clock",
        Config(**_TIMEOUT),  # type: ignore[arg-type]
        "shape",
        (Fix.TIMEOUTS,),
    ),
    Scenario(
        "A7",
        "a load back finds no room on one stage",
        Config(faults=_refuse("load", pp=1, nth=1, count=4)),
        "shape",
        (Fix.ALLOCATION,),
    ),
    Scenario(
        "A9",
        "an abort misses a request in another microbatch slot",
        Config(workload=Workload(requests=60, aborts=60, new_tokens=20)),
        "shape",
        (Fix.ABORT_SLOTS,),
    ),
    Scenario(
        "B1",
        "as A2 with room on the device: batches stay equal, the counts of writes do not",
        Config(**_uneven(48), device_pages=900),  # type: ignore[arg-type]
        "pop",
        base="0.5.14",
    ),
    Scenario(
        "B2",
        "a write finds no room on one stage",
        Config(device_pages=900, host_pages=1200, faults=_refuse("write", pp=1, nth=5, count=4)),
        "pop",
        (Fix.ALLOCATION,),
    ),
    Scenario(
        "C1",
        "a rank with nothing in flight skips the vote (hiradix)",
        Config(topo=TP2, workload=SHORT, faults=_refuse("write", tp=1)),
        "hang",
        (Fix.VOTE_HIRADIX, Fix.ALLOCATION),
        stuck={0: "writing_check", 1: "recv_requests"},
    ),
    Scenario(
        "C1-unified",
        "a rank with nothing in flight skips the vote (unified)",
        Config(topo=TP2, workload=SHORT, faults=_refuse("write", tp=1), tree="unified"),
        "hang",
        (Fix.VOTE_UNIFIED, Fix.ALLOCATION),
        stuck={0: "writing_check", 1: "recv_requests"},
    ),
    Scenario(
        "C1-alone",
        "the skipped vote without any difference in the submissions",
        Config(topo=TP2, workload=SHORT, faults=_refuse("write", tp=1)),
        "clean",
        (Fix.VOTE_HIRADIX,),
    ),
    Scenario(
        "C2",
        "a vote in a loop whose length is the rank's own business",
        Config(
            topo=TP2,
            workload=Workload(requests=60, gap=12, prefix=60, new_tokens=1),
            l3="memory",
            prefetch_timeout_base=3_000_000,
            faults=FaultPlan(batch_full=((1, 0, 9999),)),
        ),
        "hang",
        (Fix.VOTE_OUTSIDE_LOOP,),
        stuck={0: "check_prefetch", 1: "recv_requests"},
    ),
    Scenario(
        "C5",
        "the first stage waits for its sends: the last of three stages is stuck",
        _L3.but(topo=Topology(pp_size=3), faults=FaultPlan(lost_keys=(LostKeys(2, 3),))),
        "hang",
        (Fix.PREFETCH_VOTES, Fix.ALLOCATION),
        stuck={0: "sync"},
        seeds=300,
    ),
    Scenario(
        "C5b",
        "a later stage waits for a count that the one before it never sent",
        Config(workload=SHORT, faults=_refuse("write", pp=0)),
        "hang",
        (Fix.VOTE_HIRADIX, Fix.ALLOCATION),
        stuck={1: "pp_sync"},
    ),
    Scenario(
        "C7",
        "process groups are made from different rank lists",
        _L3.but(topo=PP2_TP2),
        "hang",
        (Fix.GROUP_LISTS,),
        stuck={0: "new_group"},
        real=False,
    ),
    Scenario(
        "C8",
        "profiling fails on the first stage, the others wait for its samples",
        Config(dynamic_chunking=True, faults=FaultPlan(profile_fails=(0,))),
        "hang",
        (Fix.PROFILE_FAILURE,),
        stuck={1: "chunk_profile"},
    ),
    Scenario(
        "C9",
        "requests time out by each TP rank's own clock",
        Config(topo=TP2, **_TIMEOUT),  # type: ignore[arg-type]
        "hang",
        (Fix.TIMEOUTS,),
    ),
    Scenario(
        "D",
        "sends of the count are never waited for",
        Config(workload=Workload(requests=20, idle_tail=300)),
        "leak",
        (Fix.BOUNDED_SENDS,),
    ),
    Scenario(
        "E",
        "equal wall-clock stamps under eviction",
        Config(faults=FaultPlan(clock_step=10_000_000, lag_stage=((1, 700_000),))),
        "parted",
        (Fix.LOGICAL_CLOCK,),
    ),
    Scenario("E-alone", "the wall clock alone", Config(), "clean", (Fix.LOGICAL_CLOCK,)),
    Scenario(
        "A1-E",
        "each stage drains by itself, and the wall clock reorders evictions",
        Config(faults=_late(1)),
        "shape",
        (Fix.ACK_COUNTS, Fix.LOGICAL_CLOCK),
    ),
    Scenario(
        "F",
        "host pools hold different numbers of tokens, nothing breaks yet",
        Config(**{**_uneven(300), "workload": Workload(requests=30)}),  # type: ignore[arg-type]
        "parted",
        base="0.5.14",
    ),
    Scenario(
        "G",
        "a local abort in the bootstrap queue is in no vote",
        _PD.but(faults=FaultPlan(aborts=(Abort(10, 0, "bootstrap"), Abort(14, 0, "bootstrap"))), steps=600),
        "held",
        (Fix.CONSENSUS_ABORTS,),
    ),
    Scenario(
        "G-27028",
        "an abort in the bootstrap queue reaches the first stage only",
        _PD.but(faults=FaultPlan(aborts=(Abort(10, -1, "bootstrapping"), Abort(14, -1, "bootstrapping")))),
        "held",
        (Fix.BOOTSTRAP_ABORTS,),
    ),
    Scenario(
        "H",
        "an abort in the bootstrap queue keeps its prefetch reservation",
        _PD.but(workload=Workload(requests=60, aborts=60, prefix=60), l3="memory", steps=600),
        "held",
        (Fix.ABORT_LEAK,),
    ),
    Scenario(
        "H-20560",
        "finished writes are not noticed while idle",
        Config(workload=Workload(requests=20, idle_tail=50), l3="memory"),
        "held",
        (Fix.IDLE_EVENTS,),
    ),
    Scenario("I", "two stages share one key in L3", _L3, "wrong", (Fix.KEY_FILE,)),
    Scenario(
        "beat",
        "the occasion is passed on, each stage drains its own count",
        Config(faults=_late(1)),
        "shape",
        base="beat",
    ),
    Scenario(
        "backup-local",
        "what is written to L3 is drained locally, under host pressure",
        _L3.but(backup_acks="local", faults=FaultPlan(slow_l3=((1, 20),))),
        "parted",
        seeds=400,
    ),
    Scenario("healthy", "everything repaired", Config(faults=_late(1)), "clean"),
)
BY_NAME = {s.name: s for s in ALL_SCENARIOS}
