"""The log reader: whose line it is, what opens and ends a record, what is kept."""

from __future__ import annotations

from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.artifacts import sglang_log
from hicache_doctor.artifacts.inventory import unwrap
from hicache_doctor.artifacts.vocabulary import load
from hicache_doctor.evidence.rows import BOUND_KEY, Batch, ExceptionRow, Frame, LogRecord, Row, Setting, Stack

WORDS = load()
R = TypeVar("R", bound=Row)
TRACE = """\
  File "/opt/sglang/srt/managers/scheduler.py", line 4041, in run_scheduler_process
    scheduler.run_event_loop()
  File "/opt/sglang/srt/mem_cache/hiradix_cache.py", line 936, in writing_check
    ack_write_queue.pop(0)
IndexError: pop from empty list
"""
PYSPY = """\
Process 4711: sglang::scheduler_PP9_TP9
Python v3.12.3 (/usr/bin/python3)

Thread 4711 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2810)
    writing_check (hiradix_cache.py:530)

Thread 4800 (active): "Thread-3"
    prefetch_io_aux_func (cache_controller.py:700)
"""


def read(text: str) -> sglang_log.LogReader:
    return sglang_log.read("a.log", unwrap(text, "a.log")[0], WORDS)


def of(reader: sglang_log.LogReader, kind: type[R]) -> list[R]:
    return [r for r in reader.rows if isinstance(r, kind)]


def logs(reader: sglang_log.LogReader, kind: str) -> list[LogRecord]:
    return [r for r in of(reader, LogRecord) if r.kind == kind]


def at(second: int, rank: str, message: str) -> str:
    return f"[2026-05-28 02:19:{second:02d}{' ' + rank if rank else ''}] {message}\n"


# -- whose line it is ---------------------------------------------------------------------------------------------


def test_a_traceback_belongs_to_the_rank_that_announced_it() -> None:
    # GIVEN a rank that hits an exception, and an unprefixed traceback after it
    text = at(1, "PP1 TP0", "Scheduler hit an exception: Traceback (most recent call last):") + TRACE
    reader = read(at(0, "PP0 TP0", "Init torch distributed begin.") + text)
    # THEN the exception, its stack and its frames are that rank's
    (raised,) = of(reader, ExceptionRow)
    assert (raised.rank, raised.type, raised.message) == ("PP1 TP0", "IndexError", "pop from empty list")
    assert raised.prefixed and raised.line == 7 and raised.ts is not None
    (stack,) = of(reader, Stack)
    assert (stack.rank, stack.source, stack.id) == ("PP1 TP0", "traceback", raised.stack)
    assert [(f.depth, f.function) for f in of(reader, Frame)] == [(0, "writing_check"), (1, "run_scheduler_process")]
    assert logs(reader, "scheduler_exception")[0].rank == "PP1 TP0"


def test_a_bare_traceback_has_no_rank() -> None:
    # The last prefix proves nothing about a process that shares the pipe.
    reader = read(at(0, "PP0", "Load weight begin.") + "Traceback (most recent call last):\n" + TRACE)
    assert [e.rank for e in of(reader, ExceptionRow)] == [None]


def test_a_vocabulary_line_without_prefix_is_the_last_ranks() -> None:
    reader = read(at(0, "PP1 TP0", "Scheduler debug info:") + "cur_batch.batch_size()=3\n")
    assert [r.rank for r in logs(reader, "current_batch")] == ["PP1 TP0"]
    assert logs(reader, "current_batch")[0].ts == logs(reader, "debug_info")[0].ts


def test_ranks_that_share_a_file_keep_their_own_tracebacks() -> None:
    # GIVEN one pipe with two ranks, the second of which fails in the first one's traceback
    text = (
        at(1, "PP0", "Scheduler hit an exception: Traceback (most recent call last):")
        + TRACE.replace("IndexError: pop from empty list\n", "RuntimeError: [gloo] Connection closed by peer\n")
        + at(1, "PP1", "Scheduler hit an exception: Traceback (most recent call last):")
        + TRACE
    )
    reader = read(text)
    assert [(e.rank, e.type, e.proof) for e in of(reader, ExceptionRow)] == [
        ("PP0", "RuntimeError", "peer_closed"),
        ("PP1", "IndexError", "own"),
    ]


def test_another_ranks_line_inside_a_traceback_ends_nothing() -> None:
    # GIVEN a batch line of PP0 torn into PP1's traceback
    lines = (at(1, "PP1", "Scheduler hit an exception: Traceback (most recent call last):") + TRACE).splitlines(True)
    lines.insert(3, at(1, "PP0", "Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 0, token usage: 0.10"))
    reader = read("".join(lines))
    # THEN the traceback goes on
    (raised,) = of(reader, ExceptionRow)
    assert (raised.rank, raised.type) == ("PP1", "IndexError")
    assert [f.function for f in of(reader, Frame)] == ["writing_check", "run_scheduler_process"]
    assert [b.rank for b in of(reader, Batch)] == ["PP0"]


def test_after_another_record_nothing_is_added_to_a_message() -> None:
    # GIVEN a bare traceback that no line of its own rank can end, and a debug block later on
    text = "Traceback (most recent call last):\n" + TRACE + at(2, "PP1", "Scheduler debug info:")
    reader = read(text + "cur_batch.batch_size()=3\n")
    assert [e.message for e in of(reader, ExceptionRow)] == ["pop from empty list"]
    assert [r.rank for r in logs(reader, "current_batch")] == ["PP1"]


def test_a_chain_goes_on_after_another_ranks_line() -> None:
    first = at(1, "PP1", "Scheduler hit an exception: Traceback (most recent call last):") + TRACE
    between = at(1, "PP0", "hello") + "\nDuring handling of the above exception, another exception occurred:\n\n"
    second = "Traceback (most recent call last):\n" + TRACE.replace("IndexError", "RuntimeError")
    assert [(e.rank, e.type) for e in of(read(first + between + second), ExceptionRow)] == [
        ("PP1", "IndexError"),
        ("PP1", "RuntimeError"),
    ]


def test_the_same_ranks_next_line_ends_a_traceback() -> None:
    cut = "".join(TRACE.splitlines(True)[:2])
    reader = read(at(1, "PP1", "hit an exception: Traceback (most recent call last):") + cut + at(2, "PP1", "bye"))
    (raised,) = of(reader, ExceptionRow)
    assert raised.type == "" and raised.rank == "PP1"


def test_torchrun_numbers_are_ranks() -> None:
    reader = read("".join(f"[rank2]: {line}\n" for line in ["Traceback (most recent call last):", *TRACE.split("\n")]))
    assert [e.rank for e in of(reader, ExceptionRow)] == ["rank 2"]


def test_a_log_line_without_ranks_has_none() -> None:
    # tp = pp = 1: SGLang prints no rank at all
    reader = read(at(0, "", "Init torch distributed begin.") + at(1, "", "The server is fired up and ready to roll!"))
    assert {r.rank for r in of(reader, LogRecord)} == {None}


def test_an_access_log_line_does_not_take_the_rank_away() -> None:
    # uvicorn stamps its lines but names no rank
    text = at(0, "PP1", "Scheduler debug info:") + at(1, "", 'INFO:     10.0.0.9:1 - "GET /health HTTP/1.1" 200 OK')
    reader = read(text + "cur_batch.batch_size()=3\n")
    assert [r.rank for r in logs(reader, "current_batch")] == ["PP1"]


# -- py-spy and debug blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "announcement", ["Pyspy dump for PID 4711:", "Pyspy dump for PID 4711 (py-spy dump --native --pid 4711):"]
)
def test_a_pyspy_block_is_the_announcing_ranks(announcement: str) -> None:
    # GIVEN a watchdog's dump between log lines
    dump = PYSPY.replace("sglang::scheduler_PP9_TP9", "sglang::schedul")
    reader = read(
        at(1, "PP1 TP0", announcement) + dump + at(2, "PP1 TP0", "Watchdog timeout (self.watchdog_timeout=300)")
    )
    # THEN both threads are the announcing rank's, the main thread is marked, and the log goes on
    stacks = of(reader, Stack)
    assert [(s.rank, s.thread, s.main, s.pid) for s in stacks] == [
        ("PP1 TP0", "MainThread", True, 4711),
        ("PP1 TP0", "Thread-3", False, 4711),
    ]
    assert stacks[0].ts == logs(reader, "pyspy_dump")[0].ts
    assert [f.function for f in of(reader, Frame)] == ["all_reduce", "writing_check", "prefetch_io_aux_func"]
    assert logs(reader, "watchdog_timeout")[0].rank == "PP1 TP0"
    assert of(reader, ExceptionRow) == []


def test_the_title_beats_the_announcement() -> None:
    assert {s.rank for s in of(read(at(1, "PP1 TP0", "Pyspy dump for PID 4711:") + PYSPY), Stack)} == {"PP9 TP9"}


def test_two_dumps_in_a_row() -> None:
    dump = PYSPY.replace("sglang::scheduler_PP9_TP9", "python3")
    reader = read(
        at(1, "PP0", "Pyspy dump for PID 4711:") + dump + at(2, "PP1", "Pyspy dump for PID 4712:")
        + dump.replace("4711", "4712")
    )  # fmt: skip
    assert [(s.rank, s.pid) for s in of(reader, Stack) if s.main] == [("PP0", 4711), ("PP1", 4712)]


def test_debug_info_of_both_generations() -> None:
    old = "self.max_total_num_tokens=1024, available_size=32, evictable_size=64\n"
    new = "[full] total=1024, available=96, evictable=64, protected=800, session_held=0, uncached=64\n"
    reader = read(at(1, "PP0", "Scheduler debug info:") + old + new + "\ncur_batch_for_debug.batch_size()=2\n")
    assert [sorted(r.fields) for r in logs(reader, "pool_state")] == [
        ["available2", "evictable2", "total2"],
        ["available", "evictable", "pool", "protected", "total"],
    ]
    assert logs(reader, "current_batch")[0].fields == {"size": "2"}


# -- exceptions ---------------------------------------------------------------------------------------------------


def test_exception_in_thread_names_the_thread() -> None:
    reader = read("Exception in thread Thread-7 (backup_thread_func):\nTraceback (most recent call last):\n" + TRACE)
    assert [e.thread for e in of(reader, ExceptionRow)] == ["Thread-7 (backup_thread_func)"]


def test_a_chain_gives_a_row_each() -> None:
    text = "Traceback (most recent call last):\n" + TRACE
    between = "\nThe above exception was the direct cause of the following exception:\n\n"
    reader = read(text + between + text.replace("IndexError: pop", "RuntimeError: pop"))
    assert [e.type for e in of(reader, ExceptionRow)] == ["IndexError", "RuntimeError"]
    assert len({s.id for s in of(reader, Stack)}) == 2


@pytest.mark.parametrize(
    ("line", "count"),
    [("RuntimeError: CUDA error: an illegal memory access was encountered", 1), ("RuntimeError", 1), ("no error", 0)],
)
def test_an_error_line_by_itself(line: str, count: int) -> None:
    assert len(of(read(line + "\n"), ExceptionRow)) == count


def test_the_words_of_an_exception_are_in_the_log_too() -> None:
    reader = read(
        "Traceback (most recent call last):\n" + TRACE.replace("pop from empty list", "Cannot allocate memory")
    )
    assert [r.line for r in logs(reader, "host_alloc_failed")] == [6]


# -- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "server_args=ServerArgs(model_path='m', pp_size=2, hicache_storage_backend=None)",
        "server_args={'model_path': 'm', 'pp_size': 2, 'hicache_storage_backend': None}",
    ],
)
def test_server_args_in_both_forms(text: str) -> None:
    settings = {s.key: s.value for s in of(read(at(0, "", text)), Setting) if s.key != BOUND_KEY}
    assert settings == {"model_path": "m", "pp_size": "2", "hicache_storage_backend": "None"}


def test_cut_server_args_say_so() -> None:
    cut = read("server_args=ServerArgs(model_path='m', pp_size=2, hicache_ra\n")
    settings = {s.key: s.value for s in of(cut, Setting) if s.key != BOUND_KEY}
    assert settings == {"model_path": "m", "pp_size": "2", "command_cut": "True"}


# -- what is kept -------------------------------------------------------------------------------------------------


def test_of_many_lines_of_a_kind_the_ends_are_kept() -> None:
    lines = [at(i % 60, "PP0", f"Backup to storage completed op_id={i} tokens=64") for i in range(5_000)]
    ops = [int(r.fields["op"]) for r in logs(read("".join(lines)), "storage_written")]
    assert ops[: sglang_log.KEEP_ENDS] == list(range(sglang_log.KEEP_ENDS))
    assert ops[-sglang_log.KEEP_ENDS :] == list(range(5_000 - sglang_log.KEEP_ENDS, 5_000))
    assert len(ops) <= 3 * sglang_log.KEEP_ENDS


def test_of_lines_that_all_matter_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_log, "MAX_PER_KIND", 10)
    lines = [at(i % 60, "PP0", "Request waiting timeout reached.") for i in range(50)]
    assert len(logs(read("".join(lines)), "request_timeout")) == 10


def test_the_last_line_of_each_rank_is_kept() -> None:
    reader = read(at(1, "PP0", "a") + at(2, "PP1", "b") + at(3, "PP0", "c") + "\nnot mine\n")
    assert {(r.rank, r.text) for r in logs(reader, "last_line")} == {("PP0", "c"), ("PP1", "b")}


def test_an_exception_inside_a_prompt_is_none() -> None:
    # GIVEN a request log whose prompt holds a traceback and a secret word of ours
    text = "\\n".join(["Traceback (most recent call last):", *TRACE.split("\n")])
    reader = read(at(1, "PP0", f"Receive: obj=GenerateReqInput(rid='7f', text='please explain {text}', x=1)"))
    # THEN neither becomes evidence
    assert of(reader, ExceptionRow) == [] and of(reader, Stack) == []
    assert not any("pop from empty" in r.text for r in of(reader, LogRecord))


_PIECES = [*TRACE.split("\n"), *PYSPY.split("\n"), at(1, "PP1", "Pyspy dump for PID 1:").strip(),
           at(1, "TP0 PP1", "Traceback (most recent call last):").strip(), "server_args=ServerArgs(a=1, b='",
           "Exception in thread a:", '{"log": "half \\ud83d a character"}',
           "[2026-05-28 02:19:01 PP1]", "[rank1]: RuntimeError: x"]  # fmt: skip


@given(st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=40)), max_size=30).map("\n".join))
def test_any_text_is_survived(text: str) -> None:
    for row in read(text).rows:
        assert getattr(row, "rank", None) != ""
