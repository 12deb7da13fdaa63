"""A model without weights: a page holds its last token's chain hash, so a stale, torn or foreign page shows at once.

In memory the hash is plain. In L3 it is salted with the stage's layers and heads, because there pages of several ranks
lie side by side: one that comes from another stage (#15175, #21901) or another TP rank decodes to a wrong hash.
"""

from __future__ import annotations

from collections.abc import Sequence

from hicache_doctor.probes.kinds import Kind
from hicache_doctor.runtime.config import Config
from hicache_doctor.runtime.model import sizes
from hicache_doctor.runtime.model.base import ForwardBatch, ForwardItem
from hicache_doctor.runtime.model.ledger import Ledger, claim_copy
from hicache_doctor.runtime.world import Copy, Proxy, WireAbort, World, mix

BASE_NS = 300_000
"""What a forward pass costs, however small; with TOKEN_NS the shape of a real one, a hundred times faster."""
TOKEN_NS = 5_000
ERROR_MASK = (1 << 47) - 1
"""Errors travel through a SUM over ranks in 64-bit integers; 47 bits leave room for thousands of ranks."""
EVENT_MASK = (1 << 63) - 1
"""Hashes in events are signed 64-bit numbers."""


def forward_normal_prepare(tokens: int, proxy: Proxy, hidden: int, head_dim: int) -> None:
    """View the received hidden states as this stage's own tokens: form A breaks here, with torch's words.

    Raises:
        RuntimeError: the stage before computed another number of tokens.
    """
    if proxy.tokens != tokens:
        raise RuntimeError(f"shape '[{tokens}, -1, {head_dim}]' is invalid for input of size {proxy.tokens * hidden}")


class NullModel:
    """One stage's layers as plain lists. Implements :class:`~hicache_doctor.runtime.model.base.Model`."""

    def __init__(self, config: Config, world: World) -> None:
        shape, topo = config.model, world.topo
        start, end = sizes.layer_range(shape, topo, world.at)
        self.layers = end - start
        self.first = world.at.pp == 0
        self.last = world.at.pp == topo.pp_size - 1
        self._world = world
        self._page = config.page_size
        self._hidden, self._head_dim, self._vocab = shape.hidden, shape.head_dim, shape.vocab
        self._ranks = topo.tp_size * topo.cp_size
        self._bytes = sizes.page_bytes(shape, self.layers, config.page_size, topo.tp_size)
        self._salt = mix(start, end)
        if shape.kind != "mla":  # MLA's latent is the same on all TP ranks
            self._salt = mix(self._salt, world.at.tp * 4096 + topo.tp_size)
        self.device = [0] * (config.device_pages + 1)
        self.host = [0] * (sizes.host_pages(config, self._bytes) + 1)
        self.ledger = (Ledger("device"), Ledger("host")) if config.debug else None
        self._told: set[tuple[int, int]] = set()

    def forward(self, batch: ForwardBatch, proxy: Proxy | None) -> Proxy | list[int]:
        """Check what the batch reads, write what it computes; see :class:`Model`."""
        tokens, items = batch.tokens, batch.items
        if proxy is not None:
            self.self_attn(tokens, proxy)
        self._world.sleep(BASE_NS + TOKEN_NS * tokens)
        batch.wait_layer(self.layers - 1)
        if self.ledger is not None:
            self._check_owner(items)
        errors = [self._item(item) for item in items]
        if self._ranks > 1:
            errors = self._over_ranks(tokens, errors)
        if proxy is not None:
            errors = self._received(items, proxy.hidden, errors)
        if not self.last:
            return Proxy(tokens, tuple([(item.tail ^ e) & ERROR_MASK for item, e in zip(items, errors, strict=False)]))
        top = self._vocab - 1
        return [1 + mix(item.tail ^ error, 7) % top for item, error in zip(items, errors, strict=False) if item.sample]

    def self_attn(self, tokens: int, proxy: Proxy) -> None:
        """The first thing a layer does with what it received."""
        forward_normal_prepare(tokens, proxy, self._hidden, self._head_dim)

    def _received(self, items: list[ForwardItem], hidden: Sequence[int], errors: list[int]) -> list[int]:
        """Add what was wrong before. A proxy says ``tail ^ error`` of each item, so that one of other requests with the
        same number of tokens, which no shape check can see, makes wrong tokens as it does in a real model."""
        came = [*hidden, *[0] * (len(items) - len(hidden))] if len(hidden) < len(items) else hidden
        return [
            mix(old, new) & ERROR_MASK or 1 if new else old
            for old, new in zip(
                [(h ^ item.tail) & ERROR_MASK for h, item in zip(came, items, strict=False)], errors, strict=True
            )
        ]

    def _item(self, item: ForwardItem) -> int:
        """Check the prefix of one request and write its new tokens; 0, or a mixture of all that was wrong."""
        device, pages, start = self.device, item.pages, item.start
        size = self._page
        full, part = divmod(start, size)
        error = 0
        if full and [device[p] for p in pages[:full]] != list(item.hashes[:full]):
            for index in range(full):
                error = self._compare(item, index, item.hashes[index], error)
        if part and device[pages[full]] != item.before:
            error = self._compare(item, full, item.before, error)
        end, part = divmod(start + len(item.ids), size)
        for index in range(full, end):
            device[pages[index]] = item.hashes[index]
        if part:
            device[pages[end]] = item.tail
        return error

    def _compare(self, item: ForwardItem, index: int, expected: int, error: int) -> int:
        """Record a page that holds something else. ``mix``, not XOR: two swapped pages must not cancel out."""
        found = self.device[item.pages[index]]
        if found == expected:
            return error
        if (item.rid, index) not in self._told:
            self._told.add((item.rid, index))
            self._world.record(Kind.FOREIGN_PAGE, item.rid, index, found & EVENT_MASK, expected & EVENT_MASK)
        return mix(error, found ^ expected) & ERROR_MASK or 1

    def _over_ranks(self, tokens: int, errors: list[int]) -> list[int]:
        """The forward's all-reduce: what is wrong on one rank is wrong in the output of all, as with real sums.

        Raises:
            WireAbort: the ranks of the group came with different numbers of tokens.
        """
        total, *summed = self._world.all_reduce("fwd", "sum", (tokens, *errors), "forward")
        if total != tokens * self._ranks:
            raise WireAbort(f"all_reduce forward: {tokens} tokens here, {total} over {self._ranks} ranks")
        return [e & ERROR_MASK or 1 if e else 0 for e in summed]

    def write_back(self, device: Sequence[int], host: Sequence[int]) -> Copy:
        """Device pages to host pages; the bytes are read when the copy runs, not when it is submitted."""
        return self._copy("write", self.device, tuple(device), self.host, tuple(host))

    def load(self, host: Sequence[int], device: Sequence[int]) -> Copy:
        """Host pages to device pages."""
        return self._copy("load", self.host, tuple(host), self.device, tuple(device))

    def _copy(
        self, stream: str, source: list[int], read: tuple[int, ...], target: list[int], write: tuple[int, ...]
    ) -> Copy:
        last, ledger = self.layers - 1, self.ledger

        def run(layer: int) -> None:
            if layer == last:
                for a, b in zip(read, write, strict=True):
                    target[b] = source[a]

        if ledger is None:
            return Copy(len(read), self.layers, run)
        layer_done = claim_copy(ledger, stream, read, write, self.layers)

        def checked(layer: int) -> None:
            run(layer)
            layer_done(layer)

        return Copy(len(read), self.layers, checked)

    def _check_owner(self, items: list[ForwardItem]) -> None:
        assert self.ledger is not None
        for item in items:
            first = item.start // self._page
            self.ledger[0].compute(self.layers - 1, item.pages, item.pages[first:])

    def read_host(self, page: int) -> bytes:
        """Eight bytes: the page's hash, salted with what this rank holds of it."""
        return (self.host[page] ^ self._salt).to_bytes(8, "little")

    def write_host(self, page: int, data: bytes) -> None:
        """Fill a page from L3.

        Raises:
            ValueError: the data has another size than a page.
        """
        if len(data) != 8:
            raise ValueError(f"{len(data)} bytes for a page of 8")
        self.host[page] = int.from_bytes(data, "little") ^ self._salt

    def page_bytes(self) -> int:
        """What a page would take with real KV; decides how many fit into ``host_bytes``."""
        return self._bytes
