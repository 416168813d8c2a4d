"""Kernels of routed experts where a GPU has no table of its own."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from simserve.perf.gemm import GemmDevice, device_of, gemm_curve
from simserve.perf.moe import (
    ExpertLoad,
    ExpertShape,
    class_local_passes,
    expected_distinct_experts,
    expert_curve,
    expert_seconds,
    expert_work,
    routed_load,
)
from simserve.perf.operators import PART_NAMES
from simserve.perf.shape import Speculation
from simserve.perf.tables import price
from simserve.profiles.hardware import load_hardware
from simserve.profiles.kernel_curves import GemmClass
from tests.perf.shapes import make_model, make_shape


def test_qwen3_30b_touches_the_experts_that_were_counted() -> None:
    """58.7 of 128 with a token each of 16 sequences, the mean of 48 layers (the profile names the count)."""
    moe = make_model("qwen3-30b-a3b").moe
    assert moe is not None
    tokens = np.array([16.0])
    counted = routed_load(moe.num_experts, moe.num_experts_per_tok, tokens, decay=moe.routing_decay)

    assert counted.distinct == pytest.approx(58.7, rel=0.02)
    assert routed_load(moe.num_experts, moe.num_experts_per_tok, tokens).distinct > 1.05 * 58.7


def test_drafts_of_a_sequence_touch_fewer_experts_than_tokens_of_others() -> None:
    """Four tokens of one sequence load 2.5 times the experts of one (Cohere, 128 experts, 8 a token), not 3.2 times."""
    tokens = np.array([4.0])
    alone, together = (routed_load(128, 8, tokens, decay=4.6, repeats=0.3, tokens_per_sequence=n) for n in (1, 4))

    assert alone.distinct / 8 == pytest.approx(3.2, abs=0.05)
    assert together.distinct / 8 == pytest.approx(2.5, abs=0.25)
    assert together.pairs == pytest.approx(alone.pairs)


def test_a_step_that_verifies_drafts_reads_the_experts_that_they_share_once() -> None:
    """Qwen3-30B-A3B: verifying is quicker than if each draft chose anew, and a step without drafts is what it was."""
    plain = make_model("qwen3-30b-a3b")
    assert plain.moe is not None
    anew = plain.model_copy(update={"moe": plain.moe.model_copy(update={"routing_repeats": 0.0})})
    found = []
    for model in (plain, anew):
        shape = make_shape("h100-sxm-80gb", model, version="0.12", max_model_len=8192)
        drafts = Speculation(method="ngram", num_speculative_tokens=4, draft=None)
        found.append([price(each, 16).step_times for each in (shape, replace(shape, speculation=drafts))])
    (alone, verified), (alone_anew, verified_anew) = found

    assert alone.decode_base == alone_anew.decode_base
    assert verified.decode_base[4] < 0.95 * verified_anew.decode_base[4]
    assert verified.token_seconds == verified_anew.token_seconds


def test_marlin_stands_in_for_mxfp4_experts_where_no_table_is() -> None:
    """An A100 decodes 16 sequences of gpt-oss-20b with the INT4 kernels: no tiles of 64 rows for one row an expert."""
    small, large = (
        price(make_shape(name, "gpt-oss-20b", quantization="mxfp4"), 64).step_times.decode_base[16]
        for name in ("h100-sxm-80gb", "a100-sxm-80gb")
    )

    assert small < large < 2.0 * small


@pytest.mark.parametrize(("model", "versions"), [("qwen3-30b-a3b", ("0.5.5", "0.5.6")), ("glm-5", ("0.5.5", "0.5.6"))])
def test_experts_are_one_operator_where_flashinfer_runs_them(model: str, versions: tuple[str, str]) -> None:
    """A prompt under SGLang on Blackwell waits for 1.7 ms a layer of Triton's kernels, in 8 bits too."""
    before, after = (
        price(
            make_shape(
                "b200-sxm-180gb", model, engine="sglang", version=each, quantization="fp8", tensor_parallel_size=8
            ),
            64,
        )
        for each in versions
    )
    host = PART_NAMES.index("host")

    assert before.parts.token[host, 64] > 2.0 * after.parts.token[host, 64]


def test_deepep_keeps_experts_from_triton() -> None:
    """SGLang's experts behind DeepEP are DeepGEMM's (fp8.py, create_moe_runner)."""
    near = make_shape("b200-sxm-180gb", "minimax-m2", engine="sglang", version="0.5.8")
    far = replace(near, data_parallel_size=8, enable_expert_parallel=True, all2all_backend="deepep_low_latency")

    assert (near.expert_maker("fp8_block"), far.expert_maker("fp8_block")) == ("triton", "")


def test_formats_of_one_model_may_run_on_two_makers_experts() -> None:
    """SGLang 0.5.7: Qwen3 in FP8 by blocks on FlashInfer's one operator, in 16 bit on Triton's kernels."""
    plain, narrow = (
        price(make_shape("b200-sxm-180gb", "qwen3-30b-a3b", engine="sglang", version="0.5.7", quantization=name), 64)
        for name in ("none", "fp8")
    )
    host = PART_NAMES.index("host")

    assert plain.parts.token[host, 64] > 5.0 * narrow.parts.token[host, 64]


@pytest.mark.parametrize(
    ("hardware", "model", "version", "kernels", "maker"),
    [
        ("b200-sxm-180gb", "glm-4.5-air", "0.5.1", "fp8", "triton"),  # compressed_tensors_moe.py
        ("b200-sxm-180gb", "llama-4-scout", "0.5.4", "fp8", "triton"),
        ("b200-sxm-180gb", "llama-4-scout", "0.5.5", "fp8", ""),
        ("b200-sxm-180gb", "nemotron-3-nano-30b-a3b", "0.5.8", "fp8", "cutlass"),  # experts without a gate
        ("b200-sxm-180gb", "nemotron-3-nano-30b-a3b", "0.5.11", "fp8", ""),
        ("rtx-pro-6000-96gb", "nemotron-3-nano-30b-a3b", "0.5.8", "fp8", "triton"),  # no server GPU
        ("b200-sxm-180gb", "minimax-m2", "0.5.9", "fp8_block", "triton"),
        ("b200-sxm-180gb", "deepseek-v3.2", "0.5.5", "fp8_block", "triton"),  # not with sparse attention
        ("b200-sxm-180gb", "deepseek-v3.2", "0.5.6", "fp8_block", ""),
        ("rtx-pro-6000-96gb", "qwen3-235b-a22b", "0.5.9", "fp8_block", "triton"),  # SM120
        ("b200-sxm-180gb", "qwen3-235b-a22b", "0.5.9", "fp8_block", ""),
    ],
)
def test_releases_of_sglang_name_whose_kernels_run_experts(
    hardware: str, model: str, version: str, kernels: GemmClass, maker: str
) -> None:
    """Server_args.py names families for FlashInfer on SM100; the others are Triton's in 16 and 8 bits."""
    shape = make_shape(hardware, model, engine="sglang", version=version)

    assert shape.expert_maker(kernels) == maker


@pytest.mark.parametrize(
    ("model", "version", "maker"),
    [
        ("minimax-m2", "0.16", "triton"),
        ("minimax-m2", "0.17", "triton"),
        ("deepseek-v3", "0.17", ""),  # its router alone has FlashInfer's kernel
        ("minimax-m2", "0.18", "flashinfer"),
    ],
)
def test_releases_of_vllm_name_whose_kernels_run_experts_by_blocks(model: str, version: str, maker: str) -> None:
    """Triton's until 0.17, by vLLM's own tiles and not SGLang's."""
    shape = make_shape("b200-sxm-180gb", model, version=version, quantization="fp8")
    other = make_shape("b200-sxm-180gb", model, engine="sglang", version="0.5.3", quantization="fp8")
    curves = [each.machine.grouped_gemm_curves["fp8_block"] for each in (shape, other)]

    assert shape.expert_maker("fp8_block") == maker
    assert curves[0] != curves[1]
    assert "sglang" in (curves[1].fit.source if curves[1].fit else "")


@pytest.mark.parametrize(("model", "version"), [("qwen3-30b-a3b", "0.5.9"), ("qwen3-235b-a22b", "0.5.8")])
def test_experts_in_16_bit_are_one_operator_too(model: str, version: str) -> None:
    """Qwen3 in BF16 on B200: FlashInfer's from 0.5.8 on, where it takes Triton's kernels on Hopper."""
    server, hopper = (
        price(make_shape(name, model, engine="sglang", version=version, tensor_parallel_size=8), 64)
        for name in ("b200-sxm-180gb", "h200-sxm-141gb")
    )
    host = PART_NAMES.index("host")

    assert server.parts.token[host, 64] < 0.5 * hopper.parts.token[host, 64]


def test_graphs_of_prompts_launch_experts_as_one_operator() -> None:
    """Up to their largest size: a step beyond it waits for Triton's kernels again."""
    plain = make_shape("h200-sxm-141gb", "qwen3-30b-a3b", engine="sglang", version="0.5.10", tensor_parallel_size=8)
    graphed = replace(plain, engine=plain.engine.model_copy(update={"cuda_graph_max_expert_tokens": 32}))
    host = PART_NAMES.index("host")
    without, on = (price(each, 64).parts.token[host] for each in (plain, graphed))

    assert on[32] < 0.5 * without[32]
    assert on[33] == pytest.approx(without[33])


def test_an_expert_is_three_matrices() -> None:
    """DeepSeek-V3's of 2,048 x 7,168 in FP8: ten pairs compute 2 x 3 of them each, five experts are read."""
    shape = ExpertShape(hidden_size=7168.0, intermediate_size=2048.0, up_projections=2.0, weight_bits=8.0)
    counts = {"pairs": 10.0, "distinct": 5.0, "routed": 10.0, "held": 8.0, "tokens": 10.0}
    work = expert_work(shape, ExpertLoad(**{name: np.array([value]) for name, value in counts.items()}))

    assert work.flops[0] == 10 * 2 * 3 * 2048 * 7168
    assert work.weight_bytes[0] == 5 * 3 * 2048 * 7168


@pytest.mark.parametrize(
    ("gpu", "model", "ranks", "version", "is_tuned"),
    [
        ("h200-sxm-141gb", "glm-4.6", 8, "0.16", False),  # 160 experts of 192
        ("h200-sxm-141gb", "glm-4.6", 8, "0.17", True),  # tiles by tokens
        ("h100-sxm-80gb", "glm-4.5-air", 4, "0.11", False),  # 128 of 352
        ("h100-sxm-80gb", "qwen3-235b-a22b", 8, "0.11", True),  # 128 of 192
        ("h100-sxm-80gb", "qwen3-30b-a3b", 1, "0.11", False),  # 128 of 768: on H200 alone
        ("h200-sxm-141gb", "qwen3-30b-a3b", 1, "0.11", True),
        ("h200-sxm-141gb", "qwen3-next-80b-a3b", 2, "0.9", False),  # 512 of 256: not yet
        ("h200-sxm-141gb", "qwen3-next-80b-a3b", 2, "0.10.2", True),
        ("h200-sxm-141gb", "llama-4-scout", 8, "0.11", False),  # 16 of 1,024
        ("h200-sxm-141gb", "llama-4-scout", 8, "0.12", True),
        ("a100-sxm-80gb", "glm-4.5-air", 4, "0.11", True),  # its table has default tiles
        ("h200-sxm-141gb", "qwen3-8b", 1, "0.11", True),  # no experts
    ],
)
def test_experts_of_vllm_without_tuned_tiles_are_those_of_sglangs_table(
    gpu: str, model: str, ranks: int, version: str, is_tuned: bool
) -> None:
    """Up to 0.16, by the files of layers/fused_moe/configs of the release; experts in other formats are as before."""
    shape = make_shape(gpu, model, engine="vllm", version=version, tensor_parallel_size=ranks)
    own, sglang = (shape.hardware.grouped_gemm_curves_of(name) for name in ("vllm", "sglang"))

    found = shape.machine.grouped_gemm_curves

    assert found["bf16"] == (own if is_tuned else sglang)["bf16"]
    assert found["int4_weight_only"] == own["int4_weight_only"]


def test_experts_placed_whole_have_tiles_by_what_a_rank_holds() -> None:
    """Qwen3-30B-A3B over two ranks of an H200: 64 experts of 768 have no file, 128 of 384 have one."""
    cut = make_shape("h200-sxm-141gb", "qwen3-30b-a3b", engine="vllm", version="0.11", tensor_parallel_size=2)
    whole = replace(cut, enable_expert_parallel=True)

    engines = [shape.machine.grouped_gemm_curves["bf16"].engines for shape in (cut, whole)]

    assert engines == [(), ("sglang",)]


DEFAULT_TILES = [(2048, 911.64), (3072, 1279.17), (4096, 1647.57)]
"""Tokens, us: Qwen3-30B-A3B in FP8 by tensor on an H100, its experts by the default tiles of vLLM before 0.17,
64 x 64 x 32 (vLLM pull request 24700, "Main"), to which no curve was fitted."""

LATER_TILES = [(64, 391.8), (256, 419.8), (512, 442.2), (1024, 536.5), (2048, 742.9), (4096, 1249.5)]
"""Tokens, us: Gemma-4-26B-A4B's experts in BF16 on an H200 by the default tiles of vLLM from 0.17 on (vLLM pull
request 44818; tuned ones within 5 %), to which no curve was fitted."""


def test_default_tiles_are_as_slow_as_their_own_benchmarks_say() -> None:
    """Those before 0.17 within 8 % of SGLang's curve, where vLLM's has 0.6 of the time; those since within 10 % of
    vLLM's, where SGLang's has up to 1.5 times it."""

    def ratios(gpu: str, engine: str, shape: ExpertShape, calls: list[tuple[int, float]]) -> list[float]:
        hardware = load_hardware(gpu)
        tokens = np.array([float(each) for each, _ in calls])
        distinct = expected_distinct_experts(128, 8, tokens)
        load = ExpertLoad(pairs=8 * tokens, distinct=distinct, routed=8 * tokens, held=128.0, tokens=tokens)
        device = GemmDevice(
            peak=hardware.peak_flops("bf16") or 0.0, bandwidth=hardware.memory.bandwidth, num_multiprocessors=132
        )
        found = expert_seconds(hardware.grouped_gemm_curves_of(engine)["bf16"], device, shape, load).total * 1e6
        return [each / us for each, (_, us) in zip(found, calls, strict=True)]

    qwen = ExpertShape(
        hidden_size=2048.0, intermediate_size=768.0, up_projections=2.0, weight_bits=8.0, input_bytes=1.0
    )
    gemma = ExpertShape(hidden_size=2816.0, intermediate_size=704.0, up_projections=2.0, weight_bits=16.0)

    assert ratios("h100-sxm-80gb", "sglang", qwen, DEFAULT_TILES) == pytest.approx([1.0] * 3, abs=0.09)
    assert max(ratios("h100-sxm-80gb", "vllm", qwen, DEFAULT_TILES)) < 0.66
    assert ratios("h200-sxm-141gb", "vllm", gemma, LATER_TILES) == pytest.approx([1.0] * 6, abs=0.11)
    assert max(ratios("h200-sxm-141gb", "sglang", gemma, LATER_TILES)) > 1.4


@pytest.mark.parametrize(
    ("gpu", "model", "engine", "version", "asked", "arithmetic"),
    [
        ("rtx-5090-32gb", "gpt-oss-20b", "vllm", "0.12", None, "bf16"),  # quantization/mxfp4.py, get_mxfp4_backend
        ("gb10-128gb", "gpt-oss-120b", "vllm", "0.20", None, "bf16"),
        ("rtx-pro-6000-96gb", "gpt-oss-120b", "vllm", "0.22", None, "fp8"),  # oracle/mxfp4.py
        ("rtx-pro-6000-96gb", "gpt-oss-120b", "vllm", "0.28", "marlin", "bf16"),
        ("rtx-pro-6000-96gb", "deepseek-v4-flash", "vllm", "0.28", None, "bf16"),
        ("b200-sxm-180gb", "deepseek-v4-flash", "vllm", "0.28", None, "fp8"),
        ("b200-sxm-180gb", "gpt-oss-120b", "vllm", "0.12", None, "fp8"),
        ("rtx-4090-24gb", "gpt-oss-20b", "vllm", "0.28", None, "bf16"),  # no arithmetic in 4 bit
        ("rtx-pro-6000-96gb", "deepseek-v4-flash", "sglang", "0.5.15", None, "bf16"),  # _deepseek_v4_sm120_moe
        ("b200-sxm-180gb", "deepseek-v4-flash", "sglang", "0.5.15", None, "fp8"),
    ],
)
def test_mxfp4_on_workstation_blackwell_meets_the_inputs_that_the_engines_kernels_take(
    gpu: str, model: str, engine: str, version: str, asked: str | None, arithmetic: str
) -> None:
    """Marlin's 16 bit but for gpt-oss from vLLM 0.22 on, whose FlashInfer kernels round them to 8."""
    shape = make_shape(gpu, model, engine=engine, version=version, quantization="mxfp4", moe_backend=asked)

    experts = shape.precisions["experts"][0][0]

    assert (experts.name, experts.arithmetic) == ("mxfp4", arithmetic)
    assert experts.min_tile_rows == (16 if arithmetic == "bf16" else 64)


def test_experts_of_marlin_take_fewer_rows_at_once_on_an_rtx_5090() -> None:
    """gpt-oss-20b under vLLM 0.12, 29 % below kyuz0's tokens/s with inputs in 8 bit: 64 sequences decode at least 4 %
    quicker."""
    shape = make_shape("rtx-5090-32gb", "gpt-oss-20b", engine="vllm", version="0.12", quantization="mxfp4")
    engine = shape.engine.model_copy(update={"wide_mxfp4_since": None})

    marlin, rounded = (price(each).step_times.decode_base[64] for each in (shape, replace(shape, engine=engine)))

    assert marlin < 0.96 * rounded


def fp8_experts(intermediate_size: float) -> ExpertShape:
    """Return experts in FP8 between 2,048 channels."""
    return ExpertShape(
        hidden_size=2048.0,
        intermediate_size=intermediate_size,
        up_projections=2.0,
        weight_bits=8.0,
        input_bytes=1.0,
    )


def even_load(num_experts: int, tokens: NDArray[np.float64]) -> ExpertLoad:
    """Return what some numbers of tokens ask of experts, eight a token, shape of ``tokens``."""
    return ExpertLoad(
        pairs=8 * tokens,
        distinct=expected_distinct_experts(num_experts, 8, tokens),
        routed=8 * tokens,
        held=float(num_experts),
        tokens=tokens,
    )


def test_experts_of_a_gpu_with_a_large_cache_take_what_was_measured() -> None:
    """An L40S: 128 experts of 2048 x 768 in FP8, 8 a token, default tiles (us, vLLM pull request 53710)."""
    measured = {16: 592.31, 64: 902.75, 256: 978.59, 1024: 1126.08, 4096: 1916.23, 8192: 3195.68}
    machine, tokens = make_shape("l40s-48gb", "qwen3-30b-a3b").machine, np.array(list(measured), dtype=float)
    passes = class_local_passes(load_hardware("l40s-48gb"), "fp8")
    curve = expert_curve(machine, "fp8", "fp8", local_passes=passes)

    seconds = expert_seconds(curve, device_of(machine, "fp8"), fp8_experts(768), even_load(128, tokens)).total

    assert seconds * 1e6 == pytest.approx(list(measured.values()), rel=0.06)


def test_kernels_that_unpack_weights_keep_the_passes_of_their_class() -> None:
    """Marlin's experts on an RTX PRO 6000 read and write pairs as often as on an H100, where they were fitted."""
    card = load_hardware("rtx-pro-6000-96gb")

    passes = [class_local_passes(card, each) for each in ("fp8", "int4_weight_only", "mxfp4_weight_only", None)]

    assert passes == [0.3, 4.0, 4.0, 4.0]


def test_few_tokens_of_experts_in_fp8_by_blocks_take_narrow_tiles() -> None:
    """An RTX 5090: 256 experts of 2048 x 256, 8 a token (us, vLLM pull request 45379), within 17 %; 35 with 64 rows."""
    measured = {16: 120.76, 24: 151.61, 64: 234.53}
    machine, tokens = make_shape("rtx-5090-32gb", "qwen3-30b-a3b").machine, np.array(list(measured), dtype=float)
    curve = expert_curve(machine, "fp8_block", "fp8", local_passes=0.3)

    seconds = expert_seconds(curve, device_of(machine, "fp8"), fp8_experts(256), even_load(256, tokens)).total

    assert seconds * 1e6 == pytest.approx(list(measured.values()), rel=0.17)


GRAPHS = {"cuda_graph_sizes": (1, 2, 4, 8), "cuda_graph_max_batch": 8, "cuda_graph_max_prompt_tokens": 0}


def decode_experts(model: str, version: str, hardware: str = "gb10-128gb", **overrides: object) -> list[float]:
    """Return the seconds of decode steps of 1 to 8 sequences, by graphs of 1, 2, 4 and 8."""
    shape = make_shape(hardware, model, version=version, engine_fields=GRAPHS, **overrides)
    return list(price(shape).parts.decode.sum(axis=0)[1:9])


@pytest.mark.parametrize("model", ["gpt-oss-120b", "qwen3.5-35b-a3b", "minimax-m2"])
def test_rows_that_pad_a_step_choose_no_experts_on_the_second_runner(model: str) -> None:
    """vLLM 0.29 takes as long as 0.26 where the graph is full, and less between; every sequence adds its experts."""
    old, new = decode_experts(model, "0.26"), decode_experts(model, "0.29")

    full, between = [0, 1, 3, 7], [2, 4, 5, 6]
    assert [new[each] for each in full] == pytest.approx([old[each] for each in full], rel=0.01)
    assert all(new[each] < 0.98 * old[each] for each in (2, 4))
    assert all(new[each] < old[each] for each in between)
    assert all(later > 1.02 * earlier for earlier, later in pairwise(new))


def test_gpt_oss_on_a_gb10_adds_as_much_with_every_stream() -> None:
    """The steps of 1 to 8 streams that a GB10 was measured at under vLLM 0.30 lie on a line, as here (within 15 %)."""
    measured = [28.9, 33.7, 41.4, 48.8, 55.3, 61.5, 68.3, 74.0]

    steps = decode_experts("gpt-oss-120b", "0.30", quantization="mxfp4")

    assert [1e3 * each for each in steps] == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize("model", ["gemma-4-26b-a4b", "nemotron-3-nano-30b-a3b", "glm-4.5-air", "deepseek-v2-lite"])
def test_custom_and_grouped_routers_send_padding_to_experts(model: str) -> None:
    """Their steps of five sequences cost what one of eight costs but for attention, in 0.26 and 0.30."""
    steps = decode_experts(model, "0.30")

    assert not make_shape("gb10-128gb", model, version="0.30").skips_padding
    assert steps[4] == pytest.approx(steps[7], rel=0.03)


def test_kernels_that_route_themselves_get_no_mask() -> None:
    """TensorRT-LLM's on Blackwell and Triton's of MXFP4 on Hopper; nor does the first runner or another maker."""
    chosen = {"version": "0.30", "quantization": "mxfp4"}

    assert not make_shape("b200-sxm-180gb", "gpt-oss-120b", **chosen).skips_padding
    assert not make_shape("h100-sxm-80gb", "gpt-oss-120b", **chosen).skips_padding
    assert not make_shape("mi300x-192gb", "qwen3-30b-a3b", version="0.30").skips_padding
    assert not make_shape("h100-sxm-80gb", "qwen3-30b-a3b", version="0.28").skips_padding
    assert not make_shape("h100-sxm-80gb", "qwen3-30b-a3b", engine="sglang").skips_padding
    assert make_shape("h100-sxm-80gb", "qwen3-30b-a3b", version="0.30").skips_padding


def test_experts_hide_memory_traffic_where_other_products_do_not() -> None:
    """On CDNA 4, whose AITER kernels were fitted; a T4, whose loads and arithmetic alternate, has one exponent."""
    cdna4, turing = make_shape("mi355x-288gb", "qwen3-30b-a3b").machine, make_shape("t4-16gb", "qwen3-30b-a3b").machine

    overlaps = [(gemm_curve(each, None, "fp16").overlap, expert_curve(each, None, "fp16").overlap)
                for each in (cdna4, turing)]  # fmt: skip

    assert overlaps == [(1.0, 2.0), (1.0, 1.0)]


@pytest.mark.parametrize(("engine", "before", "since"), [("vllm", "0.18", "0.19"), ("sglang", "0.5.8", "0.5.9")])
def test_experts_in_mxfp4_on_cdna_4_have_aiters_tiles_from_a_release_on(engine: str, before: str, since: str) -> None:
    """GLM-5.2 over four MI355X: a layer of one token took twice as long in releases whose AITER has no tiles for it."""

    def seconds(version: str) -> float:
        shape = make_shape(
            "mi355x-288gb", "glm-5.2", engine=engine, version=version, tensor_parallel_size=4, quantization="mxfp4"
        )
        return float(price(shape, 8).parts.decode[:, 1].sum())

    assert 20e-6 < (seconds(before) - seconds(since)) / 75 < 40e-6
