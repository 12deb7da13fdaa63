"""Core files of real processes, written by hand from ``/proc``: no test depends on where the kernel puts its own."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

TITLE = "sglang::scheduler_PP1_TP0"
PAGE = 4096
TARGET = """
import resource, threading

resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_CORE)[1]))

class HiRadixCache:
    def _all_reduce_attn_groups(self, never):
        never.wait()
    def writing_check(self, never):
        self._all_reduce_attn_groups(never)

class Scheduler:
    def __init__(self):
        self.tree_cache = HiRadixCache()
    def event_loop_pp(self, never):
        print("ready", flush=True)
        self.tree_cache.writing_check(never)

def prefetch_thread_func(never):
    never.wait()

def run_scheduler_process():
    never = threading.Event()
    threading.Thread(target=prefetch_thread_func, args=(never,), name="prefetch", daemon=True).start()
    Scheduler().event_loop_pp(never)

run_scheduler_process()
"""
MAIN = [
    "wait",
    "wait",
    "_all_reduce_attn_groups",
    "writing_check",
    "event_loop_pp",
    "run_scheduler_process",
    "<module>",
]


@contextmanager
def scheduler(folder: Path, python: str) -> Iterator[subprocess.Popen[str]]:
    """A process with a scheduler's title that waits for ever in ``writing_check``, with a second thread beside it."""
    script = folder / "target.py"
    script.write_text(TARGET)
    process = subprocess.Popen(
        [TITLE, str(script)], executable=os.path.realpath(python), cwd=folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        while _state(process.pid) != "S":
            pass
        yield process
    finally:
        process.kill()
        process.communicate()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def core_of(pid: int, number: int = signal.SIGABRT) -> bytes:
    """A core of a process that stands still, as if the signal had ended it: its own memory, and the first page of what
    it has mapped of files."""
    ranges: list[tuple[int, int, bytes]] = []
    files: list[tuple[int, int, int, str]] = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, flags, offset, _, inode, *path = line.split(None, 5)
            start, end = (int(x, 16) for x in span.split("-"))
            if inode != "0":
                files.append((start, end, int(offset, 16), path[0].strip()))
            if "r" not in flags or (path and path[0].startswith(("[vvar", "[vsyscall"))):
                continue
            held = end - start if inode == "0" or "w" in flags else PAGE
            try:
                memory.seek(start)
                data = memory.read(held)
            except OSError:
                data = b""
            ranges.append((start, end, data))
    threads = sorted((int(t) for t in os.listdir(f"/proc/{pid}/task")), key=lambda t: t != pid)
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    notes = [
        prstatus(threads[0], number),
        prpsinfo(pid, Path(f"/proc/{pid}/comm").read_bytes().strip(), command),
        note(0x53494749, struct.pack("<iiiiI", number, 0, -6, 0, pid).ljust(128, b"\0")),
        note(6, Path(f"/proc/{pid}/auxv").read_bytes()),
        mapped(files),
        *(prstatus(t, number) for t in threads[1:]),
    ]
    return elf(notes, ranges)


def note(kind: int, data: bytes, owner: bytes = b"CORE\0") -> bytes:
    padded = owner.ljust(-(-len(owner) // 4) * 4, b"\0")
    return struct.pack("<III", len(owner), len(data), kind) + padded + data.ljust(-(-len(data) // 4) * 4, b"\0")


def prstatus(thread: int, number: int) -> bytes:
    data = bytearray(336)
    struct.pack_into("<iiih", data, 0, number, 0, 0, number)
    struct.pack_into("<i", data, 32, thread)
    return note(1, bytes(data))


def prpsinfo(pid: int, name: bytes, command: bytes) -> bytes:
    head = struct.pack("<bcbbiQIIiiii", 0, b"R", 0, 0, 0, 0, 0, 0, pid, 1, pid, pid)
    return note(3, head + name[:15].ljust(16, b"\0") + command.replace(b"\0", b" ")[:79].ljust(80, b"\0"))


def mapped(files: Sequence[tuple[int, int, int, str]]) -> bytes:
    data = struct.pack("<QQ", len(files), PAGE)
    data += b"".join(struct.pack("<QQQ", start, end, offset // PAGE) for start, end, offset, _ in files)
    return note(0x46494C45, data + b"".join(os.fsencode(path) + b"\0" for *_, path in files))


def elf(notes: Sequence[bytes], ranges: Sequence[tuple[int, int, bytes]], machine: int = 62) -> bytes:
    """A 64-bit little-endian core with these notes and memory (start, end, what is held of it)."""
    content = b"".join(notes)
    number = 1 + len(ranges)
    at = 64 + 56 * number
    programs = [struct.pack("<IIQQQQQQ", 4, 0, at, 0, 0, len(content), 0, 4)]
    at += len(content)
    at += -at % PAGE
    pieces = []
    for start, end, data in ranges:
        programs.append(struct.pack("<IIQQQQQQ", 1, 7, at, start, 0, len(data), end - start, PAGE))
        pieces.append(data)
        at += len(data)
    ident = b"\x7fELF\2\1\1".ljust(16, b"\0")
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 4, machine, 1, 0, 64, 0, 0, 64, 56, number, 0, 0, 0)
    body = header + b"".join(programs) + content
    return body.ljust(len(body) + -len(body) % PAGE, b"\0") + b"".join(pieces)
