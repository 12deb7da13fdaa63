"""Copies of rings for a bundle: what is committed, and of each rank only the newest. Standard library only.

A ring that is being written must not be copied in one go: a record may be finished between the copying of its data and
of its commit word. Here the commit words are read first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from hicache_doctor.probes import ring

_WORDS = struct.Struct(f"<{ring.COMMIT_AT}xQ")
_EMPTY = bytes(ring.RECORD_BYTES)


def newest(
    paths: Iterable[Path], *, max_bytes: int | None = None, max_records: int | None = None
) -> Iterator[tuple[str, bytes]]:
    """Segments as (file name, content), shortened to the newest ``max_records`` slots of each rank and, with an equal
    share for each rank, to ``max_bytes`` in all. Segments without a record are left out, and so are files that are no
    readable ring; a citation's ``record`` counts within the copy, ``seq`` stays what it was.
    """
    ranks: dict[int, list[tuple[ring.Header, Path]]] = {}
    for path in paths:
        try:
            header = ring.read_header(path)
        except (OSError, ring.RingDamage):
            continue
        ranks.setdefault(header.owner.rank, []).append((header, path))
    share = None if max_bytes is None else max_bytes // max(len(ranks), 1)
    for rank in sorted(ranks):
        left, room = max_records, share
        for header, path in sorted(ranks[rank], key=lambda own: (own[0].segment, own[1]), reverse=True):
            copy = _shortened(path, header, left, room)
            if copy is None:
                continue
            count, content = copy
            yield path.name, content
            left = None if left is None else left - count
            room = None if room is None else room - len(content)


def _shortened(path: Path, header: ring.Header, most: int | None, room: int | None) -> tuple[int, bytes] | None:
    """How many slots are kept, and the copy; None when there is nothing to keep or no room for it."""
    try:
        with open(path, "rb") as f:
            f.seek(header.size)
            words = _words(f.read())
            good = {i for i, word in enumerate(words) if word == header.commit_word(i)}
            if not good:
                return None
            end = max(good) + 1
            count = min(end, end if most is None else most)
            if room is not None:
                # A size has a page at most more than before: numbers in the header may get longer.
                count = min(count, (room - header.size - ring.PAGE) // ring.RECORD_BYTES)
            if count <= 0:
                return None
            first = end - count
            f.seek(header.size + first * ring.RECORD_BYTES)
            slots = bytearray(f.read(count * ring.RECORD_BYTES))
    except OSError:
        return None
    for i in range(first, end):
        if i not in good:
            at = (i - first) * ring.RECORD_BYTES
            slots[at : at + ring.RECORD_BYTES] = _EMPTY
    head = ring.pack(
        header.owner, slots=count, segment=header.segment, base=header.base + first, salt=header.salt,
        clocks=(header.wall_ns, header.mono_ns), tables=header.tables, lost=header.lost,
    )  # fmt: skip
    return count, head + bytes(slots)


def _words(data: bytes) -> list[int]:
    whole = len(data) // ring.RECORD_BYTES * ring.RECORD_BYTES
    return [word for (word,) in _WORDS.iter_unpack(memoryview(data)[:whole])]
