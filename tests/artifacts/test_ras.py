"""NCCL RAS reports, as text and as JSON, whole and in part."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.artifacts import ras_json, ras_text
from hicache_doctor.evidence.rows import GroupStatus, LogRecord, Row
from tests.artifacts.small import mutations, numbered, text_of

VERBOSE = text_of("ncclras_verbose.txt")
JSON = text_of("ncclras.json")


def records(rows: list[Row], kind: str) -> list[LogRecord]:
    return [r for r in rows if isinstance(r, LogRecord) and r.kind == kind]


def ranks(rows: list[Row]) -> list[tuple[Any, ...]]:
    keys = ("operation", "rank", "count", "behind", "status", "error")
    return [(r.pid, *(r.fields.get(k) for k in keys)) for r in records(rows, "ras_rank")]


def test_the_table_says_a_group_of_communicators_a_row() -> None:
    rows = ras_text.parse(numbered(VERBOSE), "x")
    first, second = (r for r in rows if isinstance(r, LogRecord) and "group" in r.fields)
    assert (first.kind, first.fields["status"]) == ("ras_mismatch", "RUNNING")
    assert (second.kind, second.fields["errors"], second.fields["nccl_version"]) == ("ras_ok", "OK", "2.28.9")


def test_every_operation_has_counts_of_its_own() -> None:
    rows = ras_text.parse(numbered(VERBOSE), "x")
    reduce, send = (r for r in records(rows, "ras_mismatch") if "hash" in r.fields)
    assert (reduce.fields["operation"], reduce.fields["most"], reduce.fields["least"]) == ("AllReduce", 6650, 6649)
    assert reduce.fields["counts"] == [{"ranks": 26, "operation": 6650}, {"ranks": 6, "operation": 6649}]
    assert (send.fields["operation"], send.fields["most"], send.fields["least"]) == ("SendRecv", 100, 0)
    assert send.fields["hash"] == reduce.fields["hash"] == "27a079b828ff1a75"


def test_ranks_ahead_and_behind() -> None:
    rows = ras_text.parse(numbered(VERBOSE), "x")
    assert ranks(rows) == [
        (3487984, None, 21, None, None, None, None),
        (12, None, 3, None, None, None, "Remote process error"),
        (483073, "AllReduce", 1, None, None, "INIT", None),
        (483072, "AllReduce", 0, 6649, 1, None, None),
        (483074, "AllReduce", 2, 6649, 1, None, None),
        (6247, "SendRecv", 1, 100, 0, None, None),
        (None, "SendRecv", 5, 0, 100, None, None),
    ]
    standings = [(g.grp, g.enqueued, g.pid, g.source) for g in rows if isinstance(g, GroupStatus)]
    assert standings == [
        ("27a079b828ff1a75 AllReduce", 6649, 483072, "ras"),
        ("27a079b828ff1a75 AllReduce", 6649, 483074, "ras"),
        ("27a079b828ff1a75 SendRecv", 100, 6247, "ras"),
    ]


def test_processes_that_do_not_answer() -> None:
    rows = ras_text.parse(numbered(VERBOSE), "x")
    (dead,) = records(rows, "ras_dead")
    assert dead.fields["processes"] == [{"pid": 3487984, "node": "172.16.64.213", "gpu": "5,6"}]
    assert len(records(rows, "ras_incomplete")) == 2
    assert len(records(rows, "ras_timeout")) == 1


def test_the_first_releases_count_all_operations_together() -> None:
    text = """#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
"""
    rows = ras_text.parse(numbered(text), "x")
    assert ranks(rows) == [(483072, "collective", 0, 6649, 1, None, None)]


@pytest.mark.parametrize(
    "text",
    [
        JSON,
        JSON.replace('"nvml_dev": 0\n', '"nvml_dev": 0,\n'),
        "SERVER PROTOCOL 2\nOK\nOK\n" + JSON,
        "$ ncclras -f json\n" + JSON,
    ],
    ids=["comma lost", "whole", "over netcat", "below a prompt"],
)
def test_json_gives_what_the_text_would(text: str) -> None:
    assert ras_json.looks_like_ras_json(text)
    rows = ras_json.parse(numbered(text), "x")
    (mismatch,) = records(rows, "ras_mismatch")
    assert (mismatch.fields["operation"], mismatch.fields["most"], mismatch.fields["least"]) == ("AllReduce", 101, 100)
    assert (mismatch.ts, mismatch.fields["hash"]) == (1782315882.0, "71c2e44b90aa3f1d")
    assert '"hash"' in text.split("\n")[mismatch.line - 1]
    assert ranks(rows) == [
        (11, "AllReduce", 1, 100, 1, None, None),
        (10, "AllReduce", 0, 101, 0, None, None),
        (12, "AllReduce", 2, 101, 0, None, None),
        (13, None, 3, None, None, None, None),
    ]
    assert len(records(rows, "ras_incomplete")) == 1


def test_json_states() -> None:
    data = json.loads(JSON.replace('"nvml_dev": 0\n', '"nvml_dev": 0,\n'))
    comm = data["communicators"][0]
    for rank in comm["ranks"]:
        rank["collective_counts"]["AllReduce"] = 5
    comm["missing_ranks"][0]["status"]["considered_dead"] = True
    comm["ranks"][1]["status"]["async_error"] = 6
    rows = ras_json.parse(numbered(json.dumps([data, data])), "x")
    assert rows == []  # a list is no report
    rows = ras_json.parse(numbered(json.dumps(data)), "x")
    assert [r.kind for r in rows if isinstance(r, LogRecord)] == ["ras_error", "ras_rank", "ras_dead", "ras_rank"]
    comm["ranks"][1]["status"]["async_error"] = 7  # in progress
    comm["missing_ranks"] = []
    rows = ras_json.parse(numbered(json.dumps(data)), "x")
    assert [r.kind for r in rows if isinstance(r, LogRecord)] == ["ras_ok"]


@pytest.mark.parametrize(
    "text",
    [
        "Rank 0 -- GPU 0 of the leaderboard",
        "#0-0 (see above) MISMATCH between invoices",
        "| 0 | 1 | 2 | 1 | 2 | 2 | RUNNING | OK |",
        '{"communicators": ["Ann", "Bob"], "language": "en"}',
        "DEAD\nLINE",
    ],
)
def test_texts_that_are_none(text: str) -> None:
    assert not ras_text.looks_like_ras(text)
    assert not ras_json.looks_like_ras_json(text)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 70) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["hash", "rank", "ranks", "missing_ranks", "status", "collective_counts", "pid", "async_error"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(mutations(VERBOSE, JSON))
def test_never_raises(text: str) -> None:
    ras_text.looks_like_ras(text)
    ras_text.parse(numbered(text), "x")
    ras_json.parse(numbered(text), "x")


@given(st.lists(JUNK, max_size=4))
def test_never_raises_for_other_json(communicators: list[Any]) -> None:
    ras_json.parse(numbered(json.dumps({"nccl_version": "2", "communicators": communicators}, indent=1)), "x")
