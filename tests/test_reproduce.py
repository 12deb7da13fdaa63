"""Making an incident, and what its dump must not say."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import pytest
import zstandard

from hicache_doctor import reproduce
from hicache_doctor.cli import main
from hicache_doctor.errors import UsageError
from hicache_doctor.incident import Tools
from hicache_doctor.runtime.fixes import Fix
from hicache_doctor.runtime.scenarios import ALL_SCENARIOS, Scenario

TOOLS = Tools.load()
TELLING = re.compile(
    r"\bFix\.|fixes\b|(?<!de)fault|scenario|refuse|copy_lag|clock_jump|lost_keys|batch_full|misroute|"
    + "|".join(str(f.value) for f in Fix),
    re.I,
)


def members(dump: Path) -> dict[str, bytes]:
    """The files of a bundle."""
    with dump.open("rb") as f:
        data = zstandard.ZstdDecompressor().stream_reader(f, read_across_frames=True).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]


@pytest.mark.parametrize("scenario", ALL_SCENARIOS, ids=lambda s: s.name)
def test_a_dump_does_not_tell_what_was_done(scenario: Scenario, tmp_path: Path) -> None:
    """Names, logs, tracebacks, stacks, settings and ring headers; the numbers inside records are not text."""
    from hicache_doctor.probes import ring
    from hicache_doctor.runtime import sim_dump

    run, _, _ = reproduce.find(scenario)
    dump = tmp_path / "crash.dump"
    sim_dump.write(dump, run.config, run.outcome)
    for name, data in members(dump).items():
        text = data[: ring.header_size(data)] if name.endswith(".ring") else data
        for said in (name, text.decode("utf-8", "replace")):
            found = TELLING.search(said)
            assert found is None, (name, said[max(0, found.start() - 60) : found.end() + 60])


def test_a1_is_made_diagnosed_and_repaired(tmp_path: Path) -> None:
    done = reproduce.reproduce("A1", tmp_path / "crash.dump", tools=TOOLS)
    assert done.reproduced
    said = done.to_json()
    assert (said["verdict"]["signature"], said["verdict"]["root_cause_pr"]) == ("A1", 27285)
    assert said["verdict"]["first_failing_rank"] == "PP1 TP0"
    assert said["verdict"]["first_divergence"]["stream"] == "drain"
    assert said["counterfactual"]["fixes"] == [27285] and said["counterfactual"]["diverged"] is None
    truth = json.loads((tmp_path / "crash.truth.json").read_text())
    assert truth["scenario"] == "A1" and "27285" not in truth["config"]["fixes"]["on"]


def test_a_dump_is_replaced_only_when_told(tmp_path: Path) -> None:
    out = tmp_path / "crash.dump"
    out.write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        reproduce.reproduce("A1", out, tools=TOOLS)
    assert out.read_text() == "mine"


def test_the_command_answers_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "F", "-o", str(tmp_path / "f.dump"), "--format", "json"])
    assert ended.value.code == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said) >= {"signature", "verdict", "counterfactual"}
    assert set(said["counterfactual"]) == {"fixes", "steps", "diverged", "root_cause_only"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["reproduce", "Z9"], "no scenario reproduces 'Z9'"),
        (["reproduce", "A1", "--world", "mars"], "no world 'mars'"),
        (["reproduce", "C7", "--world", "processes"], "shown by the simulation only"),
        (["runtime", "run", "--pp", "0", "--out", "x"], "pp_size is 0"),
        (["runtime", "run", "--pp", "9", "--out", "x"], "9 stages for 4 layers"),
        (["runtime", "run", "--tp", "3", "--out", "x"], "4 heads cannot be split over tp_size 3"),
        (["runtime", "run", "--fixes", "0.9", "--out", "x"], "no release that the knowledge holds"),
        (["runtime", "run", "--fixes", "+1", "--out", "x"], "no switch"),
        (["runtime", "run", "--workload", "fancy", "--out", "x"], "no workload 'fancy'"),
        (["runtime", "run", "--l3", "tape", "--out", "x"], "--l3: 'tape' is none of"),
        (["runtime", "run", "--faults", "nowhere.yaml", "--out", "x"], "nowhere.yaml"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    arguments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    assert ended.value.code in (2, 3)
    assert text in said.err and len(said.err.strip().splitlines()) == 1 and not said.out
