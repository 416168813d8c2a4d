"""All-reduces that hold a norm, norms over the heads of all ranks, experts as kernels pad them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from simserve.perf.efficiency import Array
from simserve.perf.operators import COMMUNICATION, OperatorSeconds, PricedDeployment
from simserve.perf.shape import marlin_padded
from simserve.perf.stage import (
    FUSED_BYTES,
    has_fused_all_reduce,
    head_norm_seconds,
    stage_blocks,
    stage_of,
    stage_seconds,
)
from simserve.perf.tables import price
from simserve.profiles.catalog import load_model
from tests.perf.shapes import make_shape


def communication(priced: PricedDeployment, tokens: int) -> float:
    """Return the seconds of communication in a step of so many prompt tokens."""
    return float(priced.parts.token[COMMUNICATION, tokens])


@pytest.mark.parametrize(
    ("hardware", "version", "ranks", "is_fused"),
    [
        ("h200-sxm-141gb", "0.18", 8, True),
        ("h200-sxm-141gb", "0.16", 8, False),
        ("a100-sxm-80gb", "0.18", 8, False),
        ("h200-sxm-141gb", "0.18", 1, False),
        ("b200-sxm-180gb", "0.18", 8, True),
        ("b300-sxm-270gb", "0.18", 4, True),
        ("rtx-pro-6000-96gb", "0.18", 4, False),
    ],
)
def test_small_all_reduces_hold_the_norm(hardware: str, version: str, ranks: int, is_fused: bool) -> None:
    """On Hopper and B200, over several ranks, from 0.17 on, up to half a megabyte over eight of Hopper, one of B200."""
    shape = make_shape(hardware, "llama-3.1-70b", version=version, tensor_parallel_size=ranks)
    by_ranks = FUSED_BYTES.get(shape.hardware.compute_capability or "", {})
    limit = int(by_ranks.get(ranks, 2.0**20) / (2 * shape.model.hidden_size))

    assert has_fused_all_reduce(shape, np.array([1.0, limit, limit + 1.0])).tolist() == [is_fused, is_fused, False]


def test_tensorrt_llm_fuses_what_its_own_kernel_sends() -> None:
    """Eight megabytes over eight ranks, sixteen times what vLLM asks of this kernel on Hopper; then NCCL reduces."""
    shape = make_shape("h200-sxm-141gb", "llama-3.1-70b", engine="tensorrt-llm", version="1.0", tensor_parallel_size=8)

    assert has_fused_all_reduce(shape, np.array([488.0, 489.0])).tolist() == [True, False]


@pytest.mark.parametrize(("model", "is_fused"), [("llama-3.1-70b", True), ("deepseek-v3", True), ("qwen3-32b", False)])
def test_tensorrt_llm_fuses_norms_by_family(model: str, is_fused: bool) -> None:
    """Its Llama, DeepSeek and gpt-oss call that kernel, its dense Qwen3 does not."""
    shape = make_shape("h200-sxm-141gb", model, engine="tensorrt-llm", version="1.0", tensor_parallel_size=8)

    assert has_fused_all_reduce(shape, np.array([8.0])).tolist() == [is_fused]


@pytest.mark.parametrize(("engine", "version"), [("vllm", "0.18"), ("sglang", "0.5.9"), ("tensorrt-llm", "1.0")])
def test_norms_are_kernels_of_their_own_between_nodes(engine: str, version: str) -> None:
    """The fused kernel reads the memory of the other ranks over NVLink; NCCL reduces over a network."""
    shape = make_shape("h200-sxm-141gb", "deepseek-v3", engine=engine, version=version, tensor_parallel_size=16)

    assert not has_fused_all_reduce(shape, np.array([1.0, 8.0])).any()


def test_a_fused_norm_shortens_decode_steps_alone() -> None:
    """A microsecond or two of each of 160 all-reduces; prompts send more than fits."""
    new = make_shape("h200-sxm-141gb", "llama-3.1-70b", version="0.18", tensor_parallel_size=8)
    engine = new.engine.model_copy(update={"fuses_all_reduce_norm": False})
    fused, apart = price(new), price(dataclasses.replace(new, engine=engine))

    assert 0.1e-3 < communication(apart, 1) - communication(fused, 1) < 1e-3
    assert communication(fused, 1024) == communication(apart, 1024)
    assert np.all(np.diff(fused.step_times.token_seconds) >= 0)


def test_norms_over_all_heads_add_a_reduction_a_layer() -> None:
    """MiniMax-M2: sums of squares of queries and keys, eight bytes a token."""
    model = load_model("minimax-m2")
    sizes = {"quantization": "fp8", "tensor_parallel_size": 8}
    whole = price(make_shape("h200-sxm-141gb", model, **sizes))
    apart = price(make_shape("h200-sxm-141gb", model.model_copy(update={"qk_norm": "per_head"}), **sizes))

    added = (communication(whole, 1) - communication(apart, 1)) / model.num_hidden_layers
    assert 2e-6 < added < 8e-6


def test_sglangs_kernel_refuses_sums_of_an_odd_number_of_tokens() -> None:
    """It takes multiples of 16 bytes; NCCL adds up 8 and 24, over eight H100 in 12 us more."""
    shape = make_shape("h100-sxm-80gb", "minimax-m2", engine="sglang", quantization="fp8", tensor_parallel_size=8)
    engine = shape.engine.model_copy(update={"aligns_all_reduce": False})
    tokens = np.array([1.0, 2.0, 3.0, 4.0])

    later = head_norm_seconds(shape, tokens) - head_norm_seconds(dataclasses.replace(shape, engine=engine), tokens)
    assert np.all((later[[0, 2]] > 8e-6) & (later[[0, 2]] < 20e-6))
    assert np.all(later[[1, 3]] == 0.0)
    assert not make_shape("h100-sxm-80gb", "minimax-m2", quantization="fp8").engine.aligns_all_reduce


def test_norms_over_the_heads_of_several_ranks_add_kernels() -> None:
    """MiniMax-M2: sums of squares, and the norm apart from the rotary embedding; on one GPU neither."""
    model = load_model("minimax-m2")
    per_head = model.model_copy(update={"qk_norm": "per_head"})
    added = {}
    for ranks in (1, 4):
        sizes = {"quantization": "fp8", "tensor_parallel_size": ranks, "gpu_memory_utilization": 0.95}
        apart = [price(make_shape("b200-sxm-180gb", each, **sizes)).parts.token for each in (model, per_head)]
        added[ranks] = float((apart[0] - apart[1])[:, 1].sum() - (apart[0] - apart[1])[COMMUNICATION, 1])

    assert added[1] == 0.0
    assert 1e-6 < added[4] / model.num_hidden_layers < 4e-6


def test_a_router_in_fp32_takes_what_the_ordinary_cores_take() -> None:
    """MiniMax-M2 on a B200: 8,192 tokens by 3,072 x 256 at 75 TFLOP/s and 62 layers are 11 ms at least."""
    model = load_model("minimax-m2")
    other = model.model_copy(update={"family": "mixtral"})
    sizes = {"engine": "vllm", "version": "0.23", "quantization": "fp8", "tensor_parallel_size": 4}
    b200, h200 = (
        [price(make_shape(gpu, each, **sizes)).step_times.token_seconds for each in (model, other)]
        for gpu in ("b200-sxm-180gb", "h200-sxm-141gb")
    )

    least = model.num_hidden_layers * 2 * 8192 * 3072 * 256 / 75e12
    assert least < b200[0][8192] - b200[1][8192] < 2 * least
    assert b200[0][1] > b200[1][1]
    assert np.array_equal(*h200)


def test_routers_of_few_tokens_have_a_kernel_of_their_own_under_newer_vllm() -> None:
    """MiniMax-M3's on a B200 takes 1.72 us for one token and 1.86 for two (vLLM pull request 44343), to 32 of them."""
    sizes = {"engine": "vllm", "quantization": "fp8", "tensor_parallel_size": 8}
    tokens = np.array([1.0, 2.0, 32.0, 33.0])

    def router(gpu: str, version: str) -> Array:
        stage = stage_of(make_shape(gpu, "minimax-m3", version=version, **sizes))
        calls = (call for block in stage_blocks(stage, has_prompts=False) for call in block.calls)
        (call,) = (call for call in calls if call.gemm is not None and call.gemm.name == "router")
        seconds = call.parts(tokens)
        assert isinstance(seconds, OperatorSeconds)
        return seconds.parts.sum(axis=0)

    older, newer = (router("b200-sxm-180gb", version) for version in ("0.23", "0.24"))
    assert newer[:2] == pytest.approx([1.72e-6, 1.86e-6], rel=0.05)
    assert np.all(newer[:3] < older[:3])
    assert newer[3] == older[3]
    on_ada = [router("rtx-pro-6000-96gb", version) for version in ("0.23", "0.24")]
    assert np.array_equal(*on_ada)


def test_marlin_multiplies_padded_experts() -> None:
    """gpt-oss: 2880 becomes 3072 of the model and 384 of the 360 that a rank of eight holds."""
    model = load_model("gpt-oss-120b")
    up, down = marlin_padded(*model.expert_gemms(8))

    assert (up.in_features, up.out_features) == (3072, 2 * 384)
    assert (down.in_features, down.out_features) == (384, 3072)


def test_vllm_computes_the_padding() -> None:
    """An expert of 2880 takes what one of 2944 does; SGLang's kernels were timed as they are."""
    model = load_model("gpt-oss-120b")
    assert model.moe is not None
    padded = model.model_copy(update={"moe": model.moe.model_copy(update={"moe_intermediate_size": 2944})})

    for engine, is_padding in (("vllm", True), ("sglang", False)):
        narrow, wide = (
            price(make_shape("h200-sxm-141gb", each, quantization="mxfp4", engine=engine)).step_times
            for each in (model, padded)
        )
        assert (narrow.token_seconds[4096] == wide.token_seconds[4096]) is is_padding


@pytest.mark.parametrize(
    ("model", "version", "ranks", "kernels"),
    [
        ("llama-3.1-70b", "1.1", 8, 2),
        ("llama-3.1-70b", "0.14", 8, 0),
        ("llama-3.1-70b", "1.1", 1, 0),
        ("llama-3.1-8b", "1.1", 8, 0),
        ("qwen3-32b", "1.1", 4, 0),
    ],
)
def test_all_reduces_of_a_large_llama_round_what_products_read(
    model: str, version: str, ranks: int, kernels: int
) -> None:
    """Under TensorRT-LLM's PyTorch backend, in FP8 with one scale a tensor: so many kernels fewer a layer."""
    sizes = {"engine": "tensorrt-llm", "version": version, "quantization": "fp8", "tensor_parallel_size": ranks}
    unlaunched: dict[str, Any] = {"eager_prompt_seconds_per_layer": None}
    shape = make_shape("h200-sxm-141gb", model, engine_fields=unlaunched, **sizes)
    apart = make_shape("h200-sxm-141gb", model, engine_fields=unlaunched | {"all_reduce_rounds_families": ()}, **sizes)
    rounding = shape.hardware.activation_quantisation
    assert rounding is not None

    saved = price(apart, 64).step_times.token_seconds[1] - price(shape, 64).step_times.token_seconds[1]
    least = kernels * shape.model.num_hidden_layers * rounding.start_latency
    assert least - 1e-9 <= saved <= 1.1 * least + 1e-9


def test_long_all_reduces_are_rounded_apart() -> None:
    """Over 8 MB on eight ranks, 488 tokens of 8,192, NCCL reduces."""
    shape, apart = (
        make_shape(
            "h200-sxm-141gb",
            "llama-3.1-70b",
            engine="tensorrt-llm",
            version="1.1",
            quantization="fp8",
            tensor_parallel_size=8,
            engine_fields=fields,
        )
        for fields in ({}, {"all_reduce_rounds_families": ()})
    )
    saved = np.subtract(*(price(each, 512).step_times.token_seconds for each in (apart, shape)))

    assert saved[488] > 0
    assert saved[489] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("engine", "version", "model", "starts"),
    [
        ("sglang", "0.5.6", "llama-3.1-8b", 32 * 8),
        ("sglang", "0.5.9", "llama-3.1-8b", 32 * 8),
        ("sglang", "0.5.6", "qwen3-30b-a3b", 48 * 6),
        ("sglang", "0.5.9", "qwen3-30b-a3b", 48 * 3),  # all-reduces hold its norms
        ("sglang", "0.5.9", "deepseek-v3", 3 * 2),
        ("vllm", "0.12", "llama-3.1-8b", 0),
    ],
)
def test_small_kernels_that_no_compiler_joins_take_longer(engine: str, version: str, model: str, starts: int) -> None:
    """Norms three starts of 1.5 us a layer, attention's three, an activation two; latent attention has others."""
    shape = make_shape("h200-sxm-141gb", model, engine=engine, version=version, tensor_parallel_size=2)
    joined = dataclasses.replace(shape, engine=shape.engine.model_copy(update={"unjoined_kernels": {}}))
    apart, together = (float(stage_seconds(stage_of(each), np.array([1.0])).parts.sum()) for each in (shape, joined))

    assert apart - together == pytest.approx(starts * 1.5e-6, abs=1e-9)


def test_one_gpu_has_no_all_reduce_that_holds_its_norms() -> None:
    """They are kernels of their own there, whatever the family's all-reduce holds over several."""
    shape = make_shape("h200-sxm-141gb", "qwen3-30b-a3b", engine="sglang", version="0.5.9", tensor_parallel_size=1)

    assert shape.engine.fuses_all_reduce_norm
    assert not has_fused_all_reduce(shape, np.array([1.0, 8.0])).any()
