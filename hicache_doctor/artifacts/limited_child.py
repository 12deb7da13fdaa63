"""The child that reads one hostile file after another under limits: see :mod:`limited`, its parent.

A request is a JSON line (task, options), then the file in counted pieces, an empty one last. The answer is a JSON
header and the buffers that it lists; nothing else crosses. Imports the standard library only, the reader of a task when
the first such file comes.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

from hicache_doctor.artifacts.plain_pickle import Refused

Answer = tuple[dict[str, Any], Sequence[Any]]
Task = Callable[[bytes, dict[str, Any]], Answer]
# Where each task's reader is: ``module:function`` of this package.
TASKS = {
    "recorder pickle": "recorder_columns:of_pickle",
    "recorder JSON": "recorder_columns:of_json",
    "crash pickle": "inert_pickle:summary",
}
# What a file may take: most of it are Python's objects, some forty bytes for each of the file's.
MEMORY, MEMORY_PER_BYTE, MOST_MEMORY = 192 << 20, 48, 4 << 30
SECONDS, HURRIED_SECONDS, BYTES_PER_SECOND = 5, 1, 4 << 20
_SPARE = 1 << 20


def main() -> None:
    """Answer requests on the standard streams until there are no more."""
    gc.disable()  # what a file holds lives until its answer is given, and is then dropped as a whole
    requests, answers = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.freeze()
    while line := requests.readline():
        request = json.loads(line)
        data = _content(requests)
        pieces, last = _answer(request, data)
        del data
        for piece in pieces:
            answers.write(piece)
        answers.flush()
        del pieces
        if last:
            return
        gc.collect()  # values that refer to themselves


def _answer(request: dict[str, Any], data: bytes) -> tuple[list[Any], bool]:
    """What to write, and whether it is this child's last answer."""
    spare = bytearray(_SPARE)  # given back when memory ran out, so that there is some to say so
    memory = min(MEMORY + MEMORY_PER_BYTE * len(data), MOST_MEMORY)
    seconds = (HURRIED_SECONDS if request["hurry"] else SECONDS) + len(data) // BYTES_PER_SECOND
    try:
        module, _, name = TASKS[request["task"]].partition(":")
        task: Task = getattr(importlib.import_module(f"hicache_doctor.artifacts.{module}"), name)
        _limit(memory, seconds)
        return _framed(*task(data, request["options"])), False
    except Refused as e:
        return _framed({"error": str(e)}), False
    except MemoryError:
        del spare
        why = _why(data, request, f"needs more than {memory >> 20} MiB of memory")
        return _framed({"error": why, "ended": True}), True
    except RecursionError:
        return _framed({"error": _why(data, request, "is nested too deeply")}), False
    finally:
        _limit(None, None)


def _why(data: bytes, request: dict[str, Any], what: str) -> str:
    """What is wrong, with the opcode that shows it where one does."""
    from hicache_doctor.artifacts.plain_pickle import explained

    found = None
    if "pickle" in request["task"]:
        try:
            found = explained(data, classes=request["task"] == "crash pickle")
        except MemoryError:
            found = None
    return str(found) if found is not None else what


def _limit(memory: int | None, seconds: int | None) -> None:
    """Let this process take so much more memory and processor time than it has taken; None: as much as it likes."""
    ceiling = resource.getrlimit(resource.RLIMIT_AS)[1]
    amount = ceiling if memory is None else _taken() + memory
    resource.setrlimit(resource.RLIMIT_AS, (amount, ceiling))
    ceiling = resource.getrlimit(resource.RLIMIT_CPU)[1]
    spent = resource.getrusage(resource.RUSAGE_SELF)
    until = ceiling if seconds is None else int(spent.ru_utime + spent.ru_stime) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (until, ceiling))


def _taken() -> int:
    with open("/proc/self/statm", "rb") as f:
        return int(f.read().split()[0]) * resource.getpagesize()


def _content(stream: BinaryIO) -> bytes:
    pieces = []
    while n := int.from_bytes(stream.read(4), "little"):
        pieces.append(stream.read(n))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _framed(header: dict[str, Any], buffers: Sequence[Any] = ()) -> list[Any]:
    views = [memoryview(b).cast("B") for b in buffers]
    text = json.dumps({**header, "buffers": [len(v) for v in views]}).encode()
    return [len(text).to_bytes(8, "little"), text, *views]


if __name__ == "__main__":
    main()
