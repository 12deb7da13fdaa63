"""What ``--explain`` adds to the terminal report: settings, the walked path, every rule, the whole inventory."""

from __future__ import annotations

from hicache_doctor.report import phrases
from hicache_doctor.report.page import Page, Piece
from hicache_doctor.signatures.verdict import Verdict

_ANSWER = {"yes": "green", "no": "red", "unknown": "yellow"}
INDENT = 9


def add_explanation(page: Page, verdict: Verdict) -> None:
    """Add the four sections to ``page``; an empty one is left out."""
    _settings(page, verdict)
    _path(page, verdict)
    _rules(page, verdict)
    _inventory(page, verdict)


def _settings(page: Page, v: Verdict) -> None:
    if v.settings:
        page.heading("Settings")
        page.wrap(" · ".join(f"{k}={v.settings[k]}" for k in sorted(v.settings)), indent=1)


def _path(page: Page, v: Verdict) -> None:
    if v.path:
        page.heading("Path walked")
    for step in v.path:
        where = "".join(f"  {phrases.place(c)}" for c in step.citations)
        pieces: list[Piece] = [f"{step.question} ", (step.answer, _ANSWER[step.answer]), (where, "dim")]
        page.wrap(*pieces, first=[(f" {step.node} ", "bold")], indent=INDENT)


def _rules(page: Page, v: Verdict) -> None:
    if v.rules_evaluated:
        page.heading("Rules evaluated")
    for rule in v.rules_evaluated:
        name, outcome, title = (str(rule.get(key) or "") for key in ("id", "outcome", "title"))
        page.wrap(outcome, (f"  {title}", "dim"), first=[(f" {name} ", "bold")], indent=INDENT)
        for answer, names in phrases.outcome_evidence(rule):
            page.wrap((f"{answer}: ", _ANSWER.get(answer, "")), names, indent=INDENT)


def _inventory(page: Page, v: Verdict) -> None:
    if v.inventory:
        page.heading("Inventory")
    for row in v.inventory:
        page.wrap(row.artifact, (f"  {phrases.inventory_words(row)}", "dim"), indent=1)
