"""One artefact as bytes, whatever it lay in: a file on disk, a compressed file, or a member of an archive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

BLOCK = 4 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """Bytes to read.

    ``path`` is what a citation shows (members of an archive after ``!``, relative to what the user named);
    ``file`` is the real file; ``size`` its bytes on disk; ``compression`` says how the content is packed.
    """

    path: str
    file: Path
    size: int
    compression: Literal["gzip", "zstd"] | None = None

    def head(self, limit: int = 1 << 16) -> bytes:
        """The first ``limit`` bytes of the (unpacked) content. Raises OSError or ValueError when unreadable."""
        out = b""
        for block in self.blocks(limit):
            out += bytes(block)
            if len(out) >= limit:
                break
        return out[:limit]

    def blocks(self, size: int = BLOCK) -> Iterator[bytes | memoryview]:
        """The (unpacked) content in blocks of about ``size`` bytes, in order."""
        with self.file.open("rb") as f:
            while block := f.read(size):
                yield block
