"""Load snapshots in shared memory: whole or not at all, between real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hicache_doctor.errors import InputError
from hicache_doctor.runtime.scheduler.load import Load
from hicache_doctor.runtime.scheduler.load_snapshot import SharedBoard

ROOT = Path(__file__).resolve().parents[2]
WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from hicache_doctor.runtime.scheduler.load import Load
from hicache_doctor.runtime.scheduler.load_snapshot import SharedBoard
board = SharedBoard.open(sys.argv[1])
print("ready", flush=True)
stamp = 0
while board.read(1) is None:  # the reader says when it has seen enough
    for _ in range(5):
        stamp += 1
        board.write(0, Load(stamp, 3 * stamp, 7 * stamp))
    sum(range(1000))  # a gap, or the reader hardly ever meets a whole one
print(stamp, flush=True)
"""
DIES = """
import os, sys
sys.path.insert(0, sys.argv[2])
from hicache_doctor.runtime.scheduler.load_snapshot import SharedBoard
with SharedBoard.open(sys.argv[1]).writing(0) as slot:
    slot[0] = 99
    os._exit(9)
"""


def test_what_is_written_is_read(tmp_path: Path) -> None:
    board = SharedBoard.create(tmp_path / "loads", 3)
    assert [board.read(g) for g in range(3)] == [None, None, None]
    board.write(1, Load(5, 6, 7))
    other = SharedBoard.open(tmp_path / "loads")
    assert [other.read(g) for g in range(3)] == [None, Load(5, 6, 7), None]
    other.write(1, Load(8, 9, 10))
    assert board.read(1) == Load(8, 9, 10)
    assert board.torn == 0
    board.close()
    other.close()


def test_a_reader_during_a_write_sees_that_it_is_torn(tmp_path: Path) -> None:
    writer = SharedBoard.create(tmp_path / "loads", 1)
    reader = SharedBoard.open(tmp_path / "loads")
    writer.write(0, Load(1, 1, 1))
    with writer.writing(0) as slot:
        slot[0] = 2
        assert reader.read(0) is None
    assert reader.torn > 0
    assert reader.read(0) is None  # the sequence is even again, the checksum is wrong
    writer.write(0, Load(3, 3, 3))
    assert reader.read(0) == Load(3, 3, 3)
    writer.close()
    reader.close()


def test_a_writer_killed_in_the_middle_is_seen_and_its_successor_mends_it(tmp_path: Path) -> None:
    board = SharedBoard.create(tmp_path / "loads", 1)
    board.write(0, Load(1, 1, 1))
    done = subprocess.run([sys.executable, "-c", DIES, str(tmp_path / "loads"), str(ROOT)], check=False)
    assert done.returncode == 9
    assert board.read(0) is None
    board.write(0, Load(2, 2, 2))
    assert board.read(0) == Load(2, 2, 2)
    board.close()


def test_two_processes_at_once_never_show_half_a_snapshot(tmp_path: Path) -> None:
    board = SharedBoard.create(tmp_path / "loads", 2)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "loads"), str(ROOT)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    last = changes = 0
    while changes < 200:
        load = board.read(0)
        if load is None:
            continue
        assert (load.requests, load.tokens) == (3 * load.stamp, 7 * load.stamp)
        assert load.stamp >= last
        changes += load.stamp != last
        last = load.stamp
    board.write(1, Load(1, 0, 0))
    assert int(writer.stdout.readline()) >= last
    assert writer.wait() == 0
    writer.stdout.close()
    board.close()


@pytest.mark.parametrize("content", [b"", b"x" * 64, b"x" * 200])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(InputError, match="not a board"):
        SharedBoard.open(tmp_path / "f")
