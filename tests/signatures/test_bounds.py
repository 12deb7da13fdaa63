"""From a log's own words to a bound on the release: the reader writes it, once a life and spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache_doctor.artifacts import vocabulary
from hicache_doctor.artifacts.sglang_log import read
from hicache_doctor.artifacts.wrappers import Logical
from hicache_doctor.evidence.rows import BOUND_KEY, Setting
from hicache_doctor.incident import Options, analyze
from hicache_doctor.knowledge.releases import parse_spec

WORDS = vocabulary.load()
HEAD = "[2026-06-04 03:00:%02d PP0 TP0] "
OLD = "Allocating 8.00 GB host memory for hierarchical KV cache."
NEW = "Allocating KV hierarchical KV host pool: 4096 tokens, 8.00 GB"
OLD_ARGS = "server_args=ServerArgs(model_path='m', pp_size=2, tp_size=1)"
NEW_ARGS = "server_args={'model_path': 'm', 'pp_size': 2, 'tp_size': 1}"
WORK = (
    "Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 0, token usage: 0.01, #running-req: 0, #queue-req: 0,"
)
START = "Init torch distributed begin."


def log(*bodies: str) -> str:
    return "".join(f"{HEAD % (i % 60)}{body}\n" for i, body in enumerate(bodies))


def bounds(*bodies: str) -> list[tuple[str, int | None]]:
    lines = [Logical(text, n, n, 0) for n, text in enumerate(log(*bodies).splitlines(), 1)]
    rows = read("a.log", lines, WORDS).rows
    return [(r.value, r.line) for r in rows if isinstance(r, Setting) and r.key == BOUND_KEY]


def release(tmp_path: Path, *bodies: str, options: Options | None = None) -> str | None:
    file = tmp_path / "a.log"
    file.write_text(log(*bodies), encoding="utf-8")
    result = analyze([str(file)], options)
    result.store.close()
    shown: str | None = result.verdict.settings["sglang_version"]
    return shown


def test_each_spec_once_at_its_first_line() -> None:
    assert bounds(WORK, OLD, OLD, WORK, OLD) == [("<0.5.17", 2)]
    assert bounds(OLD_ARGS, NEW) == [("<0.5.19", 1), (">=0.5.17", 2)]
    assert bounds(NEW_ARGS) == [(">=0.5.19", 1)]
    assert bounds(WORK, "ServerArgs( is mentioned", "nothing") == []


def test_every_spec_of_the_vocabulary_can_be_read() -> None:
    specs = [e.releases for e in WORDS.entries if e.releases is not None]
    assert len(specs) > 10
    for spec in specs:
        parse_spec(spec)


@pytest.mark.parametrize(
    ("bodies", "text"),
    [
        ([OLD_ARGS, WORK], "<= 0.5.18 (bounded by the log's vocabulary)"),
        ([NEW_ARGS, WORK], ">= 0.5.19 (bounded by the log's vocabulary)"),
        ([OLD_ARGS, NEW, WORK], "0.5.17 … 0.5.18 (bounded by the log's vocabulary)"),
        ([NEW_ARGS, OLD, WORK], None),  # a vendor's build with both words
        ([WORK], None),
    ],
)
def test_the_verdict_says_the_range(tmp_path: Path, bodies: list[str], text: str | None) -> None:
    assert release(tmp_path, *bodies) == text
    assert release(tmp_path, *bodies, options=Options(settings={"sglang_version": "0.5.14"})) == "0.5.14"


def test_a_new_life_may_run_another_release(tmp_path: Path) -> None:
    upgraded = [OLD_ARGS, START, WORK, NEW_ARGS, START, WORK]
    assert bounds(*upgraded) == [("<0.5.19", 1), (">=0.5.19", 4)]
    assert release(tmp_path, *upgraded) == ">= 0.5.19 (bounded by the log's vocabulary)"
    assert release(tmp_path, *upgraded, options=Options(life=1)) == "<= 0.5.18 (bounded by the log's vocabulary)"


@pytest.mark.parametrize("size", [200, 4 << 20])
def test_a_big_log_says_the_same_as_a_small_one(tmp_path: Path, size: int) -> None:
    """Over 4 MiB only candidate lines are read."""
    filler = [WORK] * (size // (len(WORK) + 31) + 1)
    assert release(tmp_path, OLD_ARGS, *filler, OLD, *filler[:99]) == "<= 0.5.16 (bounded by the log's vocabulary)"
