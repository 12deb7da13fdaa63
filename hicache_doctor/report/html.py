"""The verdict as one offline HTML file: no request leaves the page, and its scripts are pinned by their hashes.

Autoescape is on and every value passes :func:`.clean.printable`; only the style sheet and the three scripts that this
module itself puts in are marked safe.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Any

from hicache_doctor.report import phrases
from hicache_doctor.report.clean import printable, printable_lines
from hicache_doctor.report.timeline import BEFORE, Timeline, build_timeline
from hicache_doctor.signatures.verdict import Verdict

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store


def render_html(verdict: Verdict, store: Store | None = None) -> str:
    """The whole report as HTML; with a store it has a timeline (and plotly.js, about 5 MB) as far as times are known.

    The store is only read.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    timeline = build_timeline(verdict, store) if store is not None else None
    scripts = _scripts(timeline)
    env = Environment(
        loader=PackageLoader("hicache_doctor.report", "templates"),
        autoescape=True,
        finalize=_clean,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["lines"] = printable_lines
    return env.get_template("report.html.j2").render(
        v=verdict,
        words=phrases,
        style=Markup(_asset("report.css")),
        scripts=[Markup(text) for text in scripts],
        figure=Markup(timeline.figure) if timeline else None,
        timeline=timeline,
        minutes=round(BEFORE / 60),
        policy=_policy(scripts),
    )


def _clean(value: Any) -> Any:
    """Every expression of the template passes here: nothing unseen, None as nothing, marked-safe text untouched."""
    if value is None:
        return ""
    if hasattr(value, "__html__"):
        return value
    return printable(str(value))


def _scripts(timeline: Timeline | None) -> list[str]:
    if timeline is None:
        return []
    from plotly.offline import get_plotlyjs

    # An HTML parser turns CR LF into LF before the hash is taken.
    return [text.replace("\r\n", "\n") for text in (get_plotlyjs(), _asset("timeline.js"))]


def _policy(scripts: list[str]) -> str:
    """The Content-Security-Policy: nothing but the scripts with these hashes, inline styles and data images."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{h}'" for h in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return resources.files("hicache_doctor.report").joinpath("templates").joinpath(name).read_text(encoding="utf-8")
