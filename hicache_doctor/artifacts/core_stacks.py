"""The Python stacks of a core, by pystack or py-spy in a child process that may crash, hang or grow without harm.

Both look up symbols in the executable and the libraries that the core names, so those must be on this machine, and the
same builds. Nothing is fetched: the debuginfo servers that libdw would ask are taken out of the child's environment.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hicache_doctor.artifacts import pyspy
from hicache_doctor.artifacts.core_child import OUTPUT
from hicache_doctor.artifacts.elf_core import ElfCore
from hicache_doctor.artifacts.stack_dump import Dump, DumpFrame, Thread, mark_main

CHILD = "hicache_doctor.artifacts.core_child"
_POLL = 0.05


@dataclass(frozen=True, slots=True)
class Limits:
    """What the child may take."""

    seconds: int = 120
    memory: int = 4 << 30
    """bytes that it may allocate; the core itself is mapped, and does not count"""


DEFAULT = Limits()


@dataclass(frozen=True, slots=True)
class Stacks:
    """What came out: a dump, or why there is none. ``tool`` is the one that read it."""

    dump: Dump | None
    tool: str = ""
    why: str = ""


def pystack_here() -> bool:
    """Whether pystack is installed beside us."""
    return importlib.util.find_spec("pystack") is not None


def pyspy_here() -> str | None:
    """py-spy's program: beside our interpreter, or on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def read(file: Path, core: ElfCore, artifact: str, spool: Path, limits: Limits = DEFAULT) -> Stacks:
    """The stacks of ``file``, a plain core on disk; ``spool`` is a private folder for the child's output."""
    missing = absent(core)
    if missing is not None:
        return Stacks(None, why=f"{missing}, which the core is of, is not on this machine")
    executable = str(core.executable)
    failures: list[str] = []
    if pystack_here():
        text, why = _run(["pystack", str(file), executable], core, spool, limits)
        dump = None if text is None else _pystack(text, core, artifact)
        if dump is not None:
            return Stacks(dump, "pystack")
        failures.append(f"pystack: {why or 'no threads'}")
    else:
        failures.append("pystack is not installed")
    if program := pyspy_here():
        text, why = _run(["run", program, "dump", "--json", "--core", str(file)], core, spool, limits)
        dump = None if text is None else _pyspy(text, core, artifact)
        if dump is not None:
            return Stacks(dump, "py-spy")
        failures.append(f"py-spy: {why or 'no threads'}")
    return Stacks(None, why="; ".join(failures))


def absent(core: ElfCore) -> str | None:
    """The file of the core without which no stack can be read and that is not here; None when all are."""
    needed = [core.executable, *(f for f in core.files if "libpython" in f)]
    for path in needed:
        if path is None:
            return "the executable"
        if not os.path.isfile(path):  # a device or a pipe of that name is none of the core's either
            return path
    return None


def _run(job: list[str], core: ElfCore, spool: Path, limits: Limits) -> tuple[str | None, str]:
    """Standard output of the child, or None and why there is none."""
    space = str(limits.memory + 4 * core.size)
    # The folder of our package comes first on the child's path: what lies where the user stands is never imported.
    home = Path(__file__).parents[2]
    command = [sys.executable, "-B", "-m", CHILD, space, str(limits.seconds), *job]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DEBUGINFOD")}
    with tempfile.TemporaryFile(dir=spool) as out, tempfile.TemporaryFile(dir=spool) as err:
        child = subprocess.Popen(
            command, cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, close_fds=True
        )
        try:
            why = _watch(child, limits)
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
        if why:
            return None, why
        if child.returncode != 0:
            return None, _last_line(err) or _ended(child.returncode)
        out.seek(0)
        return out.read(OUTPUT).decode("utf-8", "replace"), ""


def _watch(child: subprocess.Popen[bytes], limits: Limits) -> str:
    """Wait for the child; why it must be ended, empty when it ended by itself."""
    end = time.monotonic() + limits.seconds
    while child.poll() is None:
        if time.monotonic() > end:
            return f"no answer within {limits.seconds} s"
        if _allocated(child.pid) > limits.memory:
            return f"it wanted more than {limits.memory >> 20} MiB of memory"
        time.sleep(_POLL)
    return ""


def _allocated(pid: int) -> int:
    """The bytes of memory of a process that belong to no file."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
            return next((int(line.split()[1]) << 10 for line in f if line.startswith("RssAnon:")), 0)
    except (OSError, ValueError, IndexError):
        return 0


def _last_line(err: BinaryIO) -> str:
    err.seek(max(0, err.seek(0, os.SEEK_END) - 4096))
    lines = [s for line in err.read().decode("utf-8", "replace").split("\n") if (s := line.strip())]
    text = next((s for s in lines if s.startswith("Error: ")), lines[-1] if lines else "")
    return "".join(c if c.isprintable() else "?" for c in text)[:200]


def _ended(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _pystack(text: str, core: ElfCore, artifact: str) -> Dump | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    dump = Dump(artifact, "core", core.pid)
    for index, item in enumerate(found if isinstance(found, list) else []):
        tid = str(item["tid"])
        thread = Thread(tid, _status(core, tid, item["gil"]), item["name"], None, None, record=index)
        thread.frames = [_frame(*f) for f in item["frames"]]
        if thread.frames:
            dump.threads.append(thread)
    return _told(dump, core)


def _frame(name: str | None, file: str | None, line: int | None, native: bool) -> DumpFrame:
    return DumpFrame(name or "?", file, line, None, native)


def _pyspy(text: str, core: ElfCore, artifact: str) -> Dump | None:
    dumps: list[Dump] = pyspy.parse_json(text, artifact)
    if not dumps:
        return None
    dump: Dump = dumps[0]
    dump.source, dump.pid = "core", core.pid
    for thread in dump.threads:
        thread.status = _status(core, thread.tid, "gil" in (thread.status or ""))
    return _told(dump, core)


def _told(dump: Dump, core: ElfCore) -> Dump | None:
    if not dump.threads:
        return None
    dump.python = core.python
    for thread in dump.threads:
        thread.main = thread.tid == str(core.pid)
    if dump.main is None:
        mark_main(dump, fallback=-1)
    return dump


def _status(core: ElfCore, tid: str | None, gil: bool) -> str | None:
    """``current`` for the thread that the signal ended, as faulthandler says."""
    ended = bool(core.fatal and core.threads and tid == str(core.threads[0]))
    words: list[Any] = ["current"] * ended + ["gil"] * gil
    return "+".join(words) or None
