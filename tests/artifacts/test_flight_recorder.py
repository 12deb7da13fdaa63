"""Flight-recorder dumps: every version, rank by file name, groups, messages, what is unfinished, several sets."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hicache_doctor.artifacts import vocabulary
from hicache_doctor.artifacts.inventory import Read, read_all
from hicache_doctor.evidence.rows import GroupStatus, Rank, Row, Stack
from hicache_doctor.incident import Options, analyze
from tests.artifacts.recorder_dumps import HANGS, START, dump, entry, frames, gloo

WORDS = vocabulary.load()
_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "corpora" / "flight_recorder_16_ranks"
CORPUS = _BESIDE if _BESIDE.is_dir() else None


def save(folder: Path, name: str, value: Any, protocol: int = 2) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value, protocol))
    return path


def reads(*paths: Path) -> list[Read]:
    return list(read_all([str(p) for p in paths], WORDS, spool=paths[0].parent, stdin=None))


def operations(read: Read) -> list[dict[str, Any]]:
    return [row for table in read.tables for piece in table.pieces for row in piece.to_pylist()]


def of(kind: type[Row], read: Read) -> list[Any]:
    return [r for r in read.rows if isinstance(r, kind)]


def test_a_dump_gives_a_rank_its_groups_and_every_operation(tmp_path: Path) -> None:
    entries = [entry(i, group="1" if i % 2 else "2") for i in range(6)]
    (read,) = reads(save(tmp_path, "nccl_trace_rank_3", dump(entries, {"1": "[2, 3]", "2": "[1, 3]"})))
    assert read.artifact.note == "rank 3: 6 operations in 2 groups, version 2.10, nccl"
    assert (read.artifact.kind, read.artifact.read) == ("flight recorder", "all")
    assert [(r.id, r.number) for r in of(Rank, read)] == [("rank 3", 3)]
    first = operations(read)[0]
    assert first == {
        "artifact": "nccl_trace_rank_3", "record": 0, "rank": "rank 3", "grp": "2", "seq": 1, "op": "all_reduce",
        "sizes": "[[16, 5120]]", "dtype": "BFloat16", "state": "completed", "retired": True,
        "call_site": "forward hiradix_cache.py:100", "source": "flight_recorder", "ts": START / 1e9, "position": START,
        "members": "1,3", "descr": "undefined", "backend": "nccl", "peer": None,
    }  # fmt: skip
    status = {s.grp: (s.members, s.enqueued, s.started, s.completed, s.backend) for s in of(GroupStatus, read)}
    assert status == {"1": ("2,3", 6, 6, 6, "nccl"), "2": ("1,3", 5, 5, 5, "nccl")}


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_0", "rank 0"),
        ("tmp_comm_lib_trace_rank_17", "rank 17"),
        ("nccl_trace_rank_gpu-node-07_12", "rank 12"),
        ("_dump_9", "rank 9"),
        ("fr_trace_rank_2.json", "rank 2"),
        ("nccl_trace_rank_5.pkl", "rank 5"),
        ("PP1 TP1.json", "PP1 TP1"),
        ("recorder", None),
        ("trace_20260604121500", None),
    ],
)
def test_whose_dump_it_is_stands_in_the_name(tmp_path: Path, name: str, rank: str | None) -> None:
    value = dump([entry(0)])
    if name.endswith(".json"):
        (tmp_path / name).write_text(json.dumps(value))
        path = tmp_path / name
    else:
        path = save(tmp_path, name, value)
    (read,) = reads(path)
    assert [row["rank"] for row in operations(read)] == [rank]
    assert [r.id for r in of(Rank, read)] == ([rank] if rank else [])
    assert ("no rank in its name" in read.artifact.note) == (rank is None)


def test_what_an_analyser_added_names_the_rank_where_the_file_does_not(tmp_path: Path) -> None:
    (read,) = reads(save(tmp_path, "dump", dump([entry(0)], rank=6, host_name="node-3")))
    assert [(r.id, r.number, r.host) for r in of(Rank, read)] == [("rank 6", 6, "node-3")]


def version_1() -> Any:
    old = ("pg_id", "profiling_name", "input_sizes", "output_sizes", "state", "frames", "retired")
    return [{k: entry(i)[k] for k in old} | {"seq_id": i, "time_created_us": START // 1000} for i in range(3)]


def version_2_0() -> Any:
    return {"version": "2.0", "entries": version_1()}


def version_2_1() -> Any:
    entries = [{k: v for k, v in entry(i).items() if k not in ("thread_id", "is_p2p", "op_id")} for i in range(3)]
    for e in entries:
        del e["collective_seq_id"], e["process_group"], e["input_dtypes"]
        e |= {"seq_id": e["record_id"] + 1, "pg_name": "1"}
    return {"version": "2.1", "pg_config": {"1": {"name": "1", "desc": "tp", "ranks": "[0, 1]"}}, "entries": entries}


@pytest.mark.parametrize("make", [version_1, version_2_0, version_2_1])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_older_versions(tmp_path: Path, make: Any, protocol: int) -> None:
    (read,) = reads(save(tmp_path, "nccl_trace_rank_1", make(), protocol))
    rows = operations(read)
    assert read.artifact.read == "all", read.artifact.note
    assert [(r["rank"], r["grp"], r["op"], r["retired"]) for r in rows] == [("rank 1", "1", "all_reduce", True)] * 3
    assert [r["ts"] for r in rows][:1] == [START / 1e9]
    assert rows[-1]["seq"] in (2, 3)


def test_json_has_texts_for_numbers_zeros_for_nothing_and_no_frames(tmp_path: Path) -> None:
    value = dump([entry(0), entry(1, **HANGS)])
    for e in value["entries"]:
        e["process_group"] = list(e["process_group"])
        e["time_discovered_completed_ns"] = 0
        del e["frames"]
    value["pg_status"] = {pg: {k: str(n) for k, n in s.items()} for pg, s in value["pg_status"].items()}
    (tmp_path / "comm_lib_trace_rank_0.json").write_text(json.dumps(value, sort_keys=True))
    (read,) = reads(tmp_path / "comm_lib_trace_rank_0.json")
    assert [(r["seq"], r["retired"], r["call_site"]) for r in operations(read)] == [(1, True, None), (2, False, None)]
    assert [(s.enqueued, s.started, s.completed) for s in of(GroupStatus, read)] == [(2, 2, 1)]
    assert of(Stack, read) == []
    assert read.artifact.note.endswith("1 unfinished")


def test_json_without_entries(tmp_path: Path) -> None:
    value = dump([])
    del value["entries"]
    (tmp_path / "comm_lib_trace_rank_0.json").write_text(json.dumps(value))
    (read,) = reads(tmp_path / "comm_lib_trace_rank_0.json")
    assert read.artifact.note == "rank 0: 0 operations in 0 groups, version 2.10"
    assert [r.id for r in of(Rank, read)] == ["rank 0"]


def test_messages_name_the_other_rank_of_the_world_and_count_by_pair(tmp_path: Path) -> None:
    names = ["nccl:send 1->2", "nccl:recv 1<-0", "nccl:send 1->2", "nccl:all_reduce", "nccl:send 1->0"]
    entries = [entry(i, name, group="7", p2p_seq_id=i + 1) for i, name in enumerate(names)]
    (read,) = reads(save(tmp_path, "nccl_trace_rank_9", dump(entries, {"7": "[4, 9, 14]"})))
    rows = [(r["op"], r["peer"], r["seq"]) for r in operations(read)]
    assert rows == [("send", 14, 1), ("recv", 4, 1), ("send", 14, 2), ("all_reduce", None, 4), ("send", 4, 1)]
    assert [s.enqueued for s in of(GroupStatus, read)] == [5]


def test_several_messages_as_one_operation_are_no_collective(tmp_path: Path) -> None:
    entries = [entry(0), entry(1, "nccl:coalesced", seq=1, is_p2p=True, p2p_seq_id=1)]
    (read,) = reads(save(tmp_path, "nccl_trace_rank_0", dump(entries)))
    assert [(r["op"], r["seq"]) for r in operations(read)] == [("all_reduce", 1), ("coalesced", None)]


def test_a_lost_head_is_said_and_messages_go_without_a_number(tmp_path: Path) -> None:
    entries = [entry(4711, "nccl:send 0->1", p2p_seq_id=900), entry(4712)]
    (read,) = reads(save(tmp_path, "nccl_trace_rank_0", dump(entries)))
    assert "head lost before record 4711" in read.artifact.note
    assert [(r["record"], r["seq"], r["peer"]) for r in operations(read)] == [(4711, None, 1), (4712, 4713, None)]


def test_entries_come_in_the_order_of_their_records(tmp_path: Path) -> None:
    (read,) = reads(save(tmp_path, "nccl_trace_rank_0", dump([entry(2), entry(0), entry(1)])))
    assert [r["record"] for r in operations(read)] == [0, 1, 2]


def test_where_the_clock_went_back_the_record_gives_the_order(tmp_path: Path) -> None:
    entries = [entry(5), entry(6, time_created_ns=START), entry(7)]
    (read,) = reads(save(tmp_path, "nccl_trace_rank_0", dump(entries)))
    assert [r["position"] for r in operations(read)] == [5, 6, 7]


def test_a_group_of_a_thousand_is_named_once(tmp_path: Path) -> None:
    (read,) = reads(save(tmp_path, "nccl_trace_rank_0", dump([entry(0)], {"1": str(list(range(1024)))})))
    assert [r["members"] for r in operations(read)] == [None]
    assert of(GroupStatus, read)[0].members.endswith("1022,1023")


# -- gloo -----------------------------------------------------------------------------------------------------------


def test_gloo_groups_that_share_an_id_are_counted_by_their_operations(tmp_path: Path) -> None:
    entries = [entry(i, "gloo:all_reduce", group=str(1 + i % 2), seq=1 + i // 2) for i in range(5)]
    entries[2].update(retired=False)
    (read,) = reads(save(tmp_path, "comm_lib_trace_rank_0", gloo(entries)))
    status = {s.grp: (s.members, s.enqueued, s.completed) for s in of(GroupStatus, read)}
    # The last operation is finished, or its time-out was raised: gloo's recorder writes both alike.
    assert status == {"1": (None, 3, None), "2": (None, 2, 2)}
    assert {r["state"] for r in operations(read)} == {"scheduled"}


def test_gloo_while_it_hangs(tmp_path: Path) -> None:
    entries = [entry(i, "gloo:all_reduce") for i in range(3)]
    entries[2].update(retired=False)
    (read,) = reads(save(tmp_path, "comm_lib_trace_rank_0", gloo(entries)))
    assert [(s.enqueued, s.completed) for s in of(GroupStatus, read)] == [(3, 2)]


def test_a_vote_that_one_rank_skipped_shows_where_both_stand(tmp_path: Path) -> None:
    vote = frames("writing_check", "check_hicache_events", "event_loop_pp", "run_scheduler_process")
    parked = frames("broadcast_pyobj", "recv_requests", "event_loop_pp", "run_scheduler_process", file="scheduler.py")
    for rank, stack in ((0, vote), (1, parked)):
        name = "gloo:all_reduce" if rank == 0 else "gloo:broadcast"
        entries = [entry(0, name, frames=frames("recv_requests", "event_loop_pp")), entry(1, name, frames=stack)]
        # Another thread ends its own operation later: it says nothing about the main thread.
        later = entry(2, name, frames=frames("prefetch_thread_func", "run"), thread_id="7")
        value = gloo([*entries, later])
        entries[1]["retired"] = False
        save(tmp_path, f"comm_lib_trace_rank_{rank}", value)
    result = analyze([str(tmp_path)])
    places = {r["rank"]: (r["place"], r["quote"]) for r in result.store.rows("SELECT * FROM place")}
    finished = result.store.value("SELECT count(*) FROM stack WHERE status = 'finished' AND NOT main")
    result.store.close()
    assert places == {
        "rank 0": ("write_vote", "writing_check (hiradix_cache.py:100)"),
        "rank 1": ("recv_requests", "broadcast_pyobj (scheduler.py:100)"),
    }
    assert finished == 2


# -- several files --------------------------------------------------------------------------------------------------


def test_a_folder_a_node_is_one_set(tmp_path: Path) -> None:
    for rank in range(4):
        save(tmp_path, f"in/node{rank // 2}/nccl_trace_rank_{rank}", dump([entry(0)]))
    assert [r.artifact.read for r in reads(tmp_path / "in")] == ["all"] * 4


def test_of_two_sets_the_newer_is_kept_and_the_note_says_so(tmp_path: Path) -> None:
    for when, name in ((5, "second"), (0, "first")):
        for rank in range(2):
            save(tmp_path, f"in/{name}/nccl_trace_rank_{rank}", dump([entry(when)]))
    found = {r.artifact.path: r for r in reads(tmp_path / "in")}
    assert [p for p, r in found.items() if r.artifact.read == "all"] == [f"second/nccl_trace_rank_{r}" for r in (0, 1)]
    note = found["first/nccl_trace_rank_1"].artifact.note
    assert "of another set of dumps (rank 0 is in second/nccl_trace_rank_0 too, and newer): not used" in note
    assert not found["first/nccl_trace_rank_1"].rows


def test_json_beside_the_pickle_is_the_same_dump(tmp_path: Path) -> None:
    value = dump([entry(0)])
    save(tmp_path, "in/comm_lib_trace_rank_0", value)
    (tmp_path / "in" / "comm_lib_trace_rank_0.json").write_text(json.dumps(value | {"entries": [entry(0)]}))
    found = {r.artifact.path: r.artifact for r in reads(tmp_path / "in")}
    assert found["comm_lib_trace_rank_0"].read == "all"
    assert "the same as comm_lib_trace_rank_0: not used" in found["comm_lib_trace_rank_0.json"].note


def test_nccl_and_gloo_of_one_rank_belong_together(tmp_path: Path) -> None:
    save(tmp_path, "in/nccl_trace_rank_0", dump([entry(0)]))
    save(tmp_path, "in/gloo_trace_rank_0", gloo([entry(1, "gloo:all_reduce")]))
    found = reads(tmp_path / "in")
    assert [r.artifact.read for r in found] == ["all", "all"]


def test_a_bad_file_costs_its_own_line_only(tmp_path: Path) -> None:
    good = pickle.dumps(dump([entry(i) for i in range(50)]), 2)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "nccl_trace_rank_0").write_bytes(good)
    (folder / "nccl_trace_rank_1").write_bytes(good[: len(good) // 2])
    (folder / "nccl_trace_rank_2").write_bytes(good.replace(b"X\x07\x00\x00\x00entries", b"cposix\nsystem\nq\x60"))
    found = {r.artifact.path[-1]: r.artifact for r in reads(folder)}
    assert found["0"].read == "all"
    half = len(good) // 2
    assert found["1"].note == f"refused: ends in the middle of the data at byte {half}"
    at = good.index(b"X\x07\x00\x00\x00entries")
    assert found["2"].note == f"refused: names a class at byte {at}"


def test_archives_and_compression(tmp_path: Path) -> None:
    data = pickle.dumps(dump([entry(0)]), 2)
    with tarfile.open(tmp_path / "dumps.tar.gz", "w:gz") as tar:
        for rank in range(2):
            info = tarfile.TarInfo(f"node/nccl_trace_rank_{rank}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    (tmp_path / "nccl_trace_rank_2.gz").write_bytes(gzip.compress(data))
    found = reads(tmp_path / "dumps.tar.gz", tmp_path / "nccl_trace_rank_2.gz")
    assert sorted(row["rank"] for r in found for row in operations(r)) == ["rank 0", "rank 1", "rank 2"]


def test_a_number_becomes_the_label_that_the_incident_tells(tmp_path: Path) -> None:
    for rank in range(4):
        save(tmp_path, f"in/nccl_trace_rank_{rank}", dump([entry(0)]))
    result = analyze([str(tmp_path / "in")], Options(settings={"pp_size": "2", "tp_size": "2"}))
    told = result.store.rows("SELECT DISTINCT c.rank, s.rank AS s, r.number FROM collective c JOIN group_status s USING"
                             " (artifact) JOIN rank r ON r.id = c.rank ORDER BY 3")  # fmt: skip
    result.store.close()
    # Labels need one that is known: without any log the number is all that there is.
    assert [(r["rank"], r["s"], r["number"]) for r in told] == [(f"rank {n}", f"rank {n}", n) for n in range(4)]
    (tmp_path / "in" / "pp1.log").write_text("[2026-06-07 01:57:37 PP1 TP0] Init torch distributed begin.\n")
    result = analyze([str(tmp_path / "in")], Options(settings={"pp_size": "2", "tp_size": "2"}))
    told = result.store.rows("SELECT DISTINCT c.rank, s.rank AS s, r.number FROM collective c JOIN group_status s USING"
                             " (artifact) JOIN rank r ON r.id = c.rank ORDER BY 3")  # fmt: skip
    result.store.close()
    labels = ["PP0 TP0", "PP0 TP1", "PP1 TP0", "PP1 TP1"]
    assert [(r["rank"], r["s"], r["number"]) for r in told] == [(p, p, n) for n, p in enumerate(labels)]


# -- real dumps -----------------------------------------------------------------------------------------------------

WORKER = """
import datetime, os, sys, threading, time
import torch, torch.distributed as dist
rank, folder = int(sys.argv[1]), sys.argv[2]
store = dist.FileStore(folder + "/store", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
group = dist.new_group([0, 1], group_desc="hicache")
one = torch.tensor([1])

def writing_check():
    dist.all_reduce(one, op=dist.ReduceOp.MIN, group=group)

def broadcast_pyobj():
    dist.broadcast(one, 0)

def recv_requests():
    broadcast_pyobj()

def event_loop_pp():
    for _ in range(3):
        recv_requests()
        writing_check()
    if rank == 0:
        writing_check()
    else:
        recv_requests()

def write():
    while True:
        time.sleep(0.2)
        c10d = torch._C._distributed_c10d
        data = c10d._dump_fr_trace()
        if b"retired" in data and os.path.exists(folder + "/go"):
            name = f"{folder}/comm_lib_trace_rank_{rank}"
            text = c10d._dump_fr_trace_json()
            text = text.encode() if isinstance(text, str) else text
            for path, content in ((name, data), (name + ".json", text)):
                with open(path + ".part", "wb") as f:
                    f.write(content)
                os.rename(path + ".part", path)
            open(folder + f"/written{rank}", "w").close()
            time.sleep(60)

threading.Thread(target=write, daemon=True).start()
open(f"{folder}/up{rank}", "w").close()
event_loop_pp()
"""


@pytest.mark.timeout(180)
def test_a_hang_of_real_gloo_processes(tmp_path: Path) -> None:
    import importlib.util
    import os
    import time

    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    (tmp_path / "worker.py").write_text(WORKER)
    env = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "TORCH_FR_BUFFER_SIZE": "500"}
    workers = [
        subprocess.Popen([sys.executable, str(tmp_path / "worker.py"), str(r), str(tmp_path)], env=env) for r in (0, 1)
    ]
    try:
        while not all((tmp_path / f"up{r}").exists() for r in (0, 1)):
            assert all(w.poll() is None for w in workers)
            time.sleep(0.05)
        time.sleep(3)  # by then both stand where they stay
        (tmp_path / "go").touch()
        while not all((tmp_path / f"written{r}").exists() for r in (0, 1)):
            assert all(w.poll() is None for w in workers)
            time.sleep(0.05)
    finally:
        for w in workers:
            w.kill()
            w.wait()
    folder = tmp_path / "in"
    folder.mkdir()
    for path in tmp_path.glob("comm_lib_trace_rank_*"):
        path.rename(folder / path.name)
    found = {r.artifact.path: r for r in reads(folder)}
    assert "rank 0: 7 operations in 2 groups, version" in found["comm_lib_trace_rank_0"].artifact.note
    assert "1 unfinished" in found["comm_lib_trace_rank_0"].artifact.note
    assert {s.descr: (s.enqueued, s.completed) for s in of(GroupStatus, found["comm_lib_trace_rank_0"])} == {
        "default_pg": (3, 3), "hicache": (4, 3),
    }  # fmt: skip
    assert operations(found["comm_lib_trace_rank_0"])[-1]["call_site"].startswith("writing_check worker.py:")
    result = analyze([str(folder)])
    places = {r["rank"]: r["place"] for r in result.store.rows("SELECT * FROM place")}
    result.store.close()
    assert places == {"rank 0": "write_vote", "rank 1": "recv_requests"}


@pytest.mark.skipif(CORPUS is None, reason="the corpus (../shared/corpora) is not beside this checkout")
@pytest.mark.parametrize("name", ["gpu_error_1st", "gpu_error_2nd", "lock_gil_1st", "lock_gil_2nd"])
def test_the_corpus_of_sixteen_ranks(name: str) -> None:
    assert CORPUS is not None
    result = analyze([str(CORPUS / name)])
    rows = result.verdict.inventory
    told = result.store.rows(
        "SELECT count(*) FILTER (members IS NULL) AS unknown, count(*) FILTER (op LIKE '%:%') AS odd,"
        " count(*) FILTER (op IN ('send', 'recv') AND peer IS NULL) AS alone,"
        " bool_and(seq IS NOT NULL OR peer IS NOT NULL) AS numbered FROM collective"
    )[0]
    # A rank that had finished everything has no operations in its dump, but counts.
    ranks = result.store.value("SELECT count(DISTINCT rank) FROM group_status")
    wrong = result.store.value("SELECT count(*) FROM group_status WHERE enqueued < completed OR members IS NULL")
    beyond = result.store.value(
        "SELECT count(*) FROM collective c JOIN group_status s USING (rank, grp) WHERE c.seq > s.enqueued"
        " OR c.retired = false AND c.seq <= s.completed"
    )
    result.store.close()
    dumps = [r for r in rows if r.kind == "flight recorder"]
    assert len(dumps) == 16 and all(r.read == "all" for r in dumps)
    assert told == {"unknown": 0, "odd": 0, "alone": 0, "numbered": True}
    assert (ranks, wrong, beyond) == (16, 0, 0)
