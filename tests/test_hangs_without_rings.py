"""Known hangs of the reference runtime from what any incident has: logs and stacks, without one probe event."""

from __future__ import annotations

import io
import tarfile
from functools import cache
from pathlib import Path

import pytest
import zstandard

from hicache_doctor.incident import Tools, analyze
from hicache_doctor.reproduce import find, scenario_of
from hicache_doctor.runtime import sim_dump

# The signature, and the ranks named: both parties of a skipped vote; the circle where stages wait for each other (only
# the decision streams say which of them parted first); the stage that gave a profile up.
RIGHT = {
    "C1": ("C1", ["TP0", "TP1"]),
    "C1-unified": ("C1", ["TP0", "TP1"]),
    "C2": ("C2", ["TP0", "TP1"]),
    "C5": ("C5", ["PP1 TP0", "PP2 TP0"]),
    "C5b": ("C5b", ["PP0 TP0", "PP1 TP0"]),
    "C7": ("C7", []),
    "C8": ("C8", ["PP0 TP0"]),
}


@cache
def tools() -> Tools:
    return Tools.load()


@pytest.mark.parametrize("name", RIGHT)
def test_stacks_and_logs_are_enough(name: str, tmp_path: Path) -> None:
    run, _, _ = find(scenario_of(name))
    dump = tmp_path / "crash.dump"
    sim_dump.write(dump, run.config, run.outcome)
    left = tmp_path / "left"
    with tarfile.open(fileobj=io.BytesIO(zstandard.ZstdDecompressor().stream_reader(dump.read_bytes()).read())) as tar:
        for member in tar.getmembers():
            if not member.name.startswith("rings/") and member.name != "manifest.json" and member.isfile():
                target = left / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None
                target.write_bytes(content.read())
    result = analyze([str(left)], tools=tools())
    result.store.close()
    verdict = result.verdict
    assert (verdict.signature, verdict.culprits) == RIGHT[name]
    assert set(verdict.victims).isdisjoint(verdict.culprits)
    assert verdict.evidence_chain
