"""How a probe event is said: the names of its numbers and the words for their values, from the vocabulary of events.

A decision is told as ``queue write, tokens 64, why no_room``: labels of the vocabulary, no sentence of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

COLUMNS = ("key", "a", "b", "c", "d")
# Places in a stream and what is no decision: they only repeat the ordinal or differ by nature.
UNSAID = {"ordinal", "index", "last_access", "seq", "site", "microbatch"}
SITED = {"collective", "collective_end", "send", "recv", "recv_end"}


def text_of(kinds: list[dict[str, Any]], words: list[dict[str, Any]]) -> Callable[[str], str]:
    """A function from the alias of ``event`` in a statement to the SQL expression for what the event says."""
    tables = {name: table for entry in words for name, table in entry.items()}

    def expression(alias: str) -> str:
        cases = " ".join(f"WHEN '{kind['kind']}' THEN {_said(kind, tables, alias)}" for kind in kinds)
        return f"CASE {alias}.kind {cases} END" if cases else "NULL"

    return expression


def _said(kind: dict[str, Any], tables: dict[str, dict[int, str]], alias: str) -> str:
    parts = []
    # What kind of thing it is comes first, where `a` says so.
    for column in ("a", "key", "b", "c", "d") if kind.get("a") in tables else COLUMNS:
        name = kind.get(column)
        if name is None or name == "none":
            continue
        if name in UNSAID and not (name == "site" and kind["kind"] in SITED):
            continue
        parts.append(f"'{name} ' || {_value(name, column, tables, alias, start=kind['kind'] == 'start')}")
    return "concat_ws(', ', " + ", ".join(parts) + ")" if parts else "''"


def _value(name: str, column: str, tables: dict[str, dict[int, str]], alias: str, *, start: bool) -> str:
    at = f'{alias}."{column}"'
    table = tables.get(name)
    if table is not None:
        listed = ", ".join(f"'{table.get(n, n)}'" for n in range(max(table) + 1))
        return f"coalesce(([{listed}])[try_cast({at} AS BIGINT) + 1], CAST({at} AS VARCHAR))"
    if column == "key" and not start:
        # Hashes are told in hexadecimal, requests by their number.
        return f"CASE WHEN {at} BETWEEN 0 AND 999999999 THEN CAST({at} AS VARCHAR) ELSE lower(hex({at})) END"
    return f"CAST({at} AS VARCHAR)"
