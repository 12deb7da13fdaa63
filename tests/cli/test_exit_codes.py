"""Exit codes and streams: data on stdout, talk on stderr, one line for what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from doctor import CRASH, HEALTHY, ROOT, Ran, environment, one_line, process

Run = Callable[..., Ran]
SCHEMA = json.loads((ROOT / "rules" / "verdict.schema.json").read_text())


def verdict(ran: Ran) -> dict[str, object]:
    document: dict[str, object] = json.loads(ran.out)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    return document


def test_0_whatever_the_verdict_and_1_for_a_signature_when_asked(run: Run) -> None:
    assert run("analyze", CRASH).code == 0
    assert run("analyze", CRASH, "--exit-code").code == 1
    assert run("analyze", HEALTHY, "--exit-code").code == 0


def test_json_is_the_contract_and_alone_on_stdout() -> None:
    ran = process("analyze", CRASH, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    document = verdict(ran)
    assert (document["schema_version"], document["status"], document["signature"]) == (1, "signature", "A1")
    assert verdict(process("analyze", CRASH, "--format", "json")) == document


@pytest.mark.parametrize("form", ["terminal", "markdown", "html", "json"])
def test_every_format_names_the_verdict(run: Run, form: str) -> None:
    ran = run("analyze", CRASH, "--format", form)
    assert ran.code == 0 and ran.err == ""
    assert "27285" in ran.out and "A1" in ran.out


def test_explain_shows_the_path_and_every_rule(run: Run) -> None:
    plain, explained = run("analyze", CRASH), run("analyze", CRASH, "--explain")
    assert len(explained.out) > len(plain.out)
    assert "Was an ack popped from an empty queue?" in explained.out


@pytest.mark.parametrize("form", ["terminal", "json", "html", "markdown"])
def test_3_when_nothing_is_readable_and_the_verdict_is_printed_all_the_same(
    run: Run, tmp_path: Path, form: str
) -> None:
    ran = run("analyze", tmp_path / "none.log", "--format", form)
    assert ran.code == 3
    assert one_line(ran.err) and "nothing readable" in ran.err
    if form == "json":
        document = verdict(ran)
        assert document["status"] == "undetermined"
        assert document["inventory"][0]["read"] == "none"  # type: ignore[index]
    assert "none.log: " in ran.err and (form == "markdown" or "none.log" in ran.out)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--set", "pp_size"], "--set 'pp_size': write --set KEY=VALUE"),
        (["--set", "=2"], "write --set KEY=VALUE"),
        (["--rank", "pod-7.txt"], "write --rank FILE='PP1 TP0'"),
        (["--sglang", "newest"], "'newest' is no SGLang version"),
        (["--last", "soon"], "--last 'soon' is no duration; write for example 30m"),
        (["--last", "-5m"], "is no duration"),
        (["--last", ""], "is no duration"),
        (["--since", "yesterday"], "'yesterday' is no time; write for example 2026-11-30T03:12:44"),
        (["--since", ""], "is no time"),
        (["--db", "/nowhere/x.duckdb"], "/nowhere is no folder"),
        (["-o", "/nowhere/x.html"], "/nowhere/x.html: cannot be written"),
    ],
)
def test_a_bad_value_is_one_line_and_2(run: Run, args: list[str], text: str) -> None:
    ran = run("analyze", CRASH, *args)
    assert (ran.code, ran.out) == (2, ""), ran.err
    assert one_line(ran.err) and text in ran.err


def test_a_wrong_rule_is_one_line_and_1(run: Run, tmp_path: Path) -> None:
    (tmp_path / "signatures").mkdir()
    (tmp_path / "signatures" / "X.yaml").write_text("id: X\ntitel: t\n")
    ran = run("analyze", CRASH, "--rules", tmp_path)
    assert (ran.code, ran.out) == (1, "")
    assert one_line(ran.err) and f"{tmp_path}/signatures/X.yaml:2:1" in ran.err and "'title'" in ran.err


def test_70_for_our_own_failure_and_the_traceback_on_demand(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from hicache_doctor import incident

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a \x1b[31mdefect")

    monkeypatch.setattr(incident, "analyze", broken)
    ran = run("analyze", CRASH)
    assert (ran.code, ran.out) == (70, "")
    assert one_line(ran.err) and "internal error: ZeroDivisionError: a \\x1b[31mdefect" in ran.err
    monkeypatch.setenv("HICACHE_DOCTOR_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        from hicache_doctor.cli import main

        main(["analyze", str(CRASH)])


def test_130_for_control_c_and_nothing_left_behind(tmp_path: Path) -> None:
    """The process waits for standard input when the signal comes."""
    child = subprocess.Popen(
        [sys.executable, "-m", "hicache_doctor", "analyze", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(TMPDIR=str(tmp_path)),
    )  # fmt: skip
    assert child.stdin is not None
    child.stdin.write(b"x" * (1 << 20))  # more than a pipe holds: it returns once the child reads
    child.stdin.flush()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate()
    assert (child.returncode, out) == (130, b"")
    assert err == b"hicache-doctor: interrupted\n"
    assert os.listdir(tmp_path) == []


def test_130_from_within(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from hicache_doctor import incident

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(incident, "analyze", interrupted)
    ran = run("analyze", CRASH)
    assert (ran.code, ran.out, ran.err) == (130, "", "hicache-doctor: interrupted\n")


def test_rules_exit_codes(run: Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    assert run("rules", "new", mine).code == 0
    assert run("rules", "new", mine).code == 2
    assert run("rules", "check", mine).code == 0
    log = tmp_path / "a.log"
    log.write_text("[2026-06-04 03:00:00 PP0 TP0] SIGQUIT received. our own line\n")
    assert verdict(run("analyze", log, "--rules", mine, "--format", "json"))["signature"] == "X1"
    log.write_text("INFO 06-04 03:00:00 [core.py:1] vLLM engine\n")
    assert verdict(run("analyze", log, "--rules", mine, "--format", "json"))["signature"] is None
    (mine / "signatures" / "X1.yaml").write_text("id: X1\ntitle: t\ntext: [nothing]\n")
    checked = run("rules", "check", mine, "--format", "json")
    assert checked.code == 1
    assert any("nothing" in f["what"] for f in json.loads(checked.out)["findings"])
