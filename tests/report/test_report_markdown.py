"""Markdown for an issue: snapshots, and nothing of an artefact formats, mentions or embeds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from report_snapshots import check
from report_verdicts import VERDICTS

from hicache_doctor.report.markdown import code, plain, render_markdown
from hicache_doctor.signatures.verdict import Action, Citation, Link


def tokens(text: str) -> Iterator[Token]:
    for token in MarkdownIt("commonmark").parse(text):
        yield token
        yield from token.children or ()


@pytest.mark.parametrize("name", VERDICTS)
def test_markdown(name: str) -> None:
    check(f"{name}.md", render_markdown(VERDICTS[name]()))


@pytest.mark.parametrize("name", VERDICTS)
def test_only_our_own_html_and_no_links(name: str) -> None:
    found = list(tokens(render_markdown(VERDICTS[name]())))
    assert {t.content for t in found if t.type.startswith("html")} <= {"<sub>", "</sub>"}
    assert not [t for t in found if t.type in {"link_open", "image"}]
    assert not [t for t in found if t.type == "text" and "@someone" in t.content]


def test_a_quote_cannot_close_its_fence() -> None:
    v = VERDICTS["healthy"]()
    quote = "```\n# heading\n````\n<img src=x>"
    v.evidence_chain = [Link(claim="c", citations=[Citation(artifact="a`b``.log", quote=quote)])]
    v.status = "signature"
    v.actions = [Action(when="now", do="1. *x* _y_ pp_size http://evil", command="a\n```\nb")]
    found = list(tokens(render_markdown(v)))
    assert [t.content for t in found if t.type == "fence"] == [quote + "\n", "a\n```\nb\n"]
    assert [t.content for t in found if t.type == "code_inline"] == ["a`b``.log"]
    assert not [t for t in found if t.type in {"em_open", "strong_open"} and t.content]
    assert plain("*x* _y_ pp_size") == r"\*x\* \_y\_ pp_size"
    assert code("`") == "`` ` ``"


def test_long_quotes_are_clipped_and_long_chains_counted() -> None:
    v = VERDICTS["healthy"]()
    v.evidence_chain = [Link(claim="c", citations=[Citation(artifact="a", quote="x" * 5000 + "\ny" * 50)])] * 11
    text = render_markdown(v)
    assert "… 3 more links in the full report" in text
    assert max(map(len, text.splitlines())) < 500
    assert text.count("\n   y\n") <= 12 * 8
