"""Apple's GPUs under llama.cpp: memory binds a stream whatever the format, and few rows cost no tile."""

from __future__ import annotations

import pytest

from simserve.perf.operators import PricedDeployment
from simserve.perf.shape import ReplicaShape
from simserve.perf.tables import price
from tests.perf.shapes import make_hardware, make_shape

TABLE_TOKENS = 1024
BITS = {"none": 16.0, "gguf-q8_0": 8.5, "gguf-q4_0": 4.5}


def make_mac(quantization: str = "none", version: str | None = None, **efficiency: float) -> ReplicaShape:
    """Return Llama-2-7B on an M2 Max, with values of its efficiencies replaced."""
    return make_shape(
        make_hardware("m2-max-96gb", efficiency=efficiency),
        "llama-2-7b",
        engine="llama.cpp",
        version=version,
        max_num_seqs=8,
        max_model_len=8192,
        quantization=quantization,
    )


def stream(priced: PricedDeployment) -> float:
    """Return the seconds of a step that decodes one sequence without a context."""
    return priced.step_times.decode_base[1]


def test_a_stream_takes_the_bytes_of_its_weights_over_the_bandwidth() -> None:
    """Half of the bytes take half of the time; what is left, starts and host, is the same for every format."""
    seconds = {name: stream(price(make_mac(name), TABLE_TOKENS)) for name in BITS}
    slopes = [
        (seconds[wide] - seconds[narrow]) / (BITS[wide] - BITS[narrow])
        for wide, narrow in (("none", "gguf-q8_0"), ("gguf-q8_0", "gguf-q4_0"))
    ]

    assert slopes[0] == pytest.approx(slopes[1], rel=0.05)
    assert seconds["none"] > 2.5 * seconds["gguf-q4_0"]


def test_the_host_has_no_term_that_grows_with_the_weights() -> None:
    """Of a token of Q4_K_M less than a fifth is host and starts."""
    parts = price(make_mac("gguf-q4_k_m"), TABLE_TOKENS).parts.decode[:, 1]

    assert parts[4] < 0.2 * parts.sum()


def test_few_rows_are_multiplied_row_by_row() -> None:
    """With tiles of 16 rows, one row would take the arithmetic of 16 and bind before the memory does."""
    by_row, by_tile = make_mac("gguf-q4_0"), make_mac("gguf-q4_0", tile_rows=16)

    assert stream(price(by_tile, TABLE_TOKENS)) > 1.2 * stream(price(by_row, TABLE_TOKENS))


def test_prompts_are_unpacked_inside_the_kernel() -> None:
    """A prompt in Q4_0 takes longer than in 16 bit by the share that is stated, and nothing is written out."""
    prompts = {name: price(make_mac(name), TABLE_TOKENS).step_times.token_seconds[512] for name in BITS}

    assert make_mac("gguf-q4_0").precision.unpacked_from_rows is None
    assert prompts["gguf-q4_0"] / prompts["none"] == pytest.approx(
        1.0 / make_mac().hardware.efficiency.unpacking, rel=0.03
    )


@pytest.mark.parametrize(
    ("hardware", "model", "rate"),
    [
        ("m2-pro-32gb", "llama-3.1-8b", 33.0),
        ("m2-pro-32gb", "qwen2.5-14b", 17.6),
        ("m2-pro-32gb", "phi-4", 17.2),
        ("m2-pro-32gb", "gemma-3-12b", 19.8),
        ("m4-32gb", "llama-3.1-8b", 20.87),
    ],
)
def test_k_quants_take_the_arithmetic_of_their_unpacking(hardware: str, model: str, rate: float) -> None:
    """Tokens a second in Q4_K_M of 2026 (AlexsJones/llmfit pull 1031, brand-o/normiebench issue 3), within 6 %."""
    shape = make_shape(
        hardware, model, engine="llama.cpp", max_num_seqs=1, max_model_len=1024, quantization="gguf-q4_k_m"
    )

    assert stream(price(shape, TABLE_TOKENS)) == pytest.approx(1.0 / rate, rel=0.06)


def test_prompts_of_k_quants_are_unpacked_once_a_tile() -> None:
    """A prompt in Q4_K_M takes what one in Q4_0 takes, a token of it 15 % longer than the bytes say."""
    plain, packed = (price(make_mac(name), TABLE_TOKENS) for name in ("gguf-q4_0", "gguf-q4_k_m"))

    assert packed.step_times.token_seconds[512] == pytest.approx(plain.step_times.token_seconds[512], rel=0.03)
    assert stream(packed) > 1.15 * (4.8 / 4.5) * stream(plain)


def test_older_builds_start_their_kernels_one_by_one() -> None:
    """Build 4000 takes longer for a token by the same time in every format, on a Mac alone."""
    gaps = [
        stream(price(make_mac(name, "b4000"), TABLE_TOKENS)) - stream(price(make_mac(name), TABLE_TOKENS))
        for name in BITS
    ]
    old, new = (
        make_shape("rtx-4090", "llama-2-7b", engine="llama.cpp", version=version, max_num_seqs=8, max_model_len=8192)
        for version in ("b4000", "b8000")
    )

    assert min(gaps) > 1e-3
    assert max(gaps) == pytest.approx(min(gaps), rel=0.05)
    assert stream(price(old, TABLE_TOKENS)) == stream(price(new, TABLE_TOKENS))


def test_the_share_of_fp16_is_a_limit_of_cuda_kernels() -> None:
    """llama.cpp's prompts reach 0.55 of the FP16 rate of an RTX A6000; on a Mac its kernels have all of the peak."""
    mac = make_mac().machine
    cuda = make_shape("rtx-a6000", "llama-2-7b", engine="llama.cpp", max_model_len=4096).machine

    assert mac.peak("fp16") == make_mac().hardware.peak_flops("fp16")
    assert cuda.peak("fp16") == pytest.approx(0.55 * 154.8e12, rel=0.01)


def batch(rows: int, hardware: str, model: str, quantization: str) -> float:
    """Return the seconds of a step in which all slots decode, without contexts."""
    shape = make_shape(
        hardware, model, engine="llama.cpp", max_num_seqs=rows, max_model_len=512, quantization=quantization
    )
    return price(shape, TABLE_TOKENS).step_times.decode_base[rows]


@pytest.mark.parametrize("quantization", ["gguf-q8_0", "gguf-q4_0", "gguf-q4_k_m"])
def test_up_to_eight_answers_are_multiplied_one_by_one_and_more_in_tiles(quantization: str) -> None:
    """Nine take as long as 32, and no batch less time than a smaller one."""
    steps = [batch(rows, "m3-pro-18gb", "qwen3-4b", quantization) for rows in (*range(1, 10), 32, 33)]

    assert steps == sorted(steps)
    assert steps[7] > 1.7 * steps[1]
    assert steps[9] < 1.08 * steps[8]
    assert steps[10] > 1.5 * steps[9]


def test_few_answers_take_what_was_measured() -> None:
    """LLaMA 7B in Q8_0 on an M1 Pro takes 42, 60 and 112 ms for one, four and eight rows (llama.cpp pull 10581)."""
    steps = [batch(rows, "m1-pro-32gb", "llama-2-7b", "gguf-q8_0") for rows in (1, 4, 8)]

    assert steps == pytest.approx([0.042, 0.060, 0.112], rel=0.12)
