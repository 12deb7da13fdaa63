"""What a version of SGLang, or a range of versions, has.

Every answer is ``True``, ``False`` or ``None`` = cannot be told, and ``None`` is never a polite ``False``:

- a listed release is answered from the wheels; one newer than all of them keeps what the newest has;
- a development build, a pre-release and an unlisted post release lie in a *gap*: they have what the release before
  the gap has. What the next main-line release brings first is unknown in them, not missing. So is what the release
  after that brings, unless it was merged only after the gap had closed (branches are cut before they are tagged).
  What comes later still is missing;
- a vendor's build has what its number has; anything else may have been backported, so it is unknown;
- ``.dev0``, an image tag such as ``latest`` and other unknown versions answer nothing.

Versions compare as PEP 440 orders them: 0.5.12 < 0.5.12.post1 < 0.5.13rc1 < 0.5.13.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from packaging.version import InvalidVersion
from packaging.version import Version as Pep440

from hicache_doctor.knowledge.records import Arrival, features, knowledge_as_of, lookup
from hicache_doctor.knowledge.timeline import (
    EARLIEST,
    Place,
    Release,
    Where,
    next_main_line,
    place_of,
    release_at,
    release_of,
    releases,
)
from hicache_doctor.knowledge.versions import Kind, Version, VersionRange, parse_version

__all__ = [
    "Kind",
    "Model",
    "Release",
    "Version",
    "VersionRange",
    "Where",
    "affected_by",
    "contains_fix",
    "default_tree_class",
    "feature_value",
    "has_feature",
    "knowledge_as_of",
    "parse_spec",
    "parse_version",
    "release_of",
    "releases",
    "tree_classes",
]

Model = Literal["dense", "dsa", "swa", "mamba"]
Clause = tuple[Callable[[Pep440, Pep440], bool], Pep440]

_COMPARE: Mapping[str, Callable[[Pep440, Pep440], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_CLAUSE = re.compile(r"\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*")


def contains_fix(where: Where, pr: int | str, tree_class: str | None = None) -> bool | None:
    """Whether a version, or every version of a range, holds the code of a pull request.

    Args:
        where: a version, a range, or a string that is read as a version.
        pr: a number (SGLang's own) or ``owner#number``.
        tree_class: ``HiRadixCache``, ``HiMambaRadixCache`` or ``UnifiedRadixCache``: a fix may have reached the
            classes in different releases. Without it, the release that first carried the pull request counts.
            In a range, the releases that do not ship the class are left out.

    Returns:
        ``None`` also for what is no pull request of SGLang's, for one that is unmerged when the version is newer
        than the knowledge, and for a class that the pull request doesn't touch or the release doesn't ship.
    """
    record = lookup(pr)
    if record is None or not record.upstream or record.kind == "issue" or (record.merged and record.arrival.never):
        return None
    return _holds(where, record.arrival, tree_class, {})


def has_feature(where: Where, feature: str, part: str | None = None) -> bool | None:
    """Whether a version or range has a feature; ``part`` is a tree class, or an L3 backend for ``l3_key_pp_rank``.

    Raises:
        KeyError: no such feature.
    """
    entry = features()[feature]
    return _holds(where, entry.arrival, part, entry.part_since)


def feature_value(where: Where, feature: str) -> str | None:
    """The value of a feature that is a value (``prefetch_capacity_limit``); ``None`` if it differs or is unknown.

    Raises:
        KeyError: no such feature.
    """
    steps = [(Pep440(step["from"]), step["value"]) for step in features()[feature].values]
    place = place_of(where)
    if place is None or place.vendor:
        return None
    found = {next((value for at, value in reversed(steps) if number >= at), None) for number in place.numbers()}
    return found.pop() if len(found) == 1 else None


def affected_by(where: Where, spec: str) -> bool | None:
    """Whether a version, or every version of a range, satisfies ``spec``, such as ``>=0.5.13,<0.5.15``.

    A build in a gap may hold code from both sides of it, so a bound inside the gap answers ``None``.

    Raises:
        ValueError: the spec cannot be read.
    """
    clauses = parse_spec(spec)
    where = parse_version(where) if isinstance(where, str) else where
    if not clauses:
        return True
    if isinstance(where, Version) and where.pep440 is not None and not where.pep440.is_prerelease:
        numbers: Sequence[Pep440] = [where.pep440]
    else:
        place = place_of(where)
        numbers = place.numbers() if place else []
    answer = _same(all(compare(number, bound) for compare, bound in clauses) for number in numbers)
    return None if answer and isinstance(where, Version) and where.kind == "vendor" else answer


def parse_spec(spec: str) -> list[Clause]:
    """The clauses of a spec: comparisons joined by commas, all of which must hold; empty for every version.

    Raises:
        ValueError: with what is wrong and an example.
    """
    clauses = []
    for part in spec.split(",") if spec.strip() else []:
        found = _CLAUSE.fullmatch(part)
        try:
            if found is None:
                raise InvalidVersion(part)
            clauses.append((_COMPARE[found[1]], Pep440(found[2])))
        except InvalidVersion:
            raise ValueError(f"{part.strip()!r} is no version bound; write for example '>=0.5.13,<0.5.15'") from None
    return clauses


def default_tree_class(where: Where, model: Model = "dense") -> str | None:
    """The tree class that a model of this kind gets without any setting; ``None`` if it is unknown or differs."""
    place = place_of(where)
    found = {release.default_tree[model] for release in place.releases()} if place else set()
    return found.pop() if len(found) == 1 else None


def tree_classes(where: Where) -> tuple[str, ...]:
    """Every tree class that the version, or any version of the range, ships."""
    place = place_of(where)
    return tuple(sorted({name for release in place.releases() for name in release.tree_classes})) if place else ()


def _holds(where: Where, arrival: Arrival, part: str | None, since: Mapping[str, str]) -> bool | None:
    place = place_of(where)
    if place is None:
        return None
    if part is not None and arrival.parts:
        if part not in arrival.parts:
            return None
        arrival = Arrival(arrival.parts[part], gone=arrival.gone, merged_from=arrival.merged_from)
        numbers = [number for number in place.numbers() if _ships(number, part, since)]
    else:
        numbers = place.numbers()
    answer = _same(_at(number, arrival) for number in numbers)
    if answer is False and place.gap and numbers and not _missing_past(place, arrival):
        answer = None
    return None if place.vendor and answer is False else answer


def _at(number: Pep440, arrival: Arrival) -> bool | None:
    """Whether the code is in one release number; past the newest release only what was there stays known."""
    first = arrival.first or arrival.by
    if number == EARLIEST and first is not None and Pep440(first) <= releases()[0].number:
        return None
    if arrival.gone is not None and number >= Pep440(arrival.gone):
        return False
    if first is not None and number >= Pep440(first):
        return True
    if number > releases()[-1].number:
        return None
    return False if arrival.by is None or (arrival.after and number <= Pep440(arrival.after)) else None


def _missing_past(place: Place, arrival: Arrival) -> bool:
    """Whether code that is in neither end of a gap cannot be inside it."""
    high = place.high
    if high is None or (arrival.gone is not None and place.low is not None and place.low >= Pep440(arrival.gone)):
        return high is not None
    following = next_main_line(high)
    if following is None:
        return False
    first = arrival.first or arrival.after
    if first is None or Pep440(first) > following.number:
        return True
    closing = release_at(high)
    return bool(arrival.merged_from and closing and closing.date and arrival.merged_from > closing.date)


def _ships(number: Pep440, part: str, since: Mapping[str, str]) -> bool:
    """Whether a release number ships a part at all: a tree class, an L3 backend, or the one controller."""
    if since:
        return number >= Pep440(since.get(part, "0")) and number != EARLIEST
    if not any(part in release.tree_classes for release in releases()):
        return True
    shipping = release_at(number)
    return shipping is not None and part in shipping.tree_classes


def _same(answers: Iterable[bool | None]) -> bool | None:
    """The one answer that all give, else ``None``."""
    found = set(answers)
    return found.pop() if len(found) == 1 else None
