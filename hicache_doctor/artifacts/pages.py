"""Files of numbers that outgrew the readers of small texts: many scrapes in one file, a day of gauges, a long query.

They are read whole, up to a limit, by the reader that their head asks for. Logs of that size go to ``big_log``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hicache_doctor.artifacts import gauges, metrics, nvidia_smi, outer_time, prom_json
from hicache_doctor.artifacts.secrets import Scrubber
from hicache_doctor.evidence.rows import Row

if TYPE_CHECKING:
    from hicache_doctor.artifacts.inventory import Read
    from hicache_doctor.artifacts.source import Source

LARGEST = 32 << 20
_HEAD = 16 << 10
_Parse = Callable[[Sequence[tuple[int, str]], str], Sequence[Row]]
_PAGES: tuple[tuple[str, Callable[[str], bool], _Parse], ...] = (
    ("metrics page", metrics.looks_like_metrics, metrics.parse),
    ("Prometheus answer", prom_json.looks_like_prom_json, prom_json.parse),
    ("memory samples", gauges.looks_like_gauges, gauges.parse),
    ("nvidia-smi", nvidia_smi.looks_like_nvidia_smi, nvidia_smi.parse),
)


def is_small(source: Source, limit: int) -> bool:
    """Whether a packed file unpacks to no more than ``limit`` bytes."""
    if source.compression is None or source.size > limit:
        return False
    total = 0
    for block in source.blocks():
        total += len(block)
        if total > limit:
            return False
    return True


def is_page(head: bytes) -> bool:
    """Whether a file that begins so is one of these."""
    return _page(head) is not None


def read_page(source: Source, result: Read) -> None:
    """Read ``source`` into ``result``, as far as the limit goes. Never raises for what lies in it."""
    entry = result.artifact
    notes: list[str] = []
    data = bytearray()
    for block in source.blocks(on_note=notes.append):
        data += block
        if len(data) > LARGEST:
            notes.append(f"only the first {LARGEST >> 20} MiB were read")
            del data[LARGEST:]
            break
    page = _page(bytes(data[:_HEAD]))
    assert page is not None
    kind, _, parse = page
    scrubber = Scrubber()
    lines = [(n, scrubber.line(text)) for n, text in enumerate(data.decode("utf-8", "replace").split("\n"), 1)]
    rows = parse(lines, source.path)
    outer_time.from_name(rows, source.path)
    result.rows += rows
    entry.kind, entry.reader, entry.lines = kind, "page", len(lines)
    if notes:
        entry.read = "part"
        entry.note = "; ".join(n for n in (entry.note, *notes) if n)


def _page(head: bytes) -> tuple[str, Callable[[str], bool], _Parse] | None:
    text = head[:_HEAD].decode("utf-8", "replace")
    return next((page for page in _PAGES if page[1](text)), None)
