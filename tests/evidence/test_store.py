"""The store: locked, lossless, private, and tidy."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import pytest

from hicache_doctor.errors import InputError, UsageError
from hicache_doctor.evidence import rows as rows_module
from hicache_doctor.evidence.rows import ROW_TYPES, Artifact, Row, columns
from hicache_doctor.evidence.schema import column_types, unsigned
from hicache_doctor.evidence.store import Store

FULL: dict[type, Any] = {str: "Grüße 🏖️ 'quoted' \"x\"\n", int: -(2**62), float: 1.5e300, bool: True, dict: {"ü": None}}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the store's temporary folders go."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{file}'",
        "COPY artifact FROM '{file}'",
        "ATTACH '{file}' AS other",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/*')",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SET memory_limit = '100GB'",
        "RESET memory_limit",
        "SET temp_directory = '/'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM read_parquet('https://example.com/x.parquet')",
        "EXPORT DATABASE '{file}'",
    ],
)
def test_the_store_is_locked(tmp_path: Path, sql: str) -> None:
    with Store.create() as store, pytest.raises(duckdb.Error):
        store.rows(sql.format(file=tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_python_objects_of_ours_are_out_of_reach() -> None:
    import pandas as pd

    secret = pd.DataFrame({"a": [1]})
    with Store.create() as store, pytest.raises(duckdb.CatalogException):
        store.rows("SELECT * FROM secret")
    assert len(secret) == 1


@pytest.mark.parametrize("row_type", ROW_TYPES, ids=lambda t: t.table)
@pytest.mark.parametrize("full", [True, False])
def test_every_row_type_comes_back_as_it_went_in(row_type: type[Any], full: bool) -> None:
    # GIVEN a row with every column filled, or None wherever the type allows it
    types = column_types(row_type)
    values = dict.fromkeys(types)
    if full:
        values = {name: FULL[t] for name, t in types.items()} | dict.fromkeys(unsigned(row_type), 2**64 - 1)
    else:
        values = {name: {} if t is dict else None for name, t in types.items()}
    # WHEN it goes through the store
    with Store.create() as store:
        store.add([row_type(**values)])
        (back,) = store.rows(f"SELECT * FROM {row_type.table}")
    # THEN it is the same
    assert list(back) == columns(row_type)
    for name, t in types.items():
        got = json.loads(back[name]) if t is dict else back[name]
        assert got == values[name]


def test_the_row_types_are_all_there() -> None:
    tables = {t.table for t in vars(rows_module).values() if isinstance(t, type) and hasattr(t, "table")}
    assert {t.table for t in ROW_TYPES} == tables


def test_half_characters_are_survived() -> None:
    # GIVEN text that is no Unicode: half a pair, as JSON may hold it
    row = Artifact("a\ud800", "b\udfff.log", "text", 1, None, None, "all", "ok")
    sample = rows_module.Sample("a", 1, None, None, None, "x", 1.0, {"ü": "c\udc80"})
    with Store.create() as store:
        store.add([row, sample])
        (back,) = store.rows("SELECT * FROM artifact")
        assert store.value("SELECT (labels->>'ü') FROM sample") == "c\ufffd"
    # THEN it is stored with a sign in its place
    assert (back["id"], back["path"], back["note"]) == ("a\ufffd", "b\ufffd.log", "ok")


def test_rows_of_many_types_in_any_order() -> None:
    mixed: list[Row] = []
    for i in range(300):
        mixed.append(rows_module.Setting(f"k{i}", "v", "s", "a", i))
        mixed.append(rows_module.Sample("a", i, "PP0", 1, float(i), "rss_bytes", float(i)))
    with Store.create() as store:
        store.add(mixed)
        assert store.value("SELECT count(*) FROM setting") == 300
        assert store.value("SELECT sum(value) FROM sample") == sum(range(300))
        assert store.value("SELECT key FROM setting WHERE false") is None


def test_a_file_is_private_and_never_replaced(tmp_path: Path) -> None:
    file = tmp_path / "incident.duckdb"
    with Store.create(file) as store:
        store.add([Artifact("a", "a", "text", 1, None, None, "all", "")])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(UsageError, match="exists"):
        Store.create(file)
    with Store.open(file) as store:
        assert store.value("SELECT count(*) FROM artifact") == 1
        assert not store.copied
        with pytest.raises(duckdb.Error):
            store.rows("DELETE FROM artifact")
        with pytest.raises(duckdb.Error):
            store.rows("SELECT * FROM read_text('/etc/hostname')")


def test_a_file_without_its_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        Store.create(tmp_path / "no" / "incident.duckdb")


@pytest.mark.parametrize("content", [b"", b"no database at all\n" * 400, b"SQLite format 3\0" + bytes(4096)])
def test_what_is_no_database(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.duckdb"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.duckdb"):
        Store.open(file).close()


@pytest.mark.parametrize("name", ["missing.duckdb", "."])
def test_what_is_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="no such file"):
        Store.open(tmp_path / name)


_WRITER = """
import sys
from hicache_doctor.evidence.rows import Setting
from hicache_doctor.evidence.store import Store
store = Store.create(sys.argv[1])
store.add([Setting("pp_size", "2", "s", "a", 1)])
store.flush()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_file_that_another_process_writes_is_copied(tmp_path: Path, temporary: Path) -> None:
    # GIVEN a real process that holds the database open for writing
    file = tmp_path / "live.duckdb"
    command = [sys.executable, "-c", _WRITER, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None and writer.stdin is not None
        assert writer.stdout.readline() == "held\n"
        # WHEN it is opened, THEN what was flushed is there, from a copy
        with Store.open(file) as store:
            assert store.copied
            assert store.rows("SELECT key, value FROM setting") == [{"key": "pp_size", "value": "2"}]
        writer.stdin.close()
        assert writer.wait() == 0
    # AND the copy is gone
    assert list(temporary.iterdir()) == []


def test_the_time_limit_interrupts() -> None:
    endless = "SELECT count(*) FROM range(1000000000000) a WHERE a.range % 7 = 3 AND sqrt(a.range) > 1"
    with Store.create() as store:
        with pytest.raises(duckdb.InterruptException):
            store.rows(endless, seconds=0.05)
        assert store.value("SELECT 42") == 42


def test_a_limit_that_was_not_reached_interrupts_nothing() -> None:
    with Store.create() as store:
        assert [store.rows("SELECT 1 AS a", seconds=30) for _ in range(3)] == [[{"a": 1}]] * 3


def test_temporary_folders_go(tmp_path: Path, temporary: Path) -> None:
    with Store.create() as one, Store.create(tmp_path / "a.duckdb") as two:
        assert len(list(temporary.iterdir())) == 2
        one.rows("SELECT 1")
        two.rows("SELECT 1")
    assert list(temporary.iterdir()) == []
    (tmp_path / "bad.duckdb").write_bytes(b"x" * 5000)
    with pytest.raises(InputError):
        Store.open(tmp_path / "bad.duckdb")
    assert list(temporary.iterdir()) == []


def test_frames() -> None:
    with Store.create() as store:
        store.add([Artifact("a", "a", "text", 1, None, None, "all", "")])
        assert list(store.frame("artifact")["id"]) == ["a"]
        with pytest.raises(UsageError, match="artifact"):
            store.frame("artefact")
