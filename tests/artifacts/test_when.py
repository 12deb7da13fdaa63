from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.artifacts import when


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-05-28 02:19:20", 1779934760.0),
        ("2026-05-28 02:19:20.182", 1779934760.182),
        ("2026-05-28 02:19:20,182", 1779934760.182),
        ("2026-05-28T02:19:20Z", 1779934760.0),
        ("2026-05-28T04:19:20.500000000+02:00", 1779934760.5),
        ("2026-05-28T04:19:20+0200", 1779934760.0),
        ("2026-05-27T21:19:20-05:00", 1779934760.0),
        ("2026-05-28 02:19:20 UTC", 1779934760.0),
        ("2026-05-28 02:19:20:250", 1779934760.25),
        ("Thu May 28 02:19:20 2026", 1779934760.0),
        ("Mon Jun  1 00:00:00 2026", 1780272000.0),
        ("28/05/2026 02:19:20 AM", 1779934760.0),
        ("28/05/2026 02:19:20 PM", 1779934760.0 + 12 * 3600),
        ("20/12/2014 12:00:00 AM", 1419033600.0),
        ("E0528 02:19:20.500000", 1779934760.5),
        ("E528 02:19:20.500000000", 1779934760.5),
        ("W1228 02:19:20", 1798424360.0),
        ("mai 28 02:19:20", 1779934760.0),
        ("Mai 28 02:19:20", 1779934760.0),
        ("mag 28 02:19:20", 1779934760.0),
        ("May 28 02:19:20.500", 1779934760.5),
        ("déc. 19 02:07:16", 1797646036.0),
        ("août 01 00:00:00", 1785542400.0),
        ("Mär 01 00:00:00", 1772323200.0),
    ],
)
def test_known_formats(text: str, seconds: float) -> None:
    assert when.when(text, year=2026) == pytest.approx(seconds, abs=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-13-01 00:00:00",
        "2026-02-30 00:00:00",
        "2026-05-28 25:00:00",
        "1970-01-01 00:00:00",
        "05/28/2026 02:19:20",
        "28/05/2026 13:19:20 PM",
        "xyz 28 02:19:20",
        "Thu Foo 28 02:19:20 2026",
        "E0028 00:00:00",
        "2026-05-28",
        "2026-05-28 02:19",
    ],
)
def test_unknown_is_none(text: str) -> None:
    assert when.when(text, year=2026) is None


def test_no_year_no_guess() -> None:
    assert when.when("déc. 19 02:07:16") is None
    assert when.when("E226 11:16:37.104512039") is None


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_epoch_units(unit: int) -> None:
    assert when.epoch(1779934760 * unit) == 1779934760.0


def test_epoch_refuses_what_is_no_time() -> None:
    assert when.epoch(17) is None
    assert when.epoch(float("inf")) is None
    assert when.epoch(float("nan")) is None


@given(st.text())
def test_never_raises(text: str) -> None:
    when.when(text, year=2026)
