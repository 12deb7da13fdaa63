"""What a line of torch's NCCL watchdog says of a process group: its name, its description, and how far the rank got.

The prefix changed with the releases: ``[PG 1 Rank 3]`` (2.3), ``[PG 0 (default_pg) Rank 1]`` (2.4), and since 2.5
``[PG ID 2 PG GUID 3(tp) Rank 1]``. The GUID is the name that the flight recorder uses, too; the rank is the one inside
the group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hicache_doctor.evidence.rows import GroupStatus

STATUS_KINDS = frozenset({"nccl_pg_status", "nccl_dump_status", "nccl_work_update"})
_GROUP = re.compile(r"(?P<name>[^\s()]+) ?(?:\((?P<descr>[^)]*)\))?")
_DEFAULT = "default_pg"
# Before torch 2.5 a group without a completed operation showed memory that nobody had written.
_MOST = 1 << 40


def group_status(artifact: str, line: int, rank: str | None, fields: Mapping[str, str]) -> GroupStatus | None:
    """The row for the fields of such a line; None when it names no group or no number.

    Of the default group, whose ranks are the global ones, the prefix names the rank where nothing else does.
    """
    m = _GROUP.fullmatch(fields.get("group") or "")
    enqueued, started, completed = (_number(fields.get(key)) for key in ("enqueued", "started", "completed"))
    if m is None or (enqueued is None and completed is None):
        return None
    if started == -1 and completed is not None and completed > started:
        started = None  # nobody watches the starts (TORCH_NCCL_ENABLE_TIMING is off)
    if rank is None and m["descr"] == _DEFAULT and "group_rank" in fields:
        rank = f"rank {int(fields['group_rank'])}"
    return GroupStatus(
        artifact, line, rank, m["name"], m["descr"] or None, None, "nccl", enqueued, started, completed, "log"
    )


def _number(text: str | None) -> int | None:
    value = int(text[:20]) if text else None
    return value if value is not None and abs(value) < _MOST else None
