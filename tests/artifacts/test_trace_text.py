"""The flight-recorder analyser's text, its own crash, NCCL RAS, and pasted process-group status."""

from __future__ import annotations

import pytest
from hypothesis import given

from hicache_doctor.artifacts import ras_text, trace_text
from hicache_doctor.evidence.rows import LogRecord
from tests.artifacts.small import mutations, numbered, text_of


@pytest.mark.parametrize(
    "name, want",
    [
        ("fr_trace_old.txt", (20442, "0", [3, 4, 5, 6, 7], "scheduled")),
        ("torchfrtrace.txt", (288686, "3", [0], "started")),
    ],
)
def test_missing_ranks_in_both_wordings(name: str, want: tuple[int, str, list[int], str]) -> None:
    text = text_of(name)
    assert trace_text.looks_like_trace_text(text)
    (record,) = trace_text.parse(numbered(text), name)
    fields = record.fields
    assert (record.kind, record.line) == ("frtrace_missing_ranks", 2)
    assert (fields["seq"], fields["group"], fields["missing"], fields["state"]) == want
    assert record.line_end == len(text.rstrip().split("\n"))
    assert fields["frames"][0].startswith(("all_", "_all"))


def test_a_mismatch_names_the_culprit_as_printed() -> None:
    (record,) = trace_text.parse(numbered(text_of("fr_trace_mismatch.txt")), "x")
    assert record.kind == "frtrace_error"
    assert (record.fields["culprits"], record.fields["error_type"]) == ([3], "SIZE_OR_SYNTAX_MISMATCH")
    assert (record.fields["expected_sizes"], record.fields["found_sizes"]) == ("[[1000, 5120]]", "[[3013, 5120]]")
    assert record.fields["record_id"] == 1


def test_the_analysers_crash_is_not_the_incident() -> None:
    (record,) = trace_text.parse(numbered(text_of("fr_trace_crash.txt")), "x")
    assert (record.kind, record.line) == ("frtrace_crash", 1)
    assert record.fields == {"exception": "KeyError", "message": "('2', 3)", "file": "builder.py", "line": 212}
    ours = 'Traceback (most recent call last):\n  File "/sglang/srt/managers/scheduler.py", line 2, in f\nKeyError: 3\n'
    assert trace_text.parse(numbered(ours), "x") == []


def test_a_status_table_gives_a_record_a_rank() -> None:
    records = trace_text.parse(numbered(text_of("pg_status.txt")), "x")
    assert [r.rank for r in records] == [f"rank {i}" for i in range(8)]
    assert records[2].fields == {"rank": 2, "group": "2", "enqueued": 63164, "started": 63161, "completed": 63161}
    assert {r.line for r in records[3:]} == {7}


def test_ras() -> None:
    text = text_of("ncclras.txt")
    assert ras_text.looks_like_ras(text)
    row, warning, rank = ras_text.parse(numbered(text), "x")
    assert isinstance(row, LogRecord) and isinstance(warning, LogRecord)
    assert (row.kind, row.line, row.fields["status"]) == ("ras_mismatch", 16, "RUNNING")
    assert (warning.line, warning.line_end, warning.fields["operation"]) == (21, 25, "AllGather")
    assert warning.fields["counts"] == [{"ranks": 1, "operation": 288685}, {"ranks": 1, "operation": 288686}]
    (listed,) = warning.fields["ranks"]
    assert listed == {
        "rank": 0,
        "gpu": "0",
        "pid": 2201,
        "node": "192.0.2.81",
    }  # below two groups of one rank: of which is not said
    assert isinstance(rank, LogRecord)
    assert (rank.kind, rank.pid, rank.fields.get("behind")) == ("ras_rank", 2201, None)
    (ok,) = ras_text.parse(numbered("    0         1         2         1         2         2   RUNNING        OK"), "x")
    assert isinstance(ok, LogRecord) and ok.kind == "ras_ok"


@given(
    mutations(
        text_of("fr_trace_mismatch.txt"),
        text_of("fr_trace_crash.txt"),
        text_of("pg_status.txt"),
        text_of("ncclras.txt"),
    )
)
def test_never_raises(text: str) -> None:
    trace_text.looks_like_trace_text(text)
    trace_text.parse(numbered(text), "x")
    ras_text.looks_like_ras(text)
    ras_text.parse(numbered(text), "x")
