"""The one service: paths (or a store that something else filled) → evidence → verdict.

Library callers use :func:`analyze`; the CLI is a thin layer over it.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from hicache_doctor.errors import UsageError
from hicache_doctor.evidence.rows import Artifact, Batch, ExceptionRow, LogRecord, Row, Stack
from hicache_doctor.signatures.verdict import InventoryRow, OtherIncident, Verdict

if TYPE_CHECKING:
    import pyarrow as pa

    from hicache_doctor.artifacts.inventory import Read
    from hicache_doctor.artifacts.lives import Earlier
    from hicache_doctor.artifacts.vocabulary import Vocabulary
    from hicache_doctor.evidence.store import Store
    from hicache_doctor.signatures.load import RuleBase

STARTUP_KINDS = {
    "init_distributed",
    "host_pool_gb",
    "host_pool_tokens",
    "tree_cache",
    "pool_sizes",
    "load_weight_end",
    "ready",
}


@dataclass(slots=True)
class Options:
    """What the user may say about an incident beside its paths. Times are epoch seconds."""

    settings: Mapping[str, str] = field(default_factory=dict)
    ranks: Mapping[str, str] = field(default_factory=dict)
    rules: Sequence[Path] = ()
    life: int | None = None
    last: float | None = None
    since: float | None = None
    whole_digest: bool = False
    db: Path | None = None
    explain: bool = False
    keep_prompts: bool = False


@dataclass(frozen=True, slots=True)
class Tools:
    """What is loaded once and serves many incidents: the rule base and the vocabulary."""

    base: RuleBase
    words: Vocabulary

    @classmethod
    def load(cls, rules: Sequence[Path] = ()) -> Tools:
        """The shipped ones, with the user's directories of rules on top.

        Raises:
            RuleError: a file is wrong.
        """
        from hicache_doctor.artifacts import vocabulary
        from hicache_doctor.signatures.load import load

        return cls(load(rules), vocabulary.load())


@dataclass(slots=True)
class Result:
    """A verdict and the store behind it; close the store when done."""

    verdict: Verdict
    store: Store
    readable: bool


def analyze(
    paths: Sequence[str],
    options: Options | None = None,
    *,
    stdin: BinaryIO | None = None,
    tools: Tools | None = None,
    events: Sequence[Row] = (),
) -> Result:
    """Read everything below ``paths`` and diagnose it. ``tools``: loaded ones, instead of those that options name;
    ``events``: probe events that no file holds.

    Never raises for bad artefacts: those are told in the inventory. ``readable`` is False when nothing could be read.

    Raises:
        RuleError: a rule file is wrong.
        UsageError: the database file exists already.
    """
    from hicache_doctor.artifacts import inventory, lives, outer_time, parted, ranks, ring
    from hicache_doctor.evidence.store import Store
    from hicache_doctor.signatures.diagnose import diagnose

    options = options or Options()
    tools = tools or Tools.load(options.rules)
    store = Store.create(options.db)
    spool = Path(tempfile.mkdtemp(prefix="hicache-doctor-spool-"))
    os.chmod(spool, 0o700)
    try:
        how = {"whole_digest": options.whole_digest, "keep_prompts": options.keep_prompts}
        reads = list(inventory.read_all(paths, tools.words, spool=spool, stdin=stdin, **how))
        ring.select(reads, options.life)
        rows = {r.artifact.id: r.rows for r in reads}
        parted.join(rows, {r.artifact.id: r.artifact.lines for r in reads})
        if events:
            rows["(events)"] = list(events)
        if options.settings:
            rows["(command line)"] = inventory.setting_rows(dict(options.settings), "option")
        outer_time.add_years(rows)
        start = _start(reads, options)
        _only_recent(rows, start)
        selection = lives.select(rows, options.life)
        found = ranks.Identity(rows, options.ranks).resolve()
        store.add([r.artifact for r in reads])
        store.add(found)
        for own in rows.values():
            store.add(own)
        kept = [r for r in reads if r.artifact.id not in selection.dropped]
        for read, table in _frequent(kept, "batch"):
            store.add_table("batch", _part(table, read.starts, selection.chosen.get(read.artifact.id), start))
        # Events are not cut by time: a decision stream that began later on one rank would look like a difference.
        store.add_tables("event", (table for _, table in _frequent(kept, "event")))
        store.add_tables("collective", (table for _, table in _frequent(kept, "collective")))
        store.flush()
        verdict = diagnose(store, tools.base, explain=options.explain)
    except BaseException:
        store.close()
        raise
    finally:
        shutil.rmtree(spool, ignore_errors=True)
    verdict.inventory = [_inventory(r.artifact) for r in reads]
    verdict.other_incidents = [_other(e) for e in selection.earlier]
    return Result(verdict, store, any(r.artifact.read != "none" for r in reads))


def diagnose_store(store: Store, rules: Sequence[Path] = ()) -> Verdict:
    """Diagnose a store that a live process or a simulation has filled."""
    from hicache_doctor.signatures.diagnose import diagnose
    from hicache_doctor.signatures.load import load

    return diagnose(store, load(rules))


def parse_time(text: str) -> float:
    """``--since``: ISO 8601, UTC when no zone is given.

    Raises:
        UsageError: it is no time.
    """
    try:
        stamp = dt.datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        raise UsageError(f"{text!r} is no time; write for example 2026-11-30T03:12:44") from None
    if stamp.tzinfo is None:
        stamp = stamp.replace(tzinfo=dt.timezone.utc)
    return stamp.timestamp()


def _start(reads: Sequence[Read], options: Options) -> float | None:
    """The earliest time to keep, from ``--last`` and ``--since``; None keeps everything."""
    start = options.since
    if options.last is not None:
        stamps = [
            r.ts
            for read in reads
            for r in read.rows
            if isinstance(r, (LogRecord, Batch, ExceptionRow)) and r.ts is not None
        ]
        if stamps:
            start = max(start if start is not None else float("-inf"), max(stamps) - options.last)
    return start


def _only_recent(rows: Mapping[str, list[Row]], start: float | None) -> None:
    """Drop what is older than ``start``; start-up lines and settings stay."""
    if start is None:
        return
    for own in rows.values():
        own[:] = [r for r in own if not _older(r, start)]


def _frequent(reads: Sequence[Read], table: str) -> Iterator[tuple[Read, pa.Table]]:
    """The rows that came as tables for ``table``, each piece freed as soon as the store has it."""
    for read in reads:
        for frequent in read.tables:
            if frequent.table == table:
                for piece in frequent.pieces:
                    yield read, piece


def _part(table: pa.Table, starts: Sequence[int], chosen: int | None, since: float | None) -> pa.Table:
    """The rows of a table of batches that belong to the chosen life and are recent enough."""
    import pyarrow.compute as pc

    if chosen is not None and starts:
        if chosen > 0:
            table = table.filter(pc.greater_equal(table["line"], starts[chosen - 1]))
        if chosen < len(starts):
            table = table.filter(pc.less(table["line"], starts[chosen]))
    if since is not None:
        table = table.filter(pc.fill_null(pc.greater_equal(table["ts"], since), True))
    return table


def _older(row: Row, start: float) -> bool:
    if isinstance(row, LogRecord) and row.kind in STARTUP_KINDS:
        return False
    return isinstance(row, (LogRecord, Batch, ExceptionRow, Stack)) and row.ts is not None and row.ts < start


def _inventory(a: Artifact) -> InventoryRow:
    return InventoryRow(artifact=a.path, kind=a.kind, bytes=a.bytes, read=a.read, note=a.note)  # type: ignore[arg-type]


def _other(e: Earlier) -> OtherIncident:
    from hicache_doctor.signatures.match import citation, stamp

    cite = citation({"artifact": e.artifact, "line": e.line, "ts": e.ts})
    return OtherIncident(time=stamp(e.ts), title=e.title, citations=[cite] if cite else [])
