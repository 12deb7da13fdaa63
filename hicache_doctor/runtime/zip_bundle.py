"""A stand-in of the shape of ``hicache_doctor.bundle`` until that is here; the import in ``crash.py`` is the switch."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Source:
    """A member to write: its name in the bundle and the file that it comes from."""

    name: str
    data: Path


@dataclass(frozen=True, slots=True)
class RankEntry:
    """A process whose evidence is in the bundle; ``exit_code`` is negative for a signal."""

    label: str
    number: int | None = None
    host: str | None = None
    pid: int | None = None
    exit_code: int | None = None


@dataclass(slots=True)
class Manifest:
    """What a bundle says of itself."""

    host: str = ""
    created: str = ""
    tool_version: str = ""
    ranks: list[RankEntry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def write_bundle(out: Path, members: Iterable[Source], manifest: Manifest) -> Manifest:
    """One file with all members, its manifest first; it appears whole or not at all."""
    part = out.with_name(out.name + ".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("manifest.json", json.dumps(asdict(manifest), indent=1) + "\n")
        for member in members:
            z.write(member.data, member.name)
    part.replace(out)
    return manifest
