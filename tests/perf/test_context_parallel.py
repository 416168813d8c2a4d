"""Decode context parallelism: bytes, blocks and collectives by hand, and what a server printed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.errors import InputError
from simserve.perf.collectives import all_gather_seconds, reduce_scatter_seconds
from simserve.perf.context_parallel import context_exchange_seconds, context_gather_seconds
from simserve.perf.memory import MemoryPlan, kv_bytes_per_token, plan_memory
from simserve.perf.operators import COMMUNICATION
from simserve.perf.shape import ReplicaShape
from simserve.perf.tables import price
from simserve.scenario.resolve import engine_config, resolve
from simserve.units import GIB
from tests.scenario.builders import make_scenario

LATENT = ["model=deepseek-v3", "deployment.hardware=h200-sxm-141gb", "deployment.tensor_parallel_size=8"]
HEADS = ["model=qwen3-235b-a22b", "deployment.hardware=h200-sxm-141gb", "deployment.tensor_parallel_size=8"]
VLLM = "deployment.engine={name: vllm, version: '0.12', max_model_len: 32768}"


def divided(base: list[str], ranks: int, *more: str) -> ReplicaShape:
    """Return a deployment whose ranks divide contexts among them."""
    return resolve(make_scenario([*base, VLLM, f"deployment.decode_context_parallel_size={ranks}", *more])).shape


def test_latent_keys_are_divided_by_all_ranks() -> None:
    """61 layers of 576 elements of two bytes on each of eight ranks, or an eighth of the tokens."""
    assert kv_bytes_per_token(divided(LATENT, 1)) == 61 * 576 * 2
    assert kv_bytes_per_token(divided(LATENT, 8)) == 61 * 576 * 2 / 8
    assert kv_bytes_per_token(divided(LATENT, 2)) == 61 * 576 * 2 / 2


def test_copies_of_heads_are_divided() -> None:
    """Four key-value heads over eight ranks are two copies of each; two ranks share the tokens of one."""
    assert kv_bytes_per_token(divided(HEADS, 1)) == 94 * 2 * 128 * 2
    assert kv_bytes_per_token(divided(HEADS, 2)) == 94 * 2 * 128 * 2 / 2


def test_blocks_span_the_ranks_and_their_number_stays() -> None:
    """As many blocks as without, each eight times as long."""
    alone, together = (plan_memory(divided(LATENT, ranks)) for ranks in (1, 8))

    assert together.block_size == 8 * alone.block_size
    assert together.num_kv_blocks == alone.num_kv_blocks
    assert (
        f"on each of 8 ranks ({alone.shape.engine.sources['block_size']})"
        in (together.shape.engine.sources["block_size"])
    )
    assert any("among 8 ranks" in line for line in together.arithmetic)


@pytest.mark.parametrize(("ranks", "tokens"), [(1, 715_072), (8, 5_721_088)])
def test_the_room_is_what_a_server_printed(ranks: int, tokens: int) -> None:
    """Kimi-K2-Thinking on eight H200: 46.80 GiB of KV with and without (vLLM recipes, November 2025)."""
    kept = f"deployment.engine.kv_cache_memory_bytes={round(46.80 * GIB)}"
    shape = divided(["model=kimi-k2", *LATENT[1:], "deployment.quantization=int4"], ranks, kept)
    plan = plan_memory(shape)

    assert plan.num_kv_blocks * plan.block_size == pytest.approx(tokens, rel=2e-4)


def test_collectives_of_latent_attention_move_the_bytes_of_all_heads() -> None:
    """16 queries of 128 heads: 576 wide out, 512 wide back, and eight log-sum-exps of each."""
    shape = divided(LATENT, 8)
    seconds = context_exchange_seconds(shape, shape.model.attention_layers[0], np.array([16.0]))

    link = shape.tensor_link
    together = replace(link, skew=0.0)
    by_hand = all_gather_seconds(np.array([2_359_296.0]), 8, link)
    by_hand = by_hand + all_gather_seconds(np.array([65_536.0]), 8, together)
    by_hand = by_hand + reduce_scatter_seconds(np.array([2_097_152.0]), 8, together)
    assert seconds[0] == pytest.approx(by_hand[0])


def test_collectives_of_heads_stay_in_their_group() -> None:
    """Qwen3's 64 heads over eight ranks, two to a group: 16 heads of 128 each way."""
    shape = divided(HEADS, 2)
    seconds = context_exchange_seconds(shape, shape.model.attention_layers[0], np.array([10.0]))

    link = shape.tensor_link
    together = replace(link, skew=0.0)
    by_hand = all_gather_seconds(np.array([10 * 16 * 128 * 2.0]), 2, link)
    by_hand = by_hand + all_gather_seconds(np.array([10 * 16 * 4 * 2.0]), 2, together)
    by_hand = by_hand + reduce_scatter_seconds(np.array([10 * 16 * 128 * 2.0]), 2, together)
    assert seconds[0] == pytest.approx(by_hand[0])


def test_outputs_that_travel_with_their_log_sum_exp_save_a_collective() -> None:
    """SGLang 0.5.20 sends both in one all-to-all; 0.5.19 gathers the log-sum-exps first."""
    shapes, seconds = [], []
    for version in ("0.5.19", "0.5.20"):
        engine = f"deployment.engine={{name: sglang, version: '{version}', max_model_len: 32768}}"
        shape = resolve(make_scenario([*LATENT, engine, "deployment.decode_context_parallel_size=8"])).shape
        shapes.append(shape)
        seconds.append(float(context_exchange_seconds(shape, shape.model.attention_layers[0], np.array([16.0]))[0]))

    assert seconds[1] < seconds[0]
    # 16 queries of 128 heads: 576 wide out; 512 wide and a log-sum-exp of four bytes back.
    link = shapes[1].tensor_link
    by_hand = all_gather_seconds(np.array([2_359_296.0]), 8, link)
    by_hand = by_hand + reduce_scatter_seconds(np.array([2_097_152.0 + 8_192.0]), 8, replace(link, skew=0.0))
    assert seconds[1] == pytest.approx(by_hand[0], rel=1e-9)


def test_a_key_costs_less_and_a_step_more() -> None:
    """Each rank reads an eighth of a context with all heads' queries; collectives take the same time at any context."""
    alone, together = (price(divided(LATENT, ranks)).step_times for ranks in (1, 8))

    assert alone.decode_slope[32] / 8 <= together.decode_slope[32] < alone.decode_slope[32]
    exchanged = float(
        context_exchange_seconds(divided(LATENT, 8), divided(LATENT, 8).model.attention_layers[0], np.array([32.0]))[0]
    )
    added = together.decode_base[32] - alone.decode_base[32]
    assert 0.8 * 61 * exchanged < added < 1.5 * 61 * exchanged


def test_heads_that_copies_held_cost_half_a_key() -> None:
    """Two ranks read half of a context each, with twice the queries, which do not bind."""
    alone, together = (price(divided(HEADS, ranks)).step_times for ranks in (1, 2))

    assert together.decode_slope[16] == pytest.approx(alone.decode_slope[16] / 2, rel=0.1)


def test_prompts_of_latent_attention_fetch_keys_and_exchange_nothing() -> None:
    """Tokens cost the same; each earlier token crosses the link once per layer, and decodes beside exchange."""
    shapes = [divided(LATENT, ranks) for ranks in (1, 8)]
    alone, together = (price(shape).step_times for shape in shapes)
    layers = shapes[1].model.attention_layers[0]

    assert together.token_seconds[2048] == pytest.approx(alone.token_seconds[2048])
    fetched = together.prefill_context_seconds - alone.prefill_context_seconds
    assert fetched == pytest.approx(61 * context_gather_seconds(shapes[1], layers))
    assert fetched > 0.0
    assert together.decode_attention_base[0] == alone.decode_attention_base[0]
    assert together.decode_attention_base[8] > alone.decode_attention_base[8]


def test_prompts_of_heads_exchange_queries() -> None:
    """FlashAttention gathers the queries of a whole step, prompts and decodes alike."""
    shapes = [divided(HEADS, ranks) for ranks in (1, 2)]
    alone, together = (price(shape).parts.token[COMMUNICATION, 2048] for shape in shapes)

    exchanged = context_exchange_seconds(shapes[1], shapes[1].model.attention_layers[0], np.array([2048.0]))[0]
    assert together - alone == pytest.approx(94 * float(exchanged), rel=0.02)


def test_decodes_of_heads_exchange_once() -> None:
    """What they exchange counts with the tokens of the step, not a second time beside its prompts."""
    assert not price(divided(HEADS, 2)).parts.decode_attention[COMMUNICATION].any()
    assert price(divided(LATENT, 8)).parts.decode_attention[COMMUNICATION, 8] > 0.0


NEWEST = "deployment.engine={name: vllm, version: '0.33', max_model_len: 32768}"


def drafted(ranks: int, method: str = "mtp", count: int = 3) -> ReplicaShape:
    """Return a deployment of vLLM 0.33 that drafts and whose ranks divide contexts among them."""
    spec = f"deployment.speculative={{method: {method}, num_speculative_tokens: {count}, acceptance_rate: 0.8}}"
    return resolve(make_scenario([*LATENT, NEWEST, f"deployment.decode_context_parallel_size={ranks}", spec])).shape


def test_the_layer_that_drafts_divides_its_keys_too() -> None:
    """One more layer of 576 elements, an eighth of it on each of eight ranks."""
    assert kv_bytes_per_token(drafted(1)) == 62 * 576 * 2
    assert kv_bytes_per_token(drafted(8)) == 62 * 576 * 2 / 8
    assert kv_bytes_per_token(drafted(8, "ngram")) == 61 * 576 * 2 / 8
    assert plan_memory(drafted(8)).num_kv_blocks == plan_memory(drafted(1)).num_kv_blocks


def test_verified_tokens_exchange_their_queries_together() -> None:
    """Four of each request, beside prompts and alone."""
    alone, together = (drafted(ranks, "ngram") for ranks in (1, 8))
    before, after = price(alone), price(together)

    exchanged = float(context_exchange_seconds(together, together.model.attention_layers[0], np.array([4.0 * 32]))[0])
    beside = after.parts.decode_attention[COMMUNICATION, 32] - before.parts.decode_attention[COMMUNICATION, 32]
    assert beside == pytest.approx(61 * exchanged)
    assert after.step_times.decode_base[32] - before.step_times.decode_base[32] > 0.8 * 61 * exchanged


@pytest.mark.parametrize("has_curves", [True, False])
def test_a_rank_computes_decodes_with_the_queries_of_all(has_curves: bool) -> None:
    """All 128 heads over an eighth of each context: an eighth of what a rank with a whole attention of its own does."""
    whole = [*LATENT[:2], "deployment.data_parallel_size=8", "deployment.enable_expert_parallel=true"]
    shapes = [divided(LATENT, 8), divided(whole, 1)]
    if not has_curves:
        plain = shapes[0].hardware.model_copy(update={"attention_curves": None})
        shapes = [replace(shape, hardware=plain) for shape in shapes]

    together, apart = (price(shape).step_times.decode_slope for shape in shapes)

    for sequences in (1, 32):
        assert together[sequences] == pytest.approx(apart[sequences] / 8, rel=1e-9)


@pytest.mark.parametrize(("base", "ranks"), [(LATENT, 8), (HEADS, 2)])
def test_contexts_are_read_once_by_the_ranks_that_divide_them(base: list[str], ranks: int) -> None:
    """Where each read a copy."""
    alone, together = (price(divided(base, each)).parts.kv_bytes_per_token for each in (1, ranks))

    assert together == pytest.approx(alone / ranks)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([*LATENT, VLLM, "deployment.decode_context_parallel_size=3"], r"must divide tensor_parallel_size \(8\)"),
        ([*HEADS, VLLM, "deployment.decode_context_parallel_size=4"], "holds 2 of each of the 4 key-value heads"),
        (
            [
                *("model=qwen2.5-7b", *HEADS[1:2], "deployment.tensor_parallel_size=28", VLLM),
                "deployment.decode_context_parallel_size=2",
            ],
            "must divide the 7 query heads of a key-value head",
        ),
        (
            ["model=llama-3.1-70b", *HEADS[1:], VLLM, "deployment.decode_context_parallel_size=2"],
            "holds 1 of each of the 8 key-value heads",
        ),
        (
            [*HEADS, "deployment.engine={name: vllm, version: '0.11.0'}", "deployment.decode_context_parallel_size=2"],
            r"needs latent attention \(MLA\): vllm 0.11.0 divides the tokens of no other KV cache",
        ),
        (
            [*LATENT, "deployment.engine={name: vllm, version: '0.10'}", "deployment.decode_context_parallel_size=8"],
            r"vllm 0.10 has no division of a request's KV cache among ranks .*versions with it: 0.10.2 and newer",
        ),
        (
            [
                *LATENT,
                "deployment.engine={name: tensorrt-llm, version: '1.2'}",
                "deployment.decode_context_parallel_size=8",
            ],
            "helix parallelism .*which is not simulated",
        ),
        (
            [
                *LATENT,
                VLLM,
                "deployment.decode_context_parallel_size=8",
                "deployment.speculative={method: mtp, num_speculative_tokens: 1, acceptance_rate: 0.8}",
            ],
            "must be 1 with speculative decoding: vllm 0.12 is not known to verify drafts",
        ),
        (
            [
                *HEADS,
                "deployment.engine={name: vllm, version: '0.33', max_model_len: 32768}",
                "deployment.decode_context_parallel_size=2",
                "deployment.speculative={method: ngram, num_speculative_tokens: 1, acceptance_rate: 0.8}",
            ],
            "of key-value heads, verified tokens run as prompts there",
        ),
        (
            [
                *LATENT,
                "deployment.engine={name: vllm, version: '0.33', max_model_len: 32768}",
                "deployment.decode_context_parallel_size=8",
                "deployment.speculative={method: eagle, num_speculative_tokens: 1, acceptance_rate: 0.8}",
            ],
            "must be 1 with drafts by eagle",
        ),
        (
            [
                "model=gpt-oss-120b",
                *HEADS[1:],
                "deployment.tensor_parallel_size=16",
                VLLM,
                "deployment.decode_context_parallel_size=2",
            ],
            "not simulated for layers with a sliding window",
        ),
        (
            [
                *LATENT,
                "deployment.engine={name: vllm, version: '0.12', max_model_len: 256, block_size: 64}",
                "deployment.decode_context_parallel_size=8",
            ],
            r"makes blocks of 512 tokens, more than max_model_len \(256\)",
        ),
    ],
)
def test_what_does_not_go_together_is_said(more: list[str], message: str) -> None:
    """Sizes, releases, and what is not simulated beside it."""
    with pytest.raises(InputError, match=message):
        resolve(make_scenario(more))


def test_sglang_divides_heads_from_the_release_that_can() -> None:
    """0.5.17 divides latent keys alone."""

    def asked(version: str) -> Any:
        engine = f"deployment.engine={{name: sglang, version: '{version}'}}"
        return resolve(make_scenario([*HEADS, engine, "deployment.decode_context_parallel_size=2"]))

    assert kv_bytes_per_token(asked("0.5.18").shape) == 94 * 2 * 128 * 2 / 2
    with pytest.raises(InputError, match=r"sglang 0.5.17 divides the tokens of no other KV cache"):
        asked("0.5.17")


def test_releases_that_cut_graphs_around_attention_wait_for_the_host() -> None:
    """vLLM 0.12 runs such decodes on piecewise graphs, a third of a millisecond a layer; 0.13 does not."""

    def waits(version: str, ranks: int, *more: str) -> float:
        engine = f"deployment.engine={{name: vllm, version: '{version}', max_model_len: 32768}}"
        shape = resolve(
            make_scenario([*LATENT, engine, f"deployment.decode_context_parallel_size={ranks}", *more])
        ).shape
        return shape.engine.piecewise_seconds_per_layer

    assert waits("0.12", 8) == pytest.approx(0.33e-3)
    assert waits("0.12", 1) == waits("0.13", 8) == 0.0
    assert waits("0.12", 8, "deployment.engine.enforce_eager=true") == 0.0


HYBRID = ["model=kimi-linear-48b-a3b", "deployment.hardware=h200-sxm-141gb", "deployment.tensor_parallel_size=4"]


@pytest.mark.parametrize(("hardware", "version"), [("h200", "0.26"), ("b200", "0.26"), ("h200", "0.33")])
def test_states_stay_whole_beside_latent_keys_that_ranks_divide(hardware: str, version: str) -> None:
    """vLLM's one pool: blocks as many as before, four times as long; a request's state takes as many of them.

    What each release and GPU round blocks to, they round to on each rank.
    """

    def plan(ranks: int) -> MemoryPlan:
        engine = f"deployment.engine={{name: vllm, version: '{version}', max_model_len: 65536}}"
        more = [f"deployment.hardware={hardware}", f"deployment.decode_context_parallel_size={ranks}"]
        return plan_memory(resolve(make_scenario([*HYBRID, engine, *more])).shape)

    alone, together = plan(1), plan(4)
    assert alone.windows is not None
    assert together.windows is not None

    assert together.block_size == 4 * alone.block_size
    assert together.windows.num_blocks == alone.windows.num_blocks
    assert together.windows.window_groups == alone.windows.window_groups
    assert kv_bytes_per_token(together.shape) == kv_bytes_per_token(alone.shape) / 4


def test_sglang_keeps_states_apart() -> None:
    """As many states as without; the KV cache beside them holds four times the tokens."""

    def plan(ranks: int) -> MemoryPlan:
        engine = "deployment.engine={name: sglang, version: '0.5.23', max_model_len: 65536, max_num_seqs: 64}"
        return plan_memory(
            resolve(make_scenario([*HYBRID, engine, f"deployment.decode_context_parallel_size={ranks}"])).shape
        )

    alone, together = plan(1), plan(4)

    assert together.states_bytes == alone.states_bytes
    tokens = [each.num_kv_blocks * each.block_size for each in (alone, together)]
    assert tokens[1] == pytest.approx(4 * tokens[0], rel=1e-3)


def test_releases_that_divide_no_contexts_beside_states_say_so() -> None:
    """vLLM 0.25 asserts it (v1/core/kv_cache_coordinator.py), 0.26 does not."""
    engine = "deployment.engine={name: vllm, version: '0.25', max_model_len: 65536}"

    with pytest.raises(
        InputError, match=r"beside layers that keep a state: vllm 0.25 divides contexts of no such model"
    ):
        resolve(make_scenario([*HYBRID, engine, "deployment.decode_context_parallel_size=4"]))


def test_chunks_end_at_the_blocks_of_one_rank() -> None:
    """``cache_config.block_size`` of vLLM, of which a block of the pool spans one on each rank."""
    engine = "deployment.engine={name: vllm, version: '0.28', max_model_len: 65536}"
    resolved = resolve(make_scenario([*HYBRID, engine, "deployment.decode_context_parallel_size=4"]))

    config = engine_config(resolved.shape, resolved.memory)

    assert config.block_size == 4 * config.state_block_size > 0
