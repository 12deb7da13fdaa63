"""What the user named on the command line, as regular files in a stable order, each of them once."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hicache_doctor.artifacts import names
from hicache_doctor.artifacts.archive import Problem
from hicache_doctor.artifacts.packing import Limits

STDIN = Path("-")
_PIPES = ("/dev/fd/", "/proc/self/fd/")
_Identity = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Found:
    """A regular file, not opened yet; ``shown`` is its citation path.

    Without an ``identity`` it can be read once only: standard input (``STDIN``), or a pipe that the shell passes.
    """

    shown: str
    file: Path
    identity: _Identity | None = None
    linked: bool = False


def found(paths: Sequence[str], limits: Limits) -> list[Found | Problem]:
    """Every regular file that ``paths`` name, or that lies below a folder among them, in order; ``-`` is ``STDIN``.

    Links within a named folder are followed to regular files, links that lead out of it are not. A file that is
    reached twice is read once. Paths that two arguments would both show get the argument's name in front.
    """
    paths = [path for i, path in enumerate(paths) if path != "-" or "-" not in paths[:i]]
    groups = [list(_argument(path, limits)) for path in paths]
    _once(groups)
    _prefix(groups, paths)
    return [item for group in groups for item in group]


def _argument(path: str, limits: Limits) -> Iterator[Found | Problem]:
    if path == "-":
        yield Found("stdin", STDIN)
        return
    name = names.shown(os.path.basename(os.path.normpath(path)))
    try:
        status = os.stat(path)
    except (OSError, ValueError) as e:
        yield _unreachable(name, e)
        return
    if stat.S_ISDIR(status.st_mode):
        yield from _folder(path, limits)
    elif stat.S_ISFIFO(status.st_mode) and path.startswith(_PIPES):
        yield Found(name, Path(path))
    else:
        yield _entry(name, path, status)


def _folder(root: str, limits: Limits) -> Iterator[Found | Problem]:
    inside = os.path.realpath(root)
    seen = 0
    pending: list[tuple[str, str, os.DirEntry[str] | None]] = [(root, "", None)]
    while pending:
        path, name, entry = pending.pop()
        try:
            if entry is not None and entry.is_symlink():
                yield _link(path, name, inside)
                continue
            if entry is not None and not entry.is_dir(follow_symlinks=False):
                yield _entry(name, path, entry.stat(follow_symlinks=False))
                continue
            with os.scandir(path) as listing:
                below = sorted(listing, key=lambda e: e.name, reverse=True)
        except OSError as e:
            yield _unreachable(name or names.shown(os.path.basename(inside)), e)
            continue
        seen += len(below)
        if seen > limits.files:
            note = f"more than {limits.files} files and folders; the rest was not read: name the ones that matter"
            yield Problem(name or names.shown(os.path.basename(inside)), 0, "folder limit", note)
            return
        pending += [(e.path, f"{name}/{names.shown(e.name)}" if name else names.shown(e.name), e) for e in below]


def _entry(name: str, path: str, status: os.stat_result, *, linked: bool = False) -> Found | Problem:
    mode = status.st_mode
    if stat.S_ISREG(mode):
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        return Found(name, Path(path), identity, linked)
    if stat.S_ISFIFO(mode):
        return Problem(name, 0, "FIFO", "a FIFO is never opened: pipe its content in with `-`")
    if stat.S_ISSOCK(mode):
        return Problem(name, 0, "socket", "a socket: nothing to read")
    return Problem(name, 0, "device", "a device is never opened: copy its content to a file")


def _link(path: str, name: str, inside: str) -> Found | Problem:
    try:
        target = os.path.realpath(path, strict=True)
        status = os.stat(target)
    except (OSError, ValueError) as e:
        return _unreachable(name, e, "a link that leads nowhere: ")
    if os.path.commonpath([inside, target]) != inside:
        note = f"a link out of the folder, to {names.shown(target)}: not followed; name it as an argument to read it"
        return Problem(name, 0, "link outside", note)
    if stat.S_ISDIR(status.st_mode):
        return Problem(name, 0, "link to a folder", "its files are read where they are")
    return _entry(name, target, status, linked=True)


def _unreachable(name: str, e: Exception, lead: str = "") -> Problem:
    if isinstance(e, PermissionError):
        return Problem(name, 0, "unreadable", f"{lead}permission denied: run as its owner, or copy it with sudo")
    if isinstance(e, FileNotFoundError):
        return Problem(name, 0, "missing", f"{lead}no such file or folder: check the path")
    reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
    return Problem(name, 0, "unreadable", f"{lead}{names.shown(reason)}: check the path")


def _once(groups: list[list[Found | Problem]]) -> None:
    """Each file once: under its own name if it has one, else under the first link to it."""
    owner: dict[_Identity, tuple[int, int]] = {}
    for linked in (False, True):
        for g, group in enumerate(groups):
            for i, item in enumerate(group):
                if isinstance(item, Found) and item.linked == linked and item.identity is not None:
                    owner.setdefault(item.identity, (g, i))
    named = {at: _name(groups[at[0]][at[1]]) for at in owner.values()}
    for g, group in enumerate(groups):
        kept: list[Found | Problem] = []
        for i, item in enumerate(group):
            if isinstance(item, Problem) or item.identity is None or owner[item.identity] == (g, i):
                kept.append(item)
            elif (first := named[owner[item.identity]]) != item.shown:
                kept.append(Problem(item.shown, item.identity[2], "same file", f"the same file as {first}: read once"))
        groups[g] = kept


def _prefix(groups: list[list[Found | Problem]], paths: Sequence[str]) -> None:
    """Put the argument's shortest distinct name before paths that several arguments would show."""
    first: dict[str, int] = {}
    clash: set[int] = set()
    for g, group in enumerate(groups):
        for item in group:
            if isinstance(item, Found) and first.setdefault(item.shown, g) != g:
                clash |= {first[item.shown], g}
    order = sorted(clash)
    for g, label in zip(order, names.labels([paths[g] for g in order]), strict=True):
        alone = not os.path.isdir(paths[g])
        for i, item in enumerate(groups[g]):
            if isinstance(item, Found):
                groups[g][i] = replace(item, shown=label if alone else f"{label}/{item.shown}")
            else:
                groups[g][i] = replace(item, path=label if alone else f"{label}/{item.path}")


def _name(item: Found | Problem) -> str:
    return item.shown if isinstance(item, Found) else item.path
