"""dmesg and journald lines, and nvidia-smi tables."""

from __future__ import annotations

import pytest
from hypothesis import given

from hicache_doctor.artifacts import kernel_log, nvidia_smi
from hicache_doctor.evidence.rows import LogRecord, Sample
from tests.artifacts.small import mutations, numbered, text_of

SMI = """Sun Mar  1 10:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.86.15              Driver Version: 570.86.15      CUDA Version: 12.8     |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1A:00.0 Off |                    0 |
| N/A   38C    P0            151W /  700W |   71234MiB /  81559MiB |    100%      Default |
|    0   N/A  N/A           41877      C   sglang::scheduler_PP0_TP0             70000MiB |
+-----------------------------------------------------------------------------------------+
"""
QUERY = "timestamp, index, utilization.gpu [%], power.draw [W]\n2026/03/01 10:00:00.000, 3, 100 %, 150.50 W\n"
XID = "NVRM: Xid (PCI:0000:70:00): 31, pid=684430, name=python3, Ch 00000002"


def one(text: str) -> LogRecord:
    (record,) = kernel_log.parse(numbered(text), "x")
    return record


@pytest.mark.parametrize(
    "stamp, ts, extra",
    [
        ("[Tue Jun 23 08:04:31 2026] ", 1782201871.0, {}),
        ("[ 1843.308145] ", None, {"uptime": 1843.308145}),
        ("2026-06-23T08:04:31,123456+00:00 ", 1782201871.123456, {}),
        ("Jun 23 08:04:31 host-a kernel: ", None, {"clock": "Jun 23 08:04:31", "host": "host-a"}),
        ("2026-06-23T08:04:31.000000+00:00 host-a kernel: [ 1843.308145] ", 1782201871.0, {"host": "host-a"}),
    ],
)
def test_every_stamp(stamp: str, ts: float | None, extra: dict[str, object]) -> None:
    record = one(stamp + XID)
    assert (record.kind, record.ts, record.pid) == ("kernel_xid", ts, 684430)
    assert record.fields["xid"] == 31
    assert record.fields["cause"] == "application"
    assert extra.items() <= record.fields.items()


def test_a_quoted_kernel_log_and_an_unknown_process() -> None:
    text = text_of("dmesg_quoted.md")
    assert kernel_log.looks_like_kernel_log(text)
    records = kernel_log.parse(numbered(text), "x")
    assert [(r.line, r.fields["xid"], r.fields["cause"], r.pid) for r in records] == [
        (2, 13, "application", None),
        (3, 13, "application", None),
        (4, 109, "follow_on", 1644012),
    ]
    assert records[0].fields["pci"] == "0000:9b:00"


def test_off_the_bus_without_a_number() -> None:
    record = one("[ 9.123456] NVRM: GPU 0000:5a:00.0: GPU has fallen off the bus.")
    assert (record.fields["xid"], record.fields["pci"], record.fields["inferred"]) == (79, "0000:5a:00", True)


def test_every_code_of_the_table_is_complete() -> None:
    table = kernel_log.xid_table()
    assert {13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 109, 119, 120, 140} <= set(table)
    assert {row["cause"] for row in table.values()} == {"application", "hardware", "link", "driver", "follow_on"}
    assert {row["family"] for row in table.values()} == {"hardware", "application", "by_product", "note"}
    assert one("Xid (PCI:0000:5a:00): 99999, x").fields["family"] == "unknown"


def test_an_oom_kill_in_a_cgroup() -> None:
    constraint, killed = kernel_log.parse(numbered(text_of("kern.txt")), "x")
    assert (constraint.kind, constraint.pid, constraint.fields["memcg"]) == ("kernel_oom_kill", 30117, True)
    assert killed.fields == {
        "event": "killed",
        "pid": 30117,
        "name": "sglang::schedul",
        "memcg": True,
        "total_vm_kb": 402118320,
        "anon_rss_kb": 105879708,
        "file_rss_kb": 412004,
        "shmem_rss_kb": 97656320,
    }
    old = one("[ 1.000001] Out of memory: Kill process 9 (python3) score 900 or sacrifice child")
    assert (old.pid, old.fields["memcg"]) == (9, False)


@pytest.mark.parametrize(
    "text, name, lib",
    [
        ("python3[77]: segfault at 7f10 ip 0f sp 0f error 4 in libcuda.so.1[7f00+1000]", "python3", "libcuda.so.1"),
        ("traps: python[77] general protection fault ip:7f sp:7f error:0 in libc10.so[7f+1]", "python", "libc10.so"),
    ],
)
def test_segfaults(text: str, name: str, lib: str) -> None:
    record = one(text)
    assert (record.kind, record.pid, record.fields["name"], record.fields["lib"]) == ("kernel_segfault", 77, name, lib)


def test_machine_checks_and_other_lines() -> None:
    assert one("mce: [Hardware Error]: Machine check events logged").kind == "kernel_mce"
    assert kernel_log.parse(numbered("eth0: renamed from veth77a1\nhost kernel: out of coffee"), "x") == []
    assert not kernel_log.looks_like_kernel_log("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")


def test_an_smi_table() -> None:
    assert nvidia_smi.looks_like_nvidia_smi(SMI)
    rows = nvidia_smi.parse(numbered(SMI), "x")
    (record,) = [r for r in rows if isinstance(r, LogRecord)]
    assert (record.line, record.line_end, record.fields["driver"], record.ts) == (3, 8, "570.86.15", 1772359200.0)
    values = {s.name: (s.value, s.labels["gpu"], s.rank) for s in rows if isinstance(s, Sample)}
    assert values["gpu_utilization_percent"] == (100.0, "0", None)
    assert values["gpu_power_watts"] == (151.0, "0", None)
    assert values["gpu_process_memory_bytes"] == (70000 * 1024.0**2, "0", "PP0 TP0")


def test_an_smi_query() -> None:
    rows = nvidia_smi.parse(numbered(QUERY), "x")
    values = {s.name: (s.value, s.labels["gpu"], s.ts) for s in rows if isinstance(s, Sample)}
    assert values == {
        "gpu_utilization_percent": (100.0, "3", 1772359200.0),
        "gpu_power_watts": (150.5, "3", 1772359200.0),
    }


@given(mutations(text_of("dmesg_xid.txt"), text_of("kern.txt"), XID, SMI, QUERY))
def test_never_raises(text: str) -> None:
    for reader in (kernel_log, nvidia_smi):
        reader.parse(numbered(text), "x")
    kernel_log.looks_like_kernel_log(text)
    nvidia_smi.looks_like_nvidia_smi(text)
