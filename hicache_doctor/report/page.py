"""A page of terminal text: wrapping, clipping and styles by cell width. Every piece is cleaned as it enters.

Pieces are ``str`` or ``(str, style)``; they become rich ``Text`` objects and are never parsed as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hicache_doctor.report.clean import printable

if TYPE_CHECKING:
    from rich.text import Text

Piece = str | tuple[str, str]

GUTTER = 16
NARROW = 72
MIN_WIDTH = 40


def clip(text: str, width: int) -> str:
    """``text`` cut at the end to ``width`` cells, with ``…`` where something was cut."""
    from rich.cells import cell_len, chop_cells

    text = text[: 4 * width + 4]
    if cell_len(text) <= width:
        return text
    return chop_cells(text, max(1, width - 1))[0].rstrip() + "…"


def middle(text: str, width: int) -> str:
    """``text`` shortened in the middle to ``width`` cells; the end (file name, line) keeps the larger part."""
    from rich.cells import cell_len, chop_cells

    if cell_len(text) <= width:
        return text
    keep = max(1, (width - 1) // 3)
    head = chop_cells(text, keep)[0]
    end = chop_cells(text[::-1], max(1, width - 1 - cell_len(head)))[0][::-1]
    return f"{head}…{end}"


def fill(text: str, width: int) -> str:
    """``text`` in a column of ``width`` cells: shortened in the middle, or filled with spaces; one space at least."""
    from rich.cells import cell_len

    text = middle(printable(text), max(1, width - 1))
    return text + " " * (width - cell_len(text))


class Page:
    """Lines of at most ``width`` cells, commands excepted: those stay whole, so that they can be copied."""

    def __init__(self, width: int) -> None:
        from rich.console import Console

        self.width = max(MIN_WIDTH, width)
        self.gutter = GUTTER if self.width >= NARROW else 2
        self._lines: list[Text] = []
        self._wrapper = Console(width=self.width, force_terminal=False, no_color=True)

    def blank(self) -> None:
        """One empty line, unless the page is empty or already ends with one."""
        if self._lines and self._lines[-1].plain:
            self._add("")

    def line(self, *pieces: Piece) -> None:
        """One line as it is; the caller has seen to its width."""
        self._add(*pieces)

    def wrap(self, *pieces: Piece, first: Sequence[Piece] = (), indent: int = 0) -> None:
        """A paragraph: ``first`` leads its first line, the others are indented."""
        from rich.text import Text

        body = self._text(*pieces)
        lead = self._text(*first)
        # A lead that is longer than the indent has a line of its own.
        if lead.cell_len > indent:
            self._lines.append(_stripped(lead))
            lead = Text("")
        lead.append(" " * (indent - lead.cell_len))
        for part in body.wrap(self._wrapper, max(16, self.width - indent), overflow="fold"):
            self._lines.append(_stripped(lead + part))
            lead = Text(" " * indent)

    def pair(self, label: str, *pieces: Piece, name: str = "", room: int = 0) -> None:
        """A labelled value: its label in the gutter when the page is wide enough, else above it.

        ``name`` stands in a column of ``room`` cells between the two.
        """
        if label and self.gutter < GUTTER:
            self._add((label, "bold"))
            label = ""
        first: list[Piece] = [(fill(label, self.gutter), "bold")]
        if room:
            first.append((fill(name, room), "bold"))
        self.wrap(*pieces, first=first, indent=self.gutter + room)

    def heading(self, text: str) -> None:
        """A heading, set off by a blank line."""
        self.blank()
        self.wrap((text, "bold"))

    def quote(self, text: str, indent: int, style: str = "") -> None:
        """One quoted line, clipped to the page."""
        bar = " " * indent + "│ "
        self._add((bar, "dim"), (clip(printable(text[: 4 * self.width]), self.width - len(bar)), style))

    def row(self, lead: str, text: str, style: str = "dim") -> None:
        """One line: ``lead`` whole, then ``text`` clipped to what is left of the page."""
        from rich.cells import cell_len

        lead = printable(lead)
        self._add((lead, style), clip(printable(text[: 4 * self.width]), max(1, self.width - cell_len(lead))))

    def command(self, text: str, indent: int) -> None:
        """A command, a line a line of it, never wrapped or clipped."""
        for line in text.strip("\n").split("\n"):
            self._add(" " * indent, (line, "cyan"))

    def render(self, color: bool) -> str:
        """The page as text; no escape byte in it unless ``color``."""
        if not color:
            return "".join(f"{line.plain}\n" for line in self._lines)
        from io import StringIO

        from rich.console import Console

        out = StringIO()
        console = Console(
            file=out, width=self.width, force_terminal=True, color_system="standard", no_color=False, highlight=False,
            markup=False, emoji=False, legacy_windows=False, force_jupyter=False,
        )  # fmt: skip
        for line in self._lines:
            console.print(line, soft_wrap=True)
        return out.getvalue()

    def _add(self, *pieces: Piece) -> None:
        self._lines.append(_stripped(self._text(*pieces)))

    def _text(self, *pieces: Piece) -> Text:
        from rich.text import Text

        text = Text()
        for piece in pieces:
            body, style = (piece, "") if isinstance(piece, str) else piece
            text.append(printable(body), style=style)
        return text


def _stripped(text: Text) -> Text:
    text.rstrip()
    return text
