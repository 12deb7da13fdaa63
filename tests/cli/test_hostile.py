"""Hostile and broken inputs: each a clear line in the inventory, and the rest is analysed."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doctor import CRASH, Ran, process
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hicache_doctor.incident import analyze

Run = Callable[..., Ran]
GOOD = (CRASH / "PP1.log").read_bytes()


def beside_the_crash(run: Run, folder: Path, *more: Path | str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The verdict over the real crash together with ``folder``, and its inventory by artefact."""
    ran = run("analyze", CRASH, folder, *more, "--format", "json")
    assert ran.code == 0 and ran.err == ""
    document = json.loads(ran.out)
    assert (document["status"], document["signature"]) == ("signature", "A1")
    return document, {row["artifact"]: row for row in document["inventory"]}


def row_of(inventory: dict[str, Any], end: str) -> dict[str, Any]:
    (found,) = [row for name, row in inventory.items() if name.endswith(end)]
    row: dict[str, Any] = found
    return row


@pytest.mark.parametrize(
    ("name", "data", "note"),
    [
        ("empty.log", b"", "empty"),
        ("core", b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x04\x00" + bytes(4000), "a core file"),
        ("noise.bin", bytes(range(256)) * 40, "no text"),
        ("dump.pkl", b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94.", "never loaded"),
        ("cut.gz", gzip.compress(b"words of a log\n" * 9000)[:-40], "truncated"),
        ("bad.zip", b"PK\x03\x04" + b"\x00" * 60, ""),
        ("x.7z", b"7z\xbc\xaf\x27\x1c" + b"\0" * 60, "7z archive is not read"),
    ],
)
def test_what_cannot_be_read_is_a_line(run: Run, tmp_path: Path, name: str, data: bytes, note: str) -> None:
    (tmp_path / name).write_bytes(data)
    row = row_of(beside_the_crash(run, tmp_path)[1], name)
    assert note in row["note"] and row["note"]
    alone = run("analyze", tmp_path / name, "--format", "json")
    assert "Traceback" not in alone.err and json.loads(alone.out)["status"] == "undetermined"


@pytest.mark.parametrize(
    "data", [b"\xff\xfe\xfa" + b"caf\xe9 \x80\n" * 50, GOOD.replace(b"e", b"\xe9"), b"\xed\xa0\x80 a\n" * 9]
)
def test_invalid_utf8_is_read(run: Run, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "latin.log").write_bytes(data)
    beside_the_crash(run, tmp_path)


@pytest.mark.timeout(300)
def test_a_line_of_fifty_megabytes(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one_line.log").write_bytes(b"Prefill batch " + b"a{[('\"" * (50 << 20 >> 3) + b" Traceback")
    row = row_of(beside_the_crash(run, tmp_path)[1], "one_line.log")
    assert row["bytes"] > 39_000_000


def test_long_lines_of_every_kind(run: Run, tmp_path: Path) -> None:
    for i, unit in enumerate(
        [b"(", b'{"a":', b"\\", b"> ", b"a=", b"\x1b[1m", b" ", b"server_args=", b"'", b"| ", b"\t", b"1", b"Error: "]
    ):
        (tmp_path / f"{i}.log").write_bytes(b"[2026-06-04 03:00:00 PP0 TP0] " + unit * 40_000 + b"\n")
    beside_the_crash(run, tmp_path)


def archive(names: list[str]) -> tuple[bytes, bytes]:
    tar, packed = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as t, zipfile.ZipFile(packed, "w") as z:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 4
            t.addfile(info, io.BytesIO(b"own\n"))
            z.writestr(name, "own\n")
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        t.addfile(link)
    return tar.getvalue(), packed.getvalue()


def test_an_archive_writes_nothing_outside(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "in"
    work = tmp_path / "work"
    spool = tmp_path / "spool"
    for folder in (inside, work, spool):
        folder.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr("tempfile.tempdir", str(spool))
    names = ["../../evil", "/tmp/hd-evil-absolute", "a/../../evil", "..\\evil", "ok.log", "\x1b[31m.log", "C:\\evil"]
    (inside / "a.tar").write_bytes(archive(names)[0])
    (inside / "a.zip").write_bytes(archive(names)[1])
    document, _ = beside_the_crash(run, inside)
    assert not list(work.iterdir()) and not list(spool.iterdir())
    assert {p.name for p in tmp_path.iterdir()} == {"in", "work", "spool"}
    assert not Path("/tmp/hd-evil-absolute").exists()
    assert "root:" not in json.dumps(document)


def test_links_loops_pipes_and_sockets_do_not_hang(run: Run, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "passwd").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    document, inventory = beside_the_crash(run, tmp_path)
    assert row_of(inventory, "pipe")["read"] == "none" and row_of(inventory, "pipe")["note"]
    assert "root:" not in json.dumps(document)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/proc/self/mem"])
def test_a_device_is_refused(run: Run, path: str) -> None:
    ran = run("analyze", path, "--format", "json")
    assert ran.code in (0, 3) and json.loads(ran.out)["status"] == "undetermined"


ESCAPES = [
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "\x1b]8;;http://x\x1b\\link",
    "\x9b31m",
    "\u202eflip",
    "\x07bell",
    "\r\x1b[2Kgone",
    "\x00nul",
]


def without_plotly(page: str) -> str:
    """The library inside a page is ours, not the artefact's, and has control characters of its own."""
    from plotly.offline import get_plotlyjs

    rest = page.replace(get_plotlyjs().replace("\r\n", "\n"), "")
    assert 10_000 < len(rest) < 1_000_000
    return rest


@pytest.mark.parametrize("form", ["terminal", "markdown", "html", "json"])
def test_escapes_from_artefacts_never_reach_the_output_raw(tmp_path: Path, form: str) -> None:
    evil = "".join(ESCAPES)
    name = "log\x1b[31m\u202e.txt"
    text = GOOD.decode().replace("PP1]", f"PP1]{evil}", 3)
    last = "[2026-06-04 03:00:00 PP1] Scheduler hit an exception: Traceback (most recent call last):\n"
    last += f'  File "/sgl/{evil}/schedule_batch.py", line 3, in f{evil}\nRuntimeError: {evil} shape mismatch\n'
    (tmp_path / name).write_text(text + last, newline="\n")
    for options in ([], ["--explain"]):
        ran = process(
            "analyze", tmp_path, CRASH, "--set", f"model_path={evil[:20].strip()}", "--format", form, *options
        )
        assert ran.code == 0
        page = ran.out if form != "html" else without_plotly(ran.out)
        raw = [c for c in page + ran.err if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or c in "\u202e"]
        assert raw == [], options
    missing = process("analyze", tmp_path / f"no{evil[1:12]}")
    assert "\x1b" not in missing.out + missing.err


def test_html_runs_nothing_from_an_artefact(run: Run, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    (tmp_path / "a.log").write_text(
        f"[2026-06-04 03:00:00 PP0 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        f'  File "/sgl/sglang/srt/managers/scheduler.py", line 3, in run\nRuntimeError: {evil}\n'
    )
    out = run("analyze", tmp_path, "--format", "html").out
    assert "<script>alert" not in out and "<img src=x" not in out
    assert "alert(1)" in out


PIECES = [
    "[2026-06-04 03:00:00 PP0 TP0] ", "Prefill batch, #new-seq: 1, ", "Traceback (most recent call last):\n",
    '  File "x.py", line 3, in f\n', "ValueError: x\n", "server_args=ServerArgs(", "server_args={'a': ",
    'Thread 0x1 (idle): "M"\n', '{"log": "', '\\n"}\n', "> ", "```\n", "\x1b[31m", "\r\n", "sglang==0.5.",
    "--pp-size ", "# TYPE sglang:x gauge\n", "\x00",
]  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(
        st.one_of(
            st.binary(max_size=200), st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.text(max_size=80)
        ),
        min_size=1,
        max_size=3,
    )
)
def test_no_text_and_no_bytes_make_analyze_raise(tmp_path: Path, files: list[bytes | str]) -> None:
    for i in range(3):
        (tmp_path / f"{i}.log").unlink(missing_ok=True)
    for i, data in enumerate(files):
        (tmp_path / f"{i}.log").write_bytes(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)
    result = analyze([str(tmp_path)])
    result.store.close()
    assert not any("our reader failed" in row.note for row in result.verdict.inventory)
