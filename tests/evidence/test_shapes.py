"""The shape arithmetic, on every published number and on made ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hicache_doctor.evidence import shapes
from hicache_doctor.evidence.shapes import arithmetic, local_heads
from hicache_doctor.signatures.load import load
from tests.evidence.filled import log, prefills, raised, store

MODELS = load(()).models


def view(own: int, dim: int, size: int) -> str:
    return f"shape '[{own}, -1, {dim}]' is invalid for input of size {size}"


# facts/formats.md, section 4; `heads` are the local ones of the published deployment
@pytest.mark.parametrize(
    ("own", "dim", "size", "heads", "received", "foreign"),
    [
        pytest.param(3013, 128, 8192000, 64, 1000, True, id="P03"),
        pytest.param(65, 64, 827392, 64, 202, True, id="P04"),
        pytest.param(2048, 64, 8368128, 64, 2043, True, id="N02"),
    ],
)
def test_published_numbers(own: int, dim: int, size: int, heads: int, received: int, foreign: bool) -> None:
    a = arithmetic(view(own, dim, size), [heads], set())
    assert a is not None
    assert (a.own, a.heads, a.received, a.foreign, a.too_small) == (own, heads, received, foreign, False)
    assert a.heads_known


def test_far_too_few_elements_are_no_foreign_batch() -> None:
    # N01: 256 elements where one token of one head is 64
    a = arithmetic(view(65, 64, 256), [64], set())
    assert a is not None
    assert a.too_small and not a.foreign and a.received is None


@pytest.mark.parametrize(
    "message",
    [
        # N26: no -1 slot, a layout error
        "shape '[656, 576]' is invalid for input of size 9",
        "mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)",
        "",
        view(0, 128, 8192000),
        view(3, 0, 8192000),
    ],
)
def test_other_shape_errors_say_nothing(message: str) -> None:
    assert arithmetic(message, [64], set()) is None


@pytest.mark.parametrize(
    ("message", "own", "received"),
    [
        (
            "The size of tensor a (48) must match the size of tensor b (112) at non-singleton dimension 0",
            48,
            112,
        ),
        ("Size mismatch for shape#0('batch_size'): expected 7 but got 9", 7, 9),
        ("Size mismatch for shape#0(batch_size): expected 9 but got 9", 9, 9),
        (
            "shape mismatch: value tensor of shape [112, 8, 128] cannot be broadcast to indexing result of shape"
            " [48, 8, 128]",
            48,
            112,
        ),
    ],
)
def test_other_words_for_a_foreign_batch(message: str, own: int, received: int) -> None:
    a = arithmetic(message, [64], set())
    assert a is not None
    assert (a.own, a.received, a.foreign) == (own, received, own != received)
    assert not a.heads_known and a.heads is None


def test_a_mismatch_in_another_dimension_is_no_batch() -> None:
    text = "The size of tensor a (48) must match the size of tensor b (112) at non-singleton dimension 1"
    assert arithmetic(text, [64], set()) is None


@pytest.mark.parametrize(
    ("settings", "model_class", "heads"),
    [
        ({"model_path": "Qwen/Qwen3-32B"}, None, [64]),
        ({"model_path": "Qwen/Qwen3-32B", "tp_size": 4}, None, [16, 64]),
        ({"model_path": "/m/deepseek-ai/DeepSeek-V3.2", "tp_size": "8"}, None, [16, 128, 8, 64]),
        ({"model_path": "/models/x", "tp_size": 8, "attn_cp_size": 8}, "DeepseekV32ForCausalLM", [128, 64]),
        ({"model_path": "Qwen3-30B-A3B", "tp_size": 8, "dp_size": 2, "enable_dp_attention": True}, None, [8, 32]),
        ({"model_path": "Qwen3-30B-A3B", "tp_size": 8, "dp_size": 2, "enable_dp_attention": False}, None, [4, 32]),
        ({"model_path": "nobody/knows"}, None, []),
        ({"model_path": None, "tp_size": "auto"}, None, []),
        ({"model_path": "Qwen3-0.6B", "tp_size": 64}, None, [16]),
    ],
)
def test_local_heads(settings: dict[str, Any], model_class: str | None, heads: list[int]) -> None:
    assert local_heads(settings, MODELS, model_class) == heads


def test_what_another_stage_printed_decides_between_heads() -> None:
    # GIVEN 64 or 32 heads, both of which divide
    a = arithmetic(view(100, 128, 64 * 128 * 300), [64, 32], {600})
    # THEN the one whose token count was really sent wins
    assert a is not None and (a.heads, a.received) == (32, 600)


def test_an_unknown_model_is_judged_by_what_no_head_count_explains() -> None:
    impossible = arithmetic(view(1000, 128, 1000 * 128 + 128), [], set())
    assert impossible is not None and impossible.foreign and impossible.heads is None
    possible = arithmetic(view(1000, 128, 1000 * 128 * 3), [], set())
    assert possible is not None and not possible.foreign
    printed = arithmetic(view(1000, 128, 64 * 128 * 777), [], {777})
    assert printed is not None and printed.foreign and printed.received == 777


@given(
    st.sampled_from([64, 128, 192]),
    st.sampled_from([8, 16, 32, 64, 128]),
    st.integers(1, 5000),
    st.integers(1, 5000),
)
def test_with_known_heads_a_batch_is_foreign_iff_it_was_made_so(dim: int, heads: int, own: int, sent: int) -> None:
    size = sent * heads * dim
    assume(size >= min(own, 64) * dim)
    a = arithmetic(view(own, dim, size), [heads], set())
    assert a is not None
    assert (a.received, a.foreign, a.heads_known) == (sent, own != sent, True)


@given(st.text(max_size=80), st.lists(st.integers(1, 300), max_size=3), st.sets(st.integers(0, 9), max_size=3))
def test_any_message_is_survived(message: str, heads: list[int], upstream: set[int]) -> None:
    arithmetic(message, heads, upstream)


def test_the_table() -> None:
    # GIVEN a foreign batch of whole pages, printed by PP0 before PP1 failed, and an error of another kind
    rows = [
        *prefills("PP0", [(1, 64, 0), (2, 3064, 16)]),
        *prefills("PP1", [(1, 64, 0), (1, 3000, 16)]),
        raised("PP1", f"RuntimeError: {view(3000, 128, 3064 * 64 * 128)}", ts=2000.0, line=9),
        raised("PP0", "RuntimeError: shapes differ", ts=2001.0),
        log("load_weight_end", "PP0", model_class="Qwen3ForCausalLM"),
    ]
    with store(rows) as s:
        shapes.derive(s, {"model_path": "Qwen/Qwen3-32B", "page_size": 64}, MODELS)
        (row,) = s.rows("SELECT * FROM shape_error")
    assert (row["rank"], row["line"], row["own"], row["received"], row["delta"]) == ("PP1", 9, 3000, 3064, 64)
    assert row["page_multiple"] and row["seen_upstream"] and row["foreign_batch"] and row["heads_known"]
    assert row["arithmetic"] == f"{3064 * 8192} / (64 x 128) = 3064 tokens arrived, 3000 were expected"


def test_the_table_of_an_empty_store() -> None:
    with store() as s:
        shapes.derive(s, {}, MODELS)
        assert s.rows("SELECT * FROM shape_error") == []
