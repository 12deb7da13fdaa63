"""The transformer: one function however it is split, chunked or cached; the oracle says which."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # tensors are tiny: threads only wait for each other on a busy machine

from hicache_doctor.errors import UsageError  # noqa: E402
from hicache_doctor.runtime.config import Config, ModelShape  # noqa: E402
from hicache_doctor.runtime.model.base import ForwardBatch  # noqa: E402
from hicache_doctor.runtime.model.ledger import OwnershipError  # noqa: E402
from hicache_doctor.runtime.model.open import open_model  # noqa: E402
from hicache_doctor.runtime.model.oracle import differences, uncached, uncached_tokens  # noqa: E402
from hicache_doctor.runtime.model.transformer import TransformerModel  # noqa: E402
from hicache_doctor.runtime.world import Proxy, Rand, Topology  # noqa: E402
from tests.runtime.lone_world import LoneWorld, batch, item, run_copy  # noqa: E402

KINDS = ["mha", "mla"]
SMALL = {"device_pages": 24, "host_pages": 24}


def prompt(n: int, seed: int = 3) -> list[int]:
    rand = Rand(seed)
    return [1 + rand.below(508) for _ in range(n)]


class Meeting:
    """An all-reduce between threads."""

    def __init__(self, n: int) -> None:
        self.parts: list[Any] = [None] * n
        self.barrier = threading.Barrier(n)

    def of(self, rank: int) -> Any:
        def reduce(tensor: Any) -> Any:
            self.parts[rank] = tensor
            self.barrier.wait()
            total = sum(self.parts[1:], self.parts[0])
            self.barrier.wait()
            return total

        return reduce


class Grid:
    """All ranks of a grid, a stage after another, the TP ranks of a stage in threads."""

    def __init__(self, kind: str, pp: int = 1, tp: int = 1, **more: Any) -> None:
        topo = Topology(pp_size=pp, tp_size=tp)
        self.config = Config(topo=topo, model=ModelShape(kind=kind), **{**SMALL, **more})
        self.stages = []
        for p in range(pp):
            meeting = Meeting(tp)
            stage = []
            for t in range(tp):
                world = LoneWorld(topo, topo.rank(p, t))
                world.reduce_tensor = meeting.of(t)
                stage.append(TransformerModel(self.config, world, keep_logits=True))
            self.stages.append(stage)
        self.last = self.stages[-1][0]

    def forward(self, work: ForwardBatch) -> list[int]:
        out: list[Any] = [None] * len(self.stages[0])
        with ThreadPoolExecutor(len(out)) as pool:
            for stage in self.stages:
                out = list(pool.map(lambda model, proxy: model.forward(work, proxy), stage, out))
        assert all(o == out[0] for o in out)
        return out[0]

    def generate(
        self, tokens: Sequence[int], n: int, pages: Sequence[int], cuts: Sequence[int] = (), start: int = 0
    ) -> list[int]:
        """Prefill in pieces that end at ``cuts``, then decode."""
        rows = list(tokens)
        for end in cuts:
            self.forward(batch(item(1, rows[:end], start, pages, 4, sample=False)))
            start = end
        while len(rows) < len(tokens) + n:
            rows += self.forward(batch(item(1, rows, start, pages, 4)))
            start = len(rows) - 1
        return rows[len(tokens) :]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("pp", "tp"), [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)])
def test_every_split_is_the_same_function(kind: str, pp: int, tp: int) -> None:
    tokens = prompt(23)
    grid = Grid(kind, pp, tp)
    want = uncached_tokens(grid.config, tokens, 5)
    assert tuple(grid.generate(tokens, 5, range(1, 9))) == want.tokens
    assert [float(s.logits.max()) for s in grid.last.samples] == pytest.approx(want.logits, abs=1e-9)
    assert [s.margin for s in grid.last.samples] == pytest.approx(want.margins, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuts", [(8,), (3, 16, 17), (4, 8, 12, 16, 20)])
def test_chunked_prefill_is_whole_prefill(kind: str, cuts: tuple[int, ...]) -> None:
    tokens = prompt(23)
    whole, parts = Grid(kind, 2), Grid(kind, 2)
    assert whole.generate(tokens, 4, range(1, 9)) == parts.generate(tokens, 4, [7, 3, 9, 1, 20, 2, 11, 12], cuts)
    for a, b in zip(whole.last.samples, parts.last.samples, strict=True):
        assert a.logits is not None
        torch.testing.assert_close(a.logits, b.logits, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_that_went_to_host_and_l3_and_back_is_the_prefix(kind: str) -> None:
    shared = prompt(12)
    first, second = [*shared, *prompt(7, 4)], [*shared, *prompt(9, 5)]
    grid = Grid(kind, 2, 2, debug=True)
    grid.generate(first, 3, range(1, 7))
    for model in (m for stage in grid.stages for m in stage):
        run_copy(model.write_back([1, 2, 3], [4, 5, 6]))
        for a, b in ((4, 14), (5, 15), (6, 16)):
            model.write_host(b, model.read_host(a))
        model.device.zero_()
        run_copy(model.load([14, 15, 16], [20, 21, 22]))
    grid.last.samples.clear()
    tokens = grid.generate(second, 3, [20, 21, 22, 8, 9, 10], start=12)
    want = uncached_tokens(grid.config, second, 3)
    assert tuple(tokens) == want.tokens
    assert [s.margin for s in grid.last.samples] == pytest.approx(want.margins, abs=1e-9)


def test_a_mixed_batch_is_its_requests_one_by_one() -> None:
    grid = Grid("mha", 2)
    a, b, c = prompt(9, 1), prompt(14, 2), prompt(5, 3)
    grid.forward(batch(item(2, b[:13], 0, [5, 6, 7, 8], 4, sample=False)))
    tokens = grid.forward(
        batch(
            item(1, a, 0, [1, 2, 3], 4),
            item(2, b, 13, [5, 6, 7, 8], 4),
            item(3, c, 0, [9, 10], 4, sample=False),
        )
    )
    assert tokens == [w.tokens[0] for w in uncached(grid.config, [a, b], [1, 1])]
    assert [(s.rid, s.position) for s in grid.last.samples] == [(1, 9), (2, 14)]


def test_a_foreign_page_gives_other_tokens() -> None:
    grid = Grid("mha", 2)
    tokens = prompt(17)
    want = grid.generate(tokens, 4, range(1, 7))
    grid.stages[0][0].device[:, 4 * 2 : 4 * 3] = grid.stages[0][0].device[:, 4 * 3 : 4 * 4]
    got = grid.generate(tokens, 4, range(1, 7), start=16)
    found = differences(grid.config, [tokens, tokens], [want, got])
    assert [d.request for d in found] == [1]
    assert found[0].behind > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [3, 16, 4])
def test_another_length_breaks_in_torch_itself(kind: str, tokens: int) -> None:
    grid = Grid(kind, 2)
    proxy = grid.stages[0][0].forward(batch(item(1, prompt(tokens), 0, [1, 2, 3, 4], 4)), None)
    assert isinstance(proxy, Proxy)
    dim = 16 if kind == "mla" else 8
    with pytest.raises(RuntimeError) as caught:
        grid.stages[1][0].forward(batch(item(1, prompt(8), 0, [1, 2, 3, 4], 4)), proxy)
    heads = -1 if tokens != 16 else 4  # twice the tokens would pass as twice the heads
    if tokens == 4:
        heads = 4  # half the tokens as half the heads
    assert str(caught.value) == f"shape '[8, {heads}, {dim}]' is invalid for input of size {tokens * 4 * dim}"
    names = [e.name for e in caught.traceback]
    assert names[-5:-1] == [
        "forward",
        "forward",
        "self_attn",
        "forward_absorb_prepare" if kind == "mla" else "forward_normal_prepare",
    ]


def test_an_idle_batch_passes_through() -> None:
    first, second = (stage[0] for stage in Grid("mha", 2).stages)
    proxy = first.forward(batch(), None)
    assert isinstance(proxy, Proxy) and proxy.tokens == 0
    assert second.forward(batch(), proxy) == []
    with pytest.raises(RuntimeError, match="is invalid for input of size 96"):
        second.forward(batch(), first.forward(batch(item(1, prompt(3), 0, [1], 4)), None))


def test_a_page_of_a_stage_with_other_layers_does_not_fit() -> None:
    shape = ModelShape(kind="mha", layer_partition=(3, 1))
    config = Config(topo=Topology(pp_size=2), model=shape, **SMALL)
    a, b = (TransformerModel(config, LoneWorld(config.topo, r)) for r in (0, 1))
    assert a.page_bytes() == 3 * b.page_bytes() == len(a.read_host(1)) == 3 * 4 * 64 * 8
    with pytest.raises(ValueError, match="for a page of"):
        b.write_host(1, a.read_host(1))


def test_layers_are_waited_for_one_by_one_and_debug_sees_who_does_not() -> None:
    grid = Grid("mha", 1, debug=True)
    model, tokens = grid.last, prompt(10)
    grid.forward(batch(item(1, tokens, 0, [1, 2, 3], 4)))
    run_copy(model.write_back([1, 2], [5, 6]))
    copy = model.load([5, 6], [8, 9])
    asked: list[int] = []

    def wait(layer: int) -> None:
        asked.append(layer)
        copy.run(layer)

    work = batch(item(2, tokens, 8, [8, 9, 10], 4))
    work.wait_layer = wait
    assert grid.forward(work) == list(uncached_tokens(grid.config, tokens, 1).tokens)
    assert asked == [0, 1, 2, 3]
    late = model.load([5, 6], [8, 9])
    late.run(0)
    with pytest.raises(OwnershipError, match="compute reads device page 8 layer 1 while load is writing it"):
        grid.forward(batch(item(2, tokens, 8, [8, 9, 10], 4)))


def test_the_oracle_checks_answers_as_it_makes_them() -> None:
    config = Config(model=ModelShape(kind="mla"))
    prompts = [prompt(5 + i, i) for i in range(7)]
    counts = [i % 3 for i in range(7)]
    answers = uncached(config, prompts, counts, batch=3)
    assert [len(a.tokens) for a in answers] == counts
    assert differences(config, prompts, [a.tokens for a in answers], batch=2) == []
    wrong = [list(a.tokens) for a in answers]
    wrong[5][1] = wrong[5][1] % 500 + 1
    found = differences(config, prompts, wrong)
    assert [(d.request, d.index, d.expected) for d in found] == [(5, 1, answers[5].tokens[1])]


def test_open_model_says_what_it_cannot_make() -> None:
    topo = Topology(tp_size=8)
    with pytest.raises(UsageError, match="kinds are null, mha, mla"):
        open_model(Config(model=ModelShape(kind="gqa")), LoneWorld())
    with pytest.raises(UsageError, match="4 heads do not divide by tp_size 8"):
        open_model(Config(topo=topo, model=ModelShape(kind="mha")), LoneWorld(topo))
