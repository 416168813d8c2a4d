"""`auto`: what a checkpoint is stored in, what an engine makes of it, and what the answer says of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import ScenarioError
from simserve.perf.tables import price
from simserve.profiles import catalog
from simserve.profiles.catalog import load_model
from simserve.profiles.engine import load_engine
from simserve.scenario.fit import leading_warnings
from simserve.scenario.formats import AvailableFormat, formats_available, formats_line, with_stored_format
from simserve.scenario.resolve import ResolvedScenario, resolve
from simserve.units import GIB
from tests.perf.shapes import make_shape
from tests.profiles.test_hf_config import LLAMA_3_8B
from tests.scenario.builders import make_scenario


def resolved(*overrides: str, model: str = "llama-3.1-8b", **blocks: Any) -> ResolvedScenario:
    """Return a scenario of a model with overrides of its deployment, resolved."""
    return resolve(make_scenario([f"deployment.{each}" for each in overrides], model=model, **blocks))


BIG = ("hardware=h200-sxm-141gb", "tensor_parallel_size=8")
BLACKWELL = ("hardware=b200-sxm-180gb", "tensor_parallel_size=8")


@pytest.mark.parametrize(
    ("model", "overrides", "weights", "repository"),
    [
        ("llama-3.1-8b", (), "bf16", "meta-llama/Llama-3.1-8B"),
        ("gpt-oss-20b", (), "mxfp4", "openai/gpt-oss-20b"),
        ("deepseek-r1", BIG, "fp8", "deepseek-ai/DeepSeek-R1"),
        ("glm-5", (*BIG, "engine.version=0.33"), "fp8", "zai-org/GLM-5-FP8"),
        ("qwen3-235b-a22b", BIG, "bf16", "Qwen/Qwen3-235B-A22B"),
        ("Qwen/Qwen3-235B-A22B-FP8", BIG, "fp8", "Qwen/Qwen3-235B-A22B-FP8"),
    ],
)
def test_a_model_runs_as_it_is_stored(model: str, overrides: tuple[str, ...], weights: str, repository: str) -> None:
    """Nothing is said of formats: the checkpoint that the name stands for, which fits."""
    found = resolved(*overrides, model=model)

    assert found.scenario.deployment.quantization == "auto"
    assert found.formats["weights"] == weights
    assert found.formats["weights_source"] == "as stored"
    assert found.formats["checkpoint"] == repository
    assert found.memory.weights_bytes > 0
    assert found.memory.fits


@pytest.mark.parametrize("asked", ["auto", "mxfp4"])
@pytest.mark.parametrize("model", ["gpt-oss-20b", "openai/gpt-oss-20b"])
def test_an_engine_takes_its_own_file_of_a_format(model: str, asked: str) -> None:
    """llama.cpp the GGUF of gpt-oss, 12.1 GB with all but the experts in Q8_0; Ollama's own file has that in 16 bit.

    62,327 MiB of gpt-oss-120b are 65.4 GB (ollama/ollama issue 16416); 14 GB of gpt-oss-20b in its library.
    """
    overrides = f"quantization={asked}", "hardware=gb10-128gb", "engine.max_model_len=4096"
    ggml, ollama, vllm = (
        resolved(f"engine={{name: {name}, version: '{version}'}}", *overrides, model=model)
        for name, version in (("llama.cpp", "b8000"), ("ollama", "0.15.5"), ("vllm", "0.33"))
    )

    assert ggml.formats["checkpoint"] == "ggml-org/gpt-oss-20b-GGUF"
    assert {ollama.formats["checkpoint"], vllm.formats["checkpoint"]} == {"openai/gpt-oss-20b"}
    assert ggml.shape.precision.other_bits == ggml.shape.precisions["attention"][0][0].weight_bits == 8.5
    assert ggml.shape.precisions["experts"][0][0].weight_bits == 4.25
    assert ollama.shape.precision.other_bits == vllm.shape.precision.other_bits == 16.0
    embedding = ggml.memory.shape.model.num_embedding_parameters  # llama.cpp leaves it in its mapped file
    assert ggml.memory.weights_bytes == pytest.approx(11.27 * GIB - 8.5 / 8 * embedding, rel=0.02)
    assert ollama.memory.weights_bytes == pytest.approx(13.76e9 - 2 * embedding, rel=0.02)
    ours, theirs = (price(each.shape, 4).step_times.decode_base[1] for each in (ggml, ollama))
    assert ours < 0.85 * theirs


def test_weights_named_in_another_format_stay_so_under_an_engine_with_a_file_of_its_own() -> None:
    """A checkpoint in BF16, named, is not the file in MXFP4; nor are weights of another name in Q8_0."""
    overrides = "hardware=gb10-128gb", "engine={name: llama.cpp, version: b8000}", "engine.max_model_len=4096"
    wide = resolved(*overrides, model="unsloth/gpt-oss-20b-BF16")
    named = resolved(*overrides, model="unsloth/gpt-oss-20b")

    assert (wide.shape.quantization, wide.formats["checkpoint"]) == ("none", "unsloth/gpt-oss-20b-BF16")
    assert (named.shape.quantization, named.formats["checkpoint"]) == ("mxfp4", "unsloth/gpt-oss-20b")
    assert named.shape.precision.other_bits == 16.0


def test_only_engines_with_gguf_load_a_gguf_file() -> None:
    """Ollama, where it is named; of vLLM the error names the checkpoint that it loads in the same format."""
    named = {"model": "ggml-org/gpt-oss-20b-GGUF"}
    engine = "engine={name: ollama, version: '0.15.5'}"
    ollama = resolved("hardware=gb10-128gb", engine, "engine.max_model_len=4096", **named)

    assert ollama.shape.precision.other_bits == 8.5
    with pytest.raises(
        ScenarioError, match=r"does not load \(mxfp4 by gguf\).*mxfp4 \(checkpoint openai/gpt-oss-20b\)"
    ):
        resolved(**named)


def test_what_is_asked_for_wins() -> None:
    """16 bit of a checkpoint with fewer bits is a dequantised one, and larger."""
    stored, wide = resolved(*BIG, model="minimax-m2"), resolved("quantization=none", *BIG, model="minimax-m2")

    assert (wide.shape.quantization, wide.formats["weights"], wide.formats["weights_source"]) == (
        "none",
        "bf16",
        "dequantised",
    )
    assert wide.memory.weights_bytes > 1.9 * stored.memory.weights_bytes


@pytest.mark.parametrize(
    ("asked", "source"),
    [
        ("fp8", "checkpoint RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8"),
        ("nf4", "quantised on load by vllm"),
        ("int3", "as asked (no such checkpoint is on record)"),
        ("bf16", "as stored"),
        ("fp16", "cast on load by vllm"),
    ],
)
def test_the_answer_says_where_a_format_comes_from(asked: str, source: str) -> None:
    """A public checkpoint, the engine while it loads, or nobody that is known."""
    found = resolved(f"quantization={asked}", "engine.version=0.20")

    assert found.formats["weights_source"] == source


@pytest.mark.parametrize(
    ("model", "asked", "remedy"),
    [
        ("llama-3.1-8b", "int3", "awq-int4 (checkpoint hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4)"),
        (
            "gemma-3-27b",
            "awq-int4",
            "deployment.quantization=int4 (checkpoint RedHatAI/gemma-3-27b-it-quantized.w4a16)",
        ),
        ("gpt-oss-20b", "fp8", "deployment.quantization=mxfp4 (as stored)"),
        ("llama-3.1-8b", "fp8", None),
        ("llama-3.1-8b", "nf4", None),
        ("llama-3.1-8b", "fp16", None),
        ("gpt-oss-20b", "auto", None),
    ],
)
def test_weights_that_nobody_has_lead_the_answer(model: str, asked: str, remedy: str | None) -> None:
    """With what there is; silent where a checkpoint, the engine or a cast gives them."""
    version = ["engine.version=0.20"] if model == "llama-3.1-8b" else []
    found = leading_warnings(resolved(f"quantization={asked}", *version, model=model))

    if remedy is None:
        assert not found
    else:
        assert found[0].startswith(f"{asked} weights of {model} are assumed to exist: no checkpoint of them is known")
        assert found[0].endswith(remedy)


def test_draft_weights_that_nobody_has_lead_the_answer() -> None:
    """Those of a small model that drafts, with the key that names its format."""

    def warnings_of(*asked: str) -> list[str]:
        draft = "{method: draft_model, draft_model: llama-3.2-1b, num_speculative_tokens: 3, acceptance_rate: 0.7}"
        return leading_warnings(resolved("engine.version=0.20", f"speculative={draft}", *asked, model="llama-3.1-8b"))

    (note,) = warnings_of("speculative.draft_quantization=awq-int4")

    assert note.startswith("awq-int4 weights of llama-3.2-1b are assumed to exist: no checkpoint of them is known")
    assert "known: --set deployment.speculative.draft_quantization=" in note
    assert not warnings_of()


def test_what_an_engine_cannot_run_names_the_stored_format_and_what_would() -> None:
    """SGLang before NVFP4: the format, where it is stored, the other checkpoints, and the versions that have it."""
    deployment = ("hardware=b200-sxm-180gb", "tensor_parallel_size=4", "engine.name=sglang", "engine.version=0.4.5")
    with pytest.raises(ScenarioError) as refusal:
        resolved(*deployment, model="nvidia/Qwen3-235B-A22B-NVFP4")

    text = str(refusal.value)
    stored = "as qwen3-235b-a22b is stored in nvidia/Qwen3-235B-A22B-NVFP4"
    assert f"deployment.quantization: 'auto' is nvfp4, {stored}" in text
    assert "does not run under sglang" in text
    assert "sglang has it in versions 0.4.6 to before 0.5.10" in text
    assert "deployment.quantization=fp8 (checkpoint Qwen/Qwen3-235B-A22B-FP8)" in text


def test_a_gpu_that_is_too_old_for_the_stored_format_is_named_as_the_reason() -> None:
    """The engine has the format, the GPU has not its arithmetic; the smallest checkpoint that runs is named first."""
    deployment = ("hardware=h100-sxm-80gb", "tensor_parallel_size=4", "engine.name=tensorrt-llm", "engine.version=1.2")
    with pytest.raises(ScenarioError) as refusal:
        resolved(*deployment, model="nvidia/Qwen3-235B-A22B-NVFP4")

    text = str(refusal.value)
    assert "which tensorrt-llm 1.2 runs on GPUs of compute capability 10 or newer, and h100-sxm-80gb has 9.0" in text
    assert 0 < text.index("deployment.quantization=fp8") < text.index("deployment.quantization=none")


def test_without_another_checkpoint_a_later_version_is_named(tmp_path: Path) -> None:
    """Of a model that exists in one format alone."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**LLAMA_3_8B, "quantization_config": {"quant_method": "fp8"}}))

    with pytest.raises(ScenarioError, match=r"vllm runs it from 0\.4\.3 on"):
        resolved("engine.version=0.2.7", model=str(config))


def test_versions_that_no_longer_run_a_format_are_not_promised() -> None:
    """vLLM has GGUF up to 0.23 alone; llama.cpp runs it."""
    with pytest.raises(ScenarioError) as refusal:
        resolved("engine.version=0.33", model="unsloth/Qwen3-8B-GGUF")

    text = str(refusal.value)
    assert re.search(r"vllm runs it from 0\.5\.5 to 0\.2\d", text)
    assert text.endswith("deployment.engine.name=llama.cpp runs it")


@pytest.mark.parametrize(
    ("name", "overrides", "format"),
    [
        ("fp8_e4m3", (), "fp8"),
        ("FP8_E5M2", (), "fp8"),
        ("bfloat16", (), "bf16"),
        ("q8_0", ("engine.name=llama.cpp",), "int8"),
        ("Q4_0", ("engine.name=llama.cpp",), "int4"),
        ("int8_per_token_head", ("engine.version=0.20",), "int8"),
    ],
)
def test_engines_names_of_a_kv_format_are_accepted(name: str, overrides: tuple[str, ...], format: str) -> None:
    """As vLLM, SGLang, TGI and llama.cpp call the formats that there are."""
    assert resolved(f"kv_cache_dtype={name}", *overrides).shape.kv_cache_dtype == format


def test_tensorrt_llm_loads_experts_in_mxfp4_by_compressed_tensors() -> None:
    """Kimi-K3's own checkpoint, which has no scales of FP8; FP8 by tensor it still refuses."""
    asked = ("hardware=b300-sxm-270gb", "tensor_parallel_size=8", "engine.name=tensorrt-llm", "engine.version='1.3'")
    shape = resolved(*asked, model="kimi-k3").shape
    method = next(each for each in load_engine("tensorrt-llm").versions if each.version == "1.3").checkpoints
    by_tensors = next(each for each in method.loaded_methods if each.method == "compressed-tensors")
    stored = shape.model.stored

    assert shape.quantization == "mxfp4"
    assert by_tensors.covers(stored)
    assert by_tensors.covers(stored.model_copy(update={"format": "fp8", "fp8_scales": "channel"}))
    assert not by_tensors.covers(stored.model_copy(update={"format": "fp8", "fp8_scales": "tensor"}))
    assert not by_tensors.covers(stored.model_copy(update={"format": "int8"}))


@pytest.mark.parametrize("asked", ["4bit", "8-bit"])
def test_a_number_of_bits_names_every_format_and_guesses_none(asked: str) -> None:
    """It may be AWQ's or GPTQ's as well as llama.cpp's."""
    with pytest.raises(ScenarioError, match=f"'{asked}' must be .*'awq-int4'.*'gguf-q4_k_m'") as refusal:
        make_scenario([f"deployment.quantization={asked}"])

    assert "did you mean" not in str(refusal.value)


def test_a_kv_cache_type_of_llama_cpp_that_is_not_simulated_names_the_nearest() -> None:
    """In place of a list of all formats."""
    with pytest.raises(ScenarioError, match=r"'q5_1' is a KV cache type that is not simulated; .*'q4_0', int4"):
        resolved("kv_cache_dtype=q5_1")


MODELOPT = "nvidia/Llama-3.1-8B-Instruct-FP8"


@pytest.mark.parametrize(
    ("model", "overrides", "kv_cache", "source"),
    [
        (MODELOPT, ("engine.name=tensorrt-llm", "engine.version=1.0"), "fp8", "as the checkpoint asks"),
        (MODELOPT, ("engine.name=sglang", "engine.version=0.5.4"), "fp8", "as the checkpoint asks"),
        (MODELOPT, ("engine.version=0.14",), "fp8", "as the checkpoint asks"),
        (MODELOPT, ("engine.version=0.12",), "bf16", "16 bit by default"),
        (MODELOPT, ("engine.version=0.14", "kv_cache_dtype=bf16"), "bf16", "as asked"),
        ("llama-3.1-8b", ("engine.name=tensorrt-llm", "engine.version=1.0"), "bf16", "16 bit by default"),
        ("llama-3.1-8b", ("hardware=v100s-32gb",), "fp16", "16 bit by default"),
        ("glm-5", (*BIG, "engine.name=sglang"), "bf16", "16 bit by default"),
        ("deepseek-v4-flash", (*BIG, "engine.version=0.33"), "fp8", "the one format of compressed attention"),
        (
            "glm-5",
            ("hardware=b200-sxm-180gb", "tensor_parallel_size=8", "engine.name=sglang"),
            "fp8",
            "sglang's default for sparse attention",
        ),
        (
            "minimax-m3",
            ("hardware=b300-sxm-270gb", "tensor_parallel_size=8", "engine.name=sglang"),
            "bf16",
            "16 bit by default",
        ),
        ("deepseek-v3.2", (*BIG, "engine.version=0.11.0"), "fp8", "vllm's default for sparse attention"),
        ("deepseek-v3.2", (*BIG, "engine.version=0.11.1"), "bf16", "16 bit by default"),
        ("glm-5", (*BLACKWELL, "engine.version=0.20.2"), "bf16", "16 bit by default"),
        ("glm-5", (*BLACKWELL, "engine.version=0.32"), "fp8", "vllm's default for sparse attention"),
        ("glm-5", (*BIG, "engine.version=0.32"), "bf16", "16 bit by default"),
        ("deepseek-v3.2", (*BLACKWELL, "engine.version=0.33"), "bf16", "16 bit by default"),
    ],
)
def test_auto_is_what_the_engine_makes_of_the_checkpoint(
    model: str, overrides: tuple[str, ...], kv_cache: str, source: str
) -> None:
    """16 bit, or FP8 where a checkpoint asks for it and the version heeds it."""
    found = resolved(*overrides, model=model)

    assert (found.formats["kv_cache"], found.formats["kv_cache_source"]) == (kv_cache, source)
    assert found.shape.kv_cache_dtype == kv_cache


def test_narrow_kv_of_a_checkpoint_halves_the_bytes() -> None:
    """What is resolved is what memory and steps are reckoned with."""
    narrow, wide = (resolved(f"engine.version={version}", model=MODELOPT) for version in ("0.14", "0.12"))

    assert wide.memory.kv_bytes_per_token == 2 * narrow.memory.kv_bytes_per_token


def test_compressed_attention_is_cached_in_one_format() -> None:
    """Another would change no byte, so it is refused rather than taken."""
    with pytest.raises(ScenarioError, match="cached in fp8 alone"):
        resolved(*BIG, "engine.version=0.33", "kv_cache_dtype=bf16", model="deepseek-v4-flash")


@pytest.mark.parametrize(("hardware", "num_bytes"), [("h200-sxm-141gb", 656), ("b200-sxm-180gb", 576)])
def test_sparse_latents_in_fp8_are_packed_before_blackwell(hardware: str, num_bytes: int) -> None:
    """512 elements with 4 scales and 64 in 16 bit; or one byte each; the indexer's key beside them."""
    overrides = (f"hardware={hardware}", "tensor_parallel_size=8", "kv_cache_dtype=fp8")
    found = resolved(*overrides, model="deepseek-v3.2")

    assert found.memory.kv_bytes_per_token == pytest.approx(61 * (num_bytes + 132))


def test_each_pool_has_the_formats_of_its_own_model() -> None:
    """One scenario, two models, two formats; a pool may ask for another."""
    pools = [
        {"name": "large", "model": "gpt-oss-20b"},
        {"name": "small", "model": "llama-3.1-8b", "quantization": "fp8"},
        {"name": "plain", "model": "llama-3.1-8b"},
    ]
    deployment = {"hardware": "h100-sxm-80gb", "pools": pools, "engine": {"max_model_len": 8192}}
    found = resolve(make_scenario(deployment=deployment))

    assert {name: each["weights"] for name, each in found.formats["pools"].items()} == {
        "large": "mxfp4",
        "small": "fp8",
        "plain": "bf16",
    }
    assert formats_line(found.formats).startswith(
        "large: weights mxfp4, as stored in openai/gpt-oss-20b; KV bf16; small"
    )


def test_a_draft_runs_as_it_is_stored() -> None:
    """A draft model in its own format, an MTP layer in that of the target's checkpoint; a word changes the first."""
    drafts = {
        "method": "draft_model",
        "draft_model": "gpt-oss-20b",
        "num_speculative_tokens": 3,
        "acceptance_rate": 0.6,
    }
    engine = {"version": "0.33", "max_model_len": 4096}

    def draft(speculative: dict[str, Any], model: str, **deployment: Any) -> str:
        whole = {"hardware": "h200-sxm-141gb", "engine": engine, "speculative": speculative, **deployment}
        speculation = resolve(make_scenario(model=model, deployment=whole)).shape.speculation
        assert speculation is not None
        assert speculation.draft is not None
        return speculation.draft.quantization

    assert draft(drafts, "gpt-oss-120b") == "mxfp4"
    assert draft({**drafts, "draft_quantization": "none"}, "gpt-oss-120b") == "none"
    layer = {"method": "mtp", "num_speculative_tokens": 1, "acceptance_rate": 0.8}
    assert draft(layer, "deepseek-r1", tensor_parallel_size=8) == "fp8"
    on_blackwell = {"hardware": "b200-sxm-180gb", "tensor_parallel_size": 8}
    assert draft(layer, "nvidia/DeepSeek-R1-0528-NVFP4-v2", **on_blackwell) == "none"


def test_formats_that_can_be_had_are_listed_with_where_they_come_from() -> None:
    """Stored, other public checkpoints, and what the engine makes of 16 bit; nothing that does not run."""
    shape = make_shape("a100-sxm-80gb", "llama-2-7b", version="0.20")

    found = formats_available(shape.model, shape.engine, shape.hardware)
    assert found[0] == AvailableFormat(format="none", how="stored", repository="meta-llama/Llama-2-7b-hf")
    assert {each.format: each.label for each in found[1:]} == {
        "awq-int4": "checkpoint TheBloke/Llama-2-7B-AWQ",
        "gptq-int4": "checkpoint TheBloke/Llama-2-7B-GPTQ",
        "gguf-q4_k_m": "checkpoint TheBloke/Llama-2-7B-GGUF",
        "fp8": "quantised on load by vllm",
        "nf4": "quantised on load by vllm",
        "int8-wo": "quantised on load by vllm",
    }


def test_no_engine_quantises_what_is_quantised() -> None:
    """DeepSeek-V3 is stored in FP8: no 16-bit weights to make others of."""
    shape = make_shape("h200-sxm-141gb", "deepseek-v3", tensor_parallel_size=8)

    assert {each.format for each in formats_available(shape.model, shape.engine, shape.hardware)} == {"fp8", "nvfp4"}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi", "transformers", "llama.cpp", "ollama"])
def test_what_an_engine_makes_it_runs(engine: str) -> None:
    """Every format that a version quantises to is one of those it has kernels for."""
    for known in load_engine(engine).versions:
        made = {*known.checkpoints.quantises_on_load, *known.checkpoints.quantises_before_loading}
        assert made <= set(known.kernels.quantizations), known.version


def test_a_search_starts_from_the_stored_format_by_name() -> None:
    """So that what it finds says what it is."""
    assert with_stored_format(make_scenario(model="glm-5")).deployment.quantization == "fp8"
    asked = make_scenario(["deployment.quantization=none"], model="glm-5")
    assert with_stored_format(asked) is asked


def test_every_stored_checkpoint_is_a_model_of_its_own() -> None:
    """Each repository of the catalogue stands in one profile only."""
    models = [load_model(name) for name in catalog.names("model")]
    repositories = [each.repository for model in models for each in model.checkpoints if each.repository]
    assert len(repositories) == len(set(repositories))


@pytest.mark.parametrize(
    ("engine", "weights", "bytes_each"), [("vllm", "fp16", 2), ("sglang", "fp16", 2), ("transformers", "fp32", 4)]
)
def test_32_bit_weights_are_what_the_engine_loads_them_as(
    engine: str, weights: str, bytes_each: int, tmp_path: Path
) -> None:
    """Engines of vLLM and SGLang cast them where nobody asks for 32 bit; transformers keeps them."""
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_3_8B, "torch_dtype": "float32"}), encoding="utf-8")

    found = resolved("hardware=h100-sxm-80gb", f"engine={{name: {engine}}}", model=f"{tmp_path}/config.json")

    assert found.formats["weights"] == weights
    assert found.memory.weights_bytes == pytest.approx(bytes_each * 8.03e9, rel=0.01)
