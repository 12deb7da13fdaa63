"""Bytes of a log seen as 8-byte words, so that numpy can compare and read many lines at once.

A position array selects places in a buffer; every function works on all of them together. Words are little-endian
whatever the machine: the first byte of the text is the lowest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Places = NDArray[np.int64]
    Words = NDArray[np.uint64]
    Flags = NDArray[np.bool_]

_SLICE = 1 << 18  # bytes looked at together: they stay in the cache
_HIGH = 0x8080808080808080
_OVER = 0x7676767676767676  # added to a byte of 0…9 it leaves the high bit alone, to 10 and more it sets it
_INDEX = 0x0001020304050607  # times 256**k its top byte is k
TENS = tuple(10**n for n in range(17))
_KEEP = tuple((1 << 8 * n) - 1 for n in range(9))


def word(text: bytes) -> int:
    """The word that up to eight bytes make."""
    return int.from_bytes(text, "little")


def count_of(a: Bytes, byte: int) -> int:
    """How often a byte stands in ``a``."""
    import numpy as np

    flags = np.empty(min(len(a), _SLICE), dtype=bool)  # kept: a fresh one a slice would cost page faults
    total = 0
    for i in range(0, len(a), _SLICE):
        part = a[i : i + _SLICE]
        total += int(np.count_nonzero(np.equal(part, byte, out=flags[: len(part)])))
    return total


def places_of(a: Bytes, byte: int) -> Places:
    """Where a byte stands."""
    return places_of_pair(a, byte, byte, 0)


def places_of_pair(a: Bytes, first: int, second: int, apart: int) -> Places:
    """Where ``first`` stands and ``second`` follows ``apart`` bytes later."""
    import numpy as np

    n = max(0, len(a) - apart)
    flags, others = (np.empty(min(n, _SLICE), dtype=bool) for _ in range(2))
    found = [np.empty(0, dtype=np.int64)]
    for i in range(0, n, _SLICE):
        end = min(n, i + _SLICE)
        here = np.equal(a[i:end], first, out=flags[: end - i])
        if apart:
            here &= np.equal(a[i + apart : end + apart], second, out=others[: end - i])
        if here.any():  # three times faster than a search that finds nothing
            found.append(np.flatnonzero(here) + i)
    return np.concatenate(found)


class Text:
    """A buffer and the means to read it at many places; places must leave room for what is read."""

    def __init__(self, a: Bytes) -> None:
        import numpy as np

        self.a = a
        # Overlapping and unaligned on purpose: word i begins at byte i.
        self.words: Words = np.ndarray((max(0, len(a) - 7),), "<u8", buffer=a, strides=(1,))

    def rows(self, at: Places, width: int) -> Bytes:
        """``width`` bytes from each place, one row a place (a copy)."""
        import numpy as np

        spans = np.ndarray((max(0, len(self.a) - width + 1),), f"V{width}", buffer=self.a, strides=(1,))
        out: Bytes = spans[at].view(np.uint8).reshape(-1, width)
        return out

    def equal(self, at: Places, text: bytes) -> Flags:
        """Whether ``text`` stands at each place."""
        import numpy as np

        if len(text) < 8:
            short: Flags = self.words[at] & np.uint64(_KEEP[len(text)]) == word(text)
            return short
        steps = [*range(0, len(text) - 8, 8), len(text) - 8]
        flags: Flags = self.words[at + steps[0]] == word(text[:8])
        for step in steps[1:]:
            flags &= self.words[at + step] == word(text[step : step + 8])
        return flags

    def number(self, at: Places) -> tuple[Places, Places]:
        """The decimal number at each place and how many digits it has (0: none; at most 16 are read)."""
        import numpy as np

        value, digits = _decimal(self.words[at])
        full = np.flatnonzero(digits == 8)
        if len(full):
            low, more = _decimal(self.words[at[full] + 8])
            value[full] = value[full] * np.array(TENS)[more] + low
            digits[full] += more
        return value, digits

    def hashes(self, at: Places, length: Places) -> Words:
        """A 64-bit hash of the ``length`` bytes at each place."""
        import numpy as np

        keep = np.array(_KEEP, dtype=np.uint64)
        h = length.astype(np.uint64)
        for i in range(0, int(length.max(initial=0)), 8):
            part = self.words[at + i] & keep[np.clip(length - i, 0, 8)]
            h = (h ^ part) * np.uint64(0x9E3779B97F4A7C15)
            h ^= h >> np.uint64(29)
        return h


def digits_only(words: Words, pattern: bytes) -> Flags:
    """Whether each word looks like ``pattern``: a digit where that has a ``0``, else the same byte."""
    import numpy as np

    keep = np.uint64((1 << 8 * len(pattern)) - 1)
    fixed = np.uint64(word(bytes(0 if c == 48 else 255 for c in pattern)))
    x = (words ^ np.uint64(word(pattern))) & keep
    alike: Flags = ((((x + np.uint64(_OVER)) | x) & np.uint64(_HIGH)) | (x & fixed)) == 0
    return alike


def _decimal(words: Words) -> tuple[Places, Places]:
    import numpy as np

    x = words ^ np.uint64(0x3030303030303030)
    # A carry may flag a byte behind the first that is no digit; only the first counts.
    other = ((x + np.uint64(_OVER)) | x) & np.uint64(_HIGH)
    lowest = (other & -other) >> np.uint64(7)
    digits = ((lowest * np.uint64(_INDEX)) >> np.uint64(56)).astype(np.int64)
    digits[other == 0] = 8
    x = x << (64 - 8 * digits.clip(1)).astype(np.uint64)  # the last digit to the top byte, zeros before the first
    x = (x * np.uint64(10) + (x >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    x = (x * np.uint64(100) + (x >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    x = (x * np.uint64(10000) + (x >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return np.where(digits == 0, 0, x.astype(np.int64)), digits
