"""What the user may say: settings, release, ranks, lives and times, and what each changes in the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doctor import CRASH, Ran

Run = Callable[..., Ran]
BATCH = (
    "Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 0, token usage: 0.01, #running-req: 0, #queue-req: 0,"
)


def asked(run: Run, *args: str | Path) -> dict[str, Any]:
    ran = run("analyze", *args, "--format", "json")
    assert ran.code == 0, ran.err
    document: dict[str, Any] = json.loads(ran.out)
    return document


def rows(run: Run, db: Path, sql: str) -> list[list[Any]]:
    return [list(r.values()) for r in json.loads(run("query", db, sql, "--format", "json").out)["rows"]]


@pytest.fixture
def lives(tmp_path: Path) -> Path:
    """A process that died, was started again, and works."""
    out = []
    for hour, usage in ((3, "0.11"), (5, "0.22")):
        stamp = f"[2026-06-04 0{hour}:%02d:00 PP0 TP0] "
        bodies = ["Init torch distributed begin.", BATCH.replace("0.01", usage), BATCH.replace("0.01", usage)]
        out += [stamp % i + body for i, body in enumerate(bodies)]
        if hour == 3:
            out.append(stamp % 9 + "Scheduler hit an exception: Traceback (most recent call last):")
            out += ['  File "/sgl/sglang/srt/managers/scheduler.py", line 3, in f', "ValueError: first life"]
    file = tmp_path / "pod-7.txt"
    file.write_text("\n".join(out) + "\n")
    return file


def test_settings_and_the_release_beat_what_the_artefacts_say(run: Run) -> None:
    shown = asked(run, CRASH, "--set", "page_size=7", "--set", "hicache_size = 12", "--sglang", "v0.5.14-cu129")[
        "settings"
    ]
    assert (shown["page_size"], shown["hicache_size"], shown["sglang_version"]) == (7, 12, "0.5.14")
    assert asked(run, CRASH, "--set", "sglang_version=0.5.16")["settings"]["sglang_version"] == "0.5.16"


def test_a_value_may_hold_an_equals_sign_and_hostile_text(run: Run) -> None:
    shown = asked(run, CRASH, "--set", "model_path=a=b\x1b[31m'; DROP TABLE cfg; --")["settings"]
    assert shown["model_path"] == "a=b\x1b[31m'; DROP TABLE cfg; --"


def test_a_release_that_has_the_fix_changes_the_verdict(run: Run) -> None:
    assert [f["pr"] for f in asked(run, CRASH)["fixes"]] == [27285]
    newer = asked(run, CRASH, "--sglang", "0.5.21")
    assert 27285 not in [f["pr"] for f in newer["fixes"]]
    assert newer["signature"] != "A1"


def test_a_rank_names_a_file(run: Run, tmp_path: Path) -> None:
    file, db = tmp_path / "pod-7.txt", tmp_path / "i.duckdb"
    file.write_text(f"[2026-06-04 03:00:00] {BATCH}\n")
    document = asked(run, file, "--rank", "pod-7.txt=PP1 TP0", "--db", db)
    assert document["ranks"]["seen"] == ["PP1 TP0"]
    assert rows(run, db, "SELECT DISTINCT rank FROM batch") == [["PP1 TP0"]]


def test_the_failed_life_is_diagnosed_unless_another_is_asked_for(run: Run, lives: Path, tmp_path: Path) -> None:
    usage = "SELECT DISTINCT usage FROM batch"
    for option, value, errors in (
        ([], 0.11, 1),
        (["--life", "1"], 0.11, 1),
        (["--life", "2"], 0.22, 0),
        (["--life", "9"], 0.22, 0),
    ):
        db = tmp_path / f"{len(list(tmp_path.iterdir()))}.duckdb"
        document = asked(run, lives, *option, "--db", db)
        assert rows(run, db, usage) == [[value]], option
        assert rows(run, db, "SELECT count(*) FROM exception") == [[errors]], option
        assert len(document["other_incidents"]) == 1 - errors, option


@pytest.mark.parametrize(
    ("option", "kept"),
    [
        (["--since", "2026-06-04T05:00:00"], [0.22]),
        (["--since", "2026-06-04T05:00:00Z"], [0.22]),
        (["--since", "2026-06-04T07:00:00+02:00"], [0.22]),
        (["--since", "2026-06-04"], [0.11]),
        (["--last", "1m"], [0.22]),
        (["--last", "90"], [0.22]),
        (["--last", "1.5h"], [0.22]),
        (["--last", "3h"], [0.11]),
        (["--last", "2d"], [0.11]),
        (["--last", "3h", "--since", "2026-06-04T05:00:00"], [0.22]),
    ],
)
def test_only_a_part_of_the_time(run: Run, lives: Path, tmp_path: Path, option: list[str], kept: list[float]) -> None:
    db = tmp_path / "i.duckdb"
    asked(run, lives, *option, "--db", db)
    assert [r[0] for r in rows(run, db, "SELECT DISTINCT usage FROM batch")] == kept


def test_a_time_after_everything_leaves_a_thin_verdict_and_no_crash(run: Run) -> None:
    assert asked(run, CRASH, "--since", "2099-01-01")["status"] == "undetermined"
    assert asked(run, CRASH, "--last", "0s")["status"] in {"signature", "undetermined"}


def test_hash_digests_the_whole_file(run: Run, tmp_path: Path) -> None:
    big = tmp_path / "big.log"
    big.write_bytes(b"x" * 300_000)
    digests = set()
    for middle in (b"y", b"z"):
        with big.open("r+b") as f:
            f.seek(150_000)
            f.write(middle)
        for options in ([], ["--hash"]):
            db = tmp_path / f"{middle.decode()}{len(options)}.duckdb"
            asked(run, big, *options, "--db", db)
            digests.add((bool(options), rows(run, db, "SELECT digest FROM artifact")[0][0]))
    assert len([d for whole, d in digests if whole]) == 2
    assert len([d for whole, d in digests if not whole]) == 1


def test_own_rules_come_on_top(run: Run, tmp_path: Path) -> None:
    assert run("rules", "new", tmp_path / "mine").code == 0
    ran = run("analyze", CRASH, "--rules", tmp_path / "mine", "--format", "json")
    assert json.loads(ran.out)["signature"] == "A1"
    assert json.loads(ran.out)["path"][0]["question"] == "Is it the incident of our own rule?"
