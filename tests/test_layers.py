"""Imports run downward only (DESIGN section 3)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_contracts_hold() -> None:
    beside = Path(sys.executable).with_name("lint-imports")
    tool = str(beside) if beside.exists() else shutil.which("lint-imports")
    if tool is None:
        pytest.skip("import-linter is not installed")
    done = subprocess.run(
        [tool, "--config", str(ROOT / "pyproject.toml"), "--no-cache"],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_every_file_is_short_enough_to_be_one_noun() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for p in (ROOT / "hicache_doctor").rglob("*.py")
        if (n := len(p.read_text().splitlines())) > 400
    }
    assert long == {}
