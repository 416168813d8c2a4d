"""Formats of a search: what public checkpoints hold or the engine makes, and nothing that the export refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from simserve.errors import InputError, ScenarioError
from simserve.perf.memory import plan_memory
from simserve.planner.export.export import ENGINES, Export, export
from simserve.planner.plan.levers import format_levers
from simserve.planner.space.formats import WEIGHTS_KEY, searched_formats
from simserve.planner.space.space import Space, space_on
from simserve.planner.space.traffic import traffic_of
from simserve.profiles import catalog
from simserve.profiles.catalog import load_model
from simserve.scenario.combinations import model_lack_of
from simserve.scenario.formats import kv_of_auto, with_stored_format
from simserve.scenario.resolve import replica_shape
from simserve.scenario.schema import Scenario
from tests.scenario.builders import make_scenario

H100, H200, B200 = "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb"
_SIZES = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4), (8, 8))
"""Tensor and pipeline sizes, until the weights fit."""


def deployed(model: str, hardware: str = H100, engine: str = "vllm", **deployment: Any) -> Scenario:
    """Return a scenario of a model in the newest version of an engine."""
    length = min(2048, load_model(model).max_position_embeddings)
    settings = {"name": engine, "max_model_len": length}
    return make_scenario(model=model, deployment={"hardware": hardware, "engine": settings, **deployment})


def weights(scenario: Scenario) -> dict[str, str]:
    """Return format -> where it comes from."""
    return {each.format: each.label for each in searched_formats(scenario).weights}


def exported(model: str, hardware: str, target: str, **formats: str) -> Export:
    """Return the export on the fewest GPUs that hold the model."""
    for tensor, stages in _SIZES:
        sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
        scenario = deployed(model, hardware, ENGINES[target], **sizes, **formats)
        if holds(scenario):
            return export(scenario, target)
    raise AssertionError(f"{model} fits no size")


def holds(scenario: Scenario) -> bool:
    """Return whether a deployment can be cut so and fits, without asking what else would."""
    try:
        return plan_memory(replica_shape(scenario)).fits
    except InputError as error:
        if "divi" in str(error) or "head" in str(error):
            return False
        raise


def candidates(models: list[str], hardware: str, target: str) -> Iterator[tuple[str, str, str, str | None]]:
    """Yield model, weight format, KV format and repository of everything that a search may set."""
    for model in models:
        if model_lack_of(deployed("llama-3.1-8b", hardware, ENGINES[target]).model_copy(update={"model": model}), None):
            continue  # The newest version has no code for it, as its own test says.
        found = searched_formats(deployed(model, hardware, ENGINES[target]))
        for each in found.weights:
            for kv_cache in found.kv_cache:
                yield model, each.format, kv_cache, each.repository


def check_exports(models: list[str], hardware: str, target: str) -> int:
    """Insist that everything a search may set is exported with its checkpoint; returns how many there were."""
    count = 0
    for model, quantization, kv_cache, repository in candidates(models, hardware, target):
        command = exported(model, hardware, target, quantization=quantization, kv_cache_dtype=kv_cache).command
        assert repository is None or repository in command, (model, quantization, command)
        count += 1
    return count


def test_a_search_names_where_each_format_comes_from() -> None:
    """As stored, another public checkpoint, or made by the engine while it loads."""
    assert weights(deployed("llama-3.1-70b")) == {
        "none": "as stored",
        "fp8": f"checkpoint {repository_of('llama-3.1-70b', 'fp8')}",
        "awq-int4": f"checkpoint {repository_of('llama-3.1-70b', 'awq-int4')}",
    }
    assert weights(deployed("llama-2-7b"))["fp8"] == "quantised on load by vllm"
    assert weights(deployed("llama-2-7b", engine="llama.cpp"))["gguf-q8_0"] == "quantised before loading by llama.cpp"


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        ("l40s-48gb", ["none", "fp8", "int8", "awq-int4"]),
        ("a100-sxm-80gb", ["none", "int8", "awq-int4"]),
        (H100, ["none", "fp8", "awq-int4"]),
    ],
)
def test_int8_is_tried_where_it_is_fast(hardware: str, expected: list[str]) -> None:
    """On Ada beside FP8, on Ampere instead of it, on Hopper not: FP8 is as fast there."""
    assert list(weights(deployed("llama-3.1-8b", hardware))) == expected


def test_fp8_is_tried_where_it_is_unpacked_and_no_int8_is_public() -> None:
    """Half the bytes of 16 bit, though the GPU multiplies in 16 bit."""
    assert "fp8" in weights(deployed("llama-2-7b", "a100-sxm-80gb"))
    assert "int8" not in weights(deployed("llama-2-7b", "a100-sxm-80gb"))


def repository_of(model: str, quantization: str) -> str | None:
    """Return the public checkpoint of a format."""
    found = load_model(model).checkpoint(quantization)
    return None if found is None else found.repository


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_gpt_oss_is_searched_as_it_is_stored_alone(engine: str) -> None:
    """MXFP4 and nothing else, with the reason; its BF16 copies are no original to round again."""
    found = searched_formats(deployed("gpt-oss-120b", engine=engine))

    assert [each.format for each in found.weights] == ["mxfp4"]
    assert (
        found.why_no_weights
        == "gpt-oss-120b is stored in mxfp4, and no checkpoint of another low-bit format is on record"
    )


def test_a_search_says_why_there_is_no_other_format() -> None:
    """Among what was not searched, unless the user chose the formats."""
    scenario = with_stored_format(deployed("gpt-oss-120b"))

    def left_out(**choices: list[str]) -> list[str]:
        asked = {f"deployment.{key}": values for key, values in choices.items()}
        return list(space_on(scenario, H100, {}, asked, traffic_of(scenario)).left_out)

    assert "quantise" in left_out()
    assert "quantise" not in left_out(quantization=["mxfp4"])


def searched(scenario: Scenario, **options: Any) -> Space:
    """Return the space of a scenario on its own GPU."""
    traffic = traffic_of(scenario)
    own_choices = options.pop("own_choices", {})
    return space_on(scenario, scenario.deployment.hardware, {}, own_choices, traffic, **options)


@pytest.mark.parametrize(("model", "asked"), [("deepseek-r1", "int8"), ("gpt-oss-120b", "fp8"), ("kimi-k2", "bf16")])
def test_weights_that_nobody_has_are_not_searched_though_the_scenario_names_them(model: str, asked: str) -> None:
    """No member of the space has them, the start neither; and the answer says why."""
    space = searched(deployed(model, H200, quantization=asked, tensor_parallel_size=8))

    assert asked not in space.dimensions[WEIGHTS_KEY]
    assert space.plain[WEIGHTS_KEY] == load_model(model).stored.format
    assert all(member[WEIGHTS_KEY] != asked for member in space.members([WEIGHTS_KEY]))
    assert space.left_out["quantise"].startswith(
        f"not {asked}, which the scenario names: no such checkpoint of {model}"
    )


@pytest.mark.parametrize("asked", ["fp8", "none", "fp16", "awq-int4"])
def test_weights_that_can_be_had_are_searched_first_where_the_scenario_names_them(asked: str) -> None:
    """Those of a checkpoint, of the engine, and 16 bit of another kind."""
    space = searched(deployed("llama-3.1-8b", H200, quantization=asked))

    assert space.dimensions[WEIGHTS_KEY][0] == asked
    assert WEIGHTS_KEY not in space.plain


def test_weights_that_nobody_has_are_kept_where_that_is_asked_for() -> None:
    """By `--keep weights`: the user has made them."""
    space = searched(deployed("deepseek-r1", H200, quantization="int8"), kept=frozenset({WEIGHTS_KEY}))

    assert space.dimensions[WEIGHTS_KEY] == ("int8",)
    assert "quantise" not in space.left_out


def test_kv_formats_start_from_what_auto_stands_for() -> None:
    """NVIDIA's FP8 checkpoints hold FP8 KV under TensorRT-LLM; then there is no other to offer."""
    kept = {"tensor_parallel_size": 8}
    assert kv_of_auto(replica_shape(deployed("gpt-oss-120b"))) == "bf16"
    assert searched_formats(deployed("gpt-oss-120b")).kv_cache == ("auto", "fp8")
    narrow = deployed("nvidia/Llama-3.1-405B-Instruct-FP8", H200, "tensorrt-llm", **kept)
    assert kv_of_auto(replica_shape(narrow)) == "fp8"


def test_pools_share_formats_that_all_of_them_run() -> None:
    """A100s multiply in no FP8; a pool with a model of its own names that model's stored format."""
    pools = [{"name": "a", "replicas": 1}, {"name": "b", "replicas": 1, "hardware": "a100-sxm-80gb"}]
    other = {"name": "c", "replicas": 1, "model": "gpt-oss-20b"}
    alike = deployed("llama-3.1-8b", pools=pools[:1])
    mixed = with_stored_format(deployed("llama-3.1-8b", pools=[*pools, other]))

    assert "fp8" in weights(alike)
    assert "fp8" not in weights(mixed)
    assert [pool.quantization for pool in mixed.deployment.pools] == [None, None, "mxfp4"]


def test_levers_are_formats_that_can_be_had() -> None:
    """Advice measures nothing that no checkpoint holds."""
    labels = [each.label for each in format_levers(with_stored_format(deployed("gpt-oss-20b")))]

    assert labels == ["mxfp4 weights, as stored", "16-bit KV cache", "fp8 KV cache"]


def test_tensorrt_llm_is_searched_in_checkpoints_that_it_loads() -> None:
    """Its PyTorch backend refuses AWQ and GPTQ as Hugging Face has them; FP8 is ModelOpt's, not the first on record."""
    found = searched_formats(deployed("llama-3.1-70b", H200, "tensorrt-llm")).weights

    assert [(each.format, each.repository) for each in found[1:]] == [("fp8", "nvidia/Llama-3.1-70B-Instruct-FP8")]
    assert repository_of("llama-3.1-70b", "fp8") != "nvidia/Llama-3.1-70B-Instruct-FP8"


def test_no_model_is_searched_in_a_checkpoint_that_tensorrt_llm_refuses() -> None:
    """Of the whole catalogue: 16 bit, ModelOpt's, MXFP4, FP8 in blocks, and llm-compressor's: by channel, and MXFP4."""
    kinds = set()
    for name in catalog.names("model"):
        by_repository = {each.repository: each for each in load_model(name).checkpoints}
        for found in searched_formats(deployed(name, B200, "tensorrt-llm")).weights:
            checkpoint = by_repository[found.repository]
            kinds.add((checkpoint.method, checkpoint.fp8_scales if checkpoint.format == "fp8" else ""))

    blocks, rows = ("fp8", "block"), ("compressed-tensors", "channel")
    narrow = {("modelopt", ""), ("modelopt", "tensor"), ("mxfp4", ""), ("compressed-tensors", "")}
    assert kinds == {(None, ""), ("fp8", ""), blocks, rows} | narrow


def test_a_checkpoint_that_the_engine_does_not_load_is_refused() -> None:
    """With what it does load; and no export names it where the format was asked for by name."""
    asked = deployed("llama-3.1-8b", H200, "tensorrt-llm", quantization="awq-int4")
    stored = deployed("RedHatAI/Mixtral-8x7B-Instruct-v0.1-FP8", H200, "tensorrt-llm")

    with pytest.raises(ScenarioError, match=r"tensorrt-llm .* does not load .fp8 by fp8, one scale a tensor"):
        replica_shape(stored)
    with pytest.raises(ScenarioError, match="needs a checkpoint that holds it"):
        export(asked, "trtllm")


@pytest.mark.parametrize("target", ["vllm", "sglang", "trtllm"])
def test_what_a_search_may_set_is_exported_with_its_checkpoint(target: str) -> None:
    """A model of each kind: 16-bit, MXFP4, FP8."""
    assert check_exports(["llama-3.1-8b", "gpt-oss-20b", "qwen3-30b-a3b"], H100, target) > 4


@pytest.mark.slow
@pytest.mark.parametrize("target", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("hardware", [H200, B200])
def test_no_search_may_set_what_export_refuses(target: str, hardware: str) -> None:
    """Every model of the catalogue in every format of a search, in the newest version of each engine."""
    assert check_exports(list(catalog.names("model")), hardware, target) > 100
