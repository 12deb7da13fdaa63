"""dmesg, journald and syslog lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given

from hicache_doctor.artifacts import kernel_log, outer_time
from hicache_doctor.artifacts.inventory import read_all
from hicache_doctor.artifacts.vocabulary import load
from hicache_doctor.evidence.rows import LogRecord
from tests.artifacts.small import mutations, numbered, text_of

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


VARIANTS = [
    # stamp, ts, uptime, clock, host
    ("[Wed Jun 24 15:44:42 2026] ", 1782315882.0, None, None, None),
    ("[ 1843.308145] ", None, 1843.308145, None, None),
    ("2026-06-24T15:44:42,123456+02:00 ", 1782308682.123456, None, None, None),
    ("kern  :err   : [Wed Jun 24 15:44:42 2026] ", 1782315882.0, None, None, None),
    ("kern  :warn  : [ 1843.308145] ", None, 1843.308145, None, None),
    ("kern  :err   : 2026-06-24T15:44:42,123456+02:00 ", 1782308682.123456, None, None, None),
    ("Jun 24 15:44:42 host-a kernel: ", None, None, "Jun 24 15:44:42", "host-a"),
    ("Jun 24 15:44:42 host-a kernel: [ 1843.308145] ", None, 1843.308145, "Jun 24 15:44:42", "host-a"),
    ("juin 24 15:44:42 host-a kernel: ", None, None, "juin 24 15:44:42", "host-a"),
    ("déc. 24 15:44:42 host-a kernel: ", None, None, "déc. 24 15:44:42", "host-a"),
    ("6月 24 15:44:42 host-a kernel: ", None, None, "6月 24 15:44:42", "host-a"),
    ("2026-06-24T15:44:42+0200 host-a kernel: ", 1782308682.0, None, None, "host-a"),
    ("2026-06-24T15:44:42.123456+02:00 host-a kernel: ", 1782308682.123456, None, None, "host-a"),
    ("Wed 2026-06-24 15:44:42 UTC host-a kernel: ", 1782315882.0, None, None, None),
    ("3,1234,1843308145,-;", None, 1843.308145, None, None),
    ("<3>[ 1843.308145] ", None, 1843.308145, None, None),
    ("<11>1 2026-06-24T15:44:42.123456+02:00 host-a kernel - - - ", 1782308682.123456, None, None, "host-a"),
    ("[pod/gpu-node-7/shell] [Wed Jun 24 15:44:42 2026] ", 1782315882.0, None, None, None),
    ("node-shell-x | [Wed Jun 24 15:44:42 2026] ", 1782315882.0, None, None, None),
    ("2026-06-24T17:38:03.765641375+02:00 stdout F [ 1843.308145] ", None, 1843.308145, None, None),
    ("2026-06-24T17:38:03.765641375+02:00 stdout F [Wed Jun 24 15:44:42 2026] ", 1782315882.0, None, None, None),
]


@pytest.mark.parametrize(("stamp", "ts", "uptime", "clock", "host"), VARIANTS)
def test_every_way_to_write_the_time(
    tmp_path: Path, stamp: str, ts: float | None, uptime: float | None, clock: str | None, host: str | None
) -> None:
    (record,) = kernel_rows(tmp_path, stamp + XID)
    assert (record.kind, record.fields["xid"], record.pid) == ("kernel_xid", 31, 684430)
    assert record.ts == ts
    assert [record.fields.get(k) for k in ("uptime", "clock")] == [uptime, clock]
    assert record.fields.get("host") == host or host is None


def test_json_of_the_journal(tmp_path: Path) -> None:
    entry = {"MESSAGE": XID, "__REALTIME_TIMESTAMP": "1782308682123456", "_HOSTNAME": "host-a"}
    (record,) = kernel_rows(tmp_path, json.dumps(entry | {"SYSLOG_IDENTIFIER": "kernel"}))
    assert (record.ts, record.fields["host"]) == (1782308682.123456, "host-a")


def test_dmesg_for_humans(tmp_path: Path) -> None:
    first, second = kernel_rows(tmp_path, f"[Jun24 15:44] {XID}\n[  +0.000012] {XID}")
    assert first.fields["clock"] == second.fields["clock"] == "Jun 24 15:44:00"


def kernel_rows(tmp_path: Path, text: str) -> list[LogRecord]:
    """The kernel's rows of a file, through the whole reading."""
    (tmp_path / "dmesg.txt").write_text(text + "\n", encoding="utf-8")
    (found,) = read_all([str(tmp_path / "dmesg.txt")], load(), spool=tmp_path, stdin=None)
    return [r for r in found.rows if isinstance(r, LogRecord) and r.kind.startswith("kernel_")]


@pytest.mark.parametrize(
    ("line", "want"),
    [
        (
            "NVRM: Xid (PCI:00000000:70:00.0): 79, pid=1234, GPU has fallen off the bus.",
            {"xid": 79, "pci": "00000000:70:00.0", "pid": 1234, "family": "hardware"},
        ),
        (
            "NVRM: Xid (PCI:0000:70:00): 62, pid='<unknown>', name=<unknown>, 0000(0000) 00000000",
            {"xid": 62, "pid": None, "name": None, "family": "hardware"},
        ),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", {"xid": 14, "pci": "0000:03:00", "family": "note"}),
        (
            "NVRM: Xid (PCI:0000:70:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            {"xid": 154, "family": "by_product", "recovery": "GPU Reset Required"},
        ),
        (
            "E0624 15:44:42 nvidia.go:123] XidCriticalError: Xid=43 on Device=GPU-c43f0536-e751-7211, unhealthy",
            {"xid": 43, "family": "application", "device": "GPU-c43f0536-e751-7211", "pci": None},
        ),
    ],
)
def test_xids(line: str, want: dict[str, object]) -> None:
    assert want.items() <= one(line).fields.items()


@pytest.mark.parametrize(
    ("line", "kind", "want"),
    [
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "kernel_sxid",
            {"sxid": 20034, "fatal": True, "link": "30", "switch": "nvidia-nvswitch0", "what": "LTSSM Fault Up"},
        ),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
            "kernel_sxid",
            {"sxid": 12028, "fatal": False, "pci": "0000:05:00.0"},
        ),
        (
            "nvidia 0000:5a:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
            "kernel_aer",
            {"driver": "nvidia", "pci": "0000:5a:00.0", "corrected": False, "fatal": True},
        ),
        (
            "pcieport 0000:00:02.0: AER: Corrected error received: 0000:5a:00.0",
            "kernel_aer",
            {"driver": "pcieport", "corrected": True},
        ),
        ("NVRM: RmInitAdapter failed! (0x62:0xffff:1861)", "kernel_gpu", {"what": "RmInitAdapter failed"}),
        ("NVRM: knvlinkX: GPU3: NVLink: fatal error detected on link 4", "kernel_gpu", {"what": "NVLink: fatal error"}),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", "kernel_mce", {"corrected": True}),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", "kernel_mce", {"corrected": False}),
        ("Memory failure: 0x12345: recovery action for dirty LRU page: Recovered", "kernel_mce", {"corrected": True}),
        (
            "Killed process 9 (python3) total-vm:1kB, anon-rss:2kB, file-rss:0kB",
            "kernel_oom_kill",
            {"event": "killed", "pid": 9, "anon_rss_kb": 2},
        ),
        (
            "System OOM encountered, victim process: sglang::schedul, pid: 30117",
            "kernel_oom_kill",
            {"event": "victim", "pid": 30117, "name": "sglang::schedul"},
        ),
    ],
)
def test_other_kinds(line: str, kind: str, want: dict[str, object]) -> None:
    record = one("[ 5.123456] " + line)
    assert record.kind == kind
    assert want.items() <= record.fields.items()


def test_a_sentence_over_three_lines_names_its_gpu() -> None:
    text = (
        "NVRM: The NVIDIA GPU 0000:70:00.0\n"
        "NVRM: (PCI ID: 10de:2330) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands."
    )
    record = one(text)
    assert (record.line, record.fields["pci"], record.fields["xid"]) == (3, "0000:70:00", 79)


def test_details_of_an_sxid_are_no_further_ones() -> None:
    text = (
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00\n"
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Data {0x00140004, 0x00100000}"
    )
    assert kernel_log.parse(numbered(text), "x") == []


@pytest.mark.parametrize(
    "text",
    [
        "The Xid documentation lists Xid 79 and Xid (see there)",
        "kernel: out of coffee",
        "is it true that the GPU has fallen off the bus?",
        "mce: CPU0: Thermal monitoring enabled (TM1)",
        "pcieport 0000:00:02.0: AER: enabled with IRQ 122",
        "Killed process 9 (python3) by hand",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.163.01",
        "NVRM: GPU at PCI:0000:01:00: GPU-f1648d72-c7c8-9814-2832-7a062b009188",
        "memory failure: we forgot to order some",
        "SXid and Xid differ",
    ],
)
def test_texts_that_resemble(text: str) -> None:
    assert kernel_log.parse(numbered(text), "x") == []
    assert not kernel_log.looks_like_kernel_log(text)


def test_the_prefilter_lets_every_line_through() -> None:
    for line in (XID, *OTHER_LINES):
        assert kernel_log.parse(numbered(line), "x"), line
        assert kernel_log.maybe(line), line


OTHER_LINES = (
    *text_of("dmesg_xid.txt").splitlines()[1:],
    *text_of("kern.txt").splitlines(),
    "XidCriticalError: Xid=43 on Device=GPU-c43f0536",
    "Out of memory: Kill process 9 (python3) score 900 or sacrifice child",
    "python3 invoked oom-killer: gfp_mask=0x140cca",
    "traps: python[77] general protection fault ip:7f sp:7f error:0 in libc10.so[7f+1]",
    "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010092",
)


def test_a_journal_without_years_gets_the_year_of_the_incident() -> None:
    def row(ts: float | None, **fields: str) -> LogRecord:
        return LogRecord("x", 1, 1, 0, ts, None, "kernel_xid", dict(fields), "")

    new_year = 1798761600.0  # 2027-01-01
    december, january = row(None, clock="déc. 31 23:59:50"), row(None, clock="Jan 1 00:00:10")
    outer_time.add_years({"a": [december, january], "b": [row(new_year)]})
    assert (december.ts, january.ts) == (new_year - 10, new_year + 10)
    alone = row(None, clock="Jan 1 00:00:10")
    outer_time.add_years({"a": [alone]})
    assert alone.ts is None


@given(mutations(text_of("dmesg_xid.txt"), text_of("kern.txt"), XID, "\n".join(OTHER_LINES)))
def test_never_raises(text: str) -> None:
    kernel_log.parse(numbered(text), "x")
    kernel_log.looks_like_kernel_log(text)
