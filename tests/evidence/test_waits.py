"""The wait-for graph: real dumps with known faults, jobs that were run into a hang, circles, what a page says."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.evidence import call_streams
from hicache_doctor.evidence.rows import Collective, Frame, LogRecord, Rank, Row, Setting, Stack
from hicache_doctor.evidence.store import Store
from hicache_doctor.evidence.wait_graph import Graph, components, in_order
from hicache_doctor.signatures.diagnose import derive, diagnose
from hicache_doctor.signatures.load import RuleBase, load
from hicache_doctor.signatures.verdict import Verdict
from tests.evidence.planted import KINDS, Planted, plant
from tests.evidence.recorder_rows import rows_of

HERE = Path(__file__).resolve()
PLACES = [HERE.parents[3] / "shared"]
SHARED = next((p for p in PLACES if (p / "corpora" / "flight_recorder_16_ranks").is_dir()), None)
CORPUS = SHARED / "corpora" / "flight_recorder_16_ranks" if SHARED else None

NO_CORPUS = pytest.mark.skipif(CORPUS is None, reason="the corpus (../shared/corpora) is not beside this checkout")


@cache
def base() -> RuleBase:
    return load()


def read_dumps(files: Iterable[tuple[int, Path]]) -> list[Row]:
    """The rows of recorder dumps that are trusted; the switch to the reader of such files is here."""
    return [row for rank, path in files for row in rows_of(pickle.loads(path.read_bytes()), rank, path.name)]


def judged(rows: Iterable[Row]) -> tuple[Verdict, dict[str, list[dict[str, Any]]]]:
    """The verdict on some rows, and the tables of the graph."""
    rows = list(rows)
    known = {r.id for r in rows if isinstance(r, Rank)}
    labels = dict.fromkeys(label for r in rows if (label := getattr(r, "rank", None)) and label not in known)
    with Store.create() as store:
        store.add([*rows, *map(Rank, labels)])
        verdict = diagnose(store, base())
        names = ("wait_edge", "wait_node", "wait_culprit", "wait_cycle", "skipped_call")
        return verdict, {n: store.rows(f"SELECT * FROM {n}") for n in names}


# -- real dumps -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    CORPUS is None, reason="the corpus of recorder dumps (../shared/corpora) is not beside this checkout"
)
@pytest.mark.parametrize("name", ["gpu_error_1st", "gpu_error_2nd", "lock_gil_1st", "lock_gil_2nd"])
def test_the_ranks_with_an_injected_fault_are_named_and_no_other(name: str) -> None:
    assert CORPUS is not None
    first = (CORPUS / name / "fault_injection.log").read_text().splitlines()[0]
    truth = [f"rank {n}" for n in re.findall(r"\d+", first)]
    verdict, _ = judged(read_dumps((r, CORPUS / name / f"_dump_{r}") for r in range(16)))
    assert verdict.status == "undetermined"
    assert verdict.culprits == truth
    assert len(verdict.victims) > 2
    assert set(verdict.victims).isdisjoint(truth)
    assert any(c.record is not None for link in verdict.evidence_chain for c in link.citations)


@pytest.mark.skipif(
    CORPUS is None, reason="the corpus of recorder dumps (../shared/corpora) is not beside this checkout"
)
def test_a_faulty_rank_without_its_dump_is_still_named() -> None:
    assert CORPUS is not None
    folder = CORPUS / "gpu_error_2nd"
    verdict, _ = judged(read_dumps((r, folder / f"_dump_{r}") for r in range(16) if r != 9))
    assert verdict.culprits == ["rank 9", "rank 14"]


@pytest.mark.skipif(SHARED is None, reason="the dev cases (../shared/cases) are not beside this checkout")
def test_a_skipped_vote_over_gloo_is_told_by_its_words() -> None:
    assert SHARED is not None
    folder = SHARED / "cases" / "A21" / "input"
    verdict, tables = judged(read_dumps((r, folder / f"fr_trace_rank_{r}") for r in range(4)))
    assert verdict.signature == "C1"
    assert verdict.culprits == ["rank 1"]
    said = [link.claim for link in verdict.evidence_chain]
    assert "rank 1 skipped the 8th all_reduce of writing_check and went on to broadcast of recv_requests" in said
    assert [r["rank"] for r in tables["wait_cycle"]] == ["rank 0", "rank 1"]


@pytest.mark.skipif(SHARED is None, reason="the dev cases (../shared/cases) are not beside this checkout")
def test_different_sizes_of_one_call_name_both_sides() -> None:
    assert SHARED is not None
    folder = SHARED / "cases" / "A23" / "input"
    rows = read_dumps((r, folder / f"nccl_trace_rank_{r}") for r in range(4))
    assert judged(rows)[0].culprits == ["rank 2", "rank 3"]
    rows.append(Setting("enable_hierarchical_cache", "True", "option", "(command line)", None))
    rows.append(Setting("sglang_version", "0.5.20", "option", "(command line)", None))
    verdict, _ = judged(rows)
    assert (verdict.signature, verdict.culprits) == ("C6", ["rank 2", "rank 3"])


# -- jobs that were run into a hang ------------------------------------------------------------------------------------

# What a right answer names. One rank: missing (no dump), dead, stuck in compute, the one that skipped a call (with the
# sentence that says so) or brought another size to three others or more. Both: sizes that differ between two. Swapped
# calls: everyone in the circle where the calls behind the difference were launched, too; where each call blocks, what
# shows is a call left out. Several: each of them. `planted.py` holds the exceptions with their reasons.
CHUNK = 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", range(0, 30, CHUNK))
def test_planted_faults_are_found(kind: str, first: int) -> None:
    for seed in range(first, first + CHUNK):
        made = plant(kind, seed)
        with Store.create() as store:
            store.add(made.rows())
            derive(store, base())
            check(made, store)


def check(made: Planted, store: Store) -> None:
    where = (made.kind, made.seed)
    named = {made.number(r["rank"]) for r in store.rows("SELECT rank FROM wait_culprit")}
    assert named == made.answer, where
    if made.circle and made.kind != "size":
        circle = {made.number(r["rank"]) for r in store.rows("SELECT rank FROM wait_cycle")}
        assert made.circle <= circle, where
    if made.swaps is not None and named == made.circle:
        kinds = {r["kind"] for r in store.rows("SELECT kind FROM skipped_call")}
        assert kinds == {"swapped"}, where
    nodes = {made.number(r["rank"]): r["state"] for r in store.rows("SELECT rank, state FROM wait_node")}
    assert {r for r, state in nodes.items() if state == "no_dump"} >= made.silent, where


# -- mixtures of sources -----------------------------------------------------------------------------------------------


def stack(rank: str, *functions: str) -> list[Row]:
    frames: list[Row] = [Frame(f"s{rank}", i, None, f, "x.py", 10 + i, i + 2) for i, f in enumerate(functions)]
    return [
        Stack(f"s{rank}", f"{rank}.txt", 1, 9, None, None, rank, None, "pyspy", "MainThread", True, "idle"),
        *frames,
    ]


def sizes(pp: int, tp: int) -> list[Row]:
    return [Setting(k, str(v), "option", "(command line)", None) for k, v in (("pp_size", pp), ("tp_size", tp))]


def call(rank: str, nth: int, op: str, site: str, **more: Any) -> Collective:
    row = Collective(f"{rank}.fr", nth, rank, "1", nth, op, "[[1]]", "Int", "scheduled", True, None, "flight_recorder")
    row.call_site, row.position, row.descr, row.backend = f"{site} x.py:1", nth, "tp", "gloo"
    for name, value in more.items():
        setattr(row, name, value)
    return row


def test_a_recorder_of_one_rank_and_the_stack_of_its_peer() -> None:
    rows: list[Row] = [*sizes(1, 2), call("TP0", 1, "all_reduce", "writing_check", retired=False)]
    verdict, tables = judged(
        [*rows, *stack("TP1", "broadcast", "broadcast_pyobj", "recv_requests", "event_loop_normal")]
    )
    assert {(r["rank"], r["on_rank"], r["why"]) for r in tables["wait_edge"]} >= {("TP0", "TP1", "elsewhere")}
    assert verdict.signature == "C1"


def test_the_stage_behind_a_back_pressure_is_the_culprit() -> None:
    rows = [
        *sizes(3, 1),
        *stack("PP0", "wait", "_drain_async_work", "check_hicache_events"),
        *stack("PP1", "wait", "_pp_commit_comm_work", "event_loop_pp"),
        *stack("PP2", "forward", "forward_batch_generation", "run_batch", "event_loop_pp"),
    ]
    verdict, tables = judged(rows)
    assert (verdict.signature, verdict.culprits) == ("C5", ["PP2"])
    assert {r["rank"]: r["state"] for r in tables["wait_node"]} == {
        "PP0": "waiting",
        "PP1": "waiting",
        "PP2": "running",
    }


def test_an_expected_rank_that_nothing_shows_is_the_suspect() -> None:
    rows = [*sizes(2, 1), *stack("PP1", "recv", "_pp_sync", "writing_check", "check_hicache_events", "event_loop_pp")]
    verdict, tables = judged(rows)
    assert verdict.signature == "C5b"
    assert [(r["rank"], r["reason"]) for r in tables["wait_culprit"]] == [("PP0", "no_dump")]


def test_an_idle_deployment_has_no_culprit() -> None:
    rows = [
        *sizes(1, 2),
        *stack("TP0", "recv_pyobj", "recv_requests", "event_loop_normal"),
        *stack("TP1", "broadcast", "broadcast_pyobj", "recv_requests", "event_loop_normal"),
    ]
    verdict, tables = judged(rows)
    assert tables["wait_culprit"] == []
    assert verdict.culprits == []


def test_a_dump_from_after_the_time_out_still_shows_who_was_behind() -> None:
    rows: list[Row] = [call("TP0", s, "all_reduce", "writing_check") for s in (1, 2, 3)]
    rows += [call("TP1", s, "all_reduce", "writing_check") for s in (1, 2)]
    assert [r["rank"] for r in judged(rows)[1]["wait_culprit"]] == ["TP1"]
    running = [*rows, *(call("TP0", s, "all_reduce", "writing_check") for s in (4, 5, 6))]
    assert judged(running)[1]["wait_culprit"] == []


def test_the_watchdogs_words_serve_where_there_is_nothing_better() -> None:
    def late(rank: int, seq: int, enqueued: int) -> LogRecord:
        fields = {"group": "3", "group_rank": str(rank), "work": str(seq), "enqueued": str(enqueued), "completed": "6"}
        return LogRecord(f"r{rank}.log", 1, 1, 0, None, f"rank {rank}", "nccl_pg_status", fields, "PG status")

    _, tables = judged([late(0, 8, 9), late(1, 8, 8), late(2, 7, 7)])
    assert [r["rank"] for r in tables["wait_culprit"]] == ["rank 2"]


def test_helper_threads_hold_nobody_up() -> None:
    rows: list[Row] = [
        *sizes(1, 2),
        call("TP0", 1, "all_reduce", "writing_check", retired=False),
        call("TP1", 1, "all_reduce", "prefetch_thread_func", retired=False, grp="2", descr="hits"),
    ]
    _, tables = judged(rows)
    assert [r["rank"] for r in tables["wait_culprit"]] == ["TP1"] or not tables["wait_cycle"]


# -- streams and graph -------------------------------------------------------------------------------------------------

TOKENS = [("all_reduce", "writing_check", 0), ("broadcast", "recv_requests", 0), ("all_gather", "logits", 0)]


@pytest.mark.parametrize("tail", [0, 3])
def test_the_history_tells_a_skipped_call_from_an_extra_one(tail: int) -> None:
    a, b, c = TOKENS
    before = [a, b, c] * 4
    rest = [b, c, a][:tail]
    assert call_streams.parting([a, *rest], [b, c, a][: tail or 1], before) == ("skipped", 1)
    if tail:
        assert call_streams.parting([a, *rest], [c, a, *rest], before) == ("extra", 1)


def test_a_call_that_nobody_made_before_is_no_skipped_one() -> None:
    a, b, _ = TOKENS
    assert call_streams.parting([a], [b], [a, a, a]) == ("parted", 1)


def test_swapped_calls_need_both_orders() -> None:
    a, b, c = TOKENS
    assert call_streams.parting([a, b, c], [b, a, c], [c]) == ("swapped", 2)


@given(st.integers(0, 40), st.integers(12, 60), st.randoms(use_true_random=False))
def test_streams_without_numbers_are_laid_where_they_fit(cut: int, n: int, rng: random.Random) -> None:
    calls = [(rng.choice("abcdef"), str(rng.random()), 0) for _ in range(cut + n)]
    assert call_streams.fit(calls, calls[cut:]) == cut


def test_rings_without_numbers_and_with_lost_heads_are_aligned() -> None:
    ops = [("all_reduce", f"f{i % 7}") if i % 3 else ("broadcast", f"g{i % 5}") for i in range(60)]
    rows: list[Row] = [call("TP0", i, o, s, seq=None) for i, (o, s) in enumerate(ops)]
    rows += [call("TP1", i, o, s, seq=None) for i, (o, s) in enumerate(ops[20:50])]
    rows[59].retired = False  # type: ignore[union-attr]
    _, tables = judged(rows)
    assert [r["rank"] for r in tables["wait_culprit"]] == ["TP1"]


def test_a_rank_that_waits_for_a_circle_is_no_part_of_it() -> None:
    graph = Graph()
    graph.add("x", ["a"], ["b"])
    graph.add("y", ["b"], ["a"])
    graph.add("z", ["c", "d"], ["a"])
    (sink,) = graph.sinks()
    assert sink.cycle
    assert (sink.ranks, sink.waiters) == (["a", "b"], 2)


def test_two_hangs_have_two_answers() -> None:
    graph = Graph()
    graph.add("x", ["rank 1", "rank 2"], ["rank 10"])
    graph.add("y", ["rank 3"], ["rank 9"])
    assert [s.ranks for s in graph.sinks()] == [["rank 9"], ["rank 10"]]


@given(st.dictionaries(st.integers(0, 12), st.lists(st.integers(0, 12), max_size=4), max_size=12))
def test_every_node_is_in_one_component(arrows: dict[int, list[int]]) -> None:
    parts = components({**{t: [] for ts in arrows.values() for t in ts}, **arrows})
    nodes = [n for part in parts for n in part]
    assert sorted(nodes) == sorted({*arrows, *(t for ts in arrows.values() for t in ts)})  # type: ignore[type-var]


def test_a_long_chain_of_waits_needs_no_recursion() -> None:
    graph = Graph()
    for i in range(20_000):
        graph.add(i, [f"rank {i}"], [f"rank {i + 1}"])
    assert [s.ranks for s in graph.sinks()] == [["rank 20000"]]


def test_ranks_are_sorted_by_their_numbers() -> None:
    assert sorted(["PP1 TP10", "PP1 TP9", "PP0 TP1"], key=in_order) == ["PP0 TP1", "PP1 TP9", "PP1 TP10"]
