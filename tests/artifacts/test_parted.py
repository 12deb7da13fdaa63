"""Records that a log rotation parted are joined; what only looks like it is left alone."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hicache_doctor.artifacts import parted
from hicache_doctor.artifacts.inventory import read_all
from hicache_doctor.artifacts.vocabulary import load
from hicache_doctor.evidence.rows import ExceptionRow, Frame, Row, Stack
from tests.incidents import a1_like, c1_like

WORDS = load()


def joined(**files: str) -> dict[str, list[Row]]:
    """The rows of real files (``x/a`` lies in a folder), joined."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder, "in", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        reads = list(read_all([f"{folder}/in"], WORDS, spool=Path(folder), stdin=None))
    rows = {r.artifact.id: r.rows for r in reads}
    parted.join(rows, {r.artifact.id: r.artifact.lines for r in reads})
    return rows


def halves(text: str, marker: str) -> tuple[str, str]:
    """The text before the line that holds ``marker``, and from it on."""
    at = text.rindex("\n", 0, text.index(marker)) + 1
    return text[:at], text[at:]


def test_a_traceback_is_whole_again() -> None:
    # GIVEN a rotation in the middle of PP1's frames
    a, b = halves(a1_like()["PP1.log"], "in _pp_launch_batch")
    rows = joined(a=a, b=b)
    # THEN the exception has its rank and time, and all frames in order, once
    (raised,) = [r for r in rows["b"] if isinstance(r, ExceptionRow)]
    assert raised.rank == "PP1" and raised.ts is not None and raised.prefixed
    assert not any(isinstance(r, (ExceptionRow, Stack, Frame)) for r in rows["a"])
    frames = sorted((f for f in rows["b"] if isinstance(f, Frame)), key=lambda f: f.depth)
    assert [f.function for f in frames] == [
        "forward_native", "forward", "_pp_launch_batch", "event_loop_pp", "run_scheduler_process",
    ]  # fmt: skip
    assert [f.depth for f in frames] == [0, 1, 2, 3, 4]
    assert {f.stack for f in frames} == {raised.stack}
    # AND no citation points behind the end of its file
    assert all(f.at_line is not None and f.at_line <= len(b.split("\n")) for f in frames)


def test_an_error_line_alone_gets_the_stack_of_the_file_before() -> None:
    a, b = halves(a1_like()["PP1.log"], "RuntimeError: shape")
    rows = joined(a=a, b=b)
    (raised,) = [r for r in rows["b"] if isinstance(r, ExceptionRow)]
    (stack,) = [r for r in rows["b"] if isinstance(r, Stack)]
    assert (raised.stack, stack.rank, stack.artifact, stack.line) == (stack.id, "PP1", "b", 1)


def test_a_dump_is_whole_again() -> None:
    a, b = halves(c1_like()["TP0.log"], "check_hicache_events")
    rows = joined(a=a, b=b)
    stacks = [r for r in rows["b"] if isinstance(r, Stack)]
    main = next(s for s in stacks if s.main)
    frames = sorted((f for f in rows["b"] if isinstance(f, Frame) and f.stack == main.id), key=lambda f: f.depth)
    assert (main.rank, main.pid) == ("TP0", 4711)
    assert [f.function for f in frames][:3] == ["all_reduce", "writing_check", "check_hicache_events"]


def exceptions(rows: dict[str, list[Row]]) -> list[tuple[str | None, str]]:
    return sorted((r.rank, r.type) for own in rows.values() for r in own if isinstance(r, ExceptionRow))


def test_another_ranks_file_is_not_the_next_one() -> None:
    # GIVEN PP0's file cut in a traceback, and a file that begins in one and is PP1's
    a, _ = halves(a1_like()["PP0.log"], "in _pp_launch_batch")
    _, b = halves(a1_like()["PP1.log"], "in _pp_launch_batch")
    rows = joined(a=a, b=b + "[2026-05-28 09:00:00 PP1] Load weight begin.\n")
    assert [r.rank for r in rows["b"] if isinstance(r, ExceptionRow)] == [None]


def test_an_older_file_is_not_the_next_one() -> None:
    a, b = halves(a1_like()["PP1.log"], "in _pp_launch_batch")
    rows = joined(a=a, b=b + "[2020-01-01 00:00:00 PP1] Load weight begin.\n")
    assert [r.rank for r in rows["b"] if isinstance(r, ExceptionRow)] == [None]


def test_of_two_possible_heads_none_is_taken() -> None:
    a, b = halves(a1_like()["PP1.log"], "in _pp_launch_batch")
    rows = joined(a=a, c=a, b=b)
    assert [r.rank for r in rows["b"] if isinstance(r, ExceptionRow)] == [None]


def test_files_of_other_folders_are_not_joined() -> None:
    a, b = halves(a1_like()["PP1.log"], "in _pp_launch_batch")
    rows = joined(**{"x/a": a, "y/b": b})
    assert [r.rank for r in rows["y/b"] if isinstance(r, ExceptionRow)] == [None]


def test_whole_files_are_left_alone() -> None:
    together = joined(**a1_like())
    apart = {name: rows for name, text in a1_like().items() for rows in joined(**{name: text}).values()}
    assert together == apart
