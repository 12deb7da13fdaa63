"""One example line or more for each entry of the vocabulary: kind → (line, the fields that it must give).

Lines are after the patterns' sources: SGLang's and torch's own format strings and published logs (facts/formats.md).
"""

from __future__ import annotations

Fields = dict[str, str]

SGLANG: list[tuple[str, str, Fields]] = [
    ("init_distributed", "Init torch distributed begin.", {}),
    (
        "load_weight_end",
        "Load weight end. elapsed=23.1 s, type=Qwen3MoeForCausalLM, dtype=torch.bfloat16, avail mem=61.2 GB",
        {"model_class": "Qwen3MoeForCausalLM"},
    ),
    ("kv_cache_allocated", "KV Cache is allocated. #tokens: 1024, K size: 1.0 GB, V size: 1.0 GB", {"tokens": "1024"}),
    ("host_pool_gb", "Allocating 40.00 GB host memory for hierarchical KV cache.", {"gb": "40.00"}),
    (
        "host_pool_tokens",
        "Allocating kv hierarchical KV host pool: 65536 tokens, 12.50 GB",
        {"pool": "kv", "tokens": "65536", "gb": "12.50"},
    ),
    (
        "host_capacity_synced",
        "Sync fixed-size HiCache host token capacity from 65536 to 65472",
        {"before": "65536", "after": "65472"},
    ),
    (
        "tree_cache",
        "Tree cache initialized: source=builtin impl=HiRadixCache streaming_wrapped=False hierarchical=True",
        {"source": "builtin", "impl": "HiRadixCache", "hicache": "True"},
    ),
    (
        "tree_cache",
        "Tree cache initialized: source=builtin impl=UnifiedRadixCache components=x hicache_attached=True",
        {"impl": "UnifiedRadixCache", "hicache": "True"},
    ),
    ("tree_cache_old_words", "Tree cache initialized: source=a impl=B streaming_wrapped=False hierarchical=True", {}),
    ("tree_cache_hierarchical_word", "Tree cache initialized: source=a impl=B hierarchical=False", {}),
    ("tree_cache_attached_word", "Tree cache initialized: source=a impl=B hicache_attached=True", {}),
    ("unified_tree_old_words", "Init Unified RadixTree with components: ['full']", {}),
    ("unified_tree", "Init Unified Radix Cache. Components: ['full', 'swa'] Tree Core: python", {"core": "python"}),
    (
        "hicache_initialized",
        "HiCache D↔H initialized: host_pool_size=4096, write_policy=write_through",
        {"tokens": "4096", "write_policy": "write_through"},
    ),
    ("consensus_checker_on", "Rank consensus checker is enabled, every 100 steps", {}),
    (
        "pool_sizes",
        "max_total_num_tokens=1024, chunked_prefill_size=-1, max_prefill_tokens=16384, max_running_requests=2048",
        {"tokens": "1024", "chunk": "-1"},
    ),
    ("pool_sizes", "max_total_num_tokens=1024, chunked_prefill_size=None, x=1", {"chunk": "None"}),
    ("server_started", "INFO:     Started server process [4711]", {"pid": "4711"}),
    ("ready", "The server is fired up and ready to roll!", {}),
    ("storage_backend", "Creating storage backend 'mooncake' (mooncake_store.MooncakeStore)", {"backend": "mooncake"}),
    (
        "prefetch_local_synced",
        "HiCache prefetch success req=abc completed_local=512 completed_synced=448 matched=64 loaded=384"
        " tail_release=64 occupied=1024",
        {
            "outcome": "success",
            "rid": "abc",
            "local": "512",
            "synced": "448",
            "matched": "64",
            "loaded": "384",
            "occupied": "1024",
        },
    ),
    (
        "prefetch_local_synced",
        "HiCache prefetch dropped req=abc completed_local=5 completed_synced=4 matched=6 loaded=0 released=9"
        " occupied=1",
        {"outcome": "dropped", "released": "9"},
    ),
    (
        "prefetch_agreed",
        "HiCache prefetch success req=abc completed=448 matched=64 loaded=384 occupied=1024",
        {"synced": "448", "loaded": "384"},
    ),
    (
        "prefetch_discarded",
        "HiCache hybrid prefetch discarded req=abc tokens=64 reason=tombstone",
        {"outcome": "discarded", "rid": "abc", "reason": "tombstone"},
    ),
    ("prefetch_discarded", "HiCache prefetch declined req=abc", {"outcome": "declined", "rid": "abc"}),
    (
        "prefetch_refill_dropped",
        "HiCache prefetch dropped 128-token refill under un-backed-up node 77",
        {"tokens": "128", "node": "77"},
    ),
    ("prefetch_revoked", "Revoking prefetch for request 7f3a due to insufficient hits (12).", {"rid": "7f3a"}),
    ("storage_read", "Prefetch operation 7f3a bytes: 12.5MB", {"rid": "7f3a", "mb": "12.5"}),
    ("storage_written", "Backup to storage completed op_id=12 tokens=640", {"op": "12", "tokens": "640"}),
    ("storage_write_failed", "Write page to storage: 4 pages failed.", {"pages": "4"}),
    ("storage_error", "mooncake get failed for key x", {"what": "mooncake get failed for key x"}),
    ("storage_error", "Failed to get from storage: timeout", {"what": "Failed to get from storage: timeout"}),
    ("storage_error", "eic_mget keys failed", {"what": "eic_mget keys failed"}),
    ("storage_error", "HiCacheNixl: failed to open", {"what": "HiCacheNixl: failed to open"}),
    ("storage_skipped_pages", "page of 9 MB exceeds bounce buffer capacity 8", {"capacity": "8"}),
    ("storage_warmup", "Mooncake store warmup successfully.", {"what": "Mooncake store warmup successfully"}),
    (
        "client_disconnected",
        "Request is disconnected from the client side. Abort request obj.rid='7f3a'",
        {"rid": "7f3a"},
    ),
    ("abort_request", "Abort running request. rid=7f3a", {"what": "Abort running request. rid=7f3a"}),
    ("abort_request", "Abort prefill request. rid=7f3a", {"what": "Abort prefill request. rid=7f3a"}),
    (
        "transfer_failed",
        "Prefill transfer failed for request rank=0 req.rid='7f3a' bootstrap_room=3 with exception"
        " KVTransferError(bootstrap_room=3): Failed to send kv chunk",
        {"rid": "7f3a", "reason": "Failed to send kv chunk"},
    ),
    ("request_timeout", "Request waiting timeout reached.", {"which": "waiting"}),
    (
        "output_for_gone_request",
        "Received output for rid='7f3a' but the state was deleted in TokenizerManager.",
        {"rid": "7f3a"},
    ),
    ("retracted", "KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 9", {"reqs": "3"}),
    ("out_of_slots", "Prefill out of memory. Try to lower your batch size.", {"which": "Prefill"}),
    (
        "out_of_slots_detail",
        "Available tokens: 96 (available_size=32 + evictable_size=64)",
        {"available": "96", "free": "32", "evictable": "64"},
    ),
    ("debug_info", "Scheduler debug info:", {}),
    (
        "pool_state",
        "[full] total=1024, available=96, evictable=64, protected=800, session_held=0, uncached=64",
        {"pool": "full", "total": "1024", "available": "96", "evictable": "64", "protected": "800"},
    ),
    (
        "pool_state",
        "self.max_total_num_tokens=1024, available_size=32, evictable_size=64",
        {"total2": "1024", "available2": "32", "evictable2": "64"},
    ),
    ("current_batch", "cur_batch.batch_size()=3", {"size": "3"}),
    ("current_batch", "cur_batch_for_debug.batch_size()=2", {"size": "2"}),
    ("watchdog_timeout", "Watchdog timeout (self.watchdog_timeout=300)", {"seconds": "300"}),
    (
        "watchdog_timeout",
        "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        {"name": "Scheduler", "seconds": "300", "soft": "False"},
    ),
    ("pyspy_dump", "Pyspy dump for PID 4711:", {"pid": "4711"}),
    ("pyspy_failed", "Pyspy failed to dump PID 4711. Error: py-spy: command not found", {"pid": "4711"}),
    ("pyspy_failed", "py-spy is not installed; skipping stack dumps", {}),
    ("scheduler_exception", "Scheduler hit an exception: Traceback (most recent call last):", {"who": "Scheduler"}),
    ("sigquit", "Received sigquit from a child proces. It usually means the child failed.", {}),
    ("sigquit", "SIGQUIT received. signum=None, frame=None. It usually means one child failed.", {}),
    (
        "subprocess_crashed",
        "Subprocess scheduler_0 (pid=4711) crashed with exit code -11.",
        {"name": "scheduler_0", "pid": "4711", "code": "-11"},
    ),
    ("killed", "/start.sh: line 3:   417 Killed                  python3 -m sglang.launch_server", {}),
    ("killed", "Killed", {}),
    (
        "rank_divergence",
        "Found rank divergence for 2 event(s)! local hash: abc12 events = ['a', 'b']",
        {"events": "2", "hash": "abc12"},
    ),
    ("dynamic_chunk", "[PP Dynamic Chunk] Fitted quadratic", {"what": "Fitted quadratic"}),
    ("watchdog_stack_taken", "Pyspy dump for PID 4711 (py-spy dump --native --pid 4711):", {"pid": "4711"}),
    (
        "load_back_failed",
        "load_back: FAILED to load 3072 tokens for node 17 even after",
        {"tokens": "3072", "node": "17"},
    ),
    ("port_in_use", "ERROR: [Errno 98] error while attempting to bind: address already in use", {}),
    ("pod_oom_killed", "      Reason:       OOMKilled", {"what": "OOMKilled"}),
    ("orphaned_requests", "sglang:num_prefill_bootstrap_queue_reqs: 4", {"n": "4"}),
    ("ticket_error", "Duplicate PP prefetch request id 7f3a", {"what": "Duplicate PP prefetch request id"}),
    ("startup_failed", "Rank 0 scheduler is dead. Please check", {"what": "Rank 0 scheduler is dead"}),
    ("config_value_error", "PP with storage requires the unified radix tree; disabling the storage tier for now", {}),
    (
        "prefill_floor",
        "Prefill batch, #new-seq: 1, #new-token: 64, #inflight-req: 1, input throughput (token/s): 0.31",
        {},
    ),
    ("vote_profile", "12.5 ms in _all_reduce_attn_groups", {"ms": "12.5"}),
    ("vote_profile", "_all_reduce_attn_groups takes 31.5 % of the step", {"share": "31.5"}),
    ("wrong_output", "customers see garbled output since noon", {"what": "garbled output"}),
]

TORCH: list[tuple[str, str, Fields]] = [
    (
        "nccl_timeout",
        "[rank3]:[E226 11:16:37.104512039 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation"
        " timeout: WorkNCCL(SeqNum=37, OpType=ALLREDUCE, NumelIn=5872, NumelOut=5872, Timeout(ms)=600000) ran for"
        " 600028 milliseconds before timing out.",
        {"seq": "37", "op": "ALLREDUCE", "numel_in": "5872", "numel_out": "5872", "timeout_ms": "600000"},
    ),
    (
        "nccl_pg_status",
        "[PG ID 2 PG GUID 3 Rank 1]  failure detected by watchdog at work sequence id: 37 PG status:"
        " last enqueued work: 74, last completed work: 36",
        {"pg_id": "2", "group": "3", "group_rank": "1", "work": "37", "enqueued": "74", "completed": "36"},
    ),
    (
        "nccl_pg_status",
        "[PG ID 0 PG GUID 0(default_pg) Rank 3] Exception (either an error or timeout) detected by watchdog at work:"
        " 32, last enqueued NCCL work: 32, last completed NCCL work: 31.",
        {"group": "0(default_pg)", "work": "32", "enqueued": "32", "completed": "31"},
    ),
    (
        "nccl_pg_status",
        "[rank2]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 2] Timeout at NCCL work: 7, last enqueued NCCL work: 8, last"
        " completed NCCL work: 6.",
        {"group": "0", "group_rank": "2", "work2": "7", "enqueued": "8", "completed": "6"},
    ),
    (
        "nccl_pg_status",
        "[PG ID 3 PG GUID 5 Rank 0]  failure detected by watchdog at work sequence id: 39 PG status: last enqueued"
        " work: 39, last started work: 19 (_ALLGATHER_BASE), last completed work: 17",
        {"group": "5", "work": "39", "started": "19", "completed": "17"},
    ),
    (
        "nccl_dump_status",
        "[PG ID 0 PG GUID 0(default_pg) Rank 4] Received a dump signal due to a collective timeout from  rank 7 and we"
        " will try our best to dump the debug info. Last enqueued NCCL work: 56118, last completed NCCL work: 56118.",
        {"group": "0(default_pg)", "group_rank": "4", "from": "7", "enqueued": "56118", "completed": "56118"},
    ),
    (
        "nccl_work_update",
        "[PG 1 Rank 0] NCCL Work update periodically: last enqueued NCCL work: 20, last completed NCCL work: 19.",
        {"group": "1", "enqueued": "20", "completed": "19"},
    ),
    (
        "nccl_watchdog_stuck",
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued",
        {"seconds": "480"},
    ),
    (
        "nccl_desync",
        "     [0, 1, 2] finished collective #41207, but didn't join collective #41208 (count from 1)",
        {"ranks": "0, 1, 2", "finished": "41207", "seq": "41208"},
    ),
    (
        "nccl_desync_never",
        " - To our best knowledge, ranks [47] are the lagging ranks that caused this timeout. They never joined any",
        {"ranks": "47"},
    ),
    ("nccl_victim", 'Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down)', {}),
    (
        "nccl_watchdog_died",
        "Process group watchdog thread terminated with exception: NCCL error",
        {"what": "NCCL error"},
    ),
    ("nccl_remote_error", "ncclRemoteError: A call failed possibly due to a network error", {}),
    (
        "nccl_net_warn",
        "host:1:2 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer",
        {"what": "NET/IB : Got completion from peer"},
    ),
    ("nccl_dump_signal", "First PG on this rank to signal dumping.", {}),
    (
        "nccl_no_recorder",
        "Stack trace of the failed collective not found, potentially because FlightRecorder is off",
        {},
    ),
    (
        "gloo_size_mismatch",
        "[enforce fail at ../gloo/pair.cc:446] op.preamble.length <= op.nbytes. 64 vs 8",
        {"got": "64", "room": "8"},
    ),
    (
        "gloo_timeout",
        "unbound_buffer.cc:133] Timed out waiting 1800000ms for send operation to complete",
        {"ms": "1800000", "op": "send"},
    ),
    (
        "peer_closed",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"
        " [10.0.0.2]:4711",
        {"host": "10.0.0.2", "port": "4711"},
    ),
    ("collective_mismatch", "Detected mismatch between collectives on ranks. Rank 1 is running X", {}),
    (
        "cuda_illegal_access",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        {"what": "CUDA error: an illegal memory access was encountered"},
    ),
    ("cuda_illegal_access", "CUDA error: device-side assert triggered", {}),
    (
        "device_assert",
        "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:93: operator(): block: [0,0,0] Assertion"
        " `-sizes[i] <= index` failed.",
        {"at": "93", "what": "-sizes[i] <= index"},
    ),
    ("cuda_oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", {}),
    (
        "host_alloc_failed",
        "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes",
        {},
    ),
    ("fatal_python", "Fatal Python error: Segmentation fault", {"what": "Segmentation fault"}),
    (
        "elastic_failed",
        "torch.distributed.elastic: failed (exitcode: -9) local_rank: 3 (pid: 4711) of binary: /usr/bin/python3",
        {"code": "-9", "local_rank": "3", "pid": "4711"},
    ),
    ("handshake_refused", "E0116 SocketHandShakePlugin: connect() 10.0.0.1: Connection refused [111]", {}),
    ("store_transfer_failed", "Failed to submit transfer operation", {"what": "Failed to submit transfer operation"}),
    ("hccl_timeout", 'torch_npu: [ERROR] "Work ran time out after 1836000 milliseconds, HcclSend"', {}),
]

ENGINES: list[tuple[str, str, Fields]] = [
    ("engine_vllm", "(EngineCore_DP0 pid=1) ERROR 01-27 19:51:22 [core.py:868] died", {"what": "(EngineCore"}),
    ("engine_vllm", 'File "/usr/lib/vllm/v1/engine/core.py", line 1', {"what": "vllm/v1/"}),
    ("engine_lmcache", "[LMCache] INFO: stored 256 tokens", {"what": "LMCache"}),
    ("engine_tensorrt", "[TensorRT-LLM] TensorRT-LLM version: 1.0", {"what": "TensorRT-LLM"}),
    ("engine_training", 'File "/w/megatron/training.py", line 3', {"what": "megatron/"}),
    ("engine_sglang", "python3 -m sglang.launch_server --tp 4", {"what": "sglang.launch_server"}),
]

LINES = SGLANG + TORCH + ENGINES
