"""py-spy in every dress: plain, native, locals, coloured with CRLF, JSON, several in a file, cut, without header."""

from __future__ import annotations

import pytest
from hypothesis import given

from hicache_doctor.artifacts import pyspy
from hicache_doctor.evidence.rows import Frame, Stack
from tests.artifacts.small import mutations, numbered, text_of

MAIN = [
    ("Condition", "wait", "threading.py", 327),
    ("Event", "wait", "threading.py", 629),
    ("HiRadixCache", "_all_reduce_attn_groups", "hiradix_cache.py", 4),
    ("HiRadixCache", "writing_check", "hiradix_cache.py", 7),
]


def frames_of(dump: pyspy.Dump) -> list[Frame]:
    rows = list(pyspy.rows(dump))
    main = next(r.id for r in rows if isinstance(r, Stack) and r.main)
    return [r for r in rows if isinstance(r, Frame) and r.stack == main]


@pytest.mark.parametrize("name", ["pyspy_ansi_crlf.txt", "pyspy_locals.txt", "pyspy_native.txt", "pyspy.json"])
def test_every_shape_gives_the_same_main_stack(name: str) -> None:
    text = text_of(name)
    assert pyspy.looks_like_pyspy(text)
    (dump,) = pyspy.parse_json(text, name) if name.endswith("json") else pyspy.parse_text(numbered(text), name)
    assert dump.pid == 25112
    assert [t.name for t in dump.threads] == ["MainThread", "Thread-3 (prefetch_thread_func)"]
    python = [f for f in frames_of(dump) if not f.native]
    assert [(f.cls, f.function, f.file, f.line) for f in python][:4] == MAIN
    assert [f.depth for f in frames_of(dump)] == list(range(len(frames_of(dump))))
    if not name.endswith("json"):
        assert (dump.rank, dump.python) == ("TP0", "3.11.7")


def test_native_frames_have_a_symbol_and_no_line() -> None:
    (dump,) = pyspy.parse_text(numbered(text_of("pyspy_native.txt")), "x")
    first, *_, last = frames_of(dump)
    assert (first.function, first.file, first.line, first.native) == ("0x7f1835ca3f16", "libc.so.6", None, True)
    assert last.native


def test_scalar_locals_are_kept_and_blocks_are_no_frames() -> None:
    (dump,) = pyspy.parse_text(numbered(text_of("pyspy_locals.txt")), "x")
    assert dump.main is not None
    by_name = {f.name: f.locals for f in dump.main.frames}
    assert by_name["HiRadixCache.writing_check"] == {"write_back": "False", "finish_count": "0"}
    assert by_name["HiRadixCache._all_reduce_attn_groups"] == {"data": "0"}
    assert len(dump.main.frames) == 11


def test_a_dump_inside_a_log_takes_its_pid_from_the_announcement_and_its_rank_from_the_caller() -> None:
    text = (
        "[2026-10-21 08:27:20 PP1 TP0] Pyspy dump for PID 10438:\n"
        'Thread 10438 (active+gil): "MainThread"\n'
        "    recv_object (distributed/parallel_state.py:1131)\n"
        "\n"
        "    context_decorator.<locals>.decorate_context (torch/utils/_contextlib.py:124)\n"
        "[2026-10-21 08:27:20 PP1 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
        "[2026-10-21 08:27:21 PP1 TP0] Pyspy dump for PID 10438:\n"
        "Process 10438: sglang::scheduler PP1 TP0\n"
        'Thread 10438 (idle): "MainThread"\n'
        "    recv_obj"
    )
    first, second = pyspy.parse_text(numbered(text), "x.log")
    stack, frame, nested = pyspy.rows(first, rank="PP1 TP0", ts=5.0)
    assert isinstance(stack, Stack) and isinstance(frame, Frame) and isinstance(nested, Frame)
    assert (stack.id, stack.rank, stack.pid, stack.status) == ("x.log:2:pyspy", "PP1 TP0", 10438, "active+gil")
    assert (stack.line, stack.line_end, stack.ts, stack.main, stack.dump) == (2, 5, 5.0, True, 0)
    assert (nested.cls, nested.function) == (None, "decorate_context")
    assert (second.rank, second.dump, second.threads[0].frames) == ("PP1 TP0", 1, [])


def test_frames_without_a_header_are_read_in_either_order() -> None:
    inner_first = (
        " all_reduce (distributed_c10d.py:3145)\n writing_check (hiradix_cache.py:259)\n event_loop_pp (a.py:1)"
    )
    outer_first = "\n".join(reversed(inner_first.split("\n")))
    for text in (inner_first, outer_first):
        (dump,) = pyspy.parse_text(numbered(text), "x")
        assert [f.name for f in dump.threads[0].frames] == ["all_reduce", "writing_check", "event_loop_pp"]
        assert dump.threads[0].main


@pytest.mark.parametrize(
    "title, rank",
    [
        ("sglang::scheduler_DP0_PP1_TP0_EP0", "DP0 PP1 TP0 EP0"),
        ("sglang::scheduler PP1 TP0", "PP1 TP0"),
        ("sglang::scheduler_PP0_ATTN_CP4_MOE_DP1_TP4", "PP0 ATTN_CP4 MOE_DP1 TP4"),
        ("sglang::scheduler", None),
        ("sglang::schedul", None),
    ],
)
def test_the_rank_is_in_the_process_title(title: str, rank: str | None) -> None:
    text = f'Process 7: {title}\nPython v3.12.3 (/usr/bin/python3)\n\nThread 7 (idle): "MainThread"\n    f (a.py:1)\n'
    assert pyspy.parse_text(numbered(text), "x")[0].rank == rank


def test_a_time_before_the_dumps_is_theirs() -> None:
    one = 'Process 7: sglang::scheduler_PP0_TP0\nThread 7 (idle): "MainThread"\n    f (a.py:1)\n    g (a.py:2)\n'
    text = one + "\nTue Dec  1 03:40:35 UTC 2026\n" + one + one + "=== 2026-12-01 03:40:45 ===\n" + one
    dumps = pyspy.parse_text(numbered(text), "x")
    assert [d.ts for d in dumps] == [None, 1796096435.0, 1796096435.0, 1796096445.0]
    assert [r.ts for r in pyspy.rows(dumps[3], ts=5.0) if isinstance(r, Stack)] == [5.0]


def test_other_text_is_no_dump() -> None:
    assert not pyspy.looks_like_pyspy("[2026-01-01 00:00:00 TP0] Prefill batch, #new-seq: 1 (x)\n" * 5)
    assert pyspy.parse_text(numbered("Process 3: loading\nhello (world)\n"), "x") == []
    assert pyspy.parse_json('{"a": 1}') == pyspy.parse_json("[1, 2") == []


@given(mutations(text_of("pyspy_locals.txt"), text_of("pyspy_native.txt"), "Pyspy dump for PID 1:\n a (b.py:1)"))
def test_never_raises(text: str) -> None:
    pyspy.looks_like_pyspy(text)
    for dump in [*pyspy.parse_text(numbered(text), "x"), *pyspy.parse_json(text)]:
        assert len(list(pyspy.rows(dump))) == sum(1 + len(t.frames) for t in dump.threads)
