"""How busy each DP group is, as it last said itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hicache_doctor.runtime.world import Vector


@dataclass(frozen=True, slots=True)
class Load:
    """What one group says about itself; ``stamp`` differs from one snapshot to the next (0: it never said anything)."""

    stamp: int
    requests: int
    tokens: int

    def vector(self) -> Vector:
        """As it enters a decision through ``world.observe``."""
        return self.stamp, self.requests, self.tokens


class Board(Protocol):
    """Where groups write and the controller reads."""

    def write(self, group: int, load: Load) -> None:
        """The group's own load; one writer a group."""

    def read(self, group: int) -> Load | None:
        """The group's last load; None if only torn ones were seen, or it never wrote."""


class MemoryBoard:
    """The board of a simulation, where nothing happens between two lines of code."""

    def __init__(self, groups: int) -> None:
        self._loads: list[Load | None] = [None] * groups

    def write(self, group: int, load: Load) -> None:
        """The group's own load."""
        self._loads[group] = load

    def read(self, group: int) -> Load | None:
        """The group's last load."""
        return self._loads[group]
