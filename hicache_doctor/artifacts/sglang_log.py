"""The log reader: unwrapped lines, secrets already dropped, in; evidence rows out.

It follows every writer of a file (``Logical.stream``) by itself: the rank of an unprefixed line is the last one its
writer named, a traceback or a py-spy block belongs to the rank that opened it. Nothing is decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hicache_doctor.artifacts import pyspy
from hicache_doctor.artifacts.batch_line import BATCH, parse_batch
from hicache_doctor.artifacts.group_lines import STATUS_KINDS, group_status
from hicache_doctor.artifacts.launch import parse_server_args
from hicache_doctor.artifacts.sglang_prefix import Prefix, parse_prefix
from hicache_doctor.artifacts.traceback import FRAME, OPENING, Raised, TracebackParser, bare_error
from hicache_doctor.artifacts.vocabulary import Match, Vocabulary
from hicache_doctor.artifacts.wrappers import Logical
from hicache_doctor.evidence.rows import (
    BOUND_KEY,
    BOUND_SOURCE,
    Batch,
    ExceptionRow,
    Frame,
    LogRecord,
    Rank,
    Row,
    Setting,
    Stack,
)

CLIP = 600
KEEP_ENDS = 40
MAX_PER_KIND = 5_000
THREAD = re.compile(r"Exception in thread (?P<thread>[^:]+)")
BLOCK_LINES = 5_000
# The words of the release in which the log text of the arguments changed its form.
ARGS_FORMS = (("ServerArgs(", "<0.5.19"), ("server_args={", ">=0.5.19"))
# The header of a dump or of a thread; a frame alone where the file begins within a dump.
STACK_OPENING = re.compile(r"Process \d+: |Thread (?:0x)?[0-9A-Fa-f]+ \(|\s{4,}\S.{0,300} \([^()\s]+\.py:\d+\)\s*$")
STACK_LINE = re.compile(r"^(?:Process \d+: |Python v\d|Thread (?:0x)?[0-9a-f]+ |Current thread |\s{4,}\S|\s+File \")")


@dataclass(slots=True)
class _Writer:
    """What is open in one stream."""

    rank: str | None = None
    ts: float | None = None
    traceback: TracebackParser | None = None
    traceback_rank: str | None = None
    traceback_ts: float | None = None
    traceback_prefixed: bool = False
    thread: str | None = None
    block: list[tuple[int, str]] | None = None
    block_rank: str | None = None
    block_ts: float | None = None


@dataclass(slots=True)
class _Life:
    """What this life of the file has shown, to tell where the next one starts."""

    number: int = 0
    started: set[str] = field(default_factory=set)
    worked: bool = False
    over: bool = False
    bounds: set[str] = field(default_factory=set)


class LogReader:
    """Reads one text artefact. ``feed`` the logical lines in order, then ``close``; rows collect in ``rows``."""

    def __init__(self, artifact: str, vocabulary: Vocabulary, *, batches: bool = True, keep_all: bool = False) -> None:
        """``batches``: make rows of batch lines (the fast path makes them elsewhere); ``keep_all``: no caps."""
        self.artifact = artifact
        self.vocabulary = vocabulary
        self.starts: list[int] = []
        self._batches = batches
        self._keep_all = keep_all
        self.rows: list[Row] = []
        self.counts: dict[str, int] = {}
        self.sglang_lines = 0
        self.homes: dict[str, Mapping[str, str]] = {}
        self._writers: dict[object, _Writer] = {}
        self._life = _Life()
        self._last: dict[tuple[int, str | None], LogRecord] = {}
        self._ends: dict[str, list[LogRecord]] = {}
        self._kinds: dict[str, int] = {}
        self._standings: set[tuple[object, ...]] = set()

    # -- lines --------------------------------------------------------------------------------------------------

    @property
    def following(self) -> bool:
        """Whether a multi-line record is open, so that the very next lines matter."""
        return any(w.traceback is not None or w.block is not None for w in self._writers.values())

    @property
    def life(self) -> int:
        """The number of the life being read (0 first)."""
        return self._life.number

    def feed(self, item: Logical) -> None:
        """Take one logical line."""
        writer = self._writers.setdefault(item.stream, _Writer())
        prefix = parse_prefix(item.text)
        body = item.text if prefix is None else prefix.text
        if self._continues(writer, item, prefix, body):
            return
        rank = self._rank(writer, item, prefix)
        ts = self._time(writer, item, prefix)
        if prefix is not None:
            self.sglang_lines += 1
            if item.hints and rank is not None and rank not in self.homes:
                self.homes[rank] = item.hints
        if BATCH.search(body) is not None and self._batch(item, body, rank, ts):
            return
        self._record(item, body, rank, ts, prefix is not None)
        # A bare traceback may come from any process that shares the pipe: the last prefix proves nothing about it.
        own = rank if prefix is not None or item.rank_number is not None else None
        self._open(writer, item, body, own, ts, prefix)

    def prime(self, rank: str, ts: float | None) -> None:
        """Say whose lines stand just before the next one, when lines in between were not fed."""
        for writer in self._writers.values():
            writer.rank, writer.ts = rank, ts

    def note_work(self) -> None:
        """Say that batches ran in this life, when their lines are read elsewhere."""
        self._life.worked = True

    def close(self) -> list[Row]:
        """Finish what is open and return all rows."""
        for writer in self._writers.values():
            self._end_traceback(writer)
            self._end_block(writer)
        for kept in self._ends.values():
            self.rows += kept
        self.rows += self._last.values()
        for rank, hints in self.homes.items():
            if hints.get("pod") or hints.get("host"):
                self.rows.append(Rank(rank, hints.get("host"), artifact=self.artifact, pod=hints.get("pod")))
        self._ends, self._last = {}, {}
        return self.rows

    # -- continuation of multi-line records ---------------------------------------------------------------------

    def _continues(self, writer: _Writer, item: Logical, prefix: Prefix | None, body: str) -> bool:
        if prefix is not None:
            if writer.block is not None:
                self._end_block(writer)
            same = writer.traceback_prefixed and (prefix.label or None) == writer.traceback_rank
            if writer.traceback is not None:
                writer.traceback.interrupt()
            if writer.traceback is not None and same and OPENING not in body:
                self._end_traceback(writer)
            return False
        if writer.block is not None:
            if len(writer.block) < BLOCK_LINES and (not item.text.strip() or STACK_LINE.match(item.text)):
                writer.block.append((item.line, item.text))
                return True
            self._end_block(writer)
        if writer.traceback is not None:
            if writer.traceback.feed(item.line, item.offset, item.text):
                return True
            self._end_traceback(writer)
        return False

    def _open(
        self, writer: _Writer, item: Logical, body: str, rank: str | None, ts: float | None, prefix: Prefix | None
    ) -> None:
        thread = THREAD.search(body)
        if thread is not None:
            writer.thread = thread["thread"].strip()
        if OPENING in body or (FRAME.match(body) is not None and prefix is None):
            self._end_traceback(writer)
            writer.traceback = TracebackParser(item.line, item.offset)
            writer.traceback_rank, writer.traceback_ts = rank, ts
            writer.traceback_prefixed = prefix is not None
            if OPENING not in body:
                writer.traceback.feed(item.line, item.offset, body)
            return
        if STACK_OPENING.match(body) or "Pyspy dump for PID" in body:
            writer.block = [] if prefix is not None else [(item.line, item.text)]
            writer.block_rank, writer.block_ts = rank, ts
            return
        error = bare_error(body)
        if error is not None and (error[1] or prefix is None):
            raised = Raised(error[0], error[1], item.line, item.line_end, item.offset, error_line=item.line)
            self._emit_exception(raised, None, rank, ts, None, prefix is not None)

    def _end_traceback(self, writer: _Writer) -> None:
        if writer.traceback is None:
            return
        for raised in writer.traceback.close():
            stack = self._traceback_stack(raised, writer.traceback_rank, writer.traceback_ts)
            self._emit_exception(
                raised, stack, writer.traceback_rank, writer.traceback_ts, writer.thread, writer.traceback_prefixed
            )
        writer.traceback, writer.thread = None, None

    def _end_block(self, writer: _Writer) -> None:
        block, writer.block = writer.block, None
        if not block:
            return
        for dump in pyspy.parse_text(block, self.artifact):
            self.rows += pyspy.rows(dump, writer.block_rank, writer.block_ts, self._life.number)

    # -- records ------------------------------------------------------------------------------------------------

    def _batch(self, item: Logical, body: str, rank: str | None, ts: float | None) -> bool:
        b = parse_batch(body)
        if b is None:
            return False
        self.counts[b.kind] = self.counts.get(b.kind, 0) + 1
        self._life.worked = True
        if self._batches:
            self.rows.append(Batch(self.artifact, item.line, item.offset, ts, rank, *b, life=self._life.number))
        if "(token/s): 0." in body:
            self._record(item, body, rank, ts, False)
        self._note_last(item, body, rank, ts)
        return True

    def _record(self, item: Logical, body: str, rank: str | None, ts: float | None, prefixed: bool) -> None:
        if "server_args=" in body or "ServerArgs(" in body:
            self._server_args(item, body)
        for match in self.vocabulary.match(body):
            self._start_life(match, rank, item.line)
            self._keep(self._log_row(item, body, rank, ts, match), match)
            if match.entry.kind in STATUS_KINDS:
                self._group_status(item.line, rank, match)
            if match.entry.ends_life:
                self._life.over = True
        if prefixed:
            self._note_last(item, body, rank, ts)

    def _log_row(self, item: Logical, body: str, rank: str | None, ts: float | None, match: Match) -> LogRecord:
        fields = {k: v[:CLIP] for k, v in match.fields.items()}
        text = body[:CLIP]
        number = self._life.number
        return LogRecord(
            self.artifact, item.line, item.line_end, item.offset, ts, rank, match.entry.kind, fields, text, number
        )

    def _keep(self, row: LogRecord, match: Match) -> None:
        if match.entry.releases is not None:
            self._bound(match.entry.releases, row.line, row.text)
        count = self._kinds[row.kind] = self._kinds.get(row.kind, 0) + 1
        if self._keep_all:
            self.rows.append(row)
            return
        if match.entry.keep == "all":
            if count <= MAX_PER_KIND:
                self.rows.append(row)
            return
        if count <= KEEP_ENDS:
            self.rows.append(row)
            return
        kept = self._ends.setdefault(row.kind, [])
        kept.append(row)
        if len(kept) > 2 * KEEP_ENDS:
            del kept[:KEEP_ENDS]

    def _group_status(self, line: int, rank: str | None, match: Match) -> None:
        """How far the rank got in the group, each standing once: a time-out says the same in two or three lines."""
        row = group_status(self.artifact, line, rank, match.fields)
        if row is None:
            return
        standing = (row.rank, row.grp, row.enqueued, row.started, row.completed)
        if standing not in self._standings and len(self._standings) < MAX_PER_KIND:
            self._standings.add(standing)
            self.rows.append(row)

    def _bound(self, spec: str, line: int, quote: str) -> None:
        """Only the releases of ``spec`` print such a line; said once a life, with the first line that shows it."""
        if spec not in self._life.bounds:
            self._life.bounds.add(spec)
            self.rows.append(Setting(BOUND_KEY, spec, BOUND_SOURCE, self.artifact, line, None, quote[:CLIP]))

    def _note_last(self, item: Logical, body: str, rank: str | None, ts: float | None) -> None:
        number = self._life.number
        key = (number, rank)
        text = body[:CLIP]
        self._last[key] = LogRecord(
            self.artifact, item.line, item.line_end, item.offset, ts, rank, "last_line", {}, text, number
        )

    def _server_args(self, item: Logical, body: str) -> None:
        self._begin_life_unless_new(item.line)
        args, cut = parse_server_args(body)
        source = "server_args line"
        for key, value in args.items():
            self.rows.append(Setting(key, value, source, self.artifact, item.line, None, f"{key}={value}"[:CLIP]))
        for form, spec in ARGS_FORMS:
            if args and form in body:
                self._bound(spec, item.line, body)
        if cut:
            self.rows.append(Setting("command_cut", "True", source, self.artifact, item.line, None, None))

    # -- lives --------------------------------------------------------------------------------------------------

    def _start_life(self, match: Match, rank: str | None, line: int) -> None:
        if match.entry.starts_life:
            key = rank or ""
            if key in self._life.started:
                self._begin_life_unless_new(line)
            self._life.started.add(key)

    def _begin_life_unless_new(self, line: int) -> None:
        """A start-up line opens a new life once this one has worked or ended."""
        if self._life.worked or self._life.over:
            for writer in self._writers.values():
                self._end_traceback(writer)
                self._end_block(writer)
                writer.rank = None
            self.starts.append(line)
            self._life = _Life(self._life.number + 1)

    # -- exceptions ---------------------------------------------------------------------------------------------

    def _traceback_stack(self, raised: Raised, rank: str | None, ts: float | None) -> str | None:
        if not raised.frames:
            return None
        stack_id = f"{self.artifact}@{raised.offset}:{raised.line}"
        self.rows.append(
            Stack(
                stack_id, self.artifact, raised.line, raised.line_end, None, ts, rank, None, "traceback", None, True,
                None, 0, self._life.number,
            )
        )  # fmt: skip
        for depth, f in enumerate(reversed(raised.frames)):
            cls, _, function = f.function.rpartition(".")
            self.rows.append(Frame(stack_id, depth, cls or None, function, f.file, f.line, f.at_line))
        return stack_id

    def _emit_exception(
        self, raised: Raised, stack: str | None, rank: str | None, ts: float | None, thread: str | None, prefixed: bool
    ) -> None:
        message = raised.message
        words = f"{raised.type}: {message}"
        if raised.frames:
            words += " " + " ".join(f.code for f in raised.frames[-2:])
        self.rows.append(
            ExceptionRow(
                self.artifact, raised.error_line or raised.line, raised.line_end, raised.offset, ts, rank,
                raised.type, message, stack, self.vocabulary.proof_of(words), self._life.number,
                thread=thread, prefixed=prefixed,
            )
        )  # fmt: skip
        for match in self.vocabulary.match(words):
            if match.entry.kind not in {"engine_sglang"}:
                item = Logical(words, raised.error_line or raised.line, raised.line_end, raised.offset)
                self._keep(self._log_row(item, words, rank, ts, match), match)
        self._life.over = True

    # -- identity and time --------------------------------------------------------------------------------------

    def _rank(self, writer: _Writer, item: Logical, prefix: Prefix | None) -> str | None:
        if prefix is not None:
            # uvicorn and the launcher stamp their lines but name no rank: such a line says nothing about the next one.
            if prefix.label:
                writer.rank = prefix.label
            return prefix.label or None
        if item.rank_number is not None:
            return f"rank {item.rank_number}"
        return writer.rank

    def _time(self, writer: _Writer, item: Logical, prefix: Prefix | None) -> float | None:
        if prefix is not None and prefix.ts is not None:
            writer.ts = prefix.ts
            return prefix.ts
        return item.outer_ts if item.outer_ts is not None else writer.ts


def read(artifact: str, lines: Iterable[Logical], vocabulary: Vocabulary) -> LogReader:
    """Read all of ``lines``; the reader's ``rows`` are complete."""
    reader = LogReader(artifact, vocabulary)
    for item in lines:
        reader.feed(item)
    reader.close()
    return reader
