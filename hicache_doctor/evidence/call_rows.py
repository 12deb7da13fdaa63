"""Recorded calls written by hand, for the cases of rules: a table of ``ranks group numbers operation site state size``.

``TP0,TP1 tp 1-7 all_reduce writing_check done 1``: each named rank (a dot stands for the space in ``PP0.TP1``) made
these calls of the group, one a number. ``state`` is done, open (launched and not ended) or started; ``site`` and what
is left out may be ``-``. A group whose name begins with ``nccl`` is recorded as NCCL does, others as gloo does. The
order of a rank's calls is that of the table; ``#`` begins a remark.
"""

from __future__ import annotations

from collections import Counter

from hicache_doctor.evidence.rows import Collective

STATES = ("done", "open", "started")
NCCL_STATES = {"open": "scheduled", "started": "started"}


def parse(text: str) -> list[Collective]:
    """The calls of a table.

    Raises:
        ValueError: a line is wrong; the message has its number.
    """
    out: list[Collective] = []
    turns: Counter[str] = Counter()
    for line, row in enumerate(text.splitlines(), 1):
        parts = row.split("#", 1)[0].split()
        if not parts:
            continue
        ranks, group, numbers, op, site, state, size = [*parts, *"-" * 7][:7]
        if len(parts) < 4 or len(parts) > 7 or state not in (*STATES, "-"):
            raise ValueError(f"line {line}: write `ranks group numbers operation site state size`, not {row.strip()!r}")
        nccl = group.startswith("nccl")
        ended = state in {"done", "-"}
        for rank in (r.replace(".", " ") for r in ranks.split(",")):
            for number in _numbers(numbers, line):
                turns[rank] += 1
                out.append(
                    Collective(
                        artifact=f"calls/{rank}",
                        record=turns[rank] - 1,
                        rank=rank,
                        grp=group,
                        seq=number,
                        op=op,
                        sizes=None if size == "-" else f"[[{size}]]",
                        dtype=None,
                        state=NCCL_STATES.get(state, "completed") if nccl else "scheduled",
                        retired=ended,
                        call_site=None if site == "-" else f"{site} case.py:{line}",
                        source="flight_recorder",
                        position=turns[rank] - 1,
                        descr=group,
                        backend="nccl" if nccl else "gloo",
                    )
                )
    return out


def _numbers(text: str, line: int) -> range:
    first, _, last = text.partition("-")
    try:
        return range(int(first), int(last or first) + 1)
    except ValueError:
        raise ValueError(f"line {line}: numbers are one or a range such as 1-7, not {text!r}") from None
