"""Launch options of SGLang → the attribute names of its ServerArgs."""

from __future__ import annotations

import re

_ALIASES = {
    "tp": "tp_size", "tensor_parallel_size": "tp_size",
    "pp": "pp_size", "pipeline_parallel_size": "pp_size",
    "dp": "dp_size", "data_parallel_size": "dp_size",
    "ep": "ep_size", "expert_parallel_size": "ep_size",
    "cp": "attn_cp_size", "cp_size": "attn_cp_size", "attention_context_parallel_size": "attn_cp_size",
    "attn_cp": "attn_cp_size", "moe_data_parallel_size": "moe_dp_size", "moe_dp": "moe_dp_size",
    "model": "model_path", "tokenizer": "tokenizer_path", "nccl_init_addr": "dist_init_addr",
    "speculative_algo": "speculative_algorithm", "speculative_draft_model": "speculative_draft_model_path",
    "pipeline_parallel_max_micro_batch_size": "pp_max_micro_batch_size",
}  # fmt: skip
# Options that are worth reading where no command line stands around them (a YAML for --config, a values file).
_KNOWN = re.compile(
    r"(?:tp|pp|dp|ep|attn_cp|moe_dp)_size|page_size|nnodes|node_rank|hicache_\w+|enable_hierarchical_cache|"
    r"chunked_prefill_size|enable_dynamic_chunking|max_total_tokens|mem_fraction_static|disaggregation_mode|"
    r"enable_dp_attention|speculative_\w+|watchdog_timeout|soft_watchdog_timeout|dist_timeout|pp_max_micro_batch_size|"
    r"pp_async_batch_depth|schedule_policy|radix_eviction_policy|kv_cache_dtype|model_path|disable_\w+|enable_\w+|"
    r"max_running_requests|max_prefill_tokens|context_length|attention_backend|crash_dump_folder"
)


def attribute(option: str) -> str:
    """``--tensor-parallel-size``, ``tp`` or ``tp-size`` → ``tp_size``."""
    name = option.lstrip("-").replace("-", "_")
    return _ALIASES.get(name, name)


def is_known(option: str) -> bool:
    """True for an option that is recognised outside a command line."""
    return _KNOWN.fullmatch(attribute(option)) is not None and len(attribute(option)) > 3
