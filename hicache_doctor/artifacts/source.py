"""One artefact as bytes, whatever it lay in: a file on disk, a compressed file, or a member of an archive."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from hicache_doctor.artifacts.packing import DEFAULT, Limits, Note, unpacked

BLOCK = 4 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """Bytes to read.

    ``path`` is what a citation shows (members of an archive after ``!``, relative to what the user named);
    ``file`` is the real file; ``size`` its bytes on disk; ``compression`` says how the content is packed; ``note`` is
    what the inventory should say about it (an odd name, a member that was cut short), empty when there is nothing.
    """

    path: str
    file: Path
    size: int
    compression: Literal["gzip", "zstd"] | None = None
    note: str = ""
    limits: Limits = DEFAULT

    def head(self, limit: int = 1 << 16) -> bytes:
        """The first ``limit`` bytes of the (unpacked) content; less, or nothing, when it cannot be read."""
        out = bytearray()
        for block in self.blocks(min(limit, BLOCK)):
            out += block
            if len(out) >= limit:
                break
        return bytes(out[:limit])

    def blocks(self, size: int = BLOCK, on_note: Note | None = None) -> Iterator[bytes | memoryview]:
        """The (unpacked) content in blocks of at most about ``size`` bytes, in order.

        Never raises for what lies in the file: unreadable, truncated or damaged content ends early, and ``on_note`` is
        then called once with what happened.
        """
        note = on_note or _silent
        try:
            f = open_regular(self.file)
        except OSError as e:
            note(f"cannot be read ({e.strerror or e})")
            return
        with f:
            if self.compression is not None:
                yield from unpacked(f, self.compression, note, self.limits)
                return
            try:
                while block := f.read(size):
                    yield block
            except OSError as e:
                note(f"cannot be read after {f.tell()} bytes ({e.strerror or e}); the rest was not read")


def open_regular(file: Path | str) -> BinaryIO:
    """``file`` for reading, if it is a regular file: never waits on a FIFO, never opens a device. Raises OSError."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(None, "not a regular file")
        return open(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def _silent(_: str) -> None:
    return None
