"""Typed evidence rows: what readers yield and the store keeps.

Plain slotted dataclasses (they flow by the million); one a table, fields in column order. Every row that comes from a
file carries where it came from: ``artifact`` (the display path, members of an archive after ``!``), ``line`` (1-based)
and ``line_end``, or ``record`` (0-based) for what has no lines. ``rank`` is the label that the user knows, such as
``PP1 TP0``, or ``rank 12`` when only the number is known; None when unknown. ``ts`` is seconds since the epoch (UTC as
far as the artefact says), None when unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar

U64 = Annotated[int, "UBIGINT"]
"""A hash or key of 64 bits without a sign: the store's BIGINT would refuse every other one."""

BOUND_KEY = "sglang_release_bound"
"""The key of a Setting that is no setting: a version spec, because only those releases print the quoted line."""
BOUND_SOURCE = "log vocabulary"


@dataclass(slots=True)
class Artifact:
    """One file that was looked at; ``read`` is ``all``, ``part`` or ``none``.

    ``taken`` is when it was written, by its ``name`` or its ``mtime`` (``clock`` says which): only the distance between
    two files of the same clock means anything.
    """

    table: ClassVar[str] = "artifact"
    id: str
    path: str
    kind: str
    bytes: int
    digest: str | None
    reader: str | None
    read: str
    note: str
    lines: int | None = None
    taken: float | None = None
    clock: str | None = None


@dataclass(slots=True)
class Rank:
    """One scheduler process; ``id`` is its label."""

    table: ClassVar[str] = "rank"
    id: str
    host: str | None = None
    pid: int | None = None
    dp: int | None = None
    pp: int | None = None
    cp: int | None = None
    moe_dp: int | None = None
    tp: int | None = None
    ep: int | None = None
    number: int | None = None
    artifact: str | None = None
    pod: str | None = None


@dataclass(slots=True)
class Setting:
    """One known fact of the configuration; ``value`` is text (``True``, ``None``, ``2``, ``mooncake``)."""

    table: ClassVar[str] = "setting"
    key: str
    value: str
    source: str
    artifact: str
    line: int | None
    rank: str | None = None
    quote: str | None = None


@dataclass(slots=True)
class LogRecord:
    """A log record that matters; ``kind`` is an id of the vocabulary, ``fields`` its named groups."""

    table: ClassVar[str] = "log"
    artifact: str
    line: int
    line_end: int
    offset: int
    ts: float | None
    rank: str | None
    kind: str
    fields: dict[str, Any]
    text: str
    life: int = 0
    pid: int | None = None


@dataclass(slots=True)
class Batch:
    """One ``Prefill batch`` or (sampled) ``Decode batch`` line; counts are tokens or requests."""

    table: ClassVar[str] = "batch"
    artifact: str
    line: int
    offset: int
    ts: float | None
    rank: str | None
    kind: str
    new_seq: int | None
    new_token: int | None
    cached_token: int | None
    usage: float | None
    running: int | None
    queue: int | None
    life: int = 0


@dataclass(slots=True)
class ExceptionRow:
    """A raised error; ``role`` is ``first``, ``victim`` or ``unknown``; ``stack`` names its frames."""

    table: ClassVar[str] = "exception"
    artifact: str
    line: int
    line_end: int
    offset: int
    ts: float | None
    rank: str | None
    type: str
    message: str
    stack: str | None
    proof: str
    life: int = 0
    pid: int | None = None
    role: str = "unknown"
    thread: str | None = None
    prefixed: bool = False


@dataclass(slots=True)
class Stack:
    """One thread's stack; ``source`` is traceback, pyspy, faulthandler, summary, flight_recorder or core.

    ``main`` marks the main thread, ``dump`` counts dumps of the same process over time (0 first).
    """

    table: ClassVar[str] = "stack"
    id: str
    artifact: str
    line: int | None
    line_end: int | None
    record: int | None
    ts: float | None
    rank: str | None
    pid: int | None
    source: str
    thread: str | None
    main: bool
    status: str | None
    dump: int = 0
    life: int = 0


@dataclass(slots=True)
class Frame:
    """One frame; ``depth`` 0 is the innermost; native frames have a symbol in ``function`` and no line."""

    table: ClassVar[str] = "frame"
    stack: str
    depth: int
    cls: str | None
    function: str
    file: str | None
    line: int | None
    at_line: int | None = None
    native: bool = False


@dataclass(slots=True)
class Collective:
    """One collective or point-to-point operation of one rank.

    ``grp`` is the process group's name in that process, ``members`` its global ranks (``0,1,2,3``), None where the
    recorder does not say; ``seq`` counts the collectives of a group, or the messages of a pair; ``op`` is the bare name
    (``all_reduce``, ``send``) and ``backend`` what came before it; ``position`` orders all operations of the rank as it
    issued them; ``peer`` is the other global rank of a message. ``sizes`` is JSON text of the input's shapes.
    ``call_site`` names the innermost frame that is not torch's own: ``Class.function file.py:line``.
    """

    table: ClassVar[str] = "collective"
    artifact: str
    record: int | None
    rank: str | None
    grp: str
    seq: int | None
    op: str
    sizes: str | None
    dtype: str | None
    state: str | None
    retired: bool | None
    call_site: str | None
    source: str
    ts: float | None = None
    position: int | None = None
    members: str | None = None
    descr: str | None = None
    backend: str | None = None
    peer: int | None = None


@dataclass(slots=True)
class GroupStatus:
    """How far one rank got in one process group: the last sequence number that it enqueued, started and completed
    (-1: none yet). ``members`` as in :class:`Collective`; ``source`` is flight_recorder, log (a watchdog's line) or
    ras, where ``grp`` is the communicator's hash and the operation: NCCL counts each of them by itself."""

    table: ClassVar[str] = "group_status"
    artifact: str
    line: int | None
    rank: str | None
    grp: str
    descr: str | None
    members: str | None
    backend: str | None
    enqueued: int | None
    started: int | None
    completed: int | None
    source: str
    pid: int | None = None


@dataclass(slots=True)
class Event:
    """One probe record; the meaning of a–d per kind is data in ``rules/vocabulary/events.yaml``.

    ``ts_ns`` is wall-clock ns, ``record`` the slot in its ring file, ``seq`` its number among all records of the rank:
    the order in which slots were claimed.
    """

    table: ClassVar[str] = "event"
    artifact: str
    rank: str | None
    step: int
    ts_ns: int
    thread: int
    kind: str
    key: U64
    a: int
    b: int
    c: int
    d: int
    record: int | None = None
    seq: int | None = None


@dataclass(slots=True)
class Sample:
    """A gauge at a time; ``name`` without the ``sglang:`` prefix, ``labels`` what else was said."""

    table: ClassVar[str] = "sample"
    artifact: str
    line: int | None
    rank: str | None
    pid: int | None
    ts: float | None
    name: str
    value: float
    labels: dict[str, Any] = field(default_factory=dict)


# A sample of this name: the number of the signal that ended a process; its labels say who sent it.
DEATH_SIGNAL = "death_signal"

# A sample of this name: how many prefill batches of the rank came before the first one that the store holds.
ORDINAL_BASE = "prefill_ordinal_base"

Row = (
    Artifact
    | Rank
    | Setting
    | LogRecord
    | Batch
    | ExceptionRow
    | Stack
    | Frame
    | Collective
    | GroupStatus
    | Event
    | Sample
)

ROW_TYPES: tuple[type[Any], ...] = (
    Artifact,
    Rank,
    Setting,
    LogRecord,
    Batch,
    ExceptionRow,
    Stack,
    Frame,
    Collective,
    GroupStatus,
    Event,
    Sample,
)


def columns(row_type: type[Any]) -> list[str]:
    """The column names of a row type, in order."""
    return [f.name for f in fields(row_type)]
