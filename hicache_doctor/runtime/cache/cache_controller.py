"""Copy engines, ack queues and the L3 threads of one rank (SGLang's HiCacheController).

Four background threads hand operations along single-producer queues and vote in groups of their own, one group a
thread: ``prefetch_thread_func`` (existence query, MIN over ranks) → the scheduler (host pages) →
``prefetch_io_aux_func`` (pages in batches, one ack a batch) → ``prefetch_sync_thread_func`` (MIN of the progress) → the
scheduler; and ``backup_thread_func``. A thread reads nothing that another one writes, except ``terminated``, which only
decides how much is read and therefore is an observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hicache_doctor.probes.kinds import Kind
from hicache_doctor.runtime import server_log
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.fixes import Fix
from hicache_doctor.runtime.model.base import Model
from hicache_doctor.runtime.world import Finish, Storage, Task, World

PREFETCH_HIT, PREFETCH_IO, PREFETCH_ACK = int(Kind.PREFETCH_HIT), int(Kind.PREFETCH_IO), int(Kind.PREFETCH_ACK)
BACKUP_IO = int(Kind.BACKUP_IO)


class HiCacheAck:
    """One merged copy: its finish event and the operations in it."""

    __slots__ = ("finish_event", "ids")

    def __init__(self, finish_event: Finish, ids: list[int]) -> None:
        self.finish_event = finish_event
        self.ids = ids


class PrefetchOperation:
    """A speculative read from L3. Pages that arrived stay invisible until the scheduler settles it."""

    __slots__ = (
        "anchor",
        "completed",
        "done",
        "hashes",
        "hit",
        "host_pages",
        "number",
        "occupied",
        "rid",
        "settled",
        "started",
        "terminated",
    )

    def __init__(self, rid: int, number: int, hashes: list[int], anchor: Any, started: int) -> None:
        self.rid = rid
        self.number = number
        self.hashes = hashes
        self.anchor = anchor
        self.started = started
        self.hit = 0
        self.completed = 0
        self.host_pages: list[int] = []
        self.occupied = 0
        self.done = False
        self.settled = False
        self.terminated = False


class HiCacheController:
    """What the cache asks of the machine: copies, and L3 in the background."""

    def __init__(self, world: World, config: Config, model: Model, storage: Storage | None) -> None:
        self.world = world
        self.config = config
        self.model = model
        self.storage = storage
        self.write_engine = world.engine("write")
        self.load_engine = world.engine("load")
        self.ack_write_queue: list[HiCacheAck] = []
        self.ack_load_queue: list[HiCacheAck] = []
        self.prefetch_tokens_occupied = 0
        self._load_ops: list[tuple[int, list[int], list[int]]] = []
        self._threads: list[Task] = []
        if storage is not None:
            self.attach_storage_backend()

    # -- L1 and L2
    def start_writing(self, ops: Sequence[tuple[int, list[int], list[int]]]) -> None:
        """One batched device-to-host copy on the write stream and one ack for it; ``ops`` are (id, device, host)."""
        device = [p for _, d, _ in ops for p in d]
        host = [p for _, _, h in ops for p in h]
        finish = self.write_engine.submit(self.model.write_back(device, host))
        self.ack_write_queue.append(HiCacheAck(finish, [i for i, _, _ in ops]))

    def load(self, op_id: int, host: list[int], device: list[int]) -> None:
        """Queue pages for the next merged load."""
        self._load_ops.append((op_id, host, device))

    def start_loading(self) -> Finish | None:
        """Submit what was queued as one copy, layer by layer; None when there was nothing."""
        if not self._load_ops:
            return None
        host = [p for _, h, _ in self._load_ops for p in h]
        device = [p for _, _, d in self._load_ops for p in d]
        finish = self.load_engine.submit(self.model.load(host, device))
        self.ack_load_queue.append(HiCacheAck(finish, [i for i, _, _ in self._load_ops]))
        self._load_ops = []
        return finish

    # -- L3
    def attach_storage_backend(self) -> None:
        """Make the vote groups and start the four threads."""
        w = self.world
        self.hits_groups = self._new_groups("hits")
        self.acks_groups = self._new_groups("acks")
        self.writes_storage = self.config.model.kind != "mla" or w.at.tp == 0
        self.prefetch_queue = w.queue("prefetch_queue")
        self.prefetch_hit_queue = w.queue("prefetch_hit_queue")
        self.prefetch_buffer = w.queue("prefetch_buffer")
        self.prefetch_sync_queue = w.queue("prefetch_sync_queue")
        self.ack_prefetch_queue = w.queue("ack_prefetch_queue")
        self.backup_queue = w.queue("backup_queue")
        self.ack_backup_queue = w.queue("ack_backup_queue")
        self._threads = [
            w.spawn(fn.__name__, fn)
            for fn in (
                self.prefetch_thread_func,
                self.prefetch_io_aux_func,
                self.prefetch_sync_thread_func,
                self.backup_thread_func,
            )
        ]

    def _new_groups(self, role: str) -> list[str]:
        """The groups of one vote, CP before TP before PP; every rank must name the same lists in the same order.

        Before #15805 a node named only its own ranks' lists. Before #27010 no group crossed the stages.
        """
        w, topo = self.world, self.world.topo
        crosses = Fix.PREFETCH_VOTES in self.config.fixes
        sizes = {"cp": topo.cp_size, "tp": topo.tp_size, "pp": topo.pp_size if crosses else 1}
        axes = [axis for axis, size in sizes.items() if size > 1]
        lists = [(f"{role}.{axis}", ranks) for axis in axes for ranks in topo.lines(axis)]
        if Fix.GROUP_LISTS not in self.config.fixes:
            # Each node makes the groups of its own ranks first, so that the order differs between nodes (here: stages).
            own = [item for item in lists if self.world.rank in item[1]]
            lists = own + [item for item in lists if item not in own] if w.at.pp else lists
        for name, ranks in lists:
            w.new_group(name, ranks)
        return [f"{role}.{axis}" for axis in axes]

    def close(self) -> None:
        """End the threads: a sentinel walks the pipeline, so that every rank joins the same number of votes."""
        if self._threads:
            self.prefetch_queue.put(None)
            self.backup_queue.put(None)
            for thread in self._threads:
                thread.join()

    def prefetch_thread_func(self) -> None:
        """Thread 1: how much of a prefix does L3 hold? Nothing is read before the ranks agreed."""
        assert self.storage is not None
        while (op := self.prefetch_queue.get()) is not None:
            local = self.storage.exists(op.hashes)
            seen = self.world.observe("hit", (local,), None, op.number, 0)
            (agreed,) = self._vote(self.hits_groups, seen, "prefetch_hits")
            self.world.record(PREFETCH_HIT, op.rid, seen[0], agreed)
            self.prefetch_hit_queue.put((op, agreed))
        self.prefetch_buffer.put(None)

    def prefetch_io_aux_func(self) -> None:
        """Thread 2: pages in batches. One ack a batch even after a failure or a stop, then one final ack: all ranks
        must emit the same number (#27010)."""
        assert self.storage is not None
        while (item := self.prefetch_buffer.get()) is not None:
            op, hit, pages = item
            size = self.config.io_batch
            got, going = 0, True
            for nth, i in enumerate(range(0, hit, size)):
                want = min(size, hit - i)
                if going and not op.terminated:
                    n = self.storage.get(op.hashes[i : i + want], pages[i : i + want])
                    got += n
                    going = n == want
                (got,) = self.world.observe("io", (got,), None, op.number, nth)
                self.world.record(PREFETCH_IO, op.rid, nth, got)
                self.prefetch_sync_queue.put((op, got, nth, False))
            self.prefetch_sync_queue.put((op, got, -1, True))
        self.prefetch_sync_queue.put(None)

    def prefetch_sync_thread_func(self) -> None:
        """Thread 3: the progress that every rank has (#27010); before, a rank's own."""
        voting = Fix.PREFETCH_VOTES in self.config.fixes
        while (item := self.prefetch_sync_queue.get()) is not None:
            op, got, nth, last = item
            agreed = got
            if not last and voting:
                (agreed,) = self._vote(self.acks_groups, (got,), "prefetch_acks")
            self.world.record(PREFETCH_ACK, op.rid, nth, got, agreed)
            self.ack_prefetch_queue.put((op, agreed, last))

    def backup_thread_func(self) -> None:
        """Thread 4: writes to L3. Under MLA only TP rank 0 does; an ack follows whatever happened."""
        assert self.storage is not None
        while (item := self.backup_queue.get()) is not None:
            op_id, hashes, pages = item
            done = 0
            size = self.config.io_batch
            for i in range(0, len(hashes), size):
                if not self.writes_storage:
                    break
                n = self.storage.put(hashes[i : i + size], pages[i : i + size])
                done += n
                if n < len(hashes[i : i + size]):
                    self.world.log(server_log.backup_failed(len(hashes) - done), "WARNING")
                    break
            self.world.record(BACKUP_IO, hashes[-1], len(hashes), done)
            self.ack_backup_queue.put((op_id, done))

    def _vote(self, groups: list[str], vec: tuple[int, ...], label: str) -> tuple[int, ...]:
        for group in groups:
            vec = self.world.all_reduce(group, "min", vec, label)
        return vec
