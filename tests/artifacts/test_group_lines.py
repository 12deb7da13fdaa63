"""Watchdog lines of every torch release, and what they say of process groups."""

from __future__ import annotations

import pytest

from hicache_doctor.artifacts.inventory import unwrap
from hicache_doctor.artifacts.sglang_log import LogReader
from hicache_doctor.artifacts.vocabulary import load
from hicache_doctor.evidence.rows import GroupStatus, LogRecord, Row

WORDS = load()
STOPPED = "[rank{r}]:[E709 17:05:38.162814866 ProcessGroupNCCL.cpp:2271] "


def rows_of(text: str) -> list[Row]:
    reader = LogReader("x", WORDS)
    for item in unwrap(text, "x")[0]:
        reader.feed(item)
    return reader.close()


def standings(text: str) -> list[tuple[object, ...]]:
    rows = [r for r in rows_of(text) if isinstance(r, GroupStatus)]
    assert all((r.source, r.backend, r.members) == ("log", "nccl", None) for r in rows)
    return [(r.rank, r.grp, r.descr, r.enqueued, r.started, r.completed) for r in rows]


@pytest.mark.parametrize(
    ("line", "want"),
    [
        pytest.param(
            "[rank1]:[E ProcessGroupNCCL.cpp:1537] [PG 1 Rank 1] Timeout at NCCL work: 7, last enqueued NCCL work: 8, "
            "last completed NCCL work: 6.",
            ("rank 1", "1", None, 8, None, 6),
            id="2.3",
        ),
        pytest.param(
            "[rank2]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 2] Timeout at NCCL work: 1, last enqueued NCCL work: 1, "
            "last completed NCCL work: 76280750235782912.",
            ("rank 2", "0", None, 1, None, None),
            id="2.3, memory that nobody wrote",
        ),
        pytest.param(
            "[rank1]:[E1003 18:37:01.833575187 ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank 1] Exception (either "
            "an error or timeout) detected by watchdog at work: 6463, last enqueued NCCL work: 6463, last completed "
            "NCCL work: 6462.",
            ("rank 1", "0", "default_pg", 6463, None, 6462),
            id="2.4",
        ),
        pytest.param(
            "(RayWorkerWrapper pid=270291, ip=10.175.94.190) [rank3]:[E219 08:58:32.6 ProcessGroupNCCL.cpp:1785] [PG "
            "ID 2 PG GUID 3 Rank 1] Exception (either an error or timeout) detected by watchdog at work: 31, last "
            "enqueued NCCL work: 58, last completed NCCL work: 30.",
            ("rank 3", "3", None, 58, None, 30),
            id="2.5, ray",
        ),
        pytest.param(
            STOPPED.format(r=5) + "[PG ID 2 PG GUID 3(tp) Rank 1]  failure detected by watchdog at work sequence id: "
            "20585 PG status: last enqueued work: 20589, last completed work: 20584",
            ("rank 5", "3", "tp", 20589, None, 20584),
            id="2.6",
        ),
        pytest.param(
            STOPPED.format(r=0) + "[PG ID 3 PG GUID 91eb5ae2a4 Rank 0]  failure detected by watchdog at work sequence "
            "id: 18 PG status: last enqueued work: 39, last started work: 19 (_ALLGATHER), last completed work: 17",
            ("rank 0", "91eb5ae2a4", None, 39, 19, 17),
            id="started, hashed name",
        ),
        pytest.param(
            STOPPED.format(r=0) + "[PG ID 3 PG GUID 5 Rank 0]  failure detected by watchdog at work sequence id: 9 PG "
            "status: last enqueued work: 12, last started work: -1, last completed work: 8",
            ("rank 0", "5", None, 12, None, 8),
            id="starts not watched",
        ),
        pytest.param(
            "[E709 17:05:38.4 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank 4] Received a dump signal "
            "due to a collective timeout from  rank 7 and we will try our best to dump the debug info. Last enqueued "
            "NCCL work: 56118, last completed NCCL work: 56118.This is most likely caused by incorrect usages",
            ("rank 4", "0", "default_pg", 56118, None, 56118),
            id="dump signal, the rank only in the prefix",
        ),
        pytest.param(
            "[rank0]:[I709 17:05:38.1 ProcessGroupNCCL.cpp:1746] [PG 1 Rank 0] NCCL Work update periodically: last "
            "enqueued NCCL work: 20, last completed NCCL work: 19.",
            ("rank 0", "1", None, 20, None, 19),
            id="periodic",
        ),
        pytest.param(
            "2026-06-24T17:38:03.765641375+02:00 stderr F "
            + STOPPED.format(r=5)
            + "[PG ID 2 PG GUID 3 Rank 1]  failure detected by watchdog at work sequence id: 1 PG status: last "
            "enqueued work: 1, last completed work: -1",
            ("rank 5", "3", None, 1, None, -1),
            id="containerd",
        ),
    ],
)
def test_every_release(line: str, want: tuple[object, ...]) -> None:
    assert standings(line) == [want]


def test_a_time_out_says_the_same_in_several_lines() -> None:
    lines = [
        "[rank1]:[E1003 18:37:01.8 a.cpp:1] [PG 0 (default_pg) Rank 1] Exception (either an error or timeout) detected "
        "by watchdog at work: 6463, last enqueued NCCL work: 6463, last completed NCCL work: 6462.",
        "[rank1]:[E1003 18:37:01.8 a.cpp:2] [PG 0 (default_pg) Rank 1] Timeout at NCCL work: 6463, last enqueued NCCL "
        "work: 6463, last completed NCCL work: 6462.",
    ]
    assert len(standings("\n".join(lines))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "we saw last enqueued work: 3 in the notes",
        "[PG ID 0 PG GUID 0(default_pg) Rank 0] First PG on this rank to signal dumping.",
        "[Rank 5] Exception detected by watchdog at work: 18421, last enqueued NCCL work: 18421, last completed NCCL "
        "work: 18420.",
    ],
)
def test_lines_that_name_no_group(line: str) -> None:
    assert standings(line) == []


def test_gpu_groups_keep_their_names_in_the_log_rows() -> None:
    text = STOPPED.format(r=5) + (
        "[PG ID 2 PG GUID 3(tp) Rank 1] [PG ID 2 PG GUID 3(tp) Rank 1]  failure detected by watchdog at work sequence "
        "id: 7 PG status: last enqueued work: 7, last completed work: 6"
    )
    (record,) = (r for r in rows_of(text) if isinstance(r, LogRecord))
    assert (record.fields["pg_id"], record.fields["group"], record.fields["group_rank"]) == ("2", "3(tp)", "1")
