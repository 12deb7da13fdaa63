"""The ranks of an NCCL RAS report as rows: ``ras_rank`` records, and ``GroupStatus`` for what they have launched.

Kind ``ras_rank``: ``rank`` is the rank inside the communicator (a pid tells which process it is), ``count`` how many of
``operation`` it has launched, ``most`` the highest count of the communicator, and ``behind`` the difference.
"""

from __future__ import annotations

from collections.abc import Iterator

from hicache_doctor.evidence.rows import GroupStatus, LogRecord, Row

SOURCE = "ras"


def rank_rows(record: LogRecord) -> Iterator[Row]:
    """The rows of the ranks that a record lists; none when it lists none."""
    fields = record.fields
    counts = [c["operation"] for c in fields.get("counts", ())]
    counts += [r["count"] for r in fields.get("ranks", ()) if "count" in r]
    most = max(counts, default=None)
    if most is not None:
        fields["most"], fields["least"] = most, min(counts)
    for rank in fields.get("ranks", ()):
        known = {k: fields.get(k) for k in ("comm", "hash", "operation")} | rank
        count = rank.get("count")
        if count is not None and most is not None:
            known |= {"most": most, "behind": most - count}
        pid = rank.get("pid")
        words = ", ".join(f"{k} {known[k]}" for k in ("operation", "count", "most", "status", "error") if known.get(k))
        text = f"communicator {fields.get('hash')}: rank {rank['rank']}, {words}"
        yield LogRecord(
            record.artifact, record.line, record.line_end, 0, record.ts, None, "ras_rank", known, text, 0, pid
        )
        if count is not None and pid is not None and fields.get("operation"):
            yield GroupStatus(
                record.artifact, record.line, None, f"{fields.get('hash')} {fields['operation']}", None, None, "nccl",
                count, None, None, SOURCE, pid,
            )  # fmt: skip
