"""Text from artefacts, made safe to show: what would be invisible or would steer a terminal becomes a visible escape.

Artefacts are hostile input: a log may hold terminal escapes, bidi overrides, NULs or bytes that are no text.
"""

from __future__ import annotations

import re
import unicodedata

_PLAIN = re.compile(r"[ -~]*")
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def is_unseen(char: str) -> bool:
    """Whether a character is a control, a format mark (bidi, zero width), a surrogate or private: never shown raw."""
    return unicodedata.category(char) in _UNSEEN


def escaped(char: str) -> str:
    r"""The visible form of one character: ``\n``, ``\x1b``, ``\u202e``, ``\U000e0041``."""
    code = ord(char)
    named = {"\n": "\\n", "\r": "\\r"}.get(char)
    if named:
        return named
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def printable(text: str) -> str:
    r"""``text`` on one line with nothing unseen left in it; tabs become a space, the rest ``\x1b`` and the like."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(" " if c == "\t" else escaped(c) if is_unseen(c) else c for c in text)


def printable_lines(text: str) -> list[str]:
    """The lines of ``text`` (at LF or CRLF only), each :func:`printable`; at least one."""
    return [printable(line.removesuffix("\r")) for line in text.removesuffix("\n").split("\n")]
