"""Upstream PRs as switches: one name each, off or on (or a variant), and a release is a set of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from hicache_doctor.errors import UsageError


class Fix(Enum):
    """One switch a repair; the value is the upstream PR number. A guarded branch names the member, so that a search
    for the PR finds the code before and after it."""

    ACK_COUNTS = 27285
    BOUNDED_SENDS = 28916
    HOST_CAPACITY = 29258
    CONSENSUS_VERBATIM = 31869
    CONSENSUS_ABORTS = 32797
    BOOTSTRAP_ABORTS = 27028
    PREFETCH_VOTES = 27010
    VOTE_HIRADIX = 26923
    VOTE_UNIFIED = 27489
    LOGICAL_CLOCK = 22759
    TIMEOUTS = 37143
    IDLE_EVENTS = 20560
    ALLOCATION = 31425
    KEY_MOONCAKE = 15175
    KEY_FILE = 21901
    ABORT_SLOTS = 29405
    ABORT_LEAK = 30053
    GROUP_LISTS = 15805
    PROFILE_FAILURE = 23060
    VOTE_OUTSIDE_LOOP = 33029
    CHUNK_ALIGNMENT = 15372
    CHUNK_FLOOR = 16140
    CHUNK_FIRST_SAMPLE = 17198
    CHUNK_IDLE_GROUPS = 17339


VARIANTS: Mapping[Fix, tuple[str, ...]] = {Fix.ACK_COUNTS: ("pp0", "local", "beat")}
"""Values of a switch that has more than two; the first is what ``all`` means, ``local`` is off."""
ALIASES: Mapping[int, Fix] = {38284: Fix.VOTE_OUTSIDE_LOOP, 30760: Fix.VOTE_OUTSIDE_LOOP}
OPEN = frozenset({Fix.ALLOCATION, Fix.VOTE_OUTSIDE_LOOP})
"""Repairs that no release has; ``all`` includes them."""


@dataclass(frozen=True, slots=True)
class Fixes:
    """The switches that are on; ``on`` is what protocol code asks, a field a switch for speed where it is asked often.

    ``unmodelled`` are fixes of the named release that this runtime has no switch for.
    """

    on: frozenset[Fix]
    ack_counts: str = "pp0"
    unmodelled: tuple[int, ...] = field(default=(), compare=False)

    def __contains__(self, fix: Fix) -> bool:
        return fix in self.on

    def without(self, *fixes: Fix) -> Fixes:
        """The same set with some switched off."""
        off = "local" if Fix.ACK_COUNTS in fixes else self.ack_counts
        return Fixes(self.on - set(fixes), off, self.unmodelled)

    def plus(self, *fixes: Fix) -> Fixes:
        """The same set with some switched on."""
        on = "pp0" if Fix.ACK_COUNTS in fixes else self.ack_counts
        return Fixes(self.on | set(fixes), on, self.unmodelled)

    def names(self) -> list[str]:
        """``27285=pp0`` style names, for people and for the truth file."""
        out = []
        for fix in Fix:
            if fix is Fix.ACK_COUNTS and self.ack_counts != "pp0":
                out.append(f"{fix.value}={self.ack_counts}")
            elif fix in self.on:
                out.append(str(fix.value))
        return out


ALL = Fixes(frozenset(Fix), "pp0")
NONE = Fixes(frozenset(), "local")


def fix_of(number: str | int) -> Fix:
    """The switch of a PR number (``#27285``, ``27285``).

    Raises:
        UsageError: no such switch.
    """
    text = str(number).lstrip("#")
    if text.isdigit():
        n = int(text)
        if n in ALIASES:
            return ALIASES[n]
        for fix in Fix:
            if fix.value == n:
                return fix
    known = ", ".join(str(f.value) for f in Fix)
    raise UsageError(f"the runtime has no switch {number!r}; it models {known}")


def parse(text: str, in_release: Iterable[int] | None = None) -> Fixes:
    """``all``, ``none``, a base and changes (``all,27285=beat``, ``+27285,-28916``).

    A release is resolved by the caller, which passes the PRs in it as ``in_release`` and the rest of the text.

    Raises:
        UsageError: a word is no switch, or no value of it.
    """
    words = [w.strip() for w in text.split(",") if w.strip()]
    fixes = ALL
    if in_release is not None:
        numbers = set(in_release)
        on = frozenset(f for f in Fix if f.value in numbers)
        modelled = {f.value for f in Fix}
        rest = tuple(sorted(n for n in numbers if n not in modelled))
        fixes = Fixes(on, "pp0" if Fix.ACK_COUNTS in on else "local", rest)
    for word in words:
        if word == "all":
            fixes = ALL
        elif word == "none":
            fixes = NONE
        elif "=" in word:
            name, value = word.lstrip("+").split("=", 1)
            fix = fix_of(name)
            allowed = VARIANTS.get(fix, ())
            if value not in allowed:
                raise UsageError(
                    f"#{fix.value} has no value {value!r}; it has {', '.join(allowed) or 'none, it is on or off'}"
                )
            on = fixes.on - {fix} if value == "local" else fixes.on | {fix}
            fixes = Fixes(on, value, fixes.unmodelled)
        elif word.startswith("-"):
            fixes = fixes.without(fix_of(word[1:]))
        else:
            fixes = fixes.plus(fix_of(word.lstrip("+")))
    return fixes
