"""Each wrapper by example, and what must never be peeled."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_doctor.artifacts.wrappers import Logical, Peeler, peel
from tests.wrapping import unwrap, unwrap_all

DATA = Path(__file__).parent.parent / "data" / "peel"
MSG = "[2026-05-28 02:19:20 PP1 TP0] Prefill batch, #new-seq: 1"
FRAME = '  File "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py", line 4230, in run_batch'


def texts(line: str) -> list[str]:
    return [one.text for one in peel(line)]


def only(line: str) -> Logical:
    (one,) = peel(line)
    return one


@pytest.mark.parametrize("payload", [MSG, FRAME, "    all_reduce (torch/distributed/distributed_c10d.py:2810)", ""])
@pytest.mark.parametrize(
    ("head", "stream", "ts", "rank"),
    [
        ("2026-06-24T17:38:03.765641375+02:00 stderr F ", ("stderr",), 1782315483.765641, None),
        ("2026-06-24T15:38:03.5Z ", (), 1782315483.5, None),
        ("[2026-06-24T15:38:03.48675097Z] ", (), 1782315483.486751, None),
        ("2026-06-24 15:38:03.500 | ", (), 1782315483.5, None),
        ("2026-06-24T17:38:03+0200 host-c bash[77]: ", ("host-c", "bash", "77"), 1782315483.0, None),
        ("sglang-1  | ", ("sglang-1",), None, None),
        ("[pod/prefill-0/sglang] ", ("prefill-0", "sglang"), None, None),
        ("(raylet, ip=192.0.2.7) ", ("raylet", "192.0.2.7"), None, None),
        ("(RayWorkerWrapper pid=999) ", ("RayWorkerWrapper", "999"), None, None),
        ("\x1b[36m(SGLangEngine pid=7, ip=192.0.2.1)\x1b[0m ", ("SGLangEngine", "7", "192.0.2.1"), None, None),
        ("[1;36m(RayWorkerWrapper pid=999)[0m ", ("RayWorkerWrapper", "999"), None, None),
        ("(VllmWorker rank=1 pid=5) ", ("VllmWorker", "1", "5"), None, 1),
        ("[rank2]: ", ("rank2",), None, 2),
        ("[default3]:", ("default3",), None, None),
        ("[1,3]<stderr>: ", ("stderr", "rank3"), None, 3),
        ("déc. 19 02:07:16 host bash[2211352]: ", ("host", "bash", "2211352"), None, None),
        ("Jun  4 02:07:16 host sglang: ", ("host", "sglang"), None, None),
        ('<30>1 2026-06-24T15:38:03Z h app 9 - [a@1 b="]"] ', ("h", "app", "9"), 1782315483.0, None),
        ("[2026-06-24 15:38:03] [/bin/sh]: ", ("/bin/sh",), 1782315483.0, None),
        ("> ", (), None, None),
        ("> > ", (), None, None),
        ("\ufeff", (), None, None),
        ("2026-06-24T15:38:03Z [pod/p/c] (A pid=1) [rank2]: ", ("p", "c", "A", "1", "rank2"), 1782315483.0, 2),
    ],
)
def test_prefixes(head: str, stream: tuple[str, ...], ts: float | None, rank: int | None, payload: str) -> None:
    one = only(head + payload)
    assert one.text == payload
    assert one.stream == stream
    assert one.rank_number == rank
    assert one.outer_ts == (None if ts is None else pytest.approx(ts, abs=1e-4))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (f"  |   | 2026-06-04 03:58:55.423 | {MSG} |  ", MSG),
        ("  |   | 2026-06-04 03:58:55.423 |  |  ", ""),
        (f"2026-06-04 03:58:55,423 INFO {MSG}", MSG),
        (f"2026-06-04 03:58:55,423 - sglang - INFO - {MSG}", MSG),
        (f"2026-06-04 03:58:55.423 | INFO     | app.main:run:12 - {MSG}", MSG),
        ("2026-06-24T15:38:03Z INFO:     1.2.3.4:5 - ok", "INFO:     1.2.3.4:5 - ok"),
        (
            "[rank3]:[E226 11:16:37.104512039 ProcessGroupNCCL.cpp:616] [Rank 3] x",
            "[E226 11:16:37.104512039 ProcessGroupNCCL.cpp:616] [Rank 3] x",
        ),
        (" [rank3]:[E226 11:16:37.1 ProcessGroupNCCL.cpp:616] x", "[E226 11:16:37.1 ProcessGroupNCCL.cpp:616] x"),
        ("[rank1] RuntimeError: [/pytorch/pair.cc:553] x", "RuntimeError: [/pytorch/pair.cc:553] x"),
        (MSG + "   \t", MSG),
        (MSG + "\r", MSG),
        ("see [#44](https://github.com/sgl-project/sglang/issues/44) 0x0", "see #44 0x0"),
        ("&lt;module&gt; (&quot;x&#39;)", "<module> (\"x')"),
        (r"  File \"/sgl-workspace/x.py\", line 3, in f", '  File "/sgl-workspace/x.py", line 3, in f'),
        (f"(A pid=1) {MSG} [repeated 4x across cluster]", MSG),
        (json.dumps({"log": MSG + "\n", "stream": "stderr", "time": "2026-06-24T15:38:03Z"}), MSG),
        (json.dumps({"ts": 1782315483123, "level": "info", "msg": MSG}), MSG),
        ('{"log":"' + MSG + r" \"cut", MSG + ' "cut'),
        ('(EngineCore_DP0 pid=1) ERROR 01-27 19:51:22 [core.py:868]   File "x"', '  File "x"'),
    ],
)
def test_other_shapes(line: str, text: str) -> None:
    assert texts(line) == [text]


@pytest.mark.parametrize(
    "line",
    [
        "```zsh",
        "```",
        "-- | -- | --",
        'Script started on 2026-11-30 17:29:54+00:00 [COMMAND="x"]',
        "Script done on 2026-11-30",
    ],
)
def test_dropped(line: str) -> None:
    assert texts(line) == []


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (r'{"log": "one"} {"log": "two"}', ["one", "two"]),
        (json.dumps({"log": f"a\n{FRAME}\nb\n"}), ["a", FRAME, "b"]),
        (
            r"Traceback (most recent call last):\n  File \"x\", line 3, in f\nKeyError: 1",
            ["Traceback (most recent call last):", '  File "x", line 3, in f', "KeyError: 1"],
        ),
        (
            "mods: PIL._imaging[rank5]:[E226 11:16:37.104512039 ProcessGroupNCCL.cpp:616] [Rank 5] x",
            ["mods: PIL._imaging", "[E226 11:16:37.104512039 ProcessGroupNCCL.cpp:616] [Rank 5] x"],
        ),
        (f"Timeout(ms)=600000) ran{MSG}", ["Timeout(ms)=600000) ran", MSG]),
        ("Loading:  10%|#  | 1/9\rLoading: 100%|###| 9/9\r" + MSG, [MSG]),
        ("Loading:  10%|#  | 1/9\rLoading: 100%|###| 9/9", ["Loading: 100%|###| 9/9"]),
        (
            "[2026-05-28 02:19:20 TP0] Scheduler hit an exception: Traceback (most recent call last):"
            ' File "x.py", line 3, in f'
            ' return g(a) ^^^^ File "/y.py", line 4, in <module> raise ValueError("no") ValueError: shape is invalid',
            [
                "[2026-05-28 02:19:20 TP0] Scheduler hit an exception: Traceback (most recent call last):",
                '  File "x.py", line 3, in f',
                "    return g(a)",
                '  File "/y.py", line 4, in <module>',
                '    raise ValueError("no")',
                "ValueError: shape is invalid",
            ],
        ),
        (
            'Traceback (most recent call last): File "x", line 1, in f a() KeyError: 3 During handling of'
            " the above exception, another exception occurred: Traceback (most recent call last):"
            ' File "y", line 2, in g b()'
            " torch.OutOfMemoryError:"
            " CUDA out of memory. [2026-05-28 02:19:21] SIGQUIT received.",
            [
                "Traceback (most recent call last):",
                '  File "x", line 1, in f',
                "    a()",
                "KeyError: 3",
                "During handling of the above exception, another exception occurred:",
                "Traceback (most recent call last):",
                '  File "y", line 2, in g',
                "    b()",
                "torch.OutOfMemoryError: CUDA out of memory.",
                "[2026-05-28 02:19:21] SIGQUIT received.",
            ],
        ),
    ],
)
def test_one_physical_line_many_logical(line: str, parts: list[str]) -> None:
    assert texts(line) == parts


def test_a_log_pasted_into_a_prompt_is_no_record() -> None:
    pasted = f'why? {MSG} Traceback (most recent call last): File "x", line 1'
    line = f"{MSG[:29]} Receive: obj=GenerateReqInput(text='{pasted}')"
    assert texts(line) == [line]


@pytest.mark.parametrize(
    "line",
    [
        *(DATA / "pp_server.log").read_text(encoding="utf-8").split("\n"),
        *(DATA / "pyspy.txt").read_text("utf-8").split("\n"),
        "2026-06-30T06:00:00Z,host-a,41877,sglang::scheduler_PP0,72433052",
        "2026-02-24 09:00,sglang::scheduler,30117,103.2,0",
        "[20/12/2014 02:07:22 PM] - ERROR - status.py",
        ">>> import sglang",
        "- item",
        "* item",
        "host-a: 3",
        '{"model_path": "/opt/models/x", "tp_size": 2}',
        '{"text": "hello", "meta_info": {}}',
        "Rank 0  | Rank 1",
        "812: text",
        " [2025-06-10 10:00:11] iteration        1/ 5000000 | consumed samples: 128",
        "    [Rank 3] x",
        '  {"pid": 3',
        "0256, Timeout(ms)=600000) ran for 600021 milliseconds",
        "4] -> 5[5] via P2P/IPC",
        "x & y",
        "a](b)",
        r"C:\x\n",
    ],
)
def test_never_peeled(line: str) -> None:
    assert texts(line) == [line]
    assert only(line) == Logical(line, 1, 1, 0)


def test_cri_parts_are_joined_a_stream() -> None:
    peeler = Peeler()
    lines = [
        "2026-06-24T17:38:03Z stderr P [2026-05-28 02:19:20 PP1 TP0] a ",
        "2026-06-24T17:38:03Z stdout F other",
        "2026-06-24T17:38:03Z stderr P  b",
        "2026-06-24T17:38:04Z stderr F c",
    ]
    out = [one for i, line in enumerate(lines, 7) for one in peeler.feed(i, i * 100, line)]
    assert [(o.text, o.line, o.line_end, o.offset) for o in out] == [
        ("other", 8, 8, 800),
        ("[2026-05-28 02:19:20 PP1 TP0] a  bc", 7, 10, 700),
    ]
    assert peeler.feed(11, 0, lines[0]) == []
    assert [one.text for one in peeler.flush()] == ["[2026-05-28 02:19:20 PP1 TP0] a"]


def test_docker_parts_are_joined() -> None:
    def docker(log: str) -> str:
        return json.dumps({"log": log, "stream": "stderr", "time": "2026-06-24T15:38:03Z"})

    lines = [docker("first\n"), docker("server_args=("), docker("tp_size=2)\n"), docker("last\n")]
    out = unwrap_all(lines)
    assert [(o.text, o.line, o.line_end) for o in out] == [
        ("first", 1, 1),
        ("server_args=(tp_size=2)", 2, 3),
        ("last", 4, 4),
    ]


def test_writers_are_told_apart() -> None:
    lines = ["a-0  | [rank1]: x", "a-1  | [rank0]: y", "a-0  | z"]
    assert [one.stream for one in unwrap_all(lines)] == [("a-0", "rank1"), ("a-1", "rank0"), ("a-0",)]


def test_year_completes_journald() -> None:
    (one,) = Peeler(year=2026).feed(1, 0, "déc. 19 02:07:16 host bash[3]: x")
    assert one.outer_ts == 1797646036.0
    assert only("déc. 19 02:07:16 host bash[3]: x").hints["stamp"] == "déc. 19 02:07:16"


def test_srun_labels_are_ranks_and_gutters_are_not() -> None:
    labelled = [f"{i % 4}: [2026-05-28 02:19:20] msg {i}" for i in range(40)]
    assert {one.rank_number for one in unwrap_all(labelled)} == {0, 1, 2, 3}
    gutter = [f"{i + 90}: [2026-05-28 02:19:20] msg {i}" for i in range(40)]
    assert {one.rank_number for one in unwrap_all(gutter)} == {None}
    assert unwrap(gutter)[3] == "[2026-05-28 02:19:20] msg 3"


def test_csv_export_newest_first_is_turned_round() -> None:
    rows = [f'"2026-06-24T15:38:{30 - i:02d}Z","line ""{30 - i}"""' for i in range(20)]
    assert unwrap(['"ts","line"', *rows])[:2] == ['line "11"', 'line "12"']


def test_csv_cell_with_newlines() -> None:
    out = unwrap_all(
        ["ts,line", '2026-06-24T15:38:30Z,"Traceback', '  File ""x""', 'KeyError"', "2026-06-24T15:38:31Z,b"]
    )
    assert [(o.text, o.line) for o in out] == [("Traceback", 2), ('  File "x"', 3), ("KeyError", 4), ("b", 5)]


ODD = st.text(alphabet=list('ab1 209-:T.Z[]()|>`{}"\\\n\r\t\x1b&;m#,=/FPin'), max_size=60)
PIECES = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "> ",
                "2026-06-24T17:38:03Z ",
                "2026-06-24T17:38:03Z stderr F ",
                "2026-06-24T17:38:03Z stdout P ",
                "[rank3]:",
                "sglang-1  | ",
                "(A pid=1) ",
                '{"log": "',
                '"}',
                r"\"",
                "\\n",
                "\\u001b[36m",
                "\x1b[0m",
                "&gt;",
                "&amp;",
                MSG,
                "Traceback (most recent call last):",
                ' File "x", line 3, in f',
                "KeyError: 1",
                "```",
                "  |   | ",
                " |  ",
                "2026-06-04 03:58:55.423 | ",
                "[0m",
                "déc. 19 02:07:16 h u[1]: ",
                "<30>1 ",
                "[pod/a/b] ",
                "\r",
                "\n",
                " ",
                "[#44](https://x)",
                "[repeated 4x across cluster]",
                "[2026-05-28 02:19:20] [/bin/sh]: ",
                "-- | --",
                "INFO ",
            ]
        ),
        st.text(max_size=5),
    ),
    max_size=12,
).map("".join)


@settings(max_examples=600, deadline=None)
@given(st.one_of(st.text(), ODD, PIECES))
def test_peeling_is_idempotent_and_never_raises(line: str) -> None:
    for text in texts(line):
        assert texts(text) == [text]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(ODD, PIECES), max_size=30))
def test_learning_never_raises_and_lines_stay_in_range(lines: list[str]) -> None:
    for one in unwrap_all(lines):
        assert 1 <= one.line <= one.line_end <= len(lines)


@pytest.mark.parametrize(
    "line",
    [
        "|" * 100_000,
        " " * 100_000 + "x",
        "> " * 20_000,
        "[2026-05-28 " * 5_000,
        '{"log":"' * 5_000,
        "\\" * 100_000 + '"',
        "Traceback (most recent call last): " + 'File "x", line 1, in f ' * 3_000,
        "^" * 20_000,
        "\x1b" * 50_000,
        '{"a":' * 50_000,
        "&amp;" * 20_000,
        "(A pid=1) " * 5_000,
        "<30>1 a b c d e [" + '"x' * 20_000,
        "a." * 50_000 + "|",
    ],
)
def test_hostile_lines_end_soon(line: str) -> None:
    began = time.process_time()
    peel(line)
    assert time.process_time() - began < 20  # minutes, where a step is quadratic


@pytest.mark.parametrize("indent", ["  ", "    ", "\t"])
@pytest.mark.parametrize(
    "block",
    [
        ["[2026-05-20 12:00:11 PP2 TP0] Scheduler hit an exception: Traceback (most recent call last):",
         '  File "a.py", line 1, in f', "    g()", "", "IndexError: pop from empty list"],
        ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "KeyError: 1"],
        ["[PP1 TP0] Prefill batch, #new-seq: 1", "[PP0 TP0] Prefill batch, #new-seq: 1"],
        ["Process 12: sglang::scheduler_PP0_TP0", "Thread 12 (idle): \"MainThread\"", "    recv (a.py:1)"],
    ],
)  # fmt: skip
def test_an_indented_code_block(block: list[str], indent: str) -> None:
    peeler = Peeler()
    lines = ["Seen on two nodes:", "", *[indent + line if line else "" for line in block], "", "Any idea?", "  - none"]
    out = [one.text for i, line in enumerate(lines, 1) for one in peeler.feed(i, 0, line)] + [
        one.text for one in peeler.flush()
    ]
    assert out == ["Seen on two nodes:", "", *block, "", "Any idea?", "  - none"]


def test_a_traceback_inside_a_message_keeps_its_indentation() -> None:
    lines = [
        "ray.exceptions.RayTaskError:",
        "    Traceback (most recent call last):",
        '      File "a.py", line 1, in f',
    ]
    peeler = Peeler()
    assert [one.text for i, line in enumerate(lines, 1) for one in peeler.feed(i, 0, line)] == lines
