"""Stores filled by hand, for tests of what is derived from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from hicache_doctor.evidence.rows import Batch, ExceptionRow, LogRecord, Row
from hicache_doctor.evidence.store import Store

Entry = tuple[int, int, int]


@contextmanager
def store(rows: Iterable[Row] = ()) -> Iterator[Store]:
    with Store.create(memory="256MiB") as s:
        s.add(rows)
        yield s


def prefills(rank: str, entries: Sequence[Entry], usage: Sequence[float] | None = None, first: int = 1) -> list[Row]:
    """A prefill batch a second and a line, each (requests, new tokens, cached tokens)."""
    return [
        Batch(f"{rank}.log", first + i, 0, 1000.0 + i, rank, "prefill", seq, new, cached, use, 0, 0)
        for i, ((seq, new, cached), use) in enumerate(zip(entries, usage or [0.5] * len(entries), strict=True))
    ]


def log(kind: str, rank: str | None, line: int = 1, ts: float | None = 1.0, **fields: str) -> LogRecord:
    return LogRecord(f"{rank}.log", line, line, 0, ts, rank, kind, dict(fields), f"{kind} of {rank}")


def raised(
    rank: str | None, error: str, proof: str = "own", ts: float | None = 1.0, line: int = 1, stack: str | None = None
) -> ExceptionRow:
    kind, _, message = error.partition(": ")
    return ExceptionRow(f"{rank}.log", line, line, 0, ts, rank, kind, message, stack, proof)
