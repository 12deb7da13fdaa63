"""What readers of hostile files must survive, and for how long: short in every run, minutes in the long ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hicache_doctor.artifacts.limited import Answer, Children
from hicache_doctor.artifacts.limited_child import MEMORY
from hicache_doctor.artifacts.source import Source

SHORT, ROUND = 300, 1_000
LONG_SECONDS = 600.0
_INTERPRETER = 64 << 20
# What opcodes of pickles begin with, and what makes them ask for much.
SPIKES = (
    b"\x8b\xff\xff\xff\x7f", b"X\xff\xff\xff\xff", b"\x8d" + b"\xff" * 8, b"\x95" + b"\xff" * 7 + b"\x00",
    b"r\xff\xff\xff\x7f", b"\x96" + b"\x00\x00\x00\x00\x01" + b"\0" * 3, b"cos\nsystem\n", b"R", b"b", b"\x81", b"\x93",
    b"2" * 50, b"\x94" * 50, b"]" * 50, b"(" * 50, b"h\x00", b"h\x01a", b".", b"\x80\x04", b"Pid\n", b"\x82\x01",
)  # fmt: skip


@contextmanager
def reader() -> Iterator[Callable[..., Answer]]:
    """Ask one child about bytes; at the end, that it never held more than it may."""
    with Children(1) as children:

        def ask(task: str, data: bytes, folder: Path, **options: Any) -> Answer:
            path = folder / "artefact"
            path.write_bytes(data)
            answers: list[Answer] = []
            children.ask(task, Source(path.name, path, len(data)), answers.append, **options)
            children.finish()
            return answers[0]

        yield ask
        for child in children._all:
            if child.poll() is None:
                status = Path(f"/proc/{child.pid}/status").read_text()
                peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
                assert int(peak.split()[1]) << 10 < MEMORY + _INTERPRETER


def mutated(*seeds: bytes) -> st.SearchStrategy[bytes]:
    """Arbitrary bytes, and real files that were cut, overwritten, spiked and joined."""
    seed = st.sampled_from(seeds)
    place = st.floats(0, 1)
    edit = st.tuples(place, st.one_of(st.binary(max_size=9), st.sampled_from(SPIKES)), st.integers(0, 12))

    def apply(case: tuple[bytes, list[tuple[float, bytes, int]], float]) -> bytes:
        data, edits, end = case
        for at, new, gone in edits:
            i = int(at * len(data))
            data = data[:i] + new + data[i + gone :]
        return data[: int(end * len(data)) + 1]

    cut = st.one_of(st.just(1.0), place)
    changed = st.tuples(seed, st.lists(edit, max_size=4), cut).map(apply)
    return st.one_of(st.binary(max_size=200), changed, st.tuples(seed, seed).map(b"".join))


def run(prop: Callable[[bytes], None], cases: st.SearchStrategy[bytes], *, long: bool) -> None:
    """Try ``prop`` on many cases; ``long``: for ten minutes."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]

    def once(count: int) -> None:
        def named(case: bytes) -> None:
            prop(case)

        settings(max_examples=count, deadline=None, database=None, suppress_health_check=checks)(given(cases)(named))()

    if not long:
        once(SHORT)
        return
    until = time.monotonic() + LONG_SECONDS
    while time.monotonic() < until:
        once(ROUND)
