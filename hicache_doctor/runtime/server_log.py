"""What a server prints, word for word: the texts of its log lines, without prefix.

Only lines that many releases share: words that came or went with a release would say which switches are on, and a log
names no release, no switch and no fault of the run.
"""

from __future__ import annotations

from typing import Any

from hicache_doctor.runtime.config import Config

BACKENDS = {"memory": "file", "file": "file", "mooncake": "mooncake"}
"""What ``--hicache-storage-backend`` calls an L3 of ours."""
BACKEND_CLASSES = {
    "file": "sglang.srt.mem_cache.hicache_storage.HiCacheFile",
    "mooncake": "sglang.srt.mem_cache.storage.mooncake_store.mooncake_store.MooncakeStore",
}
INIT_BEGIN = "Init torch distributed begin."
SIGQUIT = "SIGQUIT received. signum=None, frame=None. It usually means one child failed."
_GB = 1e9


def arguments(config: Config, *, watchdog: float = 300, device: str = "cpu") -> dict[str, Any]:
    """The launch arguments of a run under SGLang's attribute names, in SGLang's order."""
    topo = config.topo
    ratio = round(config.host_pages / config.device_pages, 2) if config.device_pages else 2.0
    return {
        "model_path": "dummy",
        "tokenizer_path": None,
        "load_format": "dummy",
        "host": "127.0.0.1",
        "port": 30000,
        "dtype": "auto",
        "kv_cache_dtype": "auto",
        "mem_fraction_static": None,
        "max_running_requests": config.max_running,
        "max_total_tokens": config.device_pages * config.page_size,
        "chunked_prefill_size": config.chunk_tokens,
        "enable_dynamic_chunking": config.dynamic_chunking,
        "max_prefill_tokens": config.max_prefill_tokens,
        "schedule_policy": "fcfs",
        "page_size": config.page_size,
        "radix_eviction_policy": "lru",
        "disable_radix_cache": False,
        "device": device,
        "watchdog_timeout": int(watchdog) if float(watchdog).is_integer() else watchdog,
        "dist_timeout": None,
        "nnodes": 1,
        "node_rank": 0,
        "tp_size": topo.tp_size,
        "pp_size": topo.pp_size,
        "pp_max_micro_batch_size": None,
        "pp_async_batch_depth": 0,
        "dp_size": topo.dp_size,
        "load_balance_method": config.dp_policy,
        "attn_cp_size": topo.cp_size,
        "enable_dp_attention": config.dp_attention,
        "enable_hierarchical_cache": True,
        "hicache_ratio": ratio,
        "hicache_size": round(config.host_bytes / _GB, 6) if config.host_bytes else 0,
        "hicache_write_policy": config.write_policy,
        "hicache_io_backend": "direct",
        "hicache_mem_layout": "layer_first",
        "hicache_storage_backend": BACKENDS.get(config.l3) if config.l3 else None,
        "hicache_storage_prefetch_policy": config.prefetch_policy,
        "hicache_storage_backend_extra_config": None,
        "disaggregation_mode": config.disaggregation,
    }


def init_ends(seconds: float) -> str:
    """All ranks have met."""
    return f"Init torch distributed ends. elapsed={seconds:.2f} s, mem usage=0.00 GB"


def kv_cache(tokens: int, size: int) -> str:
    """The device pool; ``size`` in bytes, K and V together."""
    half = size / 2 / _GB
    sizes = f"K size: {half:.2f} GB, V size: {half:.2f} GB"
    return f"KV Cache is allocated. dtype: torch.float32, #tokens: {tokens}, {sizes}"


def host_pool(tokens: int, write_policy: str) -> str:
    """The host pool."""
    return f"HiCache D2H initialized: host_pool_size={tokens}, write_policy={write_policy}"


def storage_backend(l3: str) -> str:
    """An L3 backend was made."""
    name = BACKENDS[l3]
    return f"Creating storage backend '{name}' ({BACKEND_CLASSES[name]})"


def pool_sizes(config: Config) -> str:
    """The summary line before a server is ready."""
    return (
        f"max_total_num_tokens={config.device_pages * config.page_size}, chunked_prefill_size={config.chunk_tokens},"
        f" max_prefill_tokens={config.max_prefill_tokens}, max_running_requests={config.max_running},"
        f" context_len={config.context_tokens}, available_gpu_mem=0.00 GB"
    )


def prefill_batch(
    *, seqs: int, new: int, cached: int, usage: float, running: int, queue: int, pending: int = 0,
    bootstrap: int | None = None, inflight: int | None = None, throughput: float = 0.0,
) -> str:  # fmt: skip
    """Printed after the result of a batch was processed; tokens, share of the device pool, requests."""
    text = (
        f"Prefill batch, #new-seq: {seqs}, #new-token: {new}, #cached-token: {cached}, token usage: {usage:.2f},"
        f" #running-req: {running}, #queue-req: {queue}, #pending-token: {pending},"
    )
    if bootstrap is not None:
        text += f" #bootstrap-req: {bootstrap}, #inflight-req: {inflight or 0},"
    return f"{text} cpu graph: False, input throughput (token/s): {throughput:.2f}"


def decode_batch(*, running: int, tokens: int, usage: float, queue: int, throughput: float = 0.0) -> str:
    """Printed every so many decode batches."""
    return (
        f"Decode batch, #running-req: {running}, #token: {tokens}, token usage: {usage:.2f}, cpu graph: False,"
        f" gen throughput (token/s): {throughput:.2f}, #queue-req: {queue}"
    )


def chunk_profile(pp: int, samples: int) -> str:
    """Dynamic chunking has its samples."""
    return f"[PP Dynamic Chunk] [PP{pp}] Profiled {samples} samples"


def chunk_profile_failed(error: BaseException) -> str:
    """Dynamic chunking falls back."""
    return f"[PP Dynamic Chunk] Failed to profile prefill latency: {error}. Falling back to static chunk size."


def backup_failed(pages: int) -> str:
    """A write to L3 stopped short."""
    return f"Write page to storage: {pages} pages failed."


def scheduler_exception(traceback_text: str) -> str:
    """The last words of a rank; the text is ``traceback.format_exc()``."""
    return f"Scheduler hit an exception: {traceback_text}"


def watchdog_timeout(seconds: float) -> str:
    """No step for too long."""
    return f"Scheduler watchdog timeout (self.watchdog_timeout={seconds:g}, self.soft=False)"


def subprocess_crashed(rank: int, pid: int, code: int) -> str:
    """What the parent says of a rank that is gone; signals are negative."""
    return f"Subprocess scheduler_{rank} (pid={pid}) crashed with exit code {code}."
