"""Jobs that hang: ranks run their programs by the semantics of the collective library until nothing moves any more.

``nccl``: the CPU launches calls ahead of the device, which runs them in order; a collective ends when it is the oldest
call on all members and all brought the same; messages meet likewise. ``gloo``: a call blocks its thread, a send is
buffered. What recorders and stacks would show of the end is then written down. Nothing here knows the analyser.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

Group = tuple[str, str, tuple[int, ...]]
"""Name, description, members."""


@dataclass(slots=True)
class Item:
    """One thing of a program. ``parts``: the messages of a coalesced one as (send or recv, peer)."""

    op: str
    group: Group | None = None
    site: str = ""
    size: int = 0
    parts: list[tuple[str, int]] = field(default_factory=list)
    met: set[int] = field(default_factory=set)
    seq: int = 0
    record: int = 0
    state: str = "scheduled"
    done: bool = False

    @property
    def message(self) -> bool:
        return bool(self.parts)


@dataclass(slots=True)
class Rank:
    number: int
    program: list[Item]
    stops_at: int | None = None
    """Before this item the process stops (dies, loops, computes for ever)."""
    stuck_at: int | None = None
    """This compute never ends on the device; the CPU runs on."""
    next: int = 0
    queue: list[Item] = field(default_factory=list)
    ended: int = 0
    seqs: dict[tuple[str, bool], int] = field(default_factory=dict)
    records: int = 0

    def head(self) -> Item | None:
        return self.queue[self.ended] if self.ended < len(self.queue) else None


@dataclass(slots=True)
class World:
    """A job. ``run`` it, then ask for ``dump`` and ``stack`` of each rank."""

    backend: str
    pp: int
    tp: int
    dp: int
    ranks: list[Rank]
    rng: random.Random
    window: int = 8
    timing: bool = True
    sent: dict[tuple[int, int], int] = field(default_factory=dict)
    got: dict[tuple[int, int], int] = field(default_factory=dict)

    def run(self) -> None:
        moved = True
        while moved:
            moved = False
            order = list(self.ranks)
            self.rng.shuffle(order)
            for rank in order:
                for _ in range(self.rng.randint(1, 4)):
                    moved |= self._launch(rank) | self._device(rank)

    def _launch(self, rank: Rank) -> bool:
        ahead = 1 if self.backend == "gloo" else self.window
        if rank.next >= len(rank.program) or rank.next == rank.stops_at or len(rank.queue) - rank.ended >= ahead:
            return False
        item = rank.program[rank.next]
        rank.next += 1
        rank.queue.append(item)
        if item.group is not None and not (self.backend == "gloo" and item.message):
            key = (item.group[0], item.message)
            rank.seqs[key] = item.seq = rank.seqs.get(key, 0) + 1
            item.record = rank.records
            rank.records += 1 + (len(item.parts) if len(item.parts) > 1 else 0)
        return True

    def _device(self, rank: Rank) -> bool:
        item = rank.head()
        if item is None:
            return False
        began = item.state == "scheduled"
        item.state = "started"
        if item.op == "compute":
            item.done = rank.ended != rank.stuck_at
        elif item.message:
            self._meet(rank, item)
        else:
            self._join(item)
        if item.done:
            item.state = "completed"
            rank.ended += 1
        return item.done or began

    def _join(self, item: Item) -> None:
        assert item.group is not None
        heads = [self.ranks[m].head() for m in item.group[2]]
        inside = [h for h in heads if h is not None and h.group == item.group and not h.message and h.seq == item.seq]
        if (
            len(inside) == len(heads)
            and len({(h.op, h.size) for h in inside}) == 1
            and all(h.state == "started" for h in inside)
        ):
            for h in inside:
                h.done = True
        # The others see their flag when it is their turn.

    def _meet(self, rank: Rank, item: Item) -> None:
        for i, (way, peer) in enumerate(item.parts):
            if i in item.met:
                continue
            pair = (rank.number, peer) if way == "send" else (peer, rank.number)
            if self.backend == "gloo":
                if way == "send":
                    self.sent[pair] = self.sent.get(pair, 0) + 1
                    item.met.add(i)
                elif self.sent.get(pair, 0) > self.got.get(pair, 0):
                    self.got[pair] = self.got.get(pair, 0) + 1
                    item.met.add(i)
                continue
            other = self.ranks[peer].head()
            if other is None or other.state != "started" or other.group != item.group:
                continue
            back = ("recv" if way == "send" else "send", rank.number)
            for j, part in enumerate(other.parts):
                if part == back and j not in other.met and item.size == other.size:
                    item.met.add(i)
                    other.met.add(j)
                    break
        item.done = len(item.met) == len(item.parts)

    # -- what is left -------------------------------------------------------------------------------------------

    def waits_on(self, number: int) -> bool:
        """Whether some rank stands in a collective or message that lacks this one."""
        for rank in self.ranks:
            item = rank.head()
            if item is None or item.done or rank.number == number or item.op == "compute":
                continue
            if item.message:
                if any(p == number and i not in item.met for i, (_, p) in enumerate(item.parts)):
                    return True
            elif item.group is not None and number in item.group[2]:
                other = self.ranks[number].head()
                if other is None or other.group != item.group or other.seq != item.seq or other.state != "started":
                    return True
        return False

    def dump(self, number: int, keep: int | None = None) -> dict[str, Any]:
        """The recorder's dump of one rank, as torch writes it; ``keep``: how many entries its ring held."""
        rank, entries, ids = self.ranks[number], [], {}
        gloo = self.backend == "gloo"
        status: dict[str, dict[str, int]] = {}
        for item in rank.queue:
            if item.group is None or (gloo and item.message):
                continue
            name, desc, members = item.group
            pg = ids.setdefault(name, 1 if gloo else len(ids) + 3)
            base = {
                "pg_id": pg, "process_group": (name, desc), "time_created_ns": 10**18 + item.record * 1000 + number,
                "input_sizes": [[item.size, 8]], "output_sizes": [[item.size, 8]], "input_dtypes": ["Int"],
                "output_dtypes": ["Int"], "timeout_ms": 1000, "frames": _frames(item), "is_p2p": item.message,
                "collective_seq_id": rank.seqs.get((name, False), 0) if item.message else item.seq,
                "p2p_seq_id": item.seq if item.message else 0, "op_id": item.record,
            }  # fmt: skip
            state = "scheduled" if gloo or (not self.timing and item.state == "started") else item.state
            own = {"state": state, "retired": item.done}
            place = members.index(number)
            if item.message:
                many = len(item.parts) > 1
                for i, (way, peer) in enumerate(item.parts):
                    arrow = f"{way} {place}{'->' if way == 'send' else '<-'}{members.index(peer)}"
                    lone = {"state": "scheduled", "retired": False} if many else own
                    entries.append({**base, **lone, "profiling_name": f"nccl:{arrow}", "record_id": item.record + i})
                if many:
                    last = {"profiling_name": "nccl:coalesced", "record_id": item.record + len(item.parts)}
                    entries.append({**base, **own, **last, "is_p2p": False, "input_sizes": [], "input_dtypes": []})
            else:
                name_ = f"{self.backend}:{item.op}"
                entries.append({**base, **own, "profiling_name": name_, "record_id": item.record})
                known = status.setdefault(
                    str(pg),
                    {"last_enqueued_collective": -1, "last_started_collective": -1, "last_completed_collective": -1},
                )
                known["last_enqueued_collective"] = item.seq
                if item.done:
                    known["last_completed_collective"] = item.seq
        groups = {i.group for i in rank.program if i.group is not None}
        config = {g[0]: {"name": g[0], "desc": g[1], "ranks": str(list(g[2]))} for g in sorted(groups)}
        if gloo:
            config = {"": {"name": "", "desc": "", "ranks": "[]"}}
        return {
            "version": "2.10", "pg_config": config, "pg_status": status,
            "entries": entries[-keep:] if keep else entries,
        }  # fmt: skip

    def stack(self, number: int) -> list[str]:
        """The functions on the main thread of one rank, innermost first."""
        rank = self.ranks[number]
        item = rank.head()
        outer = ["event_loop_pp", "run_scheduler_process"]
        if item is None or item.done or item.op == "compute":
            return ["forward", "forward_batch_generation", "run_batch", *outer]
        if item.message:
            return ["recv", "_pp_recv_proxy_tensors", *outer]
        return [item.op, *({"recv_requests": ["broadcast_pyobj"]}.get(item.site, [])), item.site, *outer]


def _frames(item: Item) -> list[dict[str, Any]]:
    return [
        {"name": item.op, "filename": "/x/torch/distributed/distributed_c10d.py", "line": 3000},
        {"name": item.site, "filename": "/x/sglang/srt/job.py", "line": 10},
    ]


def grid(pp: int, tp: int, dp: int) -> tuple[dict[str, dict[int, Group]], int]:
    """The groups of a grid by kind and rank, and how many ranks it has; ranks count tp fastest, then pp, dp."""
    n = pp * tp * dp
    kinds: dict[str, dict[int, Group]] = {"tp": {}, "attn": {}, "pp": {}, "dp": {}, "world": {}}
    counter = 0
    lines = {
        "tp": [[b * tp + i for i in range(tp)] for b in range(pp * dp)],
        "attn": [[b * tp + i for i in range(tp)] for b in range(pp * dp)],
        "pp": [[d * pp * tp + p * tp + t for p in range(pp)] for d in range(dp) for t in range(tp)],
        "dp": [[d * pp * tp + k for d in range(dp)] for k in range(pp * tp)],
        "world": [list(range(n))],
    }
    for kind, members in lines.items():
        for line in members:
            counter += 1
            group: Group = (str(counter), kind, tuple(line))
            for rank in line:
                kinds[kind][rank] = group
    return kinds, n


def program(
    rank: int, kinds: dict[str, dict[int, Group]], pp: int, tp: int, dp: int, steps: int, ring: bool
) -> list[Item]:
    """What one rank does: per step requests, a vote, tensors from before, layers, tensors on, perhaps a gradient."""
    column = kinds["pp"][rank]
    stage = column[2].index(rank)
    before = column[2][stage - 1] if stage > 0 else None
    behind = column[2][stage + 1] if stage + 1 < pp else None
    items: list[Item] = []
    for step in range(steps):
        if tp > 1:
            items.append(Item("broadcast", kinds["tp"][rank], "recv_requests", 1))
            items.append(Item("all_reduce", kinds["attn"][rank], "writing_check", 2))
        if before is not None:
            items.append(Item("recv", column, "_pp_recv_proxy_tensors", 64, [("recv", before)]))
        items.append(Item("compute"))
        if tp > 1:
            items.append(Item("all_reduce", kinds["tp"][rank], "forward", 16 + step % 3))
            items.append(Item("compute"))
            items.append(Item("all_gather", kinds["tp"][rank], "logits", 5))
        if behind is not None:
            items.append(Item("send", column, "_pp_send_proxy_tensors", 64, [("send", behind)]))
        if ring and pp > 1:
            parts = [("send", column[2][(stage + 1) % pp]), ("recv", column[2][stage - 1])]
            items.append(Item("coalesced", column, "ring_exchange", 32, parts))
        if dp > 1:
            items.append(Item("all_reduce", kinds["dp"][rank], "reduce_gradients", 128))
        if step % 4 == 3:
            items.append(Item("all_reduce", kinds["world"][rank], "check_health", 3))
    return items
