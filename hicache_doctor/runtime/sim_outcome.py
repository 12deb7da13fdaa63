"""How a simulated run ended: failures, wait-for edges, stacks, events, tapes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

from hicache_doctor.runtime import sim_box, sim_groups, sim_kernel, sim_wire
from hicache_doctor.runtime.sim_kernel import Failure, Why
from hicache_doctor.runtime.sim_wire import Mispaired
from hicache_doctor.runtime.world import TapeKey, Vector

Event = tuple[int, int, int, int, int, int, int, int, int]
"""kind, step, thread of the rank (0 is main), virtual ns, key, a, b, c, d."""
_RAW = tuple[CodeType, int, Any]
_KERNEL = sim_kernel.__file__
_WORLD = tuple(module.__file__ for module in (sim_box, sim_groups, sim_wire))


class Frame(NamedTuple):
    """One frame. ``function`` is ``Class.name`` for a method; ``cls`` the class that defines it."""

    function: str
    cls: str | None
    file: str
    line: int


class Wait(NamedTuple):
    """A blocked task: ``why`` begins with what it is blocked in, ``on`` are the ranks it waits for.

    ``why`` is one of ``("recv", src, tag, label)``, ``("send", dst, tag, label)``, ``("all_reduce" | "broadcast",
    group, ordinal, label)``, ``("new_group", name, members, ordinal)``, ``("get", queue)``, ``("join", task)``,
    ``("copy", engine, ordinal)``, ``("sleep", ns)``.
    """

    rank: int
    task: str
    why: Why
    on: tuple[int, ...]


class Record(NamedTuple):
    """What one rank leaves behind."""

    events: Sequence[Any]
    tape: list[tuple[TapeKey, Vector]]
    misses: int
    lines: list[tuple[int, str, str]]
    threads: list[str]
    step: int
    result: Any


class Outcome:
    """The end of a run. ``how`` is ``done``, ``failed``, ``deadlock`` or ``livelock``; ``time`` is virtual ns.

    ``choices`` replay the schedule (with the same seed, which also decides how long copies take).
    """

    __slots__ = ("_raw", "_records", "choices", "failures", "how", "mispaired", "switches", "time", "waits")

    def __init__(
        self,
        how: str,
        time: int,
        switches: int,
        choices: list[int],
        failures: list[Failure],
        waits: list[Wait],
        mispaired: list[Mispaired],
        records: list[Record],
        raw: Mapping[int, Mapping[str, list[_RAW]]],
    ) -> None:
        self.how = how
        self.time = time
        self.switches = switches
        self.choices = choices
        self.failures = failures
        self.waits = waits
        self.mispaired = mispaired
        self._records = records
        self._raw = raw

    def stacks(self) -> dict[int, dict[str, list[Frame]]]:
        """Rank → thread → frames, innermost first: where every task that had not ended was, and the tracebacks of those
        that failed. The kernel's own frames and private ones of the world are left out."""
        return {
            rank: {name: [_frame(*raw) for raw in stack if not _inside(raw[0])] for name, stack in threads.items()}
            for rank, threads in self._raw.items()
        }

    def events(self, rank: int) -> Sequence[Event]:
        """The probe events of a rank."""
        return self._records[rank].events

    def tape(self, rank: int) -> list[tuple[TapeKey, Vector]]:
        """What the rank observed."""
        return self._records[rank].tape

    def misses(self, rank: int) -> int:
        """How many observations could not be replayed from its tape."""
        return self._records[rank].misses

    def logs(self, rank: int) -> list[tuple[int, str, str]]:
        """Log lines of a rank: virtual ns, level, text."""
        return self._records[rank].lines

    def threads(self, rank: int) -> list[str]:
        """Names of the rank's threads by number."""
        return self._records[rank].threads

    def step(self, rank: int) -> int:
        """The last scheduler step of a rank."""
        return self._records[rank].step

    def result(self, rank: int) -> Any:
        """What ``main`` returned there."""
        return self._records[rank].result

    def digest(self) -> str:
        """SHA-256 over the events of all ranks, the virtual time and the number of switches."""
        sha = hashlib.sha256(b"%d %d\n" % (self.time, self.switches))
        for rank, record in enumerate(self._records):
            sha.update(b"rank %d\n" % rank)
            sha.update(b"\n".join([b"%d %d %d %d %d %d %d %d %d" % event for event in record.events]))
        return sha.hexdigest()


def suspended(frame: FrameType | None) -> list[_RAW]:
    """The frames of a suspended task, innermost first, without holding on to them."""
    out = []
    while frame is not None:
        out.append((frame.f_code, frame.f_lineno, _receiver(frame)))
        frame = frame.f_back
    return out


def raised(traceback: TracebackType | None) -> list[_RAW]:
    """The frames that an exception went through, innermost first."""
    out = []
    while traceback is not None:
        frame = traceback.tb_frame
        out.append((frame.f_code, traceback.tb_lineno, _receiver(frame)))
        traceback = traceback.tb_next
    return out[::-1]


def _receiver(frame: FrameType) -> Any:
    """The class of ``self``, where the frame is that of a method."""
    code = frame.f_code
    if code.co_argcount and code.co_varnames[0] == "self":
        return type(frame.f_locals.get("self"))
    return None


def _inside(code: CodeType) -> bool:
    file = code.co_filename
    return file == _KERNEL or (file in _WORLD and code.co_name.startswith("_"))


def _frame(code: CodeType, line: int, receiver: Any) -> Frame:
    """``co_qualname`` is Python 3.11's, so the class is looked up: the one whose method has this code."""
    name = code.co_name
    if receiver is None:
        return Frame(name, None, code.co_filename, line)
    cls: str = receiver.__name__
    for base in receiver.__mro__:
        found = base.__dict__.get(name)
        if getattr(found, "__code__", None) is code:
            cls = base.__name__
            break
    return Frame(f"{cls}.{name}", cls, code.co_filename, line)
