"""What is known of the deployment before any question is asked: settings, release, topology, tree class.

Settings come from several places; the most direct one wins. Where no version is stated, the vocabulary of the log
bounds it, and it stays a range. What is unknown stays unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hicache_doctor.evidence.rows import BOUND_KEY
from hicache_doctor.knowledge.releases import affected_by, default_tree_class, releases
from hicache_doctor.knowledge.versions import Version, VersionRange, parse_version
from hicache_doctor.signatures.match import citation
from hicache_doctor.signatures.verdict import Citation

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

# The most direct source first; matched as a part of `setting.source`.
PRECEDENCE = (
    "option",
    "server_args",
    "server info",
    "server_info",
    "pip",
    "version",
    "command",
    "image",
    "environment",
)
SHOWN = (
    "pp_size", "tp_size", "dp_size", "attn_cp_size", "enable_dp_attention", "enable_hierarchical_cache", "hicache_size",
    "hicache_ratio", "hicache_write_policy", "hicache_storage_backend", "hicache_storage_prefetch_policy", "page_size",
    "disaggregation_mode", "chunked_prefill_size", "speculative_algorithm", "model_path", "watchdog_timeout",
)  # fmt: skip

CFG = """
CREATE OR REPLACE TABLE cfg AS
  SELECT key, value, source, artifact, line, quote FROM (
    SELECT *, row_number() OVER (PARTITION BY key ORDER BY precedence, artifact, line) AS n
    FROM (SELECT s.*, CASE {cases} ELSE 99 END AS precedence FROM setting s WHERE key <> '{bound}'))
  WHERE n = 1
"""


@dataclass(slots=True)
class Facts:
    """The deployment as far as the artefacts tell."""

    settings: dict[str, Any]
    version: Version | VersionRange | None
    version_citations: list[Citation]
    tree: str | None
    seen: list[str]
    expected: int | None
    missing: list[str]
    stages: int | None = None
    notes: list[str] = field(default_factory=list)

    def version_in(self, spec: str) -> bool | None:
        """Whether the release satisfies ``spec`` (``"<0.5.13"``); None when it is unknown or straddles the bound."""
        if self.version is None:
            return None
        return affected_by(self.version, spec)

    @property
    def version_text(self) -> str | None:
        """The release as it is said in a report: a number, or a range said as one."""
        if self.version is None:
            return None
        if isinstance(self.version, VersionRange):
            low, high = self.version.low, self.version.high
            if low is not None and high is not None:
                return str(low) if str(low) == str(high) else f"{low} … {high} (bounded by the log's vocabulary)"
            return f"{'>= ' + str(low) if low else '<= ' + str(high)} (bounded by the log's vocabulary)"
        return str(self.version)


def gather(store: Store) -> Facts:
    """Resolve the settings into the table ``cfg`` and work out release, topology and tree class."""
    _resolve(store)
    settings = {r["key"]: _typed(r["value"]) for r in store.rows("SELECT key, value FROM cfg")}
    version, cites = _version(store)
    seen = [
        r["id"] for r in store.rows("SELECT id FROM rank ORDER BY pp NULLS FIRST, dp NULLS FIRST, tp NULLS FIRST, id")
    ]
    expected, missing = _topology(settings, seen)
    return Facts(
        settings,
        version,
        cites,
        _tree(store, settings, version),
        seen,
        expected,
        missing,
        _whole(settings.get("pp_size")),
    )


def _resolve(store: Store) -> None:
    store.flush()
    cases = " ".join(f"WHEN lower(source) LIKE '%{word}%' THEN {i}" for i, word in enumerate(PRECEDENCE))
    store.con.execute(CFG.format(cases=cases, bound=BOUND_KEY))
    complete = store.value("SELECT count(*) FROM cfg WHERE source LIKE '%server_args%'") or (
        store.value("SELECT count(*) FROM cfg WHERE source LIKE '%command%'")
        and not store.value("SELECT count(*) FROM cfg WHERE key = 'command_cut' AND value = 'True'")
    )
    command = store.rows(
        "SELECT artifact, line, quote FROM cfg WHERE source LIKE '%command%' ORDER BY artifact, line LIMIT 1"
    )
    if complete and command and not store.value("SELECT count(*) FROM cfg WHERE source LIKE '%server_args%'"):
        # A whole launch command without a flag says that the flag's default holds.
        for key, value in {"enable_hierarchical_cache": "False", "pp_size": "1", "tp_size": "1"}.items():
            if not store.value("SELECT count(*) FROM cfg WHERE key = ?", [key]):
                store.fill("cfg", [{"key": key, "value": value, "source": "command line (flag absent)", **command[0]}])


def _version(store: Store) -> tuple[Version | VersionRange | None, list[Citation]]:
    stated = store.rows("SELECT value, artifact, line, quote FROM cfg WHERE key = 'sglang_version'")
    for row in stated:
        version = parse_version(str(row["value"]))
        if version.known:
            return version, [c for c in [citation(row)] if c is not None]
    bounds = store.rows(
        "SELECT DISTINCT ON (value) value, artifact, line, quote FROM setting "
        "WHERE key = ? ORDER BY value, artifact, line",
        [BOUND_KEY],
    )
    fitting = [
        r for r in releases() if all(affected_by(parse_version(str(r.number)), b["value"]) is not False for b in bounds)
    ]
    cites = [c for b in bounds if (c := citation(b)) is not None]
    if not bounds or not fitting:
        return None, []
    low = parse_version(str(fitting[0].number)) if fitting[0] != releases()[0] else None
    high = parse_version(str(fitting[-1].number)) if fitting[-1] != releases()[-1] else None
    if low is None and high is None:
        return None, []
    return VersionRange(low, high), cites


def _topology(settings: dict[str, Any], seen: list[str]) -> tuple[int | None, list[str]]:
    """How many ranks there must be, and the labels of those that no artefact shows."""
    pp, tp = _whole(settings.get("pp_size")), _whole(settings.get("tp_size"))
    dp = _whole(settings.get("dp_size")) or 1
    if pp is None or tp is None:
        return None, []
    attention_dp = str(settings.get("enable_dp_attention")) == "True"
    groups = 1 if attention_dp else dp
    total = pp * tp * groups
    if total > 4096:
        return total, []
    have = set()
    named = False
    for label in seen:
        tokens = dict(re.findall(r"\b(DP|PP|TP)(\d+)", label))
        number = re.fullmatch(r"rank (\d+)", label)
        if number:
            n = int(number[1])
            have.add((n // (pp * tp), n // tp % pp, n % tp))
        elif tokens:
            named = True
            have.add(
                (0 if attention_dp else int(tokens.get("DP", 0)), int(tokens.get("PP", 0)), int(tokens.get("TP", 0)))
            )
    if total == 1:
        return 1, []
    missing = [
        _label(d if groups > 1 else None, p if pp > 1 else None, t if tp > 1 else None, total)
        for d in range(groups)
        for p in range(pp)
        for t in range(tp)
        if (d, p, t) not in have
    ]
    return total, missing if named or have else [m for m in missing if m]


def _label(dp: int | None, pp: int | None, tp: int | None, total: int) -> str:
    parts = [f"{name}{value}" for name, value in (("DP", dp), ("PP", pp), ("TP", tp)) if value is not None]
    return " ".join(parts) if parts else ("rank 0" if total > 1 else "")


def _tree(store: Store, settings: dict[str, Any], version: Version | VersionRange | None) -> str | None:
    """The cache class that runs: what a stack or the log says, else the environment, else the release's default."""
    shown = store.value(
        "SELECT coalesce((SELECT (fields->>'impl') FROM log WHERE kind = 'tree_cache' LIMIT 1), "
        "(SELECT 'UnifiedRadixCache' FROM log WHERE kind IN ('unified_tree', 'unified_tree_old_words') LIMIT 1))"
    )
    if shown:
        return str(shown)
    in_frames = store.rows("SELECT tree, count(*) AS n FROM place WHERE tree IS NOT NULL GROUP BY tree ORDER BY n DESC")
    if len(in_frames) == 1:
        return str(in_frames[0]["tree"])
    if str(settings.get("SGLANG_ENABLE_UNIFIED_RADIX_TREE", "")).strip("\"'").lower() in {"1", "true", "yes", "on"}:
        return "UnifiedRadixCache"
    return None if version is None else default_tree_class(version)


def _typed(value: str | None) -> Any:
    """Text of a setting as a JSON value."""
    words = {
        None: None,
        "None": None,
        "none": None,
        "null": None,
        "True": True,
        "False": False,
        "true": True,
        "false": False,
    }
    if value in words:
        return words[value]
    assert value is not None
    if re.fullmatch(r"-?\d{1,15}", value):
        return int(value)
    if re.fullmatch(r"-?\d{1,15}\.\d{1,15}", value):
        return float(value)
    return value


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def shown_settings(facts: Facts) -> dict[str, Any]:
    """The settings that a verdict carries: the ones that decide, plus the release."""
    out = {key: facts.settings[key] for key in SHOWN if key in facts.settings}
    for key in ("pp_size", "hicache_storage_backend"):
        out.setdefault(key, None)
    out["sglang_version"] = facts.version_text
    if facts.tree:
        out["tree_cache"] = facts.tree
    return out
