"""Stacks as people write them down: ``TP3  event_loop_overlap → … → writing_check → all_reduce``, Markdown tables.

A chain counts when it names at least one function that a scheduler's stack is known to hold. Which end is the
innermost is told by those functions, else by words (``innermost first``), else by the arrow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hicache_doctor.artifacts.call_order import innermost_first, known_function
from hicache_doctor.artifacts.rank_mentions import rank_mentions
from hicache_doctor.artifacts.stack_dump import DumpFrame, base_name
from hicache_doctor.evidence.rows import Frame, Stack

_ARROW = r"(?:→|⟶|⇒|➜|->|=>|<-|←|⟵|»|>)"
_NAME = r"(?:<module>|<lambda>|[A-Za-z_][\w.]*)(?:\(\))?(?: ?[(@][\w./-]+\.py(?::\d{1,8})?\)?)?"
_CHAIN = re.compile(rf"(?<![\w.])(?:{_NAME}|…|\.\.\.)(?:[`\s]*{_ARROW}[`\s]*(?:{_NAME}|…|\.\.\.))+")
_LINK = re.compile(rf"[`\s]*{_ARROW}[`\s]*")
_PARTS = re.compile(r"(?P<name>[\w.<>]+?)(?:\(\))?(?: ?[(@](?P<file>[\w./-]+\.py)(?::(?P<line>\d+))?\)?)?$")
_BACKWARDS = re.compile(r"<-|←|⟵")
_INNERMOST = re.compile(
    r"(inner|outer)most(?:\s\w+)?\s(first|last)|most recent call (first|last)|(top|bottom) first", re.I
)
_FILE = re.compile(r"(?<![\w./-])[\w./-]{0,200}\w\.py\b")
_SAME = re.compile(
    r"\b(?:second|2nd|another|next|later)\b.{0,60}\b(?:identical|the same|unchanged|same stacks?)\b", re.I
)
_OTHERS = re.compile(r"\b(?:all )?(?:the )?(?:other|remaining)s?\b|\ball ranks\b", re.I)
_THREAD = re.compile(r"\b(prefetch|backup|watchdog|storage|transfer)\w*[ _]thread\w*", re.I)
_CACHE_FUNCTION = re.compile(
    r"(?:writing|loading)_check|\w*check_\w*(?:hicache|prefetch)\w*|\w*prefetch\w*|_all_reduce\w*|\w*drain\w*|_pp_sync|"
    r"load_back|init_load_back|evict\w*|write_backup\w*|match_prefix\w*|\w*write_through\w*|release_aborted_request"
)
_SCHEDULER_FUNCTION = re.compile(
    r"event_loop_\w*|recv_requests|_?get_n\w+_batch_\w+|_get_new_batch_prefill_raw|process_\w+|run_scheduler_process"
)
_ARROWS = ("→", "⟶", "⇒", "➜", "←", "⟵", "»", ">", "<-")
_WRAP = ("→", "->", "←", "<-")
_LONGEST = 4000


@dataclass(slots=True)
class _Summary:
    """One written chain, for one or more ranks."""

    line: int
    line_end: int
    ranks: list[str]
    frames: list[DumpFrame]
    order: bool | None
    backwards: bool
    thread: str | None = None
    repeats: list[int] = field(default_factory=list)


def looks_like_summary(text: str) -> bool:
    """True when some line is such a chain and names a rank (or its table does)."""
    return bool(_read([(i, t) for i, t in enumerate(text.splitlines(), 1)]))


def parse(lines: Sequence[tuple[int, str]], artifact: str) -> list[Stack | Frame]:
    """One main-thread Stack (source ``summary``) a rank, each followed by its Frames. Never raises."""
    return [row for s in _read(lines) for row in _rows(s, artifact)]


def _read(lines: Sequence[tuple[int, str]]) -> list[_Summary]:
    summaries: list[_Summary] = []
    notes: list[tuple[int, str, list[str]]] = []
    said: bool | None = None
    headline = ""
    for number, end, text in _joined(lines):
        told = _said(text)
        said = said if told is None else told
        chain = _chain(text)
        if chain is None:
            if _FILE.search(text) or _SAME.search(text):
                notes.append((number, text, rank_mentions(text)))
            headline = text if text.strip() else headline
            continue
        head = text[: chain.start()]
        ranks = rank_mentions(head) or ([] if _OTHERS.search(head) or len(headline) > 80 else rank_mentions(headline))
        if not ranks and not _OTHERS.search(head):
            continue
        thread = _THREAD.search(head)
        frames = [f for f in (_frame(t, number) for t in _LINK.split(chain.group())) if f is not None]
        known = innermost_first([f.function for f in frames])
        backwards = bool(_BACKWARDS.search(chain.group()))
        summaries.append(_Summary(number, end, ranks, frames, known, backwards, thread and thread.group()))
        if _FILE.search(text, chain.end()):
            notes.append((number, text[chain.end() :], ranks))
        headline = ""
    for s in summaries:
        if not (s.order if s.order is not None else said if said is not None else s.backwards):
            s.frames.reverse()
    for number, text, ranks in notes:
        _apply(summaries, number, text, ranks)
    return summaries


def _joined(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, int, str]]:
    """Lines with a chain that was wrapped at an arrow put together: (first, last, text)."""
    held: tuple[int, int, str] | None = None
    for number, raw in lines:
        text = raw.rstrip() if len(raw) <= _LONGEST else ""
        if held is not None and (text.lstrip().startswith(_WRAP) or held[2].endswith(_WRAP)):
            held = (held[0], number, f"{held[2]} {text.strip()}"[:_LONGEST])
            continue
        if held is not None:
            yield held
        held = (number, number, text)
    if held is not None:
        yield held


def _said(text: str) -> bool | None:
    """What the words say about the order: True = innermost first."""
    m = _INNERMOST.search(text)
    if m is None:
        return None
    if m.group(1):
        return (m.group(1).lower() == "inner") == (m.group(2).lower() == "first")
    return (m.group(3) or "").lower() == "first" or (m.group(4) or "").lower() == "top"


def _chain(text: str) -> re.Match[str] | None:
    """The longest chain with a known function."""
    if not any(arrow in text for arrow in _ARROWS):
        return None
    found = [m for m in _CHAIN.finditer(text) if any(_known(t) for t in _LINK.split(m.group()))]
    return max(found, key=lambda m: len(m.group()), default=None)


def _known(token: str) -> bool:
    m = _PARTS.match(token.strip())
    name = m.group("name").rsplit(".", 1)[-1] if m else ""
    return known_function(name) or bool(_CACHE_FUNCTION.fullmatch(name) or _SCHEDULER_FUNCTION.fullmatch(name))


def _frame(token: str, number: int) -> DumpFrame | None:
    m = _PARTS.match(token.strip())
    if m is None or not m.group("name").strip("."):
        return None
    line = m.group("line")
    return DumpFrame(m.group("name"), base_name(m.group("file")), int(line) if line else None, number)


def _apply(summaries: list[_Summary], number: int, text: str, ranks: list[str]) -> None:
    """A note on files gives the cache's (and the scheduler's) frames their file; ``identical`` repeats the stacks."""
    files = [base_name(f) for f in _FILE.findall(text)]
    cache = next((f for f in files if f and re.search(r"cache|radix", f)), None)
    scheduler = next((f for f in files if f and f.startswith("scheduler")), None)
    for s in summaries:
        if ranks and not set(ranks) & set(s.ranks):
            continue
        for f in s.frames:
            if f.file is None and cache and _CACHE_FUNCTION.fullmatch(f.function):
                f.file = cache
            elif f.file is None and scheduler and _SCHEDULER_FUNCTION.fullmatch(f.function):
                f.file = scheduler
        if _SAME.search(text):
            s.repeats.append(number)


def _rows(s: _Summary, artifact: str) -> Iterator[Stack | Frame]:
    ranks: list[str | None] = [*s.ranks] or [None]
    for rank in ranks:
        for dump, line in enumerate([s.line, *s.repeats]):
            stack = f"{artifact}:{line}:summary:{s.line}:{rank}"
            end = s.line_end if dump == 0 else line
            main = s.thread is None
            yield Stack(stack, artifact, line, end, None, None, rank, None, "summary", s.thread, main, None, dump)
            for depth, f in enumerate(s.frames):
                yield Frame(stack, depth, f.cls, f.function, f.file, f.line, f.at_line)
