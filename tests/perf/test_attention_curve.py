"""Fitted attention: monotone in every size, affine where the engine is, cut and right as the kernel asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.perf.attention import triton_wide_share
from simserve.perf.attention_curve import (
    Gpu,
    Heads,
    cut_blocks,
    decode_base_seconds,
    decode_seconds,
    fitted_attention,
    further_waves,
    imbalance,
    is_one_wave,
    key_seconds,
    loop_keys,
    prefill_seconds,
)
from simserve.perf.tables import price
from simserve.profiles.hardware import load_hardware
from simserve.profiles.kernel_curves import AttentionKernel
from tests.perf.shapes import make_shape

GPU = Gpu(peak=989.4e12, bandwidth=3.35e12, num_multiprocessors=132, l2_cache=50e6)
FEW = settings(max_examples=60, deadline=None)
PROFILES = ("h100-sxm-80gb", "h200-sxm-141gb", "a100-sxm-80gb")
KERNELS = [
    kernel
    for curves in (load_hardware(name).attention_curves for name in PROFILES)
    if curves is not None
    for kernel in curves.kernels
]
sizes = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 2048),
        "length": st.integers(1, 131072),
        "kv_heads": st.sampled_from([1, 2, 4, 8, 32]),
        "group": st.integers(1, 64),
        "width": st.sampled_from([64, 128, 256]),
    }
)
SMS = 132


def heads(kv_heads: int, group: int, width: int) -> Heads:
    """Return heads with 16-bit keys and values."""
    return Heads(num_heads=kv_heads * group, num_kv_heads=kv_heads, width=width, kv_bytes=4.0 * kv_heads * width)


def both(kernel: AttentionKernel, size: dict[str, int]) -> tuple[float, float]:
    """Return the seconds of a decode step and of a prefill of a size."""
    layer = heads(size["kv_heads"], size["group"], size["width"])
    decode = decode_seconds(kernel.decode, layer, GPU, size["batch"], size["length"])
    return float(decode), float(prefill_seconds(kernel.prefill, layer, GPU, size["batch"], size["length"]))


@FEW
@given(st.sampled_from(KERNELS), sizes, st.sampled_from(["batch", "length", "kv_heads", "group", "width"]))
def test_more_work_never_takes_less_time(kernel: AttentionKernel, size: dict[str, int], grown: str) -> None:
    """Twice the batch, length, heads or width takes at least as long, in decode and prefill."""
    before, after = both(kernel, size), both(kernel, {**size, grown: 2 * size[grown]})

    assert all(later >= earlier > 0 for earlier, later in zip(before, after, strict=True))


@FEW
@given(st.sampled_from(KERNELS), sizes, st.floats(1.0, 4.0), st.floats(1.0, 4.0))
def test_a_better_gpu_never_takes_longer(
    kernel: AttentionKernel, size: dict[str, int], peak: float, bandwidth: float
) -> None:
    """Base and slope of the affine form fall with peak and bandwidth, or stay."""
    layer = heads(size["kv_heads"], size["group"], size["width"])
    better = Gpu(peak=GPU.peak * peak, bandwidth=GPU.bandwidth * bandwidth, num_multiprocessors=132)

    assert key_seconds(kernel.decode, layer, better) <= key_seconds(kernel.decode, layer, GPU)
    assert decode_base_seconds(kernel.decode, layer, better, 64) <= decode_base_seconds(kernel.decode, layer, GPU, 64)


def test_a_window_bounds_the_pairs_of_a_prompt() -> None:
    """A window as long as the prompt changes nothing; a shorter one saves time."""
    layer, curve = heads(8, 4, 128), KERNELS[0].prefill
    full, same, short = (prefill_seconds(curve, layer, GPU, 4, 8192, window) for window in (np.inf, 8192, 1024))

    assert same == pytest.approx(full)
    assert short < full


def test_an_engine_gets_its_own_kernel_and_width_of_kv() -> None:
    """vLLM with FP8 KV; an engine without a curve takes the first; a latent model its latent kernel."""
    plain, narrow, other = (
        fitted_attention(shape := make_shape(engine=engine, kv_cache_dtype=kv), shape.model.attention_layers[0])
        for engine, kv in (("vllm", "auto"), ("vllm", "fp8"), ("tgi", "auto"))
    )

    assert plain is not None
    assert narrow is not None
    assert other is not None
    assert (plain.kernel.engine, plain.kernel.kv_bits) == ("vllm", 16)
    assert narrow.kernel.kv_bits == 8
    assert other.kernel == plain.kernel
    assert narrow.decode_key_seconds < plain.decode_key_seconds


@pytest.mark.parametrize(("engine", "teraflops"), [("vllm", 390.0), ("sglang", 99.0)])
def test_the_widest_heads_have_a_kernel_of_their_own(engine: str, teraflops: float) -> None:
    """Heads of 512 (Gemma-4): FlashAttention-4 and Triton on Hopper, beside 600 to 700 TFLOP/s of heads of 256."""
    curves = load_hardware("h200-sxm-141gb").attention_curves
    assert curves is not None
    kernel = curves.kernel(engine, "heads", 16, 8.0)
    assert kernel is not None
    tokens = 65536.0

    def rate(width: int) -> float:
        layer = heads(4, 8, width)
        pairs = tokens * (tokens + 1.0) / 2.0
        return float(4.0 * 32 * width * pairs / prefill_seconds(kernel.prefill, layer, GPU, 1, tokens) / 1e12)

    assert rate(512) == pytest.approx(teraflops, rel=0.05)
    assert rate(256) > 1.4 * rate(512)


@pytest.mark.parametrize(
    ("hardware", "engine", "kv_bits", "peak", "measured"),
    [("h200-sxm-141gb", "vllm", 8, 989.4e12, 0.445), ("b200-sxm-180gb", "vllm", 16, 2250e12, 0.62)],
)
def test_long_prompts_of_heads_of_256_reach_the_share_of_their_own_calls(
    hardware: str, engine: str, kv_bits: int, peak: float, measured: float
) -> None:
    """16,384 tokens: the median share of the peak in the tables, 16 heads and more; 0.6 and 0.8 before."""
    curves = load_hardware(hardware).attention_curves
    assert curves is not None
    gpu = replace(GPU, peak=peak, num_multiprocessors=curves.num_multiprocessors)
    kernel = curves.kernel(engine, "heads", kv_bits, 4.0)
    assert kernel is not None

    seconds = prefill_seconds(kernel.prefill, heads(8, 4, 256), gpu, 1, 16384)

    assert float(2.0 * 32 * 256 * 16384**2 / seconds / peak) == pytest.approx(measured, rel=0.1)


def test_a_gpu_without_curves_keeps_its_class() -> None:
    """An L4 has no fitted attention."""
    shape = make_shape("l4-24gb")

    assert fitted_attention(shape, shape.model.attention_layers[0]) is None


def test_xqa_cuts_up_to_eight_blocks_a_multiprocessor() -> None:
    """One context of 512 keys: 4 pieces; of 8,192: 22 by the root; a full GPU is not cut."""
    assert cut_blocks(1 / SMS, 512) * SMS == pytest.approx(4)
    assert cut_blocks(1 / SMS, 8192) * SMS == pytest.approx(np.sqrt(8 * 64))
    assert cut_blocks(6.0, 8192) == 8.0
    assert cut_blocks(20.0, 8192) == 20.0
    assert cut_blocks(0.5, 100) == 0.5


def test_mmha_keeps_a_pass_of_keys_a_block() -> None:
    """512 keys of heads of 128; widths are padded to a power of two."""
    assert [float(loop_keys(width)) for width in (64, 80, 128, 192, 256)] == [1024, 512, 512, 256, 256]


def test_most_small_batches_of_mmha_leave_a_second_wave() -> None:
    """Four heads are cut in 33 pieces and fill 132 multiprocessors; eight are cut in 17, which is 136."""
    assert further_waves(4.0, 65536.0, 128.0, SMS) == 0
    assert further_waves(8.0, 65536.0, 128.0, SMS) == 1
    assert is_one_wave(8.0, 8192.0, 128.0, SMS)
    assert further_waves(8.0, 8192.0, 128.0, SMS) == 0
    assert further_waves(2112.0, 64.0, 128.0, SMS) == 3


def test_a_lone_wave_costs_most_where_it_is_nearly_empty() -> None:
    """136 pieces over 132 multiprocessors: 4 of them run alone, 0.7 of a wave late; 64 in three pieces each, less."""
    assert imbalance(4.0, 0.7, SMS) == 1.0
    assert imbalance(8.0, 0.7, SMS) == pytest.approx(1 + (0.7 - 4 / 132) / (136 / 132))
    assert imbalance(64.0, 0.7, SMS) < imbalance(32.0, 0.7, SMS) < imbalance(8.0, 0.7, SMS)
    assert imbalance(500.0, 0.7, SMS) == 1.0


@pytest.mark.parametrize("tail", [0.0, 0.5, 1.0])
def test_time_and_waves_never_fall_with_batch_or_context(tail: float) -> None:
    """Over every batch to 1,200 heads, and contexts to 65,536."""
    blocks, context = np.arange(1.0, 1200.0)[:, None], 2.0 ** np.arange(17)[None, :]
    waves = further_waves(blocks, context, 128.0, SMS)

    assert (np.diff(waves, axis=0) >= 0).all()
    assert (np.diff(waves, axis=1) >= 0).all()
    assert (np.diff(blocks[:, 0] * imbalance(blocks[:, 0], tail, SMS)) >= -1e-12).all()
    assert (np.diff(cut_blocks(blocks / SMS, context), axis=0) >= 0).all()


@pytest.mark.parametrize(("hardware", "measured"), [("rtx-pro-6000-96gb", 79e12), ("gb10-128gb", 8.4e12)])
def test_heads_of_512_run_at_tritons_pace_where_flash_attention_has_none(hardware: str, measured: float) -> None:
    """Ten layers of Gemma 4 under vLLM: 79 TFLOP/s on an RTX PRO 6000 (met), 8.4 on a GB10 with FP8 keys (half)."""
    shape = make_shape(hardware, "gemma-4-31b", version="0.30")
    served = replace(shape, contexts=(100_000.0, 120_000.0))
    wide = next(each for each in shape.model.attention_layers if each.head_dim == 512)

    reached = 10 * 4.0 * 32 * 512 / price(served, 600).step_times.prefill_pair_seconds

    assert triton_wide_share(shape, wide) == pytest.approx(0.160, abs=0.001)
    assert reached == pytest.approx(0.160 * shape.machine.peak("bf16"), rel=0.02)
    assert 0.9 * measured < reached < 2.5 * measured


def test_heads_of_512_take_twice_as_long_where_kernels_are_half_as_good() -> None:
    """The share that Triton's kernels reach is a part of what the engine's kernels reach."""
    shape = make_shape("rtx-pro-6000-96gb", "gemma-4-31b", version="0.30")
    half = shape.engine.model_copy(update={"compute_efficiency": 0.5 * shape.engine.compute_efficiency})
    contexts = (100_000.0, 120_000.0)

    whole, slow = (price(replace(shape, engine=each, contexts=contexts), 600) for each in (shape.engine, half))

    assert slow.step_times.prefill_pair_seconds == pytest.approx(2 * whole.step_times.prefill_pair_seconds)


def test_other_heads_and_engines_keep_the_gpus_share() -> None:
    """Heads of 256 (Gemma's windows), llama.cpp's own kernels."""
    served = make_shape("gb10-128gb", "gemma-4-31b", version="0.30")
    wide = next(each for each in served.model.attention_layers if each.head_dim == 512)
    narrow = [each for each in served.model.attention_layers if each.head_dim <= 256]

    assert narrow
    assert all(triton_wide_share(served, each) is None for each in narrow)
    assert triton_wide_share(make_shape("rtx-5090-32gb", "gemma-4-31b", engine="llama.cpp"), wide) is None
    assert triton_wide_share(make_shape("mi300x-192gb", "gemma-4-31b", engine="llama.cpp"), wide) is None


def test_heads_of_512_on_amd_take_the_time_of_their_kernel() -> None:
    """16,384 tokens of Gemma-4-31B: 110 ms a layer at 80 TFLOP/s; 107 ms were measured on an MI325X (aiter 5649)."""
    shape = make_shape("mi325x-256gb", "gemma-4-31b")
    wide = next(each for each in shape.model.attention_layers if each.head_dim == 512)

    share = triton_wide_share(shape, wide)

    assert share is not None
    flops = 4 * wide.num_heads * 512 * 16384**2 / 2
    assert flops / (share * shape.hardware.compute.bf16) == pytest.approx(0.110, rel=0.01)


@pytest.mark.parametrize(("engine", "teraflops"), [("vllm", 160e12), ("sglang", 250e12)])
def test_heads_of_256_by_triton_on_amd_have_a_pace_of_their_own(engine: str, teraflops: float) -> None:
    """Where Triton's kernels are asked for, and not where AITER's are, nor with heads of 128 (aiter 5664)."""
    asked = make_shape("mi300x-192gb", "qwen3.5-122b-a10b", engine=engine, attention_backend="triton")
    narrow = make_shape("mi300x-192gb", "qwen3-8b", engine=engine, attention_backend="triton")
    own = make_shape("mi300x-192gb", "qwen3.5-122b-a10b", engine=engine, attention_backend="aiter")
    medium, usual = asked.model.attention_layers[0], narrow.model.attention_layers[0]
    assert medium.head_dim == 256

    share = triton_wide_share(asked, medium)

    assert share == pytest.approx(teraflops / 1307.4e12)
    assert triton_wide_share(own, medium) is None
    assert triton_wide_share(narrow, usual) is None
    pair = price(asked, 600).step_times.prefill_pair_seconds
    assert pair == pytest.approx(price(own, 600).step_times.prefill_pair_seconds * 0.35 / share, rel=0.02)


@pytest.mark.parametrize(("width", "is_slower"), [(192, False), (256, True)])
def test_only_heads_wider_than_192_have_a_share_of_their_own(width: int, is_slower: bool) -> None:
    """Tiles of heads up to 192 are as large as those of narrower ones."""
    curves = load_hardware("h200-sxm-141gb").attention_curves
    assert curves is not None
    kernel = curves.kernel("vllm", "heads", 8, 4.0)
    assert kernel is not None
    own, shared = kernel.prefill, kernel.prefill.model_copy(update={"wide_compute": None})

    times = [float(prefill_seconds(curve, heads(8, 4, width), GPU, 1, 16384)) for curve in (own, shared)]

    assert (times[0] > times[1]) is is_slower
