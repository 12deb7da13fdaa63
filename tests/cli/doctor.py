"""Running the command line as a user does: a process of its own, or ``main`` in this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "samples" / "crash_dumps"
CRASH = SAMPLES / "ack_skew-0.5.12.post1" / "input"
HEALTHY = ROOT / "rules" / "cases" / "healthy" / "control_ok-0.5.12.post1"


@dataclass(frozen=True)
class Ran:
    """What a run left."""

    code: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM"}}
    return {**plain, "PYTHONPATH": str(ROOT), **more}


def process(*args: str | Path, stdin: bytes = b"", cwd: Path | None = None, **env: str) -> Ran:
    """``python -m hicache_doctor args`` as a process; Python's own warnings are errors in it."""
    done = subprocess.run(
        [sys.executable, "-m", "hicache_doctor", *map(str, args)],
        input=stdin, capture_output=True, env=environment(**env), cwd=cwd, check=False,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def shell(command: str, cwd: Path, **env: str) -> Ran:
    """A line of bash in which ``$DOCTOR`` is the tool."""
    doctor = f"{sys.executable} -m hicache_doctor"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True, env=environment(DOCTOR=doctor, **env), cwd=cwd, check=False,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def one_line(text: str) -> bool:
    """One clear line and no traceback."""
    return text.count("\n") == 1 and "Traceback" not in text


def script(text: str, *args: str) -> Ran:
    """A small Python program that uses the package."""
    done = subprocess.run(
        [sys.executable, "-c", text, *args],
        capture_output=True,
        env=environment(),
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def commands() -> Sequence[tuple[str, ...]]:
    """Every command, with its subcommands."""
    return (
        ("analyze",), ("query",),
        *(("kb", name) for name in ("list", "show", "fixed-in", "missing-in")),
        *(("rules", name) for name in ("list", "show", "check", "test", "new")),
        ("reproduce",), ("runtime", "run"),
    )  # fmt: skip
