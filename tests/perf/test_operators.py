"""The roofline formula, its parts, and the operators' flops and bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simserve.errors import InvariantError
from simserve.perf.attention import (
    UNSHARED_BANDWIDTH,
    attention_of,
    decode_key_seconds,
    growing_share,
    prefill_key_seconds,
    prefill_pair_seconds,
    serial_key_seconds,
    triton_latent_seconds,
    window_keys,
)
from simserve.perf.collectives import (
    Link,
    all_gather_seconds,
    all_reduce_latency,
    all_reduce_seconds,
    point_to_point_seconds,
)
from simserve.perf.efficiency import Machine
from simserve.perf.gemm import gemm_call, gemm_curve, gemm_work
from simserve.perf.moe import expected_distinct_experts
from simserve.perf.operators import COMPUTE, WEIGHTS, bound_parts, elementwise_parts
from simserve.perf.tables import price
from simserve.scenario.resolve import resolve
from tests.perf.shapes import make_model, make_shape
from tests.scenario.builders import make_scenario

MACHINE = Machine(
    name="unit",
    peaks={"bf16": 100e12},
    bandwidth=1e12,
    gemm_efficiency=1.0,
    attention_efficiency=1.0,
    memory_efficiency=1.0,
    kernel_latency=1e-6,
)


def test_small_gemm_is_weights_and_large_gemm_is_compute() -> None:
    """One row reads 200 MB in 0.2 ms; 10,048 rows, whole tiles, compute 2e12 FLOP and some in 20 ms."""
    rows = np.array([1.0, 10_048.0])
    work = gemm_work(rows, 10_048, 10_000, weight_bits=16)

    call = gemm_call(gemm_curve(MACHINE, "bf16", "bf16"), MACHINE, work, "bf16", rows, 10_048)
    parts = bound_parts(work, arithmetic=call.arithmetic, memory=call.memory, total=call.total)

    assert parts[WEIGHTS] == pytest.approx([0.20096e-3, 0.0])
    assert 0.20096e-3 < parts.sum(axis=0)[0] < 0.22e-3
    assert parts[COMPUTE, 1] == pytest.approx(2 * 10_048**2 * 10_000 / 100e12, rel=0.03)


def test_gemm_work_counts_group_scales_and_activations() -> None:
    """4.125 bits a weight; inputs of one byte, outputs of two."""
    work = gemm_work(np.array([3.0]), 256, 128, weight_bits=4.125, input_bytes=1.0)

    assert work.flops[0] == 2 * 3 * 256 * 128
    assert work.weight_bytes[0] == 256 * 128 * 4.125 / 8
    assert work.activation_bytes[0] == 3 * (128 * 1 + 256 * 2)


def test_elementwise_calls_each_start() -> None:
    """Two calls over 1 MB: 1 us of traffic and twice half a kernel latency."""
    parts = elementwise_parts(1e6, np.array([1.0]), MACHINE, calls=2)

    assert parts.sum() == pytest.approx(2e-6)


def test_unsupported_dtype_is_a_defect() -> None:
    """Precision resolution refuses it before."""
    with pytest.raises(InvariantError, match="no fp8 arithmetic"):
        MACHINE.peak("fp8")


@pytest.mark.parametrize(("tokens", "distinct"), [(0, 0.0), (1, 2.0), (2, 8 * (1 - 0.75**2)), (1e6, 8.0)])
def test_expected_distinct_experts(tokens: float, distinct: float) -> None:
    """One token visits k experts, many visit all."""
    assert float(expected_distinct_experts(8, 2, tokens)) == pytest.approx(distinct)


def test_popular_experts_leave_others_unread() -> None:
    """Chances add up to k whatever the skew, none above 1; with skew, few tokens visit fewer experts."""
    even, skewed = (float(expected_distinct_experts(64, 6, 32.0, skew)) for skew in (0.0, 1.0))

    assert float(expected_distinct_experts(64, 6, 1.0, 1.0)) == pytest.approx(6.0)
    assert float(expected_distinct_experts(8, 4, 1.0, 3.0)) == pytest.approx(4.0)
    assert skewed < even <= 64


def test_popularity_that_decays_leaves_a_cold_tail_and_no_hot_head() -> None:
    """Few tokens visit more experts than with a power of the rank, many visit fewer; the chances still add up to k."""
    few, many = np.array([2.0, 4.0]), np.array([16.0, 64.0, 256.0])

    assert float(expected_distinct_experts(128, 8, 1.0, decay=4.6)) == pytest.approx(8.0)
    assert np.all(expected_distinct_experts(128, 8, few, decay=4.6) > expected_distinct_experts(128, 8, few, 0.8))
    assert np.all(expected_distinct_experts(128, 8, many, decay=4.6) < expected_distinct_experts(128, 8, many, 0.8))


def test_decode_attention_reads_keys_and_values() -> None:
    """Llama-3.1-8B: 4,096 B a token and layer at the full bandwidth."""
    attention = attention_of(make_model().attention_layers[0], 1, 2.0)

    assert decode_key_seconds(attention, MACHINE, "bf16", is_flash=True) == pytest.approx(4096 / 1e12)


def test_standard_attention_moves_the_scores() -> None:
    """Four passes over 16-bit scores of 32 heads cost more than flash, in prefill and in decode."""
    attention = attention_of(make_model().attention_layers[0], 1, 2.0)

    decode = decode_key_seconds(attention, MACHINE, "bf16", is_flash=False)
    flash = prefill_pair_seconds(attention, MACHINE, "bf16", is_flash=True)
    standard = prefill_pair_seconds(attention, MACHINE, "bf16", is_flash=False)

    assert decode == pytest.approx((4096 + 4 * 2 * 32) / 1e12)
    assert flash == pytest.approx(4 * 32 * 128 / 100e12)
    assert standard == pytest.approx(2 * 4 * 2 * 32 / 1e12)


def test_latent_attention_decodes_in_its_latent_space() -> None:
    """16 heads of a latent of 512 and a rotary part of 64: 2 x 16 x (576 + 512) FLOP a key, 1,152 B."""
    latent = {
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    }
    model = make_model(num_attention_heads=16, num_key_value_heads=16, head_dim=192, mla=latent)

    attention = attention_of(model.attention_layers[0], 1, 2.0)

    assert attention.decode_flops_per_key == 2 * 16 * (576 + 512)
    assert attention.prefill_flops_per_pair == 2 * 16 * (192 + 128)
    assert attention.kv_bytes_per_token == 1152


def test_all_reduce_is_latency_then_bandwidth() -> None:
    """One rank costs nothing; 8 ranks start in the link's latency and 3 skews, then move 7/4 of the bytes."""
    link = Link(bandwidth=1e9, latency=5e-6, reference_ranks=8, skew=1e-6)

    assert all_reduce_latency(1, link) == 0.0
    assert all_reduce_latency(8, link) == pytest.approx(8e-6)
    seconds = all_reduce_seconds(np.array([0.0, 9e8]), 8, link)
    assert seconds - 8e-6 == pytest.approx([0.0, 1.75])
    assert all_gather_seconds(np.array([9e8]), 8, link) - 8e-6 == pytest.approx([0.875])


def test_over_pcie_the_quicker_of_two_protocols_reduces() -> None:
    """Small messages have flags of their own size beside them and start at once; from some size on others overtake."""
    link = Link(bandwidth=1e9 / 0.9, latency=20e-6, reference_ranks=2, skew=1e-6, is_pcie=True)
    small, large = 1e3, 1e7

    seconds = all_reduce_seconds(np.array([0.0, small, large]), 2, link)

    assert seconds == pytest.approx([21e-6, 21e-6 + small / 0.5e9, 21e-6 + 1.2 * 20e-6 + large / 1e9])
    assert np.all(np.diff(all_reduce_seconds(np.geomspace(1, 1e9, 500), 2, link)) > 0)


@pytest.mark.parametrize(
    ("kilobytes", "measured"), [(1, 22.66), (16, 34.13), (128, 95.56), (512, 221.9), (4096, 1427.9), (65536, 22550.0)]
)
def test_all_reduces_over_four_cards_on_pcie_are_those_of_a_table(kilobytes: float, measured: float) -> None:
    """Four V100 on PCIe (APEX+ collective tables, microseconds), to which neither protocol was fitted."""
    link = Link(bandwidth=4.46e9 / 0.9, latency=22.66e-6, reference_ranks=4, is_pcie=True)

    assert all_reduce_seconds(np.array([kilobytes * 1024]), 4, link)[0] == pytest.approx(measured * 1e-6, rel=0.1)


@pytest.mark.parametrize(("num_ranks", "measured"), [(2, 12e-6), (4, 22.66e-6)])
def test_between_cards_on_pcie_every_rank_is_a_hop(num_ranks: int, measured: float) -> None:
    """V100 on PCIe (APEX+ collective tables): a start and 2.7 us a hop, where a tree's depth is 20 % too long."""
    link = Link(bandwidth=1e12, latency=45e-6, reference_ranks=8, is_pcie=True, is_ring=True)

    assert all_reduce_latency(num_ranks, link) == pytest.approx(measured, rel=0.02)
    assert all_reduce_latency(8, link) == 45e-6
    assert all_reduce_latency(num_ranks, replace(link, is_ring=False)) > measured * 1.2


def test_a_ring_as_quick_as_its_start_has_no_hops() -> None:
    """A latency that is measured below NCCL's start is the same over any number; ranks that are late come on top."""
    quick = Link(bandwidth=1e12, latency=5e-6, reference_ranks=8, is_pcie=True, is_ring=True)
    late = replace(quick, skew=1e-6)

    assert [all_reduce_latency(ranks, quick) for ranks in (2, 8)] == [5e-6] * 2
    assert [all_reduce_latency(ranks, late) for ranks in (2, 8)] == pytest.approx([6e-6, 8e-6])


def test_cards_that_reach_each_other_over_pcie_form_a_ring() -> None:
    """Those whose transfers pass the host's memory do not, nor does NVLink; eight cards take almost twice as long as
    four, as RTX PRO 6000 do (nccl-tests, 16 KB: 19.0 and 37.6 us, 58.7 in a captured step)."""
    links = {
        name: make_shape(name, tensor_parallel_size=8).tensor_link
        for name in ("rtx-pro-6000-96gb", "l40s-48gb", "rtx-4090-24gb", "h100-sxm-80gb")
    }
    message = np.array([16384.0])

    assert [link.is_ring for link in links.values()] == [True, True, False, False]
    four, eight = (all_reduce_seconds(message, ranks, links["rtx-pro-6000-96gb"])[0] for ranks in (4, 8))
    assert 37.6e-6 < eight < 58.7e-6
    assert four < eight / 1.8


def test_gathering_over_a_network_passes_every_rank() -> None:
    """Rings over nodes start a hop a rank later and reach less of the link than inside one."""
    inside = Link(bandwidth=50e9, latency=20e-6)
    across = Link(bandwidth=50e9, latency=3e-6, network_latency=17e-6)
    message = np.array([0.0, 4e6, 2e9])

    near, far = (all_gather_seconds(message, 16, link) for link in (inside, across))

    assert far[0] - near[0] == pytest.approx(15 * 3.3e-6)
    assert far[2] / near[2] == pytest.approx(0.9 / 0.7, rel=0.01)


def test_an_all_reduce_crosses_a_network_twice() -> None:
    """Up the tree and down again: its latency counts once more than a message's."""
    link = Link(bandwidth=50e9, latency=20e-6)
    across = Link(bandwidth=50e9, latency=20e-6, network_latency=17e-6)

    assert all_reduce_latency(16, across) / all_reduce_latency(16, link) == pytest.approx(37 / 20)


def test_layers_of_a_short_window_do_not_grow_with_the_context() -> None:
    """gpt-oss: half of its layers see 128 tokens. A window of thousands is priced as the whole context."""
    short, long = make_model("gpt-oss-20b"), make_model("mistral-7b")
    lines = [
        (growing_share(model, model.attention_layers[0]), window_keys(model, model.attention_layers[0]))
        for model in (short, long)
    ]

    assert lines == [(0.5, 64.0), (1.0, 0.0)]


def test_a_window_of_a_thousand_tokens_is_a_straight_line() -> None:
    """Gemma-3: 52 of 62 layers see 1,024; up to 4 windows of context at most 0.375 of one off, beyond a quarter."""
    model = make_model("gemma-3-27b")
    contexts = np.array([0.0, 512.0, 1024.0, 4096.0, 8192.0])
    layers = model.attention_layers[0]
    line = growing_share(model, layers) * contexts + window_keys(model, layers)
    seen = (10 * contexts + 52 * np.minimum(contexts, 1024.0)) / 62
    everything = contexts

    assert np.all(np.abs(line - seen)[:4] <= 0.375 * 1024 * 52 / 62 + 1e-9)
    assert line[-1] - seen[-1] == pytest.approx((0.375 + 1.0) * 1024 * 52 / 62)
    assert np.all(line[3:] < 0.6 * everything[3:])


@pytest.mark.parametrize("name", ["gemma-3-27b", "mistral-7b"])
def test_a_window_is_priced_for_the_contexts_of_the_traffic(name: str) -> None:
    """Within it the whole context, far beyond it the window alone; in between, right in the mean of the traffic."""
    model = make_model(name)
    layers, window = model.attention_layers[0], model.sliding_window
    assert window is not None
    windowed = layers.num_sliding_layers / model.num_hidden_layers

    def seen(contexts: tuple[float, ...]) -> NDArray[np.float64]:
        return growing_share(model, layers, contexts) * np.array(contexts) + window_keys(model, layers, contexts)

    for contexts in (
        (0.2 * window, 0.9 * window),
        (20.0 * window, 30.0 * window),
        (0.5 * window, window, 9.0 * window),
    ):
        exact = (1 - windowed) * np.array(contexts) + windowed * np.minimum(contexts, window)
        assert seen(contexts).mean() == pytest.approx(exact.mean())
    assert seen((0.2 * window, 0.9 * window)) == pytest.approx(np.array([0.2, 0.9]) * window)
    assert growing_share(model, layers, (20.0 * window, 30.0 * window)) == pytest.approx(1 - windowed)
    assert growing_share(model, layers, (5.0 * window,)) == pytest.approx(1 - windowed)


def test_kernels_that_follow_a_gpu_only_so_far() -> None:
    """llama.cpp on an H100: 1.6 of its 3.35 TB/s, 300 of its 989 TFLOP/s; an RTX 4090 has less of both."""
    large, small = (make_shape(name, engine="llama.cpp").machine for name in ("h100-sxm-80gb", "rtx-4090-24gb"))

    assert (large.bandwidth, large.peak("bf16")) == (1.6e12, 300e12)
    assert (small.bandwidth, small.peak("bf16")) == (1.008e12, pytest.approx(165.2e12, rel=0.01))


@pytest.mark.parametrize(
    ("model", "version", "is_shared"),
    [
        ("llama-2-70b", "0.7.1", False),
        ("llama-2-70b", "0.8.0", True),
        ("mistral-7b", "0.9.0", False),
        ("mistral-7b", "0.10.0", True),
        ("llama-2-7b", "0.5.0", True),
    ],
)
def test_early_kernels_read_the_keys_of_a_group_once_a_query_head(model: str, version: str, is_shared: bool) -> None:
    """XQA came with 0.8 for groups of 8, with 0.10 for others; a model without groups has nothing to share."""
    slope, newest = (
        price(make_shape(model=model, engine="tensorrt-llm", version=each), 64).step_times.decode_slope[1]
        for each in (version, "0.14")
    )

    assert (slope < 1.2 * newest) is is_shared
    if not is_shared:
        loaded = make_model(model)
        group = loaded.num_attention_heads / loaded.num_key_value_heads
        assert slope == pytest.approx(group * loaded.kv_bytes_per_token(2) / UNSHARED_BANDWIDTH)


@pytest.mark.parametrize(("num_ranks", "expected"), [(2, 4e-6), (4, 6e-6), (8, 8e-6), (16, 10e-6)])
def test_collectives_without_bytes_take_the_latency_of_their_own_ranks(num_ranks: int, expected: float) -> None:
    """8 us over 8 ranks are a start and three levels of a tree of 2 us each; a message between two is one level."""
    link = Link(bandwidth=450e9, latency=8e-6)
    nothing = np.array([0.0])

    assert all_reduce_seconds(nothing, num_ranks, link)[0] == pytest.approx(expected)
    assert all_gather_seconds(nothing, num_ranks, link)[0] == pytest.approx(expected)
    assert point_to_point_seconds(nothing, link)[0] == pytest.approx(4e-6)


def test_a_message_reaches_the_share_of_a_link_that_nccl_measures() -> None:
    """Its bus bandwidth over NVLink is 0.8 to 0.95 of the peak (nccl-tests); the start is that of two ranks."""
    link = Link(bandwidth=450e9, latency=8e-6)
    one, two = point_to_point_seconds(np.array([1e9, 2e9]), link)

    assert 0.8 < 1e9 / (two - one) / 450e9 < 0.95


def test_a_key_is_read_as_fast_for_a_prompt_as_for_a_decode_step() -> None:
    """Both stream the cache: 4,096 B over 3.35 TB/s at the class's share, and a twentieth more."""
    shape = make_shape()
    layer = attention_of(shape.model.attention_layers[0], 1, 2.0)
    machine = replace(shape.machine, decode_efficiency=None, memory_efficiency=0.8)

    assert prefill_key_seconds(layer, machine) == pytest.approx(4096 / (3.35e12 * 0.8 * 1.05))
    assert decode_key_seconds(layer, machine, "bf16", is_flash=True) == prefill_key_seconds(layer, machine)


def test_latent_decodes_are_bound_by_arithmetic_where_memory_outruns_it() -> None:
    """128 heads of 2 x 1,088 FLOP a key against 1,152 B: 2.8 ns at 100 TFLOP/s, 1.2 ns at 1 TB/s."""
    layers = make_model("deepseek-v3").attention_layers[0]
    seconds = decode_key_seconds(attention_of(layers, 1, 2.0), MACHINE, "bf16", is_flash=True)

    assert seconds == pytest.approx(2 * 128 * 1088 / 100e12)


def test_few_sequences_leave_multiprocessors_of_tritons_latent_decodes_idle() -> None:
    """16 heads are one block, cut into 8 parts of the keys: one sequence has 8 of 132 multiprocessors, 17 all."""
    backend = {"attention_backend": "triton", "tensor_parallel_size": 8}
    shape = make_shape("h200-sxm-141gb", "deepseek-v3", engine="sglang", **backend)
    attention = attention_of(shape.model.attention_layers[0], 8, 2.0)
    one, full, more = triton_latent_seconds(shape, shape.machine, attention, np.array([1.0, 17.0, 64.0]))

    assert shape.machine.num_multiprocessors == 132
    assert one / full == pytest.approx(132 / 8)
    assert full == more


def test_tritons_latent_decodes_on_amd_compute_at_a_tenth_of_the_peak() -> None:
    """A token of Kimi-K2.5 over four MI355X, 31,744 keys more: 4.4 ms; of sparse attention nothing."""
    backend = {"attention_backend": "triton", "tensor_parallel_size": 4}
    shape = make_shape("mi355x-288gb", "kimi-k2.5", engine="sglang", **backend)
    attention = attention_of(shape.model.attention_layers[0], 4, 2.0)
    one, full = triton_latent_seconds(shape, shape.machine, attention, np.array([1.0, 16.0]))
    own, sparse = (
        make_shape("mi355x-288gb", model, engine="sglang", tensor_parallel_size=4, **more)
        for model, more in (("kimi-k2.5", {}), ("glm-5.2", {"attention_backend": "triton"}))
    )

    assert 31_744 * 61 * one == pytest.approx(4.44e-3, rel=0.03)
    assert one / full == pytest.approx(256 / 16)
    assert not triton_latent_seconds(own, own.machine, attention, np.array([1.0]))[0]
    assert not triton_latent_seconds(sparse, sparse.machine, attention, np.array([1.0]))[0]


def test_one_program_reads_the_keys_of_wide_heads_of_recurrent_models_on_amd() -> None:
    """A token of Qwen3.5-122B on an MI325X behind 200 and 12,000 tokens: 17.5 and 38.5 ms (vLLM issue 56945, 0.27)."""
    options: dict[str, Any] = {
        "quantization": "fp8",
        "kv_cache_dtype": "fp8",
        "max_num_seqs": 8,
        "max_model_len": 32768,
    }
    shape = make_shape("mi325x-256gb", "qwen3.5-122b-a10b", version="0.27.0", **options)
    steps = price(shape, 1024).step_times
    layers = shape.model.attention_layers[0]
    one, eight = serial_key_seconds(shape, layers, np.array([1.0, 8.0]))

    assert 11_800 * steps.decode_slope[1] == pytest.approx(0.0385 - 0.0175, rel=0.5)
    assert one == 8 * eight


@pytest.mark.parametrize(
    ("hardware", "model", "options"),
    [
        ("mi325x-256gb", "qwen3.5-122b-a10b", {"version": "0.18.0"}),
        ("mi325x-256gb", "qwen3.5-122b-a10b", {"version": "0.27.0", "attention_backend": "aiter"}),
        ("mi325x-256gb", "qwen3.5-122b-a10b", {"version": "0.27.0", "attention_backend": "triton"}),
        ("mi325x-256gb", "llama-3.1-8b", {"version": "0.27.0"}),
        ("h200-sxm-141gb", "qwen3.5-122b-a10b", {"version": "0.27.0"}),
    ],
)
def test_other_kernels_split_the_keys_of_a_sequence(hardware: str, model: str, options: dict[str, Any]) -> None:
    """Before 0.19, where a backend is asked for, in models whose pages AMD's own kernel reads, and on other GPUs."""
    shape = make_shape(hardware, model, max_num_seqs=8, max_model_len=32768, **options)

    assert not serial_key_seconds(shape, shape.model.attention_layers[0], np.ones(1))[0]


def test_steps_with_drafts_split_the_keys_of_a_sequence() -> None:
    """vLLM's kernel that reads them one after another takes one token a sequence."""
    engine = "deployment.engine={name: vllm, version: '0.27.0', max_model_len: 32768}"
    gpu = ["model=qwen3.5-122b-a10b", "deployment.hardware=mi325x-256gb", "deployment.quantization=fp8", engine]
    drafts = "deployment.speculative={method: mtp, num_speculative_tokens: 2, acceptance_rate: 0.8}"
    plain, drafting = (resolve(make_scenario([*gpu, *each])).shape for each in ((), (drafts,)))

    assert serial_key_seconds(plain, plain.model.attention_layers[0], np.ones(1))[0]
    assert not serial_key_seconds(drafting, drafting.model.attention_layers[0], np.ones(1))[0]


def test_llama_cpp_reads_keys_one_after_another_on_intels_gpus() -> None:
    """A 27B on an Arc Pro B70 takes 16 ms more behind 65,536 tokens (llama.cpp pull request 24408: 47.2 and 63.6)."""
    options: dict[str, Any] = {"engine": "llama.cpp", "quantization": "gguf-q6_k", "max_model_len": 66_000}
    steps = price(make_shape("arc-pro-b70-32gb", "qwen3.5-27b", max_num_seqs=1, **options), 1024).step_times

    assert 65_536 * steps.decode_slope[1] == pytest.approx(0.0164, rel=0.2)
