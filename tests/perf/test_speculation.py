"""Speculative decoding in seconds and bytes: drafts cost, verifying costs more as the batch grows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from simserve.engine.state import StepTimes
from simserve.perf.memory import plan_memory
from simserve.perf.operators import PricedDeployment
from simserve.perf.shape import ReplicaShape, Speculation
from simserve.perf.speculation import (
    decode_speedup,
    draft_shape,
    draft_weights_bytes,
    layer_shape,
    passing_shape,
    verified_logit_bytes,
)
from simserve.perf.tables import price
from simserve.units import parse
from simserve.workload.acceptance import decaying_acceptance, expected_tokens
from tests.perf.shapes import make_model, make_shape

COLUMNS = ("decode_base", "decode_slope", "token_seconds", "sequence_seconds", "decode_attention_base")


def make_target(model: str = "llama-3.1-8b", **options: Any) -> ReplicaShape:
    """Return a deployment that does not speculate."""
    return make_shape("h100-sxm-80gb", model, version="0.12", max_model_len=8192, **options)


def speculating(
    target: ReplicaShape, method: str = "draft_model", drafts: int = 5, quantization: str = "none"
) -> ReplicaShape:
    """Return the deployment with drafts of llama-3.2-1b, of a layer, or looked up."""
    ranks = target.tensor_parallel_size
    draft = {
        "draft_model": lambda: draft_shape(target, make_model("llama-3.2-1b"), quantization, ranks),
        "eagle": lambda: layer_shape(target, quantization, is_dense=True),
        "mtp": lambda: layer_shape(target, target.quantization, is_dense=False),
        "ngram": lambda: None,
    }[method]()
    return replace(
        target,
        speculation=Speculation(method=method, num_speculative_tokens=drafts, draft=draft),  # type: ignore[arg-type]
    )


def drafting(priced: PricedDeployment) -> StepTimes:
    """Return what drafts take of the steps."""
    assert priced.drafting is not None
    return priced.drafting.times


def speedups(shape: ReplicaShape, batches: list[int], context: float = 1000.0) -> np.ndarray:
    """Return how much faster batches decode at 70 % acceptance."""
    tokens = expected_tokens(decaying_acceptance(0.7, 1.0, shape.num_speculative_tokens))
    plain = price(replace(shape, speculation=None))
    return decode_speedup(price(shape), plain, tokens, np.array(batches, dtype=float), context)


@pytest.mark.parametrize(("model", "ranks"), [("llama-3.1-8b", 1), ("llama-3.1-70b", 4)])
def test_the_speedup_falls_below_one_where_arithmetic_binds(model: str, ranks: int) -> None:
    """Well above 1 for one sequence, well below for a full batch, and falling in between."""
    target = make_target(model, tensor_parallel_size=ranks)
    gains = speedups(speculating(target), [1, 8, 32, 128, 512])

    assert gains[0] > 1.4
    assert gains[-1] < 0.8
    assert (np.diff(gains[1:]) < 0).all()


def test_long_contexts_keep_the_gain() -> None:
    """Keys are read once for all tokens of a sequence: where KV reads bind, drafts pay in batches they did not."""
    shape = speculating(make_target(), "eagle", drafts=3)

    assert speedups(shape, [400], context=100.0)[0] < 1 < speedups(shape, [400], context=8000.0)[0]


def test_verifying_is_almost_free_for_one_sequence_and_dear_for_many() -> None:
    """Six tokens of one sequence cost as much as one; six of 256 sequences cost three times and more."""
    plain, priced = price(make_target()), price(speculating(make_target(), "ngram"))
    verify = np.array(priced.step_times.decode_base) - np.array(drafting(priced).decode_base)
    ratio = verify[1:] / np.array(plain.step_times.decode_base[1:])

    assert ratio[0] == pytest.approx(1.0, abs=0.05)
    assert ratio[255] > 3


def test_a_look_up_takes_microseconds_a_request_and_a_scan_of_its_context() -> None:
    """One pass over a thousand token ids at about a billion a second, and some ten microseconds beside it.

    256 requests of that are 1.5 to 7 ms on the host: what makes n-grams slow at high load.
    """
    times = drafting(price(speculating(make_target(), "ngram")))
    one = times.decode_base[1] + 1000 * times.decode_slope[1]
    many = times.decode_base[256] + 256 * 1000 * times.decode_slope[256]

    assert 6e-6 < one < 28e-6
    assert many == pytest.approx(256 * one, rel=0.01)
    assert 1e-9 < times.decode_slope[1] < 6e-9


def test_a_step_is_the_target_s_and_the_drafts_seconds() -> None:
    """Every table is the sum of both; the target's does not depend on who drafts."""
    priced, lookup = price(speculating(make_target())), price(speculating(make_target(), "ngram"))
    for column in COLUMNS:
        ours = np.array(getattr(priced.step_times, column)) - np.array(getattr(drafting(priced), column))
        theirs = np.array(getattr(lookup.step_times, column)) - np.array(getattr(drafting(lookup), column))

        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(("method", "layers"), [("eagle", 33), ("ngram", 32)])
def test_drafts_leave_the_target_s_copies_and_its_ranks_share_as_they_are(method: str, layers: int) -> None:
    """A block takes as long to copy, but for the drafter's layer, and ranks in lockstep as long for their experts."""
    target = make_target("mixtral-8x7b", tensor_parallel_size=2, data_parallel_size=2)
    plain, drafted = price(target).step_times, price(speculating(target, method)).step_times

    assert drafted.swap_block_seconds == pytest.approx(plain.swap_block_seconds * layers / 32)
    assert plain.swap_block_seconds > 0.0
    assert drafted.shared_seconds[: len(plain.shared_seconds)] == plain.shared_seconds
    assert drafted.shared_seconds_beyond == plain.shared_seconds_beyond > 0.0


def test_experts_of_a_drafting_layer_are_shared_by_all_ranks() -> None:
    """The first pass counts the tokens of all ranks; a further one a token of as many sequences on each rank."""
    target = make_target("deepseek-v3", data_parallel_size=8, enable_expert_parallel=True)
    two, three = (price(speculating(target, "mtp", drafts, target.quantization)) for drafts in (2, 3))
    passing = passing_shape(speculating(target, "mtp"))
    assert passing is not None
    plain, one, seats = price(target).step_times, price(passing).step_times, 16
    further = drafting(three).sequence_seconds[seats] - drafting(two).sequence_seconds[seats]

    assert drafting(three).shared_seconds[: len(one.shared_seconds)] == one.shared_seconds
    assert three.step_times.shared_seconds[100] == pytest.approx(plain.shared_seconds[100] + one.shared_seconds[100])
    assert further == pytest.approx(one.decode_base[seats] + one.shared_seconds[8 * seats], rel=0.1)
    assert one.shared_seconds[8 * seats] > 0.2 * further


def test_drafts_are_decode_steps_of_the_draft_model() -> None:
    """Five passes of the model, the first over six tokens a sequence; prompts pass through it once."""
    target = make_target()
    times = drafting(price(speculating(target)))
    passing = passing_shape(speculating(target))
    assert passing is not None
    alone = price(passing).step_times

    assert times.decode_base[1] == pytest.approx(5 * alone.decode_base[1], rel=0.1)
    assert times.decode_base[64] == pytest.approx(
        5 * alone.decode_base[64] + alone.token_seconds[6 * 64] - alone.token_seconds[64]
    )
    assert times.decode_slope[64] == pytest.approx(5 * alone.decode_slope[64])
    assert times.token_seconds[2000] == alone.token_seconds[2000]
    assert times.prefill_pair_seconds == alone.prefill_pair_seconds


@pytest.mark.parametrize(("version", "milliseconds"), [("0.19", 4.32), ("0.25", 4.32), ("0.26", None)])
def test_passes_of_a_draft_model_find_no_graph_before_0_26(version: str, milliseconds: float | None) -> None:
    """vLLM pull request 47460: 16 layers of 0.27 ms, whatever the GPU needs; 4.2 ms measured on an H200 (0.19)."""
    target = make_shape("h200-sxm-141gb", version=version, max_model_len=8192)
    model, layer = (drafting(price(speculating(target, each))) for each in ("draft_model", "eagle"))

    a_pass = model.decode_base[1] / 5
    assert a_pass == pytest.approx(1e-3 * (milliseconds or 1.15), rel=0.05)
    assert layer.decode_base[1] / 5 < 0.8e-3


def test_a_low_bit_draft_is_faster_and_smaller() -> None:
    """The draft has a weight format of its own, and the target may be in INT4."""
    target = make_target(quantization="awq-int4")
    wide, narrow = speculating(target), speculating(target, quantization="fp8")

    assert drafting(price(narrow)).decode_base[1] < drafting(price(wide)).decode_base[1]
    assert plan_memory(narrow).draft_weights_bytes < 0.8 * plan_memory(wide).draft_weights_bytes
    assert plan_memory(wide).weights_bytes == plan_memory(narrow).weights_bytes == plan_memory(target).weights_bytes


def test_an_eagle_layer_costs_less_than_a_model() -> None:
    """One layer of the target and its LM head, a third of the passes of a 16-layer model or less."""
    eagle, model = (drafting(price(speculating(make_target(), method))) for method in ("eagle", "draft_model"))

    assert 0 < eagle.decode_base[1] < model.decode_base[1]
    assert eagle.decode_slope[1] < model.decode_slope[1]


def test_a_lookup_costs_host_time_by_sequence_and_context() -> None:
    """Nothing runs on the GPU but what verifies, nothing is stored."""
    priced = price(speculating(make_target(), "ngram"))
    plan = plan_memory(speculating(make_target(), "ngram"))

    assert drafting(priced).decode_base[10] == pytest.approx(10 * drafting(priced).decode_base[1])
    assert drafting(priced).decode_slope[1] > 0
    assert sum(drafting(priced).token_seconds) == 0
    assert priced.drafting is not None
    assert priced.drafting.one_pass is None
    assert (plan.draft_weights_bytes, plan.draft_kv_bytes_per_token) == (0, 0)
    plain = plan_memory(make_target())
    assert plain.kv_bytes - plan.kv_bytes == pytest.approx(plan.activation_bytes - plain.activation_bytes)


def test_more_drafts_take_longer() -> None:
    """Neither drafting nor verifying is free: no step is shorter with one draft more."""
    steps = [price(speculating(make_target(), drafts=drafts)).step_times for drafts in (1, 2, 4, 8)]

    for fewer, more in pairwise(steps):
        assert (np.array(more.decode_base) >= np.array(fewer.decode_base)).all()
        assert (np.array(more.decode_slope) >= np.array(fewer.decode_slope)).all()


@pytest.mark.parametrize(
    ("model", "method"), [("llama-3.1-8b", "eagle"), ("deepseek-v3", "mtp"), ("gpt-oss-20b", "eagle")]
)
def test_no_step_is_shorter_with_more_in_it(model: str, method: str) -> None:
    """Neither with more sequences nor with more tokens, of dense models and of experts."""
    times = price(speculating(make_target(model, tensor_parallel_size=8), method, drafts=3)).step_times

    for column in ("decode_base", "token_seconds", "sequence_seconds"):
        assert (np.diff(getattr(times, column)) >= -1e-15).all(), column


def test_kv_of_a_model_with_eagle() -> None:
    """Llama-3.1-8B with the layer of EAGLE: 33 layers, 135,168 B a token, and 410,128 tokens in 51.63 GiB, as vLLM
    reports (issue 19996)."""
    plan = plan_memory(speculating(make_target(), "eagle"))
    blocks = int(parse("51.63 GiB", "bytes") // (plan.kv_bytes_per_token * 16))

    assert plan.kv_bytes_per_token == 135_168
    assert blocks * 16 == 410_128


@pytest.mark.parametrize(
    ("model", "parameters"), [("llama-2-7b", 0.24e9), ("llama-2-13b", 0.37e9), ("llama-2-70b", 0.99e9)]
)
def test_weights_of_an_eagle_layer(model: str, parameters: float) -> None:
    """The published sizes of EAGLE's trained part (Li et al. 2024, section 4)."""
    speculation = speculating(make_target(model), "eagle").speculation

    assert speculation is not None
    assert draft_weights_bytes(speculation) / 2 == pytest.approx(parameters, rel=0.02)


def test_weights_of_an_mtp_module() -> None:
    """DeepSeek-V3: 11.5 B parameters beside the shared embedding and head (README_WEIGHTS of the model)."""
    target = make_target("deepseek-v3", quantization="bf16")
    speculation = speculating(target, "mtp").speculation

    assert speculation is not None
    assert draft_weights_bytes(speculation) / 2 == pytest.approx(11.5e9, rel=0.02)


def test_the_plan_adds_up_with_a_draft() -> None:
    """Weights of the draft are a part of their own, its KV a part of every token, and k tokens stay out of reach."""
    plain, plan = plan_memory(make_target()), plan_memory(speculating(make_target()))

    assert sum(plan.parts.values()) == pytest.approx(plan.total_bytes)
    assert plan.parts["draft_weights"] == plan.draft_weights_bytes == pytest.approx(2.47e9, rel=0.01)
    assert plan.draft_kv_bytes_per_token == 16 * 2 * 8 * 64 * 2
    assert plan.kv_bytes_per_token == plain.kv_bytes_per_token + plan.draft_kv_bytes_per_token
    verified = plan.activation_bytes - plain.activation_bytes
    assert plain.kv_bytes - plan.kv_bytes == pytest.approx(plan.draft_weights_bytes + verified)
    assert plan.longest_sequence == plan.num_kv_blocks * plan.block_size - 5
    assert any("draft: llama-3.2-1b" in line for line in plan.arithmetic)


@pytest.mark.parametrize(
    ("quantization", "kv_cache_dtype", "drafts", "tokens"),
    [
        ("none", "auto", False, 397_808),
        ("fp8", "auto", False, 444_496),
        ("none", "auto", True, 364_768),
        ("fp8", "fp8", True, 821_120),
    ],
)
def test_kv_rooms_with_an_eagle_layer(quantization: str, kv_cache_dtype: str, drafts: bool, tokens: int) -> None:
    """Start-up logs of Qwen3-8B, vLLM 0.20.0 (dishantghai/ai-perf-hw3-spec-decode-quant, logs/ at d1c3b59586c7)."""
    options = {"quantization": quantization, "kv_cache_dtype": kv_cache_dtype, "gpu_memory_utilization": 0.92}
    target = make_shape("h100-sxm-80gb", "qwen3-8b", version="0.20.0", **options)

    plan = plan_memory(speculating(target, "eagle", drafts=2, quantization="bf16") if drafts else target)

    assert plan.num_kv_blocks * plan.block_size == pytest.approx(tokens, rel=0.01)


@pytest.mark.parametrize("method", ["draft_model", "ngram", "eagle", "mtp"])
@pytest.mark.parametrize(
    ("version", "sampler", "plain", "verified"),
    [
        ("0.8.4", False, 38.3, 38.3),
        ("0.11.0", False, 38.3, 38.3),
        ("0.11.0", True, 13.5, 32.0),
        ("0.12", False, 38.3, 46.0),
        ("0.12", True, 13.5, 46.0),
        ("0.14", False, 38.3, 50.0),
        ("0.17", False, 13.5, 30.0),
        ("0.21", True, 13.5, 30.0),
    ],
)
def test_a_dummy_step_verifies_one_draft_of_every_seat(
    method: str, version: str, sampler: bool, plain: float, verified: float
) -> None:
    """Whoever drafts, and however many: vLLM's _dummy_sampler_run; without drafts nothing is verified."""
    target = make_shape("h100-sxm-80gb", "deepseek-v3", version=version, flashinfer_sampler=sampler)

    found = {verified_logit_bytes(speculating(target, method, drafts=drafts)) for drafts in (1, 5)}

    assert found == {verified}
    assert verified_logit_bytes(target) == plain


@pytest.mark.parametrize(
    ("version", "model", "quantization", "method", "verifies"),
    [
        ("0.22", "qwen3-8b", "none", "eagle", False),
        ("0.22", "llama-3.1-8b", "none", "eagle", True),
        ("0.23", "llama-3.1-8b", "none", "eagle", False),
        ("0.23", "llama-3.1-8b", "fp8", "eagle", True),
        ("0.25", "llama-3.1-8b", "fp8", "eagle", False),
        ("0.28", "llama-3.1-8b", "none", "ngram", True),
        ("0.28", "qwen3.5-27b", "none", "mtp", True),
        ("0.28", "deepseek-v3", "fp8", "mtp", True),
        ("0.29", "deepseek-v3", "fp8", "mtp", False),
        ("0.29", "llama-3.1-8b", "none", "draft_model", True),
        ("0.31", "llama-3.1-8b", "none", "draft_model", False),
        ("0.31", "llama-3.1-8b", "none", "ngram", True),
        ("0.32", "llama-3.1-8b", "none", "ngram", False),
    ],
)
def test_the_second_model_runner_verifies_no_drafts_at_start(
    version: str, model: str, quantization: str, method: str, verifies: bool
) -> None:
    """By release, model, weights and drafter (vLLM config/vllm.py, use_v2_model_runner)."""
    shape = speculating(make_shape("h200-sxm-141gb", model, version=version, quantization=quantization), method)

    assert (verified_logit_bytes(shape) > shape.engine.activation_logit_bytes) is verifies


def test_a_static_fraction_holds_the_draft_too() -> None:
    """SGLang's share covers weights, those of the draft, and KV."""
    target = make_shape("h100-sxm-80gb", "llama-3.1-8b", engine="sglang", max_model_len=8192)
    plain, plan = plan_memory(target), plan_memory(speculating(target))

    assert plain.kv_bytes - plan.kv_bytes == pytest.approx(plan.draft_weights_bytes)


def test_a_draft_on_one_gpu_of_four() -> None:
    """Alone it talks to nobody, and the fullest GPU holds all of it."""
    target = make_target("llama-3.1-70b", tensor_parallel_size=4)
    draft = draft_shape(target, make_model("llama-3.2-1b"), "none", 1)
    alone = replace(target, speculation=Speculation(method="draft_model", num_speculative_tokens=5, draft=draft))

    assert plan_memory(alone).draft_weights_bytes > 3 * plan_memory(speculating(target)).draft_weights_bytes
    assert drafting(price(alone)).decode_base[1] != drafting(price(speculating(target))).decode_base[1]


def test_a_step_with_prompts_drafts_once_for_all_tokens_and_then_a_token_a_sequence() -> None:
    """The first pass holds the step's tokens: one draft adds no pass, three add two of a decode step each."""
    target = make_target()
    passing = passing_shape(speculating(target))
    assert passing is not None
    alone = price(passing).step_times
    one, three = (drafting(price(speculating(target, drafts=each))).sequence_seconds for each in (1, 3))

    np.testing.assert_allclose(one, alone.sequence_seconds)
    np.testing.assert_allclose(np.subtract(three, one), 2 * np.array(alone.decode_base), rtol=1e-9)


def test_target_and_draft_read_their_contexts_one_after_the_other_beside_prompts() -> None:
    """What a token of context adds to a mixed step is the sum of what it adds to each, however they mix."""
    options = {"version": "0.19", "quantization": "fp8", "max_model_len": 4096}
    target = make_shape("rtx-4090-24gb", "llama-2-7b", **options)
    shape = speculating(target)
    passing = passing_shape(shape)
    assert passing is not None
    alone = [price(each).step_times for each in (replace(shape, speculation=None), passing)]
    priced = price(shape)
    own = priced.step_times.decode_slope[1] - drafting(priced).decode_slope[1]
    both = own * alone[0].mixed_decode_factor + drafting(priced).decode_slope[1] * alone[1].mixed_decode_factor

    assert alone[0].mixed_decode_factor != alone[1].mixed_decode_factor
    assert priced.step_times.decode_slope[1] * priced.step_times.mixed_decode_factor == pytest.approx(both)


def test_each_draft_is_sampled_and_handed_over_in_a_step_with_prompts_too() -> None:
    """A millisecond of the host for each: three drafts a sequence, beside the token that is counted with the step."""
    host = {"host_seconds_per_request": 1e-3, "host_overlap": 0.0}
    quick, slow = (
        price(speculating(make_target(engine_fields=each), "ngram", drafts=3)).step_times
        for each in (host | {"host_seconds_per_request": 0.0}, host)
    )

    longer = np.subtract(slow.decode_attention_base, quick.decode_attention_base)
    assert longer[[1, 10]] == pytest.approx([3e-3, 30e-3])
