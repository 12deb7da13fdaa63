"""A real Mooncake service and two ranks, each a process as in a run. Skipped, with the reason, where it is missing."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hicache_doctor.errors import UsageError
from hicache_doctor.runtime import launch as launch_module
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.model.null import NullModel
from hicache_doctor.runtime.spec import Options
from hicache_doctor.runtime.storage import mooncake_service
from hicache_doctor.runtime.storage.mooncake_service import MooncakeService, free_ports, missing
from hicache_doctor.runtime.storage.open import open_storage
from hicache_doctor.runtime.workload import Workload
from hicache_doctor.runtime.world import Topology
from tests.runtime.lone_world import LoneWorld

PR_SET_CHILD_SUBREAPER = 36
LAUNCHER = Path(__file__).with_name("mooncake_launcher.py")
needs_mooncake = pytest.mark.skipif(missing() is not None, reason=missing() or "")


def launch(folder: Path, *args: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, str(LAUNCHER), str(folder), *args], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(said, dict)
    return said


@needs_mooncake
def test_two_ranks_share_a_real_service_and_leave_nothing_behind(tmp_path: Path) -> None:
    said = launch(tmp_path)
    assert said["writer"] == {"absent": 0, "put": 9, "exists": 9, "read": 9, "partial": 9, "again": 0}
    assert said["reader"] == {"exists": 9, "right": 9, "other_stage": 0}
    assert said["interfaces"] == ["lo"] or said["namespace"] is not None
    assert not Path(f"/proc/{said['pid']}").exists()


@needs_mooncake
def test_a_killed_launcher_takes_the_service_with_it(tmp_path: Path) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # an orphan becomes our child, so its end can be waited for
    try:
        process = subprocess.Popen(
            [sys.executable, str(LAUNCHER), str(tmp_path), "hang"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        master = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        _, status = os.waitpid(master, 0)
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


@needs_mooncake
def test_a_master_that_dies_midway_is_named_and_nothing_stays(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    config = Config(topo=Topology(pp_size=2), l3="mooncake", l3_path="-", workload=Workload(requests=400), steps=600)
    masters: list[int] = []

    def strike(said: dict[str, object]) -> None:
        steps = said.get("steps")
        if not masters and isinstance(steps, list) and min(steps) >= 20:
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            masters.extend(p for c in children for p in _masters_below(int(c)))
            os.kill(masters[0], signal.SIGKILL)

    report = launch_module.run(config, tmp_path / "run", on_progress=strike, options=Options(watchdog=3.0))
    assert masters and report.outcome in ("hung", "failed", "done")
    assert any(f"mooncake_master (pid {masters[0]}) ended during the run, by signal 9" in n for n in report.notes)
    assert [r.pid for r in report.ranks if Path(f"/proc/{r.pid}").exists()] == []
    assert report.outcome == "done" or (report.dump is not None and report.dump.exists())


def _masters_below(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(c) for c in children if "mooncake_master" in Path(f"/proc/{c}/cmdline").read_text()]


def test_what_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mooncake_service.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install mooncake-transfer-engine-non-cuda"):
        MooncakeService(tmp_path).start()
    world = LoneWorld()
    config = Config(topo=world.topo, l3="mooncake", l3_path="127.0.0.1:1/2")
    with pytest.raises(UsageError, match="mooncake is not installed"):
        open_storage(config, world, NullModel(config, world))
    monkeypatch.setattr(mooncake_service.importlib.util, "find_spec", lambda name: object())

    def no_library(name: object) -> None:
        raise OSError

    monkeypatch.setattr(mooncake_service.ctypes, "CDLL", no_library)
    assert missing() == "mooncake needs libibverbs.so.1, even over TCP: apt-get install libibverbs1"


def test_a_master_that_does_not_come_up_is_said_and_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "mooncake_master"
    fake.write_text("#!/bin/sh\necho no licence for tea >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(mooncake_service, "missing", lambda: None)
    monkeypatch.setattr(mooncake_service.executables, "find", lambda name: str(fake))
    service = MooncakeService(tmp_path)
    with pytest.raises(UsageError, match=r"does not come up.*no licence for tea"):
        service.start()
    assert service.pid == 0
    service.stop()


def test_free_ports_differ() -> None:
    assert len(set(free_ports(5))) == 5
