"""The shipped records: pull requests and issues, and features that a release has or has not.

Read from ``rules/knowledge/*.json`` with the standard library alone, once per process, in a few milliseconds.
A record says when its code *arrived*; :mod:`hicache_doctor.knowledge.releases` answers for a version or a range.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from hicache_doctor.errors import DoctorError
from hicache_doctor.shipped import rules_dir

State = Literal["merged", "open", "closed", "closed_unmerged"]
HOME = "sgl-project"
_REFERENCE = re.compile(r"(?:(?P<owner>[A-Za-z0-9-]+)(?:/[A-Za-z0-9._-]+)?#|#)?(?P<number>[0-9]{1,9})", re.ASCII)
_ADDRESS = re.compile(r"https?://github\.com/([A-Za-z0-9-]+)/[^/]+/(?:pull|issues)/([0-9]{1,9})(?:[/#?].*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a piece of code came into the releases.

    Attributes:
        first: the first release with it, read in the wheels; ``None`` if never or not exactly known.
        after, by: where ``first`` is not exact: absent up to ``after``, present from ``by`` on.
        parts: the first release by tree class (or backend); ``None`` for a part that never got it.
            Empty when the code does not depend on a part.
        gone: the release that removed it.
        merged_from: the earliest day on which it can have been on the main line (ISO), if known.
    """

    first: str | None = None
    after: str | None = None
    by: str | None = None
    parts: Mapping[str, str | None] | None = None
    gone: str | None = None
    merged_from: str | None = None

    @property
    def never(self) -> bool:
        """No release up to now has it."""
        return self.first is None and self.by is None


@dataclass(frozen=True, slots=True)
class PullRequest:
    """One pull request or issue; dates are ISO, a month alone (``2026-07``) where the day is unknown.

    ``role`` is ``fix`` (repairs a fault, or would), ``change`` (a feature, a default or performance) or ``report``
    (an issue). ``relations`` maps a relation to the ids of other records. ``affected`` has the shape of OSV.
    """

    id: str
    number: int
    repo: str
    kind: Literal["pr", "issue"]
    role: Literal["fix", "change", "report"]
    title: str
    title_exact: bool
    state: State
    opened: str | None
    merged_or_closed: str | None
    merged_or_closed_between: tuple[str | None, str | None] | None
    first_release: str | None
    first_release_between: Mapping[str, str | None] | None
    first_release_by_part: Mapping[str, str | None]
    signatures: tuple[str, ...]
    summary: str
    workarounds: tuple[str, ...]
    relations: Mapping[str, tuple[str, ...]]
    affected: tuple[Mapping[str, Any], ...]
    url: str
    note: str | None

    @property
    def upstream(self) -> bool:
        """Whether it belongs to SGLang itself rather than to a fork or a third party."""
        return self.repo.split("/", 1)[0] == HOME

    @property
    def merged(self) -> bool:
        return self.state == "merged"

    @property
    def arrival(self) -> Arrival:
        """When its code came into SGLang's releases; never for an issue, an unmerged PR or a fork's."""
        if not (self.upstream and self.merged):
            return Arrival()
        bounds = self.first_release_between or {}
        between = self.merged_or_closed_between or (None, None)
        start = self.merged_or_closed or between[0] or self.opened
        return Arrival(
            self.first_release,
            bounds.get("after"),
            bounds.get("by"),
            self.first_release_by_part,
            merged_from=start if start and len(start) == 10 else None,
        )

    @property
    def affected_specs(self) -> tuple[str, ...]:
        """The affected releases as specs for ``affected_by``: ``(">=0.5.13,<0.5.15",)``; empty when not known."""
        words = {"introduced": ">=", "fixed": "<", "last_affected": "<="}
        specs = []
        for entry in self.affected:
            for span in entry["ranges"]:
                bounds = [(key, at) for event in span["events"] for key, at in event.items()]
                specs.append(",".join(f"{words[key]}{at}" for key, at in bounds))
        return tuple(specs)

    def concerns(self, signature: str) -> bool:
        """Whether it belongs to a signature id; a bare letter stands for the whole form (``A`` for A, A1, A2 …)."""
        wanted = signature.upper()
        whole = len(wanted) == 1
        return any(
            own.upper() == wanted or (whole and own[0] == wanted and own[1].isdigit()) for own in self.signatures
        )


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that the wheels of some releases have and others have not; ``values`` where it is a value."""

    id: str
    what: str
    arrival: Arrival
    part_since: Mapping[str, str]
    values: tuple[Mapping[str, str], ...]


def reference(text: str | int) -> str | None:
    """The id of what a person wrote: ``27010``, ``#27010``, ``bytedance-iaas#670``, ``owner/repo#1`` or an address.

    Numbers of different repositories collide, so a bare number is SGLang's own. ``None`` if it is no reference.
    """
    written = str(text).strip()
    address = _ADDRESS.fullmatch(written)
    found = _REFERENCE.fullmatch(written)
    if address:
        owner, number = address[1], address[2]
    elif found:
        owner, number = found["owner"] or HOME, found["number"]
    else:
        return None
    return str(int(number)) if owner.lower() == HOME else f"{owner}#{int(number)}"


@cache
def shipped_knowledge(name: str) -> Mapping[str, Any]:
    """The parsed ``rules/knowledge/<name>.json``.

    Raises:
        DoctorError: the file is missing or damaged.
    """
    path = rules_dir() / "knowledge" / f"{name}.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DoctorError(f"{path}: cannot be read ({error}); reinstall hicache-doctor") from error
    if document.get("schema_version") != 1:
        raise DoctorError(f"{path}: its schema_version is not 1; reinstall hicache-doctor")
    return dict(document)


@cache
def pull_requests() -> Mapping[str, PullRequest]:
    """Every record by id, SGLang's own first, by number."""
    records = {}
    for entry in shipped_knowledge("prs")["pull_requests"]:
        fields = dict(entry)
        for name in ("signatures", "workarounds", "affected"):
            fields[name] = tuple(fields[name])
        fields["relations"] = {name: tuple(ids) for name, ids in fields["relations"].items()}
        between = fields["merged_or_closed_between"]
        fields["merged_or_closed_between"] = tuple(between) if between else None
        records[fields["id"]] = PullRequest(**fields)
    return records


@cache
def features() -> Mapping[str, Feature]:
    """Every feature by id."""
    found = {}
    for entry in shipped_knowledge("releases")["features"]:
        arrival = Arrival(entry["first_release"], parts=entry["by_part"], gone=entry["gone_in"])
        found[entry["id"]] = Feature(entry["id"], entry["what"], arrival, entry["part_since"], tuple(entry["values"]))
    return found


def lookup(pr: str | int) -> PullRequest | None:
    """The record that a number or reference names, or ``None``."""
    name = reference(pr)
    if name is None:
        return None
    records = pull_requests()
    if name in records:
        return records[name]
    return next((record for key, record in records.items() if key.lower() == name.lower()), None)


def knowledge_as_of() -> str:
    """The day up to which the shipped knowledge was checked, ISO."""
    return str(shipped_knowledge("prs")["knowledge_as_of"])
