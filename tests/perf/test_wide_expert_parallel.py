"""Experts over several nodes: DeepEP's exchange, balanced placement, and two halves of a batch that overlap."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from simserve.perf.collectives import (
    CURVES,
    ExchangeLinks,
    ExchangeMode,
    dispatched_bytes,
    exchange_seconds,
    messages,
)
from simserve.perf.moe import balanced_share, busiest_share
from simserve.perf.shape import ReplicaShape, weights_bytes_per_gpu
from simserve.perf.stage import shared_parts, stage_of
from simserve.perf.tables import price
from simserve.profiles.catalog import load_model
from tests.perf.shapes import make_shape

DECODE = {"all2all_backend": "deepep_low_latency"}
WIDE = {**DECODE, "num_redundant_experts": 32}
OVERLAP = {**WIDE, "enable_two_batch_overlap": True}
PUBLISHED_DECODE = 22_300.0
"""Output tokens/s a node of DeepSeek-V3 on nine nodes of H100 with 2,000 input tokens (LMSYS, May 2025)."""


def wide_shape(num_ranks: int, hardware: str, num_seqs: int, **changes: Any) -> ReplicaShape:
    """Return DeepSeek-V3 under SGLang with data-parallel attention and whole experts on so many GPUs."""
    shape = make_shape(hardware, "deepseek-v3", engine="sglang", data_parallel_size=num_ranks)
    engine = shape.engine.model_copy(update={"max_num_seqs": num_seqs})
    return dataclasses.replace(shape, engine=engine, enable_expert_parallel=True, quantization="fp8", **changes)


def decode_rate(num_ranks: int, hardware: str, num_seqs: int, context: int, **changes: Any) -> float:
    """Return output tokens/s a GPU of steps that decode so many sequences on each."""
    times = price(wide_shape(num_ranks, hardware, num_seqs, **changes)).step_times
    alone = times.decode_base[num_seqs] + times.decode_slope[num_seqs] * num_seqs * context
    together, last = num_ranks * num_seqs, len(times.shared_seconds) - 1
    shared = times.shared_seconds[min(together, last)] + times.shared_seconds_beyond * max(together - last, 0)
    return num_seqs / (alone + shared)


def links(num_ranks: int) -> ExchangeLinks:
    """Return H100 with eight to a node."""
    return ExchangeLinks(num_ranks=num_ranks, ranks_per_node=8, local_bandwidth=450e9, network_bandwidth=50e9)


RACK = ExchangeLinks(num_ranks=32, ranks_per_node=72, local_bandwidth=900e9, network_bandwidth=50e9)
"""32 ranks of a GB200 NVL72."""


@pytest.fixture(scope="module")
def wide_rate() -> float:
    """Output tokens/s a GPU of EP 72 on H200 with overlap, 128 requests each."""
    return decode_rate(72, "h200-sxm-141gb", 128, 1000, **OVERLAP)


def test_low_latency_sends_a_message_for_each_expert_on_another_rank() -> None:
    """Eight experts over 16 ranks: 7/16 of the messages stay in the node, half leave it."""
    assert messages("deepep_low_latency", 8, links(16)) == pytest.approx((3.5, 4.0))


def test_high_throughput_crosses_the_network_once_a_node() -> None:
    """Over two nodes a token reaches the other one once at most, over four fewer than three times."""
    (_, two), (_, four) = (messages("deepep_high_throughput", 8, links(ranks)) for ranks in (16, 32))

    assert two == pytest.approx(1.0, rel=0.01)
    assert two < four < 3.0


@pytest.mark.parametrize("mode", ["deepep_low_latency", "deepep_high_throughput"])
def test_nodes_of_one_gpu_exchange_over_the_network_alone(mode: ExchangeMode) -> None:
    """Two GH200 or GB10 have no link inside a node: its bandwidth is 0, and all that a token sends leaves the node."""
    single = ExchangeLinks(num_ranks=2, ranks_per_node=1, local_bandwidth=0.0, network_bandwidth=50e9)
    local, remote = messages(mode, 8, single)
    seconds = exchange_seconds(mode, CURVES[mode]["dispatch"], np.array([0.0, 4096.0]), 8000.0, 8, single)

    assert local == 0.0
    assert remote > 0.0
    assert seconds[1] - seconds[0] == pytest.approx(
        4096 * remote * 8000 / (50e9 * CURVES[mode]["dispatch"].network_share)
    )


@pytest.mark.parametrize(("num_ranks", "measured"), [(8, 39.8e-6), (16, 102.1e-6), (32, 143.0e-6), (64, 166.8e-6)])
def test_dispatch_of_128_tokens_takes_what_was_measured(num_ranks: int, measured: float) -> None:
    """Low latency, DeepSeek-V3's width, within a tenth (AIConfigurator tables, H100)."""
    curve = CURVES["deepep_low_latency"]["dispatch"]
    width = dispatched_bytes(7168)
    seconds = exchange_seconds("deepep_low_latency", curve, np.array([128.0]), width, 8, links(num_ranks))

    assert seconds[0] == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(("num_ranks", "measured"), [(8, 33.6e-6), (16, 36.2e-6), (32, 36.7e-6)])
def test_two_sided_dispatch_of_128_tokens_takes_what_was_measured(num_ranks: int, measured: float) -> None:
    """GB200, DeepSeek-V3's width in NVFP4, what prepares it included, within a tenth, where a rank has every expert's
    share (AIConfigurator tables); experts drawn at random are on fewer ranks."""
    curve, rack = CURVES["nvlink_two_sided"]["dispatch"], dataclasses.replace(RACK, num_ranks=num_ranks)
    width, even = dispatched_bytes(7168, element_bytes=0.5), min(8, num_ranks) * (1.0 - 1.0 / num_ranks)
    drawn, remote = messages("nvlink_two_sided", 8, rack)
    seconds = exchange_seconds("nvlink_two_sided", curve, np.array([128.0 * even / drawn]), width, 8, rack)

    assert remote == 0.0
    assert drawn <= even
    assert seconds[0] == pytest.approx(measured, rel=0.1)


def test_a_token_in_fp4_is_a_quarter_of_one_in_16_bit() -> None:
    """With their scales: 9/16 of a byte an element, FP8 33/32, 16 bit two."""
    sizes = [dispatched_bytes(7168, element_bytes=each) for each in (0.5, 1.0, 2.0)]

    assert sizes == [7168 * 9 / 16, 7168 * 33 / 32, 14336.0]


@pytest.mark.parametrize(("quantization", "is_smaller"), [("nvfp4", True), ("fp8", False)])
def test_tensorrt_llm_gathers_tokens_in_the_format_of_the_experts(quantization: str, is_smaller: bool) -> None:
    """DeepSeek-V3 on eight ranks of B200: NVFP4 gathers less than 16 bit, FP8 by blocks does not."""
    shape = make_shape("b200-sxm-180gb", "deepseek-v3", engine="tensorrt-llm", data_parallel_size=8)
    shape = dataclasses.replace(shape, enable_expert_parallel=True, quantization=quantization)
    engine = shape.engine.model_copy(update={"sends_rounded_tokens": False})
    rounded, wide = (price(each).step_times for each in (shape, dataclasses.replace(shape, engine=engine)))

    assert (rounded.shared_seconds[-1] < 0.99 * wide.shared_seconds[-1]) == is_smaller
    assert rounded.shared_seconds[-1] <= wide.shared_seconds[-1]


def test_one_rank_exchanges_nothing() -> None:
    """Its experts are its own."""
    curve = CURVES["deepep_low_latency"]["dispatch"]
    assert exchange_seconds("deepep_low_latency", curve, np.array([128.0]), 7392.0, 8, links(1))[0] == 0.0


def test_further_copies_even_out_the_load_of_ranks() -> None:
    """Copies lower the busiest rank's share, never under an even one; that of ranks without them is higher."""
    tokens = np.array([10_000.0])
    in_order, balanced = (busiest_share(tokens, 256, 8, 64, 0.8, num_redundant=copies)[0] for copies in (None, 32))
    shares = [balanced_share(256, 8, 64, copies, 0.8) for copies in (0, 32, 64)]

    assert shares[0] > shares[1] >= shares[2] >= 1 / 64
    assert shares[1] < 1.2 / 64
    assert balanced < 0.7 * in_order


def test_copies_of_experts_take_memory() -> None:
    """288 experts over 72 ranks are as many as 256, four each; over 32 ranks they are nine instead of eight."""
    model = load_model("deepseek-v3")
    plain, more = (
        weights_bytes_per_gpu(
            model, "fp8", data_parallel_size=32, enable_expert_parallel=True, num_redundant_experts=copies
        )
        for copies in (0, 32)
    )
    up, down = model.expert_gemms(1)

    assert more - plain == pytest.approx((up.num_weights + down.num_weights) * model.num_moe_layers, rel=0.02)


def test_wide_experts_keep_what_a_node_has_a_gpu(wide_rate: float) -> None:
    """H200, 128 requests a GPU: EP 72 with overlap gives at least 85 % of EP 8, whichever exchange that one has."""
    narrow = [decode_rate(8, "h200-sxm-141gb", 128, 1000, **each) for each in ({}, DECODE)]

    assert wide_rate >= 0.85 * max(narrow)


def test_overlap_hides_the_exchange(wide_rate: float) -> None:
    """Over nine nodes most of the exchange passes beside arithmetic."""
    assert wide_rate > 1.2 * decode_rate(72, "h200-sxm-141gb", 128, 1000, **WIDE)


def test_small_steps_are_not_split() -> None:
    """Under 32 sequences a GPU a step runs whole, so that overlap changes nothing."""
    rates = [decode_rate(72, "h200-sxm-141gb", 16, 1000, **each) for each in (WIDE, OVERLAP)]

    assert rates[1] == rates[0]


def test_decoding_on_nine_nodes_comes_near_the_published_rate() -> None:
    """DeepSeek-V3 on 72 H100, 256 sequences of 2,000 tokens a GPU: within 20 % of LMSYS's figure, fitted to nothing."""
    rate = 8 * decode_rate(72, "h100-sxm-80gb", 256, 2050, **OVERLAP)

    assert rate == pytest.approx(PUBLISHED_DECODE, rel=0.2)


@pytest.mark.parametrize("mode", ["deepep_low_latency", "deepep_high_throughput"])
def test_an_empty_exchange_takes_longer_by_the_nodes_and_not_by_their_ranks(mode: ExchangeMode) -> None:
    """Two nodes of eight start like two of four; each doubling of the nodes adds as much again."""
    curve, nothing = CURVES[mode]["dispatch"], np.array([0.0])
    small = dataclasses.replace(links(8), ranks_per_node=4)
    start = {each: exchange_seconds(mode, curve, nothing, 7392.0, 8, links(each))[0] for each in (16, 32, 64)}

    assert exchange_seconds(mode, curve, nothing, 7392.0, 8, small)[0] == start[16]
    assert start[64] - start[32] == pytest.approx(start[32] - start[16])


def test_ranks_that_do_not_fill_their_last_node_span_it_all_the_same() -> None:
    """Twelve ranks of eight a node are on two nodes."""
    assert [links(ranks).num_nodes for ranks in (4, 8, 9, 12, 16, 17)] == [1, 1, 2, 2, 2, 3]


def test_a_rank_has_room_for_its_share_of_the_experts_alone() -> None:
    """Of four, one has 0.6 of the load: two on each of two ranks are 0.6 + 0.13 at best, though three and one even."""
    popularity = np.array([1.0, 2.0**-2, 3.0**-2, 4.0**-2])
    share = popularity / popularity.sum()

    assert balanced_share(4, 1, 2, 0, 2.0) == pytest.approx(share[0] + share[3])


def test_one_exchange_of_half_a_step_shows_where_arithmetic_hides_the_others() -> None:
    """The first half has nothing to travel beside: of all layers' messages those of one, there and back."""
    shape = dataclasses.replace(wide_shape(72, "h200-sxm-141gb", 128, **OVERLAP), enable_two_batch_overlap=False)
    tokens = np.array([72 * 64.0])

    def exchanged(each: ReplicaShape, count: float) -> float:
        shares = shared_parts(dataclasses.replace(stage_of(each), splits_operators=True), tokens * count).shares
        assert shares is not None
        return float(shares["all_to_all"][0])

    overlapped = exchanged(dataclasses.replace(shape, enable_two_batch_overlap=True), 1.0)
    assert overlapped == pytest.approx(exchanged(shape, 0.5) / shape.model.num_moe_layers)
