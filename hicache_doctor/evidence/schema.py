"""The DuckDB schema, derived from the row types, so that a column is named in one place only."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from hicache_doctor.evidence.rows import ROW_TYPES, U64, Row, columns

if TYPE_CHECKING:
    import pyarrow as pa

_SQL = {str: "VARCHAR", int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN", dict: "JSON"}


def _base(annotation: Any) -> type:
    """The plain type behind ``X | None`` or ``dict[str, Any]``."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        annotation = next(a for a in typing.get_args(annotation) if a is not type(None))
        origin = typing.get_origin(annotation)
    base = origin or annotation
    assert isinstance(base, type)
    return base


def column_types(row_type: type[Any]) -> dict[str, type]:
    """Column name → Python type, in column order."""
    hints = typing.get_type_hints(row_type)
    return {name: _base(hints[name]) for name in columns(row_type)}


def unsigned(row_type: type[Any]) -> set[str]:
    """The columns of a row type that hold all 64 bits (``rows.U64``)."""
    hints = typing.get_type_hints(row_type, include_extras=True)
    return {name for name in columns(row_type) if hints[name] == U64}


def create_statements() -> list[str]:
    """One CREATE TABLE a row type. Column names are quoted: some are SQL words."""
    out = []
    for row_type in ROW_TYPES:
        wide = unsigned(row_type)
        types = {name: "UBIGINT" if name in wide else _SQL[t] for name, t in column_types(row_type).items()}
        cols = ", ".join(f'"{name}" {t}' for name, t in types.items())
        out.append(f"CREATE TABLE IF NOT EXISTS {row_type.table} ({cols})")
    return out


def to_arrow(rows: Sequence[Row]) -> pa.Table:
    """Rows of one type as an Arrow table (dicts become JSON text)."""
    kinds = column_types(type(rows[0]))
    table = {name: (t, [getattr(r, name) for r in rows]) for name, t in kinds.items()}
    return arrow_table(table, unsigned(type(rows[0])))


def dicts_to_arrow(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Derived rows as an Arrow table; a column's type is that of its first value, text when it has none."""
    table: dict[str, tuple[type, list[Any]]] = {}
    for name in rows[0]:
        values = [r.get(name) for r in rows]
        table[name] = (next((type(v) for v in values if v is not None), str), values)
    return arrow_table(table)


def arrow_table(columns: dict[str, tuple[type, list[Any]]], wide: Collection[str] = ()) -> pa.Table:
    """Columns of Python values as an Arrow table; the integers of ``wide`` columns are unsigned.

    Built from buffers: ``pyarrow.array`` of a list imports pandas, half a second that ``analyze`` has no use for.
    """
    import pyarrow as pa

    arrays = [_array(t, values, name in wide) for name, (t, values) in columns.items()]
    return pa.table(arrays, names=list(columns))


def _array(kind: type, values: list[Any], wide: bool) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    there = np.array([v is not None for v in values], dtype=bool)
    validity = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    n = len(values)
    if kind in (int, float):
        name = "float64" if kind is float else "uint64" if wide else "int64"
        arrow = pa.type_for_alias(name)
        numbers = np.array([0 if v is None else v for v in values], dtype=name)
        return pa.Array.from_buffers(arrow, n, [validity, pa.py_buffer(numbers)])
    if kind is bool:
        bits = np.packbits(np.array([bool(v) for v in values], dtype=bool), bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), n, [validity, pa.py_buffer(bits)])
    texts = [b"" if v is None else _text(v) for v in values]
    ends = np.zeros(n + 1, dtype=np.int64)
    np.cumsum([len(t) for t in texts], out=ends[1:])
    return pa.Array.from_buffers(pa.large_string(), n, [validity, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))])


def _text(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict) else str(value)
    try:
        return text.encode()
    except UnicodeEncodeError:  # half characters, as JSON may hold them: one row must not cost the incident
        return re.sub("[\ud800-\udfff]", "\ufffd", text).encode()
