"""SGLang's crash dumps, pickled for real by stand-ins of its classes: settings, command, requests; nothing runs."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hicache_doctor.artifacts import vocabulary
from hicache_doctor.artifacts.inventory import Read, read_all
from hicache_doctor.evidence.rows import LogRecord, Setting
from hicache_doctor.incident import Options, analyze
from tests.artifacts import fuzzing
from tests.artifacts.test_plain_pickle import sound

WORDS = vocabulary.load()

SERVER_ARGS = """
import dataclasses, enum, pathlib
from typing import Any

class Mode(enum.Enum):
    NULL = "null"
    PREFILL = "prefill"

@dataclasses.dataclass
class ServerArgs:
    model_path: str = "Qwen/Qwen3-32B"
    tp_size: int = 2
    pp_size: int = 2
    page_size: int = 16
    enable_hierarchical_cache: bool = True
    hicache_ratio: float = 2.0
    hicache_storage_backend: Any = None
    disaggregation_mode: Any = Mode.PREFILL
    api_key: str = "sk-hush-hush-hush"
    json_model_override_args: str = "{}"
    lora_paths: Any = dataclasses.field(default_factory=lambda: ["a", {"b": (1, None)}])
    where: Any = pathlib.PurePosixPath("/srv/x")
"""
IO_STRUCT = """
import dataclasses
from typing import Any

@dataclasses.dataclass
class GenerateReqInput:
    rid: Any = None
    text: Any = None
    input_ids: Any = None
    sampling_params: Any = None
    image_data: Any = None
    received_time: Any = None
"""
WRITE = '''
import collections, datetime, pickle, sys
sys.path.insert(0, sys.argv[1])
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.server_args import Mode, ServerArgs
extra = [datetime.datetime(2026, 6, 4), collections.deque([1]), collections.OrderedDict(a=1), Mode]
try:
    import numpy
    extra += [numpy.arange(10), numpy.float32(1.5)]
except ImportError:
    pass
if sys.argv[4] == "torch":
    import torch
    extra += [torch.arange(10), torch.float16]
done = {"text": "SECRET ANSWER", "output_ids": [5, 6, 7], "meta_info": {
    "id": "r1", "prompt_tokens": 4, "completion_tokens": 3, "cached_tokens": 2, "finish_reason": {"type": "stop"}}}
requests = [
    (GenerateReqInput("r1", "SECRET PROMPT", None, {"temperature": 0.5}, extra), done, 1780000000.0, 1780000009.5),
    (GenerateReqInput("r2", None, [11, 12, 13, 14, 15]), {"text": "SECRET", "output_ids": [1, 2]}, 1780000003.0, 1.0),
    (GenerateReqInput("r3", "SECRET LAST WORDS"), {}, 1780000005.0, 1780000010.0),
    (GenerateReqInput(["b1", "b2"], None, [[1, 2], [3]]), {}, 12.5, 13.5),
]
command = "python -m sglang.launch_server --model Qwen/Qwen3-32B --tp 2 --pp-size 2 --api-key sk-hush-hush-hush"
dump = {"server_args": ServerArgs(), "requests": requests, "launch_command": command}
if sys.argv[3] == "new":
    dump = {"server_args": None, "config_updates": [], "resolved_config": {"page_size": 64}, "requests": requests}
pickle.dump(dump, open(sys.argv[2], "wb"), *([int(sys.argv[5])] if len(sys.argv) > 5 else []))
'''  # fmt: skip


def crash(folder: Path, version: str = "old", *, torch: bool = False, protocol: int | None = None) -> Path:
    """A crash dump that another process wrote."""
    package = folder / "package" / "sglang" / "srt"
    (package / "managers").mkdir(parents=True, exist_ok=True)
    (package / "server_args.py").write_text(SERVER_ARGS)
    (package / "managers" / "io_struct.py").write_text(IO_STRUCT)
    (folder / "write.py").write_text(WRITE)
    out = folder / "in" / "crash_dump_2026-06-04_12-00-00.pkl"
    out.parent.mkdir(exist_ok=True)
    more = [] if protocol is None else [str(protocol)]
    subprocess.run(
        [sys.executable, str(folder / "write.py"), str(folder / "package"), str(out), version,
         "torch" if torch else "", *more], check=True, timeout=110,
    )  # fmt: skip
    return out


def read(path: Path, **options: Any) -> Read:
    (found,) = read_all([str(path)], WORDS, spool=path.parent, stdin=None, **options)
    return found


def settings(found: Read, source: str) -> dict[str, str]:
    return {r.key: r.value for r in found.rows if isinstance(r, Setting) and r.source.startswith(source)}


@pytest.mark.parametrize("protocol", [None, 0, 2, 5])
def test_settings_by_sglangs_names_without_secrets(tmp_path: Path, protocol: int | None) -> None:
    found = read(crash(tmp_path, protocol=protocol))
    assert found.artifact.read == "all", found.artifact.note
    assert found.artifact.kind == "SGLang crash dump"
    args = settings(found, "server_args")
    assert args["model_path"] == "Qwen/Qwen3-32B" and args["page_size"] == "16"
    assert (args["enable_hierarchical_cache"], args["hicache_storage_backend"]) == ("True", "None")
    assert (args["hicache_ratio"], args["disaggregation_mode"]) == ("2.0", "prefill")
    assert args["lora_paths"] == "['a', {'b': (1, None)}]"
    assert args["api_key"] == "***"
    command = settings(found, "command line")
    assert command["tp_size"] == "2" and command["pp_size"] == "2"
    assert "hush" not in json.dumps([str(r) for r in found.rows])
    assert {r.line for r in found.rows if isinstance(r, Setting)} == {None}


def test_resolved_values_win_and_the_object_may_be_missing(tmp_path: Path) -> None:
    args = settings(read(crash(tmp_path, "new")), "server_args")
    assert args == {"page_size": "64"}


def test_a_record_a_request_and_no_prompt(tmp_path: Path) -> None:
    found = read(crash(tmp_path))
    assert found.artifact.note == "4 requests, 3 of them unfinished; prompts and outputs left out"
    records = [r for r in found.rows if isinstance(r, LogRecord)]
    assert [r.kind for r in records] == ["crash_request"] * 4
    assert [(r.fields["rid"], r.fields["state"]) for r in records] == [
        ("r1", "finished"), ("r2", "unfinished"), ("r3", "unfinished"), ("b1", "unfinished"),
    ]  # fmt: skip
    assert [(r.fields.get("prompt_tokens"), r.fields.get("output_tokens")) for r in records] == [
        (4, 3), (5, 2), (None, None), (3, None),
    ]  # fmt: skip
    assert [r.ts for r in records] == [1780000009.5, 1780000003.0, 1780000005.0, None]
    assert records[0].text == "finished request r1: 4 prompt tokens, 3 output tokens"
    assert "SECRET" not in str(found.rows)


def test_a_clipped_prompt_when_it_was_asked_for(tmp_path: Path) -> None:
    path = crash(tmp_path)
    prompts = [r.fields.get("prompt") for r in read(path, keep_prompts=True).rows if isinstance(r, LogRecord)]
    assert prompts == ["SECRET PROMPT", None, "SECRET LAST WORDS", None]
    result = analyze([str(path)], Options(keep_prompts=True))
    kept = result.store.value("SELECT count(*) FROM log WHERE fields LIKE '%SECRET PROMPT%'")
    shown = result.verdict.settings
    result.store.close()
    assert kept == 1 and shown["pp_size"] == 2


def test_tensors_are_records_like_anything_else(tmp_path: Path) -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    assert read(crash(tmp_path, torch=True)).artifact.read == "all"


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_nothing_is_imported_or_called(tmp_path: Path) -> None:
    made = tmp_path / "made"
    value = {"server_args": Evil(made), "requests": [(Evil(made), Evil(made), 1.0, 2.0)], "launch_command": "x"}
    path = tmp_path / "crash.pkl"
    path.write_bytes(pickle.dumps(value))
    assert [r.fields["state"] for r in read(path).rows if isinstance(r, LogRecord)] == ["unfinished"]
    assert not made.exists()


@pytest.mark.parametrize(
    "value",
    [{"server_args": 1}, {"a": 1}, [1, 2], {"launch_command": 3, "b": 4}],
    ids=["no requests", "a", "list", "b"],
)
def test_any_other_pickle_is_left_alone(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps(value))
    found = read(path)
    assert (found.artifact.read, found.artifact.note) == ("none", "a pickle is never loaded")


def test_a_dump_that_was_cut(tmp_path: Path) -> None:
    path = crash(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:-40])
    found = read(path)
    assert found.artifact.read == "none"
    assert found.artifact.note.startswith("refused: ") and "\n" not in found.artifact.note


SEEDS = [
    pickle.dumps(
        {
            "server_args": {"page_size": 16, "tp_size": 2},
            "requests": [
                ({"rid": "a"}, {"meta_info": {"prompt_tokens": 3}}, 1.0, 2.0),
                (pickle.PickleBuffer, Path, 1, 2),
            ],
            "launch_command": "python -m sglang.launch_server --tp 2",
        },
        protocol,
    )
    for protocol in (2, 4)
]


def fuzz(folder: Path, *, long: bool) -> None:
    with fuzzing.reader() as ask:
        fuzzing.run(
            lambda data: sound(ask("crash pickle", data, folder, prompts=True)), fuzzing.mutated(*SEEDS), long=long
        )


def test_mutated_dumps(tmp_path: Path) -> None:
    fuzz(tmp_path, long=False)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_mutated_dumps_for_minutes(tmp_path: Path) -> None:
    fuzz(tmp_path, long=True)
