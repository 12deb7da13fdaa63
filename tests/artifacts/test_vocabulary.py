"""The vocabulary: every entry has lines that it must recognise, and the table of lines knows every entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache_doctor.artifacts.scan import LiteralScanner
from hicache_doctor.artifacts.secrets import scrub
from hicache_doctor.artifacts.vocabulary import Vocabulary, load
from hicache_doctor.artifacts.windows import Window
from hicache_doctor.errors import RuleError
from hicache_doctor.shipped import rules_dir
from tests.artifacts.vocabulary_lines import LINES, Fields

WORDS = load()
QUIET = [
    "Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 0, token usage: 0.10, #running-req: 0, #queue-req: 0",
    "Decode batch, #running-req: 3, #token: 120, token usage: 0.02, gen throughput (token/s): 55.10, #queue-req: 0",
    'INFO:     10.0.0.9:41022 - "POST /generate HTTP/1.1" 200 OK',
    "Capture cuda graph begin. This can take up to several minutes.",
    "Load weight begin. avail mem=78.68 GB",
    "Using default HuggingFace chat template with detected content format: string",
]


@pytest.mark.parametrize(("kind", "line", "fields"), LINES, ids=[f"{k}-{i}" for i, (k, _, _) in enumerate(LINES)])
def test_a_line_gives_its_kind_and_fields(kind: str, line: str, fields: Fields) -> None:
    found = {m.entry.kind: m.fields for m in WORDS.match(line)}
    assert kind in found
    assert found[kind].items() >= fields.items()


def test_every_entry_has_a_line() -> None:
    assert set(WORDS.by_kind) == {kind for kind, _, _ in LINES}


@pytest.mark.parametrize("line", QUIET)
def test_ordinary_lines_have_no_kind(line: str) -> None:
    assert [m.entry.kind for m in WORDS.match(line)] == []


@pytest.mark.parametrize(("kind", "line", "fields"), LINES)
def test_dropping_secrets_takes_no_line_away(kind: str, line: str, fields: Fields) -> None:
    assert kind in {m.entry.kind for m in WORDS.match(scrub(line))}


def test_the_prefilter_sees_every_line_that_a_pattern_matches() -> None:
    # GIVEN the literals as big logs use them, as bytes
    scanner = LiteralScanner({e.kind: [t.encode() for t in e.literals] for e in WORDS.entries})
    # WHEN all example lines stand in one window
    lines = scanner.scan(Window("\n".join(line for _, line, _ in LINES).encode()))
    seen = {int(lines.number[i]): set(lines.keys(i)) for i in range(len(lines))}
    # THEN each is found under its kind
    assert [n for n, (kind, _, _) in enumerate(LINES, 1) if kind not in seen.get(n, set())] == []


def test_a_kind_comes_once_in_a_line_and_in_the_order_of_the_files() -> None:
    kinds = [m.entry.kind for m in WORDS.match("Killed Killed sglang: CUDA out of memory OutOfMemoryError")]
    assert kinds == ["killed", "cuda_oom", "engine_sglang"]


@pytest.mark.parametrize(
    ("exception", "proof"),
    [
        ("IndexError: pop from empty list", "own"),
        ("RuntimeError: [gloo/pair.cc:553] Connection closed by peer [::1]:1", "peer_closed"),
        ("BrokenPipeError: [Errno 32] Broken pipe", "peer_closed"),
        ("KeyboardInterrupt: ", "signal"),
        ("RuntimeError: Timed out waiting 1800000ms for recv operation to complete", "timeout"),
        ("TimeoutError: ", "timeout"),
        ("KeyError: _pg_guids[2]", "analyser"),
    ],
)
def test_what_an_exception_proves(exception: str, proof: str) -> None:
    assert WORDS.proof_of(exception) == proof


@pytest.mark.parametrize(
    "text", ["- {kind: x, literals: [x]}\n", "- {kind: x, literals: [x], pattern: x, kep: ends}\n", "- [", "- 3\n"]
)
def test_a_wrong_entry_is_told_with_its_file(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "vocabulary"
    folder.mkdir()
    for name in ("torch.yaml", "engines.yaml", "proofs.yaml"):
        (folder / name).write_text((rules_dir() / "vocabulary" / name).read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "sglang.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(RuleError, match=r"sglang\.yaml"):
        load(tmp_path)


def test_an_empty_vocabulary_matches_nothing() -> None:
    assert list(Vocabulary([], []).match("Killed")) == []
