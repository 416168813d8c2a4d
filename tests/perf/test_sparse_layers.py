"""Models whose layers choose, compress, or have other heads: what of a step grows with the context, and what not."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.perf.attention import (
    SPARSE_HEADS,
    attention_of,
    compressed_seconds,
    growing_share,
    index_key_seconds,
    index_share,
    prefill_pair_seconds,
    window_keys,
)
from simserve.perf.memory import kv_bytes_per_token, plan_memory
from simserve.perf.stage import _attention_calls, stage_of, stage_parts
from simserve.perf.tables import price
from simserve.perf.traffic import traffic_of
from simserve.profiles.catalog import load_model
from simserve.profiles.model import ModelProfile
from simserve.profiles.model_blocks import AttentionLayers
from tests.perf.shapes import make_model, make_shape

FLASH = load_model("deepseek-v4-flash")


def groups_of(model: ModelProfile) -> dict[str, AttentionLayers]:
    """Return the groups of a model by their names."""
    return {layers.name: layers for layers in model.attention_layers}


def test_compressed_layers_grow_by_their_entries() -> None:
    """A token of context is 1/128 of an entry in 20 of 43 layers; windows and the 512 chosen are there at any."""
    groups = groups_of(FLASH)
    growing = {name: growing_share(FLASH, layers) for name, layers in groups.items()}
    constant = {name: window_keys(FLASH, layers) for name, layers in groups.items()}

    assert growing == {"window": 0, "compressed 4:1": 0, "compressed 128:1": pytest.approx(20 / 43 / 128)}
    assert constant == {
        "window": pytest.approx(128 * 2 / 43),
        "compressed 4:1": pytest.approx((128 + 512) * 21 / 43),
        "compressed 128:1": pytest.approx(128 * 20 / 43),
    }
    assert index_share(FLASH, groups["compressed 4:1"]) == pytest.approx(21 / 43 / 4)


def test_compressed_attention_computes_heads_of_a_latent_kernel() -> None:
    """Keys and values are one vector of 512; kernels compute 64 heads though a rank of 8 has 8 of 64."""
    attention = attention_of(groups_of(FLASH)["compressed 4:1"], 8, 2.0)

    assert attention.decode_flops_per_key == 2 * SPARSE_HEADS * (512 + 512)
    assert attention.kv_bytes_per_token == 584


@pytest.mark.parametrize(
    ("hardware", "ranks", "rows", "milliseconds"),
    [
        ("h200-sxm-141gb", 8, 8192, 1.344),
        ("h100-sxm-80gb", 8, 8192, 1.452),
        ("b200-sxm-180gb", 8, 8192, 0.974),
        ("h200-sxm-141gb", 1, 1, 0.0867),
        ("h100-sxm-80gb", 1, 1, 0.1008),
        ("b200-sxm-180gb", 1, 1, 0.0718),
    ],
)
def test_heavily_compressed_attention_takes_what_its_modules_took(
    hardware: str, ranks: int, rows: int, milliseconds: float
) -> None:
    """8,192 tokens of a prompt and a decode behind 4,096, projections included; fitted on the H200.

    AIConfigurator's modules of SGLang 0.5.14.
    """
    shape = make_shape(
        hardware,
        FLASH,
        engine="sglang",
        version="0.5.15",
        tensor_parallel_size=ranks,
        quantization="fp8",
        max_model_len=16384,
    )
    stage, tokens = stage_of(shape), np.array([float(rows)])
    (attention,) = (each for each in stage.attentions if each.layers.name == "compressed 128:1")
    _, *calls = _attention_calls(stage, attention)  # the norms of the layer are not in the module
    pair = prefill_pair_seconds(attention_of(attention.layers, ranks, 1.0), stage.machine, "bf16", is_flash=True)

    priced = (call.parts(tokens) for call in calls)
    seconds = sum(float((each if isinstance(each, np.ndarray) else each.parts).sum()) for each in priced)
    seconds += rows * (128 + 4096 / 128) * pair  # in the mean of a prompt too
    around = float(compressed_seconds(attention.layers, shape.hardware.compute_capability, tokens)[0])

    assert seconds == pytest.approx(milliseconds * 1e-3, rel=0.12)
    assert seconds - around < 0.88 * milliseconds * 1e-3


def test_only_flash_mla_pays_for_its_sparse_kernel() -> None:
    """No table has the kernels of other GPUs, and layers without compression have none."""
    compressed, tokens = groups_of(FLASH)["compressed 4:1"], np.array([1000.0])
    plain = load_model("llama-3.1-8b").attention_layers[0]

    assert compressed_seconds(compressed, "12.0", tokens) == 0.0
    assert compressed_seconds(compressed, None, tokens) == 0.0
    assert compressed_seconds(plain, "9.0", tokens) == 0.0
    assert compressed_seconds(compressed, "10.3", tokens) > 0.0


def test_a_token_of_context_costs_index_keys_and_few_entries() -> None:
    """DeepSeek-V4-Flash on 8 H200: 21 layers score a key for 4 tokens, 20 read an entry for 128."""
    shape = make_shape(
        "h200-sxm-141gb", FLASH, tensor_parallel_size=8, quantization="fp8", max_model_len=8192, max_num_seqs=8
    )
    groups, machine = groups_of(FLASH), shape.machine
    indexer = groups["compressed 4:1"].indexer
    dense = price(make_shape("h200-sxm-141gb", "deepseek-v3.2", tensor_parallel_size=8, quantization="fp8"), 16)

    slope = price(shape, 16).step_times.decode_slope[8]

    scored = 21 * index_key_seconds(indexer, machine) / 4
    assert scored < slope < 1.5 * scored
    assert slope < dense.step_times.decode_slope[8] / 10


def test_chosen_keys_do_not_grow_and_index_keys_do() -> None:
    """MiniMax-M3: 57 layers read 2,048 keys at any context, 3 all of it, and 57 score every key."""
    model = load_model("minimax-m3")
    groups = groups_of(model)

    assert growing_share(model, groups["sparse"]) == 0
    assert window_keys(model, groups["sparse"]) == pytest.approx(2048 * 57 / 60)
    assert growing_share(model, groups["full"]) == 3 / 60
    assert index_share(model, groups["sparse"]) == 57 / 60
    assert index_share(model, groups["full"]) == 0


def test_groups_with_the_same_heads_cost_what_one_group_does() -> None:
    """Llama-3.1-8B with a window of 128 in half its layers, told as one group and as two."""
    window = {"sliding_window": 128, "num_sliding_layers": 16}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    one, two = (make_shape(model=make_model(**window, sliding_heads=each)) for each in (None, heads))

    first, second = (price(shape, 512).step_times for shape in (one, two))

    assert len(two.model.attention_layers) == 2
    assert second.decode_slope == pytest.approx(first.decode_slope)
    assert second.decode_base == pytest.approx(first.decode_base)
    assert second.token_seconds == pytest.approx(first.token_seconds)
    assert second.prefill_pair_seconds == pytest.approx(first.prefill_pair_seconds)
    assert plan_memory(two).num_kv_blocks == plan_memory(one).num_kv_blocks


def test_layers_of_a_window_with_fewer_heads_cost_less() -> None:
    """The same with one key-value head in the layers of a window: less KV, a smaller projection, the same slope."""
    window = {"sliding_window": 128, "num_sliding_layers": 16}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 1, "head_dim": 128}
    one, two = (make_shape(model=make_model(**window, sliding_heads=each)) for each in (None, heads))

    first, second = (price(shape, 512).step_times for shape in (one, two))

    assert plan_memory(two).kv_bytes_per_token == (16 * 8 + 16 * 1) * 2 * 128 * 2
    assert second.decode_base[64] < first.decode_base[64]
    assert second.decode_slope == pytest.approx(first.decode_slope)


def test_residual_streams_are_mixed_around_both_sublayers() -> None:
    """Four streams of 4,096: two products of 24 x 16,384 a layer, and 14 passes over a stream for each sublayer."""
    tokens = np.array([4096.0])
    one, four = (
        stage_of(make_shape("h200-sxm-141gb", FLASH.model_copy(update={"num_residual_streams": streams})))
        for streams in (1, 4)
    )

    added = float((stage_parts(four, tokens) - stage_parts(one, tokens)).sum())

    moved = 43 * 2 * 14 * 4096 * 2 * 4096 / four.machine.bandwidth
    assert moved < added < 2.5 * moved
    assert traffic_of(four, tokens)["token_flops"] - traffic_of(one, tokens)["token_flops"] == 2 * 43 * 2 * 24 * 16384


def test_the_result_says_that_such_attention_is_a_roofline() -> None:
    """An H200 has fitted attention, and none for compressed or block-sparse layers."""
    found = {
        name: price(make_shape("h200-sxm-141gb", name, tensor_parallel_size=8, quantization="fp8"), 16).operators
        for name in ("deepseek-v4-flash", "minimax-m3", "glm-5.2", "mimo-v2-flash")
    }

    assert {name: operators["attention"] for name, operators in found.items()} == {
        "deepseek-v4-flash": "roofline",
        "minimax-m3": "roofline",
        "glm-5.2": "fitted",
        "mimo-v2-flash": "fitted",
    }


def test_sglang_caches_indexers_keys_of_layers_without_one_up_to_0_5_17() -> None:
    """57 of GLM-5.2's 78 layers use another's choice: 132 bytes a token each, of all layers or of a stage's share."""

    def key_bytes(version: str, model: str = "glm-5.2", **more: int) -> float:
        return kv_bytes_per_token(make_shape("h200-sxm-141gb", model, engine="sglang", version=version, **more))

    assert key_bytes("0.5.17") - key_bytes("0.5.18") == pytest.approx(57 * 132)
    assert key_bytes("0.5.17", "glm-5.1") == key_bytes("0.5.18", "glm-5.1")
    halved = {"pipeline_parallel_size": 2}
    assert key_bytes("0.5.17", **halved) - key_bytes("0.5.18", **halved) == pytest.approx(57 * 132 / 2)
