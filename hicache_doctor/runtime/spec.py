"""What the launcher is told: the run, where its files go, and how long it may stand still."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hicache_doctor.errors import UsageError
from hicache_doctor.runtime import config_file, tape_file
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.world import Tape

MOST_RANKS = 512
MAIN = "hicache_doctor.runtime.scheduler.main:run_rank"


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is watched. Times are seconds."""

    watchdog: float = 20.0
    """A rank that neither steps nor ends an operation for so long is hung."""
    grace: float = 3.0
    """What the others get to fail by themselves once a rank has failed."""
    dumps: int = 1
    """How many rounds of py-spy over all ranks, before what is hung is killed."""
    sample: float = 1.0
    """Between two readings of the ranks' memory."""
    keep: bool = False
    """Pack a dump even when all ranks ended in order (a wrong answer and a leak raise nothing)."""
    device: str = "cpu"
    scenario: str = ""
    """Only for the truth file."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One run of the launcher."""

    config: Config
    out: Path
    main: str = MAIN
    """``module:function``, called on each rank as ``main(world, config)``; it returns what goes into the report."""
    options: Options = field(default_factory=Options)
    replay: Mapping[int, Tape] | None = None
    path: tuple[str, ...] = ()
    """Where to look for ``main`` besides the installation."""

    def check(self) -> None:
        """Refuse what cannot run.

        Raises:
            UsageError: the topology is impossible, an option has no sense, or the folder is in use.
        """
        topo = self.config.topo
        if topo.n > MOST_RANKS:
            grid = f"dp {topo.dp_size} x pp {topo.pp_size} x cp {topo.cp_size} x tp {topo.tp_size}"
            raise UsageError(f"impossible topology: {grid} are {topo.n} ranks; at most {MOST_RANKS} run on one host")
        self.config.check()
        if ":" not in self.main:
            raise UsageError(f"main {self.main!r} is not of the form module:function")
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise UsageError(f"{self.out} exists and is not an empty folder; choose another one or remove it")

    def to_json(self) -> dict[str, Any]:
        """As JSON's own types."""
        tapes = {str(r): tape_file.to_json(t) for r, t in (self.replay or {}).items()}
        return {
            "config": config_file.to_json(self.config),
            "out": str(self.out),
            "main": self.main,
            "options": asdict(self.options),
            "replay": tapes if self.replay is not None else None,
            "path": list(self.path),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Spec:
        """What :meth:`to_json` wrote; only ``out`` must be there.

        Raises:
            UsageError: a part is missing or has the wrong form.
        """
        known = {f.name for f in fields(Options)}
        given = raw.get("options", {})
        for key in given:
            if key not in known:
                raise UsageError(f"launch options: no option {key!r}; there are {', '.join(sorted(known))}")
        if "out" not in raw:
            raise UsageError("launch: no folder 'out' is named")
        tapes = raw.get("replay")
        return cls(
            config_file.from_json(raw.get("config", {})),
            Path(raw["out"]),
            str(raw.get("main", MAIN)),
            Options(**given),
            None if tapes is None else {int(r): tape_file.from_json(t) for r, t in tapes.items()},
            tuple(raw.get("path", ())),
        )
