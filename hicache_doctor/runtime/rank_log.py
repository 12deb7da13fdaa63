"""A rank's log file: SGLang's prefix, unbuffered, append-only, so that the launcher may add its last lines too."""

from __future__ import annotations

import os
import time
from pathlib import Path


class RankLog:
    """Lines ``[2026-11-30 03:12:44 PP1 TP0] text``; one write a line, so that writers do not tear one another."""

    def __init__(self, path: Path, label: str) -> None:
        self.path = path
        self.label = label
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def say(self, text: str, label: str | None = None) -> None:
        """One record; the main process' own lines have an empty ``label``."""
        who = self.label if label is None else label
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self.bare(f"[{stamp}{' ' if who else ''}{who}] {text}\n")

    def bare(self, text: str) -> None:
        """Text without prefix, as it is."""
        data = text.encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(self.fd, data) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)


def file_stem(label: str) -> str:
    """``PP1 TP0`` → ``PP1_TP0``: a file name that readers take the rank from."""
    return label.replace(" ", "_")
