"""The DuckDB schema, derived from the row types, so that a column is named in one place only."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hicache_doctor.evidence.rows import ROW_TYPES, Row, columns

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


def create_statements() -> list[str]:
    """One CREATE TABLE a row type. Column names are quoted: some are SQL words."""
    out = []
    for row_type in ROW_TYPES:
        cols = ", ".join(f'"{name}" {_SQL[t]}' for name, t in column_types(row_type).items())
        out.append(f"CREATE TABLE IF NOT EXISTS {row_type.table} ({cols})")
    return out


def to_arrow(rows: Sequence[Row]) -> pa.Table:
    """Rows of one type as an Arrow table (dicts become JSON text)."""
    import pyarrow as pa

    arrow = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), dict: pa.string()}
    row_type = type(rows[0])
    arrays, names = [], []
    for name, t in column_types(row_type).items():
        values = [getattr(r, name) for r in rows]
        if t is dict:
            values = [json.dumps(v, ensure_ascii=False, default=str) for v in values]
        elif t is float:
            values = [None if v is None else float(v) for v in values]
        try:
            arrays.append(pa.array(values, type=arrow[t]))
        except UnicodeEncodeError:  # half characters, as JSON may hold them: one row must not cost the incident
            arrays.append(pa.array([_whole(v) for v in values], type=arrow[t]))
        names.append(name)
    return pa.table(arrays, names=names)


def _whole(value: str | None) -> str | None:
    return None if value is None else re.sub("[\ud800-\udfff]", "\ufffd", value)
