"""The lists of flags: what they hold of each version, writing a flag, reading a line."""

from __future__ import annotations

import pytest

from simserve.errors import ScenarioError
from simserve.planner.export.flags import flags_of, load_flags, read_words, similar
from simserve.profiles.engine_options import version_key

ENGINES = ("vllm", "sglang")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_list_is_in_order_and_names_its_sources(engine: str) -> None:
    """Versions ascend, each with the files it was read from; every range begins and ends at one of them."""
    listed = load_flags(engine)

    read = [each.version for each in listed.versions]
    assert read == sorted(read, key=version_key)
    assert all("PyPI" in each.source for each in listed.versions)
    ranges = [*listed.flags, *(each for choices in listed.choices.values() for each in choices)]
    assert {each.since for each in ranges} | {each.until for each in ranges if each.until} <= set(read)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_flag_stands_once_a_version(engine: str) -> None:
    """No two groups of one version hold the same flag."""
    listed = load_flags(engine)

    for read in listed.versions:
        key = version_key(read.version)
        names = [
            name
            for group in listed.flags
            if version_key(group.since) <= key and (group.until is None or key < version_key(group.until))
            for name in group.names
        ]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("version", "flag", "takes"),
    [
        ("0.2.7", "--enable-chunked-prefill", None),
        ("0.5.5", "--enable-chunked-prefill", "boolean"),
        ("0.12", "--enable-chunked-prefill", "toggle"),
        ("0.2.7", "--swap-space", "value"),
        ("0.17.1", "--swap-space", "value"),
        ("0.18", "--swap-space", None),
        ("0.6.6", "--enable-expert-parallel", None),
        ("0.8.5", "--enable-expert-parallel", "toggle"),
        ("0.8.5", "--async-scheduling", None),
        ("0.10.2", "--async-scheduling", "toggle"),
        ("0.6.6", "--speculative-model", "value"),
        ("0.8.5", "--speculative-model", None),
        ("0.8.5", "--speculative-config", "value"),
        ("0.33", "--max-num-seqs", "value"),
        ("0.33", "--port", "value"),
    ],
)
def test_vllm_flags_come_and_go(version: str, flag: str, takes: str | None) -> None:
    """As vLLM's own argument parsers of those versions have them."""
    assert flags_of("vllm", version).takes.get(flag) == takes


def test_a_version_between_two_counts_as_the_older() -> None:
    """And one older than all as the oldest."""
    assert flags_of("vllm", "0.15.1").version == "0.15"
    assert flags_of("vllm", "0.5.0").version == "0.4.3"
    assert flags_of("vllm", "0.1").version == "0.2.7"
    assert flags_of("vllm", "99").version == "0.33"


def test_a_flag_is_written_as_its_version_takes_it() -> None:
    """False is a word, a prefix or nothing at all."""
    key = "deployment.engine.enable_chunked_prefill"

    assert flags_of("vllm", "0.6.6").render("--enable-chunked-prefill", False, key=key) == [
        "--enable-chunked-prefill",
        "False",
    ]
    assert flags_of("vllm", "0.12").render("--enable-chunked-prefill", False, key=key) == [
        "--no-enable-chunked-prefill"
    ]
    with pytest.raises(ScenarioError, match="has no opposite"):
        flags_of("vllm", "0.5.5").render("--enable-prefix-caching", False, key=key)
    with pytest.raises(ScenarioError, match=r"vllm 0\.2\.7, which has no --enable-chunked-prefill"):
        flags_of("vllm", "0.2.7").render("--enable-chunked-prefill", True, key=key)


def test_a_value_that_is_not_accepted_is_refused() -> None:
    """With the values that are."""
    with pytest.raises(ScenarioError, match=r"24 is not accepted by --block-size of vllm 0\.12; 1, 8, 16"):
        flags_of("vllm", "0.12").render("--block-size", 24, key="deployment.engine.block_size")


def test_a_line_is_read_into_flags_and_the_rest() -> None:
    """Underscores, equals signs, negations, lists and flags that are unknown."""
    flags = flags_of("vllm", "0.12")

    words, loose = read_words(
        flags,
        ["org/name", "--max_num_seqs=8", "--no-enable-prefix-caching", "--served-model-name", "a", "b", "--new", "1"],
    )
    assert loose == ["org/name"]
    assert [(word.flag, word.value, word.is_known) for word in words] == [
        ("--max-num-seqs", "8", True),
        ("--enable-prefix-caching", False, True),
        ("--served-model-name", ["a", "b"], True),
        ("--new", "1", False),
    ]


def test_a_flag_without_its_value_and_a_switch_with_one_are_refused() -> None:
    """As the engine's own parser would."""
    flags = flags_of("vllm", "0.12")

    with pytest.raises(ScenarioError, match="--max-num-seqs: lacks its value"):
        read_words(flags, ["--max-num-seqs", "--port", "1"])
    with pytest.raises(ScenarioError, match="--enable-prefix-caching: 'True' takes no value"):
        read_words(flags, ["--enable-prefix-caching=True"])


def test_a_misspelt_flag_has_a_near_one() -> None:
    """And nonsense has none."""
    flags = flags_of("vllm", "0.12")

    assert similar(flags, "--enable-expert-paralel") == "--enable-expert-parallel"
    assert similar(flags, "--frobnicate") == ""


@pytest.mark.parametrize(
    ("version", "flag"),
    [("0.7.3", "--speculative-model"), ("0.8.2", "--speculative-model"), ("0.8.3", "--speculative-config")],
)
def test_drafts_are_said_as_the_release_takes_them(version: str, flag: str) -> None:
    """vLLM 0.8.3 has --speculative-config and no longer --speculative-model."""
    other = {"--speculative-model": "--speculative-config"}.get(flag, "--speculative-model")

    known = flags_of("vllm", version)
    assert (known.has(flag), known.has(other)) == (True, False)
