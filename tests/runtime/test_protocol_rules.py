"""What protocol code may not do, read from its source: look outside, roll dice, trust an order that no one promised."""

from __future__ import annotations

import ast
import builtins
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

RUNTIME = Path(__file__).resolve().parents[2] / "hicache_doctor" / "runtime"
OUTSIDE = {"load_snapshot.py"}
"""A board in shared memory: it is the outside, and protocol code knows its interface only (``load.Board``)."""
ROOMS = ("cache", "scheduler", "pipeline")
MODULES = sorted(p for room in ROOMS for p in (RUNTIME / room).glob("*.py") if p.name not in OUTSIDE)
STANDARD = {"__future__", "collections.abc", "dataclasses", "enum", "heapq", "math", "typing"}
HERE = "hicache_doctor."
OURS = {
    "errors", "probes.kinds", "runtime", "runtime.cache", "runtime.config", "runtime.faults", "runtime.fixes",
    "runtime.model.base", "runtime.pipeline", "runtime.scheduler", "runtime.server_log", "runtime.workload",
    "runtime.world",
}  # fmt: skip
ASSEMBLY = {"main.py": {"runtime.model.open", "runtime.storage.open"}}
"""Where one rank is put together, its makers are named."""
NO_CALLS = {
    "hash",
    "id",
    "open",
    "print",
    "input",
    "eval",
    "exec",
    "compile",
    "__import__",
    "vars",
    "globals",
    "breakpoint",
}
CATCHES = {"Exception", "BaseException", "Stop", "IndexError", "PeerLost", "WireAbort"}
ORDERED = {"enumerate", "filter", "iter", "list", "map", "next", "tuple", "zip", "reversed", "sum"}
PURE = {"any", "all", "len", "int", "bool", "min", "max", "set", "frozenset", "sorted", "tuple", "list"}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in MODULES:
        yield path.name, ast.parse(path.read_text())


def named(func: ast.expr) -> str:
    return func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""


def test_there_is_something_to_read() -> None:
    assert len(MODULES) > 20
    assert set(dir(builtins)) >= NO_CALLS


@pytest.mark.parametrize("path", MODULES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_imports_are_the_world_and_plain_containers(path: Path) -> None:
    wrong = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            wrong += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None
            module = node.module
            if not module.startswith(HERE):
                wrong += [module] if module not in STANDARD else []
                continue
            names = [module.removeprefix(HERE)]
            if names == ["runtime"]:
                names = [f"runtime.{a.name}" for a in node.names]
            allowed = OURS | ASSEMBLY.get(path.name, set())
            own = tuple(f"runtime.{room}." for room in ROOMS)
            wrong += [n for n in names if n not in allowed and not n.startswith(own)]
    assert wrong == []


def test_nothing_depends_on_addresses_or_files_and_no_error_is_swallowed() -> None:
    wrong = []
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NO_CALLS:
                wrong.append(f"{name}:{node.lineno} calls {node.func.id}")
            if isinstance(node, ast.ExceptHandler):
                caught = (
                    {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else {"BaseException"}
                )
                if caught & CATCHES:
                    wrong.append(f"{name}:{node.lineno} catches {sorted(caught & CATCHES)}")
    assert wrong == []


# -- sets ---------------------------------------------------------------------------------------------------------


def is_set(node: ast.expr, known: set[str]) -> bool:
    """Whether an expression is a set, as far as its own text and the names assigned in the protocol tell."""
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    if isinstance(node, ast.Call):
        return named(node.func) in {"set", "frozenset", "union", "intersection", "difference"}
    if isinstance(node, ast.BinOp):
        return is_set(node.left, known) or is_set(node.right, known)
    return named(node) in known


def names_of_sets() -> set[str]:
    """Attributes and variables that hold one anywhere."""
    known: set[str] = set()
    for _ in range(3):
        for _, tree in trees():
            for node in ast.walk(tree):
                if isinstance(node, ast.AnnAssign) and re.match(r"(?:frozen)?set\b", ast.unparse(node.annotation)):
                    known.add(named(node.target))
                elif isinstance(node, ast.Assign) and is_set(node.value, known):
                    known |= {named(t) for t in node.targets}
    return known - {""}


def unordered(tree: ast.AST, known: set[str]) -> list[int]:
    """Lines on which a set is gone through, or made into something that has an order."""
    lines = []
    for node in ast.walk(tree):
        walked: list[ast.expr] = []
        if isinstance(node, (ast.For, ast.comprehension)):
            walked = [node.iter]
        elif isinstance(node, ast.Call) and named(node.func) in ORDERED:
            walked = list(node.args)
        elif isinstance(node, ast.Call) and named(node.func) == "pop" and isinstance(node.func, ast.Attribute):
            walked = [] if node.args else [node.func.value]
        elif isinstance(node, ast.Starred):
            walked = [node.value]
        lines += [w.lineno for w in walked if is_set(w, known)]
    return lines


def test_no_set_is_gone_through() -> None:
    known = names_of_sets()
    assert {"local_aborts", "judged"} <= known
    assert {name: lines for name, tree in trees() if (lines := unordered(tree, known))} == {}


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("for x in judged: pass", True),
        ("y = [x for x in a.judged | {1}]", True),
        ("y = list(set(z))", True),
        ("y = judged.pop()", True),
        ("f(*judged)", True),
        ("y = sorted(judged)", False),
        ("y = x in judged", False),
        ("y = len({1, 2})", False),
    ],
)
def test_the_reader_of_sets_sees(text: str, seen: bool) -> None:
    assert bool(unordered(ast.parse(text), {"judged"})) is seen


# -- what a traceback shows ---------------------------------------------------------------------------------------


def headers(tree: ast.AST) -> Iterator[ast.AST]:
    """What is printed as one place of a traceback: a simple statement, or the head of a compound one."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.While)):
            yield node.test
        elif isinstance(node, ast.For):
            yield node.iter
        elif isinstance(node, ast.stmt) and not hasattr(node, "body"):
            yield node


def test_no_line_that_can_stand_on_a_stack_names_a_switch() -> None:
    """Tracebacks and py-spy show source lines; a dump must not tell which switch is on."""
    wrong = []
    for name, tree in trees():
        for node in headers(tree):
            inner = list(ast.walk(node))
            switch = any(isinstance(n, ast.Attribute) and named(n.value) == "Fix" for n in inner)
            calls = [named(n.func) for n in inner if isinstance(n, ast.Call) and named(n.func) not in PURE]
            if switch and calls:
                wrong.append(f"{name}:{getattr(node, 'lineno', 0)} {calls}")
    assert wrong == []


def test_no_line_of_code_ends_in_a_number_of_a_pull_request() -> None:
    wrong = []
    for path in (
        *MODULES,
        *sorted((RUNTIME / "model").glob("*.py")),
        RUNTIME / "processes.py",
        RUNTIME / "gloo_wire.py",
    ):
        text = path.read_text()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if (
                token.type == tokenize.COMMENT
                and re.search(r"#?\b\d{5}\b", token.string)
                and token.line[: token.start[1]].strip()
            ):
                wrong.append(f"{path.name}:{token.start[0]}")
    assert wrong == []


def texts(path: Path) -> list[str]:
    """String constants of a module that are no docstrings."""
    tree = ast.parse(path.read_text())
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
    return [
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in docs
    ]


@pytest.mark.parametrize(
    ("words", "homes"),
    [
        # Python raises it by itself: nobody may say it in its place.
        ("pop from empty list", {"scenarios.py"}),
        # torch says it of a real view; the null model has no tensor to view.
        ("is invalid for input of size", {"scenarios.py", "null.py"}),
    ],
)
def test_no_failure_is_acted(words: str, homes: set[str]) -> None:
    found = {path.name for path in RUNTIME.rglob("*.py") if any(words in text for text in texts(path))}
    assert found <= homes
