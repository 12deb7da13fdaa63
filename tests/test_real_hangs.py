"""Real processes that really hang over gloo: their recorders, stacks and logs, and the rank that the tool names.

What each scenario does stands in ``hang_ranks.py``; the right answers are those of the code there, not of its symptoms.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hicache_doctor.runtime import executables
from tests.cli.doctor import process

pytest.importorskip("torch")

RANKS = Path(__file__).with_name("hang_ranks.py")
SIZE = 3
pytestmark = pytest.mark.timeout(240)


def hang(folder: Path, scenario: str, *, stacks: bool = False) -> Path:
    """Run a scenario until all ranks stand or are gone; the folder with what is left of it."""
    for name in ("dumps", "logs", "stacks"):
        (folder / name).mkdir(parents=True)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANKS), str(rank), str(SIZE), str(folder), scenario],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(SIZE)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            rank.stdout.readline()
        for number, rank in enumerate(ranks):
            if stacks and rank.poll() is None:
                spy = executables.find("py-spy")
                assert spy is not None
                said = subprocess.run([spy, "dump", "--pid", str(rank.pid)], capture_output=True, check=True)
                (folder / "stacks" / f"PP{number}.txt").write_bytes(said.stdout)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            assert rank.stdout is not None
            rank.stdout.close()
    (folder / "store").unlink(missing_ok=True)
    return folder


def verdict(*paths: Path) -> dict[str, Any]:
    said = process("analyze", *paths, "--format", "json")
    raw: dict[str, Any] = json.loads(said.out)
    assert said.code == 0, said.err
    return raw


def test_a_rank_that_leaves_out_a_vote(tmp_path: Path) -> None:
    folder = hang(tmp_path, "skip")
    alone, together = verdict(folder / "dumps"), verdict(folder / "dumps", folder / "logs")
    assert alone["culprits"] == ["rank 1"] and together["culprits"] == ["TP1"]
    for said in (alone, together):
        assert said["signature"] in ("C1", "C"), said["signature"]
        claims = [link["claim"] for link in said["evidence_chain"]]
        assert any("skipped" in c and "writing_check" in c and "went on to broadcast" in c for c in claims), claims


def test_two_votes_in_another_order(tmp_path: Path) -> None:
    said = verdict(hang(tmp_path, "swap") / "dumps")
    assert "rank 1" in said["culprits"] and said["signature"] in ("C", None)


def test_a_rank_that_computes_for_ever_is_the_one(tmp_path: Path) -> None:
    folder = hang(tmp_path, "stuck")
    for said, name in ((verdict(folder / "dumps"), "rank 2"), (verdict(folder / "dumps", folder / "logs"), "TP2")):
        assert said["culprits"] == [name] and said["first_failing_rank"] == name
        assert said["signature"] in ("C", None), "nobody skipped a vote"


def test_a_rank_that_is_gone_accuses_none_of_the_others(tmp_path: Path) -> None:
    said = verdict(hang(tmp_path, "dead"))
    assert not {"TP0", "TP1"} & {*said["culprits"], said["first_failing_rank"]}, said["culprits"]
    assert said["ranks"]["missing"] == ["TP2"] or "TP2" in said["culprits"]


def test_a_chain_of_stages_leads_to_the_first(tmp_path: Path) -> None:
    if executables.find("py-spy") is None:
        pytest.skip("py-spy is not installed")
    folder = hang(tmp_path, "message", stacks=True)
    said = verdict(folder / "stacks", folder / "logs")
    assert said["culprits"] == ["PP0"] and {"PP1", "PP2"} <= set(said["victims"])
