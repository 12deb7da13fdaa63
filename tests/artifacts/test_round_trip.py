"""Unwrapping a wrapped file gives the file back, in every wrapper and in random nestings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.wrapping import LOSES_INDENT, WRAPPERS, nesting, unwrap, unwrap_all, wrap

DATA = Path(__file__).parent.parent / "data"
FILES = sorted((DATA / "peel").iterdir())


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def check(lines: list[str], names: Sequence[str], seed: int) -> None:
    expected, got = unwrap(lines), unwrap(wrap(lines, names, random.Random(seed)))
    if LOSES_INDENT.intersection(names):
        expected, got = [line.strip() for line in expected], [line.strip() for line in got]
    assert got == expected, names


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_bare_files_stay_as_they_are(path: Path) -> None:
    lines = lines_of(path)
    assert unwrap(lines) == lines
    assert [one.line for one in unwrap_all(lines)] == list(range(1, len(lines) + 1))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
@pytest.mark.parametrize("name", sorted(WRAPPERS))
def test_each_wrapper(name: str, path: Path) -> None:
    for seed in range(8):
        check(lines_of(path), [name], seed)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
@pytest.mark.parametrize("depth", [2, 3])
def test_nestings(depth: int, path: Path) -> None:
    for seed in range(300):
        check(lines_of(path), nesting(random.Random(seed), depth), seed)


@pytest.mark.parametrize("path", sorted(DATA.rglob("*.log")), ids=lambda p: p.name)
def test_any_log_of_the_test_data(path: Path) -> None:
    lines = lines_of(path)[:400]
    for name in ("cri", "jsonl", "compose", "ray", "quote", "table"):
        check(lines, [name], 1)
