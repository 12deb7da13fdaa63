"""The notes of a core: what they say, cut, spiked, or of another world."""

from __future__ import annotations

import signal
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hicache_doctor.artifacts import elf_core
from tests.artifacts.cores import elf, mapped, note, prpsinfo, prstatus

EXE, LIB = "/usr/bin/python3.12", "/opt/venv/lib/python3.12/site-packages/torch/lib/libtorch_cpu.so"
FILES = [(0x400000, 0x402000, 0, EXE), (0x402000, 0x500000, 0x2000, EXE), (0x7F0000000000, 0x7F0000100000, 0, LIB)]


def siginfo(number: int, code: int, value: int) -> bytes:
    return note(0x53494749, struct.pack("<iiiiQ", number, 0, code, 0, value).ljust(128, b"\0"))


def notes(number: int = signal.SIGABRT, code: int = -6, value: int = 77) -> list[bytes]:
    return [
        prstatus(78, number),
        prpsinfo(77, b"sglang::schedul", b"sglang::scheduler_PP1_TP0"),
        siginfo(number, code, value),
        note(6, struct.pack("<QQQQ", 9, 0x402010, 0, 0)),
        mapped(FILES),
        note(0x202, b"\0" * 2696, b"LINUX\0"),
        prstatus(77, number),
    ]


CORE = elf(notes(), [(0x7FFF0000, 0x7FFF2000, b"s" * 8192)])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("core") / "core"


def read(place: Path, data: bytes) -> elf_core.ElfCore:
    place.write_bytes(data)
    return elf_core.read(place)


def test_the_notes_say_who_it_was_and_what_it_had_mapped(place: Path) -> None:
    core = read(place, CORE)
    assert (core.pid, core.name, core.command) == (77, "sglang::schedul", "sglang::scheduler_PP1_TP0")
    assert (core.fatal, core.sender, core.own, core.threads) == ("SIGABRT", 77, True, [78, 77])
    assert (core.executable, core.python, core.files) == (EXE, "3.12", [EXE, LIB])
    assert (core.truncated, core.faults, core.segments[0].start) == (False, [], 0x7FFF0000)


@pytest.mark.parametrize(
    "number, code, value, fatal, own",
    [
        (signal.SIGSEGV, 1, 0xDEAD, "SIGSEGV", True),
        (signal.SIGBUS, 2, 0x10, "SIGBUS", True),
        (signal.SIGABRT, 0, 4711, "SIGABRT", False),
        (signal.SIGSEGV, 0, 4711, "SIGSEGV", False),
        (signal.SIGSTOP, 0, 0, None, False),
        (0, 0, 0, None, False),
    ],
)
def test_what_ended_it(place: Path, number: int, code: int, value: int, fatal: str | None, own: bool) -> None:
    core = read(place, elf(notes(number, code, value), []))
    assert (core.fatal, core.own) == (fatal, own)
    assert core.address == (value if fatal and own and number != signal.SIGABRT else None)


def test_what_lies_behind_the_end_is_told(place: Path) -> None:
    core = read(place, CORE[:-4096])
    assert core.truncated and core.claimed == len(CORE) and core.pid == 77
    assert "truncated: 1 of 2 program headers" in read(place, CORE[: 64 + 56 + 8]).faults
    assert any("notes" in f for f in read(place, CORE[:1000]).faults)


@pytest.mark.parametrize(
    "at, value, why",
    [
        (4, 1, "a core of a 32-bit process is not read"),
        (5, 2, "a core of a big-endian machine is not read"),
        (16, 3, "an ELF file, but no core"),
        (54, 57, "a core file, but damaged: its program headers have 57 bytes"),
        (0, 0, "no ELF file"),
    ],
)
def test_others_are_refused_in_one_line(place: Path, at: int, value: int, why: str) -> None:
    data = bytearray(CORE)
    data[at] = value
    with pytest.raises(elf_core.CoreDamage, match=why):
        read(place, bytes(data))


def test_counts_that_the_file_claims_cost_nothing(place: Path) -> None:
    core = read(place, elf([note(0x46494C45, struct.pack("<QQ", 1 << 60, 4096))], []))
    assert core.mapped == [] and f"the list of mapped files is cut: 0 of {1 << 60}" in core.faults
    many = bytearray(CORE)
    struct.pack_into("<H", many, 56, 0xFFFF)  # the number of program headers is elsewhere, namely nowhere
    struct.pack_into("<QH", many, 40, len(CORE) - 60, 0)
    struct.pack_into("<H", many, 58, 64)
    assert read(place, bytes(many)).size == len(CORE)
    long = note(6, b"")[:4] + struct.pack("<I", 0xFFFFFFF0) + note(6, b"")[8:]
    assert "truncated inside its notes" in read(place, elf([long], [])).faults


spikes = st.lists(st.tuples(st.integers(0, len(CORE) - 8), st.binary(min_size=1, max_size=8)), max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spikes, st.integers(0, len(CORE)))
def test_no_damage_is_more_than_a_line(place: Path, spikes: list[tuple[int, bytes]], end: int) -> None:
    data = bytearray(CORE)
    for at, spike in spikes:
        data[at : at + len(spike)] = spike
    try:
        core = read(place, bytes(data[:end]))
    except elf_core.CoreDamage as e:
        assert "\n" not in str(e)
        return
    assert all(s.offset < len(data) and s.end >= s.start for s in core.segments)
    assert len(core.mapped) <= len(FILES) and len(core.threads) <= 16
    assert all(part.isprintable() for part in (core.command or "", core.name or "", *core.files))


@given(st.binary(max_size=400))
def test_random_bytes_behind_the_magic(tmp_path_factory: pytest.TempPathFactory, rest: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "random-core"
    file.write_bytes(CORE[:64] + rest)
    elf_core.read(file)
