"""Peeling: from the physical lines of a file to the logical lines that a program wrote.

A :class:`Peeler` serves one file. It takes wrappers off in any nesting until nothing changes, joins what a shipper
parted (CRI ``P``, docker's 16 KiB), parts what someone joined (several JSON objects, glued writers, a traceback on one
line), and says for each logical line where it came from and who wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType

from hicache_doctor.artifacts import export, payload, when
from hicache_doctor.artifacts.habits import Habits
from hicache_doctor.artifacts.layers import Outer, layer_for, surely_bare
from hicache_doctor.artifacts.sglang_prefix import RANK_TOKEN

_NO_HINTS: Mapping[str, str] = MappingProxyType({})
_CRI = re.compile(rf"({when.STAMP}) (stdout|stderr) ([FP])(?::\w+)*(?: (.*))?", re.ASCII | re.DOTALL)
_DROPPED = re.compile(r" {0,3}(?:```+|~~~+)\w*\s*|\s*-{2,} \| -{2,}(?: \| -{2,})*\s*|Script (?:started|done) on \d.*",
                      re.DOTALL)  # fmt: skip
# An indented code block, as in Markdown or a chat: no program indents the first line of a record.
_BLOCK = re.compile(r"( {2,}|\t[ \t]*)(?:\[20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d|"
                    rf"\[(?:{RANK_TOKEN} ?)+\] |"
                    r"Process \d+: |(Traceback) \(most recent call last\):$)", re.ASCII)  # fmt: skip
_DEDENTED = 1 << 31  # beside the bits of the habits: each goes once
_DOCKER_CHUNK = 16384
_MOST_JOINED = 64 << 20
_MOST_HELD = 500_000


@dataclass(slots=True)
class Logical:
    """One line as its program wrote it.

    ``line`` and ``line_end`` are the first and last physical line it came from, ``offset`` the byte where the first
    begins. ``stream`` names the writer as far as the wrappers tell (pod, container, pid, actor, rank): continuation
    lines belong to the last record of the same stream. ``outer_ts`` is the outermost stamp that can be believed.
    Hints: pod, container, host, unit, pid, ip, actor, service, file, level, engine, local_rank, ``zone: none`` (the
    outer stamp had none), ``stamp`` (an outer stamp without year), ``indent: lost``, ``repeated``, ``torn``.
    """

    text: str
    line: int
    line_end: int
    offset: int
    stream: tuple[str, ...] = ()
    outer_ts: float | None = None
    rank_number: int | None = None
    hints: Mapping[str, str] = field(default_factory=lambda: _NO_HINTS)


@dataclass(slots=True)
class _Piece:
    """Text on its way: what is off already, and where it began."""

    text: str
    outer: Outer
    line: int
    offset: int


class Peeler:
    """Wrapper peeling for one file. ``year`` completes outer stamps that have none."""

    def __init__(self, year: int | None = None, split: bool = True) -> None:
        self.year = year
        self.newest_first = False
        self._split = split
        self._habits = Habits()
        self._parts: dict[tuple[str, ...], _Piece] = {}
        self._docker_ends = False
        self._csv: export.Csv | None = None
        self._held: list[_Piece] = []
        self._indent = ""
        self._after_blank = True

    def learn(self, lines: Iterable[str]) -> None:
        """Study the file's first lines (some 200) for wrappers that only show in repetition, and its order."""
        sample = list(lines)
        self._csv = export.Csv.recognise(sample)
        stamps = [one.outer_ts for one in self._trial(sample) if one.outer_ts is not None]
        steps = [b - a for a, b in pairwise(stamps)]
        self.newest_first = sum(s < 0 for s in steps) >= 3 and not any(s > 0 for s in steps)
        for _ in range(6):
            if not self._habits.study([one.text for one in self._trial(sample)]):
                break

    def _trial(self, sample: Sequence[str]) -> list[Logical]:
        trial = Peeler(self.year, split=False)
        trial._habits, trial._docker_ends, trial.newest_first = self._habits, self._docker_ends, self.newest_first
        trial._csv = export.Csv.recognise(sample)
        out = [one for i, text in enumerate(sample, 1) for one in trial.feed(i, 0, text)] + trial.flush()
        self._docker_ends = trial._docker_ends
        return out

    def feed(self, line_no: int, offset: int, text: str) -> list[Logical]:
        """The logical lines that end with this physical line (no newline at its end); often one, sometimes none."""
        if self._csv is not None:
            return self._rows(self._csv.feed(line_no, offset, text), line_no)
        if self.newest_first:
            return self._hold(_Piece(text, Outer(), line_no, offset))
        if not self._habits.known and not self._indent and surely_bare(text) and _BLOCK.match(text) is None:
            self._after_blank = False
            return [Logical(text, line_no, line_no, offset, (), None, None, _NO_HINTS)]
        return self._run([_Piece(text, Outer(), line_no, offset)], line_no)

    def flush(self) -> list[Logical]:
        """What is still held back: unfinished parts, and all of a file that is written newest first."""
        out = self._rows(self._csv.flush(), 0) if self._csv is not None else []
        out += self._release()
        while self._parts:
            part = self._parts.pop(next(iter(self._parts)))
            out += self._run([part], part.line)
        return out

    def _rows(self, rows: Iterable[export.Row], line_end: int) -> list[Logical]:
        out = []
        for row in rows:
            outer = Outer()
            outer.ts = row.ts
            piece = _Piece(row.text, outer, row.line, row.offset)
            out += self._hold(piece) if self.newest_first else self._run([piece], max(line_end, row.line))
        return out

    def _hold(self, piece: _Piece) -> list[Logical]:
        self._held.append(piece)
        if len(self._held) < _MOST_HELD:
            return []
        self.newest_first = False  # too long for an export: from here on as it comes
        return self._release()

    def _release(self) -> list[Logical]:
        held, self._held = self._held, []
        return [one for piece in reversed(held) for one in self._run([piece], piece.line)]

    def _run(self, todo: list[_Piece], line_end: int) -> list[Logical]:
        """Peel pieces until nothing changes. Every step shortens or parts the text, so it ends."""
        out: list[Logical] = []
        todo.reverse()
        while todo:
            piece = todo.pop()
            text = self._layers(piece)
            if text is None:
                continue
            piece.text = text
            pieces = self._part(piece)
            if pieces is not None:
                todo += reversed(pieces)
                continue
            bare = text.rstrip()
            if bare != text:
                piece.text = bare
                todo.append(piece)
                continue
            if text[:4].lstrip(" ")[:1] in ("`", "~", "-", "S") and _DROPPED.fullmatch(text):
                continue
            outer = piece.outer
            if outer.ts is None and "stamp" in outer.hints:
                outer.ts = when.journal(outer.hints["stamp"], self.year)
            first, last = sorted((piece.line, line_end))
            out.append(Logical(text, first, last, piece.offset, outer.stream, outer.ts, outer.rank,
                               outer.hints or _NO_HINTS))  # fmt: skip
        return out

    def _dedent(self, text: str, outer: Outer) -> str | None:
        """A code block's indentation off: from the first line of a record on, as long as the lines have it."""
        if outer.used & _DEDENTED:
            return None
        blank, self._after_blank = self._after_blank, False
        if not (self._indent and text.startswith(self._indent)):
            block = _BLOCK.match(text)
            self._indent = block[1] if block is not None and (blank or block[2] is None) else ""
            if not self._indent:
                return None
        outer.used |= _DEDENTED
        return text[len(self._indent) :]

    def _layers(self, piece: _Piece) -> str | None:
        """All prefix layers off. None when the piece was kept back to be joined."""
        text, outer = piece.text.rstrip("\r"), piece.outer
        while text:
            if "\x1b" in text:
                text = payload.uncolour(text)
                if not text:
                    break
            if text[0].isdigit() and (m := _CRI.fullmatch(text)):
                outer.stamp(m[1])
                outer.writer(m[2])
                joined = self._join(_Piece(m[4] or "", outer, piece.line, piece.offset), m[3] == "P")
                if joined is None:
                    return None
                text, piece.outer, piece.line, piece.offset = joined.text, joined.outer, joined.line, joined.offset
                outer = piece.outer
                continue
            layer = layer_for(text[0])
            rest = layer(text, outer) if layer is not None else None
            if rest is None:
                rest = self._habits.strip(text, outer)
            if rest is None:
                rest = self._dedent(text, outer)
            if rest is None:
                break
            text = rest.rstrip("\r")
        if not text:
            self._after_blank = True
        return text

    def _join(self, piece: _Piece, partial: bool) -> _Piece | None:
        key = piece.outer.stream
        before = self._parts.pop(key, None)
        if before is not None:
            before.text += piece.text
            piece = before
        if partial and len(piece.text) < _MOST_JOINED:
            self._parts[key] = piece
            return None
        return piece

    def _part(self, piece: _Piece) -> list[_Piece] | None:
        """What the whole line holds: several lines, or one in disguise. None when it is plain."""
        text, outer = piece.text, piece.outer
        if "\r" in text:
            return [_again(piece, one) for one in payload.returns(text)]
        if text[:1] == "{":
            opened = self._objects(piece)
            if opened is not None:
                return opened
        if "[0m" in text or "^[[" in text:
            plain = payload.unpaint(text)
            if plain != text:
                return [_again(piece, plain)]
        if "&" in text or "](http" in text:
            plain = payload.unmark(text)
            if plain != text:
                return [_again(piece, plain)]
        if text.endswith("across cluster]") or "across cluster] (Ray" in text:
            cut = payload.repeated(text)
            if cut is not None:
                outer.hints["repeated"] = cut[1]
                return [_again(piece, cut[0])]
        if self._split and "\\" in text:
            whole = payload.unescape(text)
            if whole is not None:
                return [_again(piece, one) for one in whole.split("\n")]
        if "\n" in text:
            return [_again(piece, one) for one in text.split("\n")]
        return self._torn(piece) if self._split else None

    def _torn(self, piece: _Piece) -> list[_Piece] | None:
        text = piece.text
        if text.find("[20", 1) > 0 or text.find("[rank", 1) > 0:
            parts = payload.glued(text)
            if parts is not None:
                out = [_again(piece, one) for one in parts]
                out[0].outer.hints["torn"] = "head"
                return out
        if "Traceback (most recent call last): " in text:
            parts = payload.collapsed(text)
            if parts is not None:
                return [_again(piece, one) for one in parts]
        return None

    def _objects(self, piece: _Piece) -> list[_Piece] | None:
        found = payload.objects(piece.text)
        if found is None:
            return None
        out = []
        for inner, one in found:
            outer = piece.outer.copy()
            where = payload.where_of(one)
            outer.hints.update(where)
            outer.writer(*where.values())
            if outer.ts is None:
                outer.ts = payload.stamp_of(one)
            new: _Piece | None = _Piece(inner, outer, piece.line, piece.offset)
            if "log" in one and "stream" in one and "time" in one:  # docker's json-file
                whole = inner.endswith("\n")
                self._docker_ends |= whole
                partial = not whole and (self._docker_ends or len(inner.encode(errors="replace")) >= _DOCKER_CHUNK)
                new = self._join(_Piece(inner, outer, piece.line, piece.offset), partial)
            if new is not None:
                new.text = new.text.removesuffix("\n")
                out.append(new)
        return out


def _again(piece: _Piece, text: str) -> _Piece:
    return _Piece(text, piece.outer.copy(), piece.line, piece.offset)


def peel(text: str) -> list[Logical]:
    """Peel one line by itself, nothing learned and nothing to join with. Peeling a result again changes nothing."""
    peeler = Peeler()
    return peeler.feed(1, 0, text) + peeler.flush()
