"""The DP controller between real processes: pipes, the board, tapes across the worlds, interruptions."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the processes world needs torch")

from hicache_doctor.errors import UsageError
from hicache_doctor.probes.kinds import Kind, Msg
from hicache_doctor.runtime import ring_events, sim_run
from hicache_doctor.runtime.config import Config, ModelShape
from hicache_doctor.runtime.dp_lines import Desk, PipeLine
from hicache_doctor.runtime.faults import FaultPlan
from hicache_doctor.runtime.launch import Launcher
from hicache_doctor.runtime.outcome import RunReport
from hicache_doctor.runtime.scheduler.dp_controller import END
from hicache_doctor.runtime.scheduler.load import Load
from hicache_doctor.runtime.spec import Options, Spec
from hicache_doctor.runtime.streams import Stream, differences, streams
from hicache_doctor.runtime.workload import Workload
from hicache_doctor.runtime.world import CONTROLLER, Topology

ROOT = Path(__file__).resolve().parents[2]
DP2 = Topology(pp_size=2, dp_size=2)
LOAD = Workload(requests=24, turns=2, aborts=10)
OPTIONS = Options(watchdog=60, grace=20)


def events_of(report: RunReport) -> dict[int, list[Any]]:
    return ring_events.read(report.out / "rings", len(report.ranks))


def decided(events: dict[int, Any]) -> dict[int, dict[str, Stream]]:
    return {rank: streams(found) for rank, found in events.items()}


def outputs(report: RunReport) -> dict[int, dict[str, list[int]]]:
    return {r.rank: r.result["outputs"] for r in report.ranks if r.result is not None}


# -- whole runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dp_attention", [False, True])
def test_a_run_is_dispatched_and_its_tape_repeats_it_in_both_worlds(
    launcher: Launcher, tmp_path: Path, dp_attention: bool
) -> None:
    config = Config(topo=DP2, workload=LOAD, dp_policy="total_requests", dp_attention=dp_attention)
    report = launcher.run(config, tmp_path / "real", options=OPTIONS)
    assert report.ok, report.first
    events = events_of(report)
    assert differences(DP2, events) == []
    told = [sorted(e[4] for e in events[rank] if e[0] == Kind.DISPATCH) for rank in (0, 2)]
    assert sorted(told[0] + told[1]) == list(range(24)) and all(told)
    assert [sorted(map(int, outputs(report)[rank])) for rank in (0, 2)] == told
    assert all(any(e[0] == Kind.LOAD_SNAPSHOT for e in events[rank]) for rank in (0, 2))

    again = sim_run.run(config, replay=report.tapes())
    assert again.outcome.how == "done" and again.wrong_tokens() == []
    assert again.controller is not None and again.controller.misses == 0
    assert decided({rank: again.outcome.events(rank) for rank in range(4)}) == decided(events)

    first = sim_run.run(config, seed=5, preempt=3)
    real = launcher.run(config, tmp_path / "again", replay=first.tapes(), options=OPTIONS)
    assert real.ok, real.first
    assert [r.tape_misses for r in real.ranks] == [0] * 4
    assert real.tapes()[CONTROLLER] == first.tapes()[CONTROLLER]
    assert decided(events_of(real)) == decided({rank: first.outcome.events(rank) for rank in range(4)})


def test_dp_attention_with_a_real_model(launcher: Launcher, tmp_path: Path) -> None:
    """Tokens do not depend on which group computes a request, nor on what the other group does meanwhile."""
    load = Workload(requests=24, turns=2)
    config = Config(topo=DP2, workload=load, model=ModelShape("mha"), dp_attention=True)
    together = launcher.run(config, tmp_path / "together", options=OPTIONS)
    alone = launcher.run(config.but(topo=Topology(), dp_attention=False), tmp_path / "alone", options=OPTIONS)
    assert together.ok and alone.ok
    assert len({r.step for r in together.ranks}) == 1
    assert any(e[0] == Kind.IDLE_BATCH for rank in range(4) for e in events_of(together)[rank])
    for rank in (0, 1):  # the two stages of the first group, then of the second
        assert outputs(together)[rank] | outputs(together)[rank + 2] == outputs(alone)[0]


def test_twice_between_processes(launcher: Launcher, tmp_path: Path) -> None:
    config = Config(topo=Topology(dp_size=2), workload=Workload(requests=12), faults=FaultPlan(misroute="twice"))
    report = launcher.run(config, tmp_path / "run", options=OPTIONS)
    assert report.ok
    both = set(outputs(report)[0]) & set(outputs(report)[1])
    assert both == {"0", "4", "8"}
    assert all(outputs(report)[0][rid] == outputs(report)[1][rid] for rid in both)


def test_a_dead_group_is_noticed_while_requests_are_sent(launcher: Launcher, tmp_path: Path) -> None:
    load = Workload(requests=400, gap=10)
    config = Config(topo=DP2, workload=load, faults=FaultPlan(kill=((0, 20),)))
    report = launcher.run(config, tmp_path / "run", options=Options(watchdog=60, grace=0.5))
    assert report.outcome == "failed"
    assert report.first is report.ranks[0] and report.ranks[0].signal == "SIGKILL"


def test_a_wrong_policy_is_refused_before_anything_starts(launcher: Launcher, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="policies are round_robin"):
        launcher.run(Config(topo=DP2, dp_policy="fastest"), tmp_path / "run")


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_an_interruption_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    config = Config(topo=DP2, workload=Workload(requests=5000, gap=20), steps=1_000_000)
    (tmp_path / "spec.json").write_text(json.dumps(Spec(config, tmp_path / "out").to_json()))
    shared = set(os.listdir("/dev/shm"))
    launched = subprocess.Popen(
        [sys.executable, "-m", "hicache_doctor.runtime.launch", str(tmp_path / "spec.json")],
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert launched.stdout is not None
    pids: list[int] = []
    for line in launched.stdout:
        said = json.loads(line)
        pids = said.get("pids", pids)
        if said["type"] == "progress" and min(said["steps"]) > 20:
            break
    launched.send_signal(signal.SIGINT)
    launched.communicate()
    assert launched.returncode == 130
    assert len(pids) == 4 and all(map(gone, pids))
    assert list(temporary.iterdir()) == []
    assert not {name for name in set(os.listdir("/dev/shm")) - shared if "load" in name}
    report = RunReport.load(tmp_path / "out")
    assert report.outcome == "interrupted"
    assert any(e[0] == Kind.DISPATCH for e in events_of(report)[0])


# -- the desk -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def desk_of(config: Config, folder: Path) -> Iterator[Desk]:
    (folder / "tapes").mkdir()
    desk = Desk(Spec(config, folder), str(folder))
    try:
        yield desk
    finally:
        desk.close()


def test_what_finds_no_room_in_a_pipe_waits(tmp_path: Path) -> None:
    config = Config(topo=Topology(dp_size=2), workload=Workload(requests=5000, gap=0))
    with desk_of(config, tmp_path) as desk:
        assert list(tmp_path.iterdir()) == [tmp_path / "tapes"]  # the board has no name
        assert desk.work() is None and not desk.controller.ended  # nobody is ready
        for group in range(2):
            desk.board.write(group, Load(1, 0, 0))
        assert desk.work() is None and desk.controller.ended
        line = PipeLine(desk._pipes[0][0], desk.board, 0)
        came = line.poll()
        assert len(came) == 65536 // 64
        while not came or came[-1] != END:
            desk.work()
            came += line.poll()
        assert [letter[1] for letter in came[:-1]] == list(range(0, 5000, 2))
        assert {letter[0] for letter in came[:-1]} == {Msg.REQUEST}
        assert line.poll() == []


def test_letters_for_a_dead_rank_are_dropped(tmp_path: Path) -> None:
    config = Config(topo=Topology(dp_size=2), workload=Workload(requests=4, gap=0))
    with desk_of(config, tmp_path) as desk:
        desk.forked()  # no rank holds the other ends
        for group in range(2):
            desk.board.write(group, Load(1, 0, 0))
        desk.work()
        assert desk.controller.ended
        assert not any(desk._waiting.values())


def test_half_a_letter_waits_for_its_other_half(tmp_path: Path) -> None:
    with desk_of(Config(topo=Topology(dp_size=2)), tmp_path) as desk:
        reader, writer = desk._pipes[1]
        line = PipeLine(reader, desk.board, 1)
        os.write(writer, b"\1" + bytes(99))
        assert line.poll() == [(1, *[0] * 7)]
        os.write(writer, bytes(28))
        assert line.poll() == [(0,) * 8]
        line.report((time.monotonic_ns(), 3, 4))
        load = desk.board.read(1)
        assert load is not None and (load.requests, load.tokens) == (3, 4)
