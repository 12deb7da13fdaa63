"""pystack's own text: of a process, of a core, coloured, with locals, several in a file."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given

from hicache_doctor.artifacts import pystack_text
from hicache_doctor.evidence.rows import Frame, Row, Sample, Stack
from tests.artifacts.cores import MAIN, core_of, scheduler
from tests.artifacts.small import mutations, numbered

REMOTE = """Traceback for thread 421 (python3) [] (most recent call last):
    (Python) File "/usr/lib/python3.12/threading.py", line 1032, in _bootstrap
        self._bootstrap_inner()
    (Python) File "/app/controller.py", line 30, in prefetch_thread_func
        item = self.queue.get()

Traceback for thread 412 (python3) [Has the GIL] (most recent call last):
    (Python) File "/app/scheduler.py", line 3120, in run_scheduler_process
        scheduler.event_loop_pp()
    (Python) File "/app/hiradix_cache.py", line 259, in writing_check
        self._all_reduce(count)
      Arguments:
        self: <HiRadixCache at 0x7fa36b908450>
        write_back: False
      Locals:
        finish_count: 3
    (C) File "/build/pair.cc", line 77, in gloo::transport::tcp::Pair::recv() (libtorch_cpu.so)
    (C) File "???", line 0, in __poll (libc.so.6)
"""
CORE = (
    """Using executable found in the core file: /usr/bin/python3.12

Core file information:
state: R zombie: True niceness: 0
pid: 412 ppid: 1 sid: 1
uid: 0 gid: 0 pgrp: 412
executable: sglang::schedul arguments: sglang::scheduler_PP0_TP3

The process died due receiving signal SIGABRT
"""
    + REMOTE
)


def parse(text: str) -> list[Row]:
    return pystack_text.parse(numbered(text), "x")


def main_of(rows: list[Row], nth: int = 0) -> tuple[Stack, list[Frame]]:
    stack = [r for r in rows if isinstance(r, Stack) and r.main][nth]
    return stack, [r for r in rows if isinstance(r, Frame) and r.stack == stack.id]


def test_frames_are_turned_round_and_the_main_thread_is_the_process() -> None:
    assert pystack_text.looks_like_pystack(REMOTE)
    rows = parse(REMOTE)
    stack, frames = main_of(rows)
    assert (stack.pid, stack.source, stack.status, stack.rank) == (412, "pyspy", "gil", None)
    assert (stack.line, stack.line_end) == (7, 18)
    assert [(f.function, f.file, f.line, f.native) for f in frames] == [
        ("__poll", "libc.so.6", None, True),
        ("gloo::transport::tcp::Pair::recv()", "libtorch_cpu.so", 77, True),
        ("writing_check", "hiradix_cache.py", 259, False),
        ("run_scheduler_process", "scheduler.py", 3120, False),
    ]
    assert [r.thread for r in rows if isinstance(r, Stack)] == ["421", "412"]


def test_a_core_says_whose_it_is_and_what_ended_it() -> None:
    rows = parse(CORE)
    assert [(r.rank, r.source) for r in rows if isinstance(r, Stack)] == [("PP0 TP3", "core")] * 2
    (death,) = (r for r in rows if isinstance(r, Sample))
    assert (death.value, death.rank, death.pid, death.line, death.labels["own"]) == (6.0, "PP0 TP3", 412, 9, True)
    sent = parse(CORE.replace("SIGABRT", "SIGABRT sent by pid 9"))
    assert [r.labels["own"] for r in sent if isinstance(r, Sample)] == [False]
    fault = "The process died due a segmentation fault accessing address: 0x10"
    (death,) = (
        r for r in parse(CORE.replace("The process died due receiving signal SIGABRT", fault)) if isinstance(r, Sample)
    )
    assert (death.value, death.labels["address"], death.labels["own"]) == (11.0, "0x10", True)
    assert not [r for r in parse(CORE.replace("SIGABRT", "SIGSTOP")) if isinstance(r, Sample)], "gcore ends nothing"


def test_dumps_after_each_other_are_numbered() -> None:
    rows = parse(REMOTE + REMOTE + CORE)
    assert [main_of(rows, n)[0].dump for n in range(3)] == [0, 1, 2]


@pytest.mark.skipif(importlib.util.find_spec("pystack") is None, reason="pystack is not installed")
@pytest.mark.parametrize("arguments", [["--native-all"], ["--locals"]])
def test_what_pystack_prints_of_a_core(tmp_path: Path, arguments: list[str]) -> None:
    with scheduler(tmp_path, sys.executable) as process:
        (tmp_path / "core").write_bytes(core_of(process.pid))
    command = [sys.executable, "-m", "pystack", "core", str(tmp_path / "core"), *arguments]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    stack, frames = main_of(parse(text))
    assert (stack.rank, stack.pid, stack.source) == ("PP1 TP0", process.pid, "core")
    assert [f.function for f in frames if not f.native] == MAIN


@given(mutations(CORE, REMOTE))
def test_never_raises(text: str) -> None:
    pystack_text.looks_like_pystack(text)
    parse(text)
