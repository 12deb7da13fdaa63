"""Keys, tokens, passwords, prompts and token ids of an incident appear nowhere: no stream, no report, no database."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from doctor import CRASH, Ran

Run = Callable[..., Ran]
PREFIX = "[2026-06-04 03:39:00 PP1] "
PLANTS = {
    "server_args": PREFIX + "server_args=ServerArgs(model_path='m', api_key='{}', pp_size=2)",
    "server_args dict": PREFIX + "server_args={{'model_path': 'm', 'admin_api_key': '{}', 'pp_size': 2}}",
    "ssl password": PREFIX + "server_args=ServerArgs(ssl_keyfile_password='{}', dtype='auto')",
    "option": "python3 -m sglang.launch_server --pp-size 2 --api-key {} --tp-size 1",
    "option on the next line": "sglang serve --pp-size 2 --api-key \\\n  {} \\\n  --tp-size 1",
    "environment": "export HF_TOKEN={}",
    "aws": "AWS_SECRET_ACCESS_KEY={}",
    "pod manifest": "    - name: WANDB_API_KEY\n      value: {}",
    "extra config": '--hicache-storage-backend-extra-config \'{{"secret_key": "{}"}}\'',
    "url": "pulling https://user:{}@git.example.com/x.git",
    "redis": PREFIX + "connecting to redis://:{}@10.0.0.1:6379/0",
    "bearer": PREFIX + "Authorization: Bearer {}",
    "basic": "curl -u admin:{} http://h/v1",
    "query": '10.0.0.1 - "GET /generate?token={}&x=1 HTTP/1.1" 200',
    "cookie": "Cookie: session={}",
    "vault": "X-Vault-Token: {}",
    "json": '{{"token": "{}", "n": 2}}',
    "openai": PREFIX + "ValueError: Incorrect API key provided: sk-{}. You can find it",
    "github": "remote: ghp_{} is revoked",
    "jwt": PREFIX + "got eyJhbGciOiJIUzI1NiJ9.eyJ{}.c2ln",
    "pem": "-----BEGIN PRIVATE KEY-----\nMIIE{}AAAA\nAA==\n-----END PRIVATE KEY-----",
    "prompt": PREFIX + "Receive: obj=GenerateReqInput(rid='1', text='say {}', sampling_params={{}})",
    "messages": PREFIX + '{{"messages": [{{"role": "user", "content": "it is {}"}}]}}',
    "output": PREFIX + "Finish: obj=X(), out={{'text': ' {} ', 'meta_info': {{'id': 'a'}}}}",
    "exception": PREFIX
    + "Scheduler hit an exception: Traceback (most recent call last):\n"
    + '  File "/sgl/sglang/srt/managers/scheduler.py", line 3, in run\nRuntimeError: login failed: password={}\n',
    "py-spy locals": '    Locals:\n        api_key: "{}"',
}


def word(number: int) -> str:
    """A value that stands nowhere else; letters and digits, so that no form quotes it."""
    return f"q7Zx{number:02d}KmWvTpRsYb4Hn9Dc3Fg"


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real crash, with a secret of every kind in each of its files and in others."""
    folder = tmp_path_factory.mktemp("secrets")
    planted = "\n".join(text.format(word(i)) for i, text in enumerate(PLANTS.values()))
    for file in CRASH.iterdir():
        text = file.read_text()
        half = text.index("\n", len(text) // 2) + 1
        (folder / file.name).write_text(text[:half] + planted + "\n" + text[half:] + planted + "\n")
    for i, text in enumerate(PLANTS.values()):
        (folder / f"{i}.txt").write_text(text.format(word(i)) + "\n")
    return folder


@pytest.mark.parametrize("form", ["terminal", "json", "html", "markdown"])
def test_no_secret_reaches_a_report_or_the_database(run: Run, incident: Path, tmp_path: Path, form: str) -> None:
    db, out = tmp_path / "i.duckdb", tmp_path / "report"
    said = run("analyze", incident, "--format", form, "--explain", "--db", db)
    assert said.code == 0
    assert run("analyze", incident, "--format", form, "-o", out).code == 0
    rows = [
        run("query", db, f'SELECT * FROM "{t}"', "--format", "json").out
        for t in ("log", "setting", "exception", "frame", "cfg")
    ]
    assert len(json.loads(rows[0])["rows"]) > 5
    kept = {"stdout": said.out, "stderr": said.err, "file": out.read_text(), "rows": "".join(rows)}
    raw = db.read_bytes()
    for i, name in enumerate(PLANTS):
        for where, text in kept.items():
            assert word(i) not in text, (name, where)
        assert word(i).encode() not in raw, (name, "database")


def test_a_secret_on_the_command_line_of_this_tool_is_not_repeated(run: Run, tmp_path: Path) -> None:
    db = tmp_path / "i.duckdb"
    secret = word(99)
    ran = run("analyze", CRASH, "--set", f"api_key={secret}", "--format", "html", "--db", db)
    assert ran.code == 0
    assert secret not in ran.out + ran.err
