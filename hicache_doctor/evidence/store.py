"""The one store of an incident: a DuckDB database, in memory or in a file.

The connection is locked as soon as it is set up: external access off and the configuration frozen, so that SQL from
rules or users can neither read nor write files, load extensions or reach the network. Rows enter in bulk through Arrow.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hicache_doctor.errors import InputError, UsageError
from hicache_doctor.evidence.rows import Row
from hicache_doctor.evidence.schema import create_statements, dicts_to_arrow, to_arrow

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import pyarrow as pa

DEFAULT_MEMORY = "1GiB"
THREADS = 2
FLUSH_ROWS = 50_000
# From about four row groups on an insert goes straight into the file; smaller ones pass through the WAL as well.
LARGE_INSERT = 1 << 19


class Store:
    """An open incident database. Use :meth:`create` or :meth:`open`; close it, or use it as a context manager."""

    def __init__(self, con: duckdb.DuckDBPyConnection, folder: Path, path: Path | None) -> None:
        self.con = con
        self.path = path
        self._folder = folder
        self._pending: dict[type, list[Row]] = {}

    # -- opening and closing ------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | Path | None = None, *, memory: str = DEFAULT_MEMORY) -> Store:
        """A new, empty store; ``path`` None keeps it in memory. The file gets mode 0600 and must not exist.

        Raises:
            UsageError: the file exists or cannot be created.
        """
        file = None if path is None else Path(path)
        if file is not None:
            if file.exists():
                raise UsageError(f"{file} exists; choose another name for --db, or remove it first")
            if not file.parent.is_dir():
                raise UsageError(f"{file.parent} is no folder; create it first")
        store = cls._connect(file, memory=memory, read_only=False)
        if file is not None:
            os.chmod(file, 0o600)
        for statement in create_statements():
            store.con.execute(statement)
        store._lock()
        return store

    @classmethod
    def open(cls, path: str | Path, *, memory: str = DEFAULT_MEMORY) -> Store:
        """Open a kept database read-only; one that another process is writing is copied first (``copied`` tells).

        Raises:
            InputError: no such file, or no DuckDB database.
        """
        import duckdb

        file = Path(path)
        if not file.is_file():
            raise InputError(f"{file}: no such file; `analyze … --db FILE` writes one")
        try:
            store = cls._connect(file, memory=memory, read_only=True)
        except duckdb.IOException as e:
            if "lock" not in str(e).lower():
                raise InputError(f"{file}: cannot be opened as an incident database ({_first_line(e)})") from None
            store = cls._open_copy(file, memory)
        except duckdb.Error as e:
            raise InputError(f"{file}: is no incident database ({_first_line(e)})") from None
        store._lock()
        return store

    copied = False

    @classmethod
    def _open_copy(cls, file: Path, memory: str) -> Store:
        folder = Path(tempfile.mkdtemp(prefix="hicache-doctor-copy-"))
        copy = folder / file.name
        shutil.copyfile(file, copy)
        wal = file.with_name(file.name + ".wal")
        if wal.exists():
            shutil.copyfile(wal, folder / wal.name)
        store = cls._connect(copy, memory=memory, read_only=False)
        store.copied = True
        store._copy = folder
        return store

    _copy: Path | None = None

    @classmethod
    def _connect(cls, file: Path | None, *, memory: str, read_only: bool) -> Store:
        import duckdb

        folder = Path(tempfile.mkdtemp(prefix="hicache-doctor-"))
        config: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": memory,
            "threads": str(THREADS),
            "temp_directory": str(folder),
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
        try:
            con = duckdb.connect(":memory:" if file is None else str(file), read_only=read_only, config=config)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(con, folder, file)

    def _lock(self) -> None:
        # Order matters: once the configuration is locked nothing can be switched back on.
        self.con.execute("SET python_enable_replacements = false")
        self.con.execute("SET enable_external_access = false")
        self.con.execute("SET lock_configuration = true")

    def close(self) -> None:
        """Flush, close and remove the temporary folders."""
        with contextlib.suppress(Exception):
            self.flush()
        self.con.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._copy is not None:
            shutil.rmtree(self._copy, ignore_errors=True)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- writing ------------------------------------------------------------------------------------------------

    def add(self, rows: Iterable[Row]) -> None:
        """Buffer rows of any mixture of types; they are inserted in bulk."""
        for row in rows:
            pending = self._pending.setdefault(type(row), [])
            pending.append(row)
            if len(pending) >= FLUSH_ROWS:
                self._insert(type(row).table, to_arrow(pending))
                pending.clear()

    def add_table(self, table: str, data: pa.Table) -> None:
        """Insert an Arrow table whose columns are those of ``table`` (by name)."""
        self._insert(table, data)

    def add_tables(self, table: str, pieces: Iterable[pa.Table]) -> int:
        """Insert Arrow tables of one schema, many pieces at a time; returns how many rows they were."""
        import pyarrow as pa

        pending: list[pa.Table] = []
        rows = waiting = 0
        for piece in pieces:
            pending.append(piece)
            waiting += piece.num_rows
            if waiting >= LARGE_INSERT:
                self._insert(table, pa.concat_tables(pending).unify_dictionaries())
                rows, waiting = rows + waiting, 0
                pending.clear()
        if pending:
            self._insert(table, pa.concat_tables(pending).unify_dictionaries())
        return rows + waiting

    def fill(self, table: str, rows: Sequence[dict[str, Any]]) -> None:
        """Insert derived rows (dicts keyed by column) into ``table``."""
        if rows:
            self._insert(table, dicts_to_arrow(rows))

    def flush(self) -> None:
        """Insert what is buffered."""
        for row_type, pending in self._pending.items():
            if pending:
                self._insert(row_type.table, to_arrow(pending))  # type: ignore[attr-defined]
                pending.clear()

    def _insert(self, table: str, data: pa.Table) -> None:
        self.con.register("incoming", data)
        try:
            self.con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
        finally:
            self.con.unregister("incoming")

    # -- asking -------------------------------------------------------------------------------------------------

    def rows(self, sql: str, params: Sequence[Any] = (), *, seconds: float | None = None) -> list[dict[str, Any]]:
        """The result of ``sql`` as dicts; interrupted after ``seconds``.

        Raises:
            duckdb.Error: the SQL is wrong, forbidden, or ran out of time or memory.
        """
        self.flush()
        with self._limit(seconds):
            cursor = self.con.execute(sql, list(params))
            if cursor.description is None:
                return []
            names = [d[0] for d in cursor.description]
            return [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]

    def value(self, sql: str, params: Sequence[Any] = ()) -> Any:
        """The first column of the first row, or None."""
        self.flush()
        # fetchall, not fetchone: an open result blocks the next write.
        rows = self.con.execute(sql, list(params)).fetchall()
        return rows[0][0] if rows else None

    def frame(self, table: str) -> pd.DataFrame:
        """A whole table or view as a pandas frame.

        Raises:
            UsageError: no such table.
        """
        self.flush()
        known = {r["name"] for r in self.rows("SELECT table_name AS name FROM information_schema.tables")}
        if table not in known:
            raise UsageError(f"no table {table!r}; there are: {', '.join(sorted(known))}")
        return self.con.execute(f'SELECT * FROM "{table}"').df()

    @contextlib.contextmanager
    def _limit(self, seconds: float | None) -> Iterator[None]:
        if seconds is None:
            yield
            return
        timer = threading.Timer(seconds, self.con.interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["unknown error"])[0]
