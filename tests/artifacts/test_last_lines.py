"""The last lines of a frequent kind: the same whether a window has many of them or few."""

from __future__ import annotations

import numpy as np
import pytest

from hicache_doctor.artifacts import last_lines
from hicache_doctor.artifacts.last_lines import LastLines
from hicache_doctor.artifacts.windows import Window


@pytest.mark.parametrize("dense", [1, 4, 10_000])
@pytest.mark.parametrize("most", [1, 5, 12, 1000])
def test_the_last_lines(dense: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_lines, "_DENSE", dense)
    kept = LastLines(most)
    expected = []
    offset, number = 0, 1
    for n in (3, 0, 7, 1, 4):
        lines = [b"line %d of %d" % (i, n) for i in range(2 * n)]
        window = Window(memoryview(b"\n".join(lines) + b"\n"), offset, number)
        start, end, numbers = window.lines(np.array([window.copy.index(line) for line in lines], dtype=np.int64))
        kept.add(window, numbers[::2], start[::2], end[::2])
        expected += [(number + i, offset + int(start[i]), line) for i, line in enumerate(lines) if i % 2 == 0]
        offset, number = offset + len(window.data), number + 2 * n
    assert kept.lines() == expected[-most:]
