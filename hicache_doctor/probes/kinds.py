"""The kinds of probe events and the small numbers inside them. Standard library only.

What ``key, a, b, c, d`` mean for each kind is told to people and rules by ``rules/vocabulary/events.yaml``; a test
holds the two equal. A ring carries these tables in its header, so a reader needs no code of the writer's version.
"""

from __future__ import annotations

from enum import IntEnum

NONE = 0


class Kind(IntEnum):
    """What happened. Numbers are stable: never reuse one."""

    START = 1
    STEP = 2
    RECV_MSG = 3
    BATCH = 4
    DECODE = 5
    SUBMIT = 6
    DRAIN = 7
    DRAIN_STORAGE = 8
    EVICT = 9
    SETTLE = 10
    DIGEST = 11
    ACK_QUEUES = 12
    FINISH = 13
    FORWARD = 14
    PROXY = 15
    PREFETCH_HIT = 20
    PREFETCH_IO = 21
    PREFETCH_ACK = 22
    PREFETCH_STOP = 23
    BACKUP_IO = 24
    COLLECTIVE = 30
    COLLECTIVE_END = 31
    SEND = 32
    RECV = 33
    RECV_END = 34
    SENDS_HELD = 35
    NEW_GROUP = 36
    LOCK = 40
    UNLOCK = 41
    ALLOC = 42
    FREE = 43
    POOL = 44
    CLOCK = 45
    FOREIGN_PAGE = 46
    PLAN = 47
    CHUNK = 48
    CONSENSUS = 49
    DISPATCH = 50
    LOAD_SNAPSHOT = 51
    IDLE_BATCH = 52
    QUEUES = 53


class Q(IntEnum):
    """Queues of submissions and drains."""

    WRITE = 0
    LOAD = 1
    PREFETCH = 2
    BACKUP = 3


class Tier(IntEnum):
    """Cache tiers."""

    DEVICE = 1
    HOST = 2
    STORAGE = 3


class Why(IntEnum):
    """Why a submission was refused or a prefetch stopped; 0 is granted."""

    GRANTED = 0
    NO_ROOM = 1
    BELOW_THRESHOLD = 2
    RATE_LIMITED = 3
    PARENT_NOT_BACKED_UP = 4
    OVER_QUOTA = 5
    REVOKED = 6
    ABORTED = 7
    TIMED_OUT = 8
    COMPLETED = 9
    LEADER_STOPPED = 10


class Msg(IntEnum):
    """Classes of received messages, as they take effect."""

    REQUEST = 0
    ABORT = 1
    TIMEOUT = 2
    CONTROL = 3
    STOP = 4
    BOOTSTRAP = 5
    BLOCK = 6
    UNBLOCK = 7


class Found(IntEnum):
    """Where an abort found its request."""

    NOTHING = 0
    WAITING = 1
    BOOTSTRAP = 2
    CHUNKED = 3
    RUNNING = 4


class Op(IntEnum):
    """Operations on a group or between two ranks."""

    MIN = 0
    MAX = 1
    SUM = 2
    BROADCAST = 3
    BARRIER = 4
    SEND = 5
    RECV = 6
    NEW_GROUP = 7
    GATHER = 8


class Capacity(IntEnum):
    """What a START event states: facts that must be equal from the beginning."""

    DEVICE_TOKENS = 1
    HOST_TOKENS = 2
    PAGE_SIZE = 3
    CHUNK_SIZE = 4
    CHUNK_A = 5
    CHUNK_B = 6
    GROUP_MEMBERS = 7
    STORAGE_KEY = 8


class Group(IntEnum):
    """The process groups by role; which instance a rank is in follows from its place in the grid."""

    OTHER = 0
    TP = 1
    FWD = 2
    HITS_TP = 3
    HITS_CP = 4
    HITS_PP = 5
    ACKS_TP = 6
    ACKS_CP = 7
    ACKS_PP = 8
    CP = 9
    MLP_SYNC = 10
    WORLD = 11
    PP = 12


class Site(IntEnum):
    """Call sites of collectives and point-to-point messages: the function that a person would look for."""

    OTHER = 0
    RECV_REQUESTS = 1
    WRITING_CHECK = 2
    LOADING_CHECK = 3
    DRAIN_STORAGE = 4
    CHECK_PREFETCH = 5
    PP_SYNC = 6
    PREFETCH_HITS = 7
    PREFETCH_ACKS = 8
    PROXY = 9
    OUTPUT = 10
    FORWARD = 11
    CHUNK_PROFILE = 12
    MLP_SYNC = 13
    CONSENSUS = 14
    TIMEOUTS = 15
    ABORT_BARRIER = 16
    ALLOCATION = 17
    HOST_CAPACITY = 18
    NEW_GROUP = 19
    PLAN = 20
    DRAIN_SENDS = 21
    HICACHE_EVENTS = 22


TABLES = {
    "kind": Kind,
    "queue": Q,
    "tier": Tier,
    "why": Why,
    "msg": Msg,
    "found": Found,
    "op": Op,
    "capacity": Capacity,
    "group": Group,
    "site": Site,
}


def tables() -> dict[str, dict[int, str]]:
    """All tables as number → lower-case name, as a ring's header carries them."""
    return {name: {int(m): m.name.lower() for m in enum} for name, enum in TABLES.items()}
