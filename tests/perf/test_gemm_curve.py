"""The GEMM and expert curves: monotone in every size, bounded by the peaks, scaled as stated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.perf.gemm import (
    GemmDevice,
    ProductSizes,
    gemm_call,
    gemm_class,
    gemm_curve,
    gemm_seconds,
    gemm_work,
    grouped_gemm_seconds,
    product_parts,
    slowed,
)
from simserve.perf.moe import ExpertLoad, ExpertShape, expected_distinct_experts, expert_seconds, routed_load
from simserve.perf.tables import price
from simserve.profiles.hardware import load_hardware
from simserve.profiles.kernel_curves import GemmClass, GemmCurve, GroupedGemmCurve
from tests.fuzzing import examples
from tests.perf.shapes import make_shape

MANY = settings(max_examples=examples(200), deadline=None)
DEVICE = GemmDevice(peak=989.4e12, bandwidth=3.35e12, num_multiprocessors=132)
FITTED = ("h100-sxm-80gb", "h200-sxm-141gb", "a100-sxm-80gb")
ENGINES = ("vllm", "sglang", "tensorrt-llm")
MARLIN = (("vllm", "marlin"), ("sglang", "marlin"))
EXPERTS = ExpertShape(hidden_size=4096.0, intermediate_size=1536.0, up_projections=2.0, weight_bits=16.0)

curves = st.builds(
    GemmCurve.model_construct,
    start_latency=st.floats(0.0, 1e-5),
    efficiency=st.floats(0.5, 1.0),
    sustained_efficiency=st.floats(0.1, 0.5),
    loop_overhead=st.floats(0.0, 1000.0),
    wave_quantisation=st.floats(0.01, 1.0),
    overlap=st.floats(1.0, 8.0),
    memory_efficiency=st.floats(0.2, 1.0),
    split_latency=st.floats(0.0, 1e-5),
    max_splits=st.sampled_from([1, 2, 8]),
    max_tile_rows=st.sampled_from([64, 128, 256]),
    narrow_rows=st.sampled_from([None, 16]),
    wide_slowdown=st.floats(0.0, 0.5),
)
sizes = st.integers(1, 70_000)


def seconds(curve: GemmCurve, m: int, n: int, k: int, device: GemmDevice = DEVICE) -> float:
    """Return the seconds of one 16-bit product."""
    num_bytes = np.array([2.0 * (n * k + m * k + m * n)])
    call = gemm_seconds(
        curve, device, rows=np.array([float(m)]), out_features=float(n), in_features=float(k), num_bytes=num_bytes
    )
    return float(call.total[0])


@MANY
@given(curves, sizes, sizes, sizes, st.sampled_from("mnk"), st.integers(1, 5000))
def test_no_product_gets_faster_with_more_work(curve: GemmCurve, m: int, n: int, k: int, grown: str, step: int) -> None:
    """More rows, columns or reduction never take less time, whatever the parameters."""
    larger = {"m": m, "n": n, "k": k, grown: {"m": m, "n": n, "k": k}[grown] + step}

    assert seconds(curve, **larger) >= seconds(curve, m, n, k) * (1 - 1e-12)


@MANY
@given(curves, sizes, sizes, sizes)
def test_no_product_beats_the_roofline(curve: GemmCurve, m: int, n: int, k: int) -> None:
    """Never faster than the peak FLOP/s or the bandwidth."""
    ideal = max(2.0 * m * n * k / DEVICE.peak, 2.0 * (n * k + m * k + m * n) / DEVICE.bandwidth)

    assert seconds(curve, m, n, k) >= ideal


@pytest.mark.parametrize("name", ["h100-sxm-80gb", "h200-sxm-141gb"])
def test_fp8_products_of_vllm_slow_down_above_16_rows(name: str) -> None:
    """Kernels with exchanged operands end there: 17 rows take longer, a full tile no less, and prompts as before."""
    curve = load_hardware(name).gemm_curves_of("vllm")["fp8"]
    plain = curve.model_copy(update={"narrow_rows": None})
    (narrow, wide, tile, prompt), (_, before, _, same) = (
        [seconds(each, rows, 8192, 8192) for rows in (16, 17, 64, 4096)] for each in (curve, plain)
    )

    assert wide > 1.05 * before
    assert narrow < wide <= tile
    assert prompt == same


def test_fp4_products_of_2025_read_more_slowly() -> None:
    """vLLM 0.11 on B200: NVFP4 weights take a third longer to read than under 0.12; products in BF16 do not."""
    early, late = (
        make_shape("b200-sxm-180gb", "llama-3.1-70b", version=version, quantization="nvfp4").machine.gemm_curves
        for version in ("0.11.0", "0.12")
    )

    assert early["nvfp4"].memory_efficiency < 0.8 * late["nvfp4"].memory_efficiency
    assert early["bf16"] == late["bf16"]


@pytest.mark.parametrize(
    ("hardware", "engine", "model", "versions", "is_changed"),
    [
        ("b200-sxm-180gb", "vllm", "minimax-m2", ("0.17", "0.18"), True),
        ("h200-sxm-141gb", "vllm", "minimax-m2", ("0.17", "0.18"), False),
        ("b200-sxm-180gb", "sglang", "minimax-m2", ("0.5.5", "0.5.6"), False),
        ("b200-sxm-180gb", "sglang", "qwen3-235b-a22b", ("0.5.5", "0.5.6"), True),
        ("b200-sxm-180gb", "sglang", "deepseek-v3", ("0.5.3", "0.5.4"), True),
        ("h200-sxm-141gb", "sglang", "deepseek-v3", ("0.5.3", "0.5.4"), False),
    ],
)
def test_experts_in_fp8_by_blocks_run_on_the_kernels_that_a_version_takes(
    hardware: str, engine: str, model: str, versions: tuple[str, str], is_changed: bool
) -> None:
    """vLLM from 0.18 on FlashInfer's on Blackwell, SGLang Triton's but for families that a release names."""
    before, after = (
        make_shape(hardware, model, engine=engine, version=version, quantization="fp8").machine.grouped_gemm_curves
        for version in versions
    )

    assert (before["fp8_block"] != after["fp8_block"]) is is_changed


def test_products_by_blocks_are_tritons_on_blackwell_until_sglang_0_5_2() -> None:
    """DeepGEMM is Hopper's alone there: 56 steps of 0.45 us in a product of 7,168 columns."""

    def step(hardware: str, version: str) -> float:
        shape = make_shape(
            hardware, "deepseek-v3", engine="sglang", version=version, quantization="fp8", tensor_parallel_size=8
        )
        return float(price(shape, 16).parts.decode[:, 1].sum())

    early, late = (step("b200-sxm-180gb", version) for version in ("0.5.1", "0.5.2"))

    assert early - late > 61 * 56 * 0.45e-6
    assert step("h200-sxm-141gb", "0.5.1") == step("h200-sxm-141gb", "0.5.2")


def test_products_before_ampere_do_not_hide_their_loads() -> None:
    """V100S: arithmetic and memory take turns, and a product takes as long as both together."""
    machine = make_shape("v100s-32gb").machine
    curve = gemm_curve(machine, "bf16", "fp16")
    rows = np.array([256.0])
    work = gemm_work(rows, 4096.0, 4096.0, weight_bits=16.0)

    call = gemm_call(curve, machine, work, "fp16", rows, 4096.0)

    assert call.total[0] >= call.arithmetic[0] + call.memory[0]
    assert gemm_curve(make_shape("rtx-4090-24gb").machine, "bf16", "fp16").overlap > 1.0


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize("engine", ENGINES)
def test_fitted_curves_are_monotone_over_tokens(name: str, engine: str) -> None:
    """Token by token up to 4,096, and in steps of whole tiles beyond, for every curve of the catalogue."""
    hardware = load_hardware(name)
    tokens = np.concatenate((np.arange(1.0, 4097.0), np.arange(4160.0, 65_537.0, 64.0)))

    for kernels, curve in hardware.gemm_curves_of(engine).items():
        num_bytes = 4096.0 * 4096.0 + 8192.0 * tokens
        call = gemm_seconds(curve, DEVICE, rows=tokens, out_features=4096.0, in_features=4096.0, num_bytes=num_bytes)
        assert np.all(np.diff(call.total) >= 0), kernels
        assert np.all(call.total >= call.memory), kernels


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize(("engine", "backend"), [*((engine, None) for engine in ENGINES), *MARLIN])
def test_fitted_experts_are_monotone_over_tokens(name: str, engine: str, backend: str | None) -> None:
    """More tokens never take less time, with 128 experts of which 8 are visited."""
    load = routed_load(128, 8, np.arange(1.0, 4097.0))

    for kernels, curve in load_hardware(name).grouped_gemm_curves_of(engine, backend).items():
        total = expert_seconds(curve, DEVICE, EXPERTS, load).total
        assert np.all(np.diff(total) >= 0), kernels


def test_experts_cost_more_with_each_thing_they_have_more_of() -> None:
    """Pairs, distinct experts, routed pairs and held experts each add time."""
    curve = GroupedGemmCurve(
        start_latency="20 us",
        efficiency=0.7,
        loop_overhead=200,
        overlap=2,
        memory_efficiency=0.9,
        expert_latency="30 ns",
        routed_passes=0.3,
        local_passes=4,
    )
    plain = {"pairs": 512.0, "distinct": 60.0, "routed": 1024.0, "held": 128.0}

    def total(**load: float) -> float:
        arrays = {name: np.array([value]) for name, value in {**plain, **load, "tokens": 128.0}.items()}
        return float(expert_seconds(curve, DEVICE, EXPERTS, ExpertLoad(**arrays)).total[0])

    assert all(total(**{name: 2 * value}) > total() for name, value in plain.items())


def test_steps_of_few_tokens_have_tiles_of_their_own() -> None:
    """Triton's default for scales by blocks takes 16 rows up to 64 tokens: a quarter of the arithmetic of 64."""
    plain = GroupedGemmCurve(
        start_latency="1 us",
        efficiency=0.15,
        loop_overhead=1,
        overlap=2,
        memory_efficiency=1.0,
        expert_latency="0 ns",
        routed_passes=0,
        local_passes=0,
    )
    narrow = plain.model_copy(update={"narrow_tile_rows": 16, "narrow_tokens": 64})
    load = ExpertLoad(
        pairs=np.array([512.0, 520.0]),
        distinct=np.array([170.0, 171.0]),
        routed=np.array([512.0, 520.0]),
        held=256.0,
        tokens=np.array([64.0, 65.0]),
    )

    few, more = (expert_seconds(curve, DEVICE, EXPERTS, load).total for curve in (narrow, plain))

    assert few[0] < more[0]
    assert few[1] == more[1]


def test_fewer_multiprocessors_wait_for_whole_rounds() -> None:
    """133 tiles on 132 SMs take two rounds where the last one counts whole; one big SM never waits."""
    curve = load_hardware("h100-sxm-80gb").gemm_curves_of("vllm")["fp8"]
    one = GemmDevice(peak=DEVICE.peak, bandwidth=DEVICE.bandwidth, num_multiprocessors=1)

    assert seconds(curve, 256, 64 * 133, 8192) > 1.3 * seconds(curve, 256, 64 * 132, 8192)
    assert seconds(curve, 256, 64 * 133, 8192, one) < 1.05 * seconds(curve, 256, 64 * 132, 8192, one)


def test_engines_have_kernels_of_their_own() -> None:
    """vLLM and SGLang multiply FP8 in CUTLASS tiles of up to 256 rows; TensorRT-LLM and all others call cuBLAS."""
    hardware = load_hardware("h100-sxm-80gb")
    rows = {engine: hardware.gemm_curves_of(engine)["fp8"].max_tile_rows for engine in (*ENGINES, "tgi")}

    assert rows == {"vllm": 256, "sglang": 256, "tensorrt-llm": 64, "tgi": 64}


@pytest.mark.parametrize(
    ("quantization", "fidelity"), [("none", "fitted"), ("fp8", "fitted"), ("awq-int4", "roofline")]
)
def test_fidelity_is_fitted_where_every_operator_is(quantization: str, fidelity: str) -> None:
    """4-bit weights on an H100 run on the 16-bit curve with a share of its FLOP/s: no measurements, so roofline."""
    shape = make_shape(hardware="h100-sxm-80gb", quantization=quantization)
    curve = gemm_curve(shape.machine, "int4_weight_only", "bf16", 0.8)

    assert price(shape, 64).fidelity == fidelity
    assert curve.fit is None
    assert curve.efficiency == pytest.approx(0.8 * shape.machine.gemm_curves["bf16"].efficiency)


@pytest.mark.parametrize("hardware", ["b200-sxm-180gb", "b300-sxm-270gb", "gb200-186gb"])
@pytest.mark.parametrize(
    ("engine", "version", "model", "quantization", "kernels"),
    [
        ("vllm", "0.16", "nemotron-3-nano-30b-a3b", "fp8", "fp8"),
        ("sglang", "0.5.8", "nemotron-3-nano-30b-a3b", "fp8", "fp8"),
        ("sglang", "0.5.10", "minimax-m2.7", "nvfp4", "nvfp4"),
    ],
)
def test_experts_on_cutlass_start_later(
    hardware: str, engine: str, version: str, model: str, quantization: str, kernels: GemmClass
) -> None:
    """19 to 22 us more than TensorRT-LLM's kernels, 1 to 16 tokens (FlashInfer pull request 4985), the rest alike."""

    def curve(release: str) -> GroupedGemmCurve:
        shape = make_shape(hardware, model, engine=engine, version=release, quantization=quantization)
        return shape.machine.grouped_gemm_curves[kernels]

    early, late = curve(version), curve("0.5.12" if engine == "sglang" else "0.18")
    assert early.start_latency - late.start_latency == pytest.approx(21.5e-6)
    assert (early.efficiency, early.memory_efficiency) == (late.efficiency, late.memory_efficiency)


@pytest.mark.parametrize("hardware", ["h100-sxm-80gb", "h200-sxm-141gb"])
def test_marlin_and_triton_multiply_experts_in_mxfp4_each_at_its_own_pace(hardware: str) -> None:
    """On Hopper, Marlin: a shorter start, so that it decodes faster, and less of the peak in long prompts."""

    def curve(model: str, **engine: str) -> GroupedGemmCurve:
        shape = make_shape(hardware, model, **{"engine": "vllm", "version": "0.24", **engine})
        return shape.machine.grouped_gemm_curves["mxfp4_weight_only"]

    triton, marlin = curve("gpt-oss-20b"), curve("gpt-oss-20b", moe_backend="marlin")

    assert (triton.tile_rows, marlin.tile_rows) == (64, 16)
    assert marlin.start_latency < triton.start_latency
    assert marlin.efficiency < triton.efficiency
    assert curve("deepseek-v4-flash") == marlin  # vLLM 0.24.0 oracle/mxfp4.py: Triton's for gpt-oss alone
    assert curve("deepseek-v4-flash", engine="sglang", version="0.5.15") == marlin  # layers/quantization/fp8.py
    assert curve("gpt-oss-20b", engine="sglang", version="0.5.15") == triton
    assert curve("deepseek-v4-flash", moe_backend="triton") == triton
    assert load_hardware(hardware).grouped_gemm_curves_of("lmdeploy")["mxfp4_weight_only"] == triton


def test_marlin_is_as_quick_as_its_own_benchmark_says() -> None:
    """Products of 17,920 by 17,920 in 4 bits on an A100 (vLLM pull request 2497), from 1 to 4,000 rows, within 20 %."""
    rows = np.array([1.0, 4.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4000.0])
    measured = np.array([0.14, 0.14, 0.14, 0.18, 0.29, 0.57, 1.13, 2.27, 4.55, 9.07, 17.76]) * 1e-3
    shape = make_shape("a100-sxm-80gb", quantization="gptq-int4")
    precision = shape.precision
    work = gemm_work(rows, 17_920, 17_920, weight_bits=4.0)

    curve = gemm_curve(
        shape.machine,
        gemm_class(precision),
        precision.arithmetic,
        precision.compute_share,
        precision.min_tile_rows,
        precision.overlap,
    )
    seconds = gemm_call(curve, shape.machine, work, precision.arithmetic, rows, 17_920).total

    assert seconds == pytest.approx(measured, rel=0.20)


FLASHINFER = [
    (1024, 576, 7168, 28.704),
    (2048, 576, 7168, 41.216),
    (4096, 576, 7168, 63.488),
    (8, 24576, 7168, 47.136),
    (16, 24576, 7168, 47.104),
    (32, 24576, 7168, 47.392),
    (64, 24576, 7168, 69.920),
    (128, 24576, 7168, 125.216),
    (256, 24576, 7168, 223.520),
    (1024, 24576, 7168, 826.192),
    (2048, 24576, 7168, 1632.544),
]
"""Rows, columns, reduction, us: FlashInfer's FP8 products by blocks on a B200 (SGLang pull request 13528; its calls of
576 columns and up to 256 rows show the launch from Python and are left out)."""

FLASHINFER_HELD_OUT = [(8, 5.15), (32, 5.22), (64, 4.96), (128, 4.99), (256, 5.09), (512, 8.67)]
"""Rows, us: the same of 2,048 columns over 1,024 (CUTLASS issue 2923, timed on the GPU), not fitted."""


def test_flashinfers_products_are_as_quick_as_their_own_benchmark_says() -> None:
    """Half within 5 %, the worst 29 % (fitted), and half within 6 %, the worst 26 % (not fitted): 0.1 of FP8's peak."""
    hardware = load_hardware("b200-sxm-180gb")
    curve = hardware.gemm_curves_of("flashinfer")["fp8_block"]
    device = GemmDevice(peak=hardware.peak_flops("fp8") or 0.0, bandwidth=7.7e12, num_multiprocessors=148)

    def found(m: float, n: float, k: float) -> float:
        num_bytes = np.array([n * k + m * k + 2.0 * m * n])
        call = gemm_seconds(curve, device, rows=np.array([m]), out_features=n, in_features=k, num_bytes=num_bytes)
        return float(call.total[0]) * 1e6

    fitted = [abs(found(m, n, k) / measured - 1) for m, n, k, measured in FLASHINFER]
    held_out = [abs(found(m, 2048.0, 1024.0) / measured - 1) for m, measured in FLASHINFER_HELD_OUT]

    assert np.median(fitted) < 0.05
    assert max(fitted) < 0.3
    assert np.median(held_out) < 0.06
    assert max(held_out) < 0.27
    assert curve.efficiency < hardware.gemm_curves_of("sglang")["fp8_block"].efficiency / 6


TRITON_EXPERTS = [(1, 39.61), (2, 51.87), (4, 73.18)]
"""Tokens, us: Qwen3-30B-A3B's experts in BF16 by Triton's default tiles on a B200 (vLLM pull request 31448)."""

TRITON_EXPERTS_HELD_OUT = [(1, 52.65), (2, 60.35), (4, 79.09), (8, 95.47), (16, 138.68), (24, 175.80)]
"""Tokens, us: DeepSeek-R1's in FP8 by blocks, cut over eight, by Triton's tuned tiles on a B200 (SGLang pull request
11816), to which the curve of BF16 was not fitted."""


def expert_us(curve: GroupedGemmCurve, tokens: float, experts: tuple[int, int], shape: ExpertShape) -> float:
    """Return the microseconds of a layer on a B200: experts, and how many of them a token visits, all alike."""
    held, visited = experts
    pairs = np.array([tokens * visited])
    distinct = expected_distinct_experts(held, visited, np.array([tokens]))
    load = ExpertLoad(pairs=pairs, distinct=distinct, routed=pairs, held=float(held), tokens=np.array([tokens]))
    peak = load_hardware("b200-sxm-180gb").peak_flops("fp8" if shape.weight_bits == 8.0 else "bf16") or 0.0
    device = GemmDevice(peak=peak, bandwidth=7.7e12, num_multiprocessors=148)
    return float(expert_seconds(curve, device, shape, load).total[0]) * 1e6


def test_experts_by_triton_on_blackwell_are_as_quick_as_their_own_benchmarks_say() -> None:
    """Within 1 % of three calls in BF16 (fitted), within 9 % of six in FP8 (not fitted). Nemotron-3-Nano's 23 layers in
    BF16 take 15 % of a step of 128 sequences longer than with FlashInfer's kernels on a GB200 (vLLM pull request
    43853: with those, 256 answers of 8,000 tokens took 168.94 s; not fitted)."""
    hardware = load_hardware("b200-sxm-180gb")
    triton = hardware.grouped_gemm_curves_of("triton")["bf16"]
    qwen = ExpertShape(hidden_size=2048.0, intermediate_size=768.0, up_projections=2.0, weight_bits=16.0)
    deepseek = ExpertShape(
        hidden_size=7168.0, intermediate_size=256.0, up_projections=2.0, weight_bits=8.0, input_bytes=1.0
    )
    nemotron = ExpertShape(hidden_size=2688.0, intermediate_size=1856.0, up_projections=1.0, weight_bits=16.0)

    fitted = [expert_us(triton, tokens, (128, 8), qwen) / us for tokens, us in TRITON_EXPERTS]
    held_out = [expert_us(triton, tokens, (257, 9), deepseek) / us for tokens, us in TRITON_EXPERTS_HELD_OUT]
    curves = (triton, hardware.grouped_gemm_curves_of("vllm")["bf16"])
    slow, quick = (23 * expert_us(curve, 128, (128, 6), nemotron) for curve in curves)

    assert fitted == pytest.approx([1.0] * 3, abs=0.01)
    assert held_out == pytest.approx([1.0] * 6, abs=0.09)
    assert slow - quick == pytest.approx(0.15 * 168.94e6 / (2 * 8000), rel=0.15)


@pytest.mark.parametrize(
    ("engine", "version", "model", "is_triton"),
    [
        ("sglang", "0.5.7", "qwen3-30b-a3b", True),
        ("sglang", "0.5.8", "qwen3-30b-a3b", False),
        ("sglang", "0.5.9", "glm-4.6", True),
        ("sglang", "0.5.15", "glm-4.6", False),
        ("sglang", "0.5.23", "glm-4.7-flash", True),
        ("sglang", "0.5.12", "nemotron-3-nano-30b-a3b", True),
        ("sglang", "0.5.13", "nemotron-3-nano-30b-a3b", False),
        ("vllm", "0.15", "qwen3-30b-a3b", True),
        ("vllm", "0.16", "qwen3-30b-a3b", False),
        ("tensorrt-llm", None, "qwen3-30b-a3b", False),
    ],
)
def test_experts_in_16_bit_on_blackwell_are_tritons_where_the_release_says_so(
    engine: str, version: str | None, model: str, is_triton: bool
) -> None:
    """SGLang's server_args.py names families by release; vLLM took no others before 0.16. Hopper is as before."""
    for gpu in ("b200-sxm-180gb", "gb200-186gb"):
        curve = make_shape(gpu, model, engine=engine, version=version).machine.grouped_gemm_curves["bf16"]
        assert (curve.engines == ("triton",)) is is_triton

    hopper = make_shape("h200-sxm-141gb", model, engine=engine, version=version)
    assert hopper.machine.grouped_gemm_curves["bf16"] == hopper.hardware.grouped_gemm_curves_of(engine)["bf16"]


@pytest.mark.parametrize(
    ("gpu", "m", "n", "k", "microseconds"),
    [
        ("a10g-24gb", 1, 8192, 8192, 306.4),
        ("a10g-24gb", 1, 262144, 2560, 2776.0),
        ("a10g-24gb", 2048, 2048, 2048, 283.6),
        ("a10g-24gb", 4096, 4096, 4096, 2199.7),
        ("a10g-24gb", 8192, 8192, 8192, 16684.5),
        ("a10-24gb", 1, 11008, 4096, 188.3),
        ("a10-24gb", 512, 11008, 4096, 717.2),
        ("a40-48gb", 8192, 8192, 8192, 9937.7),
        ("l4-24gb", 8192, 8192, 8192, 18510.3),
        ("l40s-48gb", 8192, 8192, 8192, 5905.1),
    ],
)
def test_cards_with_gddr6_multiply_as_fast_as_their_kernels_alone(
    gpu: str, m: int, n: int, k: int, microseconds: float
) -> None:
    """BF16 products outside any server, within 7 %; the sources are those of the hardware profiles."""
    machine = make_shape(gpu, "llama-3-8b", max_model_len=2048).machine
    rows, curve = np.array([float(m)]), gemm_curve(machine, "bf16", "bf16")

    call = gemm_call(curve, machine, gemm_work(rows, n, k, weight_bits=16.0), "bf16", rows, n)

    assert 1e6 * float(call.total[0]) == pytest.approx(microseconds, rel=0.07)


def rate_of_squares(gpu: str, size: int, dtype: str) -> float:
    """Return the FLOP/s of a product of square matrices in 16 bit."""
    machine = make_shape(gpu, "llama-3.2-1b", max_model_len=2048).machine
    rows, curve = np.array([float(size)]), gemm_curve(machine, "bf16", dtype)
    call = gemm_call(curve, machine, gemm_work(rows, size, size, weight_bits=16.0), dtype, rows, size)
    return 2.0 * float(size) ** 3 / float(call.total[0])


def test_350_watts_hold_products_below_a_burst() -> None:
    """L40S: 161 and 186 TFLOP/s in blocks of 0.2 s, 189 elsewhere; 239 in blocks of 17 ms is no rate of a server's."""
    rates = [rate_of_squares("l40s-48gb", size, "bf16") for size in (4096, 8192)]

    assert min(rates) >= 161e12
    assert max(rates) <= 1.03 * 189e12


def test_70_watts_hold_a_t4_at_a_third_of_its_peak() -> None:
    """A hundred products of 4,096 in a row: some 24 TFLOP/s of 65 (NVIDIA's developer forum, 264462)."""
    assert rate_of_squares("t4-16gb", 4096, "fp16") == pytest.approx(24e12, rel=0.07)


@MANY
@given(curves, st.integers(1, 20_000), st.integers(1, 20_000), st.sampled_from([4.0, 8.0, 16.0]), st.data())
def test_the_parts_of_a_product_are_its_seconds(
    curve: GemmCurve, out_features: int, in_features: int, bits: float, data: st.DataObject
) -> None:
    """Whether it is priced for the first time or again, the parts sum to the call less what of it is hidden."""
    rows = np.array(data.draw(st.lists(st.integers(1, 10_000), min_size=1, max_size=6)), dtype=np.float64)
    hidden = data.draw(st.sampled_from([0.0, curve.start_latency]))
    sizes = ProductSizes(out_features, in_features, bits)

    first = product_parts(curve, DEVICE, sizes, rows, hidden)
    again = product_parts(curve.model_copy(), DEVICE, sizes, rows.copy(), hidden)

    work = gemm_work(rows, out_features, in_features, weight_bits=bits)
    total = gemm_seconds(
        curve,
        DEVICE,
        rows=rows,
        out_features=out_features,
        in_features=in_features,
        num_bytes=work.weight_bytes + work.activation_bytes,
    ).total
    assert first.sum(axis=0) == pytest.approx(np.maximum(total - hidden, 0.0), rel=1e-9, abs=1e-15)
    assert np.array_equal(first, again)


def test_products_of_other_rows_are_told_apart() -> None:
    """Also where only one in the middle differs, or the caller has changed its own array since."""
    curve = gemm_curve(make_shape().machine, "bf16", "bf16")
    sizes, rows = ProductSizes(4096, 4096, 16.0), np.array([1.0, 2.0, 4096.0])
    one = product_parts(curve, DEVICE, sizes, rows)

    rows[1] = 4000.0
    other = product_parts(curve, DEVICE, sizes, rows)
    back = product_parts(curve, DEVICE, sizes, np.array([1.0, 2.0, 4096.0]))

    assert other[:, 1].sum() > 1.5 * one[:, 1].sum()
    assert np.array_equal(back, one)
    with pytest.raises(ValueError, match="read-only"):
        one += 1.0


def test_a_reduction_is_split_though_its_parts_need_a_second_round() -> None:
    """100 tiles leave 32 of 132 SMs idle: cut in two, they are 200 halves in 1.52 rounds instead of one whole one."""
    curve = GemmCurve.model_construct(
        start_latency=0.0,
        efficiency=1.0,
        sustained_efficiency=1.0,
        loop_overhead=0.0,
        wave_quantisation=0.0,
        overlap=64.0,
        memory_efficiency=1.0,
        max_splits=2,
    )
    sizes = {"rows": np.array([64.0]), "out_features": 6400.0, "in_features": 8192.0, "num_bytes": np.array([0.0])}
    whole, split = (
        float(gemm_seconds(curve.model_copy(update={"max_splits": each}), DEVICE, **sizes).total[0])  # type: ignore[arg-type]
        for each in (1, 2)
    )

    assert split / whole == pytest.approx(200 / 132 / 2)


def test_kernels_are_not_sped_up_beyond_the_peaks() -> None:
    """Twice the speed of a kernel at 0.7 of the peaks is all of them."""
    curve = slowed(load_hardware("h100-sxm-80gb").gemm_curves_of("vllm")["bf16"], 2.0, 2.0)

    assert (curve.efficiency, curve.sustained_efficiency, curve.memory_efficiency) == (1.0, 1.0, 1.0)


def test_rows_that_ggml_multiplies_one_by_one_cost_from_the_second_on() -> None:
    """The first row is in the share of the bandwidth; 7 more of 2 x 4,096 x 4,096 FLOP each outlast the reading."""
    plain = load_hardware("h100-sxm-80gb").gemm_curves_of("vllm")["bf16"]
    plain = plain.model_copy(update={"start_latency": 0.0, "overlap": 64.0})
    vectors = plain.model_copy(update={"vector_flops": 1e12})

    assert seconds(vectors, 1, 4096, 4096) == seconds(plain, 1, 4096, 4096)
    assert seconds(vectors, 8, 4096, 4096) == pytest.approx(7 * 2 * 4096**2 / 1e12, rel=1e-6)


def test_an_expert_with_one_row_takes_one_tile_a_column_of_tiles() -> None:
    """132 experts with a row each fill 132 SMs once: the arithmetic of one tile, whoever else has a row."""
    curve = GroupedGemmCurve.model_construct(
        start_latency=0.0, efficiency=1.0, loop_overhead=0.0, overlap=64.0, memory_efficiency=1.0, step_latency=0.0
    )

    def call(rows: float, experts: float) -> float:
        counts = {"rows": np.array([rows]), "experts": np.array([experts]), "num_bytes": np.array([0.0])}
        sizes = {"tile_rows": 64, "out_features": 64.0, "in_features": 4096.0}
        return float(grouped_gemm_seconds(curve, DEVICE, **counts, **sizes).total[0])

    one = 132 * 2 * 64 * 64 * 4096 / DEVICE.peak

    assert call(132.0, 132.0) == pytest.approx(one)
    assert call(132.0 * 64, 132.0) < 2.5 * one


def test_cutlass_first_tiles_of_scales_by_blocks_take_longer_on_workstation_blackwell() -> None:
    """Qwen3-32B-FP8 under vLLM: 344 steps of 128 columns a layer at 1.45 us, at 0.77 in 0.19, and none from 0.20 on.

    Pull requests 22131, 37970 and 38325; a step of 16 took 41.9 ms on an RTX PRO 6000 under 0.13 (teo-ma).
    """
    found = {
        version: price(
            make_shape("rtx-pro-6000-96gb", "qwen3-32b", version=version, quantization="fp8", max_model_len=8192)
        ).step_times.decode_base[16]
        for version in ("0.13.0", "0.18.0", "0.19.0", "0.20.0")
    }
    steps = 64 * (40 + 64 + 40 + 200)

    assert found["0.13.0"] == pytest.approx(41.9e-3, rel=0.12)
    assert found["0.18.0"] > 1.45e-6 * steps
    assert found["0.18.0"] > found["0.19.0"] >= found["0.20.0"]
