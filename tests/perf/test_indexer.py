"""The indexer of sparse attention costs a step kernels, and each key and pair a little."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simserve.perf.attention import index_key_seconds, index_pair_seconds, indexer_parts, sparse_prompt_seconds
from simserve.perf.efficiency import start_latency
from simserve.perf.shape import Speculation
from simserve.perf.stage import _attention_calls, stage_of
from simserve.perf.tables import _decode_slopes, price
from simserve.profiles.catalog import load_model
from tests.perf.shapes import make_shape

SERVED = {"engine": "sglang", "tensor_parallel_size": 8, "quantization": "fp8"}
SPARSE = make_shape("h200-sxm-141gb", "glm-5", **SERVED)
MACHINE = SPARSE.machine


def test_a_layer_takes_ten_kernels_at_least() -> None:
    """Eight element-wise ones and two that walk the context: 27 us on an H200."""
    indexer = load_model("glm-5").indexer
    assert indexer is not None

    one = float(indexer_parts(indexer, MACHINE, np.ones(1)).sum())

    small, large = start_latency(MACHINE, "elementwise"), start_latency(MACHINE, "attention_decode")
    assert one == pytest.approx(8 * small + 2 * large, rel=0.01)


def test_keys_move_their_fp8_bytes_and_two_scores() -> None:
    """132 + 8 bytes a key of a decode step; pairs of prompts pay for products too; nothing without an indexer."""
    indexer = load_model("glm-5").indexer

    assert index_key_seconds(indexer, MACHINE) >= 140 / MACHINE.bandwidth
    assert index_pair_seconds(indexer, MACHINE) > 2 * 32 * 128 / MACHINE.peak("fp8")
    assert index_key_seconds(None, MACHINE) == index_pair_seconds(None, MACHINE) == 0


def test_prompts_on_amd_are_scored_at_the_pace_of_its_kernel() -> None:
    """GLM-5.1's 32 heads of 128 at 131 TFLOP/s of an MI300X: 0.1 us a token for every 1,600 before it and layer.

    Decodes keep the pace of attention, and so do keys in 16 bit, which another kernel scores (MiniMax-M3).
    """
    timed = make_shape("mi300x-192gb", "glm-5.1", **SERVED).machine
    untimed = replace(timed, indexer_efficiency=None)
    indexer, wide = load_model("glm-5.1").indexer, load_model("minimax-m3").indexer
    assert indexer is not None
    assert wide is not None

    slower = index_pair_seconds(indexer, timed) - index_pair_seconds(indexer, untimed)

    flops = 2 * indexer.num_heads * indexer.head_dim
    assert slower == pytest.approx(flops / 130.7e12 - flops / (0.35 * 2614.9e12), rel=0.01)
    assert index_key_seconds(indexer, timed) == index_key_seconds(indexer, untimed)
    assert index_pair_seconds(wide, timed) == index_pair_seconds(wide, untimed)


@pytest.mark.parametrize(("version", "teraflops"), [("0.27", 130.7), ("0.28", 418.4)])
def test_prompts_on_amd_are_scored_by_flydsl_from_vllm_0_28_on(version: str, teraflops: float) -> None:
    """On GPUs that state its pace alone: MI350X and MI355X keep Gluon's kernel (vLLM pull request 49544)."""
    served = {**SERVED, "engine": "vllm", "version": version}

    share = make_shape("mi300x-192gb", "glm-5.1", **served).machine.indexer_efficiency

    assert share == pytest.approx(teraflops / 2614.9, rel=0.01)
    assert make_shape("mi355x-288gb", "glm-5.1", **served).machine.indexer_efficiency == 0.20


def test_every_step_of_a_sparse_model_pays_for_it() -> None:
    """GLM-5 without its indexer decodes more than 2 ms sooner, and reads contexts faster."""
    plain = load_model("glm-5").model_copy(update={"indexer": None})
    with_it, without = (price(shape).step_times for shape in (SPARSE, make_shape("h200-sxm-141gb", plain, **SERVED)))

    assert with_it.decode_base[4] - without.decode_base[4] > 2e-3
    assert with_it.decode_slope[4] > without.decode_slope[4]
    assert 0 < with_it.prefill_pair_seconds < without.prefill_pair_seconds  # the indexer's products alone


def test_a_long_prompt_pays_for_the_keys_that_were_chosen() -> None:
    """Beyond 2,048 tokens each token attends to as many keys, with 64 heads on every rank: 35 us a token of GLM-5."""
    plain = load_model("glm-5").model_copy(update={"indexer": None})
    with_it, without = (price(shape).step_times for shape in (SPARSE, make_shape("h200-sxm-141gb", plain, **SERVED)))

    extra = [with_it.token_seconds[tokens] - without.token_seconds[tokens] for tokens in (4096, 8192)]
    a_key = 2 * 64 * (512 + 64 + 512) / (0.65 * MACHINE.peak("bf16"))
    assert extra[1] - extra[0] == pytest.approx(78 * 4096 * 2048 * a_key, rel=0.15)
    assert with_it.token_seconds_beyond - without.token_seconds_beyond > 78 * 2048 * a_key


def test_a_short_prompt_attends_to_all_of_itself() -> None:
    """Up to 2,048 tokens the pairs are those of dense attention, counted with the tokens of the step."""
    layers, dense = (shape.model.attention_layers[0] for shape in (SPARSE, make_shape()))

    seconds = sparse_prompt_seconds(layers, 8, MACHINE, np.array([0.0, 1024.0, 2048.0, 2049.0, 8192.0]), 1e-12)

    assert seconds[:3] == pytest.approx([0.0, 0.5e-12 * 1024**2, 0.5e-12 * 2048**2])
    assert (np.diff(seconds) > 0).all()
    assert not sparse_prompt_seconds(dense, 1, MACHINE, np.array([8192.0]), 1e-12).any()


def test_choosing_keys_begins_at_the_price_of_attending_to_all() -> None:
    """Half of the square of 2,048 tokens in pairs, then 2,048 for each: no step where the kernel itself takes less."""
    layers, pair = SPARSE.model.attention_layers[0], 1e-9
    fast = replace(MACHINE, peaks=dict.fromkeys(MACHINE.peaks, 1e30))

    all_of_them, chosen, twice = sparse_prompt_seconds(layers, 8, fast, np.array([2048.0, 2049.0, 4096.0]), pair)

    assert all_of_them == pytest.approx(0.5 * pair * 2048**2)
    assert chosen == pytest.approx(all_of_them, rel=1e-3)
    assert twice == pytest.approx(2 * all_of_them)


def test_each_draft_has_its_own_index_keys_scored() -> None:
    """DeepSeek-V4 scores every fourth token in 21 of 43 layers, for each of four tokens that a step verifies."""
    shape = make_shape("h200-sxm-141gb", "deepseek-v4-flash", **SERVED)
    drafts = Speculation(method="ngram", num_speculative_tokens=3, draft=None)

    def scoring(speculation: Speculation | None) -> float:
        slow, fast = (
            _decode_slopes(stage_of(replace(shape, model=each, speculation=speculation)), np.arange(2.0))[0][1]
            for each in (shape.model, with_half_the_keys)
        )
        return float(slow - fast)

    assert shape.model.indexer is not None
    half = shape.model.indexer.model_copy(update={"head_dim": shape.model.indexer.head_dim // 2})
    with_half_the_keys = shape.model.model_copy(update={"indexer": half})
    assert scoring(None) > 0
    assert scoring(drafts) == pytest.approx(4 * scoring(None))


def test_ranks_divide_the_indexer_of_minimax_m3_and_not_that_of_glm() -> None:
    """One of its four heads a rank of four or eight, as the key-value heads; all 32 of GLM-5's on every rank."""
    divided, whole = (load_model(name).indexer for name in ("minimax-m3", "glm-5"))
    assert divided is not None
    assert whole is not None

    assert [divided.on_rank(ranks).num_heads for ranks in (1, 2, 4, 8)] == [4, 2, 1, 1]
    assert whole.on_rank(8) is whole
    alone, shared = (index_pair_seconds(divided.on_rank(ranks), MACHINE) for ranks in (1, 8))
    assert shared < alone


@pytest.mark.parametrize(
    ("version", "products"), [("0.23", ["qkv", "output", "index_q", "index_k"]), ("0.24", ["qkv", "output"])]
)
def test_one_product_has_the_inputs_of_heads_and_indexer(version: str, products: list[str]) -> None:
    """MiniMax-M3 over eight ranks: 8 query heads, a key, a value, an index query and the index key, of 128 each."""
    shape = make_shape(
        "b200-sxm-180gb", "minimax-m3", engine="vllm", version=version, tensor_parallel_size=8, quantization="nvfp4"
    )
    stage = stage_of(shape)
    (sparse,) = (each for each in stage.attentions if each.layers.indexer is not None)

    launched = {
        call.gemm.name: call.gemm.out_features for call in _attention_calls(stage, sparse) if call.gemm is not None
    }

    assert list(launched) == products
    width = launched["qkv"] + launched.get("index_q", 0) + launched.get("index_k", 0)
    assert width == (8 + 1 + 1 + 1 + 1) * 128
