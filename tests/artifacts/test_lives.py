"""Several lives of a process in one log, and several incidents in a folder: which one is diagnosed."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from hicache_doctor.artifacts.lives import select
from hicache_doctor.evidence.rows import GroupStatus, LogRecord, Row
from hicache_doctor.incident import Options, analyze
from hicache_doctor.signatures.verdict import Verdict
from tests.incidents import START, Log, a1_like, batches, c1_like, healthy, traceback

HOUR = dt.timedelta(hours=1)
POP = traceback("IndexError: pop from empty list", [("mem_cache/hiradix_cache.py", 936, "writing_check")])


def diagnose(folder: Path, files: dict[str, str], life: int | None = None) -> Verdict:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    result = analyze([str(folder)], Options(settings={"sglang_version": "0.5.12"}, life=life))
    result.store.close()
    return result.verdict


def lives(count: int, last_fails: bool = True) -> str:
    """One rank's log with ``count`` lives, an hour apart; life k runs k batches and ends by ``error k``."""
    log = Log("PP1")
    for life in range(1, count + 1):
        log.now = START + life * HOUR
        log.start()
        for new, cached in batches(10 * life):
            log.batch(new, cached)
        if life < count or last_fails:
            log.say("Scheduler hit an exception: Traceback (most recent call last):")
            log.bare(traceback(f"ValueError: error {life}", [("managers/scheduler.py", 1, "event_loop_pp")]) + "\n")
            log.say("SIGQUIT received. signum=None, frame=None. It usually means one child failed.", "")
    return log.text()


def errors(verdict: Verdict) -> list[str]:
    return [i.title for i in verdict.other_incidents]


def test_one_life_has_no_earlier_failure(tmp_path: Path) -> None:
    assert diagnose(tmp_path, a1_like()).other_incidents == []


@pytest.mark.parametrize("count", [2, 3])
def test_the_last_failed_life_is_diagnosed_and_the_earlier_ones_are_listed(tmp_path: Path, count: int) -> None:
    verdict = diagnose(tmp_path, {"a.log": lives(count)})
    # THEN only the last failure is in the chain
    quotes = " ".join(c.quote or "" for link in verdict.evidence_chain for c in link.citations)
    assert not any(f"error {i}" in quotes for i in range(1, count))
    # AND the others are told, oldest first, with their times and lines
    assert errors(verdict) == [f"PP1: ValueError: error {i}" for i in range(1, count)]
    first = verdict.other_incidents[0]
    assert first.time is not None and first.time.startswith("2026-05-28T03:00")
    assert first.citations[0].artifact == "a.log" and first.citations[0].line is not None


@pytest.mark.parametrize("life", [1, 2, 3])
def test_a_life_can_be_chosen(tmp_path: Path, life: int) -> None:
    text = lives(3)
    (tmp_path / "a.log").write_text(text, encoding="utf-8")
    result = analyze([str(tmp_path)], Options(life=life))
    with result.store as store:
        assert store.rows("SELECT DISTINCT message FROM exception") == [{"message": f"error {life}"}]
        assert store.value("SELECT count(*) FROM batch") == 10 * life
        assert store.value("SELECT count(DISTINCT line) FROM setting WHERE key = 'model_path'") == 1
    assert errors(result.verdict) == [f"PP1: ValueError: error {i}" for i in (1, 2, 3) if i != life]


@pytest.mark.parametrize("life", [0, 99])
def test_a_life_that_does_not_exist_is_the_nearest(tmp_path: Path, life: int) -> None:
    (tmp_path / "a.log").write_text(lives(2), encoding="utf-8")
    result = analyze([str(tmp_path)], Options(life=life))
    with result.store as store:
        assert store.value("SELECT message FROM exception") == f"error {1 if life == 0 else 2}"


def test_a_healthy_restart_after_the_crash_hides_nothing(tmp_path: Path) -> None:
    # GIVEN a crash, after which the supervisor started the servers again and they work
    files = a1_like()
    again = healthy(start=START + HOUR)
    verdict = diagnose(tmp_path, {name: files[name] + again[name] for name in files})
    # THEN the crash is the verdict
    assert (verdict.signature, verdict.first_failing_rank) == ("A1", "PP1")


def test_a_life_whose_head_is_lost_has_the_command_of_its_restart(tmp_path: Path) -> None:
    # GIVEN logs that begin after the start, and go on with the restart
    files = a1_like()
    again = healthy(start=START + HOUR)
    headless = {
        name: "\n".join(line for line in text.split("\n") if "server_args" not in line) for name, text in files.items()
    }
    alone = diagnose(tmp_path, headless)
    verdict = diagnose(tmp_path, {name: headless[name] + again[name] for name in files})
    # THEN the crash is the verdict, with the settings that the restart repeats
    assert verdict.first_failing_rank == "PP1" and verdict.form == "A"
    assert alone.settings.get("enable_hierarchical_cache") is None
    assert verdict.settings["enable_hierarchical_cache"] is not None


def test_two_crashes_of_another_kind(tmp_path: Path) -> None:
    # GIVEN ack queues that ran empty, and an hour later a shape error
    before = {}
    for rank in ("PP0", "PP1"):
        log = Log(rank, START - HOUR)
        log.start()
        for new, cached in batches(12):
            log.batch(new, cached)
        if rank == "PP1":
            log.say("Scheduler hit an exception: Traceback (most recent call last):")
            log.bare(POP)
        before[f"{rank}.log"] = log.text()
    after = a1_like()
    verdict = diagnose(tmp_path, {name: before[name] + after[name] for name in after})
    assert verdict.signature == "A1"
    assert errors(verdict) == ["PP1: IndexError: pop from empty list"]
    assert verdict.first_divergence is not None and verdict.first_divergence.ordinal == 30


def test_two_incidents_in_a_folder_of_other_models(tmp_path: Path) -> None:
    other = {f"old_{k}": v.replace("Qwen3-32B", "Llama-3.1-8B") for k, v in a1_like(start=START - 300 * HOUR).items()}
    verdict = diagnose(tmp_path, {**c1_like(), **other})
    assert verdict.signature == "C1"
    assert any("shape '[1000, -1, 128]'" in title for title in errors(verdict))


def test_the_same_rank_again_two_hours_later_is_another_incident(tmp_path: Path) -> None:
    old = {f"old_{name}": text for name, text in a1_like(n=20, start=START - 2 * HOUR).items()}
    verdict = diagnose(tmp_path, {**old, **a1_like(n=30)})
    assert (verdict.signature, verdict.first_failing_rank) == ("A1", "PP1")
    assert verdict.first_divergence is not None and verdict.first_divergence.ordinal == 30
    assert [i.citations[0].artifact for i in verdict.other_incidents if i.citations] == [
        "old_PP0.log",
        "old_PP1.log",
    ] or [i.citations[0].artifact for i in verdict.other_incidents] == ["old_PP1.log", "old_PP0.log"]


def test_ranks_that_failed_within_minutes_are_one_incident(tmp_path: Path) -> None:
    files = a1_like()
    files["PP0.log"] = a1_like(start=START + dt.timedelta(minutes=20))["PP0.log"]
    verdict = diagnose(tmp_path, files)
    assert verdict.other_incidents == [] and verdict.signature == "A1" and verdict.victims == ["PP0"]


# -- one log in two files -----------------------------------------------------------------------------------------


def said(verdict: Verdict) -> tuple[object, ...]:
    divergence = verdict.first_divergence
    return (
        verdict.status, verdict.signature, verdict.confidence, verdict.first_failing_rank, verdict.victims,
        verdict.culprits, verdict.ranks.seen, verdict.ranks.missing, divergence and divergence.ordinal,
        len(verdict.other_incidents),
    )  # fmt: skip


@pytest.mark.parametrize("at", [1, 2, 3, 5, 6, 7, 20, 35, 36, 37, 38, 39, 42, 43, 46, 47, 48, 49])
def test_a_failing_log_in_two_files_gives_the_same_verdict(tmp_path: Path, at: int) -> None:
    files = a1_like()
    (tmp_path / "whole").mkdir()
    whole = diagnose(tmp_path / "whole", files)
    lines = files.pop("PP1.log").splitlines(keepends=True)
    (tmp_path / "parted").mkdir()
    parted = diagnose(tmp_path / "parted", {**files, "a.log": "".join(lines[:at]), "b.log": "".join(lines[at:])})
    assert said(parted) == said(whole)


@pytest.mark.parametrize("at", [1, 4, 15, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 38, 39, 40, 41, 42])
def test_a_hanging_log_in_two_files_gives_the_same_verdict(tmp_path: Path, at: int) -> None:
    files = c1_like()
    (tmp_path / "whole").mkdir()
    whole = diagnose(tmp_path / "whole", files)
    lines = files.pop("TP0.log").splitlines(keepends=True)
    (tmp_path / "parted").mkdir()
    parted = diagnose(tmp_path / "parted", {**files, "a.log": "".join(lines[:at]), "b.log": "".join(lines[at:])})
    assert said(parted) == said(whole)


def test_what_speaks_of_the_machine_belongs_to_every_life() -> None:
    def record(kind: str, line: int, life: int) -> LogRecord:
        return LogRecord("a", line, line, 0, None, None, kind, {}, kind, life)

    def standing(line: int) -> GroupStatus:
        return GroupStatus("a", line, "rank 0", "3", None, None, "nccl", line, None, None, "log")

    rows: list[Row] = [record("ready", 1, 0), standing(2), record("sigquit", 3, 0), record("ready", 10, 1)]
    rows += [standing(11), record("sigquit", 12, 1), record("kernel_xid", 20, 0)]
    chosen = select({"a": rows}).chosen
    assert chosen == {"a": 1}
    assert [(type(r).__name__, r.line) for r in rows if isinstance(r, (LogRecord, GroupStatus))] == [
        ("LogRecord", 10), ("GroupStatus", 11), ("LogRecord", 12), ("LogRecord", 20),
    ]  # fmt: skip
