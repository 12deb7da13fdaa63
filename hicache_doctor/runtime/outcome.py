"""How a run ended: one report a rank, who was first, and where the evidence lies."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hicache_doctor.errors import InputError
from hicache_doctor.runtime import tape_file
from hicache_doctor.runtime.rank_log import file_stem
from hicache_doctor.runtime.world import CONTROLLER, Tape

_PEER_LOST = re.compile(r"Connection (?:closed|reset) by peer|Broken pipe|Socket closed")
_TIMED_OUT = re.compile(r"Timed out waiting|[Tt]imeout caused pair closure|wait timeout after")
SUMMARY = "run.json"


def kind_of(error: BaseException) -> str:
    """``peer_lost`` and ``wire_timeout`` are what happens to victims; anything else is an error of the rank itself."""
    text = str(error)
    if isinstance(error, RuntimeError) and _PEER_LOST.search(text):
        return "peer_lost"
    if isinstance(error, RuntimeError) and _TIMED_OUT.search(text):
        return "wire_timeout"
    return "error"


@dataclass(slots=True)
class RankReport:
    """How one rank ended.

    ``state``: ``done``, ``error`` (raised), ``peer_lost`` or ``wire_timeout`` (raised because of another), ``signal``
    (died of one), ``hung`` (killed after the watchdog's time-out or the grace) or ``stopped`` (killed otherwise).
    ``exit`` is the exit code, negative for a signal; ``failed_at`` monotonic nanoseconds, comparable between ranks.
    """

    rank: int
    label: str
    pid: int
    state: str = "stopped"
    exit: int | None = None
    step: int = 0
    error: str = ""
    thread: str = ""
    failed_at: int | None = None
    result: dict[str, Any] | None = None
    tape_misses: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def signal(self) -> str:
        """``SIGABRT`` and the like, or empty."""
        return signal.Signals(-self.exit).name if self.exit is not None and self.exit < 0 else ""


@dataclass(slots=True)
class RunReport:
    """How a run ended: ``outcome`` is ``done``, ``failed``, ``hung`` or ``interrupted``."""

    out: Path
    outcome: str
    ranks: list[RankReport]
    up_seconds: float | None = None
    """From the first fork until all ranks had met."""
    seconds: float = 0.0
    dump: Path | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """All ranks ended by themselves and in order."""
        return self.outcome == "done"

    @property
    def exit_code(self) -> int:
        """0, 1, or 130 after an interruption."""
        return {"done": 0, "interrupted": 130}.get(self.outcome, 1)

    @property
    def first(self) -> RankReport | None:
        """The rank that failed first: of those with a cause of their own, else of all that failed."""
        failed = [r for r in self.ranks if r.failed_at is not None]
        own = [r for r in failed if r.state in ("error", "signal")]
        return min(own or failed, key=lambda r: r.failed_at or 0, default=None)

    def log(self, rank: int) -> Path:
        """The log file of a rank."""
        return self.out / "logs" / f"{file_stem(self.ranks[rank].label)}.log"

    def tape(self, rank: int) -> Tape:
        """What a rank observed, up to its last moment whatever ended it."""
        return tape_file.read(self.out / "tapes" / f"{file_stem(self.ranks[rank].label)}.jsonl")

    def tapes(self) -> dict[int, Tape]:
        """The tapes of all ranks, and of the DP controller where there is one, as a replay takes them."""
        tapes = {r.rank: self.tape(r.rank) for r in self.ranks}
        path = self.out / "tapes" / tape_file.CONTROLLER_TAPE
        return {**tapes, CONTROLLER: tape_file.read(path)} if path.exists() else tapes

    def save(self) -> None:
        """Write the summary into the run's folder."""
        raw = asdict(self) | {"out": str(self.out), "dump": str(self.dump) if self.dump else None}
        (self.out / SUMMARY).write_text(json.dumps(raw, indent=1) + "\n")

    @classmethod
    def load(cls, out: Path) -> RunReport:
        """Read the summary of a run.

        Raises:
            InputError: there is none, or it is damaged.
        """
        try:
            raw = json.loads((out / SUMMARY).read_text())
            raw["ranks"] = [RankReport(**r) for r in raw["ranks"]]
            raw["out"] = out
            raw["dump"] = Path(raw["dump"]) if raw["dump"] else None
            return cls(**raw)
        except (OSError, ValueError, TypeError, KeyError) as e:
            raise InputError(f"{out / SUMMARY}: no report of a run ({e})") from None
