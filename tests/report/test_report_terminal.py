"""Whole terminal reports against snapshots; HICACHE_DOCTOR_UPDATE_SNAPSHOTS=1 rewrites them."""

from __future__ import annotations

import re

import pytest
from report_snapshots import check
from report_verdicts import VERDICTS
from rich.cells import cell_len

from hicache_doctor.report.clean import printable
from hicache_doctor.report.page import clip, fill, middle
from hicache_doctor.report.terminal import render_terminal
from hicache_doctor.signatures.verdict import Verdict

WIDTHS = (60, 100, 160)
# A fully laden verdict may take a few lines more than the screen of 45 that is the aim.
SCREEN = {"certain_a1": 50, "hostile": 75}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", VERDICTS)
def test_report(name: str, width: int) -> None:
    check(f"{name}.{width}.txt", render_terminal(VERDICTS[name](), width=width))


@pytest.mark.parametrize("name", ["certain_a1", "undetermined", "hostile"])
def test_explained_report(name: str) -> None:
    check(f"{name}.explain.txt", render_terminal(VERDICTS[name](), width=100, explain=True))


@pytest.mark.parametrize("name", VERDICTS)
def test_fits_one_screen(name: str) -> None:
    assert render_terminal(VERDICTS[name](), width=100).count("\n") <= SCREEN.get(name, 45)


def commands(v: Verdict) -> set[str]:
    texts = [a.command for a in v.actions] + [n.command for n in v.next_evidence]
    return {printable(line) for text in texts if text for line in text.split("\n")}


@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize("width", [1, 40, 59, 71, 72, 80, *WIDTHS, 250])
@pytest.mark.parametrize("name", VERDICTS)
def test_no_line_is_wider_than_the_page_but_commands(name: str, width: int, explain: bool) -> None:
    v = VERDICTS[name]()
    whole = commands(v)
    lines = render_terminal(v, width=width, explain=explain).splitlines()
    assert [x for x in lines if cell_len(x) > max(width, 40) and x.strip() not in whole] == []
    assert [x for x in lines if x != x.rstrip()] == []
    assert whole <= {x.strip() for x in lines}


@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize("name", VERDICTS)
def test_escapes_only_with_colour(name: str, explain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    v = VERDICTS[name]()
    plain = render_terminal(v, explain=explain, color=False)
    assert not [c for c in plain if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    coloured = render_terminal(v, explain=explain, color=True)
    # Nothing but our own colour sequences, and the same words.
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_long_names_keep_both_ends() -> None:
    assert middle("bundle.tar.gz!logs/stage1/pp1-tp0.log:4402", 24) == "bundle.…pp1-tp0.log:4402"
    assert cell_len(middle("漢字" * 20, 11)) <= 11
    assert cell_len(clip("漢字" * 20, 11)) <= 11
    assert [cell_len(fill(x, 7)) for x in ("", "PP0", "漢字漢字漢字")] == [7, 7, 7]


def test_an_empty_verdict_has_a_report() -> None:
    v = Verdict(status="undetermined", title="nothing was read", tool_version="0.1.0", knowledge_as_of="2026-11-30")
    text = render_terminal(v)
    assert text.startswith("UNDETERMINED\nnothing was read\n")
    assert text.endswith("hicache-doctor 0.1.0 · PRs and releases as of 2026-11-30\n")
