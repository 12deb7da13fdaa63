"""The verdict as JSON, and the JSON Schema of that contract.

Keys come in the order of the model, those of free mappings sorted, so that equal verdicts give equal bytes. The text is
valid UTF-8 and safe to print: what :mod:`.clean` would show as an escape is written as a JSON ``\\u`` escape.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hicache_doctor.report.clean import is_unseen
from hicache_doctor.signatures.verdict import Verdict, json_schema

SCHEMA_FILE = "verdict.schema.json"


def render_json(verdict: Verdict) -> str:
    """The JSON document (RFC 8259), indented by one, ending with a newline. Nothing is lost but NaN (null)."""
    text = json.dumps(_plain(verdict), indent=1, ensure_ascii=False, allow_nan=False)
    # Between its strings a JSON document has no unseen character but the newlines of the indent.
    return "".join(c if c == "\n" or not is_unseen(c) else _u(c) for c in text) + "\n"


def schema_text() -> str:
    """The text of ``rules/verdict.schema.json``."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def write_schema(folder: Path) -> Path:
    """Write the schema into ``folder`` (the ``rules/`` of a checkout); for developers, after a change of the model."""
    path = folder / SCHEMA_FILE
    path.write_text(schema_text(), encoding="utf-8")
    return path


def _u(char: str) -> str:
    code = ord(char)
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"


def _plain(value: Any) -> Any:
    """Only what JSON knows; model fields in their order, mapping keys sorted."""
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {str(k): _plain(value[k]) for k in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(v) for v in value), key=repr)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)
