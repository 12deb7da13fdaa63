"""Where each rank stands: the place that its main thread's frames name, by ``rules/vocabulary/places.yaml``."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hicache_doctor.evidence.sides import SideRule, side_of

if TYPE_CHECKING:
    from hicache_doctor.evidence.store import Store

CACHE_FILES = {
    "unified_radix_cache.py": "UnifiedRadixCache",
    "hiradix_cache.py": "HiRadixCache",
    "hi_mamba_radix_cache.py": "HiMambaRadixCache",
}
CACHE_CLASSES = set(CACHE_FILES.values())

CREATE = """
CREATE OR REPLACE TABLE place (
  stack VARCHAR, artifact VARCHAR, line BIGINT, line_end BIGINT, record BIGINT, at_line BIGINT, rank VARCHAR,
  pid BIGINT, ts DOUBLE, source VARCHAR, dump BIGINT, place VARCHAR, waits_for VARCHAR, side VARCHAR, hicache BOOLEAN,
  tree VARCHAR, function VARCHAR, innermost VARCHAR, quote VARCHAR, frames VARCHAR)
"""


@dataclass(slots=True)
class PlaceRule:
    """One entry of the table: all of ``has``, one of ``any`` and one of ``with`` must be among the functions."""

    place: str
    waits_for: str
    hicache: bool
    side: str | None = None
    has: list[str] = field(default_factory=list)
    any: list[str] = field(default_factory=list)
    with_: list[str] = field(default_factory=list)

    def matches(self, functions: set[str]) -> bool:
        """Whether the stack's functions name this place."""
        return (
            all(f in functions for f in self.has)
            and (not self.any or any(f in functions for f in self.any))
            and (not self.with_ or any(f in functions for f in self.with_))
        )

    @property
    def telling(self) -> list[str]:
        """The functions that name the place, the most telling first."""
        return self.has + self.any + self.with_


def load_places(raw: list[dict[str, Any]]) -> list[PlaceRule]:
    """The rules from the parsed table."""
    return [PlaceRule(**{("with_" if k == "with" else k): v for k, v in item.items()}) for item in raw]


def derive(store: Store, table: list[PlaceRule], sides: list[SideRule]) -> None:
    """Fill the table ``place``: one row a main-thread stack, tracebacks included. ``side`` is what it waits for: gpu,
    cpu, wire, disk or idle."""
    store.con.execute(CREATE)
    stacks = store.rows("SELECT * FROM stack WHERE main ORDER BY artifact, line, id")
    frames: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for f in store.rows("SELECT * FROM frame ORDER BY stack, depth"):
        frames[f["stack"]].append(f)
    rows = [row for s in stacks if (row := _place(s, frames[s["id"]], table, sides)) is not None]
    store.fill("place", rows)


def _place(
    stack: dict[str, Any], frames: list[dict[str, Any]], table: list[PlaceRule], sides: list[SideRule]
) -> dict[str, Any] | None:
    if not frames:
        return None
    functions = {f["function"] for f in frames} | {f["cls"] for f in frames if f["cls"]}
    rule = next((r for r in table if r.matches(functions)), None)
    innermost = next((f for f in frames if not f["native"]), frames[0])
    at = innermost
    if rule is not None:
        named = [f for name in rule.telling for f in frames if f["function"] == name]
        at = named[0] if named else innermost
    tree = next((t for f in frames if (t := _tree(f)) is not None), None)
    where = f" ({at['file']}:{at['line']})" if at["file"] and at["line"] else f" ({at['file']})" if at["file"] else ""
    quote = (f"{at['cls']}." if at["cls"] else "") + at["function"] + where
    chain = " <- ".join(f["function"] for f in frames if not f["native"])[:600]
    copied = ("artifact", "line", "line_end", "record", "rank", "pid", "ts", "source", "dump")
    return {name: stack[name] for name in copied} | {
        "stack": stack["id"],
        "at_line": at["at_line"],
        "place": rule.place if rule else "elsewhere",
        "waits_for": rule.waits_for if rule else "none",
        "side": side_of(frames, rule.side if rule else None, sides),
        "hicache": bool(rule and rule.hicache),
        "tree": tree,
        "function": at["function"],
        "innermost": innermost["function"],
        "quote": quote,
        "frames": chain,
    }


def _tree(frame: dict[str, Any]) -> str | None:
    """The cache class that a frame belongs to, by its class or its file."""
    if frame["cls"] in CACHE_CLASSES:
        return str(frame["cls"])
    return CACHE_FILES.get((frame["file"] or "").rsplit("/", 1)[-1])
