"""Tiny stores for the tests of this folder: settings, ranks and lines, and evidence whose answers are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from hicache_doctor.evidence.rows import BOUND_KEY, BOUND_SOURCE, Rank, Setting
from hicache_doctor.evidence.store import Store
from hicache_doctor.knowledge.versions import Version, VersionRange, parse_version
from hicache_doctor.signatures.diagnose import derive
from hicache_doctor.signatures.facts import Facts
from hicache_doctor.signatures.load import RuleBase, load
from hicache_doctor.signatures.model import Evidence

BASE = load()
ROW = "SELECT 'a.log' AS artifact, 7 AS line, 7 AS line_end, 'PP0' AS rank, 0.0 AS ts, 'text' AS quote"
NONE = ROW + " WHERE false"
ANSWERS = {
    "yes": Evidence("yes", "yes of {rank}", ROW, None, "e.sql", 1),
    "no": Evidence("no", "no", NONE, None, "e.sql", 2),
    "unknown": Evidence("unknown", "unknown", NONE, "SELECT false", "e.sql", 3),
    "known": Evidence("known", "known", NONE, "SELECT true", "e.sql", 4),
    "yes_though_unseen": Evidence("yes_though_unseen", "it", ROW, "SELECT false", "e.sql", 5),
    "broken": Evidence("broken", "it", "SELECT artifact FROM nowhere", None, "e.sql", 6),
}


def setting(key: str, value: str, source: str = "server_args", artifact: str = "a.log", line: int = 1) -> Setting:
    return Setting(key, value, source, artifact, line, None, f"{key}={value}")


def bound(spec: str, artifact: str = "a.log") -> Setting:
    """What the vocabulary of a log says of the release."""
    return Setting(BOUND_KEY, spec, BOUND_SOURCE, artifact, 3, None, f"a line of {spec}")


def gathered(settings: Iterable[Setting], ranks: Iterable[str] = (), base: RuleBase = BASE) -> Facts:
    """The facts of an incident that has these settings and shows these ranks."""
    with Store.create() as store:
        store.add(settings)
        store.add(Rank(r) for r in ranks)
        return derive(store, base)


def facts(version: str | VersionRange | None = None, tree: str | None = None) -> Facts:
    """Facts with nothing but a release and a tree class."""
    where: Version | VersionRange | None = parse_version(version) if isinstance(version, str) else version
    return Facts({}, where, [], tree, [], None, [])


@contextmanager
def empty() -> Iterator[Store]:
    with Store.create() as store:
        yield store
