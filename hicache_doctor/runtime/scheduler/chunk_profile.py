"""Start-up of dynamic chunking: the first stage measures, everyone fits the same curve to the same samples."""

from __future__ import annotations

from hicache_doctor.probes.kinds import Capacity, Kind
from hicache_doctor.runtime import server_log
from hicache_doctor.runtime.fixes import Fix
from hicache_doctor.runtime.model.base import ForwardBatch, ForwardItem
from hicache_doctor.runtime.scheduler import chunking
from hicache_doctor.runtime.scheduler.state import SchedulerState
from hicache_doctor.runtime.world import Rand, Vector, World, mix

START = int(Kind.START)


def broadcast_object_list(world: World, group: str, vec: Vector) -> Vector:
    """The samples of a group's first rank, for all its ranks (upstream sends them as objects)."""
    return world.broadcast(group, vec, "chunk_profile")


class SchedulerChunkMixin(SchedulerState):
    """Profiling and the predictor."""

    def profile_and_init_predictor(self) -> None:
        """Measure on the first stage, broadcast the raw samples down its TP ranks and the stages, fit everywhere.

        A failure falls back to fixed chunks, on all stages. Before #23060 the profiling itself could fail on the first
        one, which then went on without a word while the others waited for its samples.
        """
        config, w = self.config, self.world
        self.chunks = None
        if not config.dynamic_chunking or w.topo.pp_size == 1:
            return
        lengths = chunking.sample_lengths(config.chunk_tokens, self.fixes)
        lengths = lengths[: max(chunking.LEAST_SAMPLES + 1, len(lengths))]
        vec: Vector = (0,) * (2 * len(lengths))
        failed: ProfileError | None = None
        if self.first_stage:
            try:
                vec = chunking.pack(lengths, self.profile_prefill_latency(lengths))
            except ProfileError as e:
                if Fix.PROFILE_FAILURE not in self.fixes:
                    w.log(server_log.chunk_profile_failed(e), "WARNING")
                    return
                # Sent on as no samples at all, to which nobody can fit a curve: all stages fall back.
                failed = e
            else:
                w.log(server_log.chunk_profile(w.at.pp, len(lengths)))
        if w.topo.tp_size > 1 and self.first_stage:
            vec = broadcast_object_list(w, "tp", vec)
        vec = broadcast_object_list(w, "pp", vec)
        try:
            curve = chunking.fit(*chunking.unpack(vec), self.fixes)
        except chunking.FitError as e:
            w.log(server_log.chunk_profile_failed(failed or e), "WARNING")
            return
        for i, value in ((Capacity.CHUNK_A, curve.a), (Capacity.CHUNK_B, curve.b)):
            self.record(START, int(i), value)
        self.chunks = chunking.ChunkSizer(
            curve,
            config.chunk_tokens,
            config.page_size,
            config.context_tokens,
            config.max_prefill_tokens,
            config.chunk_smooth,
            config.chunk_alignment,
            fixes=self.fixes,
        )

    def profile_prefill_latency(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Nanoseconds of one prefill of each length, on pages that are given back.

        Raises:
            ProfileError: the fault plan makes it fail, and #23060 isn't there.
        """
        w, size = self.world, self.page_size
        if w.at.pp in self.config.faults.profile_fails and Fix.PROFILE_FAILURE not in self.fixes:
            raise ProfileError("'ForwardBatch' object has no attribute '_is_extend_in_batch'")
        rand = Rand(mix(self.config.seed, 0xC4))
        out = []
        for length in lengths:
            pages = self.tree_cache.device.alloc(-(-length // size))
            if pages is None:
                raise ProfileError(f"no room for {length} tokens")
            ids = [1 + rand.below(self.config.model.vocab - 1) for _ in range(length)]
            hashes, tail = [], 0
            for i, token in enumerate(ids):
                tail = mix(tail, token)
                if (i + 1) % size == 0:
                    hashes.append(tail)
            started = w.now()
            item = ForwardItem(-1, ids, 0, pages, hashes, 0, tail, True)
            self.model.forward(ForwardBatch(-1, [item], length, False, self.tree_cache.wait_layer), None)
            out.append(w.now() - started)
            self.tree_cache.device.give_back(pages)
        return w.observe("profile", tuple(out))


class ProfileError(RuntimeError):
    """Profiling did not succeed."""
