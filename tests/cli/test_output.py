"""Where results go: -o and --db replace nothing, pipes may close, locales and NO_COLOR are obeyed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from doctor import CRASH, Ran, one_line, process, shell

Run = Callable[..., Ran]
LOG = "[2026-06-04 03:00:00 PP0 TP0] Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 0, token usage: 0.01\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "pp0.log"
    file.write_text(LOG)
    return file


def test_o_writes_a_private_file_and_nothing_to_stdout(run: Run, log: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    old = os.umask(0)
    try:
        ran = run("analyze", log, "--format", "html", "-o", out)
    finally:
        os.umask(old)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert out.read_text().startswith("<!doctype html>") or out.read_text().lower().startswith("<!doctype html>")


def test_an_existing_file_is_replaced_with_force_only(run: Run, log: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    out.write_text("mine")
    out.chmod(0o644)
    ran = run("analyze", log, "--format", "json", "-o", out)
    assert ran.code == 2 and one_line(ran.err) and "add --force" in ran.err
    assert out.read_text() == "mine"
    assert run("analyze", log, "--format", "json", "-o", out, "--force").code == 0
    assert '"schema_version": 1' in out.read_text()
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


@pytest.mark.parametrize("how", ["itself", "another spelling", "a hard link", "a symbolic link", "in the folder"])
def test_an_input_is_never_replaced_not_even_with_force(run: Run, log: Path, tmp_path: Path, how: str) -> None:
    out = log
    if how == "another spelling":
        out = tmp_path / "." / ".." / tmp_path.name / log.name
    elif how == "a hard link":
        out = tmp_path.parent / f"{tmp_path.name}-hard"
        os.link(log, out)
    elif how == "a symbolic link":
        out = tmp_path.parent / f"{tmp_path.name}-soft"
        out.symlink_to(log)
    ran = run("analyze", tmp_path if how == "in the folder" else log, "-o", out, "--force")
    assert ran.code == 2 and one_line(ran.err)
    assert log.read_text() == LOG


def test_a_dangling_link_is_not_followed(run: Run, log: Path, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    assert run("analyze", log, "-o", tmp_path / "out").code == 2
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_is_no_output(run: Run, log: Path, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    ran = run("analyze", log, "-o", tmp_path / "d", "--force")
    assert ran.code == 2 and one_line(ran.err)


def test_db_replaces_nothing(run: Run, log: Path, tmp_path: Path) -> None:
    db = tmp_path / "i.duckdb"
    assert run("analyze", log, "--db", db).code == 0
    assert stat.S_IMODE(db.stat().st_mode) == 0o600
    before = db.read_bytes()
    ran = run("analyze", log, "--db", db, "--force")
    assert ran.code == 2 and one_line(ran.err) and "exists" in ran.err
    assert db.read_bytes() == before
    assert run("analyze", log, "--db", log).code == 2
    assert log.read_text() == LOG


def test_standard_input_is_read_and_named(run: Run) -> None:
    ran = run("analyze", "-", "--format", "json", stdin=LOG.encode())
    assert ran.code == 0 and '"artifact": "(standard input)"' in ran.out.replace("stdin", "(standard input)")
    assert process("analyze", "-", "--sglang", "0.5.14", stdin=LOG.encode()).code == 0
    empty = run("analyze", "-")
    assert empty.code == 3 and one_line(empty.err)


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    for command in (
        f"$DOCTOR analyze {CRASH} --explain | head -1",
        f"$DOCTOR analyze {CRASH} --format json | head -c 1",
        f"$DOCTOR analyze {CRASH} --format html | true",
        "$DOCTOR kb list | head -1",
        "$DOCTOR rules list | true",
        "$DOCTOR --help | true",
    ):
        ran = shell(command, tmp_path)
        # A short answer may be written whole before its reader goes; then its closing remark is said too.
        assert ran.code == 0 and not set(ran.err.lower().split()) & {"traceback", "error:", "internal"}, command


def test_a_full_disk_is_one_line(tmp_path: Path, log: Path) -> None:
    ran = shell(f"$DOCTOR analyze {log} -o /dev/full --force", tmp_path)
    assert ran.code == 2 and one_line(ran.err)
    ran = shell(f"$DOCTOR analyze {log} > /dev/full", tmp_path)
    assert ran.code not in (0, 1) and "Traceback" not in ran.err


@pytest.mark.parametrize("env", [{"LANG": "C", "LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}])
def test_a_c_locale_gets_utf8(env: dict[str, str]) -> None:
    ran = process("analyze", CRASH, "--explain", **env)
    assert ran.code == 0 and ran.err == ""
    assert "·" in ran.out


def test_colour_follows_the_terminal_and_no_color(tmp_path: Path) -> None:
    """`script` gives a terminal; a pipe never gets colour."""
    assert "\x1b" not in process("analyze", CRASH).out
    assert "\x1b[" in process("analyze", CRASH, FORCE_COLOR="1").out
    assert "\x1b" not in process("analyze", CRASH, FORCE_COLOR="1", NO_COLOR="1").out
    command = f"script -qec '$DOCTOR analyze {CRASH}' /dev/null < /dev/null"
    if shell("command -v script", tmp_path).code == 0:
        assert "\x1b[" in shell(command, tmp_path, TERM="xterm").out
        assert "\x1b[3" not in shell(command, tmp_path, TERM="xterm", NO_COLOR="1").out
        assert "\x1b[3" not in shell(command, tmp_path, TERM="dumb").out


def test_columns_are_obeyed() -> None:
    ran = process("analyze", CRASH, COLUMNS="60")
    assert max(len(line) for line in ran.out.splitlines()) <= 60


def test_a_file_gets_no_colour(tmp_path: Path) -> None:
    out = tmp_path / "o.txt"
    assert process("analyze", CRASH, "-o", out, FORCE_COLOR="1").code == 0
    assert "\x1b" not in out.read_text()
