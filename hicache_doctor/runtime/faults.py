"""Fault plans: what goes wrong outside the protocol, as data. Physical faults only; a missing repair is a switch."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any

from hicache_doctor.errors import UsageError


@dataclass(frozen=True, slots=True)
class CopyLag:
    """Copies of ``engine`` on a stage are seen as ready only ``steps`` scheduler steps after they were submitted (a
    gate on the finish event, so the order is forced and not left to sleeping)."""

    pp: int
    steps: int
    engine: str = "write"
    tp: int = -1
    every: int = 1
    """Only each n-th copy is late."""


@dataclass(frozen=True, slots=True)
class LostKeys:
    """L3 lost keys on one stage: of the stored pages every ``every``-th (by hash) is missing there."""

    pp: int
    every: int = 2
    tp: int = -1
    when: str = "get"  # exists | get: seen at the query, or only when it is read


@dataclass(frozen=True, slots=True)
class Outage:
    """L3 answers nothing between two steps of the rank (to -1: for ever)."""

    start: int
    end: int
    pp: int = -1


@dataclass(frozen=True, slots=True)
class Refuse:
    """The n-th submission of a queue finds no room on one rank (fragmentation, another user of the memory)."""

    queue: str  # write | load
    nth: int
    pp: int
    tp: int = -1
    count: int = 1


@dataclass(frozen=True, slots=True)
class Abort:
    """The client of ``rid`` goes away: at a step, or when the request reaches a state."""

    rid: int
    step: int = -1
    state: str = ""  # waiting | prefetching | chunked | running | bootstrapping | bootstrap | agreed


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """All faults of a run; ``seed`` decides what is random in them."""

    seed: int = 1
    copy_lag: tuple[CopyLag, ...] = ()
    jitter: int = 100
    """Percent by which a copy's duration varies."""
    slow_copy: tuple[tuple[int, int], ...] = ()
    """(stage, factor): copies of that stage take that many times as long."""
    slow_l3: tuple[tuple[int, int], ...] = ()
    """(stage, factor)."""
    lost_keys: tuple[LostKeys, ...] = ()
    outages: tuple[Outage, ...] = ()
    refuse: tuple[Refuse, ...] = ()
    aborts: tuple[Abort, ...] = ()
    clock_skew: tuple[tuple[int, int], ...] = ()
    """(global rank, ns): its clock is ahead."""
    clock_jump: tuple[tuple[int, int, int], ...] = ()
    """(global rank, ns, step): its clock is set ahead at that step."""
    clock_step: int = 1
    """Resolution of the wall clock in ns."""
    lag_stage: tuple[tuple[int, int], ...] = ()
    """(stage, ns): that much more a step."""
    profile_fails: tuple[int, ...] = ()
    """Stages whose dynamic-chunk profiling raises."""
    batch_full: tuple[tuple[int, int, int], ...] = ()
    """(global rank, first step, last step): its ``batch_is_full`` is set."""
    restart_l3: int = -1
    """The step at which L3 is restarted empty."""
    misroute: str = ""  # '' | twice | missed | control_to_all
    kill: tuple[tuple[int, int], ...] = ()
    """(global rank, step): SIGKILL."""

    @property
    def quiet(self) -> bool:
        """Nothing but the seed and the jitter is set."""
        plain = FaultPlan(seed=self.seed, jitter=self.jitter)
        return self == plain


NO_FAULTS = FaultPlan()
_ITEMS: dict[str, Any] = {
    "copy_lag": CopyLag,
    "lost_keys": LostKeys,
    "outages": Outage,
    "refuse": Refuse,
    "aborts": Abort,
}
_WIDTHS = {"slow_copy": 2, "slow_l3": 2, "clock_skew": 2, "clock_jump": 3, "lag_stage": 2, "batch_full": 3, "kill": 2}
"""Faults that are lists of so many numbers."""
_WORDS: dict[str, tuple[str, ...]] = {
    "engine": ("write", "load"),
    "queue": ("write", "load"),
    "when": ("exists", "get"),
    "state": ("", "waiting", "prefetching", "chunked", "running", "bootstrapping", "bootstrap", "agreed"),
    "misroute": ("", "twice", "missed", "control_to_all"),
}


def from_dict(raw: dict[str, Any], where: str = "fault plan") -> FaultPlan:
    """A plan from parsed YAML.

    Raises:
        UsageError: a key or a value is wrong; the message names it and the nearest right key.
    """
    if not isinstance(raw, dict):
        raise UsageError(f"{where}: write faults by name, such as `slow_copy: [[1, 10]]`, not {raw!r}")
    names = [f.name for f in fields(FaultPlan)]
    done: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in names:
            raise UsageError(f"{where}: no fault {_near(key, names)}")
        here = f"{where}: {key}"
        if key in _ITEMS:
            done[key] = tuple(_item(_ITEMS[key], item, here) for item in _list(value, here))
        elif key in _WIDTHS:
            done[key] = tuple(_numbers(item, _WIDTHS[key], here) for item in _list(value, here))
        elif key == "profile_fails":
            done[key] = tuple(_plain(key, item, here) for item in _list(value, here))
        else:
            done[key] = _plain(key, value, here)
    return FaultPlan(**done)


def _near(key: object, names: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(str(key), names, 1)
    return f"{key!r}" + (f"; did you mean {near[0]}?" if near else f"; keys are {', '.join(names)}")


def _list(value: object, here: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"{here}: write a list, not {value!r}")
    return list(value)


def _item(kind: Any, item: object, here: str) -> Any:
    names = [f.name for f in fields(kind)]
    if not isinstance(item, dict):
        raise UsageError(f"{here}: write a mapping of {', '.join(names)}, not {item!r}")
    for name in item:
        if name not in names:
            raise UsageError(f"{here}: no key {_near(name, names)}")
    values = {name: _plain(name, value, here) for name, value in item.items()}
    try:
        return kind(**values)
    except TypeError:
        missing = [f.name for f in fields(kind) if f.default is MISSING and f.name not in item]
        raise UsageError(f"{here}: {', '.join(missing)} is missing") from None


def _numbers(item: object, width: int, here: str) -> tuple[int, ...]:
    if not isinstance(item, (list, tuple)) or len(item) != width:
        raise UsageError(f"{here}: write {width} numbers an entry, not {item!r}")
    return tuple(_plain("", value, here) for value in item)


def _plain(name: str, value: Any, here: str) -> Any:
    """A word or a whole number, as the field wants."""
    words = _WORDS.get(name)
    if words is not None:
        if value not in words:
            known = ", ".join(w for w in words if w)
            raise UsageError(f"{here}: {name} cannot be {value!r}; it is one of {known}")
    elif not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{here}: {name or 'an entry'} must be a whole number, not {value!r}")
    elif name == "every" and value < 1:
        raise UsageError(f"{here}: every must be at least 1")
    return value
