"""Where results go: standard output, or a file of mode 0600 that replaces nothing unless told to."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hicache_doctor.errors import UsageError


def write(text: str, target: Path | None, *, force: bool, inputs: Sequence[str] = ()) -> None:
    """Write ``text`` to ``target`` (None: standard output).

    Raises:
        UsageError: the file exists (without ``force``), is one of the inputs, or cannot be written.
    """
    if target is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
        return
    check(target, force=force, inputs=inputs)
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as f:
            os.fchmod(f.fileno(), 0o600)
            f.write(text)
    except OSError as e:
        raise UsageError(f"{target}: cannot be written ({e.strerror})") from None


def check(target: Path, *, force: bool, inputs: Sequence[str]) -> None:
    """Refuse early what :func:`write` would refuse after the work is done."""
    for name in inputs:
        if name != "-" and target.exists() and os.path.exists(name) and _is_input(target, name):
            raise UsageError(f"{target} is an input and is never replaced; choose another name for -o")
    if target.exists() and not force:
        raise UsageError(f"{target} exists; add --force to replace it, or choose another name for -o")


def _is_input(target: Path, name: str) -> bool:
    """Whether an existing file is the input, or lies in the folder that is one."""
    folder = os.path.realpath(name)
    inside = os.path.isdir(folder) and os.path.realpath(target).startswith(os.path.join(folder, ""))
    return inside or os.path.samefile(target, name)


def want_color(stream_is_terminal: bool) -> bool:
    """Colour on a terminal, unless NO_COLOR says no (https://no-color.org); FORCE_COLOR says yes."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream_is_terminal and os.environ.get("TERM") != "dumb")


def width(stream_is_terminal: bool) -> int | None:
    """The terminal's width; None (the renderer's default) into a pipe."""
    if os.environ.get("COLUMNS", "").isdigit():
        return int(os.environ["COLUMNS"])
    if not stream_is_terminal:
        return None
    return os.get_terminal_size(sys.stdout.fileno()).columns or None
