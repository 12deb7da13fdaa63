"""SGLang version strings as they appear in the wild, read into a typed and totally ordered :class:`Version`.

    0.5.14  v0.5.12.post1                     release
    0.5.20rc1                                 prerelease
    0.5.12.post2.dev908+g2c8357f79            development
    0.5.14+vendor.3  v0.5.12-mypatch          vendor
    lmsysorg/sglang:v0.5.12-cu129             release (the flavour of the image says nothing about the code)
    sglang:latest, 25.10-py3, 0.0.0.dev0      unknown

**Development builds.** SGLang's build asks git for the *highest* version tag of the clone, on any branch, counts the
commits of HEAD since the two lines parted, and setuptools-scm then writes the number *after* the tag:
``0.5.12.post2.dev908`` is 908 commits past 0.5.12.post1, ``0.5.12.dev143`` is 143 past 0.5.11. Such a build was made
while the tag was the newest one, from a line that may already hold what the next release will bring. So it has what
its tag has, and what comes next is unknown in it, not missing. ``.dev0`` says only that HEAD was not ahead of the
tag: any older commit prints it, so it has no lower bound. A clone without fresh tags (many forks) can only hold more
than its number says; a scan of the installed tree decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Any, Literal

from packaging.version import InvalidVersion
from packaging.version import Version as Pep440

Kind = Literal["release", "prerelease", "development", "vendor", "unknown"]

_LONGEST = 400
_NUMBER = re.compile(
    r"(?<![0-9A-Za-z.])v?(?P<number>[0-9]{1,6}\.[0-9]{1,6}\.[0-9]{1,6}"
    r"(?:[._-]?rc[0-9]{1,6}|[ab][0-9]{1,6})?(?:[._-]?post[0-9]{1,6})?(?:[._-]?dev[0-9]{1,9})?)"
    r"(?P<local>\+[0-9A-Za-z]+(?:[._-][0-9A-Za-z]+)*)?"
    r"(?P<flavour>(?:[-_][0-9A-Za-z.]+)*)(?![\w+]|\.\w)",
    re.IGNORECASE,
)
# Words of image tags, wheel names and local versions that name a platform or a build, never other source code.
_PLATFORM = re.compile(
    r"(cu|cuda|rocm|hip|py|cp|musa|cann|xpu)[0-9.]*|[0-9]{8}|cpu|npu|xeon|gaudi|tpu|amd64|arm64|x86|64|x86_64|aarch64|any|none"
    r"|linux|manylinux[0-9_]*|ubuntu[0-9.]*|mi[0-9]{2,3}[a-z]*|a[23]|910b?|h20|g?b[0-9]{3}|runtime|slim|srt|all|deepep|blackwell",
    re.IGNORECASE,
)
_COMMIT = re.compile(r"g?[0-9a-f]{6,40}(\.d[0-9]{8})?", re.IGNORECASE)
_BOUND = re.compile(r"sglang(\[[^\]]*\])?\s*(>|<|~=|!=)", re.IGNORECASE)


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """One version of SGLang as somebody wrote it.

    Attributes:
        text: what was written.
        kind: how far the number can be trusted (see the module).
        pep440: the public number; ``None`` exactly when ``kind`` is ``unknown``.
        commits: commits past the tag of a development build, else ``None``.
        because: why it is unknown or a vendor's, in a few words; else empty.

    Order is that of PEP 440, unknown versions before all others; equal means the same number and kind.
    """

    text: str
    kind: Kind
    pep440: Pep440 | None = field(default=None)
    commits: int | None = None
    because: str = ""

    @property
    def known(self) -> bool:
        return self.pep440 is not None

    @property
    def number(self) -> str:
        """The number in its normal form, or what was written when there is none."""
        return self.text if self.pep440 is None else str(self.pep440)

    @property
    def tag(self) -> Pep440 | None:
        """The release tag that a development build counts from; ``None`` where it cannot be told."""
        number = self.pep440
        if number is None or not self.commits:
            return None
        if number.post is not None and number.pre is None:
            return Pep440(f"{number.base_version}.post{number.post - 1}" if number.post > 1 else number.base_version)
        if number.pre is not None:
            stage, count = number.pre
            return Pep440(f"{number.base_version}{stage}{count - 1}") if count else None
        *head, last = number.release
        return Pep440(".".join(map(str, [*head, last - 1]))) if last else None

    def _key(self) -> tuple[int, Any, str]:
        return (0, self.text, "") if self.pep440 is None else (1, self.pep440, self.kind)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Version) else NotImplemented

    def __lt__(self, other: Version) -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return self.number


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Every release from ``low`` to ``high``, both included; ``None`` is an open end.

    This is what the vocabulary of a log can say: "a line that only 0.5.13 to 0.5.16 print".
    """

    low: Version | None = None
    high: Version | None = None

    def __post_init__(self) -> None:
        if (self.low and not self.low.known) or (self.high and not self.high.known):
            raise ValueError("an end of a version range must be a known version, or None for an open end")

    @classmethod
    def of(cls, low: str | None = None, high: str | None = None) -> VersionRange:
        """A range from two strings; ``VersionRange.of("0.5.13", "0.5.16")``."""
        return cls(parse_version(low) if low else None, parse_version(high) if high else None)

    @property
    def empty(self) -> bool:
        return bool(self.low and self.high and self.high < self.low)

    def intersect(self, other: VersionRange) -> VersionRange:
        """What both allow; ``empty`` when the two contradict each other."""
        lows = [v for v in (self.low, other.low) if v]
        highs = [v for v in (self.high, other.high) if v]
        return VersionRange(max(lows) if lows else None, min(highs) if highs else None)

    def __str__(self) -> str:
        if self.low and self.high:
            return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"
        return f"{self.low} or later" if self.low else f"{self.high} or earlier" if self.high else "any version"


def parse_version(text: str) -> Version:
    """Read a version, an image tag, a requirement or a wheel's name. Never raises: what says nothing is ``unknown``."""
    given = text.strip()
    if not given or len(given) > _LONGEST:
        return Version(given[:_LONGEST], "unknown", because="no version in it")
    if _BOUND.search(given):
        return Version(given, "unknown", because="a bound, not a version")
    found = _NUMBER.search(_version_part(given))
    if found is None:
        return Version(given, "unknown", because="names no release")
    try:
        number = Pep440(found["number"])
    except InvalidVersion:
        return Version(given, "unknown", because="names no release")
    if not any(number.release):
        return Version(given, "unknown", because="the build found no version tag")
    stranger = _stranger(found["local"] or "", found["flavour"], development=number.is_devrelease)
    if stranger:
        return Version(given, "vendor", number, number.dev, because=f"'{stranger}' marks a build with own changes")
    kind: Kind = "development" if number.is_devrelease else "prerelease" if number.is_prerelease else "release"
    return Version(given, kind, number, number.dev)


def _version_part(text: str) -> str:
    """The part that may hold the version: the tag of an image, the file name of a path, what follows ``Version:``."""
    name = text.split("@", 1)[0] if "@sha256" in text else text
    last = name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    tag = last.rsplit(":", 1)[-1] if ":" in last else last
    bare = re.sub(r"^\s*sglang(\[[^\]]*\])?[\s=_-]*", "", tag, flags=re.IGNORECASE)
    return re.sub(r"\.(dist-info|egg-info|whl|tar\.gz)$", "", bare)


def _stranger(local: str, flavour: str, *, development: bool) -> str:
    """The first word after the number that is no platform, no date and no commit of a development build; else empty."""
    local = local.lstrip("+")
    if development and _COMMIT.fullmatch(local):
        local = ""
    for word in re.split(r"[._-]", f"{local}-{flavour}"):
        if word and not word.isdigit() and not _PLATFORM.fullmatch(word):
            return word
    return ""
