"""What rules are told about probe events and what is recorded are the same."""

from __future__ import annotations

from typing import Any

import yaml

from hicache_doctor.probes.kinds import TABLES, Kind, tables
from hicache_doctor.shipped import rules_dir


def entries() -> list[dict[str, Any]]:
    loaded = yaml.safe_load((rules_dir() / "vocabulary" / "events.yaml").read_text(encoding="utf-8"))
    assert isinstance(loaded, list)
    return loaded


def test_every_kind_is_told_and_every_told_kind_exists() -> None:
    told = [e["kind"] for e in entries()]
    assert sorted(told) == sorted(k.name.lower() for k in Kind)
    assert len(set(told)) == len(told)


def test_the_fields_are_the_fields_of_a_record() -> None:
    for entry in entries():
        assert set(entry) <= {"kind", "key", "a", "b", "c", "d", "stream", "says", "order"}, entry
        assert entry["key"] and entry["says"], entry
        # a field is told only when those before it are
        told = [f for f in "abcd" if f in entry]
        assert told == list("abcd"[: len(told)]), entry


def test_numbers_fit_into_a_record_and_names_are_unique() -> None:
    assert max(Kind) < 1 << 16 and min(Kind) > 0
    for name, enum in TABLES.items():
        assert len(tables()[name]) == len(enum)
