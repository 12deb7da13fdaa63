"""Events written by hand: ranges, words, what is told about a wrong line; and one vocabulary for all."""

from __future__ import annotations

import pytest

from hicache_doctor.evidence import event_rows
from hicache_doctor.probes.kinds import tables
from hicache_doctor.signatures.load import load

BASE = load()


def parse(text: str) -> list[tuple[str | None, int, str, tuple[int, ...]]]:
    rows = event_rows.parse(text, BASE.events, BASE.event_words)
    return [(e.rank, e.step, e.kind, (e.key, e.a, e.b, e.c, e.d)) for e in rows]


def test_ranks_ranges_and_words() -> None:
    assert parse("PP0.TP1,PP1.TP0 3-4 submit 0x10 write 64 no_room $  # refused\n\n") == [
        ("PP0 TP1", 3, "submit", (16, 0, 64, 1, 3)),
        ("PP0 TP1", 4, "submit", (16, 0, 64, 1, 4)),
        ("PP1 TP0", 3, "submit", (16, 0, 64, 1, 3)),
        ("PP1 TP0", 4, "submit", (16, 0, 64, 1, 4)),
    ]


def test_each_rank_has_its_own_records_in_order_of_steps() -> None:
    rows = event_rows.parse("PP0 0-2 step\nPP0 1 drain - 1 1\nPP1 5 step", BASE.events, BASE.event_words)
    assert [(e.rank, e.record, e.step, e.kind) for e in rows] == [
        ("PP0", 0, 0, "step"), ("PP0", 1, 1, "step"), ("PP0", 2, 1, "drain"), ("PP0", 3, 2, "step"),
        ("PP1", 0, 5, "step"),
    ]  # fmt: skip
    assert rows[0].artifact == "events/PP0.ring"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("PP0 1", "line 1: write `ranks step kind key a b c d`"),
        ("\nPP0 1 submitt", "line 2: no kind 'submitt'; did you mean 'submit'?"),
        ("PP0 x step", "line 1: a step is a number or a range such as 0-9, not 'x'"),
        ("PP0 1 submit 7 wriet", "line 1: no queue 'wriet'; did you mean 'write'?"),
        ("PP0 1 step 1 2 3 4 5 6", "line 1: write `ranks step kind key a b c d`"),
    ],
)
def test_a_wrong_line_is_told(text: str, told: str) -> None:
    with pytest.raises(ValueError) as e:
        parse(text)
    assert str(e.value).startswith(told)


def test_the_words_are_those_that_rings_carry() -> None:
    carried = {name: table for name, table in tables().items() if name != "kind"}
    assert {name: table for entry in BASE.event_words for name, table in entry.items()} == carried
    assert {entry["kind"] for entry in BASE.events} == set(tables()["kind"].values())
