"""Small incidents as text, after SGLang's own lines: what tests split, pad, wrap and repeat.

``a1_like()`` is a shape error on PP1 of a two-stage deployment whose stages part at a prefill batch; ``c1_like()`` is
a write vote on PP0 TP0 that PP0 TP1 never entered. Both give file name → text, one file a rank.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator

START = dt.datetime(2026, 5, 28, 2, 0, 0)
MODEL = "Qwen/Qwen3-32B"
_SCHEDULER = "/sgl-workspace/sglang/python/sglang/srt"


class Log:
    """One rank's log; ``say`` stamps a line, every line a second after the last."""

    def __init__(self, rank: str, start: dt.datetime = START) -> None:
        self.rank, self.now = rank, start
        self.lines: list[str] = []

    def say(self, message: str, rank: str | None = None) -> None:
        self.now += dt.timedelta(seconds=1)
        name = self.rank if rank is None else rank
        self.lines.append(f"[{self.now:%Y-%m-%d %H:%M:%S}{' ' + name if name else ''}] {message}")

    def bare(self, text: str) -> None:
        self.lines += text.rstrip("\n").split("\n")

    def start(self, *, pp: int = 2, tp: int = 1, model: str = MODEL) -> None:
        """What a life begins with."""
        self.say(
            f"server_args=ServerArgs(model_path='{model}', tp_size={tp}, pp_size={pp}, page_size=16,"
            " enable_hierarchical_cache=True, hicache_ratio=2.0, hicache_storage_backend=None)",
            "",
        )
        self.say("Init torch distributed begin.")
        self.say("Load weight end. elapsed=20.96 s, type=Qwen3ForCausalLM, avail mem=60.91 GB")
        self.say("Allocating 39.46 GB host memory for hierarchical KV cache.")
        self.say("max_total_num_tokens=301056, chunked_prefill_size=4096, context_len=40960")

    def batch(self, new: int, cached: int, usage: float = 0.2, seq: int = 1) -> None:
        self.say(
            f"Prefill batch, #new-seq: {seq}, #new-token: {new}, #cached-token: {cached}, token usage: {usage:.2f},"
            " #running-req: 1, #queue-req: 0, input throughput (token/s): 999.07"
        )

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def batches(n: int, seed: int = 7) -> Iterator[tuple[int, int]]:
    """A stream of (new tokens, cached tokens)."""
    rng = random.Random(seed)
    for _ in range(n):
        yield 16 * rng.randrange(1, 200), 16 * rng.randrange(0, 100)


def traceback(error: str, frames: list[tuple[str, int, str]] | None = None) -> str:
    """A traceback without its opening, of a scheduler unless told otherwise."""
    frames = frames or [
        ("managers/scheduler.py", 4041, "run_scheduler_process"),
        ("managers/scheduler_pp_mixin.py", 111, "event_loop_pp"),
        ("managers/scheduler_pp_mixin.py", 1175, "_pp_launch_batch"),
        ("model_executor/model_runner.py", 2204, "forward"),
        ("layers/rotary_embedding/base.py", 232, "forward_native"),
    ]
    out = "".join(f'  File "{_SCHEDULER}/{f}", line {n}, in {name}\n    {name}(x)\n' for f, n, name in frames)
    return f"{out}{error}\n"


def a1_like(n: int = 30, start: dt.datetime = START) -> dict[str, str]:
    """Two stages; after ``n`` equal batches PP1 forms another one and fails on the shape of what PP0 sent."""
    logs = [Log("PP0", start), Log("PP1", start)]
    for log in logs:
        log.start()
        for new, cached in batches(n):
            log.batch(new, cached)
    logs[0].batch(3013, 16, seq=2)
    logs[1].batch(1000, 16)
    logs[1].say("Scheduler hit an exception: Traceback (most recent call last):")
    logs[1].bare(traceback("RuntimeError: shape '[1000, -1, 128]' is invalid for input of size 24682496"))
    logs[1].bare("")
    logs[1].say("SIGQUIT received. signum=None, frame=None. It usually means one child failed.", "")
    gloo = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:1"
    logs[0].say("Scheduler hit an exception: Traceback (most recent call last):")
    logs[0].bare(traceback(gloo))
    return {f"{log.rank}.log": log.text() for log in logs}


_LOOP = """\
    event_loop_pp (scheduler_pp_mixin.py:88)
    run_scheduler_process (scheduler.py:4041)
"""
_STUCK = """\
    all_reduce (torch/distributed/distributed_c10d.py:2810)
    writing_check (hiradix_cache.py:530)
    check_hicache_events (hiradix_cache.py:712)
    get_new_batch_prefill (scheduler.py:2101)
"""
_WAITING = """\
    broadcast (torch/distributed/distributed_c10d.py:2712)
    broadcast_pyobj (utils.py:1305)
    recv_requests (scheduler.py:1204)
"""


def c1_like(n: int = 20, start: dt.datetime = START) -> dict[str, str]:
    """Two ranks of one stage; TP0 stands in the vote of ``writing_check``, TP1 waits for requests."""
    out = {}
    for tp, innermost in ((0, _STUCK), (1, _WAITING)):
        log = Log(f"TP{tp}", start)
        log.start(pp=1, tp=2)
        for new, cached in batches(n):
            log.batch(new, cached)
        pid = 4711 + tp
        log.now += dt.timedelta(seconds=300)
        log.say("Scheduler debug info:")
        log.bare("self.max_total_num_tokens=301056, available_size=200000, evictable_size=1000\n")
        log.say(f"Pyspy dump for PID {pid}:")
        log.bare(f"Process {pid}: sglang::schedul\nPython v3.12.3 (/usr/bin/python3)\n")
        log.bare(f'\nThread {pid} (idle): "MainThread"\n{innermost}{_LOOP}')
        log.bare('\nThread 4999 (idle): "Thread-1"\n    wait (threading.py:355)\n')
        log.say("Watchdog timeout (self.watchdog_timeout=300)")
        log.say("SIGQUIT received. signum=None, frame=None. It usually means one child failed.", "")
        out[f"TP{tp}.log"] = log.text()
    return out


def healthy(n: int = 30, start: dt.datetime = START) -> dict[str, str]:
    """Two stages that agree and work to the end."""
    out = {}
    for rank in ("PP0", "PP1"):
        log = Log(rank, start)
        log.start()
        log.say("The server is fired up and ready to roll!", "")
        for new, cached in batches(n):
            log.batch(new, cached)
        out[f"{rank}.log"] = log.text()
    return out
