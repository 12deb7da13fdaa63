"""Decision streams of probe events: a change is found exactly where it is, and a rank that is behind is no change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_doctor.evidence import decisions, event_rows, streams
from hicache_doctor.evidence.rows import Event
from hicache_doctor.evidence.store import Store
from hicache_doctor.signatures.load import load
from tests.evidence.filled import store

BASE = load()
RUN = """
PP0,PP1 0 start host_tokens 640
PP0,PP1 0-9 step - 2 1
PP0,PP1 0-9 recv_msg $ request $ 1
PP0,PP1 0-9 drain - $ 1 1 hicache_events
PP0,PP1 0-9 submit 77 write 64 granted $
PP0,PP1 0-9 evict 88 host 64 500 $
PP0,PP1 0-9 batch $ $ 0 128 64
PP0,PP1 0-9 settle $ 64 0 64 completed
PP0,PP1 0-9 digest 99 $
"""


def events(text: str) -> list[Event]:
    return event_rows.parse(text, BASE.events, BASE.event_words)


@contextmanager
def derived(rows: Sequence[Event], page: int | None = None) -> Iterator[Store]:
    with store(rows) as s:
        streams.derive(s, page)
        decisions.derive(s, BASE.events, BASE.event_words, page)
        yield s


def parted(rows: Sequence[Event] | str) -> list[dict[str, Any]]:
    with derived(events(rows) if isinstance(rows, str) else rows) as s:
        return s.rows("SELECT * FROM divergence ORDER BY step, tier, rank_b")


def first(rows: Sequence[Event] | str) -> dict[str, Any] | None:
    with derived(events(rows) if isinstance(rows, str) else rows) as s:
        return decisions.first(s)


def changed(rank: str, step: int, kind: str, **fields: int) -> list[Event]:
    """The run of above with one event of one rank changed."""
    out = [replace(e, **fields) if (e.rank, e.step, e.kind) == (rank, step, kind) else e for e in events(RUN)]
    assert out != events(RUN)
    return out


def dropped(rank: str, step: int, kind: str) -> list[Event]:
    return [e for e in events(RUN) if (e.rank, e.step, e.kind) != (rank, step, kind)]


def test_equal_runs_have_no_difference() -> None:
    assert parted(RUN) == []


@pytest.mark.parametrize(
    ("kind", "fields", "stream", "ordinal", "a", "b"),
    [
        ("recv_msg", {"a": 1}, "message", 6, "msg request, rid 6", "msg abort, rid 6"),
        ("drain", {"b": 0}, "drain", 6, "write_acks 1, load_acks 1", "write_acks 0, load_acks 1"),
        ("settle", {"c": 0}, "settle", 6, "why completed", "loaded 0"),
        ("submit", {"c": 1}, "submission", 6, "why granted", "queue write, node_or_rid 77, tokens 64, why no_room"),
        ("evict", {"key": 1 << 63}, "evict", 6, "node 88", "tier host, node 8000000000000000, tokens 64"),
        ("batch", {"c": 112}, "batch", 6, "prefix_tokens 128", "rid 6, prefix_tokens 112, extend_tokens 64"),
        ("digest", {"key": 5}, "digest", 6, "digest 99", "digest 5"),
    ],
)
def test_a_changed_value_is_found_where_it_is(
    kind: str, fields: dict[str, int], stream: str, ordinal: int, a: str, b: str
) -> None:
    (found,) = parted(changed("PP1", 6, kind, **fields))
    assert (found["stream"], found["ordinal"], found["step"], found["sure"]) == (stream, ordinal, 6, True)
    assert (found["rank_a"], found["rank_b"]) == ("PP0", "PP1")
    assert a in found["value_a"] and b in found["value_b"]
    # AND both sides are cited by their record
    cited = events(RUN)[0].artifact, next(e.record for e in events(RUN) if (e.rank, e.step, e.kind) == ("PP1", 6, kind))
    assert (found["artifact_a"], found["record_b"]) == cited and found["line_a"] is None


@pytest.mark.parametrize(("kind", "fields"), [("evict", {"c": 501}), ("recv_msg", {"d": 3})])
def test_a_stamp_and_a_slot_are_no_decisions(kind: str, fields: dict[str, int]) -> None:
    assert parted(changed("PP1", 6, kind, **fields)) == []


def test_a_rank_that_is_behind_has_not_diverged() -> None:
    assert parted([e for e in events(RUN) if e.rank == "PP0" or e.step < 6]) == []


def test_a_call_that_drained_nothing_is_a_difference_once_the_rank_passed_it() -> None:
    (found,) = parted(dropped("PP1", 6, "drain"))
    assert (found["stream"], found["ordinal"], found["value_b"]) == ("drain", 6, "write_acks 0, load_acks 0")
    # The witness is what the rank did beyond that place, in the same step.
    assert found["quote_b"].startswith("submit: queue write") and found["record_b"] is not None
    # what it did later in the same step says so too
    assert parted([e for e in dropped("PP1", 6, "drain") if e.rank == "PP0" or e.step <= 6])
    # BUT while it has not come beyond that place in the step, nothing can be said
    behind = [
        e
        for e in dropped("PP1", 6, "drain")
        if e.rank == "PP0" or e.step < 6 or (e.step == 6 and e.kind in ("step", "recv_msg"))
    ]
    assert parted(behind) == []


def test_a_head_that_was_overwritten_is_no_difference() -> None:
    assert parted([e for e in events(RUN) if e.rank == "PP0" or e.step > 4]) == []


def test_the_order_within_a_step_is_that_of_its_decisions() -> None:
    late = changed("PP1", 6, "batch", c=0)
    both = [replace(e, b=0) if (e.rank, e.step, e.kind) == ("PP1", 6, "drain") else e for e in late]
    assert [d["stream"] for d in parted(both)] == ["drain", "batch"]
    found = first(both)
    assert found is not None and found["stream"] == "drain"


def test_replicas_are_compared_and_others_not() -> None:
    two = RUN.replace("PP0,PP1", "DP0.PP0,DP1.PP0")
    assert parted([replace(e, b=e.b + 1) if e.rank == "DP1 PP0" else e for e in events(two)]) == []


def test_a_group_is_compared_among_its_members_only() -> None:
    text = """
    PP0.TP0,PP0.TP1 0-5 collective $ tp min 2 writing_check
    PP1.TP0,PP1.TP1 0-5 collective $ tp min 2 pp_sync
    """
    assert parted(text) == []
    (found,) = parted(text + "PP1.TP0 6 collective 6 tp min 1 loading_check\nPP1.TP1 6 collective 6 tp min 1 forward")
    assert (found["rank_a"], found["rank_b"], found["ordinal"]) == ("PP1 TP0", "PP1 TP1", 6)
    assert found["value_b"] == "group tp, op min, size 1, site forward"


def test_a_message_of_another_size_is_seen_but_not_sure() -> None:
    (found,) = parted("PP0 0-3 send $ 1 pp_sync 2\nPP1 0-2 recv $ 0 pp_sync 2\nPP1 3 recv 3 0 pp_sync 1")
    assert (found["stream"], found["ordinal"], found["sure"]) == ("p2p", 3, False)


def test_every_rank_of_the_replica_is_told() -> None:
    four = RUN.replace("PP0,PP1", "PP0.TP0,PP0.TP1,PP1.TP0,PP1.TP1")
    rows = [replace(e, c=1) if (e.rank, e.step, e.kind) == ("PP1 TP1", 4, "submit") else e for e in events(four)]
    with derived(rows) as s:
        found = decisions.first(s)
        assert found is not None and (found["rank_b"], found["culprit"]) == ("PP1 TP1", "PP1 TP1")
        said = decisions.values(s, found)
    assert set(said) == {"PP0 TP0", "PP0 TP1", "PP1 TP0", "PP1 TP1"}
    assert said["PP1 TP1"].endswith("why no_room") and said["PP1 TP0"].endswith("why granted")


UNEQUAL = RUN.replace("PP0,PP1 0 start", "PP0 0 start host_tokens 640\nPP1 0 start").replace(
    "PP1 0 start host_tokens 640", "PP1 0 start host_tokens 512"
)


@pytest.mark.parametrize(
    ("kind", "fields", "stream"),
    [("submit", {"c": 1}, "start"), ("evict", {"key": 5}, "start"), ("drain", {"b": 0}, "drain"), (None, {}, "start")],
)
def test_unequal_pools_come_first_only_where_the_rest_follows_from_them(
    kind: str | None, fields: dict[str, int], stream: str
) -> None:
    rows = [
        replace(e, **fields) if (e.rank, e.step, e.kind) == ("PP1", 6, kind) else e
        for e in events(UNEQUAL)
    ]  # fmt: skip
    found = first(rows)
    assert found is not None and found["stream"] == stream
    if stream == "start":
        assert (found["value_a"], found["value_b"]) == (
            "capacity host_tokens, value 640",
            "capacity host_tokens, value 512",
        )
        assert found["culprit"] == "PP1"


def test_whole_pages_are_said() -> None:
    with derived(changed("PP1", 6, "batch", c=112), page=16) as s:
        assert s.rows("SELECT delta, page_multiple FROM divergence") == [{"delta": 16, "page_multiple": True}]


Decision = tuple[int, int, int, int]
RUNS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, (1 << 64) - 1), st.integers(1, 900), st.integers(0, 2)),
    min_size=1,
    max_size=30,
)


def submissions(rank: str, run: Sequence[Decision]) -> list[Event]:
    count = [0, 0, 0, 0]
    out = []
    for step, (queue, key, tokens, why) in enumerate(run):
        out.append(Event(f"{rank}.ring", rank, step, step, 0, "submit", key, queue, tokens, why, count[queue], step))
        count[queue] += 1
    return out


@given(RUNS, st.data())
@settings(max_examples=25, deadline=None)
def test_streams_part_exactly_where_they_are_changed(run: list[Decision], data: st.DataObject) -> None:
    assert parted(submissions("PP0", run) + submissions("PP1", run)) == []
    cut = data.draw(st.integers(0, len(run)))
    assert parted(submissions("PP0", run) + submissions("PP1", run[:cut])) == []
    at = data.draw(st.integers(0, len(run) - 1))
    queue, key, tokens, why = run[at]
    other = [*run[:at], (queue, key, tokens + 1, why), *run[at + 1 :]]
    (found,) = parted(submissions("PP0", run) + submissions("PP1", other))
    assert (found["step"], found["ordinal"]) == (at, sum(d[0] == queue for d in run[:at]))
