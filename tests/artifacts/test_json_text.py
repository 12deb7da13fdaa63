"""Finding JSON documents in text."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.artifacts.json_text import Finder, Keys, Numbered, documents
from tests.artifacts.small import numbered


def test_documents_between_other_lines() -> None:
    text = (
        "[2026-06-24 15:00:09 PP1] a log line\n[rank1]: another\n" * 300
        + '$ curl …\n{"a": 1}\n  [\n {"b": [2]}\n]\nend {"c": 3}\n{"d": \n'
    )
    assert [d.value for d in documents(text)] == [{"a": 1}, [{"b": [2]}]]


def test_depth_and_numbers_that_python_refuses() -> None:
    deep = '{"a": ' * 20_000
    long = '{"a": ' + "9" * 6000 + "}"
    assert [d.value for d in documents(f"{deep}\n{long}\n" + '{"b": 2}')] == [{"b": 2}]


def test_lines_of_parts() -> None:
    lines = numbered(json.dumps([{"k": 1, "x": 2}, {"k": 1, "x": 3}], indent=1))
    lines = [(n + 10, t) for n, t in lines]
    text = Numbered(lines)
    (document,) = documents(text.text)
    find, keys = Finder(text, document.begin, document.end), Keys(text, document.begin, document.end)
    assert [find.line("k", 1), find.line("x"), find.line("k", 1)] == [13, 14, 17]
    assert [keys.line("x", n) for n in (0, 1, 7)] == [14, 18, 18]
    assert keys.line("none") == 11


@given(st.lists(st.text(max_size=20) | st.just('{"a": 1}'), max_size=8))
def test_never_raises_and_keeps_order(lines: list[str]) -> None:
    found = list(documents("\n".join(lines)))
    assert all(a.end <= b.begin for a, b in pairwise(found))
