"""How far ranks got, and what gauges do over time: the views, and what the shipped evidence says of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hicache_doctor.evidence.rows import GroupStatus
from hicache_doctor.incident import Tools, analyze
from hicache_doctor.signatures.facts import gather
from hicache_doctor.signatures.match import Answer, Evaluator
from tests.artifacts.small import text_of

TOOLS = Tools.load()
HEAD = "[rank{r}]:[E709 17:05:38.162814866 ProcessGroupNCCL.cpp:2271] "
STATUS = (
    "[PG ID 2 PG GUID {g} Rank {r}]  failure detected by watchdog at work sequence id: {w} PG status: "
    "last enqueued work: {e}, last completed work: {c}\n"
)
DUMP = (
    "[PG ID 0 PG GUID 0(default_pg) Rank {r}] Received a dump signal due to a collective timeout from  rank 7 and we "
    "will try our best to dump the debug info. Last enqueued NCCL work: {e}, last completed NCCL work: {e}.This\n"
)
SERVER = (
    "[2026-06-24 15:00:08] server_args=ServerArgs(model_path='/opt/models/Qwen3-32B', tp_size=1, pp_size=2, "
    "enable_hierarchical_cache=True)\n"
)


def status(r: int, work: int, enqueued: int, group: int = 3) -> str:
    return HEAD.format(r=r) + STATUS.format(r=r, g=group, w=work, e=enqueued, c=work - 1)


@contextmanager
def asked(folder: Path, *names: str, **files: str) -> Iterator[list[Answer]]:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    result = analyze([str(folder)], tools=TOOLS)
    with result.store as store:
        evaluator = Evaluator(store, TOOLS.base.evidence, gather(store))
        yield [evaluator.answer(name) for name in names]


@pytest.mark.parametrize(
    ("work", "enqueued", "cpu", "gpu"),
    [(31, 31, "yes", "no"), (31, 32, "yes", "no"), (31, 35, "no", "no"), (31, 68, "no", "yes"), (5, 124, "no", "yes")],
)
def test_what_is_enqueued_behind_tells_who_stopped(
    tmp_path: Path, work: int, enqueued: int, cpu: str, gpu: str
) -> None:
    with asked(tmp_path, "cpu_stopped", "gpu_behind", log=status(1, work, enqueued)) as (stopped, behind):
        assert (stopped.value, behind.value) == (cpu, gpu)
        assert "?" not in (stopped.claim() if cpu == "yes" else behind.claim() if gpu == "yes" else "")


def test_a_rank_that_did_not_join(tmp_path: Path) -> None:
    text = "".join(status(r, 57, 57) for r in range(3)) + HEAD.format(r=3) + STATUS.format(r=3, g=3, w=56, e=56, c=55)
    with asked(tmp_path, "group_left_behind", log=text) as (answer,):
        assert answer.value == "yes"
        assert {r["rank"] for r in answer.rows} == {"rank 3"}
        assert "has enqueued 56 operations" in answer.claim()
    # Another group's counts say nothing of this one.
    text = status(0, 57, 57) + status(1, 9, 9, group=4)
    with asked(tmp_path, "group_left_behind", log=text) as (answer,):
        assert answer.value == "no"


def test_a_dump_signal_is_a_hang_of_somebody(tmp_path: Path) -> None:
    with asked(tmp_path, "hang_seen", "cpu_stopped", log=HEAD.format(r=4) + DUMP.format(r=4, e=56118)) as (
        hang,
        stopped,
    ):
        assert (hang.value, stopped.value) == ("yes", "no")


def test_torchs_own_report(tmp_path: Path) -> None:
    text = "\t     [0, 1, 2] finished collective #41207, but didn't join collective #41208 (count from 1)\n"
    with asked(tmp_path, "desync_report", "hang_seen", log=text) as (report, hang):
        assert report.claim() == "torch's own report: ranks 0, 1, 2 did not join collective 41208 that others are in"
        assert hang.value == "yes"


def test_ras_names_the_rank_behind_by_its_pid(tmp_path: Path) -> None:
    log = "[2026-06-24 15:00:09 PP1] Pyspy dump for PID 11:\n"
    files = {"ras.json": text_of("ncclras.json"), "server.log": log}
    with asked(tmp_path, "ras_behind", "ras_unreachable", "hang_seen", **files) as (behind, unreachable, hang):
        assert [(r["rank"], r["count"], r["most"]) for r in behind.rows] == [("PP1", "100", "101")]
        assert (unreachable.value, hang.value) == ("yes", "yes")


def test_ras_counts_that_move_are_no_hang(tmp_path: Path) -> None:
    first, second = text_of("ncclras.json"), text_of("ncclras.json").replace(": 101", ": 901").replace(": 100", ": 900")
    with asked(tmp_path, "ras_behind", "hang_seen", ras=first + second) as (behind, hang):
        assert (behind.value, hang.value) == ("no", "no")
    with asked(tmp_path, "ras_behind", "hang_seen", ras=first + first) as (behind, hang):
        assert (behind.value, hang.value) == ("yes", "yes")


def test_standings_of_ras_go_to_the_ranks_of_their_pids(tmp_path: Path) -> None:
    log = "[2026-06-24 15:00:09 PP1] Pyspy dump for PID 11:\n"
    for name, text in {"ras.json": text_of("ncclras.json"), "server.log": log}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with analyze([str(tmp_path)], tools=TOOLS).store as store:
        rows = store.rows(f"SELECT rank, grp, enqueued FROM {GroupStatus.table} WHERE source = 'ras' AND pid = 11")
    assert rows == [{"rank": "PP1", "grp": "71c2e44b90aa3f1d AllReduce", "enqueued": 100}]


def test_one_gpu_that_spins_alone(tmp_path: Path) -> None:
    names = ("gpu_spins_alone", "gpus_spin_together")
    with asked(tmp_path, *names, smi=text_of("smi_470.txt")) as (alone, together):
        assert alone.claim() == (
            "GPU 0 (PP0) is at 100 % with only 151 W, the others (1) at 0 %: it spins in a collective that they have "
            "not entered"
        )
        assert together.value == "no"
    text = text_of("smi_470.txt")
    both = text.replace("|      0%      Default", "|    100%      Default")
    with asked(tmp_path, *names, smi=both) as (alone, together):
        assert (alone.value, together.value) == ("no", "yes")
    busy = both.replace("151W", "611W").replace(" 65W", "598W")
    with asked(tmp_path, *names, smi=busy) as (alone, together):
        assert (alone.value, together.value) == ("no", "no")


# -- gauges over time


def scrapes(name: str, first: list[float], second: list[float], step: int = 300) -> dict[str, str]:
    """A file a scrape, the time in its name."""
    out = {}
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        lines = [f'sglang:{name}{{pp_rank="{pp}",tp_rank="0"}} {value}' for pp, value in ((0, a), (1, b))]
        lines += [f'sglang:num_running_reqs{{pp_rank="{pp}",tp_rank="0"}} 3' for pp in (0, 1)]
        out[f"metrics_{1782315600 + step * i}.prom"] = "\n".join(lines) + "\n"
    return out


def test_slopes_across_files(tmp_path: Path) -> None:
    for name, text in scrapes("num_queue_reqs", [0, 10, 20, 30], [1, 1, 1, 1]).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with analyze([str(tmp_path)], tools=TOOLS).store as store:
        rows = store.rows("SELECT * FROM gauge_slope WHERE name = 'num_queue_reqs' ORDER BY rank")
    first, second = rows
    assert (first["rank"], first["n"], first["first"], first["last"], first["hours"]) == ("PP0 TP0", 4, 0, 30, 0.25)
    assert first["per_hour"] == pytest.approx(120)
    assert (second["per_hour"], second["lowest"], second["highest"]) == (pytest.approx(0), 1, 1)
    assert first["artifact"].endswith("1782315600.prom") and first["last_artifact"].endswith("1782316500.prom")


def test_a_queue_that_grows_on_one_stage(tmp_path: Path) -> None:
    with asked(tmp_path, "queue_grows_on_one_stage", **{"query_range.json": text_of("query_range.json")}) as (answer,):
        assert answer.claim() == ("num_queue_reqs of PP1 TP0 grows from 0 to 52 while that of PP0 TP0 stands at 0")


def test_a_queue_that_grows_on_every_stage_is_load(tmp_path: Path) -> None:
    files = scrapes("num_queue_reqs", [0, 10, 20, 30], [0, 11, 21, 33])
    with asked(tmp_path, "queue_grows_on_one_stage", **files) as (answer,):
        assert answer.value == "no"


def test_without_two_scrapes_nothing_is_known(tmp_path: Path) -> None:
    names = ("queue_grows_on_one_stage", "tokens_stand_still", "memory_gauge_grows")
    with asked(tmp_path, *names, metrics=text_of("metrics_pp.prom")) as answers:
        assert [a.value for a in answers] == ["unknown"] * 3


def test_counters_that_stand_while_requests_run(tmp_path: Path) -> None:
    moving = [float(100 * i) for i in range(8)]
    standing = [*moving[:4], *[300.0] * 4]
    files = scrapes("generation_tokens_total", standing, moving)
    with asked(tmp_path, "tokens_stand_still", "hang_seen", **files) as (answer, hang):
        assert answer.claim() == "generation_tokens_total of PP0 TP0 stands at 300 for 10 minutes while 3 requests run"
        assert hang.value == "yes"


def test_counters_that_move_or_have_nothing_to_do(tmp_path: Path) -> None:
    moving = [float(100 * i) for i in range(8)]
    with asked(tmp_path, "tokens_stand_still", **scrapes("generation_tokens_total", moving, moving)) as (answer,):
        assert answer.value == "no"
    idle = {n: t.replace("} 3\n", "} 0\n") for n, t in scrapes("generation_tokens_total", [5.0] * 8, [5.0] * 8).items()}
    with asked(tmp_path, "tokens_stand_still", **idle) as (answer,):
        assert answer.value == "no"


def test_memory_that_grows_like_a_leak(tmp_path: Path) -> None:
    def answer(values: list[float]) -> str:
        series = {
            "metric": {"__name__": "container_memory_rss", "pod": "prefill-0"},
            "values": [[1782315600 + 1800 * i, str(v)] for i, v in enumerate(values)],
        }
        return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [series]}})

    with asked(tmp_path, "memory_gauge_grows", q=answer([60e9 + 6e9 * i for i in range(9)])) as (leak,):
        assert (
            leak.claim() == "container_memory_rss of a rank grows by 12.0 GB an hour, for 4.0 h, as steadily as a leak"
        )
    with asked(tmp_path, "memory_gauge_grows", q=answer([60e9, 75e9, 58e9, 80e9, 61e9, 79e9])) as (leak,):
        assert leak.value == "no"


def test_unequal_host_pools_in_a_range_query(tmp_path: Path) -> None:
    files = {"query_range.json": text_of("query_range.json"), "server.log": SERVER}
    with asked(tmp_path, "host_capacity_differs", **files) as (answer,):
        assert {(r["rank"], r["tokens"]) for r in answer.rows} >= {("PP1 TP0", 3662144)}
