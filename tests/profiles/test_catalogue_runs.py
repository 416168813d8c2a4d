"""Every model and every GPU of the catalogue can be priced and its memory planned, under every engine."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from simserve.errors import InputError
from simserve.perf.memory import MemoryPlan, plan_memory, with_room_for_states
from simserve.perf.shape import ReplicaShape
from simserve.perf.tables import price
from simserve.profiles import catalog
from simserve.profiles.catalog import load_model
from simserve.profiles.engine import load_engine
from simserve.profiles.hardware import load_hardware
from simserve.profiles.model import ModelProfile
from tests.perf.shapes import make_shape

CONTEXT = 2048
TABLE_TOKENS = 256

# Tensor and pipeline sizes in the order they are tried.
SIZES = [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4), (8, 6)]

# Engines that set KV aside for every seat get one seat, so that the largest models fit a few nodes.
STATIC_KV_SEATS = {"llama.cpp": 1, "fastertransformer": 1, "orca": 1, "transformers": 1}

# A model that fits one GPU of the kind in 16 bits; where there is no BF16 it runs in FP16.
ON_ONE_GPU = {
    "t4-16gb": "llama-3.2-3b",
    "rtx-3090-24gb": "llama-3.1-8b",
    "v100s-32gb": "llama-3.1-8b",
    "a40-48gb": "phi-4",
    "rtx-pro-6000-96gb": "qwen2.5-32b",
    "gh200-96gb": "qwen3-32b",
    "h20-96gb": "qwen3-32b",
    "rtx-5090-32gb": "qwen3-8b",
    "m2-max-96gb": "gpt-oss-20b",
    "b200-sxm-180gb": "llama-3.3-70b",
    "mi300x-192gb": "llama-3.3-70b",
    "a800-sxm-80gb": "qwen3-32b",
    "gb10-128gb": "qwen3-32b",
    "v100-sxm-32gb": "llama-3.1-8b",
    "b300-sxm-270gb": "qwen2.5-72b",
    "gb200-186gb": "llama-3.3-70b",
    "gb300-279gb": "qwen2.5-72b",
    "mi350x-288gb": "qwen2.5-72b",
    "mi355x-288gb": "qwen2.5-72b",
    "rtx-4000-ada-20gb": "qwen3-4b",
    "rtx-5000-ada-32gb": "qwen3-8b",
    "m4-max-128gb": "qwen3-32b",
    "m5-ultra-512gb": "llama-3.3-70b",
    "tpu-v6e-32gb": "llama-3.1-8b",
    "trainium2-96gb": "qwen3-32b",
    "gaudi3-128gb": "qwen3-32b",
    "rtx-6000d-84gb": "qwen3-32b",
    "quadro-rtx-8000-48gb": "phi-4",
    "jetson-orin-nano-8gb": "llama-3.2-1b",
    "gtx-1650-4gb": "smollm2-360m",
    "rtx-3060-laptop-6gb": "smollm2-360m",
    "rtx-4050-laptop-6gb": "smollm2-360m",
}
SMALL_MODEL = "llama-3.2-1b"
TOO_SMALL = {("gtx-1650-4gb", "sglang")}
"""GPUs with less memory than an engine sets aside for prompts and graphs on its own."""
NUM_PARTS = 6
"""Tests that go through a catalogue together, so that workers share it."""


def make_shape_of(
    gpu: str, model: str, engine: str, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1, **rest: str
) -> ReplicaShape:
    """Return a deployment for requests of up to 2,048 tokens, or as many as the model takes."""
    seats = {"max_num_seqs": STATIC_KV_SEATS[engine]} if engine in STATIC_KV_SEATS else {}
    return make_shape(
        gpu,
        model,
        engine=engine,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        max_model_len=min(CONTEXT, load_model(model).max_position_embeddings),
        **seats,
        **rest,
    )


def smallest_fit(gpu: str, model: str, engine: str) -> tuple[ReplicaShape, MemoryPlan]:
    """Return the first of the sizes tried that holds the model in its own 16-bit dtype, with its plan."""
    weights_bytes, gpu_bytes = 2 * load_model(model).num_parameters, load_hardware(gpu).memory.total
    for ranks, stages in SIZES:
        if weights_bytes > ranks * stages * gpu_bytes or not divides(load_model(model), ranks):
            continue
        shape = with_room_for_states(make_shape_of(gpu, model, engine, ranks, stages))
        plan = plan_memory(shape)
        if plan.fits:
            return shape, plan
    raise AssertionError(f"{model} fits no size tried on {gpu} under {engine}")


def divides(model: ModelProfile, ranks: int) -> bool:
    """Return whether an engine accepts so many tensor-parallel ranks."""
    try:
        model.attention_gemms(ranks)
    except InputError:
        return False
    return True


def assert_priced(shape: ReplicaShape) -> None:
    """Assert that every step costs a finite, positive time that never falls with more work."""
    times, where = price(shape, TABLE_TOKENS).step_times, (shape.model.name, shape.hardware.name, shape.engine.name)
    for table in (times.decode_base, times.token_seconds):
        assert all(math.isfinite(seconds) and seconds > 0 for seconds in table[1:]), where
        assert list(table) == sorted(table), where
    assert times.decode_slope[1] > 0, where
    assert times.prefill_pair_seconds > 0, where


def check_model(model: str, priced: Sequence[str]) -> None:
    """Assert that a model fits under every engine, and that each step under those of ``priced`` has a time."""
    for engine in catalog.names("engine"):
        shape, plan = smallest_fit("h200-sxm-141gb", model, engine)

        if engine in priced:
            assert_priced(shape)
        assert plan.weights_bytes > 0, (model, engine)
        assert plan.longest_sequence >= plan.max_model_len, (model, engine)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_model_fits_under_every_engine_and_runs(part: int) -> None:
    """In 16 bits, on as many H200 as it takes, up to six nodes; steps are priced under one engine in turn."""
    engines = catalog.names("engine")

    for place, model in list(enumerate(catalog.names("model")))[part::NUM_PARTS]:
        check_model(model, [engines[place % len(engines)]])


@pytest.mark.slow
@pytest.mark.parametrize("model", catalog.names("model"))
def test_every_model_runs_under_every_engine(model: str) -> None:
    """Likewise, with the steps of all of them."""
    check_model(model, catalog.names("engine"))


def engines_of(gpu: str) -> list[str]:
    """Return the engines whose profiles name the maker of a GPU."""
    devices = {name: load_engine(name).devices for name in catalog.names("engine")}
    return [name for name, each in devices.items() if each is not None and load_hardware(gpu).vendor in each.makers]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_gpu_runs_under_every_engine_of_its_maker(part: int) -> None:
    """One GPU of every kind holds a model of its size."""
    for gpu in catalog.names("hardware")[part::NUM_PARTS]:
        engines = engines_of(gpu)

        assert engines, gpu
        for engine in engines:
            shape = make_shape_of(gpu, ON_ONE_GPU.get(gpu, SMALL_MODEL), engine)
            assert_priced(shape)
            assert plan_memory(shape).fits == ((gpu, engine) not in TOO_SMALL), (gpu, engine)


@pytest.mark.slow
def test_every_gpu_with_links_runs_in_parallel() -> None:
    """Two ranks over whatever link the kind has, and a refusal by name where it has none."""
    for gpu in catalog.names("hardware"):
        shape = make_shape_of(gpu, SMALL_MODEL, "vllm", tensor_parallel_size=2)
        hardware = load_hardware(gpu)

        if hardware.intra_node.kind == hardware.inter_node.kind == "none":
            with pytest.raises(InputError, match="tensor_parallel_size"):
                price(shape, TABLE_TOKENS)
        else:
            assert_priced(shape)


@pytest.mark.parametrize(
    ("gpu", "model", "engine", "quantization"),
    [
        ("t4-16gb", "llama-3.1-8b", "vllm", "gptq-int4"),
        ("v100s-32gb", "llama-3.1-8b", "vllm", "gptq-int4"),
        ("v100s-32gb", "mixtral-8x7b", "vllm", "gptq-int4"),
        ("rtx-3090-24gb", "codellama-34b", "llama.cpp", "gguf-q4_k_m"),
        ("a40-48gb", "llama-3-70b", "llama.cpp", "gguf-q4_k_m"),
        ("m2-max-96gb", "llama-3.3-70b", "llama.cpp", "gguf-q4_k_m"),
        ("m2-max-96gb", "llama-3.3-70b", "ollama", "gguf-q4_k_m"),
        ("rtx-pro-6000-96gb", "llama-3.3-70b", "vllm", "fp8"),
        ("gh200-96gb", "qwen2.5-72b", "tensorrt-llm", "fp8"),
        ("mi300x-192gb", "mixtral-8x22b", "vllm", "fp8"),
        ("b200-sxm-180gb", "gpt-oss-120b", "sglang", "fp8"),
        ("b300-sxm-270gb", "llama-3.1-405b", "vllm", "nvfp4"),
        ("mi355x-288gb", "gpt-oss-120b", "vllm", "mxfp4"),
        ("m4-max-64gb", "llama-3.3-70b", "llama.cpp", "gguf-q4_0"),
        ("rtx-5000-ada-32gb", "codellama-34b", "llama.cpp", "gguf-q4_k_m"),
        ("gaudi3-128gb", "llama-3.3-70b", "vllm", "fp8"),
    ],
)
def test_quantised_models_run_on_one_gpu(gpu: str, model: str, engine: str, quantization: str) -> None:
    """What makes a large model fit a small GPU; weights take less than the GPU's memory."""
    shape = make_shape_of(gpu, model, engine, quantization=quantization)

    assert_priced(shape)
    assert plan_memory(shape).weights_bytes < shape.hardware.memory.total


@pytest.mark.parametrize(
    ("gpu", "model", "ranks"),
    [
        ("h200-sxm-141gb", "deepseek-r1", 8),
        ("h200-sxm-141gb", "glm-5", 8),
        ("h200-sxm-141gb", "qwen3.5-397b-a17b", 8),
        ("h100-sxm-80gb", "qwen3-next-80b-a3b", 2),
        ("b200-sxm-180gb", "kimi-k2", 8),
        ("mi300x-192gb", "deepseek-v3", 8),
        ("h200-sxm-141gb", "qwen3-235b-a22b", 4),
        ("h100-sxm-80gb", "minimax-m2", 4),
        ("h100-sxm-80gb", "llama-4-scout", 2),
    ],
)
def test_large_mixtures_of_experts_fit_a_node_in_fp8(gpu: str, model: str, ranks: int) -> None:
    """The deployments that publishers and benchmarks name."""
    shape = with_room_for_states(make_shape_of(gpu, model, "sglang", ranks, quantization="fp8"))

    assert_priced(shape)
    assert plan_memory(shape).fits


def test_fp16_models_run_in_bf16_where_there_is_no_fp16() -> None:
    """A TPU multiplies in BF16 alone: the bytes are the same, and the result says so."""
    precision = make_shape("tpu-v6e", "llama-2-7b").precision

    assert (precision.arithmetic, precision.weight_bits) == ("bf16", 16.0)
    assert precision.note == "tpu-v6e-32gb has no fp16 arithmetic: converted to bf16"


@pytest.mark.parametrize("gpu", ["t4-16gb", "v100s-32gb", "m2-max-96gb"])
def test_bf16_models_run_in_fp16_where_there_is_no_bf16(gpu: str) -> None:
    """The result says so; the bytes are the same; asking for BF16 by name is refused."""
    precision = make_shape(gpu, SMALL_MODEL).precision

    assert (precision.arithmetic, precision.wide_arithmetic, precision.weight_bits) == ("fp16", "fp16", 16.0)
    assert precision.note == f"{gpu} has no bf16 arithmetic: converted to fp16"
    with pytest.raises(InputError, match="needs bf16 arithmetic"):
        _ = make_shape(gpu, SMALL_MODEL, quantization="bf16").precision
