"""Several lives of a process in one log, and several incidents in one folder: which one is diagnosed.

The last complete failure is; the earlier ones are listed. A life is numbered within its file, 0 first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hicache_doctor.evidence.rows import BOUND_KEY, Batch, ExceptionRow, GroupStatus, LogRecord, Row, Setting, Stack

FAILURES = {
    "sigquit", "subprocess_crashed", "watchdog_timeout", "nccl_timeout", "fatal_python", "killed", "elastic_failed",
    "startup_failed",
}  # fmt: skip
APART = 1_800.0
# Kinds that speak of a host or a job rather than of one life of one process.
OF_THE_MACHINE = ("kernel_", "ras_", "nvidia_smi")


@dataclass(frozen=True, slots=True)
class Earlier:
    """A failure that is not the one diagnosed."""

    ts: float | None
    title: str
    artifact: str
    line: int


@dataclass(slots=True)
class Selection:
    """What was kept: the life of each artefact that has several, and the failures that were left out, oldest first.

    ``dropped`` are artefacts of another incident.
    """

    chosen: dict[str, int]
    earlier: list[Earlier]
    dropped: set[str]


def select(rows_by_artifact: Mapping[str, list[Row]], life: int | None = None) -> Selection:
    """Keep one life of each artefact (``life`` counts from 1; None: the last that failed, else the last) and one
    incident of the folder. Rows of others are removed in place."""
    earlier: list[Earlier] = []
    kept: dict[str, int] = {}
    for artifact, rows in rows_by_artifact.items():
        dated = [r for r in rows if isinstance(r, (LogRecord, ExceptionRow, Batch, Stack)) and not _of_the_machine(r)]
        lives = sorted({r.life for r in dated})
        if len(lives) < 2:
            continue
        failed = [n for n in lives if _failure(rows, n) is not None]
        chosen = (failed or lives)[-1] if life is None else lives[min(max(life, 1), len(lives)) - 1]
        earlier += [_earlier(artifact, f) for n in failed if n != chosen and (f := _failure(rows, n)) is not None]
        starts = {n: min((r.line or 0 for r in dated if r.life == n), default=0) for n in lives}
        configured = _configured(rows, chosen, starts)
        rows[:] = [r for r in rows if _belongs(r, chosen, configured, starts)]
        kept[artifact] = chosen
    others, dropped = _other_incidents(rows_by_artifact)
    earlier = sorted([*earlier, *others], key=lambda e: (e.ts is None, e.ts or 0.0, e.artifact, e.line))
    return Selection(kept, earlier, dropped)


def _belongs(row: Row, chosen: int, configured: int, starts: Mapping[int, int]) -> bool:
    if _of_the_machine(row):
        return True
    if isinstance(row, GroupStatus) and row.source == "log" and row.line is not None:
        return _life_at(row.line, chosen, starts) == chosen
    if isinstance(row, (LogRecord, ExceptionRow, Batch, Stack)):
        return row.life == chosen
    if isinstance(row, Setting) and row.line is not None and _of_a_life(row):
        return _life_at(row.line, chosen, starts) == (chosen if row.key == BOUND_KEY else configured)
    return True


def _of_the_machine(row: Row) -> bool:
    return isinstance(row, LogRecord) and row.kind.startswith(OF_THE_MACHINE)


def _life_at(line: int, chosen: int, starts: Mapping[int, int]) -> int:
    return max((n for n, start in starts.items() if start <= line), default=chosen)


def _configured(rows: list[Row], chosen: int, starts: Mapping[int, int]) -> int:
    """The life whose server_args hold for the chosen one: its own, or, where its head is lost, the nearest one's,
    because a restart repeats the command."""
    shown = {
        _life_at(r.line, chosen, starts)
        for r in rows
        if isinstance(r, Setting) and r.line is not None and "server_args" in r.source
    }
    return min(shown or {chosen}, key=lambda n: (abs(n - chosen), n))


def _of_a_life(row: Setting) -> bool:
    """Whether a setting was printed by one life of the process; notes and commands stand for all of them."""
    return "server_args" in row.source or row.key == BOUND_KEY


def _failure(rows: list[Row], life: int) -> ExceptionRow | LogRecord | None:
    """The most telling failure of a life: an error of its own, else any error, else a sign of death."""
    errors = [r for r in rows if isinstance(r, ExceptionRow) and r.life == life and r.proof != "analyser"]
    own = [e for e in errors if e.proof == "own"]
    signs = [r for r in rows if isinstance(r, LogRecord) and r.life == life and r.kind in FAILURES]
    for found in (own, errors, signs):
        if found:
            return found[0]
    return None


def _earlier(artifact: str, failure: ExceptionRow | LogRecord) -> Earlier:
    title = f"{failure.type}: {failure.message}" if isinstance(failure, ExceptionRow) else failure.text
    who = f"{failure.rank}: " if failure.rank else ""
    return Earlier(failure.ts, who + title[:200].splitlines()[0] if title else who, artifact, failure.line)


def _other_incidents(rows_by_artifact: Mapping[str, list[Row]]) -> tuple[list[Earlier], set[str]]:
    """Files of another deployment, or of an earlier failure of the same rank, are another incident."""
    failures = {a: f for a, rows in rows_by_artifact.items() if (f := _any_failure(rows)) is not None}
    if len(failures) < 2:
        return [], set()
    models = {a: m for a, rows in rows_by_artifact.items() if (m := _model(rows)) is not None}
    latest = max(failures, key=lambda a: failures[a].ts or 0.0)
    out: list[Earlier] = []
    dropped: set[str] = set()
    for artifact, failure in failures.items():
        if artifact == latest:
            continue
        other_model = latest in models and artifact in models and models[artifact] != models[latest]
        again = _same_rank_failed_later(artifact, failure, failures)
        if other_model or again:
            out.append(_earlier(artifact, failure))
            rows_by_artifact[artifact].clear()
            dropped.add(artifact)
    return out, dropped


def _any_failure(rows: list[Row]) -> ExceptionRow | LogRecord | None:
    lives = [r.life for r in rows if isinstance(r, (ExceptionRow, LogRecord))]
    return _failure(rows, max(lives)) if lives else None


def _model(rows: list[Row]) -> str | None:
    return next(
        (r.value for r in rows if isinstance(r, Setting) and r.key == "model_path" and "server_args" in r.source), None
    )


def _same_rank_failed_later(
    artifact: str, failure: ExceptionRow | LogRecord, failures: Mapping[str, ExceptionRow | LogRecord]
) -> bool:
    if failure.rank is None or failure.ts is None:
        return False
    return any(
        other.rank == failure.rank and other.ts is not None and other.ts - failure.ts > APART
        for name, other in failures.items()
        if name != artifact
    )
