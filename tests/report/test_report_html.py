"""The HTML report: offline, escaped, with a bounded timeline."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from report_others import EVIL
from report_verdicts import VERDICTS

from hicache_doctor.evidence.rows import Batch, ExceptionRow, LogRecord, Row
from hicache_doctor.evidence.store import Store
from hicache_doctor.report import timeline as tl
from hicache_doctor.report.html import render_html
from hicache_doctor.report.timeline import build_timeline, first_failure

T0 = 1_778_469_164.0
# A store holds UTF-8 only: readers have replaced what is none.
IN_STORE = EVIL.replace("\udcff", "\ufffd")
LOG = "crash.dump!logs/pp1.log"


class Page(HTMLParser):
    """Tags with their attributes, and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words = ""
        self._in = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts[-1] += data
        else:
            self.words += data


def rows(n: int = 20, rank: str | None = "PP1 TP0", text: str = "evicted") -> Iterator[Row]:
    for i in range(n):
        yield Batch(LOG, i, i, T0 - i, rank, "prefill", 1, 64, None, None, None, None)
        yield LogRecord(LOG, i, i, i, T0 - i, rank, f"kind{i % 9}", {}, text)
    yield ExceptionRow(LOG, 812, 861, 0, T0, rank, "RuntimeError", text, None, "", role="first")
    yield ExceptionRow(LOG, 9, 9, 0, T0 - 400, rank, "OSError", "long before", None, "", role="unknown")


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.create() as s:
        s.add(rows())
        s.flush()
        yield s


@pytest.mark.parametrize("name", VERDICTS)
def test_no_request_leaves_the_page(name: str, store: Store) -> None:
    for opened in (None, store):
        page = Page(render_html(VERDICTS[name](), opened))
        for tag, attrs in page.tags:
            assert tag not in {"link", "img", "iframe", "object", "embed", "base", "audio", "video"}
            assert not {"src", "srcset", "data", "background", "action", "poster"} & set(attrs)
            assert not [a for a in attrs if a.startswith("on")]
            if "href" in attrs:
                assert tag == "a"
                assert str(attrs["href"]).startswith("https://github.com/sgl-project/sglang/pull/")


def test_scripts_are_ours_and_pinned(store: Store) -> None:
    evil = VERDICTS["hostile"]()
    store.add(rows(3, rank=IN_STORE, text=IN_STORE + "</script><!--"))
    text = render_html(evil, store)
    assert "<script>alert" not in text
    assert "</script><img" not in text
    assert not [c for c in text.split("<script", 1)[0] if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]
    text.encode("utf-8")
    page = Page(text)
    assert [attrs.get("type") for tag, attrs in page.tags if tag == "script"] == ["application/json", None, None]
    policy = next(
        a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    for script in page.scripts[1:]:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in str(policy)
    assert "'unsafe-inline'" not in str(policy).split("style-src")[0]
    assert "\\x1b[2J" in page.words
    # Plotly reads a subset of HTML in its labels, and must find none of theirs.
    figure = json.loads(page.scripts[0])
    labels = [h for t in figure["data"] for h in t["hovertext"]] + figure["layout"]["yaxis"]["ticktext"]
    assert not [x for x in labels if "<" in x.replace("<br>", "")]


def test_the_timeline_has_a_lane_a_rank(store: Store) -> None:
    store.add([Batch(LOG, 1, 1, T0 - 2, "PP1 TP10", "decode", None, None, None, None, 3, None)])
    store.add([Batch(LOG, 1, 1, T0 - 2, "PP1 TP2", "decode", None, None, None, None, 3, None)])
    store.add([LogRecord(LOG, 1, 1, 1, T0 - 2, None, "kind0", {}, "x")])
    t = build_timeline(VERDICTS["certain_a1"](), store)
    assert t is not None
    figure = json.loads(t.figure)
    assert figure["layout"]["yaxis"]["ticktext"] == ["PP1 TP0", "PP1 TP2", "PP1 TP10", "rank unknown"]
    names = [trace["name"] for trace in figure["data"]]
    assert names[:2] == ["prefill batch", "decode batch"]
    assert names[-2:] == ["other records", "exception, first"]
    assert sum(len(trace["x"]) for trace in figure["data"]) == t.points == 44
    decode = figure["data"][1]["hovertext"]
    assert decode[0].endswith(f"<br>decode batch, #running-req 3<br>{LOG}:1")


def test_the_timeline_is_bounded_and_nearest_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tl, "BATCHES", 5)
    t = build_timeline(VERDICTS["certain_a1"](), store)
    assert t is not None
    batches = json.loads(t.figure)["data"][0]
    assert len(batches["x"]) == 5
    assert t.left_out == 15
    assert batches["x"][-1] == tl._iso(T0)
    assert tl.POINTS <= 5000


def test_the_first_failure_is_that_of_the_verdict(store: Store) -> None:
    assert first_failure(VERDICTS["certain_a1"](), store) == T0
    assert first_failure(VERDICTS["healthy"](), store) == T0
    with Store.create() as empty:
        assert first_failure(VERDICTS["certain_a1"](), empty) is None
    with Store.create() as empty:
        empty.add([LogRecord(LOG, 1, 1, 1, float("1e300"), None, "k", {}, "x")])
        assert build_timeline(VERDICTS["certain_a1"](), empty) is None
        assert "plotly" not in render_html(VERDICTS["healthy"](), empty)
    with Store.create() as calm:
        calm.add([Batch(LOG, 1, 1, T0, "PP0 TP0", "decode", None, None, None, None, None, None)])
        assert first_failure(VERDICTS["healthy"](), calm) == T0
