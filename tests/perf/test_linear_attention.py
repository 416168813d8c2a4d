"""Layers of linear attention: states instead of keys, prompts chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from simserve.perf.attention import index_key_seconds, index_pair_seconds
from simserve.perf.kv_layout import window_layout, with_state_blocks
from simserve.perf.linear_attention import (
    GATED_DELTA,
    PromptScan,
    chunk_seconds,
    mixing_parts,
    prompt_scan,
    state_seconds,
    step_state_seconds,
)
from simserve.perf.memory import plan_memory, state_bytes, state_seats, state_slots, with_room_for_states
from simserve.perf.shape import Speculation, weights_bytes, weights_bytes_per_gpu
from simserve.perf.tables import price
from simserve.profiles.catalog import load_model
from simserve.profiles.state_blocks import LinearAttention
from simserve.scenario.resolve import resolve
from tests.perf.shapes import make_model, make_shape
from tests.scenario.builders import make_scenario

SHARE = 0.9 / 1.9
SERVED = {"engine": "sglang", "tensor_parallel_size": 8, "quantization": "fp8", "max_num_seqs": 128}
HYBRID = make_shape("h200-sxm-141gb", "qwen3.5-397b-a17b", **SERVED)


def linear_of(name: str = "qwen3.5-397b-a17b") -> LinearAttention:
    """Return the linear attention of a catalogue model."""
    linear = load_model(name).linear_attention
    assert linear is not None
    return linear


@pytest.mark.parametrize(("tokens", "measured"), [(2048, 86e-6), (8192, 259e-6), (65536, 1954e-6)])
def test_a_prompt_passes_chunk_by_chunk(tokens: int, measured: float) -> None:
    """8 value heads of 128 on an H100, flashinfer pull request 3866: 86 us for 2,048 tokens, 1,954 for 65,536."""
    machine = make_shape("h100-sxm-80gb").machine

    with_scan, without = (
        mixing_parts(linear_of(), machine, np.array([float(tokens)]), 8, scan=scan) for scan in (GATED_DELTA, None)
    )

    assert float((with_scan - without).sum()) == pytest.approx(measured, rel=0.05)


def test_many_heads_are_bound_by_arithmetic() -> None:
    """64 value heads on an H100, pull request 3788: 1,045 us for 8,192 tokens."""
    machine = make_shape("h100-sxm-80gb").machine

    with_scan, without = (
        mixing_parts(linear_of(), machine, np.array([8192.0]), 1, scan=scan) for scan in (GATED_DELTA, None)
    )

    assert float((with_scan - without).sum()) == pytest.approx(1045e-6, rel=0.1)


@pytest.mark.parametrize(
    ("gpu", "element_seconds", "microseconds"),
    [
        ("h200-sxm-141gb", 1.45e-12, 345.12 - 52.06),
        ("h200-sxm-141gb", None, 215.12 - 33.76),
        ("b200-sxm-180gb", 1.45e-12, 244.60 - 34.91),
    ],
)
def test_states_cost_a_decode_step_by_the_sequence(
    gpu: str, element_seconds: float | None, microseconds: float
) -> None:
    """8 heads of 128 x 128 in 16 bit, 896 sequences more than 128, before and after vllm pull request 31722."""
    machine, linear = make_shape(gpu).machine, linear_of().model_copy(update={"state_element_bytes": 2.0})

    seconds = state_seconds(linear, machine, np.array([0.0, 128.0, 1024.0]), 8, element_seconds=element_seconds)

    assert seconds[0] == 0
    assert 1e6 * (seconds[2] - seconds[1]) == pytest.approx(microseconds, rel=0.11)
    assert state_seconds(linear, machine, np.array([128.0]), 8, 3)[0] > seconds[1]


def test_states_in_32_bit_move_twice_the_bytes_and_take_the_same_arithmetic() -> None:
    """32 heads on a B200, 128 sequences: 99.5 us more than none (sglang pull request 32593); halved bytes, not time."""
    machine, linear = make_shape("b200-sxm-180gb").machine, linear_of("qwen3.5-35b-a3b")
    narrow = linear.model_copy(update={"state_element_bytes": 2.0})

    wide, half = (
        float(np.diff(state_seconds(each, machine, np.array([1.0, 129.0]), 1))[0]) for each in (linear, narrow)
    )

    assert wide == pytest.approx(99.5e-6, rel=0.15)
    assert wide - half == pytest.approx(4.0 * 128 * linear.state_elements / machine.bandwidth)


def test_releases_before_wider_tiles_take_longer_over_states() -> None:
    """vLLM from 0.14 on, SGLang from 0.5.8 on: 64 sequences of Qwen3-Next."""
    for engine, before, after in (("vllm", "0.13", "0.14"), ("sglang", "0.5.7", "0.5.8")):
        old, new = (
            make_shape("h200-sxm-141gb", "qwen3-next-80b-a3b", engine=engine, version=v) for v in (before, after)
        )
        then, now = (step_state_seconds(each, each.machine, np.array([64.0]))[0] for each in (old, new))

        assert 1.2 * now < then < 1.6 * now


def test_tensorrt_llm_reads_and_writes_states_at_the_bandwidth_from_1_3_on() -> None:
    """Qwen3.5-27B on an RTX PRO 6000, 128 sequences: 21 ms more than one (measured), 28 under 1.2."""
    before, after = (
        make_shape("rtx-pro-6000-ws-96gb", "qwen3.5-27b", engine="tensorrt-llm", version=version, quantization="fp8")
        for version in ("1.2", "1.3")
    )

    then, now = (np.diff(step_state_seconds(each, each.machine, np.array([1.0, 128.0])))[0] for each in (before, after))

    assert now == pytest.approx(21e-3, rel=0.05)
    assert then == pytest.approx(now + 1.45e-12 * 48 * 127 * 48 * 128 * 128)


def test_a_decode_in_the_kernel_of_prompts_takes_a_chunk() -> None:
    """64 value heads, 953 decodes beside 7,239 tokens of prompts: 4,362 us in the kernel (vllm pull request 44700)."""
    machine, linear = make_shape("b200-sxm-180gb").machine, linear_of()
    inside = linear.model_copy(update={"state_element_bytes": 0.0})  # nothing to gather

    with_scan, without = (
        mixing_parts(linear, machine, np.array([8192.0]), 1, scan=scan) for scan in (GATED_DELTA, None)
    )
    chunks, gathered = (float(chunk_seconds(each, machine, np.array([953.0]), 1)[0]) for each in (inside, linear))

    assert float((with_scan - without).sum()) + chunks == pytest.approx(4362e-6, rel=0.15)
    moved = 4 * 4.0 * linear.state_elements * 953 / machine.bandwidth
    assert moved < gathered - chunks < 1.5 * moved


def test_vllm_sends_decodes_beside_prompts_through_the_kernel_of_prompts_before_0_23() -> None:
    """vllm pull request 44700 is in 0.23; 400 decodes of Qwen3.5-35B-A3B took a mixed step 60 ms and more longer."""
    before, after = (make_shape("h200-sxm-141gb", "qwen3.5-35b-a3b", version=each) for each in ("0.22", "0.23"))
    old, new = price(before).step_times, price(after).step_times

    longer = np.subtract(old.decode_attention_base, new.decode_attention_base)

    decodes = np.arange(len(longer))
    chunks = 30 * chunk_seconds(linear_of("qwen3.5-35b-a3b"), before.machine, decodes, 1)
    assert longer == pytest.approx(chunks - step_state_seconds(after, after.machine, decodes, is_mixed=True), rel=0.02)
    assert longer[0] == 0
    assert longer[400] > 50e-3
    assert replace(old, decode_attention_base=()) == replace(new, decode_attention_base=())


@pytest.mark.parametrize("model", ["llama-3.1-8b", "nemotron-nano-9b-v2"])
def test_the_kernel_of_prompts_takes_decodes_of_no_other_models(model: str) -> None:
    """Layers with keys, and Mamba-2, which splits steps in all versions, cost the same in 0.22 and 0.23."""
    old, new = (price(make_shape(model=model, version=each)).step_times for each in ("0.22", "0.23"))

    assert old == new


def test_the_kernel_of_prompts_takes_no_drafts() -> None:
    """Decodes whose drafts are verified run through the recurrent kernel in all versions."""
    plain = [make_shape(model="qwen3.5-9b", version=each) for each in ("0.22", "0.23")]
    drafts = Speculation(method="ngram", num_speculative_tokens=2, draft=None)

    old, new = (price(replace(each, speculation=drafts)).step_times for each in plain)

    assert old == new


def test_sglang_prices_no_chunks_of_decodes() -> None:
    """SGLang has decodes and prompts in steps of their own by default."""
    engine = make_shape("h200-sxm-141gb", "qwen3.5-35b-a3b", engine="sglang").engine

    assert not engine.chunks_mixed_decodes


def test_weights_are_those_of_both_kinds_of_layers() -> None:
    """A layer more of linear attention is its projections and small parameters more, on any number of ranks."""
    model = load_model("qwen3.5-397b-a17b")
    linear = sum(gemm.num_weights for gemm in model.linear_attention_gemms())
    full = sum(gemm.num_weights for gemm in model.attention_gemms())

    assert linear == 4096 * (12288 + 8192 + 128) + 8192 * 4096
    assert full == 4096 * (2 * 32 * 256 + 2 * 2 * 256) + 32 * 256 * 4096
    assert weights_bytes(model) == pytest.approx(2 * 396.3e9, rel=1e-3)
    assert weights_bytes_per_gpu(model, "none", 8) == pytest.approx(weights_bytes(model) / 8, rel=0.01)


def test_keys_and_scores_are_those_of_a_quarter_of_the_layers() -> None:
    """A model with attention in all layers pays four times as much a token of context."""
    plain = make_model("qwen3.5-397b-a17b", linear_attention=None)
    hybrid, full = (price(each).step_times for each in (HYBRID, make_shape("h200-sxm-141gb", plain, **SERVED)))

    assert full.decode_slope[8] == pytest.approx(4 * hybrid.decode_slope[8])
    assert full.prefill_pair_seconds == pytest.approx(4 * hybrid.prefill_pair_seconds)
    assert full.prefill_request_seconds == pytest.approx(4 * hybrid.prefill_request_seconds)


def test_a_step_with_prompts_waits_for_each_linear_layer() -> None:
    """The gap of SGLang's profile, 45 times; none of it in decode steps."""
    without = make_shape(
        "h200-sxm-141gb",
        "qwen3.5-397b-a17b",
        engine_fields={"eager_gap_seconds_per_linear_layer": 0.0},
        **SERVED,
    )
    gaps, none = price(HYBRID).step_times, price(without).step_times

    gap = HYBRID.engine.eager_gap_seconds_per_linear_layer
    assert gaps.token_seconds[8192] - none.token_seconds[8192] == pytest.approx(45 * gap)
    assert gaps.decode_base[8] == none.decode_base[8]


def served_by_vllm(model: str = "qwen3.5-27b", **choices: bool) -> tuple[float, float, float]:
    """Return the seconds of steps of vLLM with 8 and with 8,192 tokens of prompts, and of one with 8 decodes."""
    times = price(make_shape("h100-sxm-80gb", model, version="0.27", **choices)).step_times
    return float(times.token_seconds[8]), float(times.token_seconds[8192]), float(times.decode_base[8])


def test_the_host_launches_linear_attention_that_no_graph_covers() -> None:
    """A short prompt takes 48 layers x 1.1 ms, a long one hides them; decode steps are in graphs, unless those are off.

    First tokens of 128: 64 ms (sch0tten, RTX PRO 6000), of 256: 59 ms (murai-labs, RTX 5090). Decode steps without
    graphs: 65 ms (llmkube, two RTX 5060 Ti).
    """
    short, long, decode = served_by_vllm()
    _, _, eager_decode = served_by_vllm(enforce_eager=True)

    assert short == pytest.approx(48 * 1.1e-3, rel=0.1)
    assert long > 4 * short
    assert decode < 0.03
    assert eager_decode == pytest.approx(48 * 1.1e-3 + 16 * 0.42e-3, rel=0.15)


def test_convolutions_are_launched_as_any_layer() -> None:
    """A short convolution is one kernel: LFM2's prompts of 8 tokens stay within a decode step and a half."""
    short, _, decode = served_by_vllm("lfm2-2.6b")

    assert short < 1.5 * decode


def test_every_seat_holds_a_state() -> None:
    """24 MB a sequence and GPU: 64 x 128 x 128 FP32 and 3 inputs of the convolution in 45 layers, over 8 ranks.

    One more is for padded sequences.

    Beside a prefix cache 0.9 parts to 1 of KV, however few the seats: handle_max_mamba_cache of 0.5.10, 0.5.16, 0.5.23.
    """
    plan = plan_memory(make_shape("h200-sxm-141gb", "qwen3.5-397b-a17b", enable_prefix_caching=False, **SERVED))
    cached = plan_memory(HYBRID)

    a_sequence = 45 * (64 * 128 * 128 * 4 + 12288 * 3 * 2) / 8
    assert plan.states_bytes == plan.parts["states"] == pytest.approx(129 * a_sequence)
    assert cached.parts["states"] == pytest.approx(0.9 * cached.kv_bytes, rel=1e-3)
    assert cached.parts["states"] > 5 * 128 * a_sequence
    assert plan.kv_bytes - cached.kv_bytes == pytest.approx(cached.parts["states"] - plan.parts["states"])
    assert sum(plan.parts.values()) == pytest.approx(plan.total_bytes)


@pytest.mark.parametrize(
    ("version", "is_ahead", "states"),
    [("0.5.13", False, 3), ("0.5.14", True, 5), ("0.5.14", False, 3), ("0.5.23", True, 5)],
)
def test_a_step_scheduled_ahead_needs_two_states_more(version: str, is_ahead: bool, states: int) -> None:
    """SGLang's _calculate_mamba_ratio: 3 states a cached seat, 2 more in a ping-pong buffer with overlapped steps."""
    served = SERVED | {"max_num_seqs": 4096}
    shape = make_shape("h200-sxm-141gb", "qwen3.5-397b-a17b", version=version, async_scheduling=is_ahead, **served)

    assert state_seats(shape) == state_slots(shape) // states


@pytest.mark.parametrize(
    ("version", "cache", "states"),
    [
        ("0.5.3", False, lambda room: 48),
        ("0.5.9", False, lambda room: 48 * 5),
        ("0.5.6", True, lambda room: 5 * int(SHARE * room / 5)),
        ("0.5.10", True, lambda room: 48 * 4 + int(SHARE * (room - 48 * 4))),
        ("0.5.13", True, lambda room: 48 * 4 + int(SHARE * room / (1 + 4 / 3))),
        ("0.5.23", True, lambda room: 49 * 4 + 1 + int((SHARE * room - 5) / (1 + 4 / 5))),
    ],
)
def test_a_step_that_verifies_drafts_writes_a_state_for_each_token(
    version: str, cache: bool, states: Callable[[float], int]
) -> None:
    """Four of three drafts, by handle_max_mamba_cache of 0.5.4 to 0.5.23: room is what weights leave, in states."""
    drafts = Speculation(method="ngram", num_speculative_tokens=3, draft=None)
    served = SERVED | {"max_num_seqs": 48, "enable_prefix_caching": cache, "async_scheduling": version == "0.5.23"}
    alone = make_shape("h200-sxm-141gb", "qwen3.5-397b-a17b", version=version, **served)
    shape = replace(alone, speculation=drafts)

    plan, size = plan_memory(shape), state_bytes(shape)
    room = (plan.states_bytes + plan.kv_bytes) / size
    assert plan.states_bytes / size == pytest.approx(states(room), abs=1)


def test_states_can_have_another_share_or_number() -> None:
    """SGLang: --mamba-full-memory-ratio, --max-mamba-cache-size; from 0.5.17 on one more, for padded sequences."""
    served = SERVED | {"async_scheduling": True}
    shape = make_shape("h200-sxm-141gb", "qwen3.5-397b-a17b", version="0.5.23", mamba_full_memory_ratio=0.3, **served)
    told = make_shape("h200-sxm-141gb", "qwen3.5-397b-a17b", version="0.5.16", max_mamba_cache_size=360, **served)
    padded = make_shape("h200-sxm-141gb", "qwen3.5-397b-a17b", version="0.5.17", max_mamba_cache_size=360, **served)

    plan = plan_memory(shape)
    assert plan.states_bytes / plan.kv_bytes == pytest.approx(0.3, rel=1e-3)
    assert [state_slots(told), state_slots(padded)] == [360, 361]
    assert [state_seats(each) for each in (told, padded)] == [72, 72]
    assert [with_room_for_states(each).engine.max_num_seqs for each in (told, padded)] == [72, 72]


def test_a_number_of_states_limits_seats_without_a_prefix_cache() -> None:
    """A seat takes one state there: 40 states are 40 seats, whatever is asked for."""
    served = SERVED | {"enable_prefix_caching": False, "max_mamba_cache_size": 40}
    shape = make_shape("h200-sxm-141gb", "qwen3.5-397b-a17b", version="0.5.16", **served)

    assert with_room_for_states(shape).engine.max_num_seqs == state_slots(shape) == 40


def test_sglang_keeps_states_of_mamba_in_32_bit() -> None:
    """38 states of Granite 4 Micro in 2.77 GiB (its log of 0.5.9), of 36 layers with 64 x 64 x 128, and one more.

    vLLM keeps them as the checkpoint says, in 16 bit; SGLang does if it is told to.
    """
    models = {
        name: resolve(make_scenario(["model=granite-4.0-h-micro", f"deployment.engine={engine}"])).shape.model
        for name, engine in (
            ("sglang", "{name: sglang, version: '0.5.9'}"),
            ("told", "{name: sglang, version: '0.5.9', mamba_ssm_cache_dtype: bfloat16}"),
            ("vllm", "{name: vllm}"),
        )
    }

    sizes = {name: model.state_bytes() for name, model in models.items()}
    assert sizes["sglang"] * 39 == pytest.approx(2.77 * 2**30, rel=0.01)
    assert sizes["told"] == sizes["vllm"] == pytest.approx(sizes["sglang"] - 36 * 64 * 64 * 128 * 2)


def test_seats_leave_room_for_keys() -> None:
    """SGLang gives states 0.9 parts of what weights leave, keys and values 1; beside a prefix cache always."""
    many = make_shape("h200-sxm-141gb", "qwen3.5-397b-a17b", **(SERVED | {"max_num_seqs": 2048}))

    seats = state_seats(many)
    plan = plan_memory(make_shape("h200-sxm-141gb", "qwen3.5-397b-a17b", **(SERVED | {"max_num_seqs": seats})))

    assert seats < 2048
    assert plan.parts["states"] / plan.kv_bytes == pytest.approx(0.9, rel=0.01)
    assert state_seats(make_shape(max_num_seqs=256)) == 256
    uncached = make_shape(
        "h200-sxm-141gb", "qwen3.5-397b-a17b", **(SERVED | {"max_num_seqs": 2048}), enable_prefix_caching=False
    )
    assert [with_room_for_states(each).engine.max_num_seqs for each in (many, uncached)] == [seats, 2048]
    defaults = make_shape("h200-sxm-141gb", "qwen3.5-397b-a17b", **(SERVED | {"max_num_seqs": None}))
    room = with_room_for_states(defaults).engine
    assert (room.max_num_seqs, room.sources["max_num_seqs"].endswith("room for their states")) == (seats, True)


def kda_seconds(model: str, gpu: str, tokens: float, ranks: int, engine: str = "vllm") -> float:
    """Return the seconds of prompts in one layer of Kimi Delta Attention, beside projections and small kernels."""
    shape = make_shape(gpu, model, engine=engine, tensor_parallel_size=8)
    scans = (prompt_scan(shape), None)
    linear = linear_of(model)
    with_scan, without = (
        mixing_parts(linear, shape.machine, np.array([tokens]), ranks, scan=scan).sum() for scan in scans
    )
    return float(with_scan - without)


def test_prompts_of_kimi_linear_take_longer_than_those_of_a_gated_delta_net() -> None:
    """Triton's ``chunk_kda``, a decay a channel: 1.85 times the other kernel, 96 heads (FlagGems-vllm pull request 21).

    And 4.00 ms for 16,384 tokens with 64 heads on an H800, which has the arithmetic of an H100 (flash-linear-attention
    pull request 915).
    """
    machine, linear = make_shape("h100-sxm-80gb").machine, linear_of()

    plain = float(mixing_parts(linear, machine, np.array([16384.0]), 1, scan=GATED_DELTA).sum())
    plain -= float(mixing_parts(linear, machine, np.array([16384.0]), 1, scan=None).sum())

    assert kda_seconds("glm-5.3-flash", "h100-sxm-80gb", 16384.0, 1, "sglang") == pytest.approx(4.00e-3, rel=0.05)
    assert kda_seconds("kimi-linear-48b-a3b", "h100-sxm-80gb", 32768.0, 1) / plain == pytest.approx(1.85, rel=0.1)


def test_prompts_with_a_bounded_decay_pass_flash_kda_where_it_runs() -> None:
    """An H100 SXM: 937.7 us for 8,192 tokens of one prompt with 16 heads (cudnn-frontend pull request 1017).

    Not under SGLang, where it has to be chosen, and not on GPUs before Hopper.
    """
    one_prompt = kda_seconds("kimi-k3", "h100-sxm-80gb", 8192.0, 6)

    assert one_prompt == pytest.approx(937.7e-6, rel=0.05)
    for gpu, engine in (("a100-sxm-80gb", "vllm"), ("mi300x-192gb", "vllm"), ("h100-sxm-80gb", "sglang")):
        assert prompt_scan(make_shape(gpu, "kimi-k3", engine=engine, tensor_parallel_size=8)).chunk_tokens == 64
    assert prompt_scan(make_shape("h100-sxm-80gb", "kimi-linear-48b-a3b")).chunk_tokens == 64


def test_states_of_kimi_delta_attention_cost_what_those_of_a_gated_delta_net_do() -> None:
    """24 heads on a GB200: 12.4 us for a sequence, 89.4 for 128 (sglang pull request 36304, separate kernels)."""
    machine = make_shape("gb200-186gb").machine

    one, many = state_seconds(linear_of("kimi-k3"), machine, np.array([1.0, 128.0]), 4)

    assert many - one == pytest.approx(77.0e-6, rel=0.05)


def test_attention_residuals_move_the_blocks_before_a_layer() -> None:
    """Kimi-K3 has blocks of 12 layers, 8 in all: 4.5 of them in the mean, in the kernel of the norm."""
    model = load_model("kimi-k3")

    assert model.residual_passes == 4.5
    assert load_model("glm-5.3-flash").residual_passes == 3 * 4 + 2
    assert load_model("kimi-linear-48b-a3b").residual_passes == 0


@pytest.mark.parametrize(
    ("model", "version", "ranks", "state", "block"),
    [
        ("kimi-linear-48b-a3b", "0.11.1", 2, 1_085_440, 960),
        ("kimi-linear-48b-a3b", "0.26", 2, 1_085_440, 960),
        ("kimi-linear-48b-a3b", "0.33", 2, 1_085_440, 1024),
        ("kimi-k3", "0.33", 8, 814_080, 768),
        ("glm-5.3-flash", "0.33", 4, 1_085_440, 1152),
    ],
)
def test_a_block_of_the_pool_is_as_long_as_a_state_of_kimi_delta_attention(
    model: str, version: str, ranks: int, state: int, block: int
) -> None:
    """Bytes as ``kda_state_shape`` of vLLM's mamba_utils.py; blocks as servers had them, or as the release rounds them.

    vllm issue 28228 (75,840 tokens, 79 blocks), LMCache pull requests 4278 (chunks of 3,072, four blocks) and 5042;
    ``_align_hybrid_block_size`` of 0.26.0 (32 on a B200) and 0.33.0 (128).
    """
    shape = make_shape("b200-sxm-180gb", model, engine="vllm", version=version, tensor_parallel_size=ranks)

    assert shape.model.state_bytes(ranks) / shape.model.num_linear_layers == state
    assert with_state_blocks(shape).engine.block_size == block


def test_hopper_rounds_blocks_of_latent_keys_to_what_its_kernel_accepts() -> None:
    """FLASH_ATTN_MLA takes multiples of 16, which 0.21 to 0.26 ask it for; 64 before and 128 since, for all kernels."""

    def block(version: str) -> int:
        shape = make_shape(
            "h200-sxm-141gb", "kimi-linear-48b-a3b", engine="vllm", version=version, tensor_parallel_size=2
        )
        return with_state_blocks(shape).engine.block_size

    assert [block(version) for version in ("0.19", "0.26", "0.27", "0.33")] == [960, 944, 1024, 1024]


def test_requests_of_kimi_linear_share_the_pool_as_in_a_start_up_log() -> None:
    """Two RTX 3090 with 2.30 GiB for KV: 2.48 requests of 120,000 tokens, one layer of padding (vllm issue 28228).

    2.295 to 2.305 GiB are 318 or 319 blocks of 960 tokens in 7 layers, by whether the log rounded up or down.
    """
    bare = make_shape("rtx-3090-24gb", "kimi-linear-48b-a3b", engine="vllm", version="0.11.1", tensor_parallel_size=2)
    engine = bare.engine.model_copy(update={"max_model_len": 120_000, "enable_prefix_caching": False})
    shape = with_state_blocks(replace(bare, engine=engine))

    layout = window_layout(shape, 2.297 * 2**30, 0.0)

    assert layout is not None
    assert (layout.full_groups, layout.window_groups) == (1, 3)
    assert layout.num_blocks // 4 * 960 == 75_840
    assert layout.max_concurrent_full_length == pytest.approx(2.48, abs=0.006)


def test_pooled_keys_of_an_indexer_cost_a_quarter() -> None:
    """GLM-5.3-Flash scores one key for four tokens."""
    pooled, machine = load_model("glm-5.3-flash").indexer, HYBRID.machine
    assert pooled is not None
    whole = pooled.model_copy(update={"pooled_tokens": 1})

    keys, pairs = (
        [each(indexer, machine) for indexer in (whole, pooled)] for each in (index_key_seconds, index_pair_seconds)
    )

    assert keys[0] == pytest.approx(4 * keys[1])
    assert pairs[0] == pytest.approx(4 * pairs[1])
    assert (whole.key_bytes, pooled.key_bytes) == (132, 33)


def test_a_chunk_of_one_token_has_no_padding() -> None:
    """The decode's own token is counted with those of the prompts."""
    inside = linear_of().model_copy(update={"state_element_bytes": 0.0})  # nothing to gather
    one, two = (
        float(chunk_seconds(inside, HYBRID.machine, np.array([100.0]), 8, PromptScan(chunk_tokens=each))[0])
        for each in (1, 2)
    )

    assert one == 0.0
    assert two > 0.0


def test_states_beside_prompts_pass_one_stage_of_a_pipeline_after_another() -> None:
    """Each of two stages has half of the layers, and at a time half of the sequences."""
    shapes = [
        make_shape("h200-sxm-141gb", "qwen3.5-35b-a3b", pipeline_parallel_size=stages, version="0.23")
        for stages in (1, 2)
    ]
    one, two = (step_state_seconds(each, each.machine, np.array([64.0]), is_mixed=True)[0] for each in shapes)

    assert one > 0
    assert two == pytest.approx(one / 2)


@pytest.mark.parametrize(
    ("hardware", "measured"),
    [("rtx-pro-6000-maxq-96gb", 18.0e-3), ("rtx-5090-32gb", 19.2e-3), ("rtx-pro-6000-ws-96gb", 17.1e-3)],
)
def test_nvfp4_weights_are_read_at_the_pace_of_workstation_cards(hardware: str, measured: float) -> None:
    """One sequence of Qwen3.6-27B under vLLM at three laboratories: sch0tten, murai-labs, deep-ai-evo.

    Its checkpoints keep attention in 8 bit; with all of it in 4 bit at the full pace the steps took 12 to 13 ms.
    """
    shape = make_shape(hardware, "qwen3.5-27b", quantization="nvfp4", version="0.22")

    assert float(price(shape).step_times.decode_base[1]) == pytest.approx(measured, rel=0.12)


def test_qwen_3_6_in_nvfp4_takes_22_gb() -> None:
    """MLPs in 4 bit, attention and linear attention in 8, the rest in 16: about 22 GB (thakicloud.github.io)."""
    shape = make_shape("rtx-pro-6000-96gb", "qwen3.5-27b", quantization="nvfp4", version="0.22")

    assert plan_memory(shape).parts["weights"] == pytest.approx(22e9, rel=0.03)


@pytest.mark.parametrize(("version", "measured"), [("0.9", None), ("0.29", 19.2e-3)])
def test_steps_without_graphs_take_longer_since_0_29(version: str, measured: float | None) -> None:
    """Qwen3-4B, 16 sequences on an RTX 5080: 19.9 ms in 16 bit, 18.6 in GPTQ (munsik-kim, vLLM 0.29).

    0.9 takes 0.27 ms for a layer of ten kernels; two norms of queries and keys are two more.
    """
    shape = make_shape("rtx-5080-16gb", "qwen3-4b", version=version, enforce_eager=True)
    seconds = float(price(shape).step_times.decode_base[16])

    assert seconds == pytest.approx(measured or 36 * 0.27e-3 * 1.2, rel=0.15)
