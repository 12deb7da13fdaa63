"""Files of numbers that are large or packed, and times that stand around the rows."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from hicache_doctor.artifacts import inventory, pages
from hicache_doctor.artifacts.inventory import Read, read_all
from hicache_doctor.artifacts.outer_time import time_of_name
from hicache_doctor.artifacts.vocabulary import load
from hicache_doctor.evidence.rows import LogRecord, Sample
from tests.artifacts.small import text_of

WORDS = load()
SERIES = 'sglang:num_queue_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="%d",tp_rank="0"} %d'


def scrapes(n: int) -> str:
    out = []
    for i in range(n):
        out += [
            f"# scrape {1782315882 + 15 * i}",
            "# TYPE sglang:num_queue_reqs gauge",
            SERIES % (0, i),
            SERIES % (1, 0),
        ]
    return "\n".join(out) + "\n"


def read(path: Path, data: bytes) -> Read:
    path.write_bytes(data)
    (found,) = read_all([str(path)], WORDS, spool=path.parent, stdin=None)
    return found


def samples(found: Read) -> list[tuple[object, ...]]:
    return [(s.name, s.rank, s.ts, str(s.value), s.line) for s in found.rows if isinstance(s, Sample)]


@pytest.mark.parametrize("name", ["query_range.json", "scrapes", "rss_title.csv", "smi"])
def test_a_big_page_gives_what_a_small_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    made = {
        "scrapes": scrapes(50),
        "smi": "timestamp, index, utilization.gpu [%], power.draw [W]\n"
        + "".join(f"2026/06/24 15:{i // 60:02d}:{i % 60:02d}.000, 0, {i} %, 150.50 W\n" for i in range(200)),
    }
    text = made.get(name) or text_of(name)
    small = read(tmp_path / "small", text.encode())
    monkeypatch.setattr(inventory, "SMALL", 1)
    big = read(tmp_path / "big", text.encode())
    packed = read(tmp_path / "packed", gzip.compress(text.encode()))
    assert samples(small)
    assert samples(big) == samples(packed) == samples(small)
    assert (big.artifact.reader, packed.artifact.reader, small.artifact.reader) == ("page", "page", "text")
    assert big.artifact.read == "all"


def test_a_page_beyond_the_limit_is_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "SMALL", 1)
    monkeypatch.setattr(pages, "LARGEST", 4 << 20)
    found = read(tmp_path / "metrics.prom", scrapes(20_000).encode())
    assert (found.artifact.read, found.artifact.note) == ("part", "only the first 4 MiB were read")
    assert len(samples(found)) > 20_000


def test_a_packed_small_text_goes_to_every_reader(tmp_path: Path) -> None:
    found = read(tmp_path / "dmesg.txt.gz", gzip.compress(text_of("dmesg_xid.txt").encode()))
    assert [r.fields["xid"] for r in found.rows if isinstance(r, LogRecord)] == [31, 45]
    assert found.artifact.read == "all"


@pytest.mark.parametrize(
    ("name", "ts"),
    [
        ("metrics_2026-06-24T15-44-42.prom", 1782315882.0),
        ("metrics-20260624-154442.txt", 1782315882.0),
        ("20260624T154442Z.prom", 1782315882.0),
        ("2026-06-24 15:44:42+0200.txt", 1782308682.0),
        ("scrape.1782315882.prom", 1782315882.0),
        ("scrape_1782315882123.prom", 1782315882.123),
        ("metrics.prom", None),
        ("metrics_20260624.prom", None),
        ("metrics_v0.5.14_20261399T154442.prom", None),
        ("build-11782315882.prom", None),
        ("0a1b2c3d", None),
    ],
)
def test_the_time_in_a_name(name: str, ts: float | None) -> None:
    assert time_of_name(name) == ts


def test_one_scrape_is_dated_by_its_name_and_nothing_else_is(tmp_path: Path) -> None:
    one = f"{SERIES % (0, 1)}\n{SERIES % (1, 2)}\n"
    assert [s[2] for s in samples(read(tmp_path / "m_20260624T154442.prom", one.encode()))] == [1782315882.0] * 2
    # Two scrapes in one file, neither dated: the name's time would be wrong for one of them.
    assert {s[2] for s in samples(read(tmp_path / "n_20260624T154442.prom", (one + one).encode()))} == {None}
    dated = f"2026-06-24T16:00:00Z\n{one}"
    assert {s[2] for s in samples(read(tmp_path / "o_20260624T154442.prom", dated.encode()))} == {1782316800.0}
