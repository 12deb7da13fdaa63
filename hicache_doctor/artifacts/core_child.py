"""The child process that reads the stacks of a core: pystack is C++ over libdw, and the core is hostile.

``python -m hicache_doctor.artifacts.core_child BYTES SECONDS pystack CORE EXECUTABLE`` writes JSON to standard output;
``… run PROGRAM ARG…`` becomes that program. Both under limits on memory, processor time, output and cores of its own.
pystack is used as a library: its text quotes source lines of whatever local file the core names, and knows no JSON.
Standard library only, until the limits stand.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

OUTPUT = 32 << 20
_MOST_THREADS = 4096
_MOST_FRAMES = 512
_LONGEST = 400


def main(arguments: list[str]) -> int:
    """Run one job; 0, or 1 with the reason in the last line of standard error."""
    memory, seconds, job, *rest = arguments
    _limit(int(memory), int(seconds))
    if job == "run":
        os.execv(rest[0], rest)
    try:
        json.dump(_threads(rest[0], rest[1]), sys.stdout)
    except Exception as e:
        print((str(e) or type(e).__name__).replace("\n", " ")[:_LONGEST], file=sys.stderr)
        return 1
    return 0


def _limit(memory: int, seconds: int) -> None:
    import resource

    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: OUTPUT,
        resource.RLIMIT_CORE: 0,
    }
    for which, value in limits.items():
        _, most = resource.getrlimit(which)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(which, (value, value))


def _threads(core: str, executable: str) -> list[dict[str, Any]]:
    from pystack.engine import CoreFileAnalyzer, NativeReportingMode, get_process_threads_for_core

    for file, of_core, of_file in CoreFileAnalyzer(core, executable).extract_build_ids():
        if Path(file).name.startswith(("python", "libpython")) and of_core and of_file and of_core != of_file:
            raise ValueError(f"{file} here is another build than the one that the core was made of")
    try:
        found = get_process_threads_for_core(core, executable, native_mode=NativeReportingMode.ALL)
    except Exception:
        # What unwinds no native stack (a library that is not here, a core without its pages) may still tell Python's.
        found = get_process_threads_for_core(core, executable, native_mode=NativeReportingMode.OFF)
    return [
        {
            "tid": thread.tid,
            "name": _text(thread.name),
            "gil": thread.holds_the_gil > 0,
            "frames": _native(thread) + _python(thread),
        }
        for thread in list(found)[:_MOST_THREADS]
    ]


def _native(thread: Any) -> list[list[Any]]:
    """What the thread's innermost Python frame called, innermost first: ``[symbol, library, line, True]``. All of it
    for a thread without Python frames; what the interpreter does itself is left out."""
    from pystack.types import NativeFrame, frame_type

    kinds = [frame_type(f, thread.python_version) for f in thread.native_frames]
    evaluations = [i for i, kind in enumerate(kinds) if kind is NativeFrame.FrameType.EVAL]
    start = evaluations[-1] + 1 if evaluations and thread.frame is not None else 0
    if thread.frame is not None and not evaluations:
        return []
    kept = [
        f
        for f, kind in zip(thread.native_frames[start:], kinds[start:], strict=True)
        if kind is NativeFrame.FrameType.OTHER
    ]
    return [[_text(f.symbol), _text(Path(f.library or "").name), None, True] for f in reversed(kept[-_MOST_FRAMES:])]


def _python(thread: Any) -> list[list[Any]]:
    frames: list[list[Any]] = []
    for frame in thread.frames:
        frames.append([_text(frame.code.scope), _text(frame.code.filename), frame.code.location.lineno, False])
        if len(frames) > 2 * _MOST_FRAMES:
            del frames[:_MOST_FRAMES]  # the innermost decide; they come last
    return frames[::-1][:_MOST_FRAMES]


def _text(value: Any) -> str | None:
    return str(value)[:_LONGEST] if value else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
