"""Advice that is in force already is said to be."""

from __future__ import annotations

from typing import Any

import pytest

from hicache_doctor.signatures.advice import already_set


@pytest.mark.parametrize(
    "command, settings, same",
    [
        ("--hicache-ratio 3 --mem-fraction-static 0.80", {"hicache_ratio": 3.0}, ["--hicache-ratio 3"]),
        ("--hicache-ratio 3 --mem-fraction-static 0.80", {"hicache_ratio": 2.0, "mem_fraction_static": "0.9"}, []),
        (
            "--hicache-write-policy=write_through",
            {"hicache_write_policy": "write_through"},
            ["--hicache-write-policy write_through"],
        ),
        ("SGLANG_X=1 <launch command>", {"SGLANG_X": "1"}, ["SGLANG_X=1"]),
        ("SGLANG_X=1 <launch command>", {"SGLANG_X": "True"}, ["SGLANG_X=1"]),
        ("remove --hicache-storage-backend file", {"hicache_storage_backend": "file"}, []),
        ("--hicache-ratio 3", {"hicache_ratio": None}, []),
        (None, {"hicache_ratio": 3}, []),
    ],
)
def test_already_set(command: str | None, settings: dict[str, Any], same: list[str]) -> None:
    assert already_set(command, settings) == same
