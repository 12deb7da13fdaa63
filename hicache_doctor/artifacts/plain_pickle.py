"""Pickles that hold plain values only: None, booleans, numbers, texts, bytes and the built-in containers.

Python's own unpickler reads them, for its speed; it finds no class, because it is not given one, so nothing that a
pickle says can be called, and what it builds is plain. What it would spend of memory and time on a hostile pickle is
the caller's to limit: :mod:`limited` runs this in a process of its own. Only when it refuses is the stream looked
through, opcode by opcode, to say where. Imports the standard library only: it runs in a child that must start at once.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

_BUFFER = 1 << 20
_MOST_OPCODES = 2_000_000

# Opcodes by what follows them: so many bytes, a line, two lines, or a count of so many bytes and then that many.
_FIXED = {
    0: b"(.012NadelutbosR]}Q)\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94\x97\x98",
    1: b"Khq\x80\x82",
    2: b"M\x83",
    4: b"Jjr\x84",
    8: b"G\x95",
}
_LINES = {1: b"FILSVgpP", 2: b"ci"}
_COUNTED = {1: b"UC\x8a\x8c", 4: b"TXB\x8b", 8: b"\x8d\x8e\x96"}
_STOP, _FRAME = ord("."), 0x95
_FORBIDDEN = {
    ord("c"): "names a class",
    ord("i"): "names a class",
    ord("o"): "builds an object",
    ord("R"): "calls a function",
    ord("b"): "sets an object's state",
    ord("P"): "refers to something outside",
    ord("Q"): "refers to something outside",
    0x81: "builds an object",
    0x82: "uses the extension registry",
    0x83: "uses the extension registry",
    0x84: "uses the extension registry",
    0x92: "builds an object",
    0x93: "names a class",
    0x97: "refers to something outside",
    0x98: "refers to something outside",
}
_SHAPES = {
    op: shape
    for kind, table in (("fixed", _FIXED), ("lines", _LINES), ("counted", _COUNTED))
    for n, ops in table.items()
    for op in ops
    for shape in [(kind, n)]
}


class Refused(Exception):
    """Why a pickle is not read; ``at`` is the byte at which it shows, None where it cannot be told."""

    def __init__(self, what: str, at: int | None = None) -> None:
        super().__init__(what if at is None else f"{what} at byte {at}")
        self.what = what
        self.at = at


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError("names a class")


def load(data: bytes) -> Any:
    """The plain value that ``data`` holds.

    Raises:
        Refused: it is damaged, cut short, or not plain; the message says what and at which byte.
        MemoryError, RecursionError: whatever limit the process has was met.
    """
    # Without a reader that can peek, the unpickler asks for every single byte by a call.
    try:
        return _Plain(io.BufferedReader(io.BytesIO(data), _BUFFER)).load()
    except (MemoryError, RecursionError):
        raise
    except Exception as e:
        raise refusal(e, data) from None


def refusal(error: Exception, data: bytes, *, classes: bool = False) -> Refused:
    """What to say of a pickle that the unpickler gave ``error`` for; ``classes`` as in :func:`explained`."""
    if (found := explained(data, classes=classes)) is not None:
        return found
    if isinstance(error, EOFError) or "truncated" in str(error):
        return Refused("ends in the middle of the data", len(data))
    return Refused(f"is damaged ({type(error).__name__})")


def explained(data: bytes, *, classes: bool = False) -> Refused | None:
    """Why the stream cannot be read, by looking through its first opcodes; None when they show nothing.

    ``classes``: those that build objects are no reason.
    """
    at, end = 0, len(data)
    for _ in range(_MOST_OPCODES):
        if at >= end:
            return Refused("ends in the middle of the data", end)
        op = data[at]
        shape = _SHAPES.get(op)
        if shape is None:
            return Refused(f"is damaged: 0x{op:02x} is no opcode", at)
        if not classes and op in _FORBIDDEN:
            return Refused(_FORBIDDEN[op], at)
        kind, n = shape
        following = at + 1
        if kind == "fixed":
            following += n
            if op == _FRAME and (count := int.from_bytes(data[at + 1 : following], "little")) > end:
                return Refused(f"announces {count} bytes, more than it has", at)
            if op in b"rq" and (index := int.from_bytes(data[at + 1 : following], "little")) > end:
                return Refused(f"numbers a value {index}, more than it has bytes", at)
        elif kind == "lines":
            for _ in range(n):
                following = data.find(b"\n", following) + 1
                if not following:
                    return Refused("ends in the middle of the data", end)
        else:
            count = int.from_bytes(data[following : following + n], "little")
            following += n + count
            if count > end:
                return Refused(f"announces {count} bytes, more than it has", at)
        if following > end:
            return Refused("ends in the middle of the data", end)
        if op == _STOP:
            return None
        at = following
    return None
