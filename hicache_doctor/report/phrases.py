"""The wording that all renderers share: places, ranks, fixes, headlines. Labels only; sentences come from the rules.

Nothing here is cleaned for a medium: each renderer does that for its own (:mod:`.clean`, HTML and Markdown escapes).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hicache_doctor.signatures.verdict import Citation, Fix, InventoryRow, LastMinute, Verdict

PULL = "https://github.com/sgl-project/sglang/pull/"

ACTION_GROUPS = (("before_restart", "Before restart"), ("now", "Now"), ("upgrade", "Upgrade"))

_STATUS = {
    "signature": "SIGNATURE",
    "other_cause": "NOT THIS FAMILY",
    "out_of_scope": "OUT OF SCOPE",
    "healthy": "HEALTHY",
    "undetermined": "UNDETERMINED",
}

_CHAIN = {"undetermined": "Seen", "healthy": "Seen working", "out_of_scope": "Seen", "other_cause": "Evidence"}

_SETUP = (
    "engine",
    "pp_size",
    "tp_size",
    "dp_size",
    "attn_cp_size",
    "nnodes",
    "enable_hierarchical_cache",
    "hicache_size",
    "hicache_ratio",
    "hicache_write_policy",
    "hicache_storage_backend",
    "hicache_storage_prefetch_policy",
    "disaggregation_mode",
    "enable_dynamic_chunking",
)


@dataclass(frozen=True, slots=True)
class Cause:
    """One PR that matters: the one that repairs the cause (``root``), or another fix."""

    pr: int
    root: bool
    words: str
    title: str | None


def headline(v: Verdict) -> list[str]:
    """The parts of the first line: ``SIGNATURE A1``, ``certain``, ``form A (our label)``."""
    head = _STATUS[v.status]
    if v.status == "signature" and v.signature:
        head += f" {v.signature}"
    parts = [head]
    if v.status == "other_cause" and v.other_cause:
        parts.append(v.other_cause.id)
    if v.confidence:
        parts.append(v.confidence)
    if v.form:
        parts.append(f"form {v.form} (our label)")
    return parts


def titles(v: Verdict) -> list[str]:
    """The title, and that of the other cause where it says something else."""
    other = v.other_cause.title if v.other_cause else None
    return [v.title] if other in (None, v.title) else [v.title, str(other)]


def chain_heading(v: Verdict) -> str:
    """What the evidence chain is called for this status."""
    return _CHAIN.get(v.status, "Evidence, from the visible error back")


def because_label(v: Verdict) -> str:
    """The label before ``confidence_because``."""
    return f"Why {v.confidence}" if v.confidence else "Why"


def setup(v: Verdict) -> list[str]:
    """What was running, in SGLang's own words: ``SGLang 0.5.12``, ``pp_size=2``, …, ``3 of 4 ranks seen``."""
    out = []
    if v.settings.get("sglang_version") is not None:
        out.append(f"SGLang {v.settings['sglang_version']}")
    elif v.status in ("signature", "undetermined"):
        out.append("SGLang version unknown")
    out += [f"{key}={v.settings[key]}" for key in _SETUP if key in v.settings]
    if v.ranks.seen or v.ranks.expected:
        out.append(seen(v))
    return out


def seen(v: Verdict) -> str:
    """``3 of 4 ranks seen``."""
    n = len(v.ranks.seen)
    if v.ranks.expected is None:
        return f"{n} rank{'' if n == 1 else 's'} seen"
    return f"{n} of {v.ranks.expected} ranks seen"


def rank_list(ranks: Iterable[str]) -> list[str]:
    """Rank labels with runs folded: ``PP1 TP0-7``; order of first appearance is kept."""
    groups: dict[str, list[int]] = {}
    order: list[tuple[str, str | None]] = []
    for label in dict.fromkeys(ranks):
        m = re.fullmatch(r"(.*?)(0|[1-9]\d{0,5})", label, re.DOTALL)
        if m is None:
            order.append((label, None))
            continue
        if m[1] not in groups:
            order.append((m[1], m[1]))
        groups.setdefault(m[1], []).append(int(m[2]))
    out: list[str] = []
    for text, group in order:
        out += [text] if group is None else [f"{text}{run}" for run in _runs(sorted(groups[group]))]
    return out


def _runs(numbers: list[int]) -> list[str]:
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return [x for r in runs for x in ([f"{r[0]}-{r[-1]}"] if len(r) > 2 else map(str, r))]


def place(c: Citation | LastMinute) -> str:
    """Where a datum was read: ``pp1.log:812-815``, ``ring.bin record 7``, or the artefact alone."""
    if c.line is not None:
        end = c.line_end if isinstance(c, Citation) else None
        return f"{c.artifact}:{c.line}-{end}" if end is not None and end > c.line else f"{c.artifact}:{c.line}"
    if isinstance(c, Citation) and c.record is not None:
        return f"{c.artifact} record {c.record}"
    return c.artifact


def tail(c: Citation) -> str:
    """Rank and time of a citation, as far as known."""
    return " ".join(x for x in (c.rank, clock(c.time)) if x)


def clock(time: str | None) -> str:
    """The time of day of an ISO time stamp; anything else as it is."""
    if not time:
        return ""
    m = re.fullmatch(r"\d{4}-\d\d-\d\d[T ](\d\d:\d\d:\d\d(?:\.\d{1,3})?)\d*(Z|[+-]\d\d:?\d\d)?", time)
    return m[1] if m else time


def causes(v: Verdict) -> list[Cause]:
    """The root-cause PR first, whatever its state, then the other fixes."""
    out = []
    by_pr = {f.pr: f for f in v.fixes}
    if v.root_cause_pr is not None:
        fix = by_pr.pop(v.root_cause_pr, None)
        if fix is None:
            state = v.root_cause_state or "state unknown"
            out.append(Cause(v.root_cause_pr, True, _state(state), None))
        else:
            out.append(Cause(fix.pr, True, _fix_words(v, fix), fix.title))
    out += [Cause(f.pr, False, _fix_words(v, f), f.title) for f in by_pr.values()]
    return out


def _state(state: str) -> str:
    if state == "open":
        return "still open, in no release"
    return "closed unmerged, in no release" if state == "closed" else state


def _fix_words(v: Verdict, fix: Fix) -> str:
    if fix.state != "merged":
        return _state(fix.state)
    release: Any = v.settings.get("sglang_version")
    yours = f"your {release}" if release else "your release"
    first = f"first in {fix.first_release}" if fix.first_release else "in no release yet"
    contained = {True: f"already in {yours}", False: f"not in {yours}"}
    known = contained[fix.in_your_release] if fix.in_your_release is not None else "your release is unknown"
    return f"{fix.state}, {first}, {known}"


def unread(v: Verdict) -> list[InventoryRow]:
    """Artefacts that were not read in full."""
    return [row for row in v.inventory if row.read != "all"]


def size(n: int) -> str:
    """Bytes as a person says them: ``812 B``, ``3.4 MB`` (powers of 1000)."""
    value = float(n)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def inventory_words(row: InventoryRow) -> str:
    """Kind, size, how much was read and why not more."""
    read = {"all": "read", "part": "read in part", "none": "not read"}[row.read]
    head = f"{row.kind}, {size(row.bytes)}, {read}"
    return f"{head}: {row.note}" if row.note else head


def last_minute(v: Verdict, limit: int | None) -> list[LastMinute]:
    """The last lines before the first failure, in time order; with a limit, every rank's last line comes first."""
    rows = sorted(v.last_minute, key=lambda r: r.time or "")
    if limit is None or len(rows) <= limit:
        return rows
    wanted = [v.first_failing_rank, *v.culprits, *v.victims]
    last = {r.rank: i for i, r in enumerate(rows)}
    ranks = sorted(last, key=lambda r: (wanted.index(r) if r in wanted else len(wanted), last[r]))
    chosen = [last[r] for r in ranks][:limit]
    rest = [i for i in reversed(range(len(rows))) if i not in chosen]
    return [rows[i] for i in sorted((chosen + rest)[:limit])]


def outcome_evidence(rule: dict[str, Any]) -> list[tuple[str, str]]:
    """(answer, names) of one evaluated rule: all evidence that said yes, no, unknown."""
    evidence = rule.get("evidence")
    if not isinstance(evidence, dict):
        return []
    by_answer: dict[str, list[str]] = {}
    for name in sorted(evidence, key=str):
        by_answer.setdefault(str(evidence[name]), []).append(str(name))
    return [(a, ", ".join(by_answer[a])) for a in sorted(by_answer, key="yes no unknown".find)]


def footer(v: Verdict) -> str:
    """Tool version and the day of the knowledge."""
    return f"hicache-doctor {v.tool_version} · PRs and releases as of {v.knowledge_as_of}"
