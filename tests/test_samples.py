"""Every shipped sample incident gets the verdict that stands beside it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from hicache_doctor import reproduce
from hicache_doctor.incident import Tools, analyze
from hicache_doctor.runtime import sim_dump
from hicache_doctor.runtime.scenarios import BY_NAME
from hicache_doctor.shipped import shipped
from tests.wrapping import WRAPPERS

SAMPLES = sorted(p for p in (shipped("samples") / "crash_dumps").iterdir() if (p / "input").is_dir())
MADE = shipped("samples") / "crash_dumps" / "made"
EXPECTED = json.loads((MADE / "expected.json").read_text())
TOOLS = Tools.load()

HEALTHY = shipped("rules") / "cases" / "healthy" / "control_ok-0.5.12.post1"


def test_there_are_samples() -> None:
    assert len(SAMPLES) >= 2


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda p: p.name)
def test_a_sample_gets_its_verdict(sample: Path) -> None:
    expected = json.loads((sample / "expected.json").read_text())
    result = analyze([str(sample / "input")])
    result.store.close()
    document = result.verdict.model_dump(mode="json")
    assert {key: document[key] for key in expected} == expected
    assert all(row["read"] == "all" for row in document["inventory"])
    assert document["evidence_chain"] and all(link["citations"] for link in document["evidence_chain"][:1])
    assert (sample / "README.md").is_file()


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_made_dump_gets_its_verdict(name: str) -> None:
    assert (MADE / name).stat().st_size <= 300_000
    verdict = reproduce.diagnose(MADE / name, TOOLS).model_dump(mode="json")
    assert {key: verdict[key] for key in EXPECTED[name]} == EXPECTED[name]


def test_a_made_dump_can_be_made_again(tmp_path: Path) -> None:
    """The same seed gives the same incident, so a new dump gets the same verdict, word for word."""
    run, _, _ = reproduce.find(BY_NAME["A1"])
    again = tmp_path / "A1.dump"
    sim_dump.write(again, run.config, run.outcome)
    said = [reproduce.diagnose(dump, TOOLS).model_dump(mode="json") for dump in (MADE / "A1.dump", again)]
    for verdict in said:
        verdict.pop("inventory")
    assert said[0] == said[1]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda p: p.name)
def test_every_citation_of_a_sample_quotes_its_line(sample: Path) -> None:
    """A quote may be clipped or derived, but the line that it cites exists and, where it is text, holds it."""
    result = analyze([str(sample / "input")])
    result.store.close()
    quoted = 0
    for link in result.verdict.evidence_chain:
        for c in link.citations:
            if c.line is None:
                continue
            lines = (sample / "input" / Path(c.artifact).name).read_text().splitlines()
            assert 1 <= c.line <= len(lines), c
            here = "\n".join(lines[c.line - 1 : (c.line_end or c.line)])
            quoted += (c.quote or "-")[:60] in here
    assert quoted


@pytest.mark.parametrize("names", [("csv",), ("torchrun", "csv"), ("crlf", "csv")], ids="+".join)
@pytest.mark.parametrize("sample", [*SAMPLES, HEALTHY], ids=lambda p: p.name)
def test_logs_exported_newest_first_say_the_same(tmp_path: Path, sample: Path, names: tuple[str, ...]) -> None:
    """Many batches fall into one second: their order is that of reading, not that of lines."""
    source = sample / "input" if (sample / "input").is_dir() else sample
    for file in source.iterdir():
        lines = file.read_text().splitlines()
        for name in names if file.suffix == ".log" else ():
            lines = WRAPPERS[name](lines, random.Random(1))
        (tmp_path / file.name).write_text("\n".join(lines) + "\n", newline="\n")
    said = []
    for folder in (source, tmp_path):
        result = analyze([str(folder)])
        pairs = "SELECT rank_a, rank_b, common, diverged FROM stream_pair ORDER BY ALL"
        said.append((result.verdict.status, result.verdict.signature, result.store.rows(pairs)))
        result.store.close()
    assert said[0] == said[1]


def test_a_report_names_what_is_not_shown_and_what_is_set_already() -> None:
    result = analyze([str(shipped("samples") / "crash_dumps" / "pop_empty-0.5.14" / "input")])
    result.store.close()
    verdict = result.verdict
    assert verdict.confidence_because and verdict.confidence_because.endswith(
        "not shown by the artefacts: pool pressure"
    )
    assert any("Set here already" in a.do and "--hicache-ratio 3" in a.do for a in verdict.actions)
