"""From the store to the verdict: derive, walk the path, and say what the leaf's rule knows.

The node that the walk reaches is the verdict; this module only dresses it with its evidence chain, fixes, actions,
exclusions and what to collect. It decides nothing that the rules don't.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hicache_doctor import __version__
from hicache_doctor.evidence import (
    decisions,
    places,
    progress,
    roles,
    shapes,
    sides,
    slopes,
    stack_change,
    streams,
    waits,
)
from hicache_doctor.knowledge.records import knowledge_as_of
from hicache_doctor.signatures import missing
from hicache_doctor.signatures.advice import already_set
from hicache_doctor.signatures.candidates import Candidates
from hicache_doctor.signatures.facts import Facts, gather, shown_settings
from hicache_doctor.signatures.fixes import fixes_of, root_cause
from hicache_doctor.signatures.load import RuleBase
from hicache_doctor.signatures.match import Evaluator, citation, fill, stamp
from hicache_doctor.signatures.model import Node, Rule
from hicache_doctor.signatures.path import walk
from hicache_doctor.signatures.verdict import (
    Action,
    Confidence,
    FirstDivergence,
    LastMinute,
    Link,
    NextEvidence,
    OtherCause,
    Ranks,
    Verdict,
)

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

LAST_LINES = 3
LAST_MINUTE = """
WITH lines AS (
  SELECT artifact, line, rank, ts,
         printf('Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, token usage: %.2f',
                coalesce(new_seq, 0), coalesce(new_token, 0), coalesce(cached_token, 0), coalesce(usage, 0)) AS text
  FROM batch WHERE kind = 'prefill'
  UNION ALL
  SELECT artifact, line, rank, ts, text FROM log
  WHERE kind IN ('client_disconnected', 'abort_request', 'prefetch_local_synced', 'prefetch_agreed', 'retracted',
                 'storage_error', 'request_timeout')),
ends AS (
  SELECT artifact, rank, min(line) AS line FROM exception WHERE rank IS NOT NULL GROUP BY ALL
  UNION ALL
  SELECT artifact, rank, min(line) FROM log
  WHERE kind IN ('watchdog_timeout', 'nccl_timeout') AND rank IS NOT NULL GROUP BY ALL),
last AS (
  SELECT l.*, row_number() OVER (PARTITION BY l.rank ORDER BY l.line DESC) AS n
  FROM lines l JOIN ends e ON e.artifact = l.artifact AND e.rank IS NOT DISTINCT FROM l.rank AND l.line < e.line)
SELECT * FROM last WHERE n <= ? ORDER BY rank, line
"""
WAITING = """
SELECT n.rank FROM wait_node n WHERE n.state = 'waiting'
  AND EXISTS (SELECT 1 FROM wait_edge e WHERE e.rank = n.rank AND NOT e.idle) ORDER BY n.rank
"""
# A rank whose peer closed the connection was left by others, wherever its recorder ends.
SINKS = """
SELECT rank FROM wait_culprit
WHERE rank NOT IN (SELECT rank FROM rank_role WHERE role = 'victim' AND rank IS NOT NULL) ORDER BY position
"""


def diagnose(store: Store, base: RuleBase, *, explain: bool = False) -> Verdict:
    """Diagnose what the store holds; with ``explain`` every rule is evaluated, not only those that matter.

    Raises:
        RuleError: a rule, node or piece of evidence is wrong.
    """
    facts = derive(store, base)
    evaluator = Evaluator(store, base.evidence, facts)
    taken = walk(base, evaluator)
    rule = base.rules[taken.leaf.verdict or "undetermined"]
    return _Dress(store, base, facts, evaluator, rule, taken.leaf).verdict(taken.steps, explain)


def derive(store: Store, base: RuleBase) -> Facts:
    """Fill the derived tables (places, changes of stacks, streams, shapes, roles, waits, …) and gather the facts."""
    place_rules = places.load_places(base.places)
    places.derive(store, place_rules, sides.load_sides(base.sides))
    stack_change.derive(store)
    facts = gather(store)
    page = facts.settings.get("page_size")
    page = page if isinstance(page, int) else None
    streams.derive(store, page)
    progress.derive(store)
    slopes.derive(store)
    decisions.derive(store, base.events, base.event_words, page)
    shapes.derive(store, facts.settings, base.models)
    roles.derive(store)
    store.con.execute("CREATE OR REPLACE TABLE missing_rank (rank VARCHAR)")
    store.fill("missing_rank", [{"rank": r} for r in facts.missing])
    waits.derive(store, facts.settings, facts.missing, place_rules)
    return facts


def rule_hangs(rule: Rule, evaluator: Evaluator) -> bool:
    """Whether the stacks of all ranks would say more: a hang, named or not."""
    if rule.kind in {"healthy", "out_of_scope"}:
        return False
    seen = (evaluator.answer(name).value == "yes" for name in ("hang_seen", "waits_found"))
    return rule.form == "C" or (rule.kind != "signature" and any(seen))


class _Dress:
    """Dresses one leaf."""

    def __init__(
        self, store: Store, base: RuleBase, facts: Facts, evaluator: Evaluator, rule: Rule, leaf: Node
    ) -> None:
        self._store, self._base, self._facts = store, base, facts
        self._evaluator, self._rule, self._leaf = evaluator, rule, leaf
        self._phrases = base.phrases
        self._waits = rule_hangs(rule, evaluator)

    def verdict(self, steps: list[Any], explain: bool) -> Verdict:
        rule, facts = self._rule, self._facts
        candidates = Candidates(self._base, self._evaluator, facts)
        confidence, because = self._confidence(candidates)
        culprits = self._culprits()
        victims = self._victims(culprits)
        first = self._first_rank(culprits)
        tree = facts.tree
        pr = self._leaf.root_cause_pr or root_cause(rule, tree)
        state, fixes = fixes_of(rule, self._leaf, facts, pr)
        return Verdict(
            status=rule.kind,
            signature=rule.id if rule.kind == "signature" else None,
            form=rule.form,
            title=rule.title,
            confidence=confidence,
            confidence_because=because,
            other_cause=OtherCause(id=rule.id, title=rule.title) if rule.kind == "other_cause" else None,
            first_divergence=self._divergence(),
            ranks=Ranks(expected=facts.expected, seen=facts.seen, missing=facts.missing),
            first_failing_rank=first,
            culprits=[first] if first and not culprits else culprits,
            victims=[v for v in victims if v != first],
            evidence_chain=self._chain(),
            root_cause_pr=pr,
            root_cause_state=state,
            fixes=fixes,
            actions=self._actions(),
            also=candidates.also(rule) if rule.kind in {"signature", "undetermined"} else [],
            excluded=candidates.excluded(rule),
            next_evidence=self._next(confidence),
            path=steps,
            settings=shown_settings(facts),
            last_minute=self._last_minute() if rule.kind not in {"healthy", "out_of_scope"} else [],
            rules_evaluated=candidates.evaluated() if explain else [],
            tool_version=__version__,
            knowledge_as_of=knowledge_as_of(),
        )

    # -- confidence ---------------------------------------------------------------------------------------------

    def _confidence(self, candidates: Candidates) -> tuple[Confidence | None, str | None]:
        """Certain, likely or possible by rule (DESIGN section 5); None where the word has no meaning."""
        rule = self._rule
        if rule.kind in {"undetermined", "healthy", "out_of_scope"}:
            return None, self._leaf.because
        level, key, values = candidates.confidence(rule)
        because = fill(self._phrases[key], values)
        return level, because if self._leaf.because is None else f"{because}; {self._leaf.because}"

    # -- ranks --------------------------------------------------------------------------------------------------

    def _first_rank(self, culprits: list[str]) -> str | None:
        if self._rule.first_rank == "none" and self._rule.kind != "undetermined":
            return None
        if self._rule.first_rank == "evidence":
            return culprits[0] if culprits else None
        rank: str | None = self._store.value(
            "SELECT rank FROM rank_role WHERE role = 'first' ORDER BY position LIMIT 1"
        )
        if rank is None and self._rule.first_rank == "role":
            rank = self._parted_rank()
        # Where nothing was raised and nothing parted: the one rank that all waiting ends at.
        return rank or (culprits[0] if self._waits and len(culprits) == 1 else None)

    def _parted_rank(self) -> str | None:
        """Where nothing was raised: the rank that decided otherwise first, as the probes show it."""
        if self._rule.kind != "signature":
            return None
        row = decisions.first(self._store)
        return row.get("culprit") if row else None

    def _culprits(self) -> list[str]:
        if source := self._rule.culprits_from:
            entries = [source] if isinstance(source, str) else source
            named = next((ranks for e in entries if (ranks := self._named(e))), [])
            if named or not self._rule.parted:
                return named
        rows = self._store.rows(
            "SELECT rank FROM rank_role WHERE role = 'first' AND rank IS NOT NULL ORDER BY position"
        )
        parted = self._parted_rank()
        first = [r["rank"] for r in rows] or ([parted] if parted else [])
        if first or not self._waits:
            return first
        return [r["rank"] for r in self._store.rows(SINKS)]

    def _victims(self, culprits: list[str]) -> list[str]:
        rows = self._store.rows("SELECT rank FROM rank_role WHERE role = 'victim' AND rank IS NOT NULL ORDER BY rank")
        named = [r["rank"] for r in rows] + self._named(self._rule.victims_from)
        if self._waits:
            named += [r["rank"] for r in self._store.rows(WAITING)] if culprits else []
        return sorted(v for v in dict.fromkeys(named) if v not in culprits)

    def _named(self, evidence: str | list[str] | None) -> list[str]:
        """The ranks that the rows of some evidence name."""
        names = [evidence] if isinstance(evidence, str) else evidence or []
        return list(dict.fromkeys(r["rank"] for n in names for r in self._evaluator.answer(n).rows if r.get("rank")))

    # -- evidence -----------------------------------------------------------------------------------------------

    def _chain(self) -> list[Link]:
        out: list[Link] = []
        said: set[str] = set()
        for name in self._rule.chain:
            answer = self._evaluator.answer(name)
            if answer.value != "yes":
                continue
            claim = answer.claim()
            if claim not in said:
                said.add(claim)
                out.append(Link(claim=claim, citations=answer.citations()))
        return out

    def _divergence(self) -> FirstDivergence | None:
        row = decisions.first(self._store)
        if row is None or self._rule.kind in {"healthy", "out_of_scope"}:
            return None
        cites = [
            citation(
                {
                    "artifact": row[f"artifact_{s}"],
                    "line": row[f"line_{s}"],
                    "record": row[f"record_{s}"],
                    "rank": row[f"rank_{s}"],
                    "quote": row[f"quote_{s}"],
                }
            )
            for s in ("a", "b")
        ]
        return FirstDivergence(
            stream=row["stream"] + (f" of request {row['key']}" if row["key"] and row["tier"] is None else ""),
            ordinal=row["ordinal"],
            values=decisions.values(self._store, row) | {row[f"rank_{s}"]: row[f"value_{s}"] for s in ("a", "b")},
            citations=[c for c in cites if c is not None],
        )

    # -- what to do ---------------------------------------------------------------------------------------------

    def _actions(self) -> list[Action]:
        return [
            Action(when=a.when, do=a.do + self._set_already(a.command), command=a.command)
            for a in self._rule.actions
            if a.only_if is None or self._evaluator.answer(a.only_if).value == "yes"
        ]

    def _set_already(self, command: str | None) -> str:
        """A remark on the part of a command that changes nothing here; it may not be the way out."""
        same = already_set(command, self._facts.settings)
        return " " + fill(self._phrases["already_set"], {"options": ", ".join(same)}) if same else ""

    def _next(self, confidence: Confidence | None) -> list[NextEvidence]:
        out = [
            NextEvidence(why=n.why, command=n.command)
            for n in self._rule.next
            if n.unless is None or self._evaluator.answer(n.unless).value != "yes"
        ]
        if self._rule.kind in {"healthy", "out_of_scope"}:
            return out
        out += missing.ranks(self._store, self._facts, self._phrases)
        out += missing.silent(self._evaluator, self._phrases)
        if rule_hangs(self._rule, self._evaluator):
            out += missing.stacks(self._store, self._facts, self._phrases)
        if self._facts.version is None and self._rule.kind == "signature":
            out.append(
                NextEvidence(why=self._phrases["version_unknown"], command=self._phrases["version_unknown_command"])
            )
        return out if confidence != "certain" else [n for n in out if n.command]

    def _last_minute(self) -> list[LastMinute]:
        """The last lines of every rank before its own failure: the clocks of hosts are not compared."""
        rows = self._store.rows(LAST_MINUTE, [LAST_LINES])
        return [
            LastMinute(rank=r["rank"], time=stamp(r["ts"]), text=r["text"], artifact=r["artifact"], line=r["line"])
            for r in rows
        ]
