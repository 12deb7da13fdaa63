"""Logs of any size: only candidate lines are read in Python, batch lines are parsed a window at a time.

One pass over windows finds the lines that hold a literal of the vocabulary, or that open a multi-line record; those go
through the same peeler and log reader as in a small log, with the lines that continue them. Kinds that turn out to be
frequent are put aside as bytes, and only the last ones are read at the end: what matters stands before the failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hicache_doctor.artifacts import kernel_log, outer_time
from hicache_doctor.artifacts.batch_lines import BatchLines
from hicache_doctor.artifacts.frequent import Frequent, given_away
from hicache_doctor.artifacts.last_lines import LastLines
from hicache_doctor.artifacts.scan import Lines, LiteralScanner
from hicache_doctor.artifacts.secrets import Scrubber
from hicache_doctor.artifacts.sglang_log import LogReader
from hicache_doctor.artifacts.sglang_prefix import parse_prefix, rank_tokens
from hicache_doctor.artifacts.source import Source
from hicache_doctor.artifacts.vocabulary import Vocabulary
from hicache_doctor.artifacts.windows import Window, windows
from hicache_doctor.artifacts.wrappers import Logical, Peeler
from hicache_doctor.evidence.rows import ORDINAL_BASE, ExceptionRow, LogRecord, Row, Sample, Stack

if TYPE_CHECKING:
    import pyarrow as pa

    from hicache_doctor.artifacts.inventory import Read

# What opens a record that no entry of the vocabulary names. A CRI partial line may hold half of a literal.
OPENERS = {
    "traceback": [b"Traceback (most recent", b"Exception in thread ", b'.py", line '],
    "error": [b"Error: ", b"Exception: ", b"AssertionError"],
    "stack": [b"Thread 0x", b"Pyspy dump for PID", b'(idle): "', b'(active): "'],
    "partial": [b" stderr P ", b" stdout P "],
    "kernel": [text.encode() for text in kernel_log.LITERALS],
}
HEAD_LINES = 400
TAIL_BYTES = 64 << 10
LOOK_BACK = 16 << 10
FOLLOW = 3_000
FREQUENT = 2_000
MOST_KERNEL_LINES = 20_000
LAST_OF_FREQUENT = 10_000
# Batch rows kept of all big logs together; of more, the last ones, with the ordinal at which they begin.
BATCH_ROWS = 400_000


class BigLog:
    """Reads one big text artefact; see the module."""

    def __init__(self, source: Source, vocabulary: Vocabulary, keep: int = BATCH_ROWS) -> None:
        self._keep = keep
        self._dropped: dict[str, int] = {}
        self._rows = 0
        self._tables: list[pa.Table] = []
        literals: dict[str, list[bytes]] = {e.kind: [t.encode() for t in e.literals] for e in vocabulary.entries}
        self._scanner: LiteralScanner[str] = LiteralScanner({**literals, **OPENERS})
        self._source = source
        self._peeler = Peeler()
        self._scrubber = Scrubber()
        self.reader = LogReader(source.path, vocabulary, batches=False)
        self.batches = BatchLines(source.path, rank_of=_label)
        self._seen: dict[str, int] = {}
        self._frequent: dict[int, LastLines] = {}
        self._kernel: list[Logical] = []
        self._fed = 0
        self._follow = 0
        self.lines = 0
        self.note: str | None = None

    def read(self, result: Read) -> None:
        """Fill ``result`` with rows, tables and notes."""
        found = windows(self._source)
        before: Window | None = None
        for window in found:
            if before is not None:
                self._read(before)
            before = window
        if before is not None:
            self._read(before, last=True)
        self.lines, self.note = found.lines, found.note
        for item in self._peeler.flush():
            self._take(item)
        starts = self.reader.starts
        result.rows += self.reader.close()
        result.rows += self._deferred(starts)
        result.rows += self._kernel_rows()
        if self._tables:
            result.tables.append(Frequent("batch", given_away(self._tables)))
        result.rows += [
            Sample(self._source.path, None, rank, None, None, ORDINAL_BASE, float(n))
            for rank, n in self._dropped.items()
        ]

    def _collect(self, table: pa.Table) -> None:
        """Add a table; drop the oldest ones above the bound, remembering how many batches of each rank went."""
        import pyarrow.compute as pc

        tables = self._tables
        tables.append(table)
        self._rows += table.num_rows
        while self._rows > self._keep and len(tables) > 1:
            oldest = tables.pop(0)
            self._rows -= oldest.num_rows
            prefill = oldest.filter(pc.equal(oldest["kind"].cast("string"), "prefill"))["rank"].cast("string")
            for item in pc.value_counts(prefill.combine_chunks()):
                rank = item["values"].as_py()
                if rank is not None:
                    self._dropped[rank] = self._dropped.get(rank, 0) + item["counts"].as_py()

    # -- parts of the file --------------------------------------------------------------------------------------

    def _read(self, window: Window, *, last: bool = False) -> None:
        if window.offset == 0:
            self._head(window)
        start, number = _tail(window) if last else (len(window.data), 1 << 62)
        self._window(window, number)
        # The last lines, all of them: they tell whether every rank worked to the end.
        self._run(window, start, number, 1 << 30)
        table = self.batches.read(window)
        if table.num_rows:
            self._collect(table)
            self.reader.note_work()

    def _head(self, window: Window) -> None:
        """The first lines, all of them: settings, and what the peeler must learn of the wrappers."""
        head = bytes(window.data[: 256 << 10]).decode("utf-8", "replace").split("\n")[:HEAD_LINES]
        self._peeler.learn(head[:200])
        self._run(window, 0, 1, HEAD_LINES)

    def _window(self, window: Window, before: int) -> None:
        """The candidate lines of a window, up to the line ``before``."""
        if self._follow:
            self._run(window, 0, window.first_line, self._follow)
        lines = self._scanner.scan(window)
        for i in self._rare(window, lines):
            number = int(lines.number[i])
            if number >= before:
                break
            if number <= self._fed:
                continue
            keys = lines.keys(i)
            for key in keys:
                self._seen[key] = self._seen.get(key, 0) + 1
            start, end = int(lines.start[i]), int(lines.end[i])
            self._prime(window, start)
            self._run(window, start, number, 1)
            partial = "partial" in keys
            if self.reader.following or partial:
                self._run(window, end + 1, number + 1, 50 if partial else FOLLOW, until_closed=not partial)

    def _rare(self, window: Window, lines: Lines[str]) -> list[int]:
        """The candidate lines to read now. Those that hold nothing but frequent literals are put aside as bytes, the
        last ones of each literal, without a Python step a line."""
        import numpy as np

        if not len(lines):
            return []
        often = np.array([self._is_frequent(keys) for _, keys in lines.literals])
        if not often.any():
            return list(range(len(lines)))
        rare = np.add.reduceat((~often[lines.ids]).astype(np.int64), lines.first[:-1]) > 0
        leading = lines.ids[lines.first[:-1]]
        for literal in np.flatnonzero(often).tolist():
            kept = self._frequent.setdefault(literal, LastLines(LAST_OF_FREQUENT))
            of_it = ~rare & (leading == literal)
            kept.add(window, lines.number[of_it], lines.start[of_it], lines.end[of_it])
        return [int(i) for i in np.flatnonzero(rare)]

    def _is_frequent(self, keys: tuple[str, ...]) -> bool:
        return all(self._seen.get(k, 0) > FREQUENT and k not in OPENERS for k in keys)

    def _deferred(self, starts: list[int]) -> list[Row]:
        lines = sorted(item for kept in self._frequent.values() for item in kept.lines())
        if not lines:
            return []
        reader = LogReader(self._source.path, self.reader.vocabulary, batches=False, keep_all=True)
        for number, offset, data in lines:
            for item in self._peeler.feed(number, offset, data.decode("utf-8", "replace")):
                item.text = self._scrubber.line(item.text)
                reader.feed(item)
        rows = reader.close()
        out: list[Row] = []
        for row in rows:
            if isinstance(row, (LogRecord, ExceptionRow, Stack)):
                row.life = sum(1 for s in starts if s <= (row.line or 0))
            if not (isinstance(row, LogRecord) and row.kind == "last_line"):
                out.append(row)
        return out

    # -- lines --------------------------------------------------------------------------------------------------

    def _run(self, window: Window, start: int, number: int, count: int, *, until_closed: bool = False) -> None:
        """Feed up to ``count`` lines from ``start`` (a position in the window), each line of the file once."""
        data, size = window.data, len(window.data)
        while start < size and count > 0:
            end = _line_end(data, start, size)
            if number > self._fed:
                text = bytes(data[start : min(end, start + (1 << 20))]).decode("utf-8", "replace")
                for item in self._peeler.feed(number, window.offset + start, text):
                    self._take(item)
                self._fed = number
            start, number, count = end + 1, number + 1, count - 1
            if until_closed and not self.reader.following:
                count = 0
        self._follow = count if count > 0 and start >= size and self.reader.following else 0

    def _kernel_rows(self) -> list[LogRecord]:
        rows = kernel_log.parse([(item.line, item.text) for item in self._kernel], self._source.path)
        outer_time.complete(rows, {item.line: item for item in self._kernel})
        return rows

    def _take(self, item: Logical) -> None:
        item.text = self._scrubber.line(item.text)
        if kernel_log.maybe(item.text) and len(self._kernel) < MOST_KERNEL_LINES:
            self._kernel.append(item)
        self.reader.feed(item)

    def _prime(self, window: Window, start: int) -> None:
        """Tell the reader whose lines stand just before, for candidates that carry no prefix themselves."""
        begin = max(0, start - LOOK_BACK)
        before = bytes(window.data[begin:start]).decode("utf-8", "replace").split("\n")
        for text in reversed(before[-60:]):
            prefix = parse_prefix(text)
            if prefix is None:
                at = text.find("[20")
                prefix = parse_prefix(text[at:]) if at > 0 else None
            if prefix is not None and prefix.label:
                self.reader.prime(prefix.label, prefix.ts)
                return


def read_big(source: Source, vocabulary: Vocabulary, result: Read, keep: int = BATCH_ROWS) -> None:
    """Read ``source`` as a log of any size into ``result``, with at most about ``keep`` rows of batches."""
    log = BigLog(source, vocabulary, keep)
    log.read(result)
    entry = result.artifact
    entry.reader, entry.lines = "big log", log.lines
    sglang = log.reader.sglang_lines or log.batches.prefilled or log.batches.decoded
    entry.kind = "SGLang log" if sglang else "text"
    result.starts = log.reader.starts
    if log.note:
        entry.read = "part"
        entry.note = "; ".join(n for n in (entry.note, log.note) if n)


def _label(text: str) -> str | None:
    return rank_tokens(text)[1] or None


def _tail(window: Window) -> tuple[int, int]:
    """Where the last lines of a window begin: position and line number."""
    start = max(0, len(window.data) - TAIL_BYTES)
    start = bytes(window.data[start:]).find(b"\n") + 1 + start if start else 0
    return start, window.first_line + bytes(window.data[:start]).count(b"\n")


def _line_end(data: bytes | memoryview, start: int, size: int) -> int:
    step = 4096
    while start < size:
        chunk = bytes(data[start : start + step])
        at = chunk.find(b"\n")
        if at >= 0:
            return start + at
        start += len(chunk)
        step *= 4
    return size
