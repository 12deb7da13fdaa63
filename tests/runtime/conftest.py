"""One launcher for all tests of a module: torch is imported once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.launch import Launcher
from hicache_doctor.runtime.outcome import RunReport
from hicache_doctor.runtime.spec import Options
from hicache_doctor.runtime.world import Topology

TOYS = "tests.runtime.toys"
Run = Callable[..., RunReport]


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    pytest.importorskip("torch", reason="the processes world needs torch")
    with Launcher() as launcher:
        yield launcher


@pytest.fixture
def run(launcher: Launcher, tmp_path: Path) -> Run:
    """``run("toy", pp=2, tp=1, config fields…)``; each call has an output folder of its own."""
    calls = iter(range(99))

    def call(toy: str, *, pp: int = 2, tp: int = 2, options: dict[str, Any] | None = None, replay: Any = None,
             progress: Any = None, **fields: Any) -> RunReport:  # fmt: skip
        config = Config(topo=Topology(pp_size=pp, tp_size=tp), **fields)
        watched = Options(**{"watchdog": 60.0, "grace": 20.0, **(options or {})})
        out = tmp_path / f"run{next(calls)}"
        return launcher.run(config, out, main=f"{TOYS}:{toy}", options=watched, replay=replay, on_progress=progress)

    return call
