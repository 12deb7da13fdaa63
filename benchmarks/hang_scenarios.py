"""The scenarios that torch's own analyser of flight recorders is tested with, rebuilt as dumps: its answer and ours.

``python benchmarks/hang_scenarios.py`` prints the table of ``docs/hangs.md``; ``--write`` puts it there. Needs torch
and tabulate (without it torchfrtrace fails). Two minutes, most of
them torch's import.
"""

from __future__ import annotations

import argparse
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE))

from hicache_doctor.evidence.store import Store  # noqa: E402
from hicache_doctor.signatures.diagnose import diagnose  # noqa: E402
from hicache_doctor.signatures.load import load  # noqa: E402
from tests.evidence.recorder_rows import rows_of  # noqa: E402

PAGE = HERE / "docs" / "hangs.md"
BEGIN, END = "<!-- scenarios -->", "<!-- end of scenarios -->"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Dumps by rank, and the ranks that a right answer names."""

    name: str
    dumps: dict[int, dict[str, Any]]
    right: str


def entry(record: int, op: str, seq: int, state: str = "completed", **more: Any) -> dict[str, Any]:
    """One recorded call as torch writes it; ``more`` replaces what is usual."""
    message = op.split(" ", maxsplit=1)[0] in {"send", "recv"}
    return {
        "record_id": record, "pg_id": 0, "process_group": ("0", "default_pg"),
        "collective_seq_id": 0 if message else seq,
        "p2p_seq_id": seq if message else 0, "op_id": record + 1, "profiling_name": f"nccl:{op}",
        "time_created_ns": 10**18 + record * 1000, "duration_ms": None,
        "input_sizes": [[4, 4]], "input_dtypes": ["Float"],
        "output_sizes": [[4, 4]], "output_dtypes": ["Float"], "state": state, "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": state == "completed", "timeout_ms": 600000, "is_p2p": message,
        "frames": [{"name": "step", "filename": "/job/train.py", "line": 7}], **more,
    }  # fmt: skip


def dump(entries: list[dict[str, Any]], world: int = 2) -> dict[str, Any]:
    """One rank's dump; its group has all ranks of ``world``."""
    seqs = [e["collective_seq_id"] for e in entries if not e["is_p2p"]]
    ended = [e["collective_seq_id"] for e in entries if not e["is_p2p"] and e["state"] == "completed"]
    status = {
        "last_enqueued_collective": max(seqs, default=-1),
        "last_started_collective": -1,
        "last_completed_collective": max(ended, default=-1),
    }
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}}
    return {"version": "2.7", "pg_config": config, "pg_status": {"0": status}, "entries": entries}


def scenarios() -> Iterator[Scenario]:
    """Every scenario, by the name of what is wrong in it."""
    good = [entry(0, "all_reduce", 1), entry(1, "all_reduce", 2)]
    stuck = entry(2, "all_reduce", 3, "scheduled")

    def two(name: str, right: str, a: list[dict[str, Any]], b: list[dict[str, Any]]) -> Scenario:
        return Scenario(name, {0: dump(good + a), 1: dump(good + b)}, right)

    gather = {"output_sizes": [[8, 4]]}
    yield two("all calls match and have ended", "none", [], [])
    yield two("all-reduce against all-gather", "0, 1", [stuck], [entry(2, "all_gather", 3, "scheduled", **gather)])
    yield two("input sizes differ", "0, 1", [stuck], [{**stuck, "input_sizes": [[5, 4]], "output_sizes": [[5, 4]]}])
    yield two("output sizes of an all-gather differ", "0, 1",
              [entry(2, "_all_gather_base", 3, "scheduled", **gather)],
              [entry(2, "_all_gather_base", 3, "scheduled", output_sizes=[[7, 4]])])  # fmt: skip
    yield two("dtypes differ", "0, 1", [stuck], [{**stuck, "input_dtypes": ["Int"], "output_dtypes": ["Int"]}])
    yield two("another shape of the same size", "none (it ends)", [entry(2, "all_reduce", 3)],
              [entry(2, "all_reduce", 3, input_sizes=[[16]], output_sizes=[[16]])])  # fmt: skip
    yield two("states differ: started and scheduled", "1", [{**stuck, "state": "started"}], [stuck])
    yield two("states differ: one has ended", "0 (alone inside)", [stuck], [entry(2, "all_reduce", 3)])
    yield two("uneven all-to-all", "none (both inside)",
              [entry(2, "all_to_all", 3, "scheduled")],
              [entry(2, "all_to_all", 3, "scheduled", input_sizes=[[7, 4]])])  # fmt: skip
    yield two("a rank did not make the call", "1", [stuck], [])
    yield Scenario("a rank has no dump", {0: dump([*good, stuck])}, "1")
    yield Scenario(
        "three of four ranks, one did not make the call",
        {r: dump(good + ([] if r == 2 else [stuck]), 4) for r in range(4)},
        "2",
    )
    yield two("send without receive", "1", [entry(2, "send 0->1", 1, "scheduled")], [])
    yield two("send and receive meet", "none (both inside)",
              [entry(2, "send 0->1", 1, "scheduled")], [entry(2, "recv 1<-0", 1, "scheduled")])  # fmt: skip
    yield two("send and receive of two sizes", "0, 1", [entry(2, "send 0->1", 1, "scheduled")],
              [entry(2, "recv 1<-0", 1, "scheduled", input_sizes=[[9]], output_sizes=[[9]])])  # fmt: skip
    yield two("both receive", "0, 1", [entry(2, "recv 0<-1", 1, "scheduled")], [entry(2, "recv 1<-0", 1, "scheduled")])

    def batch(rank: int, state: str) -> list[dict[str, Any]]:
        peer = 1 - rank
        lone = {"retired": False, "state": "scheduled"}
        return [
            entry(2, f"send {rank}->{peer}", 1, **lone),
            entry(3, f"recv {rank}<-{peer}", 1, **lone),
            entry(4, "coalesced", 2, state, p2p_seq_id=1, input_sizes=[], output_sizes=[], input_dtypes=[]),
        ]

    yield two("coalesced messages that have ended", "none", batch(0, "completed"), batch(1, "completed"))
    yield two("coalesced messages on one side only", "1", batch(0, "scheduled"), [])
    yield two("a call was skipped", "1",
              [entry(2, "broadcast", 3, "scheduled"), entry(3, "all_reduce", 4, "scheduled")],
              [entry(2, "all_reduce", 3, "scheduled")])  # fmt: skip


def official(folder: Path) -> str:
    """What torchfrtrace says of the dumps in ``folder``, shortened to its findings."""
    module = "torch.distributed.flight_recorder.fr_trace"
    command = [sys.executable, "-m", module, str(folder), "-p", "rank_", "--allow-incomplete-ranks"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    text = done.stdout + done.stderr
    if "Traceback" in text:
        return "stops: " + text.strip().splitlines()[-1][:70]
    said = [f"culprit {r}: {t}" for r, t in re.findall(r"Culprit rank (\d+); Error type: (\w+)", text)]
    said += [f"missing {m}" for m in re.findall(r"missing ranks: (\{[^}]*\})", text)]
    if not said and "not match" in text.lower():
        said = ["mismatch, no rank"]
    return "; ".join(dict.fromkeys(said)) or "nothing"


def ours(scenario: Scenario) -> str:
    """The ranks that our graph names, and why."""
    with Store.create() as store:
        for rank, content in scenario.dumps.items():
            store.add(rows_of(content, rank, f"rank_{rank}"))
        diagnose(store, load())
        rows = store.rows("SELECT rank, reason FROM wait_culprit ORDER BY position")
        skipped = store.rows("SELECT rank, operation, seq FROM skipped_call WHERE kind = 'skipped'")
        inside = store.value("SELECT count(*) FROM wait_node WHERE state = 'waiting'")
    named = [f"{r['rank'].removeprefix('rank ')} ({r['reason'].replace('_', ' ')})" for r in rows]
    named += [f"rank {r['rank'].removeprefix('rank ')} skipped {r['operation']} {r['seq']}" for r in skipped]
    return ", ".join(named) or ("none; inside a call" if inside else "none")


def table(say: Callable[[str], str]) -> str:
    """The table in Markdown; ``say`` gives the official answer for a folder of dumps."""
    lines = ["| Scenario | Right | torchfrtrace | hicache-doctor |", "|---|---|---|---|"]
    for scenario in scenarios():
        with tempfile.TemporaryDirectory() as folder:
            for rank, content in scenario.dumps.items():
                (Path(folder) / f"rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
            lines.append(f"| {scenario.name} | {scenario.right} | {say(folder)} | {ours(scenario)} |")
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the table in docs/hangs.md")
    args = parser.parse_args()
    text = table(lambda folder: official(Path(folder)))
    print(text)
    if args.write:
        page = PAGE.read_text(encoding="utf-8")
        head, rest = page.split(BEGIN, 1)
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
