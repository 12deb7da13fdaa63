"""When a file was taken, by what lies outside of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.artifacts.source import Source
from hicache_doctor.artifacts.taken import in_name, taken


@pytest.mark.parametrize(
    "name, at",
    [
        ("pp0_20261130-031244.txt", 1796008364.0),
        ("pyspy-2026-11-30T03:12:44.json", 1796008364.0),
        ("2026-11-30_03-12-44", 1796008364.0),
        ("20261130031244", 1796008364.0),
        ("stacks.1796008364", 1796008364.0),
        ("stacks.1796008364.5.txt", 1796008364.5),
        ("pp1_tp0.txt", None),
        ("99999999999999999.txt", None),
        ("20261399-031244.txt", None),
        ("scheduler_4041_3120.txt", None),
    ],
)
def test_names(name: str, at: float | None) -> None:
    assert in_name(name) == at


def test_the_name_counts_before_the_folder_and_both_before_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("x")
    os.utime(file, (1000.0, 1000.0))

    def of(path: str, own: bool = True) -> tuple[float | None, str | None]:
        return taken(Source(path, file, 1), own)

    assert of("1796008364/1796008374.txt") == (1796008374.0, "name")
    assert of("d.tar!1796008364/pp0.txt") == (1796008364.0, "name")
    assert of("a.txt") == (1000.0, "mtime")
    assert of("a.txt", own=False) == (None, None)


@given(st.text(max_size=60) | st.from_regex(r"[0-9_\-.T:]{0,40}", fullmatch=True))
def test_never_raises(name: str) -> None:
    in_name(name)
