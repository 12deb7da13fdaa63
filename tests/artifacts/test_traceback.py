"""Tracebacks as logs hold them: chained, nested, cut, re-indented, marked; and never an error of our own."""

from __future__ import annotations

import traceback as stdlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.artifacts.traceback import MAX_LINES, MAX_MESSAGE, Raised, TracebackParser, bare_error

PLAIN = """\
Traceback (most recent call last):
  File "/opt/sglang/srt/managers/scheduler.py", line 4041, in run_scheduler_process
    scheduler.run_event_loop()
  File "/opt/sglang/srt/mem_cache/hiradix_cache.py", line 936, in writing_check
    _, finish_event, ack_list = self.cache_controller.ack_write_queue.pop(0)
IndexError: pop from empty list"""


def parse(text: str) -> tuple[list[Raised], int]:
    """What the parser makes of the lines, and how many it took before it said that the traceback is over."""
    lines = text.split("\n")
    parser = TracebackParser(1, 0)
    taken = 0
    for number, line in enumerate(lines, 1):
        if number == 1 and line.startswith("Traceback"):
            taken += 1
            continue
        if not parser.feed(number, 0, line):
            break
        taken += 1
    return parser.close(), taken


def functions(raised: Raised) -> list[str]:
    return [f.function for f in raised.frames]


def test_a_plain_traceback() -> None:
    (raised,), taken = parse(PLAIN)
    assert taken == 6
    assert (raised.type, raised.message) == ("IndexError", "pop from empty list")
    assert functions(raised) == ["run_scheduler_process", "writing_check"]
    assert (raised.line, raised.error_line, raised.line_end) == (1, 6, 6)
    inner = raised.frames[-1]
    assert (inner.file.rsplit("/", 1)[-1], inner.line, inner.at_line) == ("hiradix_cache.py", 936, 4)
    assert inner.code.endswith("ack_write_queue.pop(0)")
    assert not raised.cut


@pytest.mark.parametrize(
    "phrase",
    [
        "The above exception was the direct cause of the following exception:",
        "During handling of the above exception, another exception occurred:",
    ],
)
def test_a_chain_gives_the_cause_first(phrase: str) -> None:
    second = PLAIN.replace("IndexError: pop from empty list", "RuntimeError: pop from empty list while draining")
    raised, taken = parse(f"{PLAIN}\n\n{phrase}\n\n{second}")
    assert [r.type for r in raised] == ["IndexError", "RuntimeError"]
    assert raised[0].message == "pop from empty list"
    assert [len(r.frames) for r in raised] == [2, 2]
    assert raised[1].line == 10 and raised[1].error_line == 15
    assert taken == 15


def test_a_chain_that_python_itself_printed() -> None:
    # GIVEN an exception raised from another one, while a third was handled
    def inner() -> None:
        try:
            [].pop(0)
        except IndexError:
            int("x")

    try:
        try:
            inner()
        except ValueError as e:
            raise KeyError("node 7") from e
    except KeyError as e:
        text = "".join(stdlib.format_exception(e)).rstrip("\n")
    # WHEN it is parsed, THEN the three come in order
    raised, _ = parse(text)
    assert [r.type for r in raised] == ["IndexError", "ValueError", "KeyError"]
    assert functions(raised[0]) == ["inner"]
    assert raised[2].message == "'node 7'"


def test_frames_without_source_lines() -> None:
    text = "\n".join(line for line in PLAIN.split("\n") if not line.startswith("    "))
    (raised,), _ = parse(text)
    assert functions(raised) == ["run_scheduler_process", "writing_check"]
    assert raised.type == "IndexError"
    assert [f.code for f in raised.frames] == ["", ""]


def test_lost_indentation() -> None:
    text = "\n".join(line.strip() for line in PLAIN.split("\n"))
    (raised,), taken = parse(text)
    assert taken == 6
    assert (raised.type, raised.message) == ("IndexError", "pop from empty list")
    assert functions(raised) == ["run_scheduler_process", "writing_check"]
    assert raised.frames[0].code == "scheduler.run_event_loop()"


def test_lost_indentation_with_blank_lines_between() -> None:
    text = "\n\n".join(line.strip() for line in PLAIN.split("\n"))
    (raised,), _ = parse(text)
    assert raised.type == "IndexError" and len(raised.frames) == 2


def test_caret_markers_and_repeats_are_no_code() -> None:
    text = """\
Traceback (most recent call last):
  File "/a/scheduler_pp_mixin.py", line 111, in event_loop_pp
    result, self.launch_event = self._pp_launch_batch(
                                ~~~~~~~~~~~~~~~~~~~~~^
        mb_id, self.mbs
        ^^^^^^^^^^^^^^^
    )
    ^
  File "/a/deep.py", line 2, in again
    again()
    ~~~~~^^
  [Previous line repeated 996 more times]
RecursionError: maximum recursion depth exceeded"""
    (raised,), taken = parse(text)
    assert taken == 13
    assert functions(raised) == ["event_loop_pp", "again"]
    assert [f.code for f in raised.frames] == ["result, self.launch_event = self._pp_launch_batch(", "again()"]
    assert raised.type == "RecursionError"


def test_a_message_over_several_lines() -> None:
    text = PLAIN.replace(
        "IndexError: pop from empty list",
        "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:1234\n"
        "Exception raised from f at x.cpp:1 (most recent call first):\nframe #0: c10::Error::Error",
    )
    (raised,), taken = parse(text)
    assert taken == 8
    assert raised.message.split("\n")[0].endswith("[10.0.0.2]:1234")
    assert raised.message.split("\n")[-1] == "frame #0: c10::Error::Error"
    assert (raised.error_line, raised.line_end) == (6, 8)


def test_a_blank_line_ends_the_message() -> None:
    (raised,), _ = parse(f"{PLAIN}\n\nINFO:     Shutting down")
    assert raised.message == "pop from empty list"
    assert raised.line_end == 6


def test_messages_have_a_limit() -> None:
    (raised,), _ = parse(PLAIN + "\n" + "\n".join("x" * 500 for _ in range(30)))
    assert len(raised.message) <= MAX_MESSAGE


def test_a_head_that_was_cut_off() -> None:
    # GIVEN a paste that begins in the middle of a frame's file name: its first line is none of the parser's lines
    assert parse('ile "/home/x.py", line 3, in f\n' + PLAIN) == ([], 0)


def test_frames_without_the_opening_line() -> None:
    (raised,), _ = parse("\n".join(PLAIN.split("\n")[1:]))
    assert raised.type == "IndexError" and len(raised.frames) == 2


def test_a_tail_that_was_cut_off() -> None:
    (raised,), taken = parse("\n".join(PLAIN.split("\n")[:4]))
    assert taken == 4
    assert raised.cut and raised.type == "" and raised.message == ""
    assert functions(raised) == ["run_scheduler_process", "writing_check"]
    assert raised.line_end == 4


def test_an_opening_alone_is_nothing() -> None:
    assert parse("Traceback (most recent call last):") == ([], 1)


@pytest.mark.parametrize(
    "name", ["multiprocessing.pool.RemoteTraceback", "concurrent.futures.process._RemoteTraceback"]
)
def test_a_nested_traceback_is_read_too(name: str) -> None:
    # GIVEN an error whose message holds another process's traceback, trailing blanks gone as the peeler leaves it
    nested = PLAIN.replace("IndexError: pop from empty list", f'{name}:\n"""\n{PLAIN}\n"""')
    # THEN the other process's error is found, with its own frames
    raised, _ = parse(nested)
    assert [r.type for r in raised] == [name, "IndexError"]
    assert [len(r.frames) for r in raised] == [2, 2]


@pytest.mark.parametrize(
    "line", ["INFO:     Shutting down", "WARNING: x", "INFO", "ERROR:    Exception in ASGI application"]
)
def test_a_level_word_is_no_type(line: str) -> None:
    cut = "\n".join(PLAIN.split("\n")[:5])
    (raised,), taken = parse(f"{cut}\n{line}")
    assert raised.cut and raised.type == "" and taken == 5


def test_an_exception_group_is_survived() -> None:
    text = """\
  + Exception Group Traceback (most recent call last):
  |   File "/a/main.py", line 1, in main
  |     raise ExceptionGroup("both", errors)
  | ExceptionGroup: both (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/a/hiradix_cache.py", line 936, in writing_check
    |     pop(0)
    | IndexError: pop from empty list
    +------------------------------------"""
    parser = TracebackParser(1, 0)
    for number, line in enumerate(text.split("\n"), 1):
        parser.feed(number, 0, line)
    frames = [f.function for r in parser.close() for f in r.frames]
    assert frames == ["main", "writing_check"]


def test_a_traceback_without_end_has_a_limit() -> None:
    parser = TracebackParser(1, 0)
    fed = [parser.feed(i, 0, '  File "/a.py", line 1, in f') for i in range(MAX_LINES + 5)]
    assert fed.count(True) == MAX_LINES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RuntimeError: shape '[48, -1, 128]' is invalid", ("RuntimeError", "shape '[48, -1, 128]' is invalid")),
        ("  IndexError: pop from empty list  ", ("IndexError", "pop from empty list")),
        ("torch.distributed.DistBackendError: NCCL error", ("torch.distributed.DistBackendError", "NCCL error")),
        ("AssertionError", ("AssertionError", "")),
        ("queue.Empty", ("queue.Empty", "")),
        ("subprocess.TimeoutExpired: Command 'x'", ("subprocess.TimeoutExpired", "Command 'x'")),
        ("KVTransferError(bootstrap_room=3): lost", ("KVTransferError", "bootstrap_room=3")),
        ("KeyboardInterrupt", ("KeyboardInterrupt", "")),
        ("Error rate: 3 %", None),
        ("an IndexError: was raised", None),
        ("INFO: ready", None),
        ("", None),
    ],
)
def test_error_lines_by_their_name(text: str, expected: tuple[str, str] | None) -> None:
    assert bare_error(text) == expected


_PIECES = [
    *PLAIN.split("\n"),
    "",
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
    "    ^^^^^",
    "  | IndexError: x",
    "  + Exception Group Traceback (most recent call last):",
    "[2026-05-28 02:19:20 PP1 TP0] Prefill batch, #new-seq: 1",
    '  File "", line 99999999999999999999, in <listcomp>',
]


@given(st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=60)), max_size=40))
def test_any_lines_are_survived(lines: list[str]) -> None:
    parser = TracebackParser(7, 0)
    for number, line in enumerate(lines, 8):
        parser.feed(number, 0, line)
    for raised in parser.close():
        assert 7 <= raised.line <= raised.line_end <= 7 + len(lines)
        assert len(raised.message) <= MAX_MESSAGE
        assert raised.type or raised.cut
