"""The recorder: what it keeps, what it bounds, and that it never gets in the way of its rank."""

from __future__ import annotations

import math
import os
import resource
import struct
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from hicache_doctor.probes import ring
from hicache_doctor.probes.kinds import Kind, tables
from hicache_doctor.probes.process import both_clocks, start_ticks
from hicache_doctor.probes.recorder import Recorder
from tests.probes.rings import STEP, collected, until, wrote

ROOT = Path(__file__).resolve().parents[2]


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_an_event_comes_back_as_it_went_in(tmp_path: Path) -> None:
    with Recorder.open(tmp_path, 5, "PP1 TP1", pp=1, tp=1, sizes={"pp_size": 2}) as recorder:
        before = both_clocks()[0]
        recorder.step[0] = 41
        recorder.make_record()(Kind.SUBMIT, 2**64 - 1, 1, -2, 2**63 - 1, -(2**63))
        after = both_clocks()[0]
    (event,), totals = collected(tmp_path)
    slack = 1_000_000_000  # two clocks that were read apart
    assert before - slack <= event.pop("ts_ns") <= after + slack
    assert event == {
        "artifact": "rings/rank5.000000.ring", "rank": "PP1 TP1", "step": 41, "thread": 0, "kind": "submit",
        "key": 2**64 - 1, "a": 1, "b": -2, "c": 2**63 - 1, "d": -(2**63), "record": 0, "seq": 0,
    }  # fmt: skip
    assert (totals["PP1 TP1"].events, totals["PP1 TP1"].torn, totals["PP1 TP1"].lost) == (1, 0, 0)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (2**63, -(2**63)),
        (2**64 + 5, 5),
        (-(2**63) - 1, 2**63 - 1),
        (1.9, 1),
        (math.nan, 0),
        (math.inf, 0),
        (None, 0),
        ("no number", 0),
        (True, 1),
    ],
)
def test_a_value_that_does_not_fit_costs_itself_and_nothing_else(tmp_path: Path, value: Any, kept: int) -> None:
    with Recorder.open(tmp_path, 0, "TP0") as recorder:
        record = recorder.make_record()
        record(STEP, 1, 2, value, 4, 5)
        record(STEP, value, 6)
        recorder.step[0] = value
        record(value, 7, 8)
    first, second, third = collected(tmp_path)[0]
    assert (first["a"], first["b"], first["c"], first["d"]) == (2, kept, 4, 5)
    assert (second["key"], second["a"]) == (kept % 2**64, 6)
    assert (third["step"], third["kind"], third["a"]) == (kept % 2**32, kinds_name(kept % 2**16), 8)


def kinds_name(number: int) -> str:
    return tables()["kind"].get(number, f"kind_{number}")


def test_threads_are_told_apart_and_nothing_is_lost_between_them(tmp_path: Path) -> None:
    count, threads = 3000, 4
    with Recorder.open(tmp_path, 0, "TP0", segment_slots=500, max_segments=100) as recorder:
        record = recorder.make_record()
        start = threading.Barrier(threads)

        def run(who: int) -> None:
            start.wait()
            for i in range(count):
                record(STEP, who, i)

        workers = [threading.Thread(target=run, args=(n,)) for n in range(threads)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
    events, totals = collected(tmp_path)
    assert [e["seq"] for e in events] == list(range(count * threads))
    for who in range(threads):
        own = [e for e in events if e["key"] == who]
        assert [e["a"] for e in own] == list(range(count))
        assert len({e["thread"] for e in own}) == 1
    assert len({(e["key"], e["thread"]) for e in events}) == threads
    assert totals["TP0"].torn == 0


def test_the_disk_is_bounded_and_what_went_is_known(tmp_path: Path) -> None:
    most: list[int] = []
    with Recorder.open(tmp_path, 0, "TP0", segment_slots=100, max_segments=3) as recorder:
        record = recorder.make_record()
        for i in range(1234):
            record(STEP, 0, i)
            most.append(len(names(tmp_path)))
        until(lambda: f"rank0.{13:06d}.ring.next" in names(tmp_path))
        assert names(tmp_path) == ["rank0.000011.ring", "rank0.000012.ring", "rank0.000013.ring.next"]
    assert max(most) <= 3
    events, totals = collected(tmp_path)
    assert [e["a"] for e in events] == list(range(1100, 1234))
    assert [e["seq"] for e in events] == list(range(1100, 1234))
    assert totals["TP0"].missed == 1100
    # AND closing left no prepared segment behind
    assert names(tmp_path) == ["rank0.000011.ring", "rank0.000012.ring"]


def test_a_restarted_rank_goes_on_numbering_behind_its_former_segments(tmp_path: Path) -> None:
    wrote(tmp_path, 250, segment_slots=100, max_segments=6)
    (tmp_path / "rank0.000099.ring.next").write_bytes(b"left by a killed process")
    wrote(tmp_path, 10, segment_slots=50, max_segments=6)
    assert names(tmp_path) == [f"rank0.{n:06d}.ring" for n in range(4)]
    events, totals = collected(tmp_path)
    assert [e["seq"] for e in events] == [*range(250), *range(300, 310)]
    assert totals["PP0 TP0"].missed == 0
    heads = [ring.parse(p.read_bytes()) for p in sorted(tmp_path.iterdir())]
    assert [h.owner.life_base for h in heads] == [0, 0, 0, 300]


def test_a_header_names_the_process_and_nothing_of_what_it_was_told_to_do(tmp_path: Path) -> None:
    wrote(tmp_path, 1, rank=3, label="PP1 TP1", pp=1, tp=1, sizes={"pp_size": 2, "tp_size": 2})
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    header = ring.parse(data)
    owner = header.owner
    assert (owner.pid, owner.start_ticks, owner.rank, owner.label) == (os.getpid(), start_ticks(), 3, "PP1 TP1")
    assert (owner.dp, owner.pp, owner.cp, owner.tp, owner.sizes) == (0, 1, 0, 1, {"pp_size": 2, "tp_size": 2})
    assert header.tables == tables()
    assert header.size % ring.PAGE == 0 and owner.boot_id and owner.host
    text = data[: header.size].lower()
    for word in (
        b"fault",
        b"scenario",
        b"switch",
        b"inject",
        b"seed",
        b"signature",
        b"expect",
        b"fix",
        b"bug",
        b"diverg",
    ):
        assert word not in text, word


def test_a_forked_child_records_nothing_into_its_parents_ring(tmp_path: Path) -> None:
    told: list[str] = []
    with Recorder.open(tmp_path, 0, "TP0", warn=told.append) as recorder:
        record = recorder.make_record()
        record(STEP, 0, 1)
        pid = os.fork()
        if pid == 0:
            # IN the child: two events go nowhere, with one warning; a recorder of its own works
            try:
                record(STEP, 0, 666)
                record(STEP, 0, 667)
                ok = recorder.lost == 2 and len(told) == 1 and "fork" in told[0]
                with Recorder.open(tmp_path, 1, "TP1") as own:
                    own.make_record()(STEP, 0, 3)
            except BaseException:
                ok = False
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        record(STEP, 0, 2)
    events, _ = collected(tmp_path)
    assert [(e["rank"], e["a"]) for e in events] == [("TP0", 1), ("TP0", 2), ("TP1", 3)]
    assert told == [] and recorder.lost == 0


LIMITED = """
import resource, sys, time
from pathlib import Path
from hicache_doctor.probes.recorder import Recorder
folder = Path(sys.argv[1])
told = []
def warn(text):
    told.append(text)
    raise RuntimeError("a broken callback")
recorder = Recorder.open(folder, 0, "TP0", segment_slots=100, max_segments=8, warn=warn)
record = recorder.make_record()
record(2, 0, 0)
while recorder._ready is None:
    time.sleep(0.001)
# From now on no file may grow: as a full disk, seen from the making of a segment.
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
for i in range(1, 350):
    record(2, 0, i)
print(recorder.lost, len(told), told[0])
recorder.close()
record(2, 0, 0)
print(recorder.lost)
"""


def test_a_full_disk_stops_the_recording_and_not_the_rank(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    # THEN the two segments that existed are full, the others' events are counted, and the user was told once
    lost, last = done.stdout.splitlines()
    assert lost.startswith("150 1 recording stopped: no room for the next segment") and last == "151"
    events, totals = collected(tmp_path)
    assert [e["a"] for e in events] == list(range(200))
    assert totals["TP0"].lost == 151


def test_a_recording_that_cannot_start_is_told_and_harmless(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told: list[str] = []
    with Recorder.open(tmp_path / "file" / "below", 0, "TP0", warn=told.append) as recorder:
        recorder.make_record()(STEP)
    assert len(told) == 1 and recorder.lost == 1
    with pytest.raises(ValueError):
        Recorder.open(tmp_path, 0, "TP0", segment_slots=0)


def test_a_signal_handler_may_record_at_any_moment(tmp_path: Path) -> None:
    script = """
    import signal, sys, threading
    from hicache_doctor.probes.recorder import Recorder
    recorder = Recorder.open(sys.argv[1], 0, "TP0", segment_slots=3, max_segments=50)
    record = recorder.make_record()
    count = 0
    def handler(*_):
        global count
        count += 1
        record(2, 1, count)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    for i in range(600):
        record(2, 2, i)
    signal.setitimer(signal.ITIMER_REAL, 0)
    recorder.close()
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=60,
    )  # fmt: skip
    events, _ = collected(tmp_path)
    seqs = [e["seq"] for e in events]
    assert seqs == sorted(set(seqs)) and any(e["a"] == 599 for e in events if e["key"] == 2)


def test_the_recorder_needs_the_standard_library_only() -> None:
    code = (
        "import sys; import hicache_doctor.probes.recorder, hicache_doctor.probes.trim; "
        "bad = {m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names) - {'hicache_doctor', '__main__'}; "
        "print(sorted(m for m in bad if not m.startswith('_')))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_layout_is_what_the_format_says() -> None:
    assert ring.RECORD.size == ring.COMMIT_AT and ring.COMMIT_AT + ring.WORD.size == ring.RECORD_BYTES
    assert ring.FIXED.size == 64 and struct.calcsize("<7sBIIQQQQ") == ring.LOST_AT
    assert resource.getpagesize() % ring.PAGE == 0
