"""Pickles of plain values, hostile ones among them: refused in one line, within the limits, and nothing ever runs."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.artifacts.plain_pickle import Refused, explained, load
from tests.artifacts import fuzzing
from tests.artifacts.recorder_dumps import HANGS, dump, entry, gloo

PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(st.text(), inner, max_size=5),
        st.sets(st.integers(), max_size=5),
    ),
    max_leaves=20,
)
RECORDERS = [
    pickle.dumps(dump([entry(i) for i in range(6)] + [entry(6, "nccl:send 0->1", **HANGS)]), 2),
    pickle.dumps(gloo([entry(i, "gloo:all_reduce") for i in range(4)]), 4),
    pickle.dumps([entry(i) for i in range(3)], 5),
]


@given(PLAIN, st.integers(0, 5))
def test_plain_values_come_back(value: Any, protocol: int) -> None:
    try:
        assert load(pickle.dumps(value, protocol)) == value
    except Refused as e:
        # Before protocol 4 sets, and before protocol 3 bytes, have no opcode of their own.
        assert protocol < 4 and e.what == "names a class"


class Evil:
    """Leaves a file behind if anything calls what its pickle says."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_ever_called(tmp_path: Path, protocol: int) -> None:
    with pytest.raises(Refused, match=r"names a class at byte \d+"):
        load(pickle.dumps({"entries": [Evil(tmp_path / "made")]}, protocol))
    assert not (tmp_path / "made").exists()


HOSTILE = [
    (b"\x80\x02\x8b\xff\xff\xff\x7f.", "announces 2147483647 bytes, more than it has at byte 2"),
    (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b".", "announces 1099511627776 bytes, more than it has at byte 2"),
    (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 31) + b".", "announces 2147483648 bytes, more than it has at byte 2"),
    (b"\x80\x05\x96" + struct.pack("<Q", 1 << 31) + b".", "announces 2147483648 bytes, more than it has at byte 2"),
    (b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"]", "announces 1099511627776 bytes, more than it has at byte 2"),
    (b"\x80\x02]r\xff\xff\xff\xff.", "numbers a value 4294967295, more than it has bytes at byte 3"),
    (b"\x80\x02]r\xff\xff\xff\x0f.", "numbers a value 268435455, more than it has bytes at byte 3"),
    (b"\x80\x02}cos\nsystem\n(X\x02\x00\x00\x00idtR.", "names a class at byte 3"),
    (b"(S'ls'\nios\nsystem\n.", "names a class at byte 7"),
    (b"\x80\x02Pabc\n.", "refers to something outside at byte 2"),
    (b"\x80\x02K\x01Q.", "refers to something outside at byte 4"),
    (b"\x80\x02\x82\x01.", "uses the extension registry at byte 2"),
    (b"\x80\x05\x97.", "refers to something outside at byte 2"),
    (b"\x80\x02]K\x01\x85R.", "calls a function at byte 6"),
    (b"\x80\x02](K\x01e", "ends in the middle of the data at byte 7"),
    (b"\x80\x02]\xff.", "is damaged: 0xff is no opcode at byte 3"),
    (b"", "ends in the middle of the data at byte 0"),
    (b"\x80\x02h\x07.", "is damaged (UnpicklingError)"),
]


@pytest.mark.parametrize(("data", "why"), HOSTILE)
def test_hostile_pickles_are_refused_in_one_line_that_says_where(tmp_path: Path, data: bytes, why: str) -> None:
    with fuzzing.reader() as ask:
        assert ask("recorder pickle", data, tmp_path).error == why


def test_nesting_and_repetition_stay_within_the_limits(tmp_path: Path) -> None:
    doubled: Any = [1]
    for _ in range(60):
        doubled = [doubled, doubled]
    sizes = pickle.dumps(dump([entry(0, input_sizes=doubled)]), 2)
    begun = b"\x80\x02}(X\x07\x00\x00\x00entries]("
    with fuzzing.reader() as ask:
        assert ask("recorder pickle", b"\x80\x02" + b"]" * 10**6 + b"a" * (10**6 - 1) + b".", tmp_path).error
        assert "entries in" in ask("recorder pickle", begun + b"}q\x01" + b"h\x01" * 10**6 + b"eu.", tmp_path).error
        assert (
            "entries in"
            in ask("recorder pickle", b"\x80\x02}q\x00(X\x07\x00\x00\x00entries](h\x00h\x00eu.", tmp_path).error
        )
        answer = ask("recorder pickle", sizes, tmp_path)
        assert "MiB" in answer.error or "nested" in answer.error or "too long" in answer.error, answer
        # The child was replaced if it had to be: the next file is read as ever.
        assert ask("recorder pickle", RECORDERS[0], tmp_path).header["entries"] == 7


@given(PLAIN, st.integers(0, 5), st.integers(1, 30))
def test_a_pickle_that_was_cut_says_so(value: Any, protocol: int, lost: int) -> None:
    data = pickle.dumps(value, protocol)[:-lost]
    found = explained(data, classes=True)
    assert found is not None and found.at is not None and found.at <= len(data)


def sound(answer: Any) -> None:
    assert answer.error or answer.header
    assert "\n" not in answer.error and "reader failed" not in answer.error and len(answer.error) < 300
    json.dumps(answer.header)


def fuzz(folder: Path, task: str, seeds: list[bytes], *, long: bool) -> None:
    with fuzzing.reader() as ask:
        fuzzing.run(lambda data: sound(ask(task, data, folder)), fuzzing.mutated(*seeds), long=long)


def test_mutated_recorders(tmp_path: Path) -> None:
    fuzz(tmp_path, "recorder pickle", RECORDERS, long=False)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_mutated_recorders_for_minutes(tmp_path: Path) -> None:
    fuzz(tmp_path, "recorder pickle", RECORDERS, long=True)


JSONS = [json.dumps(dump([entry(i) for i in range(4)])).encode(), json.dumps([entry(0)]).encode()]


def test_mutated_json(tmp_path: Path) -> None:
    fuzz(tmp_path, "recorder JSON", JSONS, long=False)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_mutated_json_for_minutes(tmp_path: Path) -> None:
    fuzz(tmp_path, "recorder JSON", JSONS, long=True)


ODD = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(st.text(max_size=3), inner)
    ),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.sampled_from(sorted(entry(0))), ODD), max_size=4), ODD, ODD, ODD)
def test_entries_of_any_values_become_rows(entries: list[Any], config: Any, status: Any, version: Any) -> None:
    """Behind the child: whatever the columns are, rows and tables come of them."""
    from hicache_doctor.artifacts import flight_recorder, recorder_columns, recorder_tables
    from hicache_doctor.artifacts.limited import Answer

    value = {"version": version, "pg_config": config, "pg_status": status, "entries": [entry(0), *entries]}
    try:
        header, buffers = recorder_columns.columns(value, 1 << 20)
    except Refused:
        return
    answer = Answer(json.loads(json.dumps(header)), [bytes(memoryview(b).cast("B")) for b in buffers])
    recorder = flight_recorder._recorder("x/nccl_trace_rank_1", answer)
    assert len(next(recorder_tables.operations(recorder))) == len(entries) + 1
    list(recorder_tables.statuses(recorder))
    list(flight_recorder._stacks(recorder))
    recorder_tables.note(recorder)
