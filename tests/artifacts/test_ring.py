"""Rings as artefacts: in folders and archives, damaged in any way."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_doctor.artifacts import vocabulary
from hicache_doctor.artifacts.inventory import Read, read_all
from hicache_doctor.evidence.rows import Rank, Sample, Setting
from hicache_doctor.incident import Options, Result, analyze
from hicache_doctor.probes import ring
from tests.probes.rings import wrote

WORDS = vocabulary.load()
SLOTS = 40
OWNER = ring.Owner("node0", "boot", 4711, 99, 3, "PP1 TP1", pp=1, tp=1, sizes={"pp_size": 2, "tp_size": 2, "odd": 1})
SALT = 0x5A17_0000_0001


def small(good: int = 30, base: int = 0) -> bytes:
    """A segment of ``SLOTS`` slots of which the first ``good`` are committed."""
    head = ring.pack(
        OWNER, slots=SLOTS, segment=0, base=base, salt=SALT, clocks=(10**18, 10**9), tables={"kind": {2: "step"}}
    )
    slots = [
        ring.RECORD.pack(10**9 + i, i, 2, 1, i, i, -i, 0, 0) + ring.WORD.pack(SALT + 64 * (base + i))
        for i in range(good)
    ]
    return head + b"".join(slots) + bytes(64 * (SLOTS - good))


WHOLE = small()
HEAD = ring.parse(WHOLE).size


def read(path: Path) -> Read:
    (found,) = read_all([str(path)], WORDS, spool=path.parent, stdin=None)
    return found


def read_bytes(data: bytes, folder: Path) -> Read:
    path = folder / "x"
    path.write_bytes(data)
    return read(path)


def events(found: Read) -> list[dict[str, Any]]:
    assert {t.table for t in found.tables} <= {"event"}
    return [row for t in found.tables for piece in t.pieces for row in piece.to_pylist()]


def test_a_ring_gives_its_rank_its_grid_and_its_events(tmp_path: Path) -> None:
    found = read_bytes(small(base=100), tmp_path)
    entry = found.artifact
    assert (entry.kind, entry.reader, entry.read, entry.note) == ("ring", "ring", "all", "PP1 TP1: 30 events")
    (home,) = [r for r in found.rows if isinstance(r, Rank)]
    assert (home.id, home.host, home.pid, home.dp, home.pp, home.cp, home.tp) == ("PP1 TP1", "node0", 4711, 0, 1, 0, 1)
    assert {(r.key, r.value) for r in found.rows if isinstance(r, Setting)} == {("pp_size", "2"), ("tp_size", "2")}
    counts = {r.name: r.value for r in found.rows if isinstance(r, Sample)}
    assert counts == {"ring_before": 100, "ring_torn": 0, "ring_lost": 0}
    rows = events(found)
    assert [r["seq"] for r in rows] == list(range(100, 130)) and [r["record"] for r in rows] == list(range(30))
    assert (rows[7]["kind"], rows[7]["ts_ns"], rows[7]["b"]) == ("step", 10**18 + 7, -7)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (WHOLE[:20], "truncated in the header: 20 bytes"),
        (WHOLE[:70], "truncated in the header: 70 of 4096 bytes"),
        (b"HCDRING\2" + WHOLE[8:], "ring format 2 at byte 7"),
        (WHOLE[:8] + struct.pack("<I", 1 << 31) + WHOLE[12:], "a header size of 2147483648 at byte 8"),
        (WHOLE[:12] + struct.pack("<I", 0) + WHOLE[16:], "a record size of 0 at byte 12"),
        (WHOLE[:16] + struct.pack("<Q", 1 << 60) + WHOLE[24:], "its checksum at byte 60"),
        (WHOLE[:56] + struct.pack("<I", 1 << 31) + WHOLE[60:], "2147483648 bytes of JSON at byte 56"),
        (WHOLE[:100] + b"\0" + WHOLE[101:], "its checksum at byte 60"),
    ],
)
def test_a_damaged_header_is_one_note_that_says_where(tmp_path: Path, change: bytes, note: str) -> None:
    found = read_bytes(change, tmp_path)
    assert note in found.artifact.note and found.artifact.read == "none"
    assert not found.rows and not found.tables


def forged(body: bytes, slots: int = SLOTS) -> bytes:
    """A header whose checksum holds around any JSON."""
    fixed = [ring.MAGIC, 1, 4096, 64, slots, 0, 0, SALT, 0, len(body), 0]
    fixed[-1] = zlib.crc32(ring.FIXED.pack(*fixed) + body)
    return (ring.FIXED.pack(*fixed) + body).ljust(4096, b"\0")


TRUE = json.loads(WHOLE[64:HEAD].rstrip(b"\0"))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b"null", b"\xff\xfe", b"[" * 3900, b'{"host": 1}',
        *(
            json.dumps({**TRUE, **wrong}).encode()
            for wrong in (
                {"host": 5}, {"rank": -1}, {"rank": "0"}, {"pid": 1e9}, {"pid": 2**70}, {"tables": []},
                {"tables": {"kind": {"x": "y"}}}, {"tables": {"kind": {"1": 2}}}, {"sizes": {"a": None}},
                {"wall_ns": None}, {"dp": True},
            )
        ),
    ],
)  # fmt: skip
def test_garbage_in_a_header_whose_checksum_holds_is_one_note(tmp_path: Path, body: bytes) -> None:
    found = read_bytes(forged(body) + WHOLE[HEAD:], tmp_path)
    assert "its JSON at byte 64 is not understood" in found.artifact.note and found.artifact.read == "none"


def test_absurd_sizes_allocate_nothing(tmp_path: Path) -> None:
    good = json.dumps(TRUE).encode()
    assert "absurd counts" in read_bytes(forged(good, 1 << 60), tmp_path).artifact.note
    found = read_bytes(forged(good, 1 << 40) + WHOLE[HEAD:], tmp_path)
    assert "truncated: 40 of 1099511627776 slots" in found.artifact.note and len(events(found)) == 30


def test_unprintable_names_are_not_shown(tmp_path: Path) -> None:
    found = read_bytes(forged(json.dumps({**TRUE, "label": "PP0\x1b[31m" + "x" * 999}).encode()), tmp_path)
    (home,) = [r for r in found.rows if isinstance(r, Rank)]
    assert home.id.startswith("PP0?[31mxxx") and len(home.id) == 255


def test_a_ring_that_was_cut_short_gives_what_is_there(tmp_path: Path) -> None:
    found = read_bytes(WHOLE[: HEAD + 64 * 10 + 30], tmp_path)
    assert found.artifact.read == "part" and "truncated: 10 of 40 slots" in found.artifact.note
    assert len(events(found)) == 10


def test_torn_records_are_counted_in_the_note(tmp_path: Path) -> None:
    data = bytearray(WHOLE)
    at = HEAD + 64 * 12 + ring.COMMIT_AT
    data[at : at + 8] = bytes(8)
    data[HEAD + 64 * 30] = 1  # begun behind the last record
    found = read_bytes(bytes(data), tmp_path)
    assert "28" not in found.artifact.note and found.artifact.note == "PP1 TP1: 29 events; 2 torn record(s) left out"
    assert [e["seq"] for e in events(found)] == [*range(12), *range(13, 30)]


@settings(max_examples=150)
@given(
    st.integers(0, SLOTS),
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=200)), max_size=6),
    st.integers(0, len(WHOLE)),
)
def test_no_corruption_raises_or_makes_a_record(
    tmp_path_factory: pytest.TempPathFactory, good: int, spots: list[tuple[int, bytes]], cut: int
) -> None:
    data = bytearray(small(good))
    for at, junk in spots:
        data[at : at + len(junk)] = junk
    folder = tmp_path_factory.mktemp("ring")
    found = read_bytes(bytes(data[: len(data) - cut // 7]), folder)
    assert "our reader failed" not in found.artifact.note
    rows = events(found) if found.tables else []
    assert {r["record"] for r in rows} <= set(range(good))
    assert all(r["seq"] == r["record"] for r in rows)


@settings(max_examples=100)
@given(st.permutations(range(SLOTS)))
def test_slots_that_changed_places_are_no_records(tmp_path_factory: pytest.TempPathFactory, order: list[int]) -> None:
    slots = [WHOLE[HEAD + 64 * i : HEAD + 64 * (i + 1)] for i in order]
    found = read_bytes(WHOLE[:HEAD] + b"".join(slots), tmp_path_factory.mktemp("ring"))
    assert [r["record"] for r in events(found)] == [i for i, slot in enumerate(order) if i == slot < 30]


# -- whole incidents ---------------------------------------------------------------------------------------------------


def grid(folder: Path, count: int = 250, **options: Any) -> None:
    for rank, (pp, tp) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        sizes = {"pp_size": 2, "tp_size": 2}
        label = f"PP{pp} TP{tp}"
        wrote(folder, count, rank=rank, label=label, pp=pp, tp=tp, sizes=sizes, segment_slots=100, **options)


def counts(result: Result) -> dict[str, tuple[int, int]]:
    sql = "SELECT rank, count(*) AS n, count(DISTINCT seq) AS own FROM event GROUP BY 1 ORDER BY 1"
    return {r["rank"]: (r["n"], r["own"]) for r in result.store.rows(sql)}


def test_a_folder_and_its_archive_give_the_same(tmp_path: Path) -> None:
    grid(tmp_path / "rings")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(tmp_path / "rings", "rings")
    (tmp_path / "all.tgz").write_bytes(gzip.compress(packed.getvalue()))
    columns = "rank, seq, record, step, thread, kind, key, a, b, c, d, ts_ns"
    got = []
    for what in ("rings", "all.tgz"):
        result = analyze([str(tmp_path / what)])
        with result.store:
            got.append(result.store.rows(f"SELECT {columns} FROM event ORDER BY rank, seq"))
            ranks = result.store.rows("SELECT id, host, pid, pp, tp, number FROM rank ORDER BY number")
            assert [r["id"] for r in ranks] == ["PP0 TP0", "PP0 TP1", "PP1 TP0", "PP1 TP1"]
            assert result.verdict.ranks.expected == 4 and not result.verdict.ranks.missing
            assert result.readable
    assert got[0] == got[1] and len(got[0]) == 1000


def test_a_single_compressed_ring_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(WHOLE))
    assert len(events(read(tmp_path / "x.gz"))) == 30


def test_copies_add_only_what_the_others_lack(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "r").write_bytes(small(20))
    (tmp_path / "b" / "r").write_bytes(small(30))
    (tmp_path / "c").write_bytes(small(15, base=20))
    result = analyze([str(tmp_path)])
    with result.store:
        assert counts(result) == {"PP1 TP1": (35, 35)}
        notes = {i.artifact.rpartition("/")[0] or i.artifact: i.note for i in result.verdict.inventory}
        assert "a copy of records that another file holds" in notes["a"]


def test_of_two_processes_of_a_rank_the_last_is_diagnosed_or_the_one_asked_for(tmp_path: Path) -> None:
    wrote(tmp_path, 10)
    wrote(tmp_path, 7)
    for life, wanted in ((None, 7), (1, 10), (2, 7)):
        result = analyze([str(tmp_path)], Options(life=life))
        with result.store:
            assert counts(result) == {"PP0 TP0": (wanted, wanted)}
            assert sum("process of this rank: not used" in i.note for i in result.verdict.inventory) == 1


def test_events_are_under_the_label_that_their_rank_has_in_the_logs(tmp_path: Path) -> None:
    # GIVEN a log that names ranks by their stage alone
    line = (
        "Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 0, token usage: 0.1, #running-req: 0, #queue-req: 0"
    )
    (tmp_path / "server.log").write_text(f"[2026-05-28 02:00:00 PP0] {line}\n[2026-05-28 02:00:00 PP1] {line}\n")
    for rank in range(2):
        wrote(tmp_path, 5, rank=rank, label=f"PP{rank} TP0", pp=rank)
    result = analyze([str(tmp_path)])
    with result.store:
        assert counts(result) == {"PP0": (5, 5), "PP1": (5, 5)}
        assert {r["id"] for r in result.store.rows("SELECT id FROM rank")} == {"PP0", "PP1"}
