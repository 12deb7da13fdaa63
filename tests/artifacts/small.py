"""Reading the small test artefacts of this folder's tests."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

DATA = Path(__file__).parent.parent / "data" / "small"


def text_of(name: str) -> str:
    """The text of a test artefact, carriage returns kept."""
    with (DATA / name).open(encoding="utf-8", newline="") as f:
        return f.read()


def numbered(text: str) -> list[tuple[int, str]]:
    """The lines as readers get them: 1-based numbers, no newline."""
    return list(enumerate(text.split("\n"), 1))


def mutations(*seeds: str) -> st.SearchStrategy[str]:
    """Random text, and real text that was cut, doubled and spiked: what a reader must survive."""
    pieces = [p for s in seeds for p in s.splitlines()]
    lines = st.lists(st.one_of(st.sampled_from(pieces), st.text(max_size=40)), max_size=30).map("\n".join)
    return st.one_of(
        st.text(max_size=300),
        lines,
        st.tuples(lines, st.integers(0, 400), st.text(max_size=5)).map(
            lambda t: t[0][: t[1]] + t[2] + t[0][t[1] + 3 :]
        ),
    )
