"""nvidia-smi in all its forms: tables of several drivers, -q, queries with and without a header, dmon, pmon."""

from __future__ import annotations

import pytest
from hypothesis import given

from hicache_doctor.artifacts import gauges
from hicache_doctor.artifacts.nvidia_smi import looks_like_nvidia_smi, parse
from hicache_doctor.evidence.rows import LogRecord, Sample
from tests.artifacts.small import mutations, numbered, text_of

GIB, MIB = 1024.0**3, 1024.0**2
DMON = """# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk
# Idx      W      C      C      %      %      %      %      %      %    MHz    MHz
    0    151     38     45    100      0      0      0      0      0   2619   1980
    1     70     30      -      0      0      0      0      -      0   2619   1980
# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk
    0    152     38     45     99      0      0      0      0      0   2619   1980
"""
PMON = """#Date       Time        gpu        pid  type    sm   mem   enc   dec    fb   ccpm  command
#YYYYMMDD   HH:MM:SS    Idx          #   C/G     %     %     %     %    MB    MB  name
 20260624   15:44:42      0      41877     C    99     0     -     -  70000     0  sglang::scheduler_PP0
 20260624   15:44:42      1          -     -     -     -     -     -     -     -  -
"""


def samples(text: str) -> list[tuple[object, ...]]:
    assert looks_like_nvidia_smi(text)
    rows = [r for r in parse(numbered(text), "x") if isinstance(r, Sample)]
    return [(r.name.removeprefix("gpu_"), r.labels["gpu"], r.value) for r in rows]


def of(text: str, gpu: str, *names: str) -> list[object]:
    found = {name: value for name, g, value in samples(text) if g == gpu}
    return [found.get(name) for name in names]


STATE = ("utilization_percent", "power_watts", "memory_used_bytes", "memory_total_bytes")


def test_the_table_of_2021() -> None:
    text = text_of("smi_470.txt")
    assert of(text, "0", *STATE) == [100.0, 151.0, 71234 * MIB, 81251 * MIB]
    assert of(text, "1", *STATE) == [0.0, 65.0, 71200 * MIB, 81251 * MIB]
    rows = parse(numbered(text), "x")
    (record,) = [r for r in rows if isinstance(r, LogRecord)]
    assert (record.line, record.line_end, record.fields["driver"], record.ts) == (3, 25, "470.57.02", 1782315882.0)
    processes = [(r.pid, r.rank, r.value, r.ts) for r in rows if isinstance(r, Sample) and "process" in r.name]
    assert processes == [
        (41877, "PP0", 70000 * MIB, 1782315882.0),
        (41878, None, 70000 * MIB, 1782315882.0),
    ]


def test_the_table_of_2026() -> None:
    text = text_of("smi_580.txt")
    assert of(text, "0", *STATE) == [100.0, 151.0, 71234 * MIB, 143771 * MIB]
    assert of(text, "1", *STATE) == [None, None, 71234 * MIB, 143771 * MIB]  # MIG: no utilisation, power N/A
    assert of(text, "1", "mig_memory_used_bytes", "process_memory_bytes") == [14 * MIB, 70000 * MIB]
    assert of(text, "2", *STATE) == [0.0, 12.0, 4 * MIB, 24564 * MIB]
    rows = parse(numbered(text), "x")
    (fault,) = [r for r in rows if isinstance(r, LogRecord) and r.kind == "nvidia_smi_fault"]
    assert (fault.fields["gpu"], fault.fields["what"]) == ("3", "ERR!")
    (mig,) = [r for r in rows if isinstance(r, Sample) and r.pid == 41878]
    assert mig.labels["mig"] == "1/0"


def test_the_full_report() -> None:
    text = text_of("smi_q.txt")
    assert of(text, "0", *STATE) == [100.0, 151.2, 71234 * MIB, 81559 * MIB]
    assert of(text, "1", *STATE) == [0.0, 70.2, None, None]
    assert of(text, "0", "ecc_uncorrected_volatile", "process_memory_bytes") == [3.0, 70000 * MIB]
    rows = parse(numbered(text), "x")
    (process,) = [r for r in rows if isinstance(r, Sample) and r.pid == 41877]
    assert (process.rank, process.labels["pci"], process.ts) == ("PP0 TP0", "00000000:1A:00.0", 1782315882.0)
    notes = [r for r in rows if isinstance(r, LogRecord) and r.kind == "nvidia_smi_note"]
    assert [n.fields["what"] for n in notes] == ["uncorrected memory errors"] * 2


@pytest.mark.parametrize(
    "text",
    [
        "index, utilization.gpu [%], power.draw [W], memory.used [MiB]\n0, 100 %, 151.20 W, 71234 MiB\n",
        "index, utilization.gpu, power.draw, memory.used\n0, 100, 151.20, 71234\n",
        "0, 100 %, 151.20 W, 71234 MiB\n",
        "0, 151.20 W, 100 %, 71234 MiB, 143771 MiB\n",
        "$ nvidia-smi --query-gpu=index,utilization.gpu,power.draw,memory.used --format=csv,noheader,nounits\n"
        "0, 100, 151.20, 71234\n",
        "timestamp, index, name, pci.bus_id, utilization.gpu [%], memory.used [MiB], power.draw [W]\n"
        "2026/06/24 15:44:42.000, 0, NVIDIA H200, 00000000:1A:00.0, 100 %, 71234 MiB, 151.20 W\n",
    ],
    ids=[
        "csv",
        "nounits",
        "noheader",
        "noheader, other order",
        "nothing but the command",
        "with a time",
    ],
)
def test_queries(text: str) -> None:
    assert of(text, "0", *STATE[:3]) == [100.0, 151.2, 71234 * MIB]
    assert not gauges.looks_like_gauges(text)


def test_a_query_says_nothing_where_the_tool_does() -> None:
    text = "index, utilization.gpu, power.draw\n0, [Not Supported], [N/A]\n1, 0, 70.1\n"
    assert [s[1:] for s in samples(text)] == [("1", 0.0), ("1", 70.1)]


def test_a_query_of_processes() -> None:
    text = (
        "pid, process_name, gpu_bus_id, used_gpu_memory [MiB]\n41877, sglang::scheduler_PP0, 00000000:1A:00.0, 9 MiB\n"
    )
    (row,) = [r for r in parse(numbered(text), "x") if isinstance(r, Sample)]
    assert (row.pid, row.rank, row.value, row.labels["pci"]) == (41877, "PP0", 9 * MIB, "00000000:1A:00.0")


def test_monitors() -> None:
    power = [(gpu, value) for name, gpu, value in samples(DMON) if name == "power_watts"]
    assert power == [("0", 151.0), ("1", 70.0), ("0", 152.0)]
    assert of(DMON, "1", "utilization_percent", "temperature_celsius") == [0.0, 30.0]
    rows = [r for r in parse(numbered(PMON), "x") if isinstance(r, Sample)]
    assert {(r.pid, r.rank, r.ts) for r in rows} == {(41877, "PP0", 1782315882.0)}
    assert {r.name: r.value for r in rows} == {
        "gpu_process_utilization_percent": 99.0,
        "gpu_process_memory_utilization_percent": 0.0,
        "gpu_process_memory_bytes": 70000 * MIB,
    }


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Unable to determine the device handle for GPU0000:5A:00.0: GPU is lost.  Reboot", "nvidia_smi_fault"),
        ("Unable to determine the device handle for GPU 0000:5A:00.0: Unknown Error", "nvidia_smi_fault"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make", "nvidia_smi_note"),
        ("Failed to initialize NVML: Driver/library version mismatch", "nvidia_smi_note"),
    ],
)
def test_what_it_says_instead_of_a_table(text: str, kind: str) -> None:
    assert looks_like_nvidia_smi(text)
    assert [r.kind for r in parse(numbered(text), "x") if isinstance(r, LogRecord)] == [kind]


@pytest.mark.parametrize(
    "text",
    [
        "a, b, c\n1, 2, 3\n",
        "name, age\nAnn, 3\n",
        "0, 100 % sure, 3 W\n",
        "| 0 | 1 |\n|---|---|\nWe run NVIDIA-SMI sometimes\n",
        "# gpu count and price\n 3  20\n",
        "host, utilization\na, 100 %\n",
        "0, 100 %\n",
    ],
)
def test_texts_that_resemble(text: str) -> None:
    assert not looks_like_nvidia_smi(text)
    assert [r for r in parse(numbered(text), "x") if isinstance(r, Sample)] == []


@given(mutations(text_of("smi_470.txt"), text_of("smi_580.txt"), text_of("smi_q.txt"), DMON, PMON))
def test_never_raises(text: str) -> None:
    looks_like_nvidia_smi(text)
    parse(numbered(text), "x")
