"""Big logs: what the fast path finds is what the small path finds."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from hicache_doctor.artifacts import inventory, windows
from hicache_doctor.artifacts.inventory import Read, read_all
from hicache_doctor.artifacts.vocabulary import load
from hicache_doctor.evidence.rows import ExceptionRow, Frame, LogRecord, Setting, Stack
from tests.incidents import Log, a1_like, batches, c1_like, traceback

WORDS = load()
FREQUENT = {e.kind for e in WORDS.entries if e.keep == "ends"}
ORDINARY = 12_000
PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def padded(text: str, n: int = ORDINARY, seed: int = 1, between: bool = True) -> str:
    """The log with ``n`` ordinary lines of its own, before its records and between them, never inside one."""
    rng = random.Random(seed)
    lines = text.rstrip("\n").split("\n")
    starts = [i for i, line in enumerate(lines) if line.startswith("[20") and i > 5]
    gaps = sorted(rng.choice(starts) if between else starts[0] for _ in range(n))
    out: list[str] = []
    for i, line in enumerate(lines):
        for _ in range(gaps.count(i) if i in starts else 0):
            stamp = line[: line.index("]") + 1]
            out.append(
                f"{stamp} Decode batch, #running-req: {rng.randrange(9)}, #token: 9, token usage: 0.01, #queue-req: 0"
            )
            if rng.random() < 0.1:
                out.append(f'{stamp} INFO:     10.0.0.{rng.randrange(9)}:1 - "POST /generate HTTP/1.1" 200 OK')
        out.append(line)
    return "\n".join(out) + "\n"


def cri(text: str, seed: int = 1) -> str:
    """As containerd writes it, long lines in parts; batch lines are too short for that."""
    rng = random.Random(seed)
    out = []
    for line in text.rstrip("\n").split("\n"):
        while len(line) > 40 and " batch, #" not in line and rng.random() < 0.2:
            at = rng.randrange(1, len(line) - 1)
            if line[at - 1].isspace() or line[at].isspace():
                continue
            out.append(f"2026-05-28T02:00:01.765641375+02:00 stderr P {line[:at]}")
            line = line[at:]
        out.append(f"2026-05-28T02:00:01.765641375+02:00 stderr F {line}")
    return "\n".join(out) + "\n"


def read(path: Path, monkeypatch: pytest.MonkeyPatch, small: int, window: int = windows.WINDOW) -> Read:
    monkeypatch.setattr(inventory, "SMALL", small)
    original = windows.Windows.__init__
    with monkeypatch.context() as m:
        m.setattr(windows.Windows, "__init__", lambda self, source, size=window: original(self, source, window))
        (found,) = read_all([str(path)], WORDS, spool=path.parent, stdin=None)
    return found


def essence(found: Read, *, offsets: bool = True) -> dict[str, list[Any]]:
    """The rows that matter, comparable between the two paths."""
    stacks = {s.id: s for s in found.rows if isinstance(s, Stack)}

    def where(s: Stack) -> tuple[Any, ...]:
        return s.line, s.line_end, s.rank, s.ts, s.source, s.thread, s.main, s.pid, s.life

    batches = [
        (r.line, r.ts, r.rank, r.new_seq, r.new_token, r.cached_token, r.usage, r.queue, r.running, r.life)
        for r in found.rows
        if type(r).__name__ == "Batch" and r.kind == "prefill"
    ]
    names = ("line", "ts", "rank", "new_seq", "new_token", "cached_token", "usage", "queue", "running", "life")
    for table in (piece for frequent in found.tables for piece in frequent.pieces):
        batches += [tuple(r[n] for n in names) for r in table.to_pylist() if r["kind"] == "prefill"]
    own = [e for e in found.rows if isinstance(e, ExceptionRow)]
    logs = [r for r in found.rows if isinstance(r, LogRecord) and r.kind not in FREQUENT and r.kind != "last_line"]
    return {
        "exceptions": sorted(
            (e.line, e.line_end, e.rank or "", e.ts or 0, e.type, e.message, e.proof, e.thread or "", e.life)
            + ((e.offset,) if offsets else ())
            for e in own
        ),
        "stacks": sorted(tuple(map(str, where(s))) for s in stacks.values()),
        "frames": sorted(
            (str(stacks[f.stack].line), f.depth, f.function, f.file or "", f.line or 0, f.at_line or 0)
            for f in found.rows
            if isinstance(f, Frame)
        ),
        "settings": sorted({(s.key, s.value, s.line) for s in found.rows if isinstance(s, Setting)}),
        "logs": sorted(
            (r.line, r.line_end, r.kind, r.rank or "", r.ts or 0, sorted(r.fields.items()), r.life) for r in logs
        ),
        "batches": sorted(batches),
        "last": sorted(
            (r.rank or "", r.line) for r in found.rows if isinstance(r, LogRecord) and r.kind == "last_line" and r.rank
        ),
    }


def both(path: Path, monkeypatch: pytest.MonkeyPatch, **how: int) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    small = read(path, monkeypatch, 1 << 30)
    big = read(path, monkeypatch, 1000, **how)
    assert (small.artifact.reader, big.artifact.reader) == ("text", "big log")
    assert small.artifact.lines == big.artifact.lines
    return essence(small), essence(big)


INCIDENTS = {
    **{f"a1 {k}": v for k, v in a1_like().items()},
    **{f"c1 {k}": v for k, v in c1_like().items()},
}


@pytest.mark.parametrize("name", INCIDENTS)
def test_an_incident_in_a_big_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / "x.log"
    path.write_text(padded(INCIDENTS[name]), encoding="utf-8")
    small, big = both(path, monkeypatch)
    assert big == small
    assert big["batches"] and big["settings"]


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_a_packed_log_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str) -> None:
    text = padded(INCIDENTS["a1 PP1.log"], 3_000).encode()
    (tmp_path / "x.log").write_bytes(text)
    (tmp_path / f"y.log{packing}").write_bytes(PACKINGS[packing](text))
    plain = read(tmp_path / "x.log", monkeypatch, 1 << 30)
    packed = read(tmp_path / f"y.log{packing}", monkeypatch, 1)
    assert packed.artifact.reader == "big log"
    assert essence(packed) == essence(plain)
    small = read(tmp_path / f"y.log{packing}", monkeypatch, 1 << 30)
    assert small.artifact.reader == "text"
    assert essence(small) == essence(plain)


KERNEL = (
    "2026-05-28T02:00:01,765641+02:00 NVRM: Xid (PCI:0000:70:00): 79, pid=684430, name=python3, GPU has fallen off",
    "[Wed Jun 24 15:44:42 2026] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "[ 10.342345] Memory cgroup out of memory: Killed process 9 (sglang::schedul) total-vm:1kB, anon-rss:2kB",
    "[ 11.342345] nvidia 0000:5a:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
    "[ 12.342345] python3[77]: segfault at 7f10 ip 0f sp 0f error 4 in libcuda.so.1[7f00+1000]",
    "[ 13.342345] mce: [Hardware Error]: Machine check events logged",
    "[ 14.342345] EDAC MC0: 1 UE memory read error on CPU_SrcID#0",
    "[ 15.342345] oom_reaper: reaped process 9 (sglang::schedul), now anon-rss:0kB",
    "[ 16.342345] NVRM: RmInitAdapter failed! (0x62:0xffff:1861)",
    "Jun 24 15:44:42 host-a kubelet: System OOM encountered, victim process: python3, pid: 30117",
)


@pytest.mark.parametrize("line", KERNEL)
def test_kernel_lines_of_a_big_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    path = tmp_path / "journal.txt"
    other = [f"[Wed Jun 24 15:44:{i % 60:02d} 2026] eth0: renamed from veth{i}" for i in range(3_000)]
    path.write_text("\n".join([*other[:2_000], line, *other[2_000:]]) + "\n", encoding="utf-8")
    small, big = read(path, monkeypatch, 1 << 30), read(path, monkeypatch, 1)
    found = [[r for r in one.rows if isinstance(r, LogRecord) and r.kind.startswith("kernel_")] for one in (small, big)]
    assert found[0] == found[1]
    assert [r.line for r in found[0]] == [2001]


@pytest.mark.parametrize("window", [4_096, 5_000, 7_919, 65_536])
@pytest.mark.parametrize("name", ["a1 PP1.log", "c1 TP0.log"])
def test_records_that_cross_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, window: int) -> None:
    path = tmp_path / "x.log"
    path.write_text(padded(INCIDENTS[name], 800), encoding="utf-8")
    small, big = both(path, monkeypatch, window=window)
    assert big == small


@pytest.mark.parametrize("name", ["a1 PP1.log", "c1 TP0.log"])
def test_partial_lines_of_containerd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / "x.log"
    path.write_text(cri(padded(INCIDENTS[name], 2_000)), encoding="utf-8")
    small, big = both(path, monkeypatch)
    assert big == small


def test_candidates_without_a_prefix_are_the_last_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN two ranks in one file, ordinary lines, and unprefixed records far from any candidate
    log = Log("PP0")
    log.start()
    rng = random.Random(3)
    for i in range(4_000):
        log.say(f"ordinary {i}", rng.choice(["PP0", "PP1"]))
        if i % 500 == 499:
            log.bare("cur_batch.batch_size()=3")
        if i % 700 == 699:
            log.bare("RuntimeError: CUDA error: an illegal memory access was encountered")
        if i % 900 == 899:
            log.bare("Traceback (most recent call last):\n" + traceback("ValueError: bare"))
    path = tmp_path / "x.log"
    path.write_text(log.text(), encoding="utf-8")
    small, big = both(path, monkeypatch)
    assert big == small
    assert {r[3] for r in big["logs"] if r[2] == "current_batch"} == {"PP0", "PP1"}


def test_lives_in_a_big_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log("PP1")
    for life in range(3):
        log.start()
        for new, cached in batches(1_500, life):
            log.batch(new, cached)
        log.say("Scheduler hit an exception: Traceback (most recent call last):")
        log.bare(traceback(f"ValueError: {life}"))
        log.say("SIGQUIT received. signum=None, frame=None.", "")
    path = tmp_path / "x.log"
    path.write_text(log.text(), encoding="utf-8")
    small, big = read(path, monkeypatch, 1 << 30), read(path, monkeypatch, 1000)
    one, other = essence(small), essence(big)
    # The rows of batches get their life from the starts, when one is chosen.
    assert [b[:-1] for b in other.pop("batches")] == [b[:-1] for b in one.pop("batches")]
    assert other == one
    assert big.starts == small.starts or len(big.starts) == 2


@pytest.mark.parametrize("tail", ["", "\n\n", "[2026-05-28 02:59:59 PP1] half a li"])
def test_ends_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: str) -> None:
    path = tmp_path / "x.log"
    path.write_text(padded(INCIDENTS["a1 PP1.log"], 500) + tail, encoding="utf-8")
    small, big = both(path, monkeypatch)
    assert big == small


def test_frequent_kinds_keep_their_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log("PP0")
    log.start()
    for i in range(6_000):
        log.say(f"Request is disconnected from the client side. Abort request obj.rid='{i}'")
    log.say("Scheduler hit an exception: Traceback (most recent call last):")
    log.bare(traceback("ValueError: x"))
    path = tmp_path / "x.log"
    path.write_text(log.text(), encoding="utf-8")
    big = read(path, monkeypatch, 1000)
    rids = [r.fields["rid"] for r in big.rows if isinstance(r, LogRecord) and r.kind == "client_disconnected"]
    assert len(rids) == len(set(rids)) and {"0", "5998", "5999"} <= set(rids)
    assert len(essence(big)["exceptions"]) == 1
