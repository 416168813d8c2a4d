"""Cards that people own, most under llama.cpp, beside public tables of its benchmark."""

from __future__ import annotations

import pytest

from simserve.perf.shape import ReplicaShape
from simserve.perf.tables import price
from tests.perf.shapes import make_shape

TABLE_TOKENS = 1024
PROMPT = 512
KNOWN = {"rtx-3090-24gb": 158.16, "rtx-4090-24gb": 186.21, "rtx-a6000-48gb": 138.73}
"""Tokens/s of Llama-2-7B in Q4_0, 128 from an empty context (tg128): ggml-org/llama.cpp discussion 15013, 2025. Its
builds are newer than what the engine profile was read off, and its benchmark samples nothing."""
F16_BITS, Q8_BITS, Q4_BITS = "none", "gguf-q8_0", "gguf-q4_0"


def decode_rate(gpu: str, model: str = "llama-2-7b", quantization: str = Q4_BITS, context: int = 64) -> float:
    """Return tokens/s of one stream in steps with so many tokens of context."""
    times = price(make_gguf(gpu, model, quantization), TABLE_TOKENS).step_times
    return 1.0 / (times.decode_base[1] + context * times.decode_slope[1])


def prompt_rate(gpu: str, model: str, quantization: str, version: str = "b4000", tokens: int = PROMPT) -> float:
    """Return tokens/s of one prompt of so many tokens, computed together."""
    times = price(make_gguf(gpu, model, quantization, version), TABLE_TOKENS).step_times
    return tokens / (times.token_seconds[tokens] + times.prefill_pair_seconds * tokens * tokens / 2)


def make_gguf(gpu: str, model: str, quantization: str, version: str = "b4000") -> ReplicaShape:
    """Return a server with one slot of 4,096 tokens that samples nothing, as the tables' tools do."""
    settings = {"max_num_seqs": 1, "max_model_len": 4096, "sampling": "none"}
    return make_shape(gpu, model, engine="llama.cpp", version=version, quantization=quantization, **settings)


@pytest.mark.parametrize(
    ("gpu", "measured"),
    [
        ("rtx-3060-12gb", 75.57),
        ("rtx-4070-ti-super-16gb", 132.26),
        ("rtx-5070-12gb", 127.54),
        ("rtx-5070-ti-16gb", 176.85),
        ("rtx-5080-16gb", 181.99),
        ("rtx-pro-4500-32gb", 168.90),
    ],
)
def test_a_stream_is_as_far_off_as_on_cards_whose_kernels_were_measured(gpu: str, measured: float) -> None:
    """Of one table: what the builds have gained shows on all alike, within 7 %."""
    known = [decode_rate(name) / rate for name, rate in KNOWN.items()]

    assert decode_rate(gpu) / measured == pytest.approx(sum(known) / len(known), rel=0.07)


@pytest.mark.parametrize(("gpu", "measured"), [("rtx-3080-10gb", 109.57), ("rtx-4080-16gb", 108.15)])
def test_a_stream_of_the_builds_that_the_engine_profile_is_of(gpu: str, measured: float) -> None:
    """Llama-3-8B in Q4_K_M, 512 tokens (XiongjieDai/GPU-Benchmarks-on-LLM-Inference, May 2024), within 10 %."""
    assert decode_rate(gpu, "llama-3-8b", "gguf-q4_k_m", 256) == pytest.approx(measured, rel=0.10)


@pytest.mark.parametrize(
    ("gpu", "model", "quantization", "measured"),
    [
        ("rx-7900-xtx-24gb", "llama-3-8b", "gguf-q4_k_m", 105.8),
        ("w7900-48gb", "llama-2-7b", Q4_BITS, 112.75),
        ("r9700-32gb", "qwen3.5-27b", "gguf-q4_k_m", 27.42),
        ("ryzen-ai-max-395-128gb", "llama-2-7b", F16_BITS, 13.91),
        ("ryzen-ai-max-395-128gb", "llama-2-7b", Q8_BITS, 25.25),
    ],
)
def test_a_stream_on_radeon(gpu: str, model: str, quantization: str, measured: float) -> None:
    """Within 10 %: llama.cpp pull request 26284, builds 4327 (Vulkan) and 6327, ROCm 7.2.3 with Qwen3.6-27B (R9700)."""
    assert decode_rate(gpu, model, quantization) == pytest.approx(measured, rel=0.10)


@pytest.mark.parametrize(
    ("gpu", "model", "quantization", "measured"),
    [
        ("rx-7900-xtx-24gb", "llama-3-8b", "gguf-q4_k_m", 3189.0),
        ("w7900-48gb", "llama-2-7b", Q4_BITS, 2875.3),
        ("ryzen-ai-max-395-128gb", "llama-2-7b", Q4_BITS, 995.4),
        ("ryzen-ai-max-395-128gb", "llama-2-7b", F16_BITS, 1189.2),
    ],
)
def test_a_prompt_on_radeon_has_the_limit_of_the_kernels_that_hip_compiles(
    gpu: str, model: str, quantization: str, measured: float
) -> None:
    """Within 15 %; without the share of the FP16 rate that CUDA kernels reach it would be 1.4 to 1.9 times that."""
    assert prompt_rate(gpu, model, quantization) == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(
    ("gpu", "measured"),
    [
        ("rtx-2080-ti-11gb", 3108.0),
        ("rtx-3060-12gb", 2407.67),
        ("rtx-3090-24gb", 5560.06),
        ("rtx-a6000-48gb", 5662.39),
        ("rtx-4070-ti-super-16gb", 7612.0),
        ("rtx-4090-24gb", 14770.63),
        ("rtx-5070-ti-16gb", 8420.0),
        ("rtx-pro-4500-32gb", 7251.66),
        ("rtx-pro-6000-ws-96gb", 16618.98),
        ("rtx-5090-32gb", 14970.15),
        ("a100-pcie-80gb", 5285.96),
        ("h100-sxm-80gb", 11263.29),
    ],
)
def test_a_prompt_of_builds_that_multiply_weights_as_stored(gpu: str, measured: float) -> None:
    """Within 25 % of Llama-2-7B's pp512 with FlashAttention in discussion 15013, which nothing was fitted to."""
    rate = prompt_rate(gpu, "llama-2-7b", Q4_BITS, "b6100")

    assert rate == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize(("tokens", "measured"), [(128, 7891.63), (256, 10224.32), (512, 11330.23)])
def test_a_micro_batch_of_the_build_that_the_share_was_fitted_to(tokens: int, measured: float) -> None:
    """Llama-3-8B in Q5_1 on an RTX 4090 (llama.cpp pull request 22298, April 2026), in prompts of 2,048 tokens."""
    assert prompt_rate("rtx-4090-24gb", "llama-3-8b", "gguf-q5_k_m", "b8700", tokens) == pytest.approx(
        measured, rel=0.25
    )


@pytest.mark.parametrize(("tokens", "measured"), [(128, 3390.37), (256, 5620.71), (512, 7589.73)])
def test_earlier_builds_write_weights_out_for_each_micro_batch(tokens: int, measured: float) -> None:
    """Llama-3-8B in Q5_0 on an RTX 4090 before pull request 8018 (June 2024)."""
    assert prompt_rate("rtx-4090-24gb", "llama-3-8b", "gguf-q5_k_m", "b2700", tokens) == pytest.approx(
        measured, rel=0.25
    )


@pytest.mark.parametrize("gpu", ["gb10-128gb", "v100-sxm-32gb", "w7900-48gb"])
def test_weights_are_written_out_where_the_kernels_are_not_known_to_be_so_fast(gpu: str) -> None:
    """Of a GB10 half the rate is known, Volta has no INT8 in its tensor cores, and HIP's share is of its own."""
    before, after = (prompt_rate(gpu, "llama-2-7b", Q4_BITS, version) for version in ("b2700", "b6100"))

    assert after == before


def test_the_limit_is_not_of_metal() -> None:
    """Apple's kernels are others."""
    mac, radeon = (make_gguf(name, "llama-2-7b", F16_BITS).machine.peaks for name in ("m2-max-96gb", "w7900-48gb"))

    assert mac["fp16"] == make_gguf("m2-max-96gb", "llama-2-7b", F16_BITS).hardware.compute.fp16
    assert radeon["fp16"] == pytest.approx(0.55 * 122.6e12)


def test_three_hundred_watts_cost_prompts_a_fifth() -> None:
    """RTX PRO 6000 Max-Q over Workstation: 0.81 and 0.82 of gpt-oss (llama.cpp discussion 15396); memory 0.84, 0.92."""
    slow, fast = "rtx-pro-6000-maxq-96gb", "rtx-pro-6000-ws-96gb"
    ratio = prompt_rate(slow, "gpt-oss-20b", "mxfp4", "b6100") / prompt_rate(fast, "gpt-oss-20b", "mxfp4", "b6100")

    assert ratio == pytest.approx(0.82, abs=0.03)
    assert decode_rate(slow) == pytest.approx(0.93 * decode_rate(fast), rel=0.02)


RTX_3090_ROWS = {2: 279.89, 3: 390.96, 4: 470.48, 5: 509.70, 6: 541.57, 7: 559.30, 8: 583.77}
"""Tokens/s of a prompt of Llama-3-8B in Q4_0 by tokens of a micro-batch, 156.56 of one: llama.cpp pull request 15802
(September 2025). Its share of the FP32 rate was set by this table."""


def step_ratio(gpu: str, quantization: str, rows: int, model: str = "llama-3-8b") -> float:
    """Return how many times as long as one token so many take, computed together."""
    seconds = price(make_gguf(gpu, model, quantization), TABLE_TOKENS).step_times.token_seconds
    return seconds[rows] / seconds[1]


@pytest.mark.parametrize(("rows", "measured"), RTX_3090_ROWS.items())
def test_few_rows_of_quantised_weights_are_bound_by_integer_dot_products(rows: int, measured: float) -> None:
    """Rows are multiplied one by one up to eight: each costs arithmetic, within 15 % of an RTX 3090's."""
    assert step_ratio("rtx-3090-24gb", Q4_BITS, rows) == pytest.approx(rows * 156.56 / measured, rel=0.15)


@pytest.mark.parametrize(("rows", "seconds"), [(2, 1.175), (4, 1.227), (8, 1.308)])
def test_few_rows_where_arithmetic_is_fast_for_the_memory(rows: int, seconds: float) -> None:
    """Nothing was fitted to a GB10: 32 steps of Qwen2.5-Coder-7B in Q8_0, attention included (benches/dgx-spark.md)."""
    assert step_ratio("gb10-128gb", Q8_BITS, rows, "qwen2.5-7b") == pytest.approx(seconds / 1.095, rel=0.15)


@pytest.mark.parametrize(("quantization", "rows", "rate"), [(Q4_BITS, 10, 1216.63), (Q4_BITS, 16, 1930.50)])
def test_a_tile_of_rows_takes_as_long_as_on_a_card_that_nothing_was_fitted_to(
    quantization: str, rows: int, rate: float
) -> None:
    """Llama-3-8B on an RTX 4090, tokens/s of micro-batches (llama.cpp pull request 15131, August 2025), within 12 %."""
    seconds = price(make_gguf("rtx-4090-24gb", "llama-3-8b", quantization), TABLE_TOKENS).step_times.token_seconds

    assert seconds[rows] == pytest.approx(rows / rate, rel=0.12)


def test_more_rows_never_take_less_time() -> None:
    """From nine rows on tensor cores multiply; a step of them takes as long as eight at least."""
    seconds = price(make_gguf("rtx-3090-24gb", "llama-3-8b", "gguf-q4_k_m"), TABLE_TOKENS).step_times.token_seconds

    assert all(seconds[rows] <= seconds[rows + 1] for rows in range(1, 64))


def test_16_bit_weights_have_no_such_rows() -> None:
    """Two to eight rows of F16 read the weights once (424 tokens/s of 8, 58 of one, Llama-3-8B on an RTX 3090:
    llama.cpp pull requests 15131 and 14262)."""
    assert step_ratio("rtx-3090-24gb", F16_BITS, 8) < 1.1


def test_an_rtx_5090_clocks_beyond_its_data_sheet() -> None:
    """A prompt, all kernels, at nearly the 209.5 TFLOP/s stated (products 236 to 240), weights at 0.77 to 0.86 of 1,792
    GB/s with what is beside them: Llama 3 8B under vLLM."""
    times = price(make_shape("rtx-5090-32gb", "llama-3-8b", version="0.24"), 16384).step_times

    prompt, weights = 2 * 6.98e9 * 16384 / times.token_seconds[16384], 15.0e9 / times.decode_base[1]

    assert 0.95 < prompt / 209.5e12 < 1.13
    assert 0.77 < weights / 1.792e12 < 0.86
