"""Kinds by content."""

from __future__ import annotations

import io
import json
import pickle
import sqlite3
import struct
import tarfile
import zipfile
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.artifacts.sniff import sniff, unicode_of

LINE = "[2026-06-04 03:40:05 PP0 TP0] Prefill batch, #new-seq: 1, #new-token: 14033, token usage: 0.31\n"
RECORDER = {
    "version": "2.9",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {},
    "entries": [{"record_id": 0, "profiling_name": "nccl:broadcast", "state": "scheduled"}],
}


def elf(kind: int, *, big: bool = False) -> bytes:
    return b"\x7fELF\2" + (b"\2" if big else b"\1") + bytes(10) + struct.pack(">H" if big else "<H", kind) + bytes(46)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        raise AssertionError("never called when sniffing")


CASES: list[tuple[str, bytes]] = [
    ("empty", b""),
    ("text", LINE.encode() * 10),
    ("text", "[2026-06-04] Übergröße 中文 日志\n".encode()),
    ("text", "Größe nicht gefunden, Gerät überlastet\n".encode("latin-1") * 5),
    ("text", "缓存未命中 预取失败\n".encode("gbk") * 5),
    ("text", b"\xef\xbb\xbf" + LINE.encode()),
    ("text", b"\0" * 3000 + LINE.encode() * 50),
    ("text", b"\x1b[32mINFO\x1b[0m started\n" * 5),
    ("text", b"{'model_path': '/opt/models', 'api_key': None}\n"),
    ("text", b'["INFO"] a logger that likes brackets\nmore\n'),
    ("text", b"[1] 4711 segmentation fault\n[2] 4712 killed\n"),
    ("text", b"# HELP sglang:token_usage The token usage\nsglang:token_usage 0.31\n"),
    ("utf16", LINE.encode("utf-16")),
    ("utf16", b"\xfe\xff" + LINE.encode("utf-16-be")),
    ("utf16", LINE.encode("utf-16-le")),
    ("utf16", LINE.encode("utf-32")),
    ("binary", bytes(range(256)) * 4),
    ("binary", bytes(4096)),
    ("json", b'{"a": 1}'),
    ("json", b'{\n  "a": [\n    1,\n'),
    ("json", b'[{"a": 1}, {"a": 2}'),
    ("json", b"[1, 2, 3]"),
    ("json", b"[\n  1.5,\n  2\n]\n"),
    ("jsonl", b'{"log": "a"}\n{"log": "b"}\n'),
    ("jsonl", b'{"log": "a"}\n\n{"log": "cut'),
    ("flight_recorder_json", json.dumps(RECORDER).encode()),
    ("flight_recorder_json", json.dumps(RECORDER, indent=1).encode()),
    ("elf_core", elf(4)),
    ("elf_core", elf(4, big=True)),
    ("elf", elf(2)),
    ("hdf5", b"\x89HDF\r\n\x1a\n" + bytes(100)),
    ("png", b"\x89PNG\r\n\x1a\n" + bytes(100)),
    ("jpeg", b"\xff\xd8\xff\xe0" + bytes(100)),
    ("pdf", b"%PDF-1.7\n"),
    ("ring", b"HCDRING\1" + bytes(100)),
    ("7z", b"7z\xbc\xaf\x27\x1c" + bytes(100)),
    ("rar", b"Rar!\x1a\x07\x01\x00" + bytes(100)),
    ("gzip", b"\x1f\x8b\x08\0"),
    ("zstd", b"\x28\xb5\x2f\xfd\x04"),
    ("xz", b"\xfd7zXZ\x00\x00\x04"),
    ("bz2", b"BZh91AY&SY"),
]


@pytest.mark.parametrize(("kind", "head"), CASES)
def test_kinds(kind: str, head: bytes) -> None:
    assert sniff(head, "whatever.txt") == kind


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_are_named_and_recorder_dumps_told_apart(protocol: int) -> None:
    for plain in ([1, 2], {"a": 1}, [], [{"step": 1}], ("x", 2)):
        got = sniff(pickle.dumps(plain, protocol), "x.pkl")
        assert got == "pickle" or (protocol < 2 and got in ("text", "binary")), plain
    assert sniff(pickle.dumps([], protocol), "") == "pickle" or protocol < 2
    assert sniff(pickle.dumps(RECORDER, max(protocol, 2)), "nccl_trace_rank_0") == "flight_recorder"


@pytest.mark.parametrize("protocol", range(6))
def test_recorders_of_version_1_and_crash_dumps(protocol: int) -> None:
    first = {"profiling_name": "nccl:all_reduce", "input_sizes": [[1]], "state": "completed", "frames": []}
    assert sniff(pickle.dumps([first], max(protocol, 2)), "nccl_trace_rank_0") == "flight_recorder"
    crash = {"server_args": None, "requests": [], "launch_command": "x"}
    assert sniff(pickle.dumps(crash, protocol), "crash_dump.pkl") == "crash_pickle"


def test_old_pickles() -> None:
    assert sniff(b"(lp0\nI1\naI2\na.", "") == "pickle"
    assert sniff(b"(dp0\nVa\np1\nI1\ns.", "") == "pickle"
    assert sniff(pickle.dumps([1, 2], 1), "") == "pickle"
    assert sniff(pickle.dumps({"a": 1}, 1), "") == "pickle"


def test_databases_and_tables(tmp_path: Path) -> None:
    duckdb.connect(str(tmp_path / "d")).execute("create table t as select 1").close()
    with sqlite3.connect(tmp_path / "s") as db:
        db.execute("create table t (a)")
    db.close()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "p")
    assert {n: sniff((tmp_path / n).read_bytes()[:65536], n) for n in "dsp"} == {
        "d": "duckdb",
        "s": "sqlite",
        "p": "parquet",
    }


def test_archives() -> None:
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=kind) as t:
            t.addfile(tarfile.TarInfo("a"))
        assert sniff(out.getvalue(), "") == "tar"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("a", "b")
    assert sniff(out.getvalue(), "") == "zip"


@given(st.binary(max_size=3000))
def test_no_bytes_raise(head: bytes) -> None:
    assert sniff(head, "x")
    unicode_of(head)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=300))
def test_text_is_never_binary(text: str) -> None:
    assert sniff(("[2026-01-01] " + text).encode(), "x") == "text"
