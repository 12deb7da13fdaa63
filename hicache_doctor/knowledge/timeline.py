"""The known releases in order, and where a version lies among them.

A version is either a release (its code is known) or it lies in a *gap* between two of them: development builds,
pre-releases, post releases that the knowledge doesn't list, and everything newer than the newest known release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from packaging.version import Version as Pep440

from hicache_doctor.knowledge.records import shipped_knowledge
from hicache_doctor.knowledge.versions import Version, VersionRange, parse_version

Where = Version | VersionRange | str

EARLIEST, LATEST = Pep440("0"), Pep440("99999")
"""Stand for everything older than the oldest and newer than the newest known release."""


@dataclass(frozen=True, slots=True)
class Release:
    """One release on PyPI.

    ``examined``: its wheel was read; otherwise it is known by name only and lies between two that are alike.
    ``default_tree``: the tree class by kind of model (dense, dsa, swa, mamba); ``None`` where that is not known.
    ``unified_opt_in``: ``SGLANG_ENABLE_UNIFIED_RADIX_TREE=1`` changes the class here.
    """

    version: str
    number: Pep440
    date: str | None
    examined: bool
    tree_classes: tuple[str, ...]
    default_tree: Mapping[str, str | None]
    unified_opt_in: bool

    @property
    def main_line(self) -> bool:
        """Whether it was cut from the main line, rather than repaired afterwards (a post release)."""
        return not self.number.is_postrelease


@dataclass(frozen=True, slots=True)
class Place:
    """From what ``low`` has to what ``high`` has, both included; ``None`` is an open end."""

    low: Pep440 | None
    high: Pep440 | None
    gap: bool = False
    vendor: bool = False

    def numbers(self) -> list[Pep440]:
        """The numbers at which a question has to be asked: the known releases within, and the ends.

        ``EARLIEST`` and ``LATEST`` stand for open ends.
        """
        low, high = self.low or EARLIEST, self.high or LATEST
        return sorted({low, high, *(release.number for release in releases() if low <= release.number <= high)})

    def releases(self) -> list[Release]:
        """The known releases within; the nearest older one where there is none."""
        low, high = self.low or EARLIEST, self.high or LATEST
        older = [release for release in releases() if release.number < low]
        return [release for release in releases() if low <= release.number <= high] or older[-1:]


@cache
def releases() -> tuple[Release, ...]:
    """The known releases, oldest first."""
    return tuple(
        Release(
            entry["version"],
            Pep440(entry["version"]),
            entry["date"],
            entry["examined"],
            tuple(entry["tree_classes"]),
            entry["default_tree"],
            entry["unified_opt_in"],
        )
        for entry in shipped_knowledge("releases")["releases"]
    )


def release_at(number: Pep440) -> Release | None:
    """The newest known release that isn't newer than ``number``."""
    return next((release for release in reversed(releases()) if release.number <= number), None)


def release_of(version: Version | str) -> Release | None:
    """The known release that a version is exactly; ``None`` for builds, vendors and unlisted numbers."""
    version = parse_version(version) if isinstance(version, str) else version
    if version.kind != "release":
        return None
    return next((release for release in releases() if release.number == version.pep440), None)


def next_main_line(number: Pep440) -> Release | None:
    """The first known main-line release after ``number``."""
    return next((release for release in releases() if release.main_line and release.number > number), None)


def place_of(where: Where) -> Place | None:
    """Where a version or range lies; ``None`` when nothing is known about it, or the range is empty."""
    if isinstance(where, str):
        where = parse_version(where)
    if isinstance(where, Version):
        return _place(where)
    if where.empty:
        return None
    low, high = (_place(end) if end else None for end in (where.low, where.high))
    return Place(low.low if low else None, high.high if high else None)


def _place(version: Version) -> Place | None:
    number = version.pep440
    if number is None or (number.is_devrelease and not version.commits):
        return None
    vendor = version.kind == "vendor"
    listed = [release.number for release in releases()]
    if not number.is_prerelease and (number in listed or not listed[0] < number < listed[-1]):
        return Place(number, number, gap=number > listed[-1], vendor=vendor)
    low = version.tag or max((known for known in listed if known < number), default=None)
    ahead = next_main_line(low or number)
    high = ahead.number if ahead else max(number, Pep440(number.base_version))
    return Place(low, high, gap=True, vendor=vendor)
