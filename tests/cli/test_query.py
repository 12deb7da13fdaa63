"""A kept incident, asked in SQL: read-only, no files, no network, a time limit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from doctor import CRASH, Ran, one_line, process

import hicache_doctor

Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("db") / "incident.duckdb"
    assert process("analyze", CRASH, "--db", file).code == 0
    return file


def test_what_analyze_kept_can_be_asked(run: Run, db: Path) -> None:
    ran = run("query", db, "SELECT rank, count(*) AS n FROM batch GROUP BY rank ORDER BY rank", "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.out)
    assert document["schema_version"] == 1
    assert [r["rank"] for r in document["rows"]] == ["PP0", "PP1"]
    table = run("query", db, "SELECT rank, proof FROM rank_role")
    assert table.code == 0 and table.out.splitlines()[0].split() == ["rank", "proof"]
    assert "batch" in run("query", db, "SHOW TABLES").out
    assert run("query", db, "SELECT 1 WHERE false").out == "no rows\n"


def test_the_terminal_shows_so_many_rows(run: Run, db: Path) -> None:
    out = run("query", db, "SELECT * FROM range(10)", "--rows", "3").out
    assert out.rstrip().endswith("… 7 more rows")
    assert (
        len(json.loads(run("query", db, "SELECT * FROM range(10)", "--rows", "3", "--format", "json").out)["rows"])
        == 10
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/*')",
        "COPY batch TO '{out}'",
        "COPY (SELECT 1) TO '{out}' (FORMAT parquet)",
        "EXPORT DATABASE '{out}'",
        "ATTACH '{out}' AS other",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "PRAGMA enable_external_access=true",
        "CREATE TABLE x AS SELECT 1",
        "DELETE FROM batch",
        "DROP TABLE batch",
        "UPDATE batch SET rank = 'x'",
        "SELECT getenv('HOME')",
        "SELECT 1; COPY batch TO '{out}'",
        "nonsense",
        "",
    ],
)
def test_what_reaches_outside_or_writes_is_refused(run: Run, db: Path, tmp_path: Path, sql: str) -> None:
    before = db.read_bytes()
    ran = run("query", db, sql.format(out=tmp_path / "out"))
    assert "Traceback" not in ran.err and "root:" not in ran.out
    if sql:
        assert ran.code == 2 and one_line(ran.err)
    assert not (tmp_path / "out").exists()
    assert db.read_bytes() == before


def test_a_query_ends_at_its_time_limit(run: Run, db: Path) -> None:
    endless = (
        "SELECT count(*) FROM range(100000) a, range(100000) b, range(100000) c WHERE a.range * b.range % 7 = c.range"
    )
    ran = run("query", db, endless, "--time-limit", "0.2")
    assert ran.code == 2
    assert one_line(ran.err) and "longer than 0.2 s" in ran.err


def test_memory_has_a_limit(run: Run, db: Path) -> None:
    ran = run("query", db, "SELECT list(range) FROM range(2000000000)", "--time-limit", "20")
    assert ran.code == 2 and one_line(ran.err)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: None, "no such file"),
        (lambda p: p.write_bytes(b"no database" * 100), "incident database"),
        (lambda p: p.write_bytes(b""), ""),
        (lambda p: p.mkdir(), "no such file"),
    ],
)
def test_what_is_no_database(run: Run, tmp_path: Path, make: Callable[[Path], object], text: str) -> None:
    file = tmp_path / "x.duckdb"
    make(file)
    ran = run("query", file, "SELECT * FROM batch")
    assert ran.code in (2, 3) and one_line(ran.err) and text in ran.err


def test_escapes_in_data_are_shown_not_sent(run: Run, db: Path) -> None:
    ran = run("query", db, "SELECT chr(27) || '[31mred' AS x, chr(27) AS \"\x1b[5m\"")
    assert ran.code == 0 and "\x1b" not in ran.out and "\\x1b[31mred" in ran.out


def test_a_notebook_opens_the_same_file(db: Path) -> None:
    with hicache_doctor.open(db) as store:
        frame = store.frame("batch")
    assert set(frame["rank"]) == {"PP0", "PP1"}
