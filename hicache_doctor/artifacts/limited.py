"""Reading hostile files in children whose memory and time are limited: what one file does costs that file only.

A child imports the standard library and nothing else, so it starts in some ten milliseconds; it reads many files, one
after the other, and is replaced when one of them was too much for it. What comes back is a JSON header and plain
buffers, never a pickle.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hicache_doctor.artifacts.source import BLOCK, Source

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

MOST_BYTES = 512 << 20
MOST_CHILDREN = 4
# Beyond the limits on processor time, which the child sets itself: for one that waits or is kept waiting.
WALL_SECONDS, WALL_SECONDS_PER_MIB = 60.0, 0.5
PATIENCE = 3  # so many files may take all the time that there is; those after them get little
_LARGEST_HEADER, _LARGEST_ANSWER = 64 << 20, 2 << 30
_PIPE = 1 << 20
_START = "import sys; sys.path.append(sys.argv[1]); from hicache_doctor.artifacts.limited_child import main; main()"


@dataclass(slots=True)
class Answer:
    """What a child made of a file, or why it made nothing of it (``error``, one line). ``notes``: what the reading of
    its bytes had to say."""

    header: dict[str, Any] = field(default_factory=dict)
    buffers: list[bytes] = field(default_factory=list)
    error: str = ""
    notes: list[str] = field(default_factory=list)


class Children:
    """Readers in children, as many as there are processors (at most four), started when there is work for them."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count or min(MOST_CHILDREN, len(os.sched_getaffinity(0)))
        self._threads: ThreadPoolExecutor | None = None
        self._own = threading.local()
        self._all: list[subprocess.Popen[bytes]] = []
        self._asked: list[tuple[Future[Answer], Callable[[Answer], None]]] = []
        self._slow = 0

    def ask(self, task: str, source: Source, then: Callable[[Answer], None], **options: Any) -> None:
        """Have ``source`` read; ``then`` is called with the answer, in the order of asking, by :meth:`finish`."""
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor

            self._threads = ThreadPoolExecutor(self._count)
        self._asked.append((self._threads.submit(self._read, task, source, options), then))

    def finish(self) -> None:
        """Wait for all answers and hand them out."""
        for future, then in self._asked:
            answer = future.result()
            try:
                then(answer)
            except Exception as e:
                # A defect of ours must cost one file, not the incident.
                then(Answer(error=f"our reader failed on it ({type(e).__name__}); please report this"))
        self._asked.clear()

    def close(self) -> None:
        """End the children; what was not handed out is dropped."""
        for future, _ in self._asked:
            future.cancel()
        for child in self._all:
            child.kill()
        if self._threads is not None:
            self._threads.shutdown()
        for child in self._all:
            _end(child)

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self, task: str, source: Source, options: dict[str, Any]) -> Answer:
        answer = Answer()
        child = self._child()
        assert child.stdin is not None and child.stdout is not None
        limit = WALL_SECONDS + WALL_SECONDS_PER_MIB * (source.size >> 20)
        timer = threading.Timer(limit, child.kill)
        timer.daemon = True
        timer.start()
        try:
            request = {"task": task, "options": options, "hurry": self._slow >= PATIENCE}
            child.stdin.write(json.dumps(request).encode() + b"\n")
            size = _send(source, child.stdin, answer.notes)
            if size > MOST_BYTES:
                answer.error = f"holds more than {MOST_BYTES >> 20} MiB"
                self._drop(child)
            else:
                _receive(child.stdout, answer)
                if answer.header.get("ended"):
                    self._drop(child)
        except (OSError, EOFError, ValueError, KeyError):
            answer.error = self._last_words(child)
        finally:
            timer.cancel()
        answer.error = answer.error or answer.header.get("error", "")
        return answer

    def _child(self) -> subprocess.Popen[bytes]:
        child: subprocess.Popen[bytes] | None = getattr(self._own, "child", None)
        if child is None or child.poll() is not None:
            child = _start()
            self._own.child = child
            self._all.append(child)
        return child

    def _drop(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        _end(child)
        self._own.child = None

    def _last_words(self, child: subprocess.Popen[bytes]) -> str:
        """How the child ended, once it gave no proper answer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1)
        code = child.poll()
        self._drop(child)
        if code is None:
            return "makes its reader answer nonsense"
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            self._slow += 1
            return "takes too long to read"
        return f"ends its reader ({'signal' if code < 0 else 'exit code'} {abs(code)})"


def _start() -> subprocess.Popen[bytes]:
    root = str(Path(__file__).resolve().parents[2])
    # Isolated and without site packages: nothing but the standard library, whatever the environment says.
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _START, root]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/")
    for stream in (child.stdin, child.stdout):
        with contextlib.suppress(OSError, AttributeError):  # only for speed: a user has so much of it
            fcntl.fcntl(stream or 0, fcntl.F_SETPIPE_SZ, _PIPE)
    return child


def _end(child: subprocess.Popen[bytes]) -> None:
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    child.wait()


def _send(source: Source, stream: IO[bytes], notes: list[str]) -> int:
    """The content in counted pieces, an empty one last; returns its size, early when it is too much."""
    size = 0
    for block in source.blocks(BLOCK, notes.append):
        size += len(block)
        if size > MOST_BYTES:
            return size
        for part in _parts(block):
            stream.write(len(part).to_bytes(4, "little"))
            stream.write(part)
    stream.write(bytes(4))
    stream.flush()
    return size


def _parts(block: bytes | memoryview) -> Iterator[bytes | memoryview]:
    for i in range(0, len(block), BLOCK):
        yield block[i : i + BLOCK]


def _receive(stream: IO[bytes], answer: Answer) -> None:
    length = int.from_bytes(_exactly(stream, 8), "little")
    if length > _LARGEST_HEADER:
        raise ValueError("header")
    header = json.loads(_exactly(stream, length))
    lengths = header.pop("buffers")
    if sum(lengths) > _LARGEST_ANSWER:
        raise ValueError("buffers")
    answer.buffers = [_exactly(stream, n) for n in lengths]
    answer.header = header


def _exactly(stream: IO[bytes], n: int) -> bytes:
    data = stream.read(n)
    if len(data) < n:
        raise EOFError
    return data
