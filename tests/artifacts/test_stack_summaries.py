"""Hand-written stacks: chains, Markdown tables, either direction, many ranks a line, notes on files."""

from __future__ import annotations

import pytest
from hypothesis import given

from hicache_doctor.artifacts.rank_mentions import rank_mentions
from hicache_doctor.artifacts.stack_summaries import looks_like_summary, parse
from hicache_doctor.evidence.rows import Frame, Stack
from tests.artifacts.small import mutations, numbered, text_of


def read(text: str) -> dict[tuple[str | None, int], list[tuple[str, str | None]]]:
    """(rank, dump) → (function, file), innermost first."""
    rows = parse(numbered(text), "x")
    frames: dict[str, list[Frame]] = {}
    for r in rows:
        if isinstance(r, Frame):
            frames.setdefault(r.stack, []).append(r)
    return {(r.rank, r.dump): [(f.function, f.file) for f in frames[r.id]] for r in rows if isinstance(r, Stack)}


def test_outermost_first_chains_with_many_ranks_and_a_second_dump() -> None:
    text = text_of("summary_chain.txt")
    assert looks_like_summary(text)
    stacks = read(text)
    assert {rank for rank, _ in stacks} == {f"TP{i}" for i in range(8)}
    assert stacks["TP3", 0][:3] == [
        ("all_reduce", None),
        ("_all_reduce_attn_groups", "hiradix_cache.py"),
        ("writing_check", "hiradix_cache.py"),
    ]
    assert stacks["TP3", 0] == stacks["TP3", 1]
    assert stacks["TP7", 0][0] == ("broadcast", None)
    assert stacks["TP7", 0][-1] == ("event_loop_overlap", "scheduler.py")


def test_a_markdown_table_innermost_first_with_a_note_on_one_rank() -> None:
    stacks = read(text_of("summary_table.md"))
    assert list(stacks) == [("TP0", 0), ("TP1", 0), ("TP2", 0), ("TP3", 0)]
    assert stacks["TP0", 0][:2] == [("all_reduce", None), ("writing_check", "unified_radix_cache.py")]
    assert stacks["TP1", 0][-1] == ("event_loop_overlap", None)


@pytest.mark.parametrize(
    "text, inner",
    [
        ("PP1 TP0: all_reduce <- writing_check <- event_loop_pp", "all_reduce"),
        ("PP1 TP0: event_loop_pp -> writing_check -> all_reduce", "all_reduce"),
        ("PP1 TP0: `event_loop_pp > … > recv_requests`", "recv_requests"),
        ("innermost last\nPP1 TP0: foo -> check_hicache_events -> bar", "bar"),
        ("innermost function first\nPP1 TP0: foo -> check_hicache_events -> bar", "foo"),
        ("PP1 TP0: foo <- check_hicache_events <- bar", "foo"),
        ("PP1 TP0:\n  event_loop_pp ->\n  writing_check -> all_reduce", "all_reduce"),
    ],
)
def test_the_direction(text: str, inner: str) -> None:
    assert read(text)["PP1 TP0", 0][0][0] == inner


def test_a_frame_may_carry_class_file_and_line() -> None:
    rows = parse(numbered("rank 3: event_loop_pp -> HiRadixCache.writing_check (hiradix_cache.py:745) -> wait"), "x")
    frame = next(r for r in rows if isinstance(r, Frame) and r.function == "writing_check")
    assert (frame.cls, frame.file, frame.line) == ("HiRadixCache", "hiradix_cache.py", 745)
    assert isinstance(rows[0], Stack) and (rows[0].rank, rows[0].source, rows[0].main) == ("rank 3", "summary", True)


@pytest.mark.parametrize(
    "text, ranks",
    [
        ("TP1-3", ["TP1", "TP2", "TP3"]),
        ("PP1 TP0–TP1", ["PP1 TP0", "PP1 TP1"]),
        ("PP0 TP0, TP1 and PP1 TP0", ["PP0 TP0", "PP0 TP1", "PP1 TP0"]),
        ("ranks 1, 2 and 5-6", ["rank 1", "rank 2", "rank 5", "rank 6"]),
        ("PP0_TP1", ["PP0 TP1"]),
        ("nobody", []),
    ],
)
def test_rank_mentions(text: str, ranks: list[str]) -> None:
    assert rank_mentions(text) == ranks


def test_prose_with_arrows_is_no_stack() -> None:
    assert not looks_like_summary("TP0 went from A -> B -> C\n0[0] -> 1[1] via P2P/IPC\nfoo > bar")


@given(mutations(text_of("summary_chain.txt"), text_of("summary_table.md"), "TP1-3 a <- wait"))
def test_never_raises(text: str) -> None:
    looks_like_summary(text)
    parse(numbered(text), "x")
    rank_mentions(text)
