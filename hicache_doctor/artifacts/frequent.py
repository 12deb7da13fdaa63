"""Rows that come by the million: Arrow tables on their way into the store, never Python objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(slots=True)
class Frequent:
    """Rows for ``table`` of the store. ``pieces`` is taken once, piece by piece: only one need exist."""

    table: str
    pieces: Iterator[pa.Table]


def given_away(pieces: list[pa.Table]) -> Iterator[pa.Table]:
    """The pieces in order; each is freed as soon as the one who asked is done with it."""
    while pieces:
        yield pieces.pop(0)
