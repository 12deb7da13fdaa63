"""Nothing unseen leaves the cleaner."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.report.clean import printable, printable_lines


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("a\tb", "a b"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x9b31m\x7f\x00", "\\x9b31m\\x7f\\x00"),
        ("two\r\nlines", "two\\r\\nlines"),
        ("\u202egnp.exe\u2066", "\\u202egnp.exe\\u2066"),
        ("a\u200bb\ufeff\u2028", "a\\u200bb\\ufeff\\u2028"),
        ("\udc80\ud800", "\\udc80\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("漢字 é ✓", "漢字 é ✓"),
    ],
)
def test_what_is_unseen_is_shown(raw: str, shown: str) -> None:
    assert printable(raw) == shown


@given(st.text(st.characters(codec=None), max_size=200))
def test_the_result_is_one_printable_utf8_line(text: str) -> None:
    shown = printable(text)
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    shown.encode("utf-8")
    assert printable(shown) == shown


def test_lines_part_at_newlines_only() -> None:
    assert printable_lines("a\r\nb\x0bc\u2028d\n") == ["a", "b\\x0bc\\u2028d"]
    assert printable_lines("") == [""]
