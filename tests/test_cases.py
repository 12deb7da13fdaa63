"""The dev cases beside a checkout (``../shared/cases``): the score, and the same verdict however a log is wrapped."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hicache_doctor.incident import analyze
from hicache_doctor.knowledge.releases import affected_by
from hicache_doctor.signatures.load import RuleBase, load
from tests.wrapping import nesting, wrap

HERE = Path(__file__).resolve()
PLACES = [HERE.parents[2] / "shared" / "cases"]
CASES = next((p for p in PLACES if (p / "score.py").is_file()), None)

pytestmark = pytest.mark.skipif(CASES is None, reason="the dev cases (../shared/cases) are not beside this checkout")

IDS = sorted(p.parent.name for p in CASES.glob("*/expected.json")) if CASES else []
# What decides by the shape of the whole file is not wrapped by a shipper: only logs and stacks are.
NEVER_WRAPPED = {".json", ".csv", ".prom", ".yaml", ".sh"}
QUOTING = {"quote", "fence", "crlf", "ansi", "html"}
SEEDS = 12
NORMAL = 40
ONCE_WRONG = {("M08", 7), ("M08", 10)}


def said(document: dict[str, Any]) -> tuple[str, str | None, str | None]:
    cause = document["other_cause"]
    return document["status"], document["signature"], cause["id"] if cause else None


def verdict(folder: Path) -> dict[str, Any]:
    """The verdict's document, and what the logs' vocabulary says of the release as ``bounds``."""
    result = analyze([str(folder)])
    rows = result.store.rows("SELECT value FROM setting WHERE key = 'sglang_release_bound'")
    result.store.close()
    return {**result.verdict.model_dump(mode="json"), "bounds": [r["value"] for r in rows]}


@cache
def plain(case: str) -> dict[str, Any]:
    assert CASES is not None
    return verdict(CASES / case / "input")


@cache
def rules() -> RuleBase:
    return load()


@cache
def scorer() -> ModuleType:
    assert CASES is not None
    spec = importlib.util.spec_from_file_location("score", CASES / "score.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def walk_decides(document: dict[str, Any]) -> bool:
    """Whether the node that the walk reaches is the verdict."""
    last, base = document["path"][-1], rules()
    rule = base.rules[str(base.nodes[getattr(base.nodes[last["node"]], last["answer"])].verdict)]
    _, signature, cause = said(document)
    own = rule.id if rule.kind in {"signature", "other_cause"} else None
    return (rule.kind, own) == (document["status"], signature or cause)


def bounds_hold(document: dict[str, Any]) -> bool:
    """Whether a stated release lies within the bounds of its own log; a development build may print later words."""
    version = str(document["settings"]["sglang_version"])
    stated = "bounded" not in version and "dev" not in version and version != "None"
    return not stated or all(affected_by(version, spec) is not False for spec in document["bounds"])


@pytest.mark.timeout(300)
def test_the_score_the_walk_and_the_bounds() -> None:
    """As score.py counts: none plainly wrong, at least 0.95 accepted, at least 0.85 of the decidable ones decided."""
    assert [c for c in IDS if not walk_decides(plain(c))] == []
    assert [c for c in IDS if not bounds_hold(plain(c))] == []
    assert sum(len(plain(c)["bounds"]) for c in IDS) > 60
    assert CASES is not None
    outcomes: dict[str, str] = {}
    decidable = decided = 0
    for case in IDS:
        expected = json.loads((CASES / case / "expected.json").read_text())
        outcome, reason = scorer().judge(expected, plain(case), str(CASES / case / "input"))
        outcomes[case] = f"{outcome}: {reason}"
        can = expected.get("decidable", any(e["status"] != "undetermined" for e in expected["accept"]))
        decidable += can
        decided += can and outcome == "accepted" and plain(case)["status"] != "undetermined"
    bad = {c: o for c, o in outcomes.items() if not o.startswith("accepted")}
    assert not [o for o in bad.values() if o.startswith("wrong")], bad
    assert len(IDS) - len(bad) >= 0.95 * len(IDS), bad
    assert decided >= 0.85 * decidable, (decided, decidable)


def text_of(file: Path) -> str | None:
    """The text of a file that may be wrapped; None for what isn't text (pickles)."""
    if file.suffix in {".json", ".jsonl"} or file.name.startswith(("fr_trace_rank", "nccl_trace_rank")):
        return None
    try:
        return file.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return None


def wrappers(file: Path, rng: random.Random) -> tuple[str, ...]:
    """Two compatible wrappers; around what is no log only those that a person adds by quoting."""
    if file.suffix in NEVER_WRAPPED or file.name in {"metrics", "env.sh"}:
        return ()
    names = nesting(rng)
    while not is_log(file) and not QUOTING.issuperset(names):
        names = nesting(rng)
    return names


def is_log(file: Path) -> bool:
    head = file.read_text(errors="replace")[:4000]
    return "[20" in head and len(head) > 1000


def wrapped(case: str, seed: int, folder: Path) -> dict[str, tuple[str, ...]]:
    """The case's inputs in ``folder``, each text wrapped by chance; the wrappers by file."""
    assert CASES is not None
    used: dict[str, tuple[str, ...]] = {}
    source = CASES / case / "input"
    for file in sorted(p for p in source.rglob("*") if p.is_file()):
        target = folder / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        rng = random.Random(zlib.crc32(f"{case} {file.name} {seed}".encode()))
        text = text_of(file)
        names = wrappers(file, rng) if text else ()
        if not text or not names:
            shutil.copyfile(file, target)
            continue
        used[file.name] = names
        target.write_text("\n".join(wrap(text.split("\n"), names, rng)), encoding="utf-8", newline="\n")
    return used


def matrix() -> Iterator[Any]:
    every = [(case, seed) for seed in range(SEEDS) for case in IDS]
    normal = set(random.Random(20261130).sample(every, min(NORMAL, len(every)))) | ONCE_WRONG
    for case, seed in every:
        marks = [] if (case, seed) in normal else [pytest.mark.long]
        yield pytest.param(case, seed, marks=marks, id=f"{case}-{seed}")


@pytest.mark.parametrize(("case", "seed"), list(matrix()))
def test_a_wrapped_case_gets_the_same_verdict(tmp_path: Path, case: str, seed: int) -> None:
    used = wrapped(case, seed, tmp_path)
    if not used:
        pytest.skip("nothing in it is wrapped")
    assert said(verdict(tmp_path)) == said(plain(case)), used
