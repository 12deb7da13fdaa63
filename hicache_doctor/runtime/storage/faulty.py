"""What goes wrong with L3, around any backend: lost keys, outages, slowness, a restart that loses everything."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_doctor.runtime.faults import FaultPlan, LostKeys
from hicache_doctor.runtime.storage.pages import EXISTS, GET, PUT, Latency, PageStorage
from hicache_doctor.runtime.world import Place, World, mix

NOMINAL = Latency(base=500_000, page=50_000)
"""What a call is taken to cost where the backend has no latency model: ``slow_l3`` multiplies this."""


def concerns(plan: FaultPlan, at: Place, rank: int) -> bool:
    """Whether any L3 fault of the plan reaches this rank."""
    return bool(
        any(stage == at.pp and factor > 1 for stage, factor in plan.slow_l3)
        or _lost_here(plan, at)
        or any(o.pp in (-1, at.pp) for o in plan.outages)
        or (plan.restart_l3 >= 0 and rank == 0)
    )


def _lost_here(plan: FaultPlan, at: Place) -> tuple[LostKeys, ...]:
    return tuple(lost for lost in plan.lost_keys if lost.pp == at.pp and lost.tp in (-1, at.tp))


class FaultyStorage:
    """A backend behind a fault plan; implements :class:`~hicache_doctor.runtime.world.Storage`.

    Faults go by the rank's own step, as its clock would. The restart is one event of the whole service: global rank 0
    carries it out, the others find the shelf empty.
    """

    def __init__(self, inner: PageStorage, world: World, plan: FaultPlan) -> None:
        self.inner = inner
        self._world = world
        self._plan = plan
        self._lost = _lost_here(plan, world.at)
        self._outages = tuple(o for o in plan.outages if o.pp in (-1, world.at.pp))
        self._factor = max((f for stage, f in plan.slow_l3 if stage == world.at.pp), default=1)
        self._nominal = inner.latency if inner.latency.base else NOMINAL
        self._calls = [0, 0, 0]
        self._restart = plan.restart_l3 if world.rank == 0 else -1
        self._dark = False

    def exists(self, keys: Sequence[int]) -> int:
        """Length of the contiguous prefix that is stored and not lost."""
        if not self._answers(EXISTS, len(keys)):
            return 0
        return self.inner.exists(self._cut(keys, "exists"))

    def get(self, keys: Sequence[int], pages: Sequence[int]) -> int:
        """Read up to the first lost page."""
        if not self._answers(GET, len(keys)):
            return 0
        kept = self._cut(keys, "get")
        n = self.inner.get(kept, pages[: len(kept)])
        if n == len(kept) < len(keys):
            name = self.inner.naming.key(keys[n])
            self._world.log(f"Failed to fetch {name} from {self.inner.name} storage.", "WARNING")
        return n

    def put(self, keys: Sequence[int], pages: Sequence[int]) -> int:
        """Write; what is lost is lost when somebody asks for it."""
        return self.inner.put(keys, pages) if self._answers(PUT, len(keys)) else 0

    def empty(self) -> None:
        """Forget everything, for all ranks."""
        self.inner.empty()

    def close(self) -> None:
        """Let go of what the backend holds."""
        self.inner.close()

    def _answers(self, kind: int, pages: int) -> bool:
        step = self._world.step
        if 0 <= self._restart <= step:
            self._restart = -1
            self._world.log(f"{self.inner.name} storage was restarted and is empty.", "WARNING")
            self.inner.empty()
        if self._factor > 1:
            nth = self._calls[kind]
            self._calls[kind] = nth + 1
            self._world.sleep((self._factor - 1) * self._nominal.of(self._world.rank, kind, nth, pages))
        for o in self._outages:
            if o.start <= step and (o.end < 0 or step < o.end):
                if not self._dark:  # one line an outage
                    self._world.log(f"{self.inner.name} storage does not answer.", "ERROR")
                self._dark = True
                return False
        self._dark = False
        return True

    def _cut(self, keys: Sequence[int], call: str) -> Sequence[int]:
        """The keys before the first lost one. A key that is lost at the query is not there when it is read either."""
        for lost in self._lost:
            if lost.when == "get" and call == "exists":
                continue
            for n, key in enumerate(keys):
                if mix(key, self._plan.seed) % lost.every == 0:
                    keys = keys[:n]
                    break
        return keys
