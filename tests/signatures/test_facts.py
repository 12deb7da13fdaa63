"""What is known of the deployment: settings by how direct their source is, release, topology, tree class."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise, permutations

import pytest
from small_incident import bound, gathered, setting

from hicache_doctor.evidence.rows import Setting
from hicache_doctor.signatures.facts import shown_settings

SOURCES = (
    "option",
    "server_args line",
    "server_info",
    "pip",
    "version list",
    "command line",
    "image tag",
    "environment",
)


def version_of(*settings: Setting) -> str | None:
    return gathered(settings).version_text


# -- settings -----------------------------------------------------------------------------------------------------


def test_the_most_direct_source_wins_wherever_it_stands() -> None:
    for first, second in pairwise(SOURCES):
        for order in permutations([(first, "1", "z.log"), (second, "2", "a.log")]):
            rows = [setting("page_size", value, source, artifact) for source, value, artifact in order]
            assert gathered(rows).settings["page_size"] == 1, (first, second)


def test_an_option_beats_everything() -> None:
    rows = [setting("pp_size", str(i), source) for i, source in enumerate(SOURCES, 2)]
    assert gathered([*rows, setting("pp_size", "64", "option", "(command line)")]).settings["pp_size"] == 64


def test_of_equal_sources_the_first_stands() -> None:
    rows = [setting("pp_size", "4", line=9), setting("pp_size", "2", line=3), setting("pp_size", "8", artifact="b.log")]
    assert gathered(rows).settings["pp_size"] == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2), ("-1", -1), ("1.5", 1.5), ("True", True), ("false", False), ("None", None), ("null", None),
        ("write_through", "write_through"), ("", ""), ("0x10", "0x10"), ("1e9", "1e9"), ("9" * 40, "9" * 40),
    ],
)  # fmt: skip
def test_values_become_json_values(text: str, value: object) -> None:
    assert gathered([setting("hicache_size", text)]).settings["hicache_size"] == value


def test_a_whole_command_says_that_an_absent_flag_has_its_default() -> None:
    model = setting("model_path", "m", "command line")
    whole = gathered([model]).settings
    assert (whole["enable_hierarchical_cache"], whole["pp_size"], whole["tp_size"]) == (False, 1, 1)
    cut = gathered([model, setting("command_cut", "True", "command line")]).settings
    assert "enable_hierarchical_cache" not in cut and "pp_size" not in cut
    stated = gathered([model, setting("pp_size", "4", "command line")]).settings
    assert (stated["pp_size"], stated["tp_size"]) == (4, 1)


def test_what_a_verdict_shows() -> None:
    shown = shown_settings(gathered([setting("pp_size", "2"), setting("api_key", "***"), setting("page_size", "64")]))
    assert shown == {"pp_size": 2, "page_size": 64, "hicache_storage_backend": None, "sglang_version": None}


# -- release ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "source", "text"),
    [
        ("0.5.14", "image tag", "0.5.14"),
        ("v0.5.12-cu129", "image tag", "0.5.12"),
        ("0.5.13.post1", "pip", "0.5.13.post1"),
        ("0.5.16", "option", "0.5.16"),
        ("0.5.12.post2.dev908+g2c8357f79", "version list", "0.5.12.post2.dev908"),
        ("latest", "image tag", None),
        ("0.0.0.dev0", "pip", None),
    ],
)
def test_a_stated_release(value: str, source: str, text: str | None) -> None:
    assert version_of(setting("sglang_version", value, source)) == text


def test_an_option_beats_pip_and_pip_an_image() -> None:
    image = setting("sglang_version", "0.5.12", "image tag")
    pip = setting("sglang_version", "0.5.13", "pip")
    assert version_of(image, pip) == "0.5.13"
    assert version_of(image, pip, setting("sglang_version", "0.5.14", "option")) == "0.5.14"


BOUNDED = "(bounded by the log's vocabulary)"


@pytest.mark.parametrize(
    ("specs", "text"),
    [
        (["<0.5.19"], f"<= 0.5.18 {BOUNDED}"),
        ([">=0.5.19"], f">= 0.5.19 {BOUNDED}"),
        (["<0.5.17", ">=0.5.13"], f"0.5.13 … 0.5.16 {BOUNDED}"),
        ([">=0.5.13,<0.5.18", "<0.5.19", ">=0.5.15"], f"0.5.15 … 0.5.17 {BOUNDED}"),
        ([">=0.5.17", "<0.5.18"], "0.5.17"),
        (["<0.5.17", ">=0.5.19"], None),  # a build that prints both is nobody's release
        (["<0.5.3"], None),
        ([">=0.5.3"], None),
        ([], None),
    ],
)
def test_the_vocabulary_bounds_an_unstated_release(specs: list[str], text: str | None) -> None:
    rows = [bound(s, f"{i}.log") for i, s in enumerate(specs)]
    assert version_of(*rows) == text
    assert version_of(*reversed(rows)) == text


def test_a_stated_release_beats_the_bounds_and_an_unknown_one_does_not() -> None:
    assert version_of(bound(">=0.5.19"), setting("sglang_version", "0.5.14", "pip")) == "0.5.14"
    assert version_of(bound(">=0.5.19"), setting("sglang_version", "latest", "image tag")) == f">= 0.5.19 {BOUNDED}"


def test_a_bound_answers_only_what_it_decides_and_is_cited() -> None:
    facts = gathered([bound(">=0.5.13"), bound("<0.5.17")])
    assert facts.version_in(">=0.5.13") is True
    assert facts.version_in("<0.5.13") is False
    assert facts.version_in("<0.5.15") is None
    assert {c.quote for c in facts.version_citations} == {"a line of >=0.5.13", "a line of <0.5.17"}
    assert "sglang_release_bound" not in facts.settings


# -- topology -----------------------------------------------------------------------------------------------------


def sizes(pp: object = None, tp: object = None, dp: object = None, attention: bool = False) -> list[Setting]:
    given = {"pp_size": pp, "tp_size": tp, "dp_size": dp}
    rows = [setting(k, str(v)) for k, v in given.items() if v is not None]
    return [*rows, setting("enable_dp_attention", "True")] if attention else rows


@pytest.mark.parametrize(
    ("settings", "seen", "expected", "missing"),
    [
        (sizes(2, 2), ["PP0 TP0", "PP1 TP1"], 4, ["PP0 TP1", "PP1 TP0"]),
        (sizes(2, 1), ["PP0"], 2, ["PP1"]),
        (sizes(1, 4), ["TP0", "TP3"], 4, ["TP1", "TP2"]),
        (sizes(2, 1), ["PP0", "PP1"], 2, []),
        (sizes(1, 1), [], 1, []),
        (sizes(2, 2), [], 4, ["PP0 TP0", "PP0 TP1", "PP1 TP0", "PP1 TP1"]),
        (sizes(2, 2), ["rank 2"], 4, ["PP0 TP0", "PP0 TP1", "PP1 TP1"]),
        (sizes(2, 1, 2), ["DP0 PP0", "DP1 PP1"], 4, ["DP0 PP1", "DP1 PP0"]),
        # Attention groups share the tensor-parallel ranks: no rank is added.
        (sizes(2, 2, 2, attention=True), ["DP0 PP0 TP0", "DP1 PP0 TP1", "DP0 PP1 TP0"], 4, ["PP1 TP1"]),
        (sizes(1, 2, 2, attention=True), ["DP0 TP0", "DP1 TP1"], 2, []),
        (sizes(2), ["PP0"], None, []),
        (sizes(None, 8), ["TP0"], None, []),
        (sizes("None", 2), [], None, []),
        (sizes(0, 2), [], None, []),
        (sizes("True", 2), [], None, []),
    ],
)
def test_ranks_that_no_artefact_shows(
    settings: Iterable[Setting], seen: list[str], expected: int | None, missing: list[str]
) -> None:
    facts = gathered(settings, seen)
    assert (facts.expected, facts.missing) == (expected, missing)
    assert set(facts.seen) == set(seen)


@pytest.mark.parametrize(("pp", "tp"), [(1_000_000, 1_000_000), (64, 65), ("9" * 15, "9" * 15)])
def test_huge_sizes_are_counted_and_never_listed(pp: object, tp: object) -> None:
    facts = gathered(sizes(pp, tp), ["PP0 TP0"])
    assert facts.expected == int(str(pp)) * int(str(tp))
    assert facts.missing == []
    assert len(gathered(sizes(64, 64), ["PP0 TP0"]).missing) == 4095


# -- tree class ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "tree"),
    [
        ([setting("sglang_version", "0.5.12", "pip")], "HiRadixCache"),
        ([setting("sglang_version", "0.5.19", "pip")], "UnifiedRadixCache"),
        ([bound(">=0.5.19")], "UnifiedRadixCache"),
        ([bound("<0.5.19")], "HiRadixCache"),
        ([bound(">=0.5.17")], None),
        ([], None),
        (
            [
                setting("sglang_version", "0.5.14", "pip"),
                setting("SGLANG_ENABLE_UNIFIED_RADIX_TREE", '"1"', "environment"),
            ],
            "UnifiedRadixCache",
        ),
        (
            [
                setting("sglang_version", "0.5.14", "pip"),
                setting("SGLANG_ENABLE_UNIFIED_RADIX_TREE", "0", "environment"),
            ],
            "HiRadixCache",
        ),
    ],
)
def test_the_tree_class(settings: list[Setting], tree: str | None) -> None:
    assert gathered(settings).tree == tree
