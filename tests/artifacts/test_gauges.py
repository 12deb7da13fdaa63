"""CSV series, shell pastes (ps, top, free, /proc) and memray listings."""

from __future__ import annotations

import pytest
from hypothesis import given

from hicache_doctor.artifacts import gauges, memray, process_tables
from hicache_doctor.artifacts.byte_units import to_bytes
from hicache_doctor.artifacts.clock_text import seconds
from tests.artifacts.small import mutations, numbered, text_of

GIB = 1024.0**3

PS = """Tue Feb 24 09:00:00 UTC 2026
USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND
root       41877  101  9.1 402118320 72433052 ?  Rl   06:00 120:11 sglang::scheduler_PP0_TP1
root       40216  101  9.1 402118320 72124740 ?  Rl   06:00 120:11 sglang::scheduler_PP1_TP1 --x 1
Tue Feb 24 09:10:00 UTC 2026
    PID   RSS COMMAND
  41877 72433152 sglang::scheduler_PP0_TP1
"""

TOP = """top - 09:00:00 up 3 days
    PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND
  30117 root      20   0  383.5g 103.2g  93.1g S 100.0  40.1   9:11.02 sglang::schedul
"""

STATUS = """Name:\tpt_main_thread
Pid:\t77
VmRSS:\t  2048 kB
RssShmem:\t  1024 kB
MemTotal:       263850320 kB
"""


def test_a_csv_with_titles_and_qps() -> None:
    text = text_of("rss_title.csv")
    assert gauges.looks_like_gauges(text)
    samples = gauges.parse(numbered(text), "x.csv")
    rss, qps = samples[0], samples[1]
    assert (rss.name, rss.value, rss.rank, rss.pid) == ("rss_bytes", 61197941 * 1024.0, "PP0 TP0", 45023)
    assert (rss.ts, rss.line, rss.labels["host"]) == (1783210200.0, 2, "host-a")
    assert rss.labels["title"] == "sglang::scheduler_PP0_TP0"
    assert (qps.name, qps.value) == ("qps", 3.95)


def test_a_csv_in_gib_without_ranks() -> None:
    samples = gauges.parse(numbered(text_of("res_gib.csv")), "x.csv")
    assert (samples[0].name, samples[0].value, samples[0].rank) == ("rss_bytes", 103.2 * GIB, None)
    assert {s.name for s in samples} == {"rss_bytes", "bench_running"}


@pytest.mark.parametrize(
    "header, row, name, value",
    [
        ("time;rss_mb", "2026-01-01T00:00:00Z;12.5", "rss_bytes", 12.5 * 1024**2),
        ("timestamp\tpid\trss", "1772359200\t7\t100", "rss_bytes", 102400.0),
        ("ts,RSS (MB)", "2026-01-01 00:00,2", "rss_bytes", 2.0 * 1024**2),
        ("ts,pid,rss_bytes", "2026-01-01 00:00,9,2", "rss_bytes", 2.0),
        ("ts,pid,res", "2026-01-01 00:00,9,2.5g", "rss_bytes", 2.5 * GIB),
        ("ts,pid,Queue Len", "2026-01-01 00:00,9,4", "queue_len", 4.0),
    ],
)
def test_units_and_delimiters(header: str, row: str, name: str, value: float) -> None:
    (sample,) = gauges.parse(numbered(f"{header}\n{row}\n"), "x")
    assert (sample.name, sample.value) == (name, value)
    assert sample.ts is not None


def test_other_text_is_no_series() -> None:
    for text in ("hello, world\nfoo, bar\n", "[2026-01-01 00:00:00] a, b\nc, d\n", "", "time,flies\nlike,arrows\n"):
        assert not gauges.looks_like_gauges(text)


def test_ps_blocks_with_dates_between() -> None:
    assert process_tables.looks_like_process_table(PS)
    rss = [s for s in process_tables.parse(numbered(PS), "x") if s.name == "rss_bytes"]
    assert [(s.rank, s.pid, s.value / 1024) for s in rss] == [
        ("PP0 TP1", 41877, 72433052.0),
        ("PP1 TP1", 40216, 72124740.0),
        ("PP0 TP1", 41877, 72433152.0),
    ]
    assert rss[2].ts is not None and rss[0].ts is not None and rss[2].ts - rss[0].ts == 600.0


def test_top_and_status() -> None:
    by_name = {s.name: s for s in process_tables.parse(numbered(TOP), "x")}
    assert by_name["rss_bytes"].value == 103.2 * GIB
    assert (by_name["shared_bytes"].value, by_name["rss_bytes"].pid) == (93.1 * GIB, 30117)
    status = {s.name: (s.value, s.pid) for s in process_tables.parse(numbered(STATUS), "x")}
    assert status == {
        "rss_bytes": (2097152.0, 77),
        "rss_shmem_bytes": (1048576.0, 77),
        "mem_total_bytes": (263850320 * 1024.0, None),
    }


def test_free() -> None:
    text = text_of("free_h.txt")
    assert process_tables.looks_like_process_table(text)
    samples = {s.name: s.value / GIB for s in process_tables.parse(numbered(text), "x")}
    assert samples["mem_total_bytes"] == 251
    assert samples["shmem_bytes"] == 121
    assert samples["swap_used_bytes"] == 6.1


def test_a_memray_leak_listing() -> None:
    text = text_of("memray_pp0.txt")
    assert memray.looks_like_memray(text)
    total, first, *_, last = memray.parse(numbered(text), "x")
    assert (total.name, total.labels) == ("memray_leaked_bytes", {"n": 561})
    assert (first.name, first.rank, first.pid, first.value) == ("memray_live_bytes", "PP0", 41877, 31.52 * 1024**2)
    assert first.labels == {
        "function": "isend",
        "file": "torch/distributed/distributed_c10d.py",
        "line": 2561,
        "n": 276480,
    }
    assert last.labels["function"] == "log"
    assert memray.parse(numbered(text), "x")[3].labels["note"] == "tensor clone"


def test_memray_summary_and_stats() -> None:
    table = "│ _pp_sync at /srt/mem_cache/hiradix_cache.py │ 21.290MB │ 19.1% │ 20.000MB │ 18.0% │ 276441 │"
    stats = "\t- _pp_sync:/srt/mem_cache/hiradix_cache.py:269 -> 21.290MB"
    (a,) = memray.parse(numbered(table), "x")
    (b,) = memray.parse(numbered(stats), "x")
    assert (a.name, a.value, a.labels["n"]) == ("memray_live_bytes", 20.0 * 1024**2, 276441)
    assert (b.name, b.labels["line"]) == ("memray_total_bytes", 269)


@pytest.mark.parametrize(
    "text, value",
    [("19Gi", 19 * GIB), ("412004kB", 412004 * 1024.0), ("0B", 0.0), ("6.1g", 6.1 * GIB), ("12", 12.0), ("x", None)],
)
def test_amounts(text: str, value: float | None) -> None:
    assert to_bytes(text) == value


@pytest.mark.parametrize(
    "text, value",
    [
        ("2026-06-23T08:04:31,123456+00:00", 1782201871.123456),
        ("[Tue Jun 23 08:04:31 2026]", 1782201871.0),
        ("Tue 23 Jun 2026 08:04:31 AM UTC", 1782201871.0),
        ("2026-06-23 10:04:31+02:00", 1782201871.0),
        ("1782201871", 1782201871.0),
        ("2026-13-45", None),
        ("no time", None),
    ],
)
def test_times(text: str, value: float | None) -> None:
    assert seconds(text) == value


@given(mutations(text_of("rss_title.csv"), PS, TOP, STATUS, text_of("free_h.txt"), text_of("memray_pp0.txt")))
def test_never_raises(text: str) -> None:
    for reader in (gauges, process_tables, memray):
        reader.parse(numbered(text), "x")
    gauges.looks_like_gauges(text)
    process_tables.looks_like_process_table(text)
    memray.looks_like_memray(text)
    seconds(text)
    to_bytes(text)
