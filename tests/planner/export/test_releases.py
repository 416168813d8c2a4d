"""What is written for a release is known to its own parser: every bundled scenario, every version, every plan."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from simserve.errors import InfeasibleError, InputError, ScenarioError
from simserve.planner.export.deployment import Export, prepare
from simserve.planner.export.export import ENGINES, export
from simserve.planner.export.flags import Flags, flags_of, read_words
from simserve.planner.export.sglang import export_sglang
from simserve.planner.export.trtllm import export_trtllm
from simserve.planner.export.vllm import export_vllm
from simserve.profiles.engine_profile import load_engine
from simserve.scenario.load import load, scenario_names
from tests.scenario.builders import make_scenario

TARGETS = ("vllm", "sglang", "trtllm")
RELEASES = [(target, known.version) for target in TARGETS for known in load_engine(ENGINES[target]).versions]
FEW = ("kv-offload", "speculative-decoding", "urgent-first")
"""Scenarios that set the knobs which releases differ in."""
DRAFTS = {
    "ngram": {"method": "ngram"},
    "eagle": {"method": "eagle"},
    "mtp": {"method": "mtp"},
    "draft_model": {"method": "draft_model", "draft_model": "llama-3.2-1b"},
}

_SERVER = r"(?:vllm serve|python -m sglang\.launch_server|trtllm-serve) .*(?= &)"
"""The command of one server in the script that starts them all."""


def unknown_words(result: Export, flags: Flags) -> list[str]:
    """Return the flags and values of an export that the release's parser does not know."""
    if "start_servers.sh" in result.files:
        return _unknown_of_pools(result, flags)
    words, _ = read_words(flags, result.command)
    unknown = [word.flag for word in words if not word.is_known and word.flag != "-m"]
    for word in words:
        values = word.value if isinstance(word.value, list) else [word.value]
        texts = [value for value in values if isinstance(value, str) and word.is_known]
        unknown += [f"{word.flag} {value}" for value in texts if not flags.has(word.flag, value)]
    return unknown + [key for key in _settings(result) if not (flags.has(key) or key in flags.choices)]


def _unknown_of_pools(result: Export, flags: Flags) -> list[str]:
    """Return the same of the servers behind a router: each has a command, and under TensorRT-LLM an options file."""
    servers = re.findall(_SERVER, result.files["start_servers.sh"])
    assert servers
    unknown: list[str] = []
    for line in servers:
        # Every release listens at an address; the flags that were read are those of the engine, in some releases alone.
        command = tuple(shlex.split(re.sub(r" --(host|port) \S+", "", line)))
        options = {word: result.files[word] for word in command if word in result.files}
        unknown += unknown_words(replace(result, command=command, files=options), flags)
    return unknown


def _settings(result: Export) -> Iterator[str]:
    """Yield the keys of the options file of TensorRT-LLM, dotted."""
    for text in result.files.values():
        options = yaml.safe_load(text)
        yield from options
        yield from (f"{key}.{part}" for key, block in options.items() if isinstance(block, dict) for part in block)


def exported(name: str, target: str, version: str) -> Export | None:
    """Return the export of a bundled scenario for a release; None where it cannot be told to it, with a reason."""
    scenario = load(name, [f"deployment.engine.name={ENGINES[target]}", f"deployment.engine.version={version}"])
    try:
        return export(scenario, target)
    except (InputError, InfeasibleError):
        return None


@pytest.mark.parametrize(("target", "version"), RELEASES)
def test_few_scenarios_are_told_to_every_release_in_its_own_flags(target: str, version: str) -> None:
    """Those that set what releases differ in; the others in the slow tier."""
    flags = flags_of(ENGINES[target], version)

    results = [exported(name, target, version) for name in FEW]
    assert [unknown_words(result, flags) for result in results if result is not None] == [[]] * sum(
        result is not None for result in results
    )


_WRITTEN_BY_NONE = (
    "static-vs-continuous",
    *("canary", "halve-the-api-bill", "small-model-first", "two-pools", "two-regions"),
)
"""What no command of a release starts: static batching, several kinds of server."""


@pytest.mark.slow
@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_is_told_to_every_release_in_its_own_flags(name: str) -> None:
    """Or refused with a reason, and by all of them only what no single command starts."""
    written = 0
    for target, version in RELEASES:
        result = exported(name, target, version)
        if result is not None:
            assert unknown_words(result, flags_of(ENGINES[target], version)) == [], f"{target} {version}"
            written += 1
    assert bool(written) is not (name in _WRITTEN_BY_NONE)


def speculating(target: str, version: str, draft: dict[str, Any]) -> Export:
    """Return the export of speculation under a release."""
    model = "deepseek-v3" if draft["method"] == "mtp" else "llama-3.1-8b"
    engine = {"name": ENGINES[target], "version": version, "max_model_len": 4096}
    deployment: dict[str, Any] = {
        "hardware": "h200-sxm-141gb",
        "engine": engine,
        "speculative": {**draft, "num_speculative_tokens": 3, "acceptance_rate": 0.7},
    }
    if model == "deepseek-v3":
        deployment |= {"tensor_parallel_size": 8, "quantization": "fp8"}
    return export(make_scenario(model=model, deployment=deployment), target)


@pytest.mark.parametrize(
    ("version", "method", "written"),
    [
        ("0.5.9", "eagle", "--speculative-algorithm EAGLE --speculative-draft-model-path ORG/EAGLE-HEAD"),
        ("0.5.9", "mtp", "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1"),
        ("0.5.9", "draft_model", "--speculative-algorithm STANDALONE --speculative-draft-model-path meta-llama/Ll"),
        ("0.5.9", "ngram", "--speculative-algorithm NGRAM --speculative-num-draft-tokens 4"),
        ("0.5.23", "mtp", "--speculative-num-draft-tokens 4"),
    ],
)
def test_sglang_is_told_who_drafts(version: str, method: str, written: str) -> None:
    """By algorithm, steps and the tokens that are verified, the one before the drafts among them."""
    assert written in speculating("sglang", version, DRAFTS[method]).line


@pytest.mark.parametrize(("version", "method"), [("0.5.1", "draft_model"), ("0.5.2", "ngram"), ("0.3", "eagle")])
def test_sglang_refuses_drafters_that_the_release_lacks(version: str, method: str) -> None:
    """STANDALONE came with 0.5.2 and NGRAM with 0.5.3; 0.3 has none."""
    with pytest.raises(ScenarioError, match=r"has no speculative decoding .* and newer"):
        speculating("sglang", version, DRAFTS[method])


@pytest.mark.parametrize("method", DRAFTS)
def test_tensorrt_llm_is_told_who_drafts(method: str) -> None:
    """In its options file; look-ups and small models need the plain scheduler."""
    result = speculating("trtllm", "1.2", DRAFTS[method])
    options = yaml.safe_load(result.files["extra_llm_api_options.yaml"])

    kinds = {"ngram": "NGram", "eagle": "Eagle", "mtp": "MTP", "draft_model": "DraftTarget"}
    assert options["speculative_config"]["decoding_type"] == kinds[method]
    assert options["speculative_config"]["max_draft_len"] == 3
    assert options.get("disable_overlap_scheduler", False) is (method in ("ngram", "draft_model"))


@pytest.mark.parametrize(
    ("version", "method", "name"),
    [("0.10.2", "mtp", "deepseek_mtp"), ("0.12", "mtp", "mtp"), ("0.9", "eagle", "eagle"), ("0.33", "ngram", "ngram")],
)
def test_vllm_is_told_who_drafts_by_the_name_of_the_release(version: str, method: str, name: str) -> None:
    """Multi-token prediction had the model's name first."""
    words = speculating("vllm", version, DRAFTS[method]).command

    assert json.loads(words[words.index("--speculative-config") + 1])["method"] == name


def test_vllm_before_0_9_has_no_multi_token_prediction() -> None:
    """It is refused with the drafters that it has."""
    with pytest.raises(ScenarioError, match="no such drafter; ngram, eagle, medusa"):
        speculating("vllm", "0.8.5", DRAFTS["mtp"])


@pytest.mark.parametrize(
    ("target", "version", "key", "value", "written"),
    [
        ("vllm", "0.33", "num_gpu_blocks_override", 500, "--num-gpu-blocks-override 500"),
        ("vllm", "0.33", "kv_cache_memory_bytes", 2**33, "--kv-cache-memory-bytes 8589934592"),
        ("vllm", "0.33", "long_prefill_token_threshold", 512, "--long-prefill-token-threshold 512"),
        ("sglang", "0.5.23", "num_gpu_blocks_override", 50000, "--max-total-tokens 50000"),
        ("trtllm", "1.2", "num_gpu_blocks_override", 100, "max_tokens: 3200"),
    ],
)
def test_kv_room_and_prompt_limits_set_by_hand_are_written(
    target: str, version: str, key: str, value: int, written: str
) -> None:
    """As each engine calls them; SGLang and TensorRT-LLM count tokens."""
    exporter = {"vllm": export_vllm, "sglang": export_sglang, "trtllm": export_trtllm}[target]
    engine = {"name": ENGINES[target], "version": version, "max_model_len": 4096}
    scenario = make_scenario(deployment={"hardware": "h100-sxm-80gb", "engine": engine})
    deployment = prepare(scenario, explicit=False, checkpoint=None)
    deployment.unsaid[f"engine.{key}"] = value

    result = exporter(deployment)
    assert written in result.line + "".join(result.files.values())
    assert unknown_words(result, flags_of(ENGINES[target], version)) == []
