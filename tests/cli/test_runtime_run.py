"""``runtime run`` says what it counted, and only that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.doctor import process

pytest.importorskip("torch")

KILLED = "kill: [[1, 12]]\n"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(KILLED)
    return path


def test_without_a_rank_that_ended_nothing_is_claimed(plan: Path, tmp_path: Path) -> None:
    said = process("runtime", "run", "--out", str(tmp_path / "run"), "--model", "null", "--faults", str(plan))
    assert said.code == 1
    assert "no rank came to its end, so nothing was counted or checked" in said.out
    assert "integrity" not in said.out and "requests" not in said.out
    assert "PP1 TP0 -9" in said.out and "crash.dump" in said.out


def test_its_json_is_null_there(plan: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    said = process("runtime", "run", "--out", out, "--model", "null", "--faults", str(plan), "--format", "json")
    raw = json.loads(said.out)
    assert raw["ranks_checked"] == 0 and raw["outcome"] == "failed" and raw["exit"]["PP1 TP0"] == -9
    assert raw["requests"] is raw["integrity"] is raw["tokens_equal_to_uncached"] is raw["hits"] is None


def test_what_ended_is_counted(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    said = process("runtime", "run", "--out", out, "--model", "null", "--workload", "requests=12", "--format", "json")
    raw = json.loads(said.out)
    assert said.code == 0 and raw["ranks_checked"] == 2 and raw["requests"] == 12
    assert raw["tokens_equal_to_uncached"] is True and raw["tokens_compared"] > 0 and raw["integrity"] == []
