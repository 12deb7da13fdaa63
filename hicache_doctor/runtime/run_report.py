"""What a run of real processes amounts to: its work, its tokens against a run without any cache, its integrity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.outcome import RunReport
from hicache_doctor.runtime.sim_run import wrong_tokens
from hicache_doctor.runtime.workload import Request


@dataclass(slots=True)
class Summary:
    """The JSON of ``runtime run``; counts of caches are those of one rank a replica (they are equal on all).

    ``checked``: ranks that came to their end, and so were counted and checked; without any only the end is known.
    """

    steps: int
    checked: int
    requests: int
    tokens_compared: int
    wrong: list[int]
    hits: dict[str, int]
    evictions: dict[str, int]
    load_backs: int
    prefetches: dict[str, int]
    aborted: int
    integrity: list[str]
    exit: dict[str, int | None]
    outcome: str
    seconds: float
    dump: Path | None = None
    largest_logit_difference: float | None = None
    smallest_margin: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """All ranks ended by themselves, all checks passed."""
        return self.outcome == "done" and not self.wrong and not self.integrity

    def to_json(self) -> dict[str, Any]:
        """As the command prints it; what nobody counted or checked is null."""
        counted: dict[str, Any] = {
            "requests": self.requests,
            "tokens_equal_to_uncached": None if not self.tokens_compared else not self.wrong,
            "tokens_compared": self.tokens_compared,
            "wrong_requests": self.wrong,
            "largest_logit_difference": self.largest_logit_difference,
            "smallest_margin": self.smallest_margin,
            "hits": self.hits,
            "evictions": self.evictions,
            "load_backs": self.load_backs,
            "prefetches": self.prefetches,
            "aborted": self.aborted,
            "integrity": self.integrity,
        }
        return {
            "schema_version": 1,
            "outcome": self.outcome,
            "steps": self.steps,
            "ranks_checked": self.checked,
            **(counted if self.checked else dict.fromkeys(counted)),
            "exit": self.exit,
            "seconds": round(self.seconds, 3),
            "dump": None if self.dump is None else str(self.dump),
            "notes": self.notes,
        }


def summarise(config: Config, report: RunReport) -> Summary:
    """Compare and count. Only ranks that came to their end have results; tokens are compared on the first of them in
    each replica, after a look that the others say the same."""
    topo = config.topo
    requests = config.workload.build(config.seed)
    done = [r for r in report.ranks if r.result is not None]
    leads = _one_each([(topo.place(r.rank).dp, r.result or {}) for r in done])
    wrong: set[int] = set()
    compared = 0
    largest: float | None = None
    margin: float | None = None
    for replica, result in leads.items():
        compared += sum(len(tokens) for tokens in result["outputs"].values())
        for other in done:
            if topo.place(other.rank).dp == replica and (other.result or {})["outputs"] != result["outputs"]:
                wrong.add(-1)
        if config.model.kind == "null":
            wrong |= set(wrong_tokens(config, requests, result))
        else:
            logits = [row for r in done if topo.place(r.rank).dp == replica for row in (r.result or {})["logits"]]
            found, far, near = _against_oracle(config, requests, result, logits)
            wrong |= set(found)
            largest = max(far, largest or 0.0)
            margin = near if margin is None else min(near, margin)

    def total(key: str) -> dict[str, int]:
        names = {"hits": ("l1", "l2", "l3"), "evictions": ("l1", "l2"), "prefetches": ("settled", "revoked", "aborted")}
        return {n: sum(r[key][n] for r in leads.values()) for n in names[key]}

    return Summary(
        steps=max((r.step for r in report.ranks), default=0),
        checked=len(done),
        requests=sum(len(r["outputs"]) for r in leads.values()),
        tokens_compared=compared,
        wrong=sorted(wrong),
        hits=total("hits"),
        evictions=total("evictions"),
        load_backs=sum(r["load_backs"] for r in leads.values()),
        prefetches=total("prefetches"),
        aborted=sum(len(r["aborted"]) for r in leads.values()),
        integrity=[f"{r.label}: {text}" for r in done for text in (r.result or {})["integrity"]],
        exit={r.label: r.exit for r in report.ranks},
        outcome=report.outcome,
        seconds=report.seconds,
        dump=report.dump,
        largest_logit_difference=largest,
        smallest_margin=margin,
        notes=list(report.notes),
    )


def _one_each(results: Sequence[tuple[int, dict[str, Any]]]) -> dict[int, dict[str, Any]]:
    out: dict[int, dict[str, Any]] = {}
    for replica, result in results:
        out.setdefault(replica, result)
    return out


def _against_oracle(
    config: Config, requests: Sequence[Request], result: Mapping[str, Any], logits: Sequence[Sequence[float]]
) -> tuple[list[int], float, float]:
    """Requests with a wrong token, the largest difference of a logit, the smallest margin of a choice."""
    from hicache_doctor.runtime.model import oracle

    outputs = {int(k): v for k, v in result["outputs"].items()}
    texts: dict[int, list[int]] = {}
    prompts: list[list[int]] = []
    produced: list[list[int]] = []
    rids: list[int] = []
    for spec in requests:
        got = outputs.get(spec.rid)
        if got is None:
            continue
        prompt = [*texts.get(spec.after, ()), *spec.tokens]
        texts[spec.rid] = prompt + got
        prompts.append(prompt)
        produced.append(got)
        rids.append(spec.rid)
    tops: dict[int, dict[int, float]] = {}
    near = float("inf")
    for rid, position, top, gap in logits:
        tops.setdefault(int(rid), {})[int(position)] = top
        near = min(near, gap)
    listed = [
        [tops.get(rid, {}).get(len(p) + k, float("nan")) for k in range(len(t))]
        for rid, p, t in zip(rids, prompts, produced, strict=True)
    ]
    found, far = oracle.compare(config, prompts, produced, listed)
    return [rids[d.request] for d in found], far, near
