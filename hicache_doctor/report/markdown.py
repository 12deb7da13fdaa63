"""The verdict as Markdown, short enough to paste into a GitHub issue.

Text from artefacts stands in fences, or is escaped so that it can neither format, mention, nor embed anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hicache_doctor.report import phrases
from hicache_doctor.report.clean import printable, printable_lines
from hicache_doctor.signatures.verdict import Citation, Verdict

LINKS = 8
QUOTE_LINES = 12
QUOTE_CHARS = 400
REPOSITORY = "sgl-project/sglang"

# An underscore inside a word formats nothing on GitHub and stays as it is.
_SPECIAL = re.compile(r"([\\`*\[\]<>|~]|(?<!\w)_|_(?!\w))")


def render_markdown(verdict: Verdict) -> str:
    """The verdict for an issue: what, who, evidence with quotes, the PR, what was excluded."""
    v = verdict
    head, *rest = phrases.headline(v)
    out = [f"### {plain(head)}: {plain(phrases.titles(v)[0])}", ""]
    out += _facts(v, rest)
    out += _chain(v)
    if v.actions and v.status != "healthy":
        out += ["**What to do**", ""]
        for when, heading in phrases.ACTION_GROUPS:
            for a in v.actions:
                if a.when == when:
                    out += [f"- {heading}: {plain(a.do)}", *_fence(a.command, "sh")]
        out.append("")
    if v.excluded:
        out += ["**Excluded**", ""]
        out += [f"- {plain(e.signature)}: {plain(e.because)}{_places(e.citations)}" for e in v.excluded]
        out.append("")
    if v.next_evidence:
        out += ["**Would decide**" if v.status == "undetermined" else "**To collect next**", ""]
        for n in v.next_evidence:
            out += [f"- {plain(n.why)}", *_fence(n.command, "sh")]
        out.append("")
    out.append(f"<sub>{plain(phrases.footer(v))}</sub>")
    return "\n".join(out) + "\n"


def _facts(v: Verdict, rest: list[str]) -> list[str]:
    rows: list[tuple[str, str]] = []
    if rest:
        rows.append(("Verdict", plain(", ".join(rest))))
    if v.confidence_because:
        rows.append((phrases.because_label(v), plain(v.confidence_because)))
    setup = phrases.setup(v)
    if setup:
        rows.append(("Setup", plain(" · ".join(setup))))
    if v.first_failing_rank:
        rows.append(("First failed", plain(v.first_failing_rank)))
    for label, ranks in (("Culprits", v.culprits), ("Victims", v.victims), ("Missing ranks", v.ranks.missing)):
        if ranks:
            rows.append((label, plain(", ".join(phrases.rank_list(ranks)))))
    if v.first_divergence:
        d = v.first_divergence
        values = "; ".join(f"{rank}: {value}" for rank, value in d.values.items())
        rows.append(("First diverged", plain(f"{d.stream}, ordinal {d.ordinal}: {values}")))
    for cause in phrases.causes(v):
        title = f" ({plain(cause.title)})" if cause.title else ""
        label = "Root cause" if cause.root else "Also fixed by"
        rows.append((label, f"{REPOSITORY}#{cause.pr}{title}, {plain(cause.words)}"))
    return [*(f"- **{label}:** {text}" for label, text in rows), ""]


def _chain(v: Verdict) -> list[str]:
    if not v.evidence_chain:
        return []
    out = [f"**{phrases.chain_heading(v)}**", ""]
    for n, link in enumerate(v.evidence_chain[:LINKS], 1):
        out.append(f"{n}. {plain(link.claim)}{_places(link.citations)}")
        quote = next((c.quote for c in link.citations if c.quote), None)
        out += _fence(quote, "text")
    if len(v.evidence_chain) > LINKS:
        out.append(f"\n… {len(v.evidence_chain) - LINKS} more links in the full report")
    return [*out, ""]


def _places(citations: Iterable[Citation]) -> str:
    places = [phrases.place(c) for c in citations][:3]
    return f" ({', '.join(code(p) for p in places)})" if places else ""


def _fence(text: str | None, language: str) -> list[str]:
    """An indented fence that the text cannot close; commands are whole, quotes clipped."""
    if not text:
        return []
    lines = printable_lines(text)
    if language != "sh":
        lines = [x if len(x) <= QUOTE_CHARS else x[:QUOTE_CHARS] + "…" for x in lines[:QUOTE_LINES]]
    ticks = "`" * max(3, 1 + _longest_run("\n".join(lines)))
    return [f"   {ticks}{language}", *(f"   {line}" for line in lines), f"   {ticks}"]


def _longest_run(text: str) -> int:
    return max((len(m) for m in re.findall(r"`+", text)), default=0)


def code(text: str) -> str:
    """A code span that the text cannot close."""
    text = printable(text)
    ticks = "`" * (1 + _longest_run(text))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def plain(text: str) -> str:
    """Text with Markdown and HTML neutralised; a zero-width space keeps ``@name`` from notifying anyone."""
    escaped = _SPECIAL.sub(r"\\\1", printable(text).replace("&", "&amp;"))
    return escaped.replace("@", "@\u200b").replace("://", ":\u200b//")
