"""Pipeline stages: how layers are dealt, and that the slowest stage sets the pace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.errors import InputError
from simserve.perf.collectives import all_reduce_seconds
from simserve.perf.memory import plan_memory
from simserve.perf.pipeline import exposed_head, rounds
from simserve.perf.shape import layers_per_stage
from simserve.perf.stage import transfer_seconds
from simserve.perf.tables import price
from tests.perf.shapes import make_shape


def make_pipeline(partition: tuple[int, ...] | None, stages: int = 2, **changes: Any) -> Any:
    """Return Llama-3.1-70B in pipeline stages on H100."""
    return make_shape(
        model="llama-3.1-70b",
        quantization="fp8",
        pipeline_parallel_size=stages,
        pipeline_layer_partition=partition,
        max_num_seqs=64,
        max_model_len=4096,
        **changes,
    )


@pytest.mark.parametrize(
    ("num_layers", "stages", "expected"),
    [
        (80, 4, (20, 20, 20, 20)),
        (61, 2, (31, 30)),
        (61, 4, (15, 15, 16, 15)),
        (30, 4, (7, 8, 8, 7)),
        (126, 4, (31, 32, 32, 31)),
        (5, 1, (5,)),
    ],
)
def test_layers_are_dealt_as_vllm_deals_them(num_layers: int, stages: int, expected: tuple[int, ...]) -> None:
    """What does not divide goes to the middle: the last stage has the LM head already."""
    assert layers_per_stage(num_layers, stages) == expected


@pytest.mark.parametrize("partition", [(40,), (40, 41), (80, 0), (20, 20, 40)])
def test_a_partition_that_does_not_fit_the_model_is_refused(partition: tuple[int, ...]) -> None:
    """One number a stage, all at least 1, adding up to the layers."""
    with pytest.raises(InputError, match="pipeline_layer_partition"):
        layers_per_stage(80, 2, partition)


def test_the_even_partition_is_the_default() -> None:
    """Every second is the same."""
    assert price(make_pipeline((40, 40))).step_times == price(make_pipeline(None)).step_times


def test_the_slowest_stage_sets_the_pace_of_a_full_pipeline() -> None:
    """60 of 80 layers in one of two stages: a round of many sequences waits for 2 x 60 layers, one sequence for 80.

    The LM head of the short last stage no longer shows, so that the weights of a round take a little less than 1.5.
    """
    even, uneven = (price(make_pipeline(partition)) for partition in (None, (60, 20)))

    assert 1.4 < uneven.parts.decode[0, 64] / even.parts.decode[0, 64] < 1.5
    assert uneven.step_times.decode_base[1] == pytest.approx(even.step_times.decode_base[1], rel=0.05)
    assert uneven.step_times.decode_slope[64] == pytest.approx(1.5 * even.step_times.decode_slope[64])
    assert uneven.step_times.decode_slope[1] == pytest.approx(even.step_times.decode_slope[1])


def test_fewer_layers_in_the_last_stage_hide_the_lm_head() -> None:
    """The head stands behind the last layers: with 41 and 39 it fills what the first stage takes longer."""
    sampling = [price(make_pipeline(partition)).step_times.sequence_seconds[32] for partition in ((41, 39), (39, 41))]

    assert sampling[0] < sampling[1]
    assert exposed_head(np.array([2.0]), np.array([10.0]), (10, 9)) == pytest.approx(0.5)
    assert exposed_head(np.array([2.0]), np.array([10.0]), (10, 5)) == 0.0


@pytest.mark.parametrize("model", ["deepseek-v3", "qwen3-235b-a22b", "llama-3.1-405b"])
@pytest.mark.parametrize(("num_ranks", "apart"), [(8, 0.0), (16, 30e-6)])
def test_ranks_of_two_hosts_reach_an_all_reduce_apart_under_sglang(model: str, num_ranks: int, apart: float) -> None:
    """By a hidden vector of one token; nccl-tests over two nodes of H100 take 37 to 58 us, without that wait."""
    shapes = [
        make_shape("h100-sxm-80gb", model, engine=engine, tensor_parallel_size=num_ranks, quantization="fp8")
        for engine in ("sglang", "tensorrt-llm")
    ]
    message = np.array([shapes[0].model.hidden_size * 2.0])
    links = [replace(shape.tensor_link, curves=None) for shape in shapes]
    sglang, other = (float(all_reduce_seconds(message, num_ranks, link)[0]) for link in links)

    assert sglang - other == pytest.approx(apart)
    assert num_ranks == 8 or 37e-6 < other < 80e-6


def test_rounds_count_groups_or_layers_whichever_take_longer() -> None:
    """In times of the fullest stage."""
    assert rounds(np.array([1.0, 2.0, 3.0]), (20, 20, 20)).tolist() == [3.0, 3.0, 3.0]
    assert rounds(np.array([1.0, 2.0]), (60, 20)).tolist() == pytest.approx([80 / 60, 2.0])


def test_the_fullest_stage_decides_what_fits() -> None:
    """60 of 80 layers of 70 B in FP8 take 53 GB of a GPU, 40 take 36: less is left for the KV cache of each token."""
    even, uneven = (plan_memory(make_pipeline(partition)) for partition in (None, (60, 20)))

    assert uneven.weights_bytes / even.weights_bytes == pytest.approx(1.5, rel=0.03)
    assert uneven.kv_bytes_per_token == 1.5 * even.kv_bytes_per_token
    assert uneven.num_kv_blocks < even.num_kv_blocks


def test_pieces_of_a_prompt_overlap_over_the_stages_of_llama_cpp() -> None:
    """Two pieces of 512 over four cards take 5 stage times of 512, not 4 of 1,024; one piece takes 4 as ever."""
    one, four = (
        price(make_shape("rtx-4090-24gb", "llama-3-8b", engine="llama.cpp", quantization="fp16", **sizes)).step_times
        for sizes in ({}, {"pipeline_parallel_size": 4})
    )

    whole = one.token_seconds[1024] / one.token_seconds[512]
    assert four.token_seconds[4 * 512] == pytest.approx(one.token_seconds[512], rel=0.15)
    assert four.token_seconds[4 * 1024] == pytest.approx(one.token_seconds[1024] * 5 / 8, rel=0.15)
    assert whole == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(("build", "a_layer"), [("b8651", 0.24e-3), ("b8863", 0.0)])
def test_rows_cut_over_gpus_cost_llama_cpp_a_gathering_a_layer(build: str, a_layer: float) -> None:
    """0.08 ms and 0.08 a GPU: the 32 layers of an 8B over 2 take 7.7 ms more than half its weights; tensors do not."""

    def step(**sizes: int) -> tuple[float, float]:
        engine = {"engine": "llama.cpp", "version": build, "quantization": "fp16"}
        priced = price(make_shape("rtx-4090-24gb", "llama-3-8b", **engine, **sizes))
        return priced.step_times.decode_base[1], float(priced.parts.decode[0, 1])

    (alone, weights), (cut, half) = step(), step(tensor_parallel_size=2)

    assert half == pytest.approx(weights / 2, rel=0.1)
    all_reduces = cut - half - (alone - weights) - 32 * a_layer
    assert 0.0 <= all_reduces < 32 * 0.06e-3


def test_engines_that_hand_on_whole_steps_are_not_overlapped() -> None:
    """vLLM's stages pass a step on when it is done."""
    one, two = (
        price(make_shape("h100-sxm-80gb", "llama-3.1-8b", pipeline_parallel_size=size)).step_times for size in (1, 2)
    )

    assert two.token_seconds[2 * 4096] == pytest.approx(one.token_seconds[4096], rel=0.1)


def test_each_rank_hands_its_share_of_a_step_to_the_next_stage() -> None:
    """Two tensor ranks send half of a token's 8,192 B each."""
    tokens = np.array([1e5, 2e5])
    whole, half = (
        np.diff(transfer_seconds(make_shape(tensor_parallel_size=ranks, pipeline_parallel_size=2), tokens))[0]
        for ranks in (1, 2)
    )

    assert half == pytest.approx(whole / 2)
