"""Standing still: which ranks do, and the stacks of all of them before they are killed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hicache_doctor.runtime import executables
from hicache_doctor.runtime.grid import Child
from hicache_doctor.runtime.pulse import Pulse, State
from hicache_doctor.runtime.rank_log import file_stem

_FORMS = ((".txt", ()), (".json", ("--json",)))
_PATIENCE = 20.0


class Watchdog:
    """Unlike SGLang's, which watches only while its rank has a batch, this one sees idle ranks too."""

    def __init__(self, pulse: Pulse, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._pulse = pulse
        self._seconds = seconds
        self._clock = clock
        now = clock()
        self._seen = [(pulse.reading(rank), now) for rank in range(pulse.ranks)]

    def stuck(self) -> list[int]:
        """Empty, or, once a rank in its loop has shown no sign of life for too long, all that stand still with it.

        A hang reaches the ranks one after the other: who waits for half the time already belongs to it. A rank that has
        not met the others yet is left to the wire's own time-out.
        """
        now = self._clock()
        still: list[tuple[int, float]] = []
        for rank, (before, since) in enumerate(self._seen):
            reading = self._pulse.reading(rank)
            if reading != before:
                self._seen[rank] = (reading, now)
            elif reading[0] == State.RUNNING:
                still.append((rank, now - since))
        if not any(seconds > self._seconds for _, seconds in still):
            return []
        return [rank for rank, seconds in still if seconds > self._seconds / 2]


def dump_stacks(folder: Path, children: Sequence[Child], rounds: int = 1, pause: float = 0.5) -> list[str]:
    """Text and JSON of every rank's stacks, ``rounds`` times; a later round has a folder of its own.

    Returns what went wrong, a line each. Idle ranks are dumped too: who waits for whom shows only in the combination.
    """
    tool = executables.find("py-spy")
    if tool is None:
        return ["py-spy is not installed; no stacks were taken"]
    notes = []
    for number in range(1, rounds + 1):
        if number > 1:
            time.sleep(pause)
        place = folder if number == 1 else folder / f"round_{number}"
        place.mkdir(exist_ok=True)
        for child in children:
            for ending, flags in _FORMS:
                path = place / f"{file_stem(child.label)}{ending}"
                note = _dump([tool, "dump", "--pid", str(child.pid), *flags], path)
                if note:
                    notes.append(f"{child.label}: {note}")
    return notes


def _dump(command: list[str], path: Path) -> str:
    with path.open("wb") as out:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, timeout=_PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            return f"py-spy gave no stack within {_PATIENCE:g} s"
    if done.returncode == 0:
        return ""
    path.unlink(missing_ok=True)
    words = done.stderr.decode(errors="replace").strip().replace("\n", "; ")
    return f"py-spy failed with code {done.returncode}: {words}"
