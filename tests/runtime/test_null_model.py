"""The null model: what it notices, what it says, what it hands on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hicache_doctor.errors import UsageError
from hicache_doctor.probes.kinds import Kind
from hicache_doctor.runtime.config import Config, ModelShape
from hicache_doctor.runtime.model.ledger import OwnershipError
from hicache_doctor.runtime.model.null import NullModel
from hicache_doctor.runtime.world import Proxy, Topology, WireAbort
from tests.runtime.lone_world import LoneWorld, batch, chain, item, run_copy

PP2 = Topology(pp_size=2)
TOKENS = list(range(1, 12))  # two full pages and three tokens


def stage(rank: int = 0, config: Config | None = None) -> tuple[NullModel, LoneWorld]:
    config = config or Config(topo=PP2)
    world = LoneWorld(config.topo, rank)
    return NullModel(config, world), world


def test_a_prefix_is_read_where_it_was_written() -> None:
    model, world = stage()
    model.forward(batch(item(1, TOKENS, 0, [3, 5, 9], 4)), None)
    assert [model.device[p] for p in (3, 5, 9)] == [chain(TOKENS)[i] for i in (3, 7, 10)]
    model.forward(batch(item(1, [*TOKENS, 50], 11, [3, 5, 9], 4)), None)
    assert model.device[9] == chain([*TOKENS, 50])[-1]
    assert world.records == []


def test_a_foreign_page_is_recorded_once_and_changes_every_token_after_it() -> None:
    model, world = stage(0, Config(topo=Topology()))
    good = model.forward(batch(item(1, TOKENS, 0, [3, 5, 9], 4)), None)
    model.device[5] ^= 0xBAD
    bad = [model.forward(batch(item(1, TOKENS, 8, [3, 5, 9], 4)), None) for _ in range(2)]
    assert good != bad[0] == bad[1]
    mask = (1 << 63) - 1
    right = chain(TOKENS)[7]
    assert world.records == [(Kind.FOREIGN_PAGE, 1, 1, (right ^ 0xBAD) & mask, right & mask, 0)]


def test_two_swapped_pages_do_not_cancel_out() -> None:
    model, world = stage(0, Config(topo=Topology()))
    good = model.forward(batch(item(1, TOKENS, 0, [3, 5, 9], 4)), None)
    model.device[3], model.device[5] = model.device[5], model.device[3]
    assert model.forward(batch(item(1, TOKENS, 8, [3, 5, 9], 4)), None) != good
    assert len(world.records) == 2


def test_a_wrong_partial_page_is_seen() -> None:
    model, world = stage()
    model.forward(batch(item(1, TOKENS, 0, [3, 5, 9], 4)), None)
    model.device[9] = 7
    model.forward(batch(item(1, [*TOKENS, 50], 11, [3, 5, 9], 4)), None)
    assert [r[2] for r in world.records] == [2]


def test_both_stages_and_one_stage_give_the_same_token() -> None:
    one, _ = stage(0, Config(topo=Topology()))
    first, _ = stage(0)
    second, _ = stage(1)
    work = batch(item(1, TOKENS, 0, [3, 5, 9], 4), item(2, TOKENS[::-1], 0, [1, 2, 4], 4, sample=False))
    proxy = first.forward(work, None)
    assert isinstance(proxy, Proxy)
    tokens = second.forward(work, proxy)
    assert tokens == one.forward(work, None)
    assert isinstance(tokens, list) and len(tokens) == 1 and 1 <= tokens[0] < 509


def test_an_error_of_the_first_stage_reaches_the_last() -> None:
    first, _ = stage(0)
    second, world = stage(1)
    work = batch(item(1, TOKENS, 0, [3, 5, 9], 4))
    good = second.forward(work, first.forward(work, None))
    first.device[3] ^= 1
    again = batch(item(1, TOKENS, 8, [3, 5, 9], 4))
    assert second.forward(again, first.forward(again, None)) != good
    assert world.records == []


def test_the_same_damage_on_both_stages_does_not_cancel_out() -> None:
    first, _ = stage(0)
    second, _ = stage(1)
    work = batch(item(1, TOKENS, 0, [3, 5, 9], 4))
    good = second.forward(work, first.forward(work, None))
    for model in (first, second):
        model.device[5] ^= 0xF00
    again = batch(item(1, TOKENS, 8, [3, 5, 9], 4))
    assert second.forward(again, first.forward(again, None)) != good


def test_another_length_breaks_with_torchs_words() -> None:
    first, _ = stage(0)
    second, _ = stage(1)
    proxy = first.forward(batch(item(1, TOKENS, 8, [3, 5, 9], 4)), None)
    assert isinstance(proxy, Proxy)
    with pytest.raises(RuntimeError) as caught:
        second.forward(batch(item(1, TOKENS, 0, [3, 5, 9], 4)), proxy)
    assert str(caught.value) == "shape '[11, -1, 8]' is invalid for input of size 96"
    names = [e.name for e in caught.traceback]
    assert names[-3:] == ["forward", "self_attn", "forward_normal_prepare"]


def test_a_proxy_of_other_requests_with_as_many_tokens_gives_a_wrong_token() -> None:
    first, _ = stage(0)
    second, _ = stage(1)
    mine, other = batch(item(1, TOKENS, 0, [3, 5, 9], 4)), batch(item(2, TOKENS[::-1], 0, [1, 2, 4], 4))
    good = second.forward(mine, first.forward(mine, None))
    assert second.forward(mine, first.forward(other, None)) != good
    split = batch(item(2, TOKENS[:5], 0, [1, 2], 4), item(3, TOKENS[:6], 0, [4, 6], 4))
    assert len(second.forward(split, first.forward(mine, None))) == 2


def test_one_ranks_error_is_the_error_of_all_and_other_lengths_abort() -> None:
    config = Config(topo=Topology(tp_size=2))
    model, world = stage(0, config)
    work = batch(item(1, TOKENS, 0, [3, 5, 9], 4))
    world.reduce = lambda vec: tuple(2 * x for x in vec)
    good = model.forward(work, None)
    world.reduce = lambda vec: (2 * vec[0], vec[1] + 99)
    assert model.forward(work, None) != good
    world.reduce = lambda vec: (vec[0] + 7, *vec[1:])
    with pytest.raises(WireAbort):
        model.forward(work, None)


def test_pages_travel_through_host_memory() -> None:
    model, world = stage()
    model.forward(batch(item(1, TOKENS, 0, [3, 5, 9], 4)), None)
    run_copy(model.write_back([3, 5], [11, 12]))
    model.device[3] = model.device[5] = 0
    copy = model.load([11, 12], [7, 8])
    assert (copy.pages, copy.layers) == (2, 2)
    copy.run(0)
    assert model.device[7] == 0  # content is there with the last layer only: too early a read is seen
    copy.run(1)
    model.forward(batch(item(2, TOKENS, 8, [7, 8, 9], 4)), None)
    assert world.records == []


@pytest.mark.parametrize(
    ("kind", "ranks", "same"),
    [
        ("null", (0, 1), False),
        ("null", (0, 2), False),
        ("null", (1, 1), True),
        ("mla", (0, 1), True),
        ("mla", (0, 2), False),
    ],
)
def test_in_l3_a_page_belongs_to_a_layer_range_and_a_tp_rank(kind: str, ranks: tuple[int, int], same: bool) -> None:
    config = Config(topo=Topology(pp_size=2, tp_size=2), model=ModelShape(kind=kind))
    writer, reader = (stage(r, config)[0] for r in ranks)
    writer.host[4] = chain(TOKENS)[3]
    reader.write_host(6, writer.read_host(4))
    assert (reader.host[6] == writer.host[4]) is same


def test_a_page_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="3 bytes"):
        stage()[0].write_host(1, b"abc")


def test_host_bytes_make_fewer_pages_where_there_are_more_layers() -> None:
    config = Config(topo=PP2, host_bytes=1 << 20, model=ModelShape(layers=6, layer_partition=(4, 2)))
    a, b = stage(0, config)[0], stage(1, config)[0]
    assert a.page_bytes() == 2 * b.page_bytes()
    assert len(b.host) == pytest.approx(2 * len(a.host), abs=2)


@pytest.mark.parametrize(("layers", "parts"), [(1, ()), (4, (4, 0)), (4, (1, 2)), (4, (1, 1, 2))])
def test_a_split_that_does_not_fit_is_refused(layers: int, parts: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="cannot be split"):
        stage(0, Config(topo=PP2, model=ModelShape(layers=layers, layer_partition=parts)))


def test_debug_sees_two_streams_on_one_page() -> None:
    model, _ = stage(0, replace(Config(topo=PP2), debug=True))
    work = batch(item(1, TOKENS, 0, [3, 5, 9], 4))
    model.forward(work, None)
    pending = model.write_back([3, 5], [11, 12])
    with pytest.raises(OwnershipError, match="compute writes device page 3 layer 1 while write is reading it"):
        model.forward(work, None)
    with pytest.raises(OwnershipError, match="load writes device page 5"):
        model.load([20], [5])
    run_copy(pending)
    model.forward(work, None)
    load = model.load([11], [7])
    with pytest.raises(OwnershipError, match="compute reads device page 7"):
        model.forward(batch(item(2, TOKENS, 8, [7, 5, 9], 4)), None)
    run_copy(load)
    model.forward(batch(item(2, TOKENS, 8, [7, 5, 9], 4)), None)
