"""Pull requests and issues, and the fixes that a version has, lacks, or may have.

A fix is a merged pull request of SGLang's own. One that is open, closed unmerged or a fork's never is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hicache_doctor.knowledge.records import (
    PullRequest,
    State,
    knowledge_as_of,
    lookup,
    pull_requests,
    reference,
)
from hicache_doctor.knowledge.releases import affected_by, contains_fix
from hicache_doctor.knowledge.timeline import Where, release_of
from hicache_doctor.knowledge.versions import VersionRange

__all__ = [
    "Fix",
    "PullRequest",
    "State",
    "affects",
    "fixes_in",
    "knowledge_as_of",
    "lookup",
    "missing_in",
    "pull_requests",
    "reference",
    "select",
    "undecided_in",
]


@dataclass(frozen=True, slots=True)
class Fix:
    """A fix as seen from one version: ``first_here`` if exactly this release brought it first."""

    pr: PullRequest
    first_here: bool = False


def select(state: str | None = None, signature: str | None = None) -> list[PullRequest]:
    """The records in a state and of a signature id (a bare letter is the whole form); all without arguments."""
    return [
        record
        for record in pull_requests().values()
        if (state is None or record.state == state) and (signature is None or record.concerns(signature))
    ]


def fixes_in(where: Where, tree_class: str | None = None, *, changes: bool = False) -> list[Fix]:
    """The fixes that a version, or every version of a range, certainly has; oldest release first.

    With ``tree_class``, a fix counts for that class only and ``first_here`` is meant of the class. ``changes`` adds
    merged features, defaults and performance work.
    """
    release = None if isinstance(where, VersionRange) else release_of(where)
    found = []
    for record in _merged(changes):
        if contains_fix(where, record.id, tree_class) is True:
            parts = record.first_release_by_part
            first = parts.get(tree_class) if tree_class and parts else record.first_release
            found.append(Fix(record, release is not None and first == release.version))
    return found


def missing_in(where: Where, tree_class: str | None = None, *, changes: bool = False) -> list[Fix]:
    """The fixes that a version, or every version of a range, certainly lacks; oldest release first.

    A fix that never reached ``tree_class`` is missing; one that doesn't touch the class is not listed.
    """
    return [Fix(record) for record in _merged(changes) if contains_fix(where, record.id, tree_class) is False]


def undecided_in(where: Where, tree_class: str | None = None, *, changes: bool = False) -> list[Fix]:
    """The fixes of which neither can be said: a development build's gap, a range that straddles, a vendor's build."""
    return [
        Fix(record)
        for record in _merged(changes)
        if contains_fix(where, record.id, tree_class) is None and _touches(record, tree_class)
    ]


def affects(where: Where, pr: int | str) -> bool | None:
    """Whether the fault that a record is about is in a version, by its affected releases; ``None`` if not known."""
    record = lookup(pr)
    if record is None or not record.affected_specs:
        return None
    answers = {affected_by(where, spec) for spec in record.affected_specs}
    return True if True in answers else None if None in answers else False


def _touches(record: PullRequest, tree_class: str | None) -> bool:
    return tree_class is None or not record.first_release_by_part or tree_class in record.first_release_by_part


def _merged(changes: bool) -> Iterator[PullRequest]:
    """Merged pull requests of SGLang's own by first release, then number."""
    from packaging.version import Version as Pep440

    def age(record: PullRequest) -> tuple[Pep440, int]:
        arrival = record.arrival
        return Pep440(arrival.first or arrival.by or "0"), record.number

    yield from sorted(
        (
            record
            for record in pull_requests().values()
            if record.upstream and record.merged and record.kind == "pr" and (changes or record.role == "fix")
        ),
        key=age,
    )
