"""What a stack waits for: the frames that tell, the place where none does."""

from __future__ import annotations

from typing import Any

import pytest

from hicache_doctor.evidence.places import load_places
from hicache_doctor.evidence.sides import SIDES, load_sides, side_of
from hicache_doctor.signatures.load import load

BASE = load()
TABLE = load_sides(BASE.sides)
GLOO = ["__futex_abstimed_wait_common libc.so.6", "pthread_cond_timedwait@@GLIBC_2.3.2 libc.so.6",
        "gloo::transport::tcp::UnboundBuffer::waitRecv(int*, std::chrono::duration<long>) libtorch_cpu.so",
        "c10d::ProcessGroupGloo::RecvWork::wait libtorch_cpu.so"]  # fmt: skip
LOCK = ["__futex_abstimed_wait_common64 (inlined) libc.so.6", "PyThread_acquire_lock_timed libpython3.11.so.1.0"]


def frames(*lines: str) -> list[dict[str, Any]]:
    """``function file.py:line`` is Python's, ``symbol library`` native."""
    out = []
    for text in lines:
        name, _, file = text.rpartition(" ")
        out.append({"function": name, "file": file.split(":")[0], "native": ":" not in file})
    return out


@pytest.mark.parametrize(
    "side, lines",
    [
        ("gpu", ["cudaStreamSynchronize libcudart.so.12", "writing_check hiradix_cache.py:9"]),
        ("gpu", ["sched_yield libc.so.6", "0x7f12 libcuda.so.1", "process_batch_result scheduler.py:9"]),
        ("gpu", ["synchronize streams.py:101", "writing_check hiradix_cache.py:9"]),
        ("gpu", ["cuEventSynchronize libcuda.so.1", "f a.py:1"]),
        ("gpu", ["hipStreamSynchronize libamdhip64.so.6", "f a.py:1"]),
        ("gpu", ["at::native::_local_scalar_dense_cuda(at::Tensor const&) libtorch_cuda.so", "f a.py:1"]),
        ("wire", [*GLOO, "recv distributed_c10d.py:2799", "recv_object parallel_state.py:9"]),
        ("wire", ["ncclGroupEnd libnccl.so.2", "f a.py:1"]),
        ("wire", ["recv_into socket.py:706", "readinto socket.py:9", "f a.py:1"]),
        ("wire", ["__libc_recv libc.so.6", "f a.py:1"]),
        ("cpu", [*LOCK, "wait threading.py:327", "f a.py:1"]),
        ("cpu", ["get queue.py:171", "f a.py:1"]),
        ("cpu", ["match_prefix radix_cache.py:9", "f a.py:1"]),
        ("idle", ["poll libc.so.6", "zmq_poll libzmq.so.5", "poll poll.py:106", "f a.py:1"]),
        ("idle", ["recv_pyobj socket.py:989", "f a.py:1"]),
        ("disk", ["__libc_pread64 libc.so.6", "f a.py:1"]),
        ("disk", ["readinto _io.py:1", "get hicache_storage.py:201", "f a.py:1"]),
    ],
)
def test_the_innermost_frame_that_tells_decides(side: str, lines: list[str]) -> None:
    assert side_of(frames(*lines), None, TABLE) == side


def test_the_place_says_it_where_no_frame_does_and_an_idle_place_stays_idle() -> None:
    vote = frames("all_reduce a.py:1", "writing_check hiradix_cache.py:9")
    assert side_of(vote, "wire", TABLE) == "wire"
    assert side_of(frames(*LOCK, "wait threading.py:1"), "wire", TABLE) == "wire", "a lock stands below every wait"
    assert side_of(frames("cudaStreamSynchronize libcudart.so.12", "all_reduce a.py:1"), "wire", TABLE) == "gpu"
    assert side_of(frames(*GLOO, "broadcast distributed_c10d.py:9"), "idle", TABLE) == "idle"


def test_what_is_far_out_says_nothing() -> None:
    far = [*(f"f{i} a.py:{i}" for i in range(1, 6)), "synchronize streams.py:1"]
    assert side_of(frames(*far), None, TABLE) == "cpu"


def test_the_tables_hold_known_sides_only() -> None:
    assert {r.side for r in TABLE} <= set(SIDES)
    assert {r.side for r in load_places(BASE.places)} <= {*SIDES, None}
    assert all(r.names or r.files for r in TABLE)
