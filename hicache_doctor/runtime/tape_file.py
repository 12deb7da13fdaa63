"""A rank's tape on disk, written as it is observed: what a SIGKILL or an abort inside gloo ends has a tape too."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from hicache_doctor.runtime.world import Tape, TapeKey, Vector

CONTROLLER_TAPE = "data_parallel_controller.jsonl"
"""The DP controller's, beside those of the ranks."""


class TapeWriter:
    """Appends what is new in a list of observations; any thread may call :meth:`flush`."""

    def __init__(self, path: Path, log: list[tuple[TapeKey, Vector]]) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._log = log
        self._written = 0
        self._lock = threading.Lock()

    def flush(self) -> None:
        """Write what was observed since the last call."""
        with self._lock:
            new = self._log[self._written :]
            self._written += len(new)
            # As JSON: a third of what json.dumps takes, and this is asked for several times a step.
            lines = [
                f'[[{key[0]}, "{key[1]}", {key[2]}], [{", ".join([f"{v:d}" for v in seen])}]]\n' for key, seen in new
            ]
            os.write(self._fd, "".join(lines).encode())

    def close(self) -> None:
        """Close the file; a rank leaves that to its end."""
        os.close(self._fd)


def to_json(tape: Tape) -> list[Any]:
    """``[[step, kind, nth], [values…]]`` an entry."""
    return [[list(key), list(seen)] for key, seen in tape]


def from_json(raw: list[Any]) -> Tape:
    """What :func:`to_json` made."""
    return [((int(k[0]), str(k[1]), int(k[2])), tuple(map(int, seen))) for k, seen in raw]


def read(path: Path) -> Tape:
    """A tape from disk; empty where there is none. A last line that was cut off is left out."""
    entries = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            entries.append(json.loads(line))
        except ValueError:
            break
    return from_json(entries)
