"""Requests and batches as a rank holds them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hicache_doctor.runtime.cache.tree_node import TreeNode
from hicache_doctor.runtime.model.base import ForwardBatch, ForwardItem
from hicache_doctor.runtime.workload import Request
from hicache_doctor.runtime.world import MASK


class Req:
    """One request on one rank.

    ``tokens`` are prompt and output; ``hashes`` the chain hash at the end of each full page, ``tail`` the one at the
    last token. ``computed`` tokens have their KV in ``pages``; the path to ``last_node`` is locked.
    """

    __slots__ = (
        "aborted",
        "arrived",
        "before",
        "computed",
        "extend",
        "hashed",
        "hashes",
        "last_node",
        "limit",
        "page_size",
        "pages",
        "prefix",
        "prompt",
        "rid",
        "slot",
        "spec",
        "started",
        "tail",
        "tokens",
    )

    def __init__(self, spec: Request, prompt: list[int], page_size: int, root: TreeNode, arrived: int) -> None:
        self.rid = spec.rid
        self.spec = spec
        self.limit = spec.new_tokens
        self.tokens = prompt
        self.prompt = len(prompt)
        self.page_size = page_size
        self.hashes: list[int] = []
        self.hashed = 0
        self.tail = 0
        self.before = 0
        self.pages: list[int] = []
        self.computed = 0
        self.prefix = 0
        self.extend = 0
        self.last_node = root
        self.slot = -1
        self.aborted = False
        self.arrived = arrived
        self.started = 0
        self.extend_hashes()

    def extend_hashes(self) -> None:
        """Chain hashes of the tokens that are new (``world.mix`` written out: this is the hottest loop there is)."""
        x, size = self.tail, self.page_size
        before = x
        for i in range(self.hashed, len(self.tokens)):
            before = x
            x = (x * 0x9E3779B97F4A7C15 + self.tokens[i] + 0x632BE59BD9B4E019) & MASK
            x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            x ^= x >> 27
            if (i + 1) % size == 0:
                self.hashes.append(x)
        self.hashed = len(self.tokens)
        self.before, self.tail = before, x

    @property
    def output(self) -> int:
        """How many tokens were generated."""
        return len(self.tokens) - self.prompt

    @property
    def finished(self) -> bool:
        """Whether it has all its tokens, or its client is gone."""
        return self.aborted or self.output >= self.limit

    def item(self) -> ForwardItem:
        """What the model computes for it now: ``extend`` tokens after ``prefix``."""
        start, end = self.prefix, self.prefix + self.extend
        whole = end == len(self.tokens)
        size = self.page_size
        tail = self.tail if whole else self.hashes[end // size - 1]
        if start % size:
            before = self.before
        else:
            before = self.hashes[start // size - 1] if start else 0
        return ForwardItem(self.rid, self.tokens[start:end], start, self.pages, self.hashes, before, tail, whole)


@dataclass(slots=True)
class ScheduleBatch:
    """A microbatch in flight on this rank."""

    ordinal: int
    reqs: list[Req]
    decode: bool
    forward: ForwardBatch
    result: list[int] | None = None
    chunked: Req | None = None


@dataclass(slots=True)
class Slot:
    """What belongs to one microbatch position: its running requests and the batch under way."""

    running: list[Req] = field(default_factory=list)
    batch: ScheduleBatch | None = None
