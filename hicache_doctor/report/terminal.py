"""The verdict on one terminal screen (about 45 lines at 100 columns); ``explain`` adds the walk and every rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hicache_doctor.report import phrases
from hicache_doctor.report.clean import printable, printable_lines
from hicache_doctor.report.explain import add_explanation
from hicache_doctor.report.page import Page, Piece, fill, middle
from hicache_doctor.signatures.verdict import Citation, Verdict

T = TypeVar("T")

DEFAULT_WIDTH = 100

# What one screen shows of each list; --explain shows all.
RANKS = 16
LINKS = 6
CITATIONS = 2
QUOTE_LINES = 2
DIVERGED_RANKS = 8
EXCLUDED = 5
NEXT = 4
ALSO = 3
INCIDENTS = 3
LAST_MINUTE = 6
UNREAD = 4

_TONE = {
    "signature": "bold red",
    "other_cause": "bold magenta",
    "out_of_scope": "bold blue",
    "healthy": "bold green",
    "undetermined": "bold yellow",
}
_CONFIDENCE = {"certain": "green", "likely": "yellow", "possible": "yellow"}


def render_terminal(verdict: Verdict, *, explain: bool = False, width: int | None = None, color: bool = False) -> str:
    """The report as text of at most ``width`` cells a line (default 100, at least 40); commands are never wrapped.

    Everything from artefacts is cleaned; without ``color`` there is no escape byte in the result.
    """
    page = Page(width or DEFAULT_WIDTH)
    report = _Report(verdict, page, explain)
    report.head()
    report.ranks()
    if verdict.status == "undetermined":
        report.chain()
        report.also()
        report.to_decide()
        report.divergence()
    else:
        report.divergence()
        report.chain()
    page.blank()
    report.cause()
    report.actions()
    page.blank()
    report.excluded()
    if verdict.status != "undetermined":
        report.collect_next()
        report.also()
    report.other_incidents()
    report.last_minute()
    if explain:
        add_explanation(page, verdict)
    page.blank()
    if not explain:
        report.unread()
    page.wrap((phrases.footer(verdict), "dim"))
    return page.render(color)


class _Report:
    """The sections of the report; each adds nothing when it has nothing to say."""

    def __init__(self, verdict: Verdict, page: Page, explain: bool) -> None:
        self.v = verdict
        self.page = page
        self.explain = explain

    # -- what and who -------------------------------------------------------------------------------------------

    def head(self) -> None:
        first, *rest = phrases.headline(self.v)
        pieces: list[Piece] = [(first, _TONE[self.v.status])]
        for part in rest:
            pieces += [("  ·  ", "dim"), (part, _CONFIDENCE.get(part, ""))]
        self.page.wrap(*pieces)
        for title in phrases.titles(self.v):
            self.page.wrap((title, "bold"))
        self.page.blank()
        if self.v.confidence_because:
            self.page.pair(phrases.because_label(self.v), self.v.confidence_because)
        setup = phrases.setup(self.v)
        if setup:
            self.page.pair("Setup", " · ".join(setup))

    def ranks(self) -> None:
        v = self.v
        if v.first_failing_rank:
            alone = " (the culprit)" if v.culprits == [v.first_failing_rank] else ""
            self.page.pair("First failed", (v.first_failing_rank, "bold red"), alone)
        if v.culprits and v.culprits != [v.first_failing_rank]:
            self._rank_list("Culprits", v.culprits)
        self._rank_list("Victims", v.victims)
        self._rank_list("Missing", v.ranks.missing)

    def _rank_list(self, label: str, ranks: Sequence[str]) -> None:
        if ranks:
            folded = phrases.rank_list(ranks)
            shown = self._some(folded, RANKS)
            left = len(folded) - len(shown)
            self.page.pair(label, ", ".join(shown) + (f" and {left} more" if left else ""))

    # -- the evidence -------------------------------------------------------------------------------------------

    def divergence(self) -> None:
        d = self.v.first_divergence
        if d is None:
            return
        self.page.blank()
        self.page.pair("First diverged", f"{d.stream}, ordinal {d.ordinal}")
        shown = self._some(list(d.values.items()), DIVERGED_RANKS)
        room = self._room([rank for rank, _ in shown])
        for rank, value in shown:
            self.page.pair("", value, name=rank, room=room)
        self._left_out(len(d.values) - len(shown), "rank", self.page.gutter)
        self._citations(d.citations, self.page.gutter)

    def chain(self) -> None:
        chain = self.v.evidence_chain
        if not chain:
            return
        self.page.heading(phrases.chain_heading(self.v))
        shown = self._some(chain, LINKS)
        for n, link in enumerate(shown, 1):
            citations, aside = list(link.citations), ""
            # The first place stands beside the claim where there is room for both, else below it.
            if citations:
                beside = f"{link.claim}  {self._place(citations[0], 3)}"
                if len(printable(beside)) <= self.page.width - 3:
                    aside = beside[len(link.claim) :]
            self.page.wrap(link.claim, (aside, "dim"), first=[(f" {n} ", "bold")], indent=3)
            self._citations(citations, 3, beside=bool(aside))
        self._left_out(len(chain) - len(shown), "link", 3)

    def _citations(self, citations: Sequence[Citation], indent: int, *, beside: bool = False) -> None:
        """Places and quotes; ``beside``: the first place is on the page already."""
        shown = self._some(citations, CITATIONS)
        bare: list[str] = []
        for n, c in enumerate(shown):
            if not (beside and n == 0):
                bare.append(self._place(c, indent))
            if c.quote or c is shown[-1]:
                if bare:
                    self.page.wrap(("  ".join(bare), "dim"), indent=indent)
                bare = []
            if c.quote:
                lines = printable_lines(c.quote)
                some = self._some(lines, QUOTE_LINES)
                for line in some:
                    self.page.quote(line, indent)
                self._left_out(len(lines) - len(some), "line", indent)
        self._left_out(len(citations) - len(shown), "place", indent)

    def _place(self, c: Citation, indent: int) -> str:
        """Place, rank and time of a citation, in one line's room."""
        tail = middle(printable(phrases.tail(c)), self.page.width // 3)
        room = self.page.width - indent - (len(tail) + 2 if tail else 0)
        name = middle(printable(phrases.place(c)), room)
        return f"{name}  {tail}" if tail else name

    # -- what to do ---------------------------------------------------------------------------------------------

    def cause(self) -> None:
        last = ""
        for cause in phrases.causes(self.v):
            label = "Root cause" if cause.root else "Also fixed by"
            title = f" · {cause.title}" if cause.title else ""
            number = (f"#{cause.pr}", "bold")
            self.page.pair("" if label == last else label, number, f" {cause.words}", (title, "dim"))
            last = label

    def actions(self) -> None:
        for when, label in phrases.ACTION_GROUPS:
            for action in self.v.actions:
                if action.when == when:
                    self._action(label, action.do, action.command)
                    label = ""

    def _action(self, label: str, words: str, command: str | None) -> None:
        self.page.pair(label, words)
        if command:
            self.page.command(command, self.page.gutter + 2)

    def to_decide(self) -> None:
        if self.v.next_evidence:
            self.page.heading("To decide, collect")
        for item in self.v.next_evidence:
            self.page.wrap(item.why, first=[(" • ", "bold")], indent=3)
            if item.command:
                self.page.command(item.command, 5)

    def collect_next(self) -> None:
        shown = self._some(self.v.next_evidence, NEXT)
        for n, item in enumerate(shown):
            self._action("" if n else "Collect next", item.why, item.command)
        self._left_out(len(self.v.next_evidence) - len(shown), "command", self.page.gutter)

    # -- what else ----------------------------------------------------------------------------------------------

    def excluded(self) -> None:
        self._notes("Excluded", [(e.signature, e.because, e.citations) for e in self.v.excluded], EXCLUDED)

    def also(self) -> None:
        undecided = self.v.status == "undetermined"
        if undecided and self.v.also:
            self.page.blank()
        notes = [(a.signature, f"{a.confidence}: {a.because}", a.citations) for a in self.v.also]
        self._notes("Could be" if undecided else "Also", notes, len(notes) if undecided else ALSO)

    def other_incidents(self) -> None:
        notes = [(i.time or "-", i.title, i.citations) for i in self.v.other_incidents]
        self._notes("Other incident", notes, INCIDENTS)

    def _notes(self, label: str, notes: Sequence[tuple[str, str, list[Citation]]], limit: int) -> None:
        shown = self._some(notes, limit)
        room = self._room([name for name, _, _ in shown])
        for n, (name, words, citations) in enumerate(shown):
            aside = ""
            if citations and not self.explain:
                aside = f"  {self._place(citations[0], self.page.width // 2)}"
            self.page.pair("" if n else label, words, (aside, "dim"), name=name, room=room)
            if self.explain:
                self._citations(citations, self.page.gutter + room)
        self._left_out(len(notes) - len(shown), "one", self.page.gutter)

    def last_minute(self) -> None:
        rows = phrases.last_minute(self.v, None if self.explain else LAST_MINUTE)
        if not rows:
            return
        some = f" ({len(rows)} of {len(self.v.last_minute)} lines)" if len(rows) < len(self.v.last_minute) else ""
        self.page.heading(f"Last minute before the first failure{some}")
        times, ranks = [phrases.clock(r.time) or "-" for r in rows], [r.rank or "-" for r in rows]
        for row, time, rank in zip(rows, times, ranks, strict=True):
            lead = f" {fill(time, self._room(times))}{fill(rank, self._room(ranks))}"
            self.page.row(lead, printable_lines(row.text)[0])
            if self.explain:
                self.page.wrap((phrases.place(row), "dim"), indent=min(len(lead), self.page.width // 2))

    def unread(self) -> None:
        rows = phrases.unread(self.v)
        for n, row in enumerate(rows[:UNREAD]):
            name = middle(printable(row.artifact), self.page.width // 2)
            self.page.pair("" if n else "Not all read", f"{name}  ", (phrases.inventory_words(row), "dim"))
        self._left_out(len(rows) - UNREAD, "artefact", self.page.gutter)

    # -- limits -------------------------------------------------------------------------------------------------

    def _some(self, items: Sequence[T], limit: int) -> Sequence[T]:
        return items if self.explain else items[:limit]

    def _left_out(self, n: int, what: str, indent: int) -> None:
        if n > 0:
            plural = "" if n == 1 else "s"
            self.page.wrap((f"… {n} more {what}{plural}; --explain shows all", "dim"), indent=indent)

    def _room(self, names: Sequence[str]) -> int:
        """The width of a column of names, in cells: two spaces after the longest, a third of the page at most."""
        from rich.cells import cell_len

        longest = max((cell_len(printable(name)) for name in names), default=0)
        return min(24, self.page.width // 3 + 2, longest + 2)
