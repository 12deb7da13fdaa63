"""Children: limits hold, a file that was too much costs itself only, and what a child imports is next to nothing."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hicache_doctor.artifacts.limited import Answer, Children
from hicache_doctor.artifacts.source import Source
from tests.artifacts.recorder_dumps import dump, entry

GOOD = pickle.dumps(dump([entry(i) for i in range(20)]), 2)


def source(folder: Path, name: str, data: bytes) -> Source:
    (folder / name).write_bytes(data)
    return Source(name, folder / name, len(data))


def test_answers_come_in_the_order_of_asking(tmp_path: Path) -> None:
    seen: list[tuple[int, Answer]] = []
    with Children(2) as children:
        for i in range(40):
            data = GOOD if i % 3 else GOOD[: 50 + i]
            children.ask("recorder pickle", source(tmp_path, str(i), data), lambda a, i=i: seen.append((i, a)))
        children.finish()
        assert len(children._all) == 2  # what is refused costs no child
    assert [i for i, _ in seen] == list(range(40))
    assert [bool(a.error) for _, a in seen] == [i % 3 == 0 for i in range(40)]


def test_memory_is_limited_and_the_child_replaced(tmp_path: Path) -> None:
    many = b"\x80\x02](" + b"}" * (12 << 20) + b"e."  # twelve million dicts
    got: list[Answer] = []
    with Children(1) as children:
        for name, data in (("a", GOOD), ("b", many), ("c", GOOD)):
            children.ask("recorder pickle", source(tmp_path, name, data), got.append)
        children.finish()
        assert len(children._all) == 2
    assert got[0].header["entries"] == got[2].header["entries"] == 20
    # On a slow machine the other limit may be met first.
    assert got[1].error in ("needs more than 768 MiB of memory", "takes too long to read")


def test_a_child_that_is_killed_costs_its_file_only(tmp_path: Path) -> None:
    got: list[Answer] = []
    with Children(1) as children:
        children.ask("recorder pickle", source(tmp_path, "a", GOOD), got.append)
        children.finish()
        os.kill(children._all[0].pid, signal.SIGSEGV)
        children._all[0].wait()
        children.ask("recorder pickle", source(tmp_path, "b", GOOD), got.append)
        children.finish()
    assert [a.error for a in got] == ["", ""]


def test_a_defect_of_ours_costs_one_file(tmp_path: Path) -> None:
    got: list[str] = []

    def broken(answer: Answer) -> None:
        if not answer.error:
            raise RuntimeError("x")
        got.append(answer.error)

    with Children(1) as children:
        children.ask("recorder pickle", source(tmp_path, "a", GOOD), broken)
        children.ask("recorder pickle", source(tmp_path, "b", GOOD), lambda a: got.append(str(a.header["entries"])))
        children.finish()
    assert got == ["our reader failed on it (RuntimeError); please report this", "20"]


@pytest.mark.parametrize("module", ["recorder_columns", "inert_pickle"])
def test_a_child_imports_the_standard_library_only(module: str) -> None:
    root = str(Path(__file__).resolve().parents[2])
    code = (
        "import sys; sys.path.append(sys.argv[1]);"
        f"from hicache_doctor.artifacts import limited_child, {module};"
        "print([m for m in sys.modules if m.partition('.')[0] not in {*sys.stdlib_module_names, 'hicache_doctor'}"
        " and m != '__main__'])"
    )
    out = subprocess.run([sys.executable, "-I", "-S", "-c", code, root], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_child_cannot_be_made_to_print(tmp_path: Path) -> None:
    """Standard output is the answers' alone: an odd file cannot write into it."""
    got: list[Any] = []
    with Children(1) as children:
        for data in (b"\x80\x02cbuiltins\nprint\n(X\x02\x00\x00\x00hitR.", GOOD):
            children.ask("crash pickle", source(tmp_path, "x", data), got.append)
        children.finish()
    assert [a.header for a in got] == [{"other": True}, {"other": True}]
