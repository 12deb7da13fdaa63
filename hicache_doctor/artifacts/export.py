"""Log exports as CSV (Grafana, Loki, Kibana): a header that names a time and a line column, one record a row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hicache_doctor.artifacts import when

_CELL = re.compile(r'"((?:[^"]|"")*)"|([^,]*)')
_LINE = ("line", "message", "log", "content", "body", "_raw", "msg")
_TIME = ("ts", "time", "timestamp", "date", "@timestamp", "tsns", "_time")
_LONGEST_RECORD = 400


class Row(NamedTuple):
    """One line of a record: its text, the record's time, and the physical line and offset it came from."""

    text: str
    ts: float | None
    line: int
    offset: int


def cells(row: str) -> list[str]:
    """The cells of one CSV record."""
    out, at = [], 0
    while at <= len(row):
        m = _CELL.match(row, at)
        if m is None:
            break
        out.append(m[2] if m[1] is None else m[1].replace('""', '"'))
        at = m.end()
        if at < len(row) and row[at] != ",":  # a stray character after a closing quote: keep it with the cell
            end = row.find(",", at)
            end = len(row) if end < 0 else end
            out[-1] += row[at:end]
            at = end
        at += 1
    return out


class Csv:
    """State of one CSV export: its header, and the physical lines of a record whose quotes are still open."""

    def __init__(self, line: int, time: int | None) -> None:
        self._line = line
        self._time = time
        self._open: list[tuple[str, int, int]] = []
        self._header = True
        self._quotes = 0

    @classmethod
    def recognise(cls, lines: Sequence[str]) -> Csv | None:
        """A CSV log export, by its header line; None for anything else."""
        head = next((line for line in lines if line.strip()), "").lstrip("\ufeff").strip()
        if not 4 < len(head) < 400 or "," not in head:
            return None
        names = [name.strip().lower() for name in cells(head)]
        line = next((names.index(name) for name in _LINE if name in names), None)
        times = [names.index(name) for name in _TIME if name in names]
        return cls(line, times[0]) if line is not None and times else None

    def feed(self, number: int, offset: int, text: str) -> Iterator[Row]:
        """Each line of the records that end with this physical line."""
        if not self._open:
            self._quotes = 0
        self._open.append((text.rstrip("\r"), number, offset))
        self._quotes += text.count('"')
        if self._quotes % 2 == 0 or len(self._open) >= _LONGEST_RECORD:
            yield from self.flush()

    def flush(self) -> Iterator[Row]:
        """The record that is still open. One whose quotes never close is shown line by line, as it is."""
        rows, self._open = self._open, []
        if self._header and any(text.strip() for text, _, _ in rows):
            self._header = False
            return
        record = cells("\n".join(text for text, _, _ in rows)) if self._quotes % 2 == 0 else []
        if len(record) <= self._line:
            yield from (Row(text, None, number, offset) for text, number, offset in rows)
            return
        ts = self._stamp(record)
        for i, line in enumerate(record[self._line].removesuffix("\n").split("\n")):
            _, number, offset = rows[min(i, len(rows) - 1)]
            yield Row(line, ts, number, offset)

    def _stamp(self, record: Sequence[str]) -> float | None:
        cell = record[self._time] if self._time is not None and self._time < len(record) else ""
        if cell.isdecimal() and len(cell) < 20:
            return when.epoch(float(cell))
        return when.iso(cell)
