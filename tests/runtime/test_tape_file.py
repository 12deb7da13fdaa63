"""A tape on disk says what was observed, whatever ended its writer."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.runtime import tape_file

KEYS = st.tuples(st.integers(0, 1 << 40), st.sampled_from(["acks", "late", "hits.tp"]), st.integers(0, 1 << 20))
SEEN = st.lists(st.integers(-(1 << 62), 1 << 62) | st.booleans(), max_size=6).map(tuple)


@given(st.lists(st.tuples(KEYS, SEEN), max_size=12))
def test_what_is_written_is_read(tmp_path_factory, entries) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("tape") / "rank.jsonl"
    log: list = []
    writer = tape_file.TapeWriter(path, log)
    for entry in entries:
        log.append(entry)
        writer.flush()
    writer.close()
    assert tape_file.read(path) == entries


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rank.jsonl"
    writer = tape_file.TapeWriter(path, [((1, "acks", 0), (2, 3)), ((2, "acks", 0), (4,))])
    writer.flush()
    writer.close()
    path.write_bytes(path.read_bytes()[:-3])
    assert tape_file.read(path) == [((1, "acks", 0), (2, 3))]
