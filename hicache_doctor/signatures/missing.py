"""What is not there: ranks without a log or a stack, logs that simply end; each with the command that fetches it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hicache_doctor.evidence.streams import stage_of
from hicache_doctor.signatures.facts import Facts
from hicache_doctor.signatures.match import Evaluator, fill, stamp
from hicache_doctor.signatures.verdict import NextEvidence

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

NAMED = 8


def ranks(store: Store, facts: Facts, phrases: Mapping[str, str]) -> list[NextEvidence]:
    """One line a rank that server_args expects and no artefact shows; one line in all when there are many."""
    if len(facts.missing) > NAMED:
        shown = ", ".join(facts.missing[:NAMED]) + ", …"
        why = fill(phrases["missing_many"], {"n": len(facts.missing), "total": facts.expected, "ranks": shown})
        return [NextEvidence(why=why, command=_log_command(store, facts.missing[0], phrases))]
    return [
        NextEvidence(why=fill(phrases["missing_rank"], {"rank": r}), command=_log_command(store, r, phrases))
        for r in facts.missing
    ]


def _log_command(store: Store, rank: str, phrases: Mapping[str, str]) -> str:
    """The command for a rank's log; the pod or host of a seen rank of the same stage is filled in."""
    values: dict[str, Any] = {"rank": rank, "file": rank.replace(" ", "-").lower(), "host": "<host>"}
    seen = store.rows("SELECT id, host, pod FROM rank WHERE host IS NOT NULL OR pod IS NOT NULL ORDER BY id")
    near = next((r for r in seen if stage_of(r["id"]) == stage_of(rank)), None)
    if near is not None:
        key = "missing_rank_pod" if near["pod"] else "missing_rank_host"
        return fill(phrases[key], values | {"near": near["id"], "host": near["host"], "pod": near["pod"]})
    return fill(phrases["missing_rank_command"], values)


def stacks(store: Store, facts: Facts, phrases: Mapping[str, str]) -> list[NextEvidence]:
    """One line a known rank whose stack nothing shows: in a hang every place counts."""
    have = {r["rank"] for r in store.rows("SELECT DISTINCT rank FROM place WHERE source <> 'traceback'")}
    known = store.rows("SELECT id, host, pid FROM rank ORDER BY pp NULLS FIRST, dp NULLS FIRST, tp NULLS FIRST, id")
    lacking = [r for r in known if r["id"] not in have]
    if not have or len(lacking) > NAMED:
        return []
    out = []
    for row in lacking:
        values = {"rank": row["id"], "title": "scheduler_" + row["id"].replace(" ", "_"), "pid": row["pid"]}
        key = "missing_stack_pid" if row["pid"] else "missing_stack_command"
        command = fill(phrases[key], values | {"host": row["host"] or "its host"})
        out.append(NextEvidence(why=fill(phrases["missing_stack"], values), command=command))
    return out


def silent(evaluator: Evaluator, phrases: Mapping[str, str]) -> list[NextEvidence]:
    """Ranks whose log simply ends while the others go on."""
    out = []
    for row in evaluator.answer("log_ends_early").rows:
        values = {"rank": row["rank"], "time": stamp(row["ts"]), "citation": f"{row['artifact']}:{row['line']}"}
        why = fill(phrases["ended_early"], values)
        out.append(NextEvidence(why=why, command=fill(phrases["ended_early_command"], values)))
    return out
