"""Rows of a recorder's dump for tests, from the plain dict that torch pickles: what the reader of such files yields."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from hicache_doctor.evidence.rows import Collective, GroupStatus, Rank, Row

PEER = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")


def rows_of(dump: Mapping[str, Any], rank: int, artifact: str, label: str | None = None) -> list[Row]:
    """The rows of one dump; ``rank`` is its global number."""
    label = label or f"rank {rank}"
    config = dump["pg_config"]
    members = {name: ",".join(re.findall(r"\d+", c["ranks"])) or None for name, c in config.items() if name in config}
    names: dict[int, tuple[str, str]] = {}
    # A recorder counts all messages of a group together; only what it has from the first on can be counted by pair.
    whole = bool(dump["entries"]) and dump["entries"][0]["record_id"] == 0
    messages: Counter[tuple[str, str]] = Counter()
    rows: list[Row] = [Rank(label, number=rank, artifact=artifact)]
    for record, entry in enumerate(dump["entries"]):
        group, descr = entry["process_group"]
        names[int(entry["pg_id"])] = (group, descr)
        backend, _, name = entry["profiling_name"].partition(":")
        op, peer = name, None
        if m := PEER.fullmatch(name):
            op = m[1]
            listed = [int(x) for x in (members.get(group) or "").split(",") if x]
            peer = sorted(listed)[int(m[3])] if listed else int(m[3])
            messages[(group, name)] += 1
        seq = entry["collective_seq_id"] if peer is None else messages[(group, name)] if whole else None
        rows.append(
            Collective(
                artifact=artifact,
                record=record,
                rank=label,
                grp=group,
                seq=seq,
                op=op,
                sizes=json.dumps(entry["input_sizes"]),
                dtype=",".join(entry["input_dtypes"]),
                state=entry["state"],
                retired=entry["retired"],
                call_site=_site(entry.get("frames", ())),
                source="flight_recorder",
                ts=entry["time_created_ns"] / 1e9,
                position=entry["time_created_ns"],
                members=members.get(group),
                descr=descr,
                backend=backend,
                peer=peer,
            )
        )
    for pg_id, status in dump.get("pg_status", {}).items():
        group, descr = names.get(int(pg_id), (None, None))
        if group is not None:
            rows.append(
                GroupStatus(
                    artifact,
                    None,
                    label,
                    group,
                    descr,
                    members.get(group),
                    None,
                    int(status["last_enqueued_collective"]),
                    int(status["last_started_collective"]),
                    int(status["last_completed_collective"]),
                    "flight_recorder",
                )
            )
    for name, c in config.items():
        if name and name not in {g for g, _ in names.values()}:
            rows.append(
                GroupStatus(
                    artifact, None, label, name, c["desc"], members[name], None, None, None, None, "flight_recorder"
                )
            )
    return rows


def _site(frames: Iterable[Mapping[str, Any]]) -> str | None:
    for f in frames:
        if "/torch/" not in f["filename"]:
            return f"{f['name']} {f['filename'].rsplit('/', 1)[-1]}:{f['line']}"
    return None
