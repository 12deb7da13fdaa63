"""Loading the rule base: the shipped one, and a user's directory on top of it.

Errors name ``file:line:column`` and the nearest right key; the position is looked up only when something is wrong,
because YAML with marks is slow.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from hicache_doctor.errors import RuleError
from hicache_doctor.shipped import rules_dir
from hicache_doctor.signatures.model import Evidence, Node, Rule, RuleAction, RuleNext

_SAFE: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _plain_words(base: type[Any]) -> type[Any]:
    """A loader for which only true and false are booleans: ``yes:`` and ``no:`` are answers here, not YAML 1.1's."""
    loader = type("RuleLoader", (base,), {})
    resolvers = {
        first: [(tag, rx) for tag, rx in pairs if tag != "tag:yaml.org,2002:bool"]
        for first, pairs in base.yaml_implicit_resolvers.items()
    }
    loader.yaml_implicit_resolvers = resolvers  # type: ignore[attr-defined]
    loader.add_implicit_resolver(  # type: ignore[attr-defined]
        "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF")
    )
    return loader


LOADER: type[Any] = _plain_words(_SAFE)
MARKED: type[Any] = _plain_words(yaml.SafeLoader)
HEADER = re.compile(r"^--\s*(evidence|says|known|needs):\s*(.*)$")


@dataclass(slots=True)
class RuleBase:
    """Everything that decides: rules by id, path nodes by name, evidence by name, and where each was read."""

    rules: dict[str, Rule] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    evidence: dict[str, Evidence] = field(default_factory=dict)
    places: list[dict[str, Any]] = field(default_factory=list)
    sides: list[dict[str, Any]] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    event_words: list[dict[str, Any]] = field(default_factory=list)
    phrases: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    start: str = "start"


def load(extra: Iterable[Path] = ()) -> RuleBase:
    """The shipped rules, then each directory of ``extra`` (same layout); later ones replace by id or name.

    Raises:
        RuleError: a file is wrong.
    """
    base = RuleBase()
    for folder in (rules_dir(), *extra):
        if not folder.is_dir():
            raise RuleError(str(folder), "no such directory of rules")
        _load_folder(base, folder)
    return base


def _load_folder(base: RuleBase, folder: Path) -> None:
    for path in sorted((folder / "evidence").glob("*.sql")):
        for item in parse_evidence(path):
            base.evidence[item.name] = item
            base.files[f"evidence:{item.name}"] = path
    for path in sorted((folder / "signatures").glob("*.yaml")):
        for raw in _documents(path):
            rule = _validate(Rule, raw, path)
            base.rules[rule.id] = rule
            base.files[f"rule:{rule.id}"] = path
    for path in sorted((folder / "path").glob("*.yaml")):
        for raw in _documents(path):
            node = _validate(Node, raw, path)
            base.nodes[node.node] = node
            base.files[f"node:{node.node}"] = path
    if (folder / "phrases.yaml").is_file():
        for raw in _documents(folder / "phrases.yaml"):
            base.phrases.update(raw)
    for name in ("places", "sides", "models", "events", "event_words"):
        path = folder / "vocabulary" / f"{name}.yaml"
        if path.is_file():
            getattr(base, name).extend(_documents(path))


def _documents(path: Path) -> list[Any]:
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise RuleError(where, f"no valid YAML: {e.problem}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise RuleError(str(path), f"cannot be read: {e}") from None
    if raw is None:
        return []
    return raw if isinstance(raw, list) else [raw]


def _validate(model: type[Any], raw: Any, path: Path) -> Any:
    try:
        return model.model_validate(raw)
    except ValidationError as e:
        raise _explain(model, e, raw, path) from None


def _explain(model: type[BaseModel], error: ValidationError, raw: Any, path: Path) -> RuleError:
    # A misspelt key is also a missing one; the misspelling is what helps.
    found = error.errors()
    first = next((e for e in found if e["type"] == "extra_forbidden"), found[0])
    location = [p for p in first["loc"] if isinstance(p, (str, int))]
    name = next((p for p in reversed(location) if isinstance(p, str)), "")
    line, column = _position(path, raw, location)
    what = first["msg"]
    if first["type"] == "extra_forbidden":
        known = [f.alias or n for m in (model, RuleAction, RuleNext) for n, f in m.model_fields.items()]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        what = f"unknown key {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    elif first["type"] == "missing":
        what = f"the key {name!r} is missing"
    elif name:
        what = f"{name}: {what}"
    return RuleError(f"{path}:{line}:{column}", what)


def _position(path: Path, raw: Any, location: list[Any]) -> tuple[int, int]:
    """Line and column (1-based) of ``location`` inside the document that equals ``raw``."""
    root = yaml.compose(path.read_text(encoding="utf-8"), Loader=MARKED)
    if root is None:
        return 1, 1
    candidates = root.value if isinstance(root, yaml.SequenceNode) else [root]
    node = candidates[0] if candidates else root
    for candidate in candidates:
        if _constructed(candidate) == raw:
            node = candidate
            break
    mark = node.start_mark
    for part in location:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    mark, node = key.start_mark, value
                    break
            else:
                break
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            mark = node.start_mark
        else:
            break
    return mark.line + 1, mark.column + 1


def _constructed(node: yaml.Node) -> Any:
    loader = MARKED("")
    try:
        return loader.construct_object(node, deep=True)
    finally:
        loader.dispose()


def parse_evidence(path: Path) -> list[Evidence]:
    """The named views of one ``.sql`` file: ``-- evidence: name``, ``-- says: …``, ``-- known: SQL``,
    ``-- needs: table``, then the SQL.

    Raises:
        RuleError: text before the first header, a missing ``says`` or an empty statement.
    """
    out: list[Evidence] = []
    head: dict[str, str] = {}
    body: list[str] = []
    start = 0
    common: str | None = None  # a `needs` before the first evidence holds for the whole file

    def finish() -> None:
        if not head:
            return
        sql = "\n".join(body).strip().rstrip(";").strip()
        if not sql or "says" not in head:
            raise RuleError(
                f"{path}:{start}:1", f"evidence {head.get('evidence', '')!r} needs `-- says:` and a statement"
            )
        needs = head.get("needs", common)
        out.append(Evidence(head["evidence"], head["says"], sql, head.get("known"), str(path), start, needs))

    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        m = HEADER.match(text)
        if m is None:
            if not text.startswith("--"):
                body.append(text)
            continue
        if m[1] == "evidence":
            finish()
            head, body, start = {"evidence": m[2].strip()}, [], number
        elif not head and m[1] == "needs":
            common = m[2].strip()
        elif not head:
            raise RuleError(f"{path}:{number}:1", "a header before `-- evidence: name`")
        else:
            head[m[1]] = m[2].strip()
    finish()
    return out
