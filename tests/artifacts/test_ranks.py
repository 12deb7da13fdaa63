"""Rank identity: every way in which a row gets its rank."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hicache_doctor.artifacts.inventory import READERS, unwrap
from hicache_doctor.artifacts.process_title import rank_of_title
from hicache_doctor.artifacts.ranks import Identity
from hicache_doctor.evidence.rows import Batch, ExceptionRow, Frame, LogRecord, Row, Sample, Setting, Stack


def line(rank: str | None, kind: str = "last_line", number: int = 1, **fields: str) -> LogRecord:
    return LogRecord("x", number, number, 0, None, rank, kind, dict(fields), "text")


def dump(rank: str | None = None, pid: int | None = None, number: int = 1) -> Stack:
    return Stack(f"s{pid}{number}", "x", number, number, None, None, rank, pid, "pyspy", "MainThread", True, "idle")


def sizes(pp: int, tp: int) -> list[Row]:
    return [Setting("pp_size", str(pp), "s", "x", 1), Setting("tp_size", str(tp), "s", "x", 1)]


def resolve(rows: dict[str, list[Row]], overrides: Mapping[str, str] | None = None) -> list[str]:
    return [r.id for r in Identity(rows, overrides or {}).resolve()]


def ranks(rows: list[Row]) -> list[str | None]:
    return [getattr(r, "rank", None) for r in rows if not isinstance(r, (Setting, Frame))]


def test_the_prefix() -> None:
    rows: dict[str, list[Row]] = {"a.log": [line("DP0 PP1 ATTN_CP2 TP3 EP4")]}
    (rank,) = Identity(rows, {}).resolve()
    assert (rank.id, rank.dp, rank.pp, rank.cp, rank.tp, rank.ep) == ("DP0 PP1 ATTN_CP2 TP3 EP4", 0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("title", "rank"),
    [
        ("sglang::scheduler_PP2_TP1", "PP2 TP1"),
        ("sglang::scheduler PP1 TP0", "PP1 TP0"),
        ("sglang::scheduler_DP0_PP1_ATTN_CP2_TP3", "DP0 PP1 ATTN_CP2 TP3"),
        ("sglang::schedul", None),
        ("sglang::scheduler", None),
        ("python3", None),
    ],
)
def test_the_title(title: str, rank: str | None) -> None:
    assert rank_of_title(title) == rank


def test_a_file_of_one_rank_lends_its_rank_to_the_nameless() -> None:
    rows: dict[str, list[Row]] = {"a.log": [line("PP1"), line(None), line("rank 1"), dump(), *sizes(2, 1)]}
    resolve(rows)
    assert ranks(rows["a.log"]) == ["PP1"] * 4


def test_a_file_of_several_ranks_lends_nothing() -> None:
    rows: dict[str, list[Row]] = {"a.log": [line("PP0"), line("PP1"), line(None)]}
    resolve(rows)
    assert ranks(rows["a.log"]) == ["PP0", "PP1", None]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("spy/PP1_TP0.txt", "PP1 TP0"),
        ("tp0-pp1.txt", "PP1 TP0"),
        ("pod_pp1.log", "PP1"),
        ("dump-tp12.json", "TP12"),
        ("attn_cp3.txt", "ATTN_CP3"),
        ("stack_rank3.txt", "rank 3"),
        ("stack.txt", None),
        ("app12.txt", None),
        ("http2.txt", None),
        ("backtp3x", None),
    ],
)
def test_the_file_name_of_a_dump(name: str, rank: str | None) -> None:
    rows: dict[str, list[Row]] = {name: [dump(pid=5)]}
    resolve(rows)
    assert ranks(rows[name]) == [rank]


def test_what_the_dump_says_beats_the_file_name() -> None:
    rows: dict[str, list[Row]] = {"PP0.txt": [dump("PP1")]}
    assert resolve(rows) == ["PP1"]


@pytest.mark.parametrize("before", [True, False])
def test_a_pid_that_a_log_names(before: bool) -> None:
    log: list[Row] = [line("PP1 TP0", "pyspy_dump", pid="4711"), line("PP0 TP0")]
    rows: dict[str, list[Row]] = (
        {"1.txt": [dump(pid=4711)], "2.log": log} if before else {"0.log": log, "1": [dump(pid=4711)]}
    )
    found = resolve(rows)
    assert ranks(rows["1.txt" if before else "1"]) == ["PP1 TP0"]
    assert found == ["PP0 TP0", "PP1 TP0"]


def test_a_pid_that_another_dump_names() -> None:
    rows: dict[str, list[Row]] = {"round1": [dump("PP1", 7), dump("PP0", 8)], "round2": [dump(pid=8), dump(pid=7)]}
    resolve(rows)
    assert ranks(rows["round2"]) == ["PP0", "PP1"]


def test_elimination() -> None:
    # GIVEN three ranks in logs, dumps of two of them and one nameless dump
    logs: list[Row] = [line("TP0"), line("TP1"), line("TP2")]
    rows: dict[str, list[Row]] = {"a.log": logs, "d": [dump("TP0", 1), dump("TP2", 3), dump(pid=2)]}
    resolve(rows)
    assert ranks(rows["d"]) == ["TP0", "TP2", "TP1"]


@pytest.mark.parametrize("nameless", [[2, 3], [2]])
def test_no_elimination_where_two_answers_are_possible(nameless: list[int]) -> None:
    logs: list[Row] = [line("TP0"), line("TP1"), line("TP2")]
    rows: dict[str, list[Row]] = {"a.log": logs, "d": [dump("TP0", 1), *[dump(pid=p, number=p) for p in nameless]]}
    resolve(rows)
    assert ranks(rows["d"])[1:] == [None] * len(nameless)


@pytest.mark.parametrize(
    ("number", "pp", "tp", "labels", "expected"),
    [
        (3, 2, 2, ["PP0 TP0", "PP1 TP1"], "PP1 TP1"),
        (2, 2, 2, ["PP0 TP0"], "PP1 TP0"),
        (3, 4, 1, ["PP0"], "PP3"),
        (3, 1, 4, ["TP0"], "TP3"),
        (9, 2, 8, ["PP0 ATTN_CP1 TP1", "PP1 ATTN_CP1 TP1"], "PP1 ATTN_CP1 TP1"),
        (8, 2, 8, ["PP0 ATTN_CP1 TP1"], "rank 8"),
        (1, 1, 4, ["DP0 TP0"], "rank 1"),
    ],
)
def test_numbers_by_topology(number: int, pp: int, tp: int, labels: list[str], expected: str) -> None:
    rows: dict[str, list[Row]] = {
        "a.log": [*sizes(pp, tp), *[line(label) for label in labels]],
        "b.log": [
            line("PP0 TP0" if pp > 1 < tp else labels[0]),
            line(labels[-1]),
            line(f"rank {number}"),
            line("rank 0"),
        ],
    }
    resolve(rows)
    assert ranks(rows["b.log"])[2] == expected


def test_numbers_stay_numbers_where_the_topology_is_unknown() -> None:
    rows: dict[str, list[Row]] = {"a.log": [line("rank 12"), line("rank 3")]}
    (three, twelve) = sorted(Identity(rows, {}).resolve(), key=lambda r: r.number or 0)
    assert (three.id, three.number, twelve.id, twelve.number) == ("rank 3", 3, "rank 12", 12)


@pytest.mark.parametrize("key", ["logs/b.txt", "b.txt", "crash.zip!logs/b.txt"])
def test_the_users_word_beats_everything(key: str) -> None:
    path = "crash.zip!logs/b.txt"
    rows: dict[str, list[Row]] = {path: [line("PP0 TP0"), dump("PP0 TP0"), line(None)], "a.log": [line("PP0 TP0")]}
    assert resolve(rows, {key: "PP1 TP0"}) == ["PP0 TP0", "PP1 TP0"]
    assert ranks(rows[path]) == ["PP1 TP0"] * 3


def test_the_rank_of_metrics_is_that_of_the_logs() -> None:
    # GIVEN logs of tp = 1, which name the stage only, and metrics, which name everything
    rows: dict[str, list[Row]] = {
        "a.log": [line("PP0"), line("PP1")],
        "m.prom": [Sample("m", 1, f"PP{i} TP0", None, None, "num_queue_reqs", 1.0) for i in (0, 1)],
    }
    # THEN it is one process each
    assert resolve(rows) == ["PP0", "PP1"]
    assert ranks(rows["m.prom"]) == ["PP0", "PP1"]


def test_only_zeros_are_left_out_by_logs() -> None:
    rows: dict[str, list[Row]] = {"a.log": [line("PP0")], "m": [Sample("m", 1, "PP0 TP1", None, None, "x", 1.0)]}
    assert resolve(rows) == ["PP0", "PP0 TP1"]


def test_metrics_pages_are_read_with_their_ranks() -> None:
    text = 'sglang:num_queue_reqs{model_name="m",tp_rank="0",pp_rank="1"} 3.0\n' * 3
    logical, _ = unwrap(text, "m.prom")
    reader = next(r for r in READERS if r.kind == "metrics page")
    rows: dict[str, list[Row]] = {
        "m.prom": list(reader.parse([(i.line, i.text) for i in logical], "m.prom")),
        "a.log": [line("PP0"), line("PP1")],
    }
    assert "PP1" in resolve(rows)
    assert set(ranks(rows["m.prom"])) == {"PP1"}


def test_every_kind_of_row_gets_its_rank_and_pids_reach_the_ranks() -> None:
    rows: dict[str, list[Row]] = {
        "PP1.log": [
            line("PP1"),
            Batch("x", 1, 0, None, None, "prefill", 1, 1, 1, None, None, None),
            ExceptionRow("x", 1, 1, 0, None, None, "E", "m", None, "own"),
            dump(pid=4711),
        ]
    }
    (rank,) = Identity(rows, {}).resolve()
    assert (rank.id, rank.pid, rank.artifact) == ("PP1", 4711, "PP1.log")
    assert ranks(rows["PP1.log"]) == ["PP1"] * 4


def test_a_report_on_all_processes_is_not_the_one_rank_of_its_file() -> None:
    def ras(pid: int) -> LogRecord:
        return LogRecord("a", 1, 1, 0, None, None, "ras_rank", {}, "", 0, pid)

    def gpu(pid: int) -> Sample:
        return Sample("a", 1, None, pid, None, "gpu_process_memory_bytes", 1.0, {"gpu": "0"})

    named = LogRecord("a", 1, 1, 0, None, "PP0", "pyspy_dump", {"pid": "11"}, "")
    rows: list[Row] = [named, ras(11), ras(12), gpu(11), gpu(12)]
    Identity({"a": rows}, {}).resolve()
    assert [getattr(r, "rank", None) for r in rows[1:]] == ["PP0", None, "PP0", None]
