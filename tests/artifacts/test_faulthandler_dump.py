"""faulthandler's text."""

from __future__ import annotations

from hypothesis import given

from hicache_doctor.artifacts.faulthandler_dump import looks_like_faulthandler, parse
from hicache_doctor.artifacts.stack_dump import rows
from hicache_doctor.evidence.rows import Stack
from tests.artifacts.small import mutations, numbered

SEGFAULT = """Fatal Python error: Segmentation fault

Thread 0x00007f1a2b3c4d00 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait
  File "/usr/lib/python3.12/threading.py", line 1075 in _bootstrap_inner

Current thread 0x00007f1a9b3c4d00 (most recent call first):
  File "/sgl-workspace/sglang/python/sglang/srt/mem_cache/memory_pool_host.py", line 412 in load_to_device_per_layer
  File "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py", line 2301 in event_loop_pp
  File "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py", line 3120 in run_scheduler_process
  ...

Extension modules: numpy._core._multiarray_umath, torch._C (total: 120)
[2026-06-23 08:04:31] SIGQUIT received. signum=None, frame=None. It usually means one child failed.
"""


def test_the_crashing_thread_is_current_and_the_scheduler_is_main() -> None:
    assert looks_like_faulthandler(SEGFAULT)
    (dump,) = parse(numbered(SEGFAULT), "x")
    assert (dump.reason, dump.source, dump.line, len(dump.threads)) == ("Segmentation fault", "faulthandler", 1, 2)
    assert dump.main is dump.threads[1]
    assert dump.main.status == "current"
    assert [f.name for f in dump.main.frames] == ["load_to_device_per_layer", "event_loop_pp", "run_scheduler_process"]
    stack = next(r for r in rows(dump, rank="PP0 TP1") if isinstance(r, Stack) and r.main)
    assert (stack.rank, stack.source, stack.line, stack.line_end) == ("PP0 TP1", "faulthandler", 7, 10)


def test_two_crashes_are_two_dumps() -> None:
    assert [d.line for d in parse(numbered(SEGFAULT + SEGFAULT), "x")] == [1, 15]


@given(mutations(SEGFAULT))
def test_never_raises(text: str) -> None:
    looks_like_faulthandler(text)
    for dump in parse(numbered(text), "x"):
        list(rows(dump))
