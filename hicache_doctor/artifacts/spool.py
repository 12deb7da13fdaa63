"""The spool: a private folder where members of archives wait to be read, under names of our own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hicache_doctor.artifacts.packing import Limits


class LimitReached(Exception):
    """Nothing more may be unpacked; the text says which limit and what to do."""


class SpoolFull(Exception):
    """The spool's disk refuses to take more; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A spooled file."""

    file: Path
    size: int


class Spool:
    """Writes below ``folder`` and nowhere else; counts what goes in against ``limits``.

    ``packed`` is the size of the outermost file that is being unpacked: the ratio is judged against it, so that bombs
    built of many layers are seen as well.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder = folder
        self._limits = limits
        self._next = 0
        self._total = 0
        self._members = 0
        self._packed = 0
        self._unpacked = 0

    def start(self, packed: int) -> None:
        """A new outermost file of ``packed`` bytes."""
        self._packed, self._unpacked = packed, 0

    def count_member(self) -> None:
        """Raises LimitReached."""
        self._members += 1
        if self._members > self._limits.members:
            raise LimitReached(
                f"more than {self._limits.members} members in the archives; the rest was not read: "
                "unpack it yourself and give the files that matter"
            )

    def keep(self, chunks: Iterable[bytes], *, judged: bool = True) -> Kept:
        """Spool ``chunks`` (which raise no OSError). Raises LimitReached or SpoolFull, and then leaves no file behind.

        ``judged=False``: no ratio (standard input came unpacked).
        """
        file, out = self._create()
        size = 0
        try:
            with out:
                for chunk in chunks:
                    size += len(chunk)
                    self._count(len(chunk), judged)
                    out.write(chunk)
        except OSError as e:
            self.drop(file)
            raise self._full(e) from e
        except BaseException:
            self.drop(file)
            raise
        return Kept(file, size)

    def drop(self, file: Path) -> None:
        """Forget a file of the spool (an inner archive that has been read)."""
        with suppress(OSError):
            file.unlink()

    def _count(self, n: int, judged: bool) -> None:
        self._total += n
        if self._total > self._limits.total:
            raise LimitReached(
                f"more than {self._limits.total} bytes to unpack; the rest was not read: "
                "unpack it yourself and give the files that matter"
            )
        if not judged:
            return
        self._unpacked += n
        if self._limits.bomb(self._packed, self._unpacked):
            raise LimitReached(
                f"{self._unpacked} bytes came out of {self._packed}: more than {self._limits.ratio}:1 looks like a "
                "decompression bomb; unpack it yourself if it is not one"
            )

    def _create(self) -> tuple[Path, BinaryIO]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            self._next += 1
            file = self._folder / f"{self._next:06}"
            try:
                return file, open(os.open(file, flags, 0o600), "wb")
            except FileExistsError:
                continue
            except OSError as e:
                raise self._full(e) from e

    def _full(self, e: OSError) -> SpoolFull:
        return SpoolFull(
            f"the temporary folder takes no more ({e.strerror or e}); the rest was not read: "
            "free space there, or point TMPDIR at a larger disk"
        )
