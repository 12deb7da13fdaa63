"""Reading everything: paths → sources → the reader that the content asks for → rows, and an inventory row each.

A text may hold several things at once (a pasted report: a command, a log, two stacks), so every reader that recognises
something in a small text reads it; only the log reader sees big ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from hicache_doctor import bundle
from hicache_doctor.artifacts import (
    core_file,
    crash_pickle,
    faulthandler_dump,
    flight_recorder,
    gauges,
    kernel_log,
    launch,
    memray,
    metrics,
    nvidia_smi,
    outer_time,
    pages,
    process_tables,
    prom_json,
    pyspy,
    pystack_text,
    ras_json,
    ras_text,
    ring,
    stack_dump,
    stack_summaries,
    trace_text,
)
from hicache_doctor.artifacts.big_log import BATCH_ROWS, read_big
from hicache_doctor.artifacts.expand import Problem, Source, expand
from hicache_doctor.artifacts.frequent import Frequent
from hicache_doctor.artifacts.limited import Children
from hicache_doctor.artifacts.pasted import json_strings
from hicache_doctor.artifacts.recorder_tables import Recorder
from hicache_doctor.artifacts.ring import Ring
from hicache_doctor.artifacts.secrets import Scrubber
from hicache_doctor.artifacts.sglang_log import LogReader
from hicache_doctor.artifacts.sniff import digest, sniff
from hicache_doctor.artifacts.taken import taken
from hicache_doctor.artifacts.vocabulary import Vocabulary
from hicache_doctor.artifacts.wrappers import Logical, Peeler
from hicache_doctor.errors import InputError
from hicache_doctor.evidence.rows import Artifact, Rank, Row, Sample, Setting, Stack

SMALL = 4 << 20
SMALL_PACKED = 512 << 10  # unpacked: a bigger one costs the readers of small texts more than it gives
LONGEST_LINE = 1 << 20
LEARN = 200
NOT_READ = {
    "pickle": "a pickle is never loaded",
    "binary": "no text and no known binary format",
}

LOG_LINE = re.compile(r"\[(?:\d{4}-\d\d-\d\d \d\d:|(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d)")

Lines = list[tuple[int, str]]


@dataclass(slots=True)
class Read:
    """What one artefact gave: rows, tables of frequent rows, and its line in the inventory. ``starts``: the lines at
    which the lives of a log after the first begin."""

    artifact: Artifact
    rows: list[Row] = field(default_factory=list)
    tables: list[Frequent] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ring: Ring | None = None
    recorder: Recorder | None = None


@dataclass(frozen=True, slots=True)
class _How:
    """What reading needs besides the source. ``keep``: rows of a batch table that one big log may keep in memory."""

    vocabulary: Vocabulary
    whole_digest: bool
    keep: int
    spool: Path
    children: Children
    prompts: bool


@dataclass(frozen=True, slots=True)
class _Reader:
    """A reader of small texts: what it calls its kind, how it recognises one, how it reads."""

    kind: str
    recognises: Callable[[str], bool]
    parse: Callable[[Lines, str], Sequence[Row]]


def _faulthandler(lines: Lines, artifact: str) -> list[Row]:
    return [row for d in faulthandler_dump.parse(lines, artifact) for row in stack_dump.rows(d)]


READERS = (
    _Reader("metrics page", metrics.looks_like_metrics, metrics.parse),
    _Reader("Prometheus answer", prom_json.looks_like_prom_json, prom_json.parse),
    _Reader("memory samples", gauges.looks_like_gauges, gauges.parse),
    _Reader("process table", process_tables.looks_like_process_table, process_tables.parse),
    _Reader("memray table", memray.looks_like_memray, memray.parse),
    _Reader("kernel log", kernel_log.looks_like_kernel_log, kernel_log.parse),
    _Reader("flight-recorder analysis", trace_text.looks_like_trace_text, trace_text.parse),
    _Reader("NCCL RAS report", ras_text.looks_like_ras, ras_text.parse),
    _Reader("NCCL RAS report", ras_json.looks_like_ras_json, ras_json.parse),
    _Reader("nvidia-smi", nvidia_smi.looks_like_nvidia_smi, nvidia_smi.parse),
    _Reader("stack summary", stack_summaries.looks_like_summary, stack_summaries.parse),
    _Reader("pystack dump", pystack_text.looks_like_pystack, pystack_text.parse),
    _Reader("faulthandler dump", faulthandler_dump.looks_like_faulthandler, _faulthandler),
    _Reader("launch settings", lambda _: True, launch.parse),
)


def read_all(
    paths: Sequence[str],
    vocabulary: Vocabulary,
    *,
    spool: Path,
    stdin: BinaryIO | None,
    whole_digest: bool = False,
    keep_prompts: bool = False,
) -> Iterator[Read]:
    """Every artefact below ``paths``, read. Never raises for what lies in one: that becomes its inventory note."""
    items = list(expand(paths, spool=spool, stdin=stdin))
    big = sum(isinstance(i, Source) and (i.compression is not None or i.size > SMALL) for i in items)
    keep = max(BATCH_ROWS // max(big, 1), BATCH_ROWS // 20)
    reads: list[Read] = []
    with Children() as children:
        how = _How(vocabulary, whole_digest, keep, spool, children, keep_prompts)
        for item in items:
            if isinstance(item, Problem):
                reads.append(Read(Artifact(item.path, item.path, item.kind, item.bytes, None, None, "none", item.note)))
                continue
            try:
                reads.append(_read(item, how))
            except Exception as e:
                # A defect of ours must cost one file, not the incident; the note says so instead of hiding it.
                note = f"our reader failed on it ({type(e).__name__}); please report this, with the file if you can"
                reads.append(Read(Artifact(item.path, item.path, "text", item.size, None, None, "none", note)))
        children.finish()
    flight_recorder.select(reads)
    yield from reads


def _read(source: Source, how: _How) -> Read:
    head = source.head()
    kind = sniff(head, source.path)
    entry = Artifact(
        source.path, source.path, kind, source.size, digest(source, how.whole_digest), None, "none", source.note
    )
    entry.taken, entry.clock = taken(source, own=how.spool not in source.file.parents)
    if kind == "empty":
        entry.note = _join(entry.note, "empty")
        entry.read = "all"
        return Read(entry)
    result = Read(entry)
    if kind == "ring":
        ring.read_ring(source, result)
        return result
    if kind == "elf_core":
        core_file.read_core(source, result, how.spool)
        return result
    if kind in flight_recorder.TASKS:
        flight_recorder.read(source, result, kind, how.children)
        return result
    if kind == "crash_pickle":
        crash_pickle.read(source, result, how.children, prompts=how.prompts, otherwise=NOT_READ["pickle"])
        return result
    if kind == "json" and bundle.is_manifest(head):
        return _manifest(source, head, entry)
    if kind not in {"text", "json", "jsonl", "utf16"}:
        entry.note = _join(entry.note, NOT_READ.get(kind, f"{kind} is not read"))
        return result
    entry.read = "all"
    if kind == "utf16":
        _small(source, how.vocabulary, result, encoding="utf-16")
    elif (source.compression is None and source.size <= SMALL) or pages.is_small(source, min(SMALL, SMALL_PACKED)):
        _small(source, how.vocabulary, result)
    elif pages.is_page(head):
        pages.read_page(source, result)
    else:
        read_big(source, how.vocabulary, result, how.keep)
    return result


def _manifest(source: Source, head: bytes, entry: Artifact) -> Read:
    """What a bundle says of itself: whose processes its files are of."""
    entry.kind, entry.reader, entry.read = "manifest", "bundle", "all"
    data = head if source.size <= len(head) else source.head(bundle.LARGEST_MANIFEST)
    try:
        ranks = bundle.parse_manifest(data).ranks
    except InputError as e:
        entry.read, entry.note = "none", _join(entry.note, str(e))
        return Read(entry)
    rows: list[Row] = [Rank(r.label, r.host, r.pid, number=r.number, artifact=entry.id) for r in ranks]
    rows += [
        Sample(entry.id, None, r.label, r.pid, None, "exit_code", float(r.exit_code))
        for r in ranks
        if r.exit_code is not None
    ]
    return Read(entry, rows)


def _small(source: Source, vocabulary: Vocabulary, result: Read, encoding: str = "utf-8") -> None:
    notes: list[str] = []
    data = b"".join(bytes(b) for b in _limited(source, notes))
    text = data.decode(encoding, "replace")
    logical, lines = unwrap(text, source.path)
    result.artifact.lines = lines
    kinds = _special(source.path, text, logical, result)
    reader = LogReader(source.path, vocabulary)
    skip = _spoken_for(result.rows)
    for item in logical:
        if item.line not in skip:
            reader.feed(item)
    result.rows += reader.close()
    if reader.sglang_lines or reader.counts:
        kinds.insert(0, "SGLang log")
    result.artifact.kind = ", ".join(kinds) or "text"
    result.artifact.reader = "text"
    result.artifact.note = _join(result.artifact.note, *notes)
    if notes:
        result.artifact.read = "part"


def unwrap(text: str, artifact: str) -> tuple[list[Logical], int]:
    """The logical lines of a text, wrappers peeled and secrets dropped, and the number of physical lines."""
    pasted = json_strings(text)
    physical = text.split("\n")
    if physical and physical[-1] == "":
        physical.pop()
    peeler = Peeler()
    peeler.learn(physical[:LEARN])
    scrubber = Scrubber()
    out: list[Logical] = []
    offset = 0
    for number, line in enumerate(physical, 1):
        out += peeler.feed(number, offset, line[:LONGEST_LINE])
        offset += len(line.encode("utf-8", "surrogatepass")) + 1
    out += peeler.flush()
    for number, words in pasted:
        inner = Peeler()
        for line in words.split("\n"):
            out += inner.feed(number, 0, line)
        out += inner.flush()
    for item in out:
        item.text = scrubber.line(item.text)
    return out, len(physical)


def _special(artifact: str, raw: str, logical: list[Logical], result: Read) -> list[str]:
    """What the special readers recognise; SGLang's own lines are the log reader's alone."""
    lines: Lines = outer_time.with_dates([item for item in logical if LOG_LINE.match(item.text) is None])
    text = "\n".join(t for _, t in lines)
    kinds: list[str] = []
    dumps = _pyspy_json(raw, text, artifact)
    if dumps:
        kinds.append("py-spy dump (JSON)")
        for d in dumps:
            result.rows += list(pyspy.rows(d))
        return kinds
    # Dumps between log lines are the log reader's, which knows whose they are.
    if len(lines) == len(logical) and pyspy.looks_like_pyspy(text):
        kinds.append("py-spy dump")
        for d in pyspy.parse_text(lines, artifact):
            result.rows += list(pyspy.rows(d))
    around = {item.line: item for item in logical if item.outer_ts is not None or item.hints}
    for reader in READERS:
        if reader.recognises(text):
            rows = reader.parse(lines, artifact)
            if rows:
                outer_time.complete(rows, around)
                outer_time.from_name(rows, artifact)
                kinds.append(reader.kind)
                result.rows += list(rows)
    return kinds


def _pyspy_json(raw: str, text: str, artifact: str) -> list[stack_dump.Dump]:
    for candidate in (raw, text):
        if candidate.lstrip()[:1] in "[{" and '"frames"' in candidate:
            dumps = pyspy.parse_json(candidate, artifact)
            if dumps:
                return dumps
    return []


def _spoken_for(rows: list[Row]) -> set[int]:
    """Lines of a py-spy dump that its reader took: the log reader must not take them again."""
    out: set[int] = set()
    for row in rows:
        if isinstance(row, Stack) and row.source == "pyspy" and row.line is not None:
            out.update(range(row.line, (row.line_end or row.line) + 1))
    return out


def _limited(source: Source, notes: list[str]) -> Iterator[bytes | memoryview]:
    yield from source.blocks(on_note=notes.append)


def _join(*notes: str) -> str:
    return "; ".join(n for n in notes if n)


def setting_rows(options: dict[str, Any], source: str) -> list[Row]:
    """Settings that the user stated (``--set``, ``--sglang``)."""
    return [Setting(key, str(value), source, "(command line)", None) for key, value in options.items()]
