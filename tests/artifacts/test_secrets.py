"""Secrets and prompts never pass; SGLang's own words always do."""

from __future__ import annotations

import base64
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_doctor.artifacts import secrets
from hicache_doctor.artifacts.secrets import Scrubber, scrub

PLANTS = {
    "server_args": "server_args=ServerArgs(host='0.0.0.0', api_key='{}', admin_api_key=None, served_model_name='x')",
    "server_args dict": "server_args={{'host': '0.0.0.0', 'api_key': None, 'admin_api_key': '{}', 'tp_size': 2}}",
    "ssl password": "ServerArgs(ssl_keyfile='/k', ssl_keyfile_password='{}', dtype='auto')",
    "bare admin key": "admin_api_key={}, tp_size=4",
    "option": "python3 -m sglang.launch_server --api-key {} --tp 4",
    "option =": "python3 -m sglang.launch_server --admin-api-key={} --tp 4",
    "option in a list": "cmd: ['sglang', '--api-key', '{}', '--tp', '4']",
    "option in JSON": '"args": ["--hf-token", "{}", "--port", "30000"]',
    "option with quotes": 'sglang serve --api-key "{}" --tp 4',
    "option token": "prog --hf-token {} --x",
    "environment": "HF_TOKEN={}",
    "exported": "export AWS_SECRET_ACCESS_KEY={}",
    "environment in a line": "env AWS_SECRET_ACCESS_KEY={} HF_HOME=/x python3 -m sglang.launch_server",
    "environment quoted": 'Environment="WANDB_API_KEY={}"',
    "environment list": '"Env": ["PATH=/usr/bin", "HUGGING_FACE_HUB_TOKEN={}", "A=1"]',
    "os.environ": "environ({{'REDIS_PASS': '{}', 'HOME': '/root'}})",
    "yaml": "    X_PASSWORD: {}",
    "yaml quoted": '  password: "{}"',
    "yaml token": "token: {}",
    "JSON": '{{"id": 1, "token": "{}", "n": 2}}',
    "JSON spaced": '{{"token" : "{}" }}',
    "escaped JSON": '{{"log": "{{\\"token\\": \\"{}\\", \\"n\\": 1}}"}}',
    "twice escaped JSON": '{{"log": "{{\\\\\\"password\\\\\\": \\\\\\"{}\\\\\\"}}"}}',
    "pair": '{{"name": "HF_TOKEN", "value": "{}"}}',
    "pair in repr": "{{'name': 'DB_PASSWORD', 'value': '{}'}}",
    "pair on two lines": "- name: HF_TOKEN\n  value: {}\n",
    "bearer": "Authorization: Bearer {}",
    "basic": "curl -H 'Authorization: Basic {}' http://h/v1",
    "header in a dict": "headers={{'host': 'x', 'authorization': 'Bearer {}', 'accept': '*/*'}}",
    "header as bytes": "(b'authorization', b'Bearer {}'), (b'accept', b'*/*')",
    "x-api-key": "x-api-key: {}",
    "vault": "X-Vault-Token: {}",
    "aws token": "x-amz-security-token: {}",
    "cookie": "Cookie: a=1; session={}; b=2",
    "set-cookie": "set-cookie: id={}; Path=/",
    "url": "pulling https://user:{}@git.example.com/x.git",
    "url token": "pip install --index-url https://{}@pypi.example.com/simple",
    "redis": "redis://:{}@10.0.0.1:6379/0",
    "query": "GET /generate?token={}&x=1 HTTP/1.1",
    "azure sas": "https://a.blob.core.windows.net/c?sv=2020&sig={}&se=2026",
    "amz": "https://s3/x?X-Amz-Credential=a&X-Amz-Signature={}&x=1",
    "account key": "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=x",
    "extra config": 'hicache_storage_backend_extra_config=\'{{"access_key": "A", "secret_key": "{}"}}\'',
    "extra config dict": "'hicache_storage_backend_extra_config': '{{\"password\": \"{}\", \"tp\": 1}}', 'x': 1",
    "curl user": "curl -s -u admin:{} http://h/",
    "netrc": "machine huggingface.co login me password {}",
    "docker auth": '"auths": {{"ghcr.io": {{"auth": "{}"}}}}',
    "npmrc": "//registry.npmjs.org/:_authToken={}",
    "SecretStr": "Settings(api_key=SecretStr('{}'), x=1)",
    "key list": "api_keys=['first', '{}']",
    "sk": "Incorrect API key provided: sk-{}. You can find it",
    "hf": "Invalid user token hf_{}9X (401)",
    "github": "remote: ghp_{} is revoked",
    "github new": "using github_pat_{} now",
    "slack": "posting with xoxb-{} to C1",
    "google": "key used AIza{}AAAAAAAA",
    "nvapi": "docker login nvcr.io nvapi-{}",
    "jwt": "got eyJhbGciOiJIUzI1NiJ9.eyJ{}.c2ln",
    "ssh": "ssh-ed25519 AAAA{} me@host",
    "pem": "key=-----BEGIN RSA PRIVATE KEY-----\\nMIIE{}\\n-----END RSA PRIVATE KEY-----",
    "pem lines": "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl{}AAAAAA\nAA==\n-----END OPENSSH PRIVATE KEY-----\n",
    "text": "Receive: obj=GenerateReqInput(rid='1', text='say {}', sampling_params={{}})",
    "text with quotes": "obj=GenerateReqInput(text=\"it's {} \\\" and\", rid='1')",
    "prompt": "prompt='{}', n=1",
    "bare prompt": "Prompt: please write about {} now",
    "prompt JSON": '{{"model": "x", "prompt": "tell {}", "max_tokens": 64}}',
    "messages": '{{"messages": [{{"role": "user", "content": "[not {}] \\"x\\" }}"}}], "n": 1}}',
    "messages repr": "messages=[{{'role': 'user', 'content': \"it's {}\"}}], n=1",
    "messages cut": "body: {{'messages': [{{'role': 'user', 'content': 'cut {} here",
    "content": '  "content": "multi {} words",',
    "out": "Finish: obj=X(), out={{'text': ' {} ', 'meta_info': {{'id': 'a'}}}}",
    "image": "image_data='data:image/png;base64,{}'",
}
SECRET = st.text("abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ0123456789", min_size=20, max_size=40).map(
    lambda s: "q7Z" + s
)

UNCHANGED = [
    "[2026-06-04 03:40:05 PP0 ATTN_CP0 TP0] Prefill batch, #new-seq: 1, #new-token: 14033, #cached-token: 9792, "
    "token usage: 0.31, #running-req: 5, #queue-req: 1, #pending-token: 0, input throughput (token/s): 14973.37",
    "[2025-03-03 17:53:04 TP0] Prefill batch. #new-seq: 1, #new-token: 63, #cached-token: 1, cache hit rate: 1.41%",
    "Decode batch, #running-req: 4, #token: 36864, token usage: 0.07, gen throughput (token/s): 142.8, #queue-req: 0",
    "Decode batch, #full token: 36864, full token usage: 0.07, swa token usage: 0.01, #swa token: 12",
    "max_total_num_tokens=1048576, chunked_prefill_size=8192, max_prefill_tokens=16384, context_len=131072",
    "tokenizer_path='/opt/models/x', tokenizer_mode='auto', skip_tokenizer_init=False, tokenizer_worker_num=1",
    "api_key=None, admin_api_key=None, served_model_name='x'",
    "'api_key': None, 'admin_api_key': None, 'ssl_keyfile_password': None",
    "ssl_keyfile=None, ssl_certfile=None, ssl_ca_certs=None, ssl_keyfile_password=None, enable_ssl_refresh=False",
    "bucket_time_to_first_token=None, prompt_tokens_buckets=None, generation_tokens_buckets=None",
    "hf_chat_template_name=None, completion_template=None, hf_overrides={}, hf_transformers_utils",
    "log_requests_format='text', log_requests_level=2, tokenizer_metrics_custom_labels_header='x-custom-labels'",
    "constrained_json_whitespace_pattern=None, speculative_token_map=None, speculative_num_draft_tokens=None",
    "kt_max_deferred_experts_per_token=None, prefill_delayer_token_usage_low_watermark=None",
    "python -m sglang.launch_server --max-total-tokens 65536 --max-prefill-tokens 16384 --tokenizer-path /m",
    "hicache_host_total_tokens=262144, hicache_storage_backend='file', hicache_storage_backend_extra_config=None",
    '  File "/opt/sglang/python/sglang/srt/mem_cache/hiradix_cache.py", line 702, in check_hicache_events',
    "    token_to_kv_pool (sglang/srt/mem_cache/memory_pool.py:411)",
    "self.token_to_kv_pool_allocator.free(indices), req_to_token_pool=ReqToTokenPool(size=4096)",
    "released token, 64 tokens evicted, tokens=64, #tokens: 12",
    "token=64, token: 0.31, tokens: 12, num_token=8, token_num: 99, token: 12ms",
    "prefetch 1024 tokens, hit 512 tokens, key hit 3 pages, hash key 0f3a",
    "eos_token='</s>', bos_token='<s>', pad_token=None, stop_token_ids=[151645, 151643], eos_token_id=151645",
    "input_ids=[], output_ids=[], origin_input_ids=None, input_ids.shape=torch.Size([5])",
    "    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> None:",
    "    ret = self.tokenizer.encode(prompt=prompt, text=text)",
    "    prompt=self.prompt,",
    "def generate(prompt: str, messages: list, content: Optional[str] = None) -> None:",
    "prompt_tokens=64, completion_tokens=12, 'prompt_tokens': 64, cached_tokens=0",
    "IndexError: pop from empty list",
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:5432",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2356, unhandled system error",
    'INFO:     10.27.1.1:65179 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "http://127.0.0.1:30000/v1/models?limit=10&after=x tcp://10.0.0.1:20000",
    "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
    "KeyError: 'node_4711'",
    "PWD=/workspace OLDPWD=/root HOME=/root",
    '{"signature": "A2", "form": "A", "confidence": "certain"}',
    "L3 storage key: 3f2a91, pp rank in the storage key, radix key=RadixKey(extra_key=None)",
    "HiRadixCache: write_through, lock_ref=1, ack_write_queue=3, ongoing_prefetch=2",
    "secretKeyRef: {name: x, key: y}",
    "author: someone, authored by, authentication enabled, enable_auth=True",
    "disk-full task-12345678 mask-abcdefgh risk-management",
    'Thread 4711 (idle): "MainThread"',
    "    recv_requests (sglang/srt/managers/scheduler.py:1041)",
    "text=None, image_data=None, content=None, messages=None, prompt=None",
    "gpu_ids=[0, 1, 2, 3], lora_ids=[1], ranks: [0, 1], device_ids=[4, 5]",
    'sglang:token_usage{model_name="x"} 0.31',
    'sglang:prompt_tokens_total{engine_type="unified"} 123456.0',
    "Received output for rid='x', but the state was deleted in TokenizerManager.",
    "content-type: application/json, content-length: 12",
    "passing 4 tests, bypass: True, forward_passes: 3",
    "[rank3]:[W605 09:12:11.123 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called",
    "Slurm: srun --export=ALL --ntasks=4 hostname@node1",
]


@pytest.mark.parametrize("line", UNCHANGED)
def test_lines_without_secrets_stay(line: str) -> None:
    assert scrub(line) == line
    assert Scrubber().line(line) == line


@pytest.mark.parametrize("kind", PLANTS)
@given(secret=SECRET)
def test_a_planted_secret_never_passes(kind: str, secret: str) -> None:
    text = PLANTS[kind].format(secret)
    out = scrub(text)
    assert secret not in out
    assert secret[3:-3] not in out
    assert scrub(out) == out
    scrubber, again = Scrubber(), Scrubber()
    lines = [scrubber.line(line) for line in text.splitlines()]
    assert secret not in "\n".join(lines)
    assert [again.line(line) for line in lines] == lines


AWKWARD = st.text("abXY09!@#%^*+/=.~:?-_ ", min_size=8, max_size=30).map(lambda s: "q7Z" + s.strip() + "Q")


@pytest.mark.parametrize(
    "kind", ["server_args", "option with quotes", "yaml quoted", "JSON", "pair", "os.environ", "text"]
)
@given(secret=AWKWARD)
def test_quoted_secrets_may_hold_anything(kind: str, secret: str) -> None:
    out = scrub(PLANTS[kind].format(secret))
    assert secret not in out and secret[:-1] not in out


@given(secret=st.text(min_size=1, max_size=30).filter(lambda s: s.strip() and "***" not in s), wrap=st.integers(0, 3))
def test_json_and_repr_of_any_text_at_any_level_of_escaping(secret: str, wrap: int) -> None:
    secret = "q7Z" + secret + "Z7q"
    text = json.dumps({"a": 1, "password": secret, "b": "kept"})
    for _ in range(wrap):
        text = json.dumps({"log": text, "c": "kept"})
    out = scrub(text)
    assert "q7Z" not in out and "Z7q" not in out
    for _ in range(wrap):
        out = json.loads(out)["log"]
    assert json.loads(out) == {"a": 1, "password": "***", "b": "kept"}
    assert "q7Z" not in scrub(f"ServerArgs(api_key={secret!r}, tp_size=4)")
    assert scrub(f"ServerArgs(api_key={secret!r}, tp_size=4)").endswith(", tp_size=4)")


def test_what_is_kept_around_a_secret() -> None:
    assert scrub(PLANTS["server_args"].format("x1")) == (
        "server_args=ServerArgs(host='0.0.0.0', api_key='***', admin_api_key=None, served_model_name='x')"
    )
    assert scrub(PLANTS["option"].format("x1")) == "python3 -m sglang.launch_server --api-key *** --tp 4"
    assert scrub(PLANTS["environment in a line"].format("x1")) == (
        "env AWS_SECRET_ACCESS_KEY=*** HF_HOME=/x python3 -m sglang.launch_server"
    )
    assert scrub("curl http://u:p@h/v1?token=abc&x=1 -H 'Authorization: Bearer abc'") == (
        "curl http://***@h/v1?token=***&x=1 -H 'Authorization: Bearer ***'".replace("Bearer ***'", "***'")
    )
    assert scrub('{"messages": [{"role": "user", "content": "x"}], "n": 1}') == '{"messages": ["***"], "n": 1}'
    assert scrub("--api-key --port 30000") == "--api-key --port 30000"


IDS = [
    ("input_ids=[1, 2, 3], output_ids=[4]", "input_ids=[… 3 ids dropped], output_ids=[… 1 ids dropped]"),
    ("input_ids=array('q', [1, 2, 3]), x", "input_ids=array('q', [… 3 ids dropped]), x"),
    ("origin_input_ids=[1, 2], n=1", "origin_input_ids=[… 2 ids dropped], n=1"),
    ("input_ids=[[1, 2], [3]], n", "input_ids=[… 3 ids dropped], n"),
    ("input_ids=tensor([1, 2], device='cuda:0')", "input_ids=tensor([… 2 ids dropped], device='cuda:0')"),
    ('{"input_ids": [1, 2], "n": 1}', '{"input_ids": [… 2 ids dropped], "n": 1}'),
    (r'{"log": "{\"input_ids\": [1, 2]}"}', r'{"log": "{\"input_ids\": [… 2 ids dropped]}"}'),
    ("key=RadixKey(token_ids=[1, 2])", "key=RadixKey(token_ids=[… 2 ids dropped])"),
    ("'prompt_token_ids': [1, 2, 3]", "'prompt_token_ids': [… 3 ids dropped]"),
    ("input_ids=array('q', [1, 2, 3, 4", "input_ids=array('q', [… at least 4 ids dropped]"),
    ("fill_ids=[7] input_embeds=[[0.5, -1.5e-3]]", "fill_ids=[… 1 ids dropped] input_embeds=[… 2 ids dropped]"),
]


@pytest.mark.parametrize(("line", "wanted"), IDS)
def test_token_ids_leave_their_number(line: str, wanted: str) -> None:
    assert scrub(line) == wanted
    assert scrub(wanted) == wanted


def lines(text: str) -> list[str]:
    scrubber = Scrubber()
    return [scrubber.line(line) for line in text.splitlines()]


def test_a_private_key_over_several_lines() -> None:
    body = base64.b64encode(bytes(range(256)) * 4).decode()
    rows = [body[i : i + 64] for i in range(0, len(body), 64)]
    block = ["-----BEGIN PRIVATE KEY-----", *rows, "-----END PRIVATE KEY-----"]
    for lead in ("", "2026-06-04T03:40:05Z "):
        text = ["before", *(lead + row for row in block), "after token usage: 0.31"]
        out = lines("\n".join(text))
        assert not any(row[:20] in line for row in rows[:-1] for line in out)
        assert out[0] == "before" and out[-1] == text[-1]
    endless = lines("\n".join(["-----BEGIN PRIVATE KEY-----", *["[2026-06-04 PP0] a log line goes on"] * 400]))
    assert endless[1:] == ["[2026-06-04 PP0] a log line goes on"] * 400


def test_pairs_and_blocks_of_yaml() -> None:
    text = """\
env:
- name: HF_TOKEN
  value: "leak-1"
- name: LOG_LEVEL
  value: debug
- name: API_KEY
  # the comment
  value: |
    leak-2
    leak-3
- name: FROM_SECRET_TOKEN
  valueFrom:
    secretKeyRef:
      name: some-secret
password: >-
  leak-4

  leak-5
tp_size: 4
args:
- --api-key
- leak-6
- --tp
- "4"
"""
    out = lines(text)
    assert "leak" not in "\n".join(out)
    kept = [line for line in text.splitlines() if "leak" not in line]
    assert [line for line in out if "***" not in line] == kept
    assert len(out) == len(text.splitlines())


def test_ids_over_several_lines() -> None:
    out = lines('{\n  "input_ids": [\n    151644,\n    8948\n  ],\n  "n": 1\n}')
    assert out == ["{", '  "input_ids": [', "    …,", "    …", "  ],", '  "n": 1', "}"] or "151644" not in "".join(out)
    assert "8948" not in "".join(out) and out[-2:] == ['  "n": 1', "}"]
    out = lines("input_ids=tensor([151644, 8948,\n        198, 2610], device='cuda:0')\nnext 198")
    assert "2610" not in "".join(out) and "device='cuda:0')" in out[1] and out[2] == "next 198"


@given(st.text(max_size=300))
def test_no_text_raises_and_twice_is_once(text: str) -> None:
    out = scrub(text)
    assert scrub(out) == out
    Scrubber().line(text)


WORDS = (
    "api_key|token|HF_TOKEN|--api-key|input_ids|array('q', [|1, 2|text|messages|content|prompt|Authorization|Bearer|"
    "Cookie|value|name|://|sk-abcdefgh1|***|-----BEGIN PRIVATE KEY-----|-----END PRIVATE KEY-----|None|password|x|…|İ"
)
PIECES = st.sampled_from([*"\"'\\[](){}:=,;&?@|- \n\udc80", *WORDS.split("|")])


@given(st.lists(PIECES, max_size=40).map("".join))
def test_hostile_grammar_neither_raises_nor_changes_twice(text: str) -> None:
    out = scrub(text)
    assert scrub(out) == out
    scrubber = Scrubber()
    for line in text.split("\n"):
        scrubber.line(line)


@pytest.mark.parametrize(
    "piece", ['"', "\\", "api_key=", "token: '", "input_ids=[", "a", "=", " ", "[", "://", "eyJ", "&sig", "-"]
)
def test_long_lines_take_linear_time(piece: str) -> None:
    scrub("api_key token '" + piece * 200_000)  # the suite's time limit is the check


def test_without_the_automaton_the_result_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = [scrub(PLANTS[k].format("q7Zabcdefghijklmnop12")) for k in PLANTS]
    monkeypatch.setitem(sys.modules, "ahocorasick_rs", None)
    monkeypatch.setattr(secrets, "_find", None)
    monkeypatch.setattr(secrets, "_leads", None)
    assert [scrub(PLANTS[k].format("q7Zabcdefghijklmnop12")) for k in PLANTS] == fast
    assert [scrub(line) for line in UNCHANGED] == UNCHANGED
