"""Structured artefacts inside the wrappers of shippers and people: the same rows as without."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from hicache_doctor.artifacts.inventory import read_all
from hicache_doctor.artifacts.vocabulary import load
from hicache_doctor.evidence.rows import GroupStatus, LogRecord, Sample, Setting
from tests.artifacts.small import text_of
from tests.wrapping import LOSES_INDENT, WRAPPERS, wrap

WORDS = load()
WATCHDOG = (
    "[rank5]:[E709 17:05:38.162814866 ProcessGroupNCCL.cpp:2271] [PG ID 2 PG GUID 3(tp) Rank 1]  failure detected by "
    "watchdog at work sequence id: 20585 PG status: last enqueued work: 20589, last completed work: 20584\n"
)
NOISE = "".join(f"[Tue Jun 23 07:58:0{i} 2026] eth{i}: renamed from veth77a{i}\n" for i in range(6))
TEXTS = {
    "dmesg": NOISE + text_of("dmesg_xid.txt"),
    "oom": NOISE + text_of("kern.txt"),
    "watchdog": WATCHDOG,
    "ras": text_of("ncclras_verbose.txt"),
    "ras json": text_of("ncclras.json"),
    "smi 470": text_of("smi_470.txt"),
    "smi 580": text_of("smi_580.txt"),
    "smi -q": text_of("smi_q.txt"),
    "metrics": text_of("metrics_pp.prom"),
    "server info": text_of("server_info.json"),
}
# A prefix that looks like a record of the artefact itself, or that parts its lines, may change what is said.
NEEDS_INDENT = {"smi -q", "ras"}


def essence(folder: Path, text: str) -> list[Any]:
    """What the rows say, without where and when."""
    (folder / "in.txt").write_text(text, encoding="utf-8")
    (found,) = read_all([str(folder / "in.txt")], WORDS, spool=folder, stdin=None)
    out: list[Any] = []
    for row in found.rows:
        if isinstance(row, LogRecord) and row.kind.startswith(("kernel_", "ras_", "nvidia_smi", "nccl_")):
            fields = {k: v for k, v in row.fields.items() if k not in ("host", "clock")}
            out.append((row.kind, row.pid, str(fields)))
        elif isinstance(row, Sample):
            labels = {k: v for k, v in row.labels.items() if k != "scrape"}
            out.append((row.name, row.pid, row.rank, row.value, str(labels)))
        elif isinstance(row, Setting) and row.source == "server_info":
            out.append((row.key, row.value))
        elif isinstance(row, GroupStatus):
            out.append((row.grp, row.descr, row.enqueued, row.completed, row.source))
    return out


@pytest.mark.parametrize("wrapper", sorted(WRAPPERS))
@pytest.mark.parametrize("name", sorted(TEXTS))
def test_the_same_rows(tmp_path: Path, name: str, wrapper: str) -> None:
    if name in NEEDS_INDENT and wrapper in LOSES_INDENT:
        pytest.skip("it loses the indentation that this format needs")
    plain = essence(tmp_path, TEXTS[name])
    wrapped = wrap(TEXTS[name].rstrip("\n").split("\n"), [wrapper], random.Random(7))
    assert plain
    assert essence(tmp_path, "\n".join(wrapped) + "\n") == plain
