"""The shipped rules, as a user runs them: `rules check` is clean and `rules test` passes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hicache_doctor.rule_cases import run
from hicache_doctor.shipped import rules_dir


def doctor(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "hicache_doctor", *args], capture_output=True, text=True, check=False)


def test_rules_check_finds_no_error() -> None:
    done = doctor("rules", "check", "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {f["severity"] for f in json.loads(done.stdout)["findings"]} <= {"warning"}


@pytest.mark.timeout(400)  # some hundred incidents, half a second each
def test_rules_test_passes() -> None:
    done = doctor("rules", "test", "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads(done.stdout)["cases"]
    assert cases and all(c["problem"] is None for c in cases)
    assert "healthy" in {c["rule"] for c in cases}


def test_a_case_that_does_not_hold_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hicache_doctor.rule_cases.rules_dir", lambda: tmp_path / "no shipped cases")
    (tmp_path / "cases" / "healthy").mkdir(parents=True)
    (tmp_path / "cases" / "A1.yaml").write_text(
        "- name: says too much\n  files: {a.log: nothing}\n  expect: {status: signature, signature: A1}\n"
        "- name: rightly not\n  files: {a.log: nothing}\n  expect: {not: A1}\n"
    )
    crash = next((rules_dir().parent / "samples" / "crash_dumps").glob("ack_skew*/input/PP1.log"))
    (tmp_path / "cases" / "healthy" / "crash.log").write_text(crash.read_text())
    own = {o.name: o.problem for o in run((tmp_path,))}
    assert set(own) == {"says too much", "rightly not", "crash.log"}
    assert own["says too much"] == "status is undetermined, not signature; signature is None, not A1"
    assert own["rightly not"] is None
    assert (own["crash.log"] or "").startswith("a false alarm: ")


def test_every_file_that_the_loader_needs_is_shipped() -> None:
    for name in ("signatures", "evidence", "path", "vocabulary", "knowledge"):
        assert any((rules_dir() / name).iterdir()), name
    assert (rules_dir() / "phrases.yaml").is_file() and (rules_dir() / "verdict.schema.json").is_file()
