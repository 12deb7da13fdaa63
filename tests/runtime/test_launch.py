"""Runs from the outside: how they end, what they leave behind, and that our own readers understand it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the processes world needs torch")

from hicache_doctor.artifacts.expand import Source, expand
from hicache_doctor.artifacts.inventory import read_all
from hicache_doctor.artifacts.ranks import Identity
from hicache_doctor.artifacts.vocabulary import load
from hicache_doctor.errors import InputError, UsageError
from hicache_doctor.evidence.rows import ExceptionRow, Frame, LogRecord, Sample, Setting, Stack
from hicache_doctor.runtime import config_file, fixes
from hicache_doctor.runtime.config import Config, ModelShape
from hicache_doctor.runtime.faults import Abort, CopyLag, FaultPlan, LostKeys
from hicache_doctor.runtime.launch import Launcher
from hicache_doctor.runtime.outcome import RunReport
from hicache_doctor.runtime.pulse import Pulse, State
from hicache_doctor.runtime.spec import Spec
from hicache_doctor.runtime.watchdog import Watchdog
from hicache_doctor.runtime.world import Topology
from tests.runtime.conftest import TOYS, Run

ROOT = Path(__file__).resolve().parents[2]
RANKS = ["PP0 TP0", "PP0 TP1", "PP1 TP0", "PP1 TP1"]


def rows_of(path: Path, spool: Path) -> list[Any]:
    """What our readers find in a dump or a folder, ranks resolved."""
    spool.mkdir()
    read = {r.artifact.path: r.rows for r in read_all([str(path)], load(), spool=spool, stdin=None)}
    Identity(read, {}).resolve()
    return [row for rows in read.values() for row in rows]


def kinds(rows: list[Any], rank: str) -> list[str]:
    return [r.kind for r in rows if isinstance(r, LogRecord) and r.rank == rank and r.kind != "last_line"]


def states(report: RunReport) -> list[str]:
    return [r.state for r in report.ranks]


# -- ends that a run comes to by itself ---------------------------------------------------------------------------


def test_a_run_that_ends_in_order(run: Run) -> None:
    said: list[dict[str, Any]] = []
    report = run("stepping", steps=5, progress=said.append)
    assert (report.outcome, report.ok, report.exit_code) == ("done", True, 0)
    assert [(r.label, r.exit, r.step, r.result) for r in report.ranks] == [(x, 0, 5, {"steps": 5}) for x in RANKS]
    assert report.first is None
    assert report.dump is None and not (report.out / "crash.dump").exists()
    assert report.up_seconds is not None and report.up_seconds < report.seconds
    assert said[0]["type"] == "started" and len(set(said[0]["pids"])) == 4
    assert said[-1] == {"type": "progress", "states": ["done"] * 4, "steps": [5] * 4}
    assert RunReport.load(report.out) == report


def test_a_rank_that_raises_takes_the_others_with_it(run: Run, tmp_path: Path) -> None:
    report = run("raising")
    assert report.outcome == "failed" and report.exit_code == 1
    assert states(report) == ["peer_lost", "peer_lost", "error", "peer_lost"]
    assert report.first is report.ranks[2]
    assert report.first.error == "IndexError: pop from empty list"
    assert {(r.exit, r.step, r.thread) for r in report.ranks} == {(1, 3, "MainThread")}

    assert report.dump is not None
    rows = rows_of(report.dump, tmp_path / "spool")
    raised = {r.rank: r for r in rows if isinstance(r, ExceptionRow)}
    assert sorted(raised) == RANKS
    assert (raised["PP1 TP0"].type, raised["PP1 TP0"].message) == ("IndexError", "pop from empty list")
    for victim in ("PP0 TP0", "PP0 TP1", "PP1 TP1"):
        assert raised[victim].type == "RuntimeError"
        assert "by peer" in raised[victim].message
    assert {"init_distributed", "scheduler_exception"} <= set(kinds(rows, "PP1 TP0"))
    text = report.log(2).read_text()
    assert "PP1 TP0] Scheduler hit an exception: Traceback (most recent call last):\n  File " in text
    assert ", in run_scheduler_process\n" in text
    assert text.endswith("IndexError: pop from empty list\n\n")
    server = (report.out / "logs" / "server.log").read_text()
    assert "crashed with exit code 1." in server and "SIGQUIT received." in server


def test_a_background_thread_kills_its_rank_as_python_prints_it(run: Run, tmp_path: Path) -> None:
    report = run("failing_thread", tp=1)
    assert states(report) == ["error", "peer_lost"]
    assert report.ranks[0].thread == "Thread-1 (prefetch_io_aux_func)"
    text = report.log(0).read_text()
    assert "\nException in thread Thread-1 (prefetch_io_aux_func):\nTraceback (most recent call last):\n" in text
    assert report.dump is not None
    raised = [r for r in rows_of(report.dump, tmp_path / "spool") if isinstance(r, ExceptionRow)]
    assert [(r.type, r.thread) for r in raised if r.rank == "PP0 TP0"] == [
        ("AssertionError", "Thread-1 (prefetch_io_aux_func)")
    ]


def test_a_hang_is_seen_dumped_and_ended(run: Run, tmp_path: Path) -> None:
    report = run("hanging", options={"dumps": 2, "watchdog": 1.0})
    assert report.outcome == "hung"
    assert states(report) == ["hung"] * 4
    assert {(r.exit, r.signal) for r in report.ranks} == {(-9, "SIGKILL")}
    assert report.notes == []
    for place in (report.out / "pyspy", report.out / "pyspy" / "round_2"):
        files = sorted(p.name for p in place.iterdir() if p.is_file())
        assert files == sorted(f"{x.replace(' ', '_')}{e}" for x in RANKS for e in (".json", ".txt"))

    assert report.dump is not None
    rows = rows_of(report.dump, tmp_path / "spool")
    assert all("watchdog_timeout" in kinds(rows, rank) for rank in RANKS)
    stacks = {r.id: r for r in rows if isinstance(r, Stack) and r.source == "pyspy" and r.main}
    assert {r.rank for r in stacks.values()} == set(RANKS)
    frames: dict[str | None, set[str]] = {}
    for row in rows:
        if isinstance(row, Frame) and row.stack in stacks:
            frames.setdefault(stacks[row.stack].rank, set()).add(row.function)
    assert {"all_reduce", "writing_check"} <= frames["PP0 TP0"]
    for rank in RANKS[1:]:
        assert {"recv", "recv_requests"} <= frames[rank] and "all_reduce" not in frames[rank]
    # The victims were stopped before the first socket closed: nobody writes of a lost peer.
    assert not any(isinstance(r, ExceptionRow) for r in rows)
    recorder = json.loads((report.out / "flight_recorder" / "comm_lib_trace_rank_0.json").read_text())
    assert recorder["entries"][-1]["profiling_name"] == "gloo:all_reduce"
    assert recorder["entries"][-1]["retired"] is False


def test_a_planned_sigkill(run: Run) -> None:
    report = run("stepping", steps=40, faults=FaultPlan(kill=((2, 20),)))
    assert states(report) == ["peer_lost", "peer_lost", "signal", "peer_lost"]
    assert (report.ranks[2].signal, report.ranks[2].step) == ("SIGKILL", 20)
    assert report.first is report.ranks[2]
    assert "crashed with exit code -9." in (report.out / "logs" / "server.log").read_text()


def test_a_message_longer_than_the_buffer_aborts_the_receiver(run: Run, tmp_path: Path) -> None:
    report = run("mismatching", tp=1, options={"grace": 0.3})
    assert states(report) == ["hung", "signal"]
    assert report.ranks[1].signal == "SIGABRT"
    assert "24 vs 8" in report.ranks[1].error
    assert report.first is report.ranks[1]
    assert report.dump is not None
    texts = [r.text for r in rows_of(report.dump, tmp_path / "spool") if isinstance(r, LogRecord)]
    assert any("op.preamble.length <= op.nbytes. 24 vs 8" in t for t in texts)


def test_a_wire_time_out_is_an_exception(run: Run) -> None:
    report = run("timing_out", tp=1, wire_timeout=300_000_000, options={"grace": 0.3})
    assert states(report) == ["wire_timeout", "hung"]
    assert "Timed out waiting 300ms for recv operation to complete" in report.ranks[0].error


def test_a_tape_survives_whatever_ends_the_rank(run: Run) -> None:
    report = run("observed_to_death", tp=1)
    assert states(report) == ["signal", "peer_lost"]
    assert report.ranks[0].signal == "SIGKILL"
    assert [seen for _, seen in report.tape(0)] == [(0,), (1,), (2,)]


# -- what cannot run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topo", "words"),
    [
        (Topology(pp_size=0), "pp_size is 0"),
        (Topology(tp_size=-2), "tp_size is -2"),
        (Topology(pp_size=8, tp_size=65), "are 520 ranks; at most 512"),
    ],
)
def test_an_impossible_topology(launcher: Launcher, tmp_path: Path, topo: Topology, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        launcher.run(Config(topo=topo), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_and_a_wrong_main(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "old.log").write_text("")
    with pytest.raises(UsageError, match="not an empty folder"):
        launcher.run(Config(), tmp_path, main=f"{TOYS}:nothing")
    with pytest.raises(UsageError, match="module:function"):
        launcher.run(Config(), tmp_path / "new", main="nothing")
    with pytest.raises(InputError, match=r"rank PP\d TP0 ended at its start: AttributeError: .*PP\d_TP0.log"):
        launcher.run(Config(), tmp_path / "new", main=f"{TOYS}:missing")
    with pytest.raises(InputError, match="Not a directory"):
        launcher.run(Config(), tmp_path / "old.log" / "new", main=f"{TOYS}:nothing")


def test_a_full_disk_is_one_clear_line(run: Run) -> None:
    with pytest.raises(InputError, match="no space left on the disk"):
        run("disk_full", tp=1)


def test_the_launcher_goes_on_after_a_failure(launcher: Launcher, tmp_path: Path) -> None:
    config = Config(topo=Topology(pp_size=2))
    bad = launcher.run(config, tmp_path / "bad", main=f"{TOYS}:raising")
    good = launcher.run(config, tmp_path / "good", main=f"{TOYS}:nothing")
    assert (bad.outcome, good.outcome) == ("failed", "done")


# -- interruptions ------------------------------------------------------------------------------------------------


def gone(pid: int) -> bool:
    """Whether a process has ended (one that its new parent has not reaped yet has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_for(condition: Any) -> None:
    while not condition():
        time.sleep(0.02)


class Started:
    """A launcher with four ranks at work, in a terminal of its own as it were."""

    def __init__(self, folder: Path, argument: str | None = None) -> None:
        self.out, self.temporary = folder / "out", folder / "tmp"
        self.temporary.mkdir()
        config = Config(topo=Topology(pp_size=2, tp_size=2), steps=1_000_000)
        spec = json.dumps(Spec(config, self.out, f"{TOYS}:stepping", path=(str(ROOT),)).to_json())
        file = folder / "spec.json"
        file.write_text(spec)
        env = os.environ | {"TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hicache_doctor.runtime.launch", argument or str(file)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env,
        )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        if argument == "-":
            self.process.stdin.write(spec.encode() + b"\n")
            self.process.stdin.flush()
        self.pids: list[int] = []
        for line in self.process.stdout:
            said = json.loads(line)
            if said["type"] == "started":
                self.pids = said["pids"]
            if said["type"] == "progress" and min(said["steps"]) > 0:
                break
        assert len(self.pids) == 4 and not any(map(gone, self.pids))
        comm = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in (*self.pids, self.process.pid)]
        assert comm == ["sglang::schedul"] * 4 + ["sglang::data_pa"]

    def assert_nothing_is_left(self) -> None:
        assert all(map(gone, self.pids))
        assert list(self.temporary.iterdir()) == []
        report = RunReport.load(self.out)
        assert report.outcome == "interrupted" and report.exit_code == 130
        assert {r.state for r in report.ranks} == {"stopped"}
        assert all(r.step > 0 for r in report.ranks)
        for rank in range(4):
            assert "Init torch distributed ends." in report.log(rank).read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_no_process_and_no_file(tmp_path: Path, number: signal.Signals) -> None:
    started = Started(tmp_path)
    started.process.send_signal(number)
    started.process.communicate()
    assert started.process.returncode == 130
    started.assert_nothing_is_left()


def test_a_caller_that_goes_away_ends_the_run(tmp_path: Path) -> None:
    started = Started(tmp_path, "-")
    started.process.communicate()  # closes its input
    assert started.process.returncode == 130
    started.assert_nothing_is_left()


def test_no_rank_outlives_a_launcher_that_was_killed(tmp_path: Path) -> None:
    started = Started(tmp_path)
    started.process.kill()
    started.process.communicate()
    wait_for(lambda: all(map(gone, started.pids)))


def test_an_interrupted_caller_cleans_up_first(tmp_path: Path) -> None:
    pids: list[int] = []

    def progress(said: dict[str, Any]) -> None:
        if said["type"] == "started":
            pids.extend(said["pids"])
        elif min(said["steps"]) > 0:
            raise KeyboardInterrupt

    config = Config(topo=Topology(pp_size=2), steps=1_000_000)
    with Launcher() as launcher, pytest.raises(KeyboardInterrupt):
        launcher.run(config, tmp_path / "out", main=f"{TOYS}:stepping", on_progress=progress)
    assert len(pids) == 2 and all(map(gone, pids))
    assert RunReport.load(tmp_path / "out").outcome == "interrupted"


# -- what a dump holds --------------------------------------------------------------------------------------------


def test_the_dump_is_what_a_deployment_leaves_and_the_truth_lies_beside_it(run: Run, tmp_path: Path) -> None:
    plan = FaultPlan(copy_lag=(CopyLag(pp=1, steps=12),))
    switches = fixes.ALL.without(fixes.Fix.ACK_COUNTS)
    report = run("raising", faults=plan, fixes=switches, options={"scenario": "ack_skew"})
    assert report.dump is not None
    (tmp_path / "unpacked").mkdir()
    members = {
        item.path.partition("!")[2]: b"".join(bytes(b) for b in item.blocks(on_note=lambda _: None))
        for item in expand([str(report.dump)], spool=tmp_path / "unpacked", stdin=None)
        if isinstance(item, Source)
    }
    folders = {name.split("/")[0] for name in members}
    assert folders >= {"manifest.json", "server_info.json", "logs", "rings", "flight_recorder", "samples"}
    assert not any("truth" in name for name in members) and not {"tapes", "reports"} & folders
    everything = "\n".join(
        data.decode("utf-8", "replace") for name, data in members.items() if not name.startswith("flight_recorder")
    )
    for secret in ("ack_skew", "copy_lag", "27285", "fixes", "0.5.14", '"seed"'):
        assert secret not in everything
    truth = json.loads((report.out / "crash.truth.json").read_text())
    assert truth["scenario"] == "ack_skew" and truth["seed"] == 1
    assert "27285" not in truth["fixes"] and truth["faults"]["copy_lag"][0]["steps"] == 12
    assert config_file.from_json(truth["config"]).fixes == switches

    rows = rows_of(report.dump, tmp_path / "spool")
    settings = {(r.key, r.value) for r in rows if isinstance(r, Setting)}
    assert {("pp_size", "2"), ("tp_size", "2"), ("enable_hierarchical_cache", "True")} <= settings
    assert not any(key == "sglang_release_bound" for key, _ in settings)
    memory = [r for r in rows if isinstance(r, Sample) and r.name == "rss_bytes"]
    assert {r.rank for r in memory} == set(RANKS)
    assert {r.pid for r in memory} == {r.pid for r in report.ranks}
    assert all(r.value > 1e6 and r.ts for r in memory)


# -- parts that need no process -----------------------------------------------------------------------------------


def test_a_configuration_survives_its_file() -> None:
    every = FaultPlan(
        seed=3, copy_lag=(CopyLag(1, 2),), lost_keys=(LostKeys(0),), aborts=(Abort(4, state="running"),),
        slow_copy=((1, 9),), kill=((0, 7),), profile_fails=(1,), batch_full=((0, 1, 2),), misroute="twice",
    )  # fmt: skip
    configs = [
        Config(),
        Config(fixes=fixes.NONE),
        Config(fixes=fixes.parse("all,27285=beat,-28916")),
        Config(fixes=fixes.parse("", in_release=[27285, 99999])),
        Config(faults=every, model=ModelShape("mha", layer_partition=(1, 3)), topo=Topology(2, 2, 2, 2)),
    ]
    for config in configs:
        again = config_file.from_json(json.loads(json.dumps(config_file.to_json(config))))
        assert again == config
        assert again.fixes.unmodelled == config.fixes.unmodelled
    with pytest.raises(UsageError, match="no field 'wat'"):
        config_file.from_json({"wat": 1})
    with pytest.raises(UsageError, match="configuration: "):
        config_file.from_json({"topo": {"pp": 2}})
    with pytest.raises(UsageError, match="no option 'wat'"):
        Spec.from_json({"out": "x", "options": {"wat": 1}})


def test_the_watchdog_sees_who_stands_still() -> None:
    pulse, now = Pulse(3), [0.0]
    watchdog = Watchdog(pulse, 10, clock=lambda: now[0])
    for rank in range(3):
        pulse.meet(rank, rank + 1)
    assert pulse.met() == 3
    assert watchdog.stuck() == []
    now[0] = 9.0
    pulse.beat(0)
    pulse.enter(2, State.DONE)
    assert watchdog.stuck() == []
    now[0] = 11.0
    assert watchdog.stuck() == [1]
    now[0] = 15.0
    assert watchdog.stuck() == [0, 1]  # rank 0 stands for six seconds: it waits for rank 1
    pulse.stepped(1, 4)
    assert watchdog.stuck() == []
    now[0] = 40.0
    assert watchdog.stuck() == [0, 1]
    pulse.close()
