"""Core files of real processes: as they are, packed, cut, without a tool, and with a tool that misbehaves."""

from __future__ import annotations

import gzip
import importlib.util
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from hicache_doctor.artifacts import core_file, core_stacks, elf_core, inventory, vocabulary
from hicache_doctor.artifacts.source import Source
from hicache_doctor.evidence.rows import Frame, Rank, Sample, Setting, Stack
from tests.artifacts.cores import MAIN, core_of, scheduler

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cores are ELF files of Linux")
needs_pystack = pytest.mark.skipif(importlib.util.find_spec("pystack") is None, reason="pystack is not installed")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A core of a scheduler in ``writing_check``."""
    folder = tmp_path_factory.mktemp("real")
    with scheduler(folder, sys.executable) as process:
        (folder / "core").write_bytes(core_of(process.pid))
    return folder / "core"


def read(path: Path, spool: Path) -> inventory.Read:
    spool.mkdir(exist_ok=True)
    (result,) = inventory.read_all([str(path)], vocabulary.load(), spool=spool, stdin=None)
    assert not [f for f in spool.iterdir() if f.name.startswith("core-")], "the unpacked core stays behind"
    return result


def main_stack(result: inventory.Read) -> tuple[Stack, list[Frame]]:
    (stack,) = (r for r in result.rows if isinstance(r, Stack) and r.main)
    return stack, [r for r in result.rows if isinstance(r, Frame) and r.stack == stack.id]


def of_python(frames: list[Frame]) -> list[str]:
    return [f.function for f in frames if not f.native]


@needs_pystack
def test_a_core_names_its_rank_its_end_and_where_its_threads_stood(core: Path, tmp_path: Path) -> None:
    result = read(core, tmp_path / "spool")
    stack, frames = main_stack(result)
    assert (stack.rank, stack.source, stack.status, stack.record is not None) == ("PP1 TP0", "core", "current", True)
    assert of_python(frames) == MAIN
    assert [(f.file, f.line) for f in frames if f.function == "writing_check"] == [("target.py", 10)]
    (death,) = (r for r in result.rows if isinstance(r, Sample))
    assert (death.name, death.value, death.rank, death.pid) == ("death_signal", 6.0, "PP1 TP0", stack.pid)
    assert [r.id for r in result.rows if isinstance(r, Rank)] == ["PP1 TP0"]
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert [r.value for r in result.rows if isinstance(r, Setting) and r.key == "python_version"] == [version]
    assert result.artifact.read == "all" and "2 stacks by pystack" in result.artifact.note


@needs_pystack
def test_a_core_that_the_kernel_wrote(tmp_path: Path) -> None:
    with scheduler(tmp_path, sys.executable) as process:
        process.send_signal(signal.SIGABRT)
        process.wait()
    found = sorted(tmp_path.glob("core*"))
    if not found:
        pytest.skip("this machine's core_pattern leaves no core beside the process")
    result = read(found[0], tmp_path / "spool")
    assert of_python(main_stack(result)[1]) == MAIN
    assert f"ended by SIGABRT, sent by pid {os.getpid()}" in result.artifact.note


def packed(core: Path, to: Path, kind: str) -> Path:
    data = core.read_bytes()
    if kind == "tar":
        with tarfile.open(to, "w:gz", compresslevel=1) as archive:
            archive.add(core, "pods/core.77")
        return to
    pack: dict[str, Callable[[bytes], bytes]] = {
        "zst": zstandard.compress,
        "gz": lambda b: gzip.compress(b, 1),
        "xz": lambda b: lzma.compress(b, preset=0),
    }
    to.write_bytes(pack[kind](data))
    return to


@needs_pystack
@pytest.mark.parametrize("kind", ["zst", "gz", "xz", "tar"])
def test_packed_cores_are_the_same(core: Path, tmp_path: Path, kind: str) -> None:
    result = read(packed(core, tmp_path / f"core.{kind}", kind), tmp_path / "spool")
    assert of_python(main_stack(result)[1]) == MAIN


def test_a_cut_core_still_says_who_died(core: Path, tmp_path: Path) -> None:
    cut = tmp_path / "core"
    cut.write_bytes(core.read_bytes()[: 256 << 10])
    result = read(cut, tmp_path / "spool")
    assert result.artifact.read == "part" and "truncated: 262144 of" in result.artifact.note
    assert [r.id for r in result.rows if isinstance(r, Rank)] == ["PP1 TP0"]


def test_without_a_tool_the_note_says_what_to_run(core: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_stacks, "pystack_here", lambda: False)
    monkeypatch.setattr(core_stacks, "pyspy_here", lambda: None)
    result = read(core, tmp_path / "spool")
    assert result.artifact.read == "part"
    assert "pystack is not installed" in result.artifact.note and "hicache-doctor[core]" in result.artifact.note
    assert f"`pystack core core {os.path.realpath(sys.executable)} --native-all > stacks.txt`" in result.artifact.note
    assert [r.id for r in result.rows if isinstance(r, Rank)] == ["PP1 TP0"]


def test_a_core_of_another_machine_names_the_file_that_is_not_here(core: Path, tmp_path: Path) -> None:
    exe = os.path.realpath(sys.executable).encode()
    other = tmp_path / "core"
    other.write_bytes(core.read_bytes().replace(exe + b"\0", exe[:-1] + b"\x7f\0"))
    note = read(other, tmp_path / "spool").artifact.note
    assert "which the core is of, is not on this machine" in note and "in the image that it ran in" in note


@needs_pystack
def test_another_build_of_python_is_not_believed(core: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pystack.engine import CoreFileAnalyzer

    exe = os.path.realpath(sys.executable)
    built = {file: of_core for file, of_core, _ in CoreFileAnalyzer(str(core), exe).extract_build_ids()}
    if not built.get(exe):
        pytest.skip("this Python was linked without a build id")
    other = tmp_path / "core"
    other.write_bytes(core.read_bytes().replace(bytes.fromhex(built[exe]), b"\x11" * (len(built[exe]) // 2)))
    monkeypatch.setattr(core_stacks, "pyspy_here", lambda: None)
    result = read(other, tmp_path / "spool")
    assert not [r for r in result.rows if isinstance(r, Stack)]
    assert f"{exe} here is another build than the one that the core was made of" in result.artifact.note


def test_py_spy_is_asked_when_pystack_is_not_there(core: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "py-spy"
    frame = {"name": "HiRadixCache.writing_check", "filename": "/a/hiradix_cache.py", "line": 9}
    thread = {"pid": 0, "os_thread_id": elf_core.read(core).pid, "active": False, "owns_gil": True, "frames": [frame]}
    tool.write_text(f"#!{sys.executable}\nprint({json.dumps([thread])!r})\n")
    tool.chmod(0o700)
    monkeypatch.setattr(core_stacks, "pystack_here", lambda: False)
    monkeypatch.setattr(core_stacks, "pyspy_here", lambda: str(tool))
    stack, frames = main_stack(read(core, tmp_path / "spool"))
    assert (stack.rank, stack.source, stack.status) == ("PP1 TP0", "core", "current+gil")
    assert [(f.cls, f.function) for f in frames] == [("HiRadixCache", "writing_check")]


@pytest.mark.parametrize(
    "body, why",
    [
        ("import time\ntime.sleep(600)", "no answer within 1 s"),
        ("x = bytearray(600 << 20)", "MemoryError"),
        ("import os\nos.abort()", "ended by SIGABRT"),
        ("print('[' * 100000)", "no threads"),
        ("import sys\nsys.exit('Error: Failed to find \\x1b[31m python')", "Error: Failed to find ?[31m python"),
        ("import sys\nwhile True: sys.stdout.write('x' * 65536)", "py-spy: "),
    ],
)
def test_a_tool_that_misbehaves_costs_a_line(
    core: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, why: str
) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text(f"#!{sys.executable}\n{body}\n")
    tool.chmod(0o700)
    monkeypatch.setattr(core_stacks, "pystack_here", lambda: False)
    monkeypatch.setattr(core_stacks, "pyspy_here", lambda: str(tool))
    limits = core_stacks.Limits(seconds=1 if "sleep" in body else 60, memory=256 << 20)
    stacks = core_stacks.read(core, elf_core.read(core), "core", tmp_path, limits)
    assert stacks.dump is None and why in stacks.why


def test_a_large_core_is_no_allowance_for_memory(core: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text(f"#!{sys.executable}\nimport time\nx = b'x' * (400 << 20)\ntime.sleep(600)\n")
    tool.chmod(0o700)
    monkeypatch.setattr(core_stacks, "pystack_here", lambda: False)
    monkeypatch.setattr(core_stacks, "pyspy_here", lambda: str(tool))
    large = elf_core.read(core)
    large.size = 1 << 34
    stacks = core_stacks.read(core, large, "core", tmp_path, core_stacks.Limits(memory=64 << 20))
    assert stacks.dump is None and "it wanted more than 64 MiB of memory" in stacks.why


@needs_pystack
def test_pystack_lives_within_limits(core: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_stacks, "pyspy_here", lambda: None)
    told = elf_core.read(core)
    told.size = 0  # of which the room for mapping it follows
    stacks = core_stacks.read(core, told, "core", tmp_path, core_stacks.Limits(memory=16 << 20))
    assert stacks.dump is None and "pystack: " in stacks.why


@pytest.mark.long
@needs_pystack
@pytest.mark.parametrize("seed", range(12))
def test_a_core_with_damaged_memory_costs_no_more_than_its_stacks(core: Path, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    data = bytearray(core.read_bytes())
    for _ in range(dice.choice([1, 30, 3000])):
        at = dice.randrange(dice.choice([1 << 14, len(data)]) - 8)
        data[at : at + 8] = dice.randbytes(8)
    damaged = tmp_path / "core"
    damaged.write_bytes(data)
    result = read(damaged, tmp_path / "spool")
    assert "our reader failed" not in result.artifact.note and len(result.artifact.note) < 2000
    assert len([r for r in result.rows if isinstance(r, Stack)]) <= 4096


def test_a_full_disk_ends_the_unpacking(core: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_file, "RESERVE", 1 << 60)
    result = read(packed(core, tmp_path / "core.zst", "zst"), tmp_path / "spool")
    assert result.artifact.read in {"none", "part"} and "temporary folder is full" in result.artifact.note


def test_a_secret_of_the_command_line_is_not_shown(tmp_path: Path) -> None:
    core = elf_core.ElfCore(1, pid=7, command="python -m sglang.launch_server --api-key hunter2secret")
    assert "hunter2secret" not in core_file._summary(core)


@pytest.mark.long
def test_a_long_message_into_a_short_buffer_is_seen_in_the_core(tmp_path: Path) -> None:
    """gloo aborts the receiver from its own thread: no Python exception, and the text is on standard error only."""
    pytest.importorskip("torch")
    script = tmp_path / "rank.py"
    script.write_text(
        "import resource, sys, time, torch, torch.distributed as dist\n"
        "most = resource.getrlimit(resource.RLIMIT_CORE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (most, most))\n"
        "rank = int(sys.argv[1])\n"
        f"dist.init_process_group('gloo', init_method='file://{tmp_path}/store', rank=rank, world_size=2)\n"
        "def _pp_sync():\n"
        "    if rank == 0:\n"
        "        dist.send(torch.zeros(3, dtype=torch.int64), 1); time.sleep(5)\n"
        "    else:\n"
        "        dist.recv(torch.zeros(1, dtype=torch.int32), 0)\n"
        "_pp_sync()\n"
    )
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
    ranks = [
        subprocess.Popen([sys.executable, str(script), str(n)], cwd=folder, env=environment, stderr=subprocess.DEVNULL)
        for n, folder in enumerate(folders)
    ]
    for rank in ranks:
        rank.wait()
    found = sorted(folders[1].glob("core*"))
    if not found:
        pytest.skip("this machine's core_pattern leaves no core beside the process")
    from hicache_doctor.incident import Options, analyze

    options = Options(settings={"pp_size": "2", "tp_size": "1", "enable_hierarchical_cache": "True"})
    result = analyze([str(found[0])], options)
    result.store.close()
    assert result.verdict.signature == "Q"


def test_head_of_a_compressed_core_is_recognised(core: Path, tmp_path: Path) -> None:
    file = packed(core, tmp_path / "c.zst", "zst")
    assert Source("c.zst", file, file.stat().st_size, "zstd").head(64).startswith(b"\x7fELF")
