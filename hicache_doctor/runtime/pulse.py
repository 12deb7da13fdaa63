"""How far each rank is, in memory that the launcher and its ranks share: state, step, and beats (finished operations).

The map is anonymous and inherited by fork, so there is no file that could be left behind.
"""

from __future__ import annotations

import mmap
from enum import IntEnum

_WORDS = 4


class State(IntEnum):
    """Where a rank is in its life."""

    STARTING = 0
    RUNNING = 1
    DONE = 2
    FAILED = 3


class Pulse:
    """One row of numbers a rank; a rank writes only its own, the launcher only reads."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._map = mmap.mmap(-1, ranks * _WORDS * 8)
        self._words = memoryview(self._map).cast("q")

    def state(self, rank: int) -> State:
        """Where ``rank`` is."""
        return State(self._words[rank * _WORDS])

    def enter(self, rank: int, state: State) -> None:
        """``rank`` goes over into ``state``."""
        self._words[rank * _WORDS] = state

    def meet(self, rank: int, at: int) -> None:
        """``rank`` has met the others, at a monotonic time in ns, and begins to work."""
        self._words[rank * _WORDS + 3] = at
        self.enter(rank, State.RUNNING)

    def has_met(self, rank: int) -> bool:
        """Whether ``rank`` got past its start."""
        return self._words[rank * _WORDS + 3] != 0

    def met(self) -> int | None:
        """When the last rank met the others; None as long as one has not."""
        times = [self._words[rank * _WORDS + 3] for rank in range(self.ranks)]
        return max(times) if all(times) else None

    def step(self, rank: int) -> int:
        """The scheduler step of ``rank``."""
        return self._words[rank * _WORDS + 1]

    def stepped(self, rank: int, step: int) -> None:
        """``rank`` begins ``step``."""
        self._words[rank * _WORDS + 1] = step

    def beat(self, rank: int) -> None:
        """An operation of ``rank`` ended. Two threads may count one beat only; the number still moves."""
        self._words[rank * _WORDS + 2] += 1

    def reading(self, rank: int) -> tuple[int, int, int]:
        """State, step and beats: when they stand still, so does the rank."""
        at = rank * _WORDS
        return self._words[at], self._words[at + 1], self._words[at + 2]

    def close(self) -> None:
        """Give the memory back."""
        self._words.release()
        self._map.close()
