"""Experts placed whole on ranks: what the busiest rank computes, what the step then takes, what it reads."""

from __future__ import annotations

import dataclasses
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from simserve.perf.gemm import launched_gemms
from simserve.perf.moe import busiest_share, routed_load, router_kernels
from simserve.perf.stage import Stage, expert_block, projection, stage_gemms, stage_of, stage_seconds
from simserve.perf.tables import price
from simserve.profiles.catalog import load_model
from simserve.profiles.model_blocks import Gemm
from tests.perf.shapes import make_shape

TOKENS = np.arange(1.0, 2049.0)


def test_one_group_computes_every_pair() -> None:
    """Without placement a rank has a slice of all."""
    load = routed_load(128, 8, TOKENS)

    assert load.pairs == pytest.approx(8 * TOKENS)
    assert load.held == 128


@pytest.mark.parametrize("num_groups", [2, 4, 8, 16])
def test_the_busiest_rank_has_more_than_an_even_share(num_groups: int) -> None:
    """Above 1 / n, at most everything, nearing 1 / n with many tokens; its pairs grow with the tokens."""
    share = busiest_share(TOKENS, 128, 8, num_groups)
    load = routed_load(128, 8, TOKENS, num_groups)

    assert np.all(share >= 1.0 / num_groups)
    assert np.all(share <= 1.0)
    assert share[-1] < 1.15 / num_groups
    assert np.all(np.diff(load.pairs) > 0)
    assert np.all(np.diff(load.distinct) >= 0)
    assert np.all(load.distinct <= 128 / num_groups)
    assert load.routed == pytest.approx(8 * TOKENS)


@pytest.mark.parametrize("num_tokens", [1, 8, 64, 512])
def test_the_busiest_share_is_that_of_drawn_routings(num_tokens: int) -> None:
    """Mean of the largest of 8 ranks over 400 random routings of 8 of 128 experts, within 10 %."""
    rng = np.random.default_rng(1)
    largest = []
    for _ in range(400):
        experts = np.argsort(rng.random((num_tokens, 128)), axis=1)[:, :8]
        largest.append(np.bincount(experts.ravel() // 16, minlength=8).max() / (8 * num_tokens))

    assert float(busiest_share(np.array([float(num_tokens)]), 128, 8, 8)[0]) == pytest.approx(np.mean(largest), rel=0.1)


@pytest.mark.parametrize(("num_experts", "num_tokens"), [(128, 8), (256, 64), (256, 4096)])
def test_popular_experts_load_one_rank_more(num_experts: int, num_tokens: int) -> None:
    """Mean of the largest of 8 ranks over 400 deals of experts whose popularity falls as rank^-0.8, within 12 %."""
    rng = np.random.default_rng(1)
    popularity = np.arange(1.0, num_experts + 1.0) ** -0.8
    chance = 8 * popularity / popularity.sum()
    largest = []
    for _ in range(400):
        counts = rng.binomial(num_tokens, rng.permutation(chance)).reshape(8, -1).sum(axis=1)
        largest.append(counts.max() / (8 * num_tokens))
    alone, skewed = (
        float(busiest_share(np.array([float(num_tokens)]), num_experts, 8, 8, skew)[0]) for skew in (0.0, 0.8)
    )

    assert skewed == pytest.approx(np.mean(largest), rel=0.12)
    assert skewed > alone


@pytest.mark.parametrize("num_tokens", [4, 16, 64])
def test_the_slowest_rank_reads_the_most_experts_of_any(num_tokens: int) -> None:
    """Mean of the largest number of distinct experts on one of 8 ranks over 400 drawn routings, within 10 %."""
    rng = np.random.default_rng(1)
    popularity = np.arange(1.0, 257.0) ** -0.8
    chance = 8 * popularity / popularity.sum()
    most = []
    for _ in range(400):
        is_used = rng.binomial(num_tokens, rng.permutation(chance)) > 0
        most.append(is_used.reshape(8, -1).sum(axis=1).max())
    load = routed_load(256, 8, np.arange(1.0, num_tokens + 1.0), 8)

    assert float(load.distinct[-1]) == pytest.approx(np.mean(most), rel=0.1)


@pytest.mark.parametrize("num_ranks", [4, 8, 16])
@pytest.mark.parametrize("num_tokens", [8, 64])
def test_a_router_that_chooses_groups_sends_a_token_to_few_ranks(num_ranks: int, num_tokens: int) -> None:
    """Mean of the largest of the ranks over 400 draws of 4 of 8 groups and 8 of their experts, within 13 %."""
    rng = np.random.default_rng(1)
    most, largest = [], []
    for _ in range(400):
        scores = rng.random((num_tokens, 8, 32))
        left_out = np.argsort(rng.random((num_tokens, 8)), axis=1)[:, 4:]
        np.put_along_axis(scores, left_out[:, :, None], -1.0, axis=1)
        experts = np.argsort(-scores.reshape(num_tokens, 256), axis=1)[:, :8]
        counts = np.bincount(experts.ravel(), minlength=256).reshape(num_ranks, -1)
        most.append((counts > 0).sum(axis=1).max())
        largest.append(counts.sum(axis=1).max() / (8 * num_tokens))
    tokens = np.array([float(num_tokens)])
    free, grouped = (busiest_share(tokens, 256, 8, num_ranks, 0.0, groups)[0] for groups in ((1, 1), (8, 4)))

    assert grouped == pytest.approx(np.mean(largest), rel=0.13)
    assert grouped > free
    grouped_load = routed_load(256, 8, tokens, num_ranks, (8, 4))
    assert grouped_load.distinct[0] > routed_load(256, 8, tokens, num_ranks).distinct[0]
    assert grouped_load.distinct[0] <= np.mean(most) * 1.1


def test_a_router_without_groups_is_one_whose_groups_are_all_chosen() -> None:
    """And groups mean nothing to a rank that has a slice of every expert."""
    plain = routed_load(256, 8, TOKENS, 8)

    chosen = routed_load(256, 8, TOKENS, 8, (8, 8))
    sliced = routed_load(256, 8, TOKENS, 1, (8, 4))

    assert chosen.pairs == pytest.approx(plain.pairs)
    assert chosen.distinct == pytest.approx(plain.distinct)
    assert sliced.pairs == pytest.approx(8 * TOKENS)


def test_a_router_of_groups_takes_more_small_kernels() -> None:
    """TensorRT-LLM chooses DeepSeek's groups in kernels of their own; without groups nothing changes."""
    shape = make_shape("h200-sxm-141gb", "deepseek-r1", engine="tensorrt-llm", version="1.1", tensor_parallel_size=8)

    def step(num_kernels: int, model: str) -> float:
        changed = dataclasses.replace(
            shape,
            model=load_model(model),
            engine=shape.engine.model_copy(update={"num_group_router_kernels": num_kernels}),
        )
        return float(price(changed).step_times.decode_base[8])

    assert shape.engine.num_group_router_kernels > 1
    assert step(6, "deepseek-r1") > step(1, "deepseek-r1")
    assert step(6, "qwen3-235b-a22b") == step(1, "qwen3-235b-a22b")


@pytest.mark.parametrize(
    ("engine", "version", "gpu", "model", "kernels"),
    [
        ("sglang", "0.5.6", "h200-sxm-141gb", "glm-4.6", 18),
        ("sglang", "0.5.23", "h200-sxm-141gb", "glm-4.6", 18),  # a shared expert is the ninth of a token
        ("sglang", "0.5.6", "b200-sxm-180gb", "glm-4.6", 18),
        ("sglang", "0.5.15", "b200-sxm-180gb", "glm-4.6", 1),  # FlashInfer's kernels route
        ("sglang", "0.5.6", "mi300x-192gb", "glm-4.6", 1),
        ("sglang", "0.5.5", "h200-sxm-141gb", "kimi-k2", 18),
        ("sglang", "0.5.6", "h200-sxm-141gb", "kimi-k2", 1),
        ("sglang", "0.5.6", "h200-sxm-141gb", "minimax-m2", 18),
        ("sglang", "0.5.7", "h200-sxm-141gb", "minimax-m2", 1),
        ("sglang", "0.5.10", "h200-sxm-141gb", "glm-4.7-flash", 18),
        ("sglang", "0.5.11", "h200-sxm-141gb", "glm-4.7-flash", 1),
        ("sglang", "0.5.6", "h200-sxm-141gb", "deepseek-v3", 1),
        ("sglang", "0.5.6", "h200-sxm-141gb", "qwen3-235b-a22b", 1),
        ("sglang", "0.5.6", "h200-sxm-141gb", "gpt-oss-120b", 1),
        ("vllm", "0.10", "h200-sxm-141gb", "glm-4.5", 18),
        ("vllm", "0.10.2", "h200-sxm-141gb", "glm-4.5", 3),
        ("vllm", "0.12", "h200-sxm-141gb", "glm-4.5", 1),
    ],
)
def test_a_router_with_a_bias_and_one_group_has_its_kernel_late(
    engine: str, version: str, gpu: str, model: str, kernels: int
) -> None:
    """SGLang's fused kernel takes 32 experts a group; softmax, groups, AMD's kernels and FlashInfer's are as before."""
    shape = make_shape(gpu, model, engine=engine, version=version, tensor_parallel_size=8)

    assert shape.model.moe is not None
    assert router_kernels(shape, shape.model.moe, "bf16")[0] == kernels


@pytest.mark.parametrize(("version", "kernels"), [("0.5.10", 18), ("0.5.11", 1)])
def test_experts_on_cutlass_have_a_router_of_their_own_on_blackwell(version: str, kernels: int) -> None:
    """TensorRT-LLM's kernels, which follow in 0.5.11, choose experts themselves."""
    shape = make_shape("b200-sxm-180gb", "nemotron-3-nano-30b-a3b", engine="sglang", version=version)

    assert shape.model.moe is not None
    assert router_kernels(shape, shape.model.moe, "fp8")[0] == kernels


def router_microseconds(model: str, kernels: int, tokens: list[float]) -> np.ndarray:
    """Return how much longer a layer's experts take on an H200 than with a router in one kernel."""
    shape = make_shape("h200-sxm-141gb", model, engine="sglang", version="0.5.5", tensor_parallel_size=8)
    taken = []
    for count in (kernels, 1):
        engine = shape.engine.model_copy(update={"router_kernels": {shape.model.family: count}})
        stage = stage_of(dataclasses.replace(shape, engine=engine))
        assert shape.model.moe is not None
        taken.append(expert_block(stage, shape.model.moe, np.array(tokens)).sum(0))
    return (taken[0] - taken[1]) * 1e6


def test_a_router_in_pytorch_takes_as_long_as_profiles_have_it() -> None:
    """Kimi-K2 under SGLang: 33 us, 15 with one top-k, 8 in one kernel (pull requests 13150 and 13374)."""
    assert router_microseconds("kimi-k2", 18, [16.0]) == pytest.approx(33 - 8, rel=0.1)
    assert router_microseconds("kimi-k2", 6, [16.0]) == pytest.approx(15 - 8, rel=0.15)


def test_a_router_in_pytorch_takes_longer_with_more_tokens() -> None:
    """From 64 tokens on: 16 and 74 us with 384 experts (13374, 1,024 and 4,096), 26 ns a token with 256 (6946)."""
    few, some, many = router_microseconds("kimi-k2", 6, [64.0, 1024.0, 4096.0])
    first, last = router_microseconds("glm-5", 20, [5000.0, 40000.0])

    assert 0.6 < (some - few) / 16.4 < 1.0
    assert 0.6 < (many - few) / 74.1 < 1.0
    assert (last - first) / 35.0 == pytest.approx(26.4, rel=0.2)


def test_latent_attention_takes_longer_in_older_releases() -> None:
    """TensorRT-LLM 1.1, whose tables are of a newer release: 15 us in each of DeepSeek's 61 layers, none elsewhere."""
    shape = make_shape("h200-sxm-141gb", "deepseek-r1", engine="tensorrt-llm", version="1.1", tensor_parallel_size=8)

    def step(gap: float, model: str) -> float:
        engine = shape.engine.model_copy(update={"latent_attention_gap": gap})
        changed = dataclasses.replace(shape, engine=engine, model=load_model(model))
        return float(price(changed).step_times.decode_base[8])

    assert shape.engine.latent_attention_gap == pytest.approx(15e-6)
    assert step(15e-6, "deepseek-r1") - step(0.0, "deepseek-r1") == pytest.approx(61 * 15e-6)
    assert step(15e-6, "qwen3-235b-a22b") == step(0.0, "qwen3-235b-a22b")


def test_a_rank_computes_no_more_than_its_experts_can_take() -> None:
    """Where every token visits all of 8 experts, each of 8 ranks has exactly an eighth."""
    assert float(busiest_share(np.array([1.0]), 8, 8, 8)[0]) == 0.125


def test_placement_changes_the_step() -> None:
    """Whole experts on fewer ranks: other times than slices, rising with tokens, the same flops and bytes."""
    sliced, placed = (
        price(
            make_shape(
                "h200-sxm-141gb",
                "qwen3-235b-a22b",
                tensor_parallel_size=8,
                quantization="fp8",
                enable_expert_parallel=each,
            ),
            512,
        )
        for each in (False, True)
    )

    assert placed.step_times.token_seconds[64] != sliced.step_times.token_seconds[64]
    assert np.all(np.diff(placed.step_times.token_seconds) >= 0)
    assert np.all(np.diff(placed.step_times.decode_base) >= 0)
    assert placed.parts.token_flops == sliced.parts.token_flops
    assert placed.parts.weight_bytes == pytest.approx(sliced.parts.weight_bytes)


def test_placement_on_one_rank_is_no_placement() -> None:
    """One rank holds every expert whole either way."""
    first, second = (
        price(make_shape(model="gpt-oss-20b", quantization="mxfp4", enable_expert_parallel=each), 64)
        for each in (False, True)
    )

    assert first.step_times == second.step_times


def test_shared_experts_show_their_start_where_they_run_in_turn() -> None:
    """vLLM before 0.11.1 runs them before the routed ones, two products longer a layer; from then on beside them."""
    shape = make_shape("h200-sxm-141gb", "deepseek-v3", quantization="fp8", tensor_parallel_size=8)
    start = shape.machine.gemm_curves["fp8_block"].start_latency

    def step(model: str, *, has_overlap: bool) -> float:
        engine = shape.engine.model_copy(update={"overlaps_shared_experts": has_overlap})
        changed = dataclasses.replace(shape, engine=engine, model=load_model(model))
        return float(price(changed).step_times.decode_base[8])

    in_turn, beside = (step("deepseek-v3", has_overlap=each) for each in (False, True))

    assert in_turn - beside == pytest.approx(58 * 2 * start)
    assert step("qwen3-235b-a22b", has_overlap=False) == step("qwen3-235b-a22b", has_overlap=True)


@pytest.mark.parametrize(
    ("version", "kernels", "has_overlap"),
    [("0.9", 20, False), ("0.10.2", 3, False), ("0.11.1", 3, True), ("0.12", 1, True)],
)
def test_vllm_chooses_experts_in_fewer_kernels_by_version(version: str, kernels: int, has_overlap: bool) -> None:
    """Under the compiler as long as SGLang's same function, then a kernel for the groups, then with sigmoid."""
    engine = make_shape("h200-sxm-141gb", "deepseek-v3", version=version).engine

    assert (engine.num_group_router_kernels, engine.overlaps_shared_experts) == (kernels, has_overlap)


def test_a_compiled_router_of_groups_takes_the_time_that_sglang_measured() -> None:
    """36 us a layer where one kernel takes 8 (sglang pull request 5371): 28 more, in both engines, within 15 %."""

    def step(engine: str, version: str, kernels: int) -> float:
        shape = make_shape("h200-sxm-141gb", "deepseek-v3", engine=engine, version=version, tensor_parallel_size=8)
        changed = shape.engine.model_copy(update={"num_group_router_kernels": kernels})
        return float(price(dataclasses.replace(shape, engine=changed)).step_times.decode_base[1])

    for engine, version in (("vllm", "0.9.2"), ("sglang", "0.4.5")):
        known = make_shape("h200-sxm-141gb", "deepseek-v3", engine=engine, version=version).engine
        more = step(engine, version, known.num_group_router_kernels) - step(engine, version, 1)
        assert more / 58 == pytest.approx(28e-6, rel=0.15)


def test_products_scaled_by_blocks_were_slower_before_deepgemm() -> None:
    """DeepSeek-V3's queries from their latent form: 1.2 to 1.7 times as long under vLLM 0.9 as under 0.11."""
    rows = np.array([16.0, 64.0, 1024.0, 4096.0])
    before, after = (
        projection(
            stage_of(shape), next(each for each in stage_gemms(stage_of(shape)) if each.name == "q_b"), rows
        ).sum(0)
        for shape in (
            make_shape("h200-sxm-141gb", "deepseek-v3", quantization="fp8", version=version)
            for version in ("0.9", "0.11")
        )
    )

    assert np.all(before / after > 1.2)
    assert np.all(before / after < 1.7)


def test_sglang_multiplied_scales_by_blocks_with_triton_before_deepgemm() -> None:
    """DeepSeek-V3's queries under SGLang 0.4.5 and 0.4.6: one row 1.2, thousands 1.7 to 1.9 times as long."""
    rows = np.array([1.0, 4096.0])
    before, after = (
        projection(
            stage_of(shape), next(each for each in stage_gemms(stage_of(shape)) if each.name == "q_b"), rows
        ).sum(0)
        for shape in (
            make_shape("h200-sxm-141gb", "deepseek-v3", engine="sglang", quantization="fp8", version=version)
            for version in ("0.4.5", "0.4.6")
        )
    )

    few, many = before / after
    assert 1.1 < few < 1.3
    assert 1.7 < many < 1.9


def test_a_tile_of_triton_takes_its_steps_however_few_rows_there_are() -> None:
    """SGLang 0.4.5: 56 steps of 0.45 us for 7,168 columns of one row; 4,096 rows take longer than that anyhow."""
    shape = make_shape("h200-sxm-141gb", "deepseek-v3", engine="sglang", quantization="fp8", version="0.4.5")
    stages = [
        stage_of(dataclasses.replace(shape, engine=shape.engine.model_copy(update={"block_scaled_step": step})))
        for step in (0.0, shape.engine.block_scaled_step)
    ]
    gemm = next(each for each in stage_gemms(stages[0]) if each.name == "shared_gate_up")
    rows = np.array([1.0, 8.0, 4096.0])

    before, after = (projection(stage, gemm, rows).sum(0) for stage in stages)

    start = stages[0].machine.gemm_curves["fp8_block"].start_latency
    assert after[0] == pytest.approx(after[1], rel=0.01)
    assert start + 56 * 0.45e-6 < after[0] < start + 56 * 0.45e-6 + 4e-6
    assert after[0] > before[0]
    assert after[2] == before[2]


def joined_inputs(hardware: str, version: str, engine_fields: dict[str, Any] | None = None) -> tuple[Stage, Gemm]:
    """Return the stage and the product of latent queries and keys of DeepSeek-V3 over 16 ranks under vLLM."""
    shape = make_shape(
        hardware,
        "deepseek-v3",
        quantization="fp8",
        version=version,
        tensor_parallel_size=16,
        engine_fields=engine_fields,
    )
    stage = stage_of(shape)
    return stage, next(each for each in stage_gemms(stage) if each.name == "qkv_a")


def test_joined_latent_inputs_ran_on_cutlass_before_deepgemm_took_their_columns() -> None:
    """vLLM 0.11 on an H100, 7,168 x 2,112 with rounding and padding: 0.80 to 1.10 of pull request 23280's ten calls."""
    rows = np.array([1.0, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192])
    measured = np.array([33.9, 34.8, 34.7, 36.4, 40.3, 48.1, 88.4, 145.3, 271.4, 506.5]) * 1e-6

    old, new = (projection(*joined_inputs("h100-sxm-80gb", version), rows).sum(0) for version in ("0.11.2", "0.12"))

    assert np.all(old > 0.79 * measured)
    assert np.all(old < 1.11 * measured)
    assert np.all(old > 1.5 * new)


def test_other_columns_and_other_gpus_have_deepgemm_from_vllm_0_11_on() -> None:
    """3,072 columns of queries are 24 times 128; a B200 has no such rule; and 0.11 without the rule pads nothing."""
    rows = np.array([1.0, 64.0, 8192.0])

    def columns(version: str) -> np.ndarray:
        stage, _ = joined_inputs("h200-sxm-141gb", version)
        return projection(stage, next(each for each in stage_gemms(stage) if each.name == "q_b"), rows)

    assert np.array_equal(columns("0.11"), columns("0.12"))
    on_blackwell = [projection(*joined_inputs("b200-sxm-180gb", version), rows) for version in ("0.11", "0.12")]
    assert np.array_equal(*on_blackwell)
    plain = {"block_scaled_columns": {}, "block_scaled_step": 0.0}
    before = projection(*joined_inputs("h200-sxm-141gb", "0.10"), rows)
    assert np.array_equal(projection(*joined_inputs("h200-sxm-141gb", "0.11", plain), rows), before)


def test_latent_decodes_of_triton_read_keys_once_for_16_heads() -> None:
    """35 TFLOP/s: 2 x 16 x 1,088 FLOP a key in each of 61 layers on 8 ranks, eight times as long on one; NVIDIA's."""

    def key(version: str, ranks: int, gpu: str = "h200-sxm-141gb") -> float:
        shape = make_shape(gpu, "deepseek-v3", engine="sglang", version=version, tensor_parallel_size=ranks)
        return float(price(shape).step_times.decode_slope[32])  # more blocks than multiprocessors

    assert key("0.4.5", 8) == pytest.approx(61 * 2 * 16 * 1088 / 35e12)
    assert key("0.4.5", 1) == pytest.approx(8 * key("0.4.5", 8))
    assert key("0.4.6", 8) < 0.5 * key("0.4.5", 8)
    assert key("0.4.5", 8, "mi300x-192gb") == key("0.4.6", 8, "mi300x-192gb")


def test_queries_and_keys_had_a_product_each_from_the_input_of_a_layer() -> None:
    """DeepSeek-V3 under SGLang 0.4.6: one start and one rounding more in each of 61 layers; without queries' none."""
    shape = make_shape(
        "h200-sxm-141gb", "deepseek-v3", engine="sglang", version="0.4.6", quantization="fp8", tensor_parallel_size=8
    )

    def step(model: str, *, is_joined: bool) -> float:
        engine = shape.engine.model_copy(update={"joins_latent_inputs": is_joined})
        changed = dataclasses.replace(shape, engine=engine, model=load_model(model))
        return float(price(changed).step_times.decode_base[8])

    assert step("deepseek-v3", is_joined=False) - step("deepseek-v3", is_joined=True) > 61 * 5e-6
    assert step("qwen3-235b-a22b", is_joined=False) == step("qwen3-235b-a22b", is_joined=True)


@pytest.mark.parametrize("name", ["mi300x-192gb", "mi325x-256gb"])
def test_sglang_multiplies_scales_by_blocks_with_triton_on_cdna_3(name: str) -> None:
    """From 0.5.6 on. A profile of DeepSeek-R1 over eight MI325X under 0.5.9 has 30, 34 and 123 us at 64 rows."""

    def seconds(version: str, product: str) -> float:
        shape = make_shape(
            name, "deepseek-v3", engine="sglang", quantization="fp8", version=version, tensor_parallel_size=8
        )
        gemms = launched_gemms(shape.model.attention_gemms(8))
        gemm = next(each for each in gemms if each.name == product)
        return float(projection(stage_of(shape), gemm, np.array([64.0])).sum())

    assert seconds("0.5.9", "q_b") == pytest.approx(30e-6, rel=0.15)
    assert seconds("0.5.9", "output") == pytest.approx(34e-6, rel=0.15)
    assert seconds("0.5.9", "qkv_a") == pytest.approx(123e-6, rel=0.15)
    assert seconds("0.5.5", "qkv_a") < 40e-6


def test_shared_experts_that_are_routed_ones_have_no_product_by_triton() -> None:
    """SGLang computes DeepSeek's as the ninth expert of a token on CDNA 3 too: 56 steps of a tile would take 120 us."""
    shape = make_shape(
        "mi300x-192gb", "deepseek-v3", engine="sglang", quantization="fp8", version="0.5.9", tensor_parallel_size=8
    )

    def step(**changed: object) -> float:
        return float(price(dataclasses.replace(shape, **changed), 64).step_times.decode_base[8])

    model = shape.model
    assert model.moe is not None
    alone = model.model_copy(update={"moe": model.moe.model_copy(update={"num_shared_experts": 0})})
    assert step() - step(model=alone) < 58 * 50e-6


def test_triton_multiplies_scales_by_blocks_on_no_other_gpu() -> None:
    """CDNA 4 and NVIDIA keep their kernels under SGLang 0.5.6; so does vLLM on CDNA 3 with AITER."""

    def step(name: str, engine: str, version: str, **options: Any) -> float:
        shape = make_shape(
            name, "deepseek-v3", engine=engine, quantization="fp8", version=version, tensor_parallel_size=8, **options
        )
        plain = dataclasses.replace(shape, engine=shape.engine.model_copy(update={"block_scaled_kernels": {}}))
        return float(price(shape, 64).step_times.decode_base[8] / price(plain, 64).step_times.decode_base[8])

    assert step("mi355x-288gb", "sglang", "0.5.9") == 1.0
    assert step("h200-sxm-141gb", "sglang", "0.5.9") == 1.0
    assert step("mi300x-192gb", "vllm", "0.21", attention_backend="aiter") == 1.0
    assert step("mi300x-192gb", "vllm", "0.21", moe_backend="aiter") == 1.0
    assert step("mi355x-288gb", "vllm", "0.21") == 1.0
    assert step("h200-sxm-141gb", "vllm", "0.21") == 1.0
    assert step("mi300x-192gb", "sglang", "0.5.5") == 1.0  # AITER's, not by Triton
    assert step("mi300x-192gb", "sglang", "0.5.9") > 1.2
    assert 1.0 < step("mi300x-192gb", "vllm", "0.21") < 1.1  # DeepSeek has tiles of its own


@pytest.mark.parametrize(("version", "milliseconds"), [("0.10.1", 30.2), ("0.30.0", 27.2)])
def test_dense_fp8_without_aiter_takes_as_long_as_was_measured(version: str, milliseconds: float) -> None:
    """Llama-3.3-70B on one MI300X, a token of one client: 30.2 ms (runara, not fitted to) and 27.2 (fitted)."""

    def step(quantization: str = "fp8", name: str = "mi300x-192gb", **options: Any) -> float:
        shape = make_shape(
            name, "llama-3.3-70b", quantization=quantization, version=version, max_model_len=8192, **options
        )
        return 1e3 * float(price(shape, 64).step_times.decode_base[1])

    assert step() == pytest.approx(milliseconds, rel=0.13)
    assert step() > 1.2 * step(moe_backend="aiter")
    assert step("none") == step("none", moe_backend="aiter")


def test_a_token_without_aiter_is_slower_as_was_measured() -> None:
    """Not fitted to: Qwen3.5-122B in FP8 by blocks for one client on an MI325X under vLLM 0.27, 57 tokens/s without
    AITER, which is priced at 72, and 98 with it (vLLM issue 56945)."""

    def step(**options: Any) -> float:
        shape = make_shape("mi325x-256gb", "qwen3.5-122b-a10b", quantization="fp8", version="0.27.1", **options)
        return float(price(shape, 64).step_times.decode_base[1])

    assert step(attention_backend="aiter") == pytest.approx(1 / 98, rel=0.1)
    assert step() == pytest.approx(1 / 57, rel=0.25)
    assert step() > 1.3 * step(attention_backend="aiter")


@pytest.mark.parametrize("hardware", ["mi300x-192gb", "mi325x-256gb"])
def test_tritons_products_have_tiles_of_their_own_where_aiter_ships_them(hardware: str) -> None:
    """GLM-5.2 over eight GPUs: a step of one sequence from SGLang 0.5.11 on; not over four, nor on CDNA 4."""

    def step(name: str, ranks: int) -> float:
        shape = make_shape(
            name, "glm-5.2", engine="sglang", quantization="fp8", version="0.5.13", tensor_parallel_size=ranks
        )
        plain = dataclasses.replace(shape, engine=shape.engine.model_copy(update={"block_scaled_tuned": ()}))
        return float(price(shape, 64).step_times.decode_base[1] / price(plain, 64).step_times.decode_base[1])

    assert step(hardware, 8) < 0.75
    assert 0.75 < step(hardware, 4) < 0.95  # 2,624 by 6,144 alone: it is not split over ranks
    assert step("mi355x-288gb", 8) == 1.0
    old = make_shape(hardware, "glm-5.2", engine="sglang", quantization="fp8", version="0.5.10", tensor_parallel_size=8)
    assert old.engine.block_scaled_tuned == ()


@pytest.mark.parametrize(
    ("engine", "version", "step", "gap", "flops", "kernels", "is_joined"),
    [
        ("sglang", "0.4.2", 0.45e-6, 18e-6, 35e12, 36, False),
        ("sglang", "0.4.3", 0.45e-6, 18e-6, 35e12, 20, False),
        ("sglang", "0.4.5", 0.45e-6, 0.0, 35e12, 20, False),
        ("sglang", "0.4.6", 0.0, 0.0, None, 1, False),
        ("sglang", "0.4.7", 0.0, 0.0, None, 1, True),
        ("vllm", "0.7.3", 0.0, 18e-6, 35e12, 20, False),
        ("vllm", "0.8", 0.0, 0.0, None, 20, False),
        ("vllm", "0.10", 0.0, 0.0, None, 20, True),
    ],
)
def test_kernels_of_latent_attention_and_experts_changed_by_version(
    engine: str, version: str, step: float, gap: float, flops: float | None, kernels: int, is_joined: bool
) -> None:
    """As the pull requests that the profiles name have it."""
    found = make_shape("h200-sxm-141gb", "deepseek-v3", engine=engine, version=version).engine

    assert found.block_scaled_step * (found.block_scaled_gap_since <= 9.0) == pytest.approx(step)
    assert found.latent_attention_gap == pytest.approx(gap)
    assert found.latent_decode_flops.get("NVIDIA") == flops
    assert (found.num_group_router_kernels, found.joins_latent_inputs) == (kernels, is_joined)
    assert found.overlaps_shared_experts == (engine == "sglang" and step == 0.0)


def test_vllm_adds_the_outputs_of_shared_experts_in_a_kernel_of_its_own() -> None:
    """Two are read and one is written, in 58 layers of DeepSeek-V3; Qwen3 has none to add, SGLang no such kernel."""

    def added(model: str, engine: str, tokens: float) -> float:
        shape = make_shape("h200-sxm-141gb", model, engine=engine, quantization="fp8", tensor_parallel_size=8)
        plain = dataclasses.replace(shape, engine=shape.engine.model_copy(update={"adds_shared_experts": False}))
        both = (stage_seconds(stage_of(each), np.array([tokens])).parts.sum() for each in (shape, plain))
        return float(next(both) - next(both))

    few, many = added("deepseek-v3", "vllm", 1.0), added("deepseek-v3", "vllm", 8192.0)
    moved = 58 * 8191 * 3 * 7168 * 2.0
    assert 0.5 * 4.8e12 < moved / (many - few) < 4.8e12
    assert 58 * 1e-6 < few < 58 * 2e-6
    assert added("qwen3-235b-a22b", "vllm", 8192.0) == 0.0
    assert added("deepseek-v3", "sglang", 8192.0) == 0.0


def test_one_scale_a_channel_is_no_matter_of_deepgemm() -> None:
    """FP8 products of Llama, whose checkpoint has no blocks, are the same under both."""
    old, new = (
        price(make_shape("h100-sxm-80gb", quantization="fp8", version=version), 64).step_times.token_seconds[64]
        for version in ("0.10.2", "0.11")
    )

    assert old == new


@pytest.mark.parametrize(("groups", "chosen", "ranks"), [(8, 4, 4), (8, 4, 8), (8, 3, 2)])
def test_the_share_of_a_tokens_groups_on_a_rank_varies_as_counted(groups: int, chosen: int, ranks: int) -> None:
    """Over every choice of groups, each as likely: a rank holds neighbouring ones."""
    held = groups // ranks
    shares = [sum(each < held for each in choice) / chosen for choice in combinations(range(groups), chosen)]
    free = busiest_share(np.array([1e12]), 256, 8, ranks, 0.0)[0]
    tokens = 1e4
    plain, grouped = (
        (busiest_share(np.array([tokens]), 256, 8, ranks, 0.0, router)[0] - 1 / ranks) ** 2
        for router in ((1, 1), (groups, chosen))
    )

    assert free == pytest.approx(1 / ranks, rel=1e-4)
    assert grouped / plain == pytest.approx(1 + 7 * ranks * np.var(shares))


def test_a_step_uses_no_more_experts_of_a_rank_than_it_has_pairs() -> None:
    """Few tokens and many copies: a pair of a token and an expert is computed by one copy of it."""
    for copies in (0, 32, 64):
        load = routed_load(64, 4, np.array([1.0, 2.0, 4.0, 8.0]), 8, num_redundant=copies)

        assert np.all(load.distinct <= np.maximum(load.pairs, 1.0))
