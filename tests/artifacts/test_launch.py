"""Configuration in notes, scripts, manifests, package lists, /server_info and server_args lines."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.artifacts.launch import looks_like_launch, parse, parse_server_args
from hicache_doctor.artifacts.secret_text import is_secret
from hicache_doctor.artifacts.secrets import scrub
from tests.artifacts.small import mutations, numbered

SCRIPT = """#!/usr/bin/env bash
# image: lmsysorg/sglang:v0.5.12-cu129
export HF_TOKEN=hf_abcdefghijklmnopqrstuvwx
SGLANG_PP_LAYER_PARTITION=37,41 python3 -m sglang.launch_server \\
  --model-path=/models/Qwen3-32B --tp 2 --pipeline-parallel-size 2 \\
  --enable-hierarchical-cache --hicache-ratio 2.5 \\
  --api-key \\
  s3cr3t-value --priority -1 --lora-paths a=b c=d
python -m sglang.bench_serving --backend sglang --num-prompts 1000 --tp 64
"""

POD = """containers:
- name: sglang
  image: registry.local:5000/team/sglang:v0.5.14.post1-cu130
  env:
  - name: SGLANG_PP_LAYER_PARTITION
    value: "19,20,20,19"
  - name: ADMIN_PASSWORD
    value: hunter2hunter2
  - {name: SGLANG_DP_RANK, value: "1"}
  command: ["python3", "-m", "sglang.launch_server"]
  args:
  - --model-path
  - /models/GLM
  - --tp=8
  - "--pp-size"
  - "4"
  - --enable-dp-attention
"""


def read(text: str) -> dict[str, str]:
    return {s.key: s.value for s in parse(numbered(text), "x")}


def test_a_shell_script() -> None:
    assert looks_like_launch(SCRIPT)
    settings = parse(numbered(SCRIPT), "run.sh")
    by_key = {s.key: s for s in settings}
    assert {k: s.value for k, s in by_key.items()} == {
        "image": "lmsysorg/sglang:v0.5.12-cu129",
        "sglang_version": "0.5.12",
        "HF_TOKEN": "***",
        "SGLANG_PP_LAYER_PARTITION": "37,41",
        "model_path": "/models/Qwen3-32B",
        "tp_size": "2",
        "pp_size": "2",
        "enable_hierarchical_cache": "True",
        "hicache_ratio": "2.5",
        "api_key": "***",
        "priority": "-1",
        "lora_paths": "a=b c=d",
    }
    pp = by_key["pp_size"]
    assert (pp.line, pp.source, pp.artifact) == (5, "command line", "run.sh")
    assert pp.quote == "--model-path=/models/Qwen3-32B --tp 2 --pipeline-parallel-size 2 \\"
    assert by_key["sglang_version"].source == "image tag"
    assert not any(x in str(settings) for x in ("s3cr3t", "abcdefghijkl"))


def test_a_manifest() -> None:
    settings = parse(numbered(POD), "pod.yaml")
    values = {s.key: s.value for s in settings}
    assert values["sglang_version"] == "0.5.14.post1"
    assert values["image"] == "registry.local:5000/team/sglang:v0.5.14.post1-cu130"
    assert (values["SGLANG_PP_LAYER_PARTITION"], values["SGLANG_DP_RANK"]) == ("19,20,20,19", "1")
    assert (values["tp_size"], values["pp_size"], values["enable_dp_attention"]) == ("8", "4", "True")
    assert values["ADMIN_PASSWORD"] == "***"
    assert "hunter2" not in str(settings)


def test_a_command_list_on_one_line_and_bare_args() -> None:
    one = 'command: ["python3", "-m", "sglang.launch_server", "--pp-size", "4", "--kv-cache-dtype", "bfloat16"]'
    assert read(one) == {"pp_size": "4", "kv_cache_dtype": "bfloat16"}
    assert read("args: --model-path /m --tp 2 --pp-size 2 --hicache-ratio 2")["hicache_ratio"] == "2"
    assert read('{"args": [\n "--tp-size",\n "8",\n "--enable-metrics"\n]}')["tp_size"] == "8"
    assert read('"args": [\n "--tp-size",\n "8",\n "--enable-metrics"\n]')["tp_size"] == "8"
    inner = 'CMD ["bash", "-c", "python -m sglang.launch_server --tp 4 --hicache-size 40"]'
    assert read(inner) == {"tp_size": "4", "hicache_size": "40"}
    block = "command:\n  - sh\n  - -c\nargs:\n  - |\n"
    assert read(block) == {}
    assert read("args: |\n  --tp 8\n  --hicache-size 40\nfoo: 1")["hicache_size"] == "40"


@pytest.mark.parametrize("end", ["--chunked-prefill-", "--tp 8 \\", "--"])
def test_a_command_that_is_visibly_cut(end: str) -> None:
    values = read(f"python3 -m sglang.launch_server \\\n  --pp-size 2 \\\n  {end}")
    assert values["command_cut"] == "True"
    assert values["pp_size"] == "2"
    assert "chunked_prefill_" not in values


@pytest.mark.parametrize(
    "text, version, source",
    [
        ("lmsysorg/sglang:v0.5.12-cu129", "0.5.12", "image tag"),
        ("image lmsysorg/sglang:v0.5.12-cu129; GLM-5.1 with cp8", "0.5.12", "image tag"),
        ("FROM lmsysorg/sglang:v0.5.22.post1-cu130-runtime", "0.5.22.post1", "image tag"),
        ("sglang: 0.5.20", "0.5.20", "version list"),
        ("sglang: 0.5.12.post2.dev908+g2c8357f79", "0.5.12.post2.dev908+g2c8357f79", "version list"),
        ("sglang==0.5.14", "0.5.14", "pip"),
        ("RUN pip install 'sglang[all]==0.5.14'", "0.5.14", "pip"),
        ("sglang                       0.5.14", "0.5.14", "version list"),
        ("sglang 0.5.8, one GPU", "0.5.8", "version list"),
        ("SGLang version: v0.5.9", "0.5.9", "version list"),
        ("Name: sglang\nVersion: 0.5.13", "0.5.13", "pip"),
    ],
)
def test_versions(text: str, version: str, source: str) -> None:
    (setting,) = [s for s in parse(numbered(text), "x") if s.key == "sglang_version"]
    assert (setting.value, setting.source) == (version, source)


@pytest.mark.parametrize(
    "text",
    [
        "sglang-router 0.2.1",
        "sglang:num_running_reqs 3.0",
        "sglang>=0.5.1",
        "lmsysorg/sglang:latest",
        "Process 3: sglang::scheduler_TP0",
        "https://github.com/sgl-project/sglang/pull/27285",
    ],
)
def test_what_names_no_version(text: str) -> None:
    assert "sglang_version" not in read(text)


def test_environment_in_every_dress() -> None:
    assert read("env: SGLANG_PP_LAYER_PARTITION=37,41") == {"SGLANG_PP_LAYER_PARTITION": "37,41"}
    assert read("ENV NCCL_DEBUG INFO") == {"NCCL_DEBUG": "INFO"}
    assert read('env:\n  SGLANG_ENABLE_UNIFIED_RADIX_TREE: "1"') == {"SGLANG_ENABLE_UNIFIED_RADIX_TREE": "1"}
    prose = "image x, SGLANG_ENABLE_UNIFIED_RADIX_TREE=1. Both rounds of py-spy were taken"
    assert read(prose) == {"SGLANG_ENABLE_UNIFIED_RADIX_TREE": "1"}
    run = "docker run -e MY_FLAG=2 -e HF_TOKEN=abcdefgh lmsysorg/sglang:v0.5.14 python3 -m sglang.launch_server --tp 8"
    values = read(run)
    assert (values["MY_FLAG"], values["HF_TOKEN"], values["tp_size"]) == ("2", "***", "8")


def test_a_server_info_answer() -> None:
    info = {"model_path": "/m", "tp_size": 2, "api_key": "abcdef-1", "version": "0.5.14", "enable_metrics": True}
    text = json.dumps(info | {"internal_states": [{"x": 1}], "hicache_storage_backend": None}, indent=1)
    settings = parse(numbered(text), "x.json")
    values = {s.key: (s.value, s.line) for s in settings}
    assert values == {
        "model_path": ("/m", 2),
        "tp_size": ("2", 3),
        "api_key": ("***", 4),
        "sglang_version": ("0.5.14", 5),
        "enable_metrics": ("True", 6),
        "hicache_storage_backend": ("None", 12),
    }
    assert {s.source for s in settings} == {"server_info"}
    assert "abcdef-1" not in str(settings)


def test_a_flight_recorder_dump_is_no_server_info() -> None:
    assert read('{"comm_lib_version":"","entries":[],"version":"2.10"}') == {}


def test_a_yaml_for_config() -> None:
    values = read("tp-size: 8\nhicache-ratio: 2\nenable-hierarchical-cache: true\nnotes: hello\n")
    assert values == {"tp_size": "8", "hicache_ratio": "2", "enable_hierarchical_cache": "True"}


ARGS = (
    "ServerArgs(model_path='/m, n', tp_size=8, api_key='very-secret', cuda_graph_bs=[1, 2, 4], lora_paths={'a': 'b'}, "
    'hicache_storage_backend_extra_config=\'{"master": "h:1", "access_key": "very-secret"}\', '
    "max_total_tokens=None, host='it\\'s')"
)


def test_server_args_as_repr() -> None:
    values, cut = parse_server_args(f"[2026-01-01 00:00:00] server_args={ARGS} | trailing, x=1")
    assert not cut
    assert values == {
        "model_path": "/m, n",
        "tp_size": "8",
        "api_key": "***",
        "cuda_graph_bs": "[1, 2, 4]",
        "lora_paths": "{'a': 'b'}",
        "hicache_storage_backend_extra_config": '{"master": "h:1", "access_key": "***"}',
        "max_total_tokens": "None",
        "host": "it's",
    }


def test_server_args_as_dict_wrapped_and_cut() -> None:
    values, cut = parse_server_args("server_args={'model_path': '/m', 'tp_size': 8, 'enable_\nmetrics': True}")
    assert (values, cut) == ({"model_path": "/m", "tp_size": "8", "enable_metrics": "True"}, False)
    head, cut = parse_server_args("kend=None, enable_hierarchical_cache=True, hicache_ratio=4.0, disable_cu")
    assert (head, cut) == ({"enable_hierarchical_cache": "True", "hicache_ratio": "4.0"}, True)
    half, cut = parse_server_args("er-7b', tp_size=4, 'x")
    assert (half, cut) == ({"tp_size": "4"}, True)
    glued, cut = parse_server_args(
        "server_args=ServerArgs(tp_size=4, pp_size=2, enable_dp=[2026-10-21 08:19:47 PP0] Decode batch, a=1)"
    )
    assert (glued, cut) == ({"tp_size": "4", "pp_size": "2"}, True)
    assert read("server_args=ServerArgs(tp_size=4, pp_size=2")["server_args_cut"] == "True"


@pytest.mark.parametrize(
    "key, secret",
    [
        ("api_key", True),
        ("--admin-api-key", True),
        ("HF_TOKEN", True),
        ("ssl_keyfile_password", True),
        ("clientSecret", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("auth-token", True),
        ("tokenizer_path", False),
        ("max_total_tokens", False),
        ("speculative_token_map", False),
        ("tbo_token_distribution_threshold", False),
        ("kt_max_deferred_experts_per_token", False),
        ("ssl_keyfile", False),
        ("hicache_size", False),
    ],
)
def test_which_keys_are_secret(key: str, secret: bool) -> None:
    assert is_secret(key) is secret


SHAPES = [
    "--{k} {v} --tp 8",
    "python -m sglang.launch_server --{k}={v} --tp 8",
    "python -m sglang.launch_server --{k} \\\n {v} --tp 8",
    'args: ["--{k}", "{v}", "--tp", "8"]',
    "args:\n- --{k}\n- {v}\n- --tp=8",
    "export {K}={v}",
    "{K}={v} SGLANG_X=1 python -m sglang.launch_server --tp 8",
    "  {K}: {v}\n  SGLANG_X: 1",
    "- name: {K}\n  value: {v}\n- name: SGLANG_X\n  value: 1",
    "docker run -e {K}={v} -e SGLANG_X=1 lmsysorg/sglang:v0.5.14",
    '{{"model_path": "/m", "{k}": "{v}", "tp_size": 2, "x": {{"{k}": "{v}"}}}}',
    "server_args=ServerArgs(tp_size=2, {k}='{v}', extra='{{\"{k}\": \"{v}\"}}', pp_size=2)",
    "server_args={{'tp_size': 2, '{k}': '{v}', 'pp_size': 2}}",
    "server_args=ServerArgs(tp_size=2, pp_size=1, {k}='{v}",
    "SGLANG_X=1 MOONCAKE_MASTER=redis://user:{v}@host:1 sglang==0.5.14",
    'sglang==0.5.14 curl -H "Authorization: Bearer {v}" host',
]


@given(
    st.sampled_from(SHAPES),
    st.sampled_from(["api_key", "admin_api_key", "auth_token", "ssl_keyfile_password", "client_secret"]),
    st.from_regex(r"[A-Za-z0-9]{4}Q[A-Za-z0-9_.-]{3,20}[A-Za-z0-9]", fullmatch=True),
)
def test_a_secret_is_never_in_any_row(shape: str, key: str, value: str) -> None:
    option = key.replace("_", "-") if "--" in shape else key
    text = shape.format(k=option, K=key.upper(), v=value)
    rows = parse(numbered(text), "x")
    assert rows
    assert value not in str(rows)


def test_masking_leaves_the_rest() -> None:
    assert scrub("a=1, api_key='x y', b=2") == "a=1, api_key='***', b=2"
    assert scrub("api_key=None, tokenizer_path='/m'") == "api_key=None, tokenizer_path='/m'"
    assert scrub("#new-token: 5514, token usage: 0.41") == "#new-token: 5514, token usage: 0.41"


@given(
    mutations(SCRIPT, POD, ARGS, "server_args={'a': 1, 'b': [1, 2", "Name: sglang\nVersion: 0.5.1", '{"tp_size": 1}')
)
def test_never_raises(text: str) -> None:
    looks_like_launch(text)
    parse(numbered(text), "x")
    parse_server_args(text)
    scrub(text)


@pytest.mark.parametrize(
    "text, values",
    [
        ("Launch: `python -m sglang.launch_server --pp-size 4 --hicache-storage-backend mooncake` and it hangs",
         {"pp_size": "4", "hicache_storage_backend": "mooncake"}),
        ("We use `--pp-size 4 --hicache-storage-prefetch-policy timeout`.",
         {"pp_size": "4", "hicache_storage_prefetch_policy": "timeout"}),
        ("python -m sglang.launch_server --host `hostname -i` --pp-size 4", {"host": "`hostname -i`", "pp_size": "4"}),
    ],
)  # fmt: skip
def test_inline_code(text: str, values: dict[str, str]) -> None:
    assert read(text) == values


@pytest.mark.parametrize(
    "text, version",
    [
        ("\u73af\u5883:SGLang \u7248\u672c:0.5.13,8\u5361", "0.5.13"),
        ("\u73af\u5883\uff1aSGLang\u7248\u672c\uff1a0.5.13.post1\uff0c8\u5361", "0.5.13.post1"),
        ("\u4f7f\u7528SGLang 0.5.12\u7248\u672c", "0.5.12"),
        ("\u6211\u4eec\u7528\u7684\u662fsglang==0.5.14\uff0c", "0.5.14"),
        ("\u955c\u50cflmsysorg/sglang:v0.5.15-cu129\u3002", "0.5.15"),
    ],
)
def test_a_release_in_chinese_prose(text: str, version: str) -> None:
    assert read(text)["sglang_version"] == version


def test_options_in_chinese_prose() -> None:
    text = "\u5f00\u542f--enable-hierarchical-cache\uff0c\u53c2\u6570--pp-size 4\uff0c\u5176\u4ed6\u9ed8\u8ba4"
    assert read(text) == {"enable_hierarchical_cache": "True", "pp_size": "4"}
