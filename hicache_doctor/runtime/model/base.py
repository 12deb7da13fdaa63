"""What the protocol asks of a model and of the KV memory behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hicache_doctor.runtime.world import Copy, Proxy


@dataclass(slots=True)
class ForwardItem:
    """One request of a batch.

    ``ids``: the tokens to compute, at positions ``start`` and up. ``pages``: device page numbers that hold positions 0
    to ``start + len(ids) - 1``. ``hashes``: chain hashes at the end of each full page of those positions, ``tail`` the
    chain hash at the last position and ``before`` the one at ``start - 1`` (0 at the beginning). ``sample``: whether
    the last position yields a token (not for an unfinished chunk).
    """

    rid: int
    ids: Sequence[int]
    start: int
    pages: Sequence[int]
    hashes: Sequence[int]
    before: int
    tail: int
    sample: bool


@dataclass(slots=True)
class ForwardBatch:
    """One microbatch; ``ordinal`` counts the rank's batches, ``tokens`` is the sum of the extend lengths.

    ``wait_layer`` blocks until what is being loaded back has reached that layer of the stage (0-based).
    """

    ordinal: int
    items: list[ForwardItem]
    tokens: int
    decode: bool
    wait_layer: Callable[[int], None]


class Model(Protocol):
    """One stage's layers, with the device and host memory of their KV.

    Page numbers are those of the pools; page 0 is never handed out. ``first`` and ``last`` say which stage this is.
    """

    layers: int
    first: bool
    last: bool

    def forward(self, batch: ForwardBatch, proxy: Proxy | None) -> Proxy | list[int]:
        """Compute the batch: a proxy for the next stage, or on the last stage one token for each item that samples.

        ``proxy`` is what the stage before sent, None on the first stage. Its token count is *not* trusted to fit: the
        view of the hidden states with this stage's own extend length is what fails in form A.
        """

    def write_back(self, device: Sequence[int], host: Sequence[int]) -> Copy:
        """The copy of device pages to host pages."""

    def load(self, host: Sequence[int], device: Sequence[int]) -> Copy:
        """The copy of host pages to device pages, layer by layer."""

    def read_host(self, page: int) -> bytes:
        """The bytes of one host page, all layers of the stage (what goes into L3)."""

    def write_host(self, page: int, data: bytes) -> None:
        """Fill a host page with bytes that came from L3."""

    def page_bytes(self) -> int:
        """Bytes of one page of this stage, all layers."""
