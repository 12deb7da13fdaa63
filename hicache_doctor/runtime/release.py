"""Switches by release: which of the modelled fixes a release has, from the knowledge."""

from __future__ import annotations

from hicache_doctor.errors import UsageError
from hicache_doctor.runtime import fixes
from hicache_doctor.runtime.fixes import Fix, Fixes

TREE_CLASS = {"hiradix": "HiRadixCache", "unified": "UnifiedRadixCache"}


def resolve(text: str, tree: str = "hiradix") -> Fixes:
    """``--fixes`` as people write it: ``all``, ``none``, ``+27285,-28916``, ``0.5.16``, or ``0.5.16,+31425``.

    Raises:
        UsageError: a word is neither a switch nor a release.
    """
    words = [w.strip() for w in text.split(",") if w.strip()]
    if words and words[0][0].isdigit() and "." in words[0]:
        return fixes.parse(",".join(words[1:]), in_release(words[0], tree))
    return fixes.parse(text)


def in_release(release: str, tree: str = "hiradix") -> list[int]:
    """The PRs of the knowledge that are in a release, for that tree class.

    Raises:
        UsageError: no such release.
    """
    from hicache_doctor.knowledge import prs, timeline

    if timeline.release_of(release) is None:
        raise UsageError(f"{release!r} is no release that the knowledge holds; `kb list` shows what it does")
    found = [f.pr.number for f in prs.fixes_in(release, TREE_CLASS[tree], changes=True)]
    return [int(n) for n in found if str(n).isdigit()]


def released(release: str, tree: str = "hiradix") -> Fixes:
    """The switches of a release."""
    return fixes.parse("", in_release(release, tree))


def models(fix: int) -> bool:
    """Whether a PR is a switch of this runtime."""
    return any(f.value == fix for f in Fix)
