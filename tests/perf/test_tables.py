"""Pricing a deployment: complete, additive, monotone, fast, and sane where figures are known."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest

from simserve.engine.state import StepTimes
from simserve.perf.attention import reads_keys_by_query_head
from simserve.perf.operators import PART_NAMES, PricedDeployment
from simserve.perf.tables import price
from simserve.perf.ubatches import slot_runs
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import resolve
from tests.perf.shapes import make_hardware, make_model, make_shape


def decode_milliseconds(priced: PricedDeployment, sequences: int, context: int) -> float:
    """Return a step that decodes ``sequences`` of ``context`` tokens each."""
    times = priced.step_times
    return 1e3 * (times.decode_base[sequences] + times.decode_slope[sequences] * sequences * context)


def prefill_seconds(times: StepTimes, tokens: int) -> float:
    """Return a step that prefills one prompt."""
    x = min(tokens, len(times.token_seconds) - 1)
    seconds = times.token_seconds[x] + times.token_seconds_beyond * (tokens - x) + times.sequence_seconds[1]
    pairs = tokens * (tokens + 1) / 2
    seconds += times.prefill_request_seconds + times.prefill_pair_seconds * pairs
    return seconds + times.prefill_context_seconds * tokens


@pytest.mark.parametrize(
    ("shape", "sequences", "context", "low", "high"),
    [
        ({}, 1, 100, 6, 8),
        ({}, 64, 1000, 9, 12),
        ({"model": "llama-3.1-70b", "quantization": "fp8", "tensor_parallel_size": 4}, 1, 100, 10, 13),
    ],
)
def test_decode_steps_on_h100_are_where_servers_measure_them(
    shape: dict[str, object], sequences: int, context: int, low: float, high: float
) -> None:
    """Milliseconds of a decode step under vLLM."""
    priced = price(make_shape("h100-sxm-80gb", **shape))  # type: ignore[arg-type]

    assert low < decode_milliseconds(priced, sequences, context) < high


def test_prefill_of_a_long_prompt_reaches_half_the_peak() -> None:
    """8,192 tokens of Llama-3.1-8B are 0.14 PFLOP: 40 to 75 % of 989 TFLOP/s on an H100."""
    priced = price(make_shape())

    flops = 8192 * priced.parts.token_flops + priced.parts.pair_flops * 8192 * 8193 / 2
    achieved = flops / prefill_seconds(priced.step_times, 8192)

    assert 0.40 < achieved / priced.parts.peak_flops < 0.75


def test_parts_sum_to_the_step_times() -> None:
    """To 1e-12, for every array; rows are the five parts."""
    priced = price(make_shape(model="mixtral-8x7b", tensor_parallel_size=2, pipeline_parallel_size=2))
    times, parts = priced.step_times, priced.parts

    for split, whole in (
        (parts.decode, times.decode_base),
        (parts.token, times.token_seconds),
        (parts.sequence, times.sequence_seconds),
        (parts.decode_attention, times.decode_attention_base),
        (parts.token_beyond[:, None], [times.token_seconds_beyond]),
    ):
        assert split.shape == (len(PART_NAMES), len(whole))
        assert np.all(split >= 0)
        assert split.sum(axis=0) == pytest.approx(whole, rel=1e-12, abs=0)


def test_a_step_of_nothing_takes_no_time() -> None:
    """Index 0 of every array."""
    times = price(make_shape()).step_times

    assert times.decode_base[0] == times.token_seconds[0] == times.sequence_seconds[0] == 0.0
    assert times.decode_attention_base[0] == 0.0
    assert len(times.decode_base) == len(times.decode_slope) == make_shape().engine.max_num_seqs + 1


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("stages", [1, 2])
def test_the_line_beyond_the_table_is_the_compute_bound_cost(model: str, stages: int) -> None:
    """A table of 8,192 tokens and one of 32,768 agree on 30,000 tokens to 2 %."""
    shape = make_shape(model=model, tensor_parallel_size=2, pipeline_parallel_size=stages)
    short, long = (price(shape, size).step_times for size in (8192, 32768))

    extrapolated = short.token_seconds[-1] + short.token_seconds_beyond * (30_000 - 8192)

    assert extrapolated == pytest.approx(long.token_seconds[30_000], rel=0.02)


def test_decode_batches_are_padded_to_cuda_graphs() -> None:
    """Between two captured sizes a batch takes the time of the larger, but for its own host time and keys."""
    sizes = {"cuda_graph_sizes": (8, 16), "host_seconds_per_request": 0.0, "host_seconds_per_step": 0.0}
    times = price(make_shape(engine_fields=sizes, max_num_seqs=32)).step_times

    bare = np.array(times.decode_base) - np.array(times.decode_attention_base)
    assert bare[9:17] == pytest.approx(bare[16])
    assert bare[8] < bare[9]
    assert bare[17] > bare[16]


def test_steps_outside_cuda_graphs_wait_for_launches() -> None:
    """At least layers x launch time: decode batches beyond the graphs, and prompts beyond those that cover them."""
    launch, graphs = 1e-3, {"cuda_graph_sizes": (8,), "cuda_graph_max_batch": 8, "host_seconds_per_step": 0.0}
    bare, eager, piecewise = (
        price(make_shape(engine_fields={**graphs, **fields}, max_num_seqs=16), 64).step_times
        for fields in (
            {"eager_seconds_per_layer": 0.0},
            {"eager_seconds_per_layer": launch, "cuda_graph_max_prompt_tokens": 0},
            {"eager_seconds_per_layer": launch, "cuda_graph_max_prompt_tokens": 16},
        )
    )

    least = 32 * launch
    assert eager.decode_base[:9] == bare.decode_base[:9]
    assert bare.decode_base[9] < least <= eager.decode_base[9]
    assert eager.token_seconds[1] == pytest.approx(least)
    assert piecewise.token_seconds[:17] == bare.token_seconds[:17]
    assert piecewise.token_seconds[17] == pytest.approx(least)
    assert np.all(np.diff(eager.decode_base) >= 0)


def test_prompts_on_graphs_in_pieces_are_padded_and_wait_for_attention_alone() -> None:
    """DeepSeek-R1 under TensorRT-LLM on B200: 1.4 ms a layer to launch without pieces, 0.33 for attention with them."""
    engine = {"name": "tensorrt-llm", "version": "1.2"}
    traffic = {"arrivals": {"process": "poisson", "rate": 1}, "prompt_tokens": 9, "output_tokens": 9, "num_requests": 1}
    fp8 = {"quantization": "fp8", "kv_cache_dtype": "fp8", "tensor_parallel_size": 8}
    plain, pieces = (
        price(
            resolve(
                from_mapping(
                    {
                        "name": "pieces",
                        "model": "deepseek-r1",
                        "deployment": {"hardware": "b200-sxm-180gb", "engine": {**engine, **more}, **fp8},
                        "workload": traffic,
                    }
                )
            ).shape,
            1100,
        ).step_times
        for more in ({}, {"piecewise_cuda_graph_max_tokens": 1024})
    )

    assert plain.token_seconds[900] >= 61 * 1.4e-3 > pieces.token_seconds[900]
    assert pieces.token_seconds[900] == pieces.token_seconds[1024] > pieces.token_seconds[768]
    assert pieces.token_seconds[1025] == pytest.approx(plain.token_seconds[1025])
    assert (plain.launch_seconds, pieces.launch_max_tokens) == (0.0, 1024)
    assert pieces.launch_seconds == pytest.approx(61 * 0.33e-3, abs=1e-3)
    assert pieces.decode_base == plain.decode_base


def test_a_batch_between_two_graphs_waits_for_launches_where_it_is_not_padded() -> None:
    """Batches of 1 to 8 and of 16 run on graphs, the latter faster than the nine sequences that have none."""
    fields = {
        "eager_seconds_per_layer": 1e-3,
        "cuda_graph_sizes": (*range(1, 9), 16),
        "cuda_graph_max_prompt_tokens": 0,
    }
    padded, exact = (
        price(make_shape(engine_fields={**fields, "cuda_graph_padding": is_padded}, max_num_seqs=32))
        for is_padded in (True, False)
    )
    padded_base, base = padded.step_times.decode_base, exact.step_times.decode_base

    assert base[:9] == padded_base[:9]
    assert min(base[9:16]) >= 32 * 1e-3
    assert base[16] == pytest.approx(padded_base[16])
    assert max(padded_base[9:17]) < 32 * 1e-3 < base[17]


@pytest.mark.parametrize("quantization", ["none", "fp8"])
def test_compiled_prompts_beyond_the_graphs_are_launched_layer_by_layer(quantization: str) -> None:
    """vLLM 0.24's 32 layers of 0.27 ms, at the pace of a slow host, whatever the format of the weights."""
    host_slowdown = 2.5
    engine = {"name": "vllm", "version": "0.24", "host_slowdown": host_slowdown}
    deployment = {"hardware": "h200-sxm-141gb", "quantization": quantization, "engine": engine}
    traffic = {"arrivals": {"process": "all_at_once"}, "prompt_tokens": 9, "output_tokens": 9, "num_requests": 1}
    mapping = {"name": "prompts", "model": "llama-3.1-8b", "deployment": deployment, "workload": traffic}
    times = price(resolve(from_mapping(mapping)).shape, 1024).step_times

    least = 32 * 0.27e-3 * host_slowdown
    assert times.token_seconds[512] < least
    assert times.token_seconds[513] == pytest.approx(least, rel=0.1)


@pytest.mark.parametrize(
    ("model", "engine", "layers"),
    [
        ("llama-3.1-8b", {"name": "sglang", "version": "0.3.6"}, 32),
        ("llama-3.1-8b", {"name": "sglang", "version": "0.5.9"}, 32),
        ("llama-3.1-8b", {"name": "sglang", "version": "0.5.9", "host_slowdown": 2}, 64),
        ("llama-3.1-8b", {"name": "sglang", "version": "0.5.9", "cuda_graph_padding": False}, 32),
        ("llama-3.1-8b", {"name": "sglang", "version": "0.5.10"}, 0),
        ("qwen3-30b-a3b", {"name": "sglang", "version": "0.5.9"}, 0),
        ("llama-3.1-8b", {"name": "tensorrt-llm", "version": "0.21"}, 0),
        ("llama-3.1-8b", {"name": "tensorrt-llm", "version": "0.21", "cuda_graph_padding": False}, 32),
        ("llama-3.1-8b", {"name": "tensorrt-llm", "version": "1.2"}, 32),
        ("llama-3.1-8b", {"name": "vllm", "version": "0.20"}, 0),
    ],
)
def test_the_host_launches_dense_prompts_without_graphs(model: str, engine: dict[str, Any], layers: int) -> None:
    """0.27 ms a layer at least, which long prompts hide; graphs of prompts take it away, and experts have their own."""
    deployment = {"hardware": "h200-sxm-141gb", "quantization": "fp8", "engine": engine}
    traffic = {"arrivals": {"process": "poisson", "rate": 1}, "prompt_tokens": 9, "output_tokens": 9, "num_requests": 1}
    shape = resolve(
        from_mapping({"name": "eager", "model": model, "deployment": deployment, "workload": traffic})
    ).shape
    launched = shape.engine.eager_prompt_seconds_per_layer or 0.0
    at_once = shape.engine.model_copy(update={"eager_prompt_seconds_per_layer": 0.0})
    times, quick = (price(each, 8192).step_times for each in (shape, dataclasses.replace(shape, engine=at_once)))

    assert launched == pytest.approx(layers * 0.27e-3 / 32)
    if layers:
        assert times.token_seconds[16] - quick.token_seconds[16] > 1e-3
        assert times.token_seconds[8192] == quick.token_seconds[8192]
        assert times.decode_base == quick.decode_base


def test_steps_with_prompts_may_launch_longer_than_decode_steps() -> None:
    """Their own seconds a layer, where the engine has them."""
    graphs = {"cuda_graph_sizes": (), "cuda_graph_max_batch": 0, "cuda_graph_max_prompt_tokens": 0}
    launch = {**graphs, "eager_seconds_per_layer": 1e-3, "host_seconds_per_step": 0.0, "host_seconds_per_request": 0.0}
    usual, longer = (
        price(make_shape(engine_fields={**launch, "eager_prompt_seconds_per_layer": prompts}), 64).step_times
        for prompts in (None, 2e-3)
    )

    assert usual.token_seconds[1] == pytest.approx(32e-3)
    assert longer.token_seconds[1] == pytest.approx(64e-3)
    assert longer.decode_base == usual.decode_base


def test_one_process_works_once_a_step_however_many_gpus_it_drives() -> None:
    """llama.cpp's host time is shared by its stages; vLLM's workers each take theirs."""
    one, all_stages = (
        price(make_shape("rtx-4090-24gb", engine=engine, pipeline_parallel_size=4, engine_fields=host), 64)
        for engine, host in (
            ("llama.cpp", {"host_seconds_per_step": 0.4e-3}),
            ("vllm", {"host_seconds_per_step": 0.4e-3, "host_overlap": 0.0}),
        )
    )
    idle_one, idle_all = (
        price(
            make_shape(
                "rtx-4090-24gb",
                engine=engine,
                pipeline_parallel_size=4,
                engine_fields={"host_seconds_per_step": 0.0, "host_overlap": 0.0},
            ),
            64,
        )
        for engine in ("llama.cpp", "vllm")
    )

    spent = [
        busy.step_times.decode_base[1] - idle.step_times.decode_base[1]
        for busy, idle in ((one, idle_one), (all_stages, idle_all))
    ]
    assert spent == pytest.approx([0.4e-3, 1.6e-3])


def test_products_that_accumulate_in_fp16_follow_its_rate() -> None:
    """llama.cpp's prompts: 0.55 of 330 TFLOP/s on an RTX 4090, but what it accumulates in FP32 at most; 0.55 of 150 on
    an A40, which accumulates in both at one rate."""
    peaks = {
        (gpu, engine): make_shape(gpu, engine=engine).machine.peak("fp16")
        for gpu in ("rtx-4090-24gb", "a40-48gb")
        for engine in ("vllm", "llama.cpp")
    }

    assert peaks["rtx-4090-24gb", "llama.cpp"] == pytest.approx(165.2e12)
    assert peaks["rtx-4090-24gb", "vllm"] == pytest.approx(165.2e12)
    assert peaks["a40-48gb", "llama.cpp"] == pytest.approx(0.55 * peaks["a40-48gb", "vllm"])


def test_decode_attention_draws_what_was_measured_of_a_gpu() -> None:
    """0.87 of an RTX 4090's bandwidth, from its kernel tables; 1.05 of the class's share where none were measured."""
    measured, by_class = (price(make_shape(gpu), 64).step_times.decode_slope[1] for gpu in ("rtx-4090-24gb", "l4-24gb"))

    assert measured == pytest.approx(131072 / (0.87 * 1.008e12))
    assert by_class == pytest.approx(131072 / (1.05 * 0.85 * 300e9))


def test_paged_attention_reads_keys_for_every_query_head_before_ampere() -> None:
    """Four times the keys of Llama-3.1-8B at the memory's bandwidth on a V100S under vLLM; llama.cpp has its own."""
    volta, own = (
        price(make_shape("v100s-32gb", engine=engine, quantization="fp16"), 64).step_times.decode_slope[1]
        for engine in ("vllm", "llama.cpp")
    )

    assert volta == pytest.approx(4 * 131072 / 1.134e12)
    assert own < volta / 2
    old = [reads_keys_by_query_head(make_shape(each)) for each in ("v100s-32gb", "t4-16gb", "a100-sxm-80gb")]
    assert old == [True, True, False]


def test_layers_with_experts_take_longer_to_launch() -> None:
    """Only in a model that has them, and in the weight formats whose experts are launched kernel by kernel."""
    launch = {"eager_seconds_per_layer": 0.0, "eager_seconds_per_expert_layer": 1e-3}
    launch |= {"cuda_graph_max_prompt_tokens": 0, "host_seconds_per_step": 0.0}
    dense, experts, others = (
        price(make_shape(model=model, engine_fields={**launch, "eager_expert_formats": formats}), 64).step_times
        for model, formats in (("llama-3.1-8b", ()), ("qwen3-30b-a3b", ()), ("qwen3-30b-a3b", ("mxfp4",)))
    )

    assert experts.token_seconds[1] == pytest.approx(48 * 1e-3)
    assert others.token_seconds[1] < 0.5 * experts.token_seconds[1]
    assert dense.token_seconds[1] < 32 * 1e-3


def test_a_compiled_engine_launches_experts_beyond_its_graphs_with_prompts_and_without() -> None:
    """A batch one over the largest graph waits for the host, as a real vLLM does (calibration/runs/h200-2026-11-26)."""
    launch = {"eager_seconds_per_expert_layer": 1e-3, "cuda_graph_sizes": (512,), "cuda_graph_max_batch": 512}
    fields = {**launch, "cuda_graph_max_prompt_tokens": 512, "host_seconds_per_step": 0.0}
    times = price(make_shape(model="qwen3-30b-a3b", engine_fields=fields, max_num_seqs=520), 1024).step_times

    assert times.decode_base[512] < 0.04
    assert times.decode_base[513] >= 48 * 1e-3
    assert times.token_seconds[513] - times.token_seconds[512] > 0.015


def test_vllm_launches_experts_slower_than_other_layers_beyond_its_graphs() -> None:
    """600 sequences, 88 more than the largest graph: 0.27 ms a layer, and 0.62 ms more for its experts."""
    steps = {
        model: price(make_shape("b200-sxm-180gb", model, version="0.12", max_num_seqs=600), 1024).step_times
        for model in ("qwen3-30b-a3b", "qwen3-0.6b")
    }

    experts, dense = (float(each.decode_base[600]) for each in steps.values())
    assert experts == pytest.approx(48 * 0.89e-3, rel=0.15)
    assert 28 * 0.27e-3 <= dense < 28 * 0.5e-3
    assert steps["qwen3-30b-a3b"].decode_base[512] < experts / 2


def test_gaps_between_kernels_outside_cuda_graphs_add_to_a_step() -> None:
    """By layer, on prompts however long and decode batches beyond the graphs; experts hide them."""
    graphs = {"cuda_graph_sizes": (8,), "cuda_graph_max_batch": 8, "cuda_graph_max_prompt_tokens": 0}
    (bare, gaps), (bare_experts, experts) = (
        [
            price(
                make_shape(
                    model=model,
                    tensor_parallel_size=2,
                    engine_fields={**graphs, "eager_gap_seconds_per_layer": gap},
                    max_num_seqs=16,
                )
            ).step_times
            for gap in (0.0, 1e-4)
        ]
        for model in ("llama-3.1-8b", "qwen3-30b-a3b")
    )

    for tokens in (16, 8000):
        assert gaps.token_seconds[tokens] - bare.token_seconds[tokens] == pytest.approx(32e-4)
    assert gaps.decode_base[8] == bare.decode_base[8]
    assert gaps.decode_base[16] - bare.decode_base[16] == pytest.approx(32e-4)
    assert experts == bare_experts


def test_old_kernels_take_longer_for_a_key_of_eight_bits() -> None:
    """vLLM before 0.19: half as long again; keys of 16 bits as ever."""
    slopes = {
        (version, kv): price(make_shape(version=version, kv_cache_dtype=kv)).step_times.decode_slope[8]
        for version in ("0.18", "0.19")
        for kv in ("fp8", "auto")
    }

    assert slopes["0.18", "fp8"] == pytest.approx(1.5 * slopes["0.19", "fp8"])
    assert slopes["0.18", "auto"] == slopes["0.19", "auto"]


def test_compiled_norms_round_activations_themselves() -> None:
    """What is left is the input of the output projection; scales a block have a kernel of their own."""
    both = ({"fuses_activation_quantisation": flag} for flag in (False, True))
    apart, fused = (price(make_shape(quantization="fp8", engine_fields=fields)).step_times for fields in both)
    quantisation = make_hardware().activation_quantisation
    assert quantisation is not None

    least = 3 * 32 * quantisation.start_latency
    assert least < apart.token_seconds[1] - fused.token_seconds[1] < 1.1 * least
    blocks = make_model(checkpoints=[{"format": "fp8", "fp8_scales": "block", "source": "a test"}])
    both = ({"fuses_activation_quantisation": flag} for flag in (False, True))
    one, other = (price(make_shape(model=blocks, quantization="fp8", engine_fields=fields)) for fields in both)
    assert one.step_times == other.step_times


def test_asynchronous_scheduling_hides_host_time_behind_the_gpu() -> None:
    """Host time shows in full without overlap, by its exposed share with it, in full if it is longer."""
    hosts = {"host_seconds_per_request": 0.0, "cuda_graph_sizes": ()}
    bare, seen, hidden, longer = (
        price(make_shape(engine_fields={**hosts, "host_seconds_per_step": host, "host_overlap": share}), 64)
        for host, share in ((0.0, 0.0), (1e-3, 0.0), (1e-3, 0.9), (1.0, 1.0))
    )

    base = bare.step_times.decode_base[1]
    assert seen.step_times.decode_base[1] - base == pytest.approx(1e-3)
    assert hidden.step_times.decode_base[1] - base == pytest.approx(1e-4)
    assert longer.step_times.decode_base[1] == pytest.approx(1.0)
    assert longer.step_times.token_seconds[1] == pytest.approx(1.0)


def test_a_lone_request_passes_every_pipeline_stage() -> None:
    """Two stages of TP 1 take a single request as long as one stage of all layers, and a transfer."""
    whole, piped = (price(make_shape(pipeline_parallel_size=stages), 64) for stages in (1, 2))

    assert decode_milliseconds(piped, 1, 1000) == pytest.approx(decode_milliseconds(whole, 1, 1000), rel=0.03)
    assert piped.step_times.prefill_pair_seconds == whole.step_times.prefill_pair_seconds


def test_pipeline_groups_share_the_reading_of_contexts() -> None:
    """With both groups filled, each stage reads half the contexts while the other works on its own."""
    whole, piped = (price(make_shape(pipeline_parallel_size=stages), 64).step_times for stages in (1, 2))

    assert piped.decode_slope[1] == pytest.approx(whole.decode_slope[1])
    assert piped.decode_slope[64] == pytest.approx(whole.decode_slope[64] / 2)


def test_flops_and_bytes_follow_the_architecture() -> None:
    """Llama-3.1-8B: 2 FLOP a linear parameter, 4 x heads x head_dim a pair, 16 GB of weights a step."""
    shape = make_shape(tensor_parallel_size=2)
    parts = price(shape, 64).parts

    head = 128256 * 4096
    assert parts.token_flops == 2 * shape.model.num_linear_parameters
    assert parts.sequence_flops == 2 * head
    assert parts.pair_flops == 4 * 32 * 128 * 32
    assert parts.kv_bytes_per_token == 131072
    assert parts.weight_bytes[0] == 0
    assert parts.weight_bytes[1:] == pytest.approx(2 * (shape.model.num_linear_parameters + head))
    assert parts.peak_flops == 2 * 989.4e12 or parts.peak_flops == pytest.approx(2 * 989e12, rel=1e-3)


def test_experts_are_read_as_they_are_visited() -> None:
    """Mixtral reads 2 of 8 experts for one token and all for many."""
    shape = make_shape(model="mixtral-8x7b", tensor_parallel_size=2)
    read = price(shape, 8192).parts.weight_bytes

    assert read[-1] > 3 * read[1]
    assert read[-1] == pytest.approx(2 * (shape.model.num_parameters - 32000 * 4096), rel=1e-3)


def test_layers_with_biases_take_longer_to_launch() -> None:
    """vLLM of 2023 launches BLOOM's layers one by one: 0.45 ms each on an H100 node, Llama's 0.36."""

    def launched(model: str) -> float:
        shape = make_shape("h100-sxm-80gb", model, version="0.2.1", tensor_parallel_size=8, quantization="none")
        engine = shape.engine
        step = price(shape, 64).step_times.decode_base[1]
        return (step - engine.host_seconds_per_step - engine.host_seconds_per_request) / shape.model.num_hidden_layers

    assert launched("bloom-176b") / launched("llama-2-70b") == pytest.approx(1.25, rel=0.02)


def test_norms_of_queries_and_keys_are_launched_too() -> None:
    """Without graphs a layer of Qwen3 takes the host a fifth longer than one of Llama, which has none of them."""

    def launched(model: str) -> float:
        launch = {"eager_seconds_per_layer": 1e-3, "cuda_graph_max_batch": 0, "host_seconds_per_step": 0.0}
        shape = make_shape(model=model, engine_fields={**launch, "host_seconds_per_request": 0.0})
        return float(price(shape, 4).step_times.decode_base[1]) / shape.model.num_hidden_layers

    assert launched("llama-3.1-8b") == pytest.approx(1e-3)
    assert launched("qwen3-8b") == pytest.approx(1.2e-3)


def test_an_engines_own_build_of_the_experts_kernels_computes_faster() -> None:
    """TensorRT-LLM's Triton: steps of many sequences are shorter; FP8 experts have other kernels."""

    def step(speed: float, quantization: str) -> float:
        shape = make_shape("h200-sxm-141gb", "gpt-oss-120b", engine="tensorrt-llm", quantization=quantization)
        engine = shape.engine.model_copy(update={"expert_speed": {"mxfp4": speed}})
        return float(price(dataclasses.replace(shape, engine=engine)).step_times.decode_base[64])

    assert make_shape(engine="tensorrt-llm").engine.expert_speed == {"mxfp4": 1.25}
    assert step(1.25, "mxfp4") < 0.97 * step(1.0, "mxfp4")
    assert step(1.25, "fp8") == step(1.0, "fp8")


def test_ranks_wait_for_the_slowest_host_to_launch_experts() -> None:
    """0.16 of the time a layer for each doubling; one rank waits for nobody."""
    alone, four = (
        make_shape("h200-sxm-141gb", "gpt-oss-120b", engine="tensorrt-llm", tensor_parallel_size=ranks).engine
        for ranks in (1, 4)
    )

    assert four.eager_seconds_per_expert_layer == pytest.approx(1.32 * alone.eager_seconds_per_expert_layer)


def test_experts_in_fp8_computed_slower_before_hoppers_kernels() -> None:
    """TensorRT-LLM 0.9: prompts of Mixtral take longer than under 0.14; in 16 bit the kernels are the same."""

    def prompt(version: str, quantization: str) -> float:
        shape = make_shape("h100-sxm-80gb", "mixtral-8x7b", engine="tensorrt-llm", version=version)
        shape = dataclasses.replace(shape, quantization=quantization, tensor_parallel_size=2)
        return prefill_seconds(price(shape).step_times, 2048)

    assert prompt("0.9", "fp8") > 1.3 * prompt("0.14", "fp8")
    assert prompt("0.9", "none") == pytest.approx(prompt("0.14", "none"), rel=0.05)


def _launched_layer(model: str, engine: str, version: str, quantization: str) -> float:
    """Return the seconds of a layer of a step of one sequence whose kernels are launched one by one, slowly."""
    launch = {"eager_seconds_per_layer": 0.1, "host_seconds_per_step": 0.0, "host_seconds_per_request": 0.0}
    fields = {**launch, "cuda_graph_sizes": (), "cuda_graph_max_batch": 0, "cuda_graph_max_prompt_tokens": 0}
    shape = make_shape(
        "h200-sxm-141gb",
        model,
        engine=engine,
        version=version,
        quantization=quantization,
        tensor_parallel_size=8,
        engine_fields={**fields, "eager_gap_seconds_per_layer": 0.0},
    )
    return float(price(shape, 64).step_times.decode_base[1]) / shape.model.num_hidden_layers


@pytest.mark.parametrize(
    ("model", "mode", "layers"),
    [
        ("qwen3-30b-a3b", "PIECEWISE", 48),  # vLLM pull request 25444: 16.2 ms a step of 10 requests on an H100
        ("qwen3-30b-a3b", None, 0),
        ("llama-4-maverick", None, 48),  # attention by chunks is never captured (pull request 26034)
        ("llama-4-maverick", "FULL", 0),
    ],
)
def test_the_host_launches_attention_between_piecewise_graphs(model: str, mode: str | None, layers: int) -> None:
    """0.33 ms for each layer that attends in a decode step, which a large batch hides."""
    engine = {"name": "vllm", "version": "0.11", "max_num_seqs": 512, "cudagraph_mode": mode}
    deployment = {"hardware": "h200-sxm-141gb", "tensor_parallel_size": 8, "engine": engine}
    traffic = {"arrivals": {"process": "all_at_once"}, "prompt_tokens": 9, "output_tokens": 9, "num_requests": 1}
    mapping = {"name": "pieces", "model": model, "deployment": deployment, "workload": traffic}
    base = price(resolve(from_mapping(mapping)).shape, 1024).step_times.decode_base

    least = 48 * 0.33e-3
    assert (base[1] >= least) == (layers == 48)
    assert base[1] < least + 2e-3


@pytest.mark.parametrize(
    ("engine", "layers"),
    [
        ({"version": "0.11"}, 32),
        ({"version": "0.33"}, 32),
        ({"version": "0.10.2"}, 0),  # whose times were learnt with piecewise graphs
        ({"version": "0.33", "cudagraph_mode": "FULL"}, 0),
        ({"version": "0.33", "cudagraph_mode": "FULL_DECODE_ONLY"}, 0),
        ({"version": "0.33", "enforce_eager": True}, 0),
        ({"version": "0.33", "host_slowdown": 2}, 64),
        ({"name": "sglang", "version": "0.5.12"}, 0),
    ],
)
def test_the_host_launches_attention_between_graphs_of_prompts(engine: dict[str, Any], layers: int) -> None:
    """0.33 ms for each layer of a step with prompts, up to the largest captured one, and what prepares the step."""
    deployment = {"hardware": "h100-sxm-80gb", "engine": {"name": "vllm", **engine}}
    traffic = {"arrivals": {"process": "poisson", "rate": 1}, "prompt_tokens": 9, "output_tokens": 9, "num_requests": 1}
    mapping = {"name": "pieces", "model": "llama-3.1-8b", "deployment": deployment, "workload": traffic}
    times = price(resolve(from_mapping(mapping)).shape, 1024).step_times

    assert times.launch_seconds == pytest.approx(layers * 0.33e-3, abs=1e-3)
    assert (times.launch_seconds > 0.0) == (layers > 0)
    if layers:
        assert times.launch_max_tokens == 512


@pytest.mark.parametrize(
    ("deployment", "layers"),
    [
        ({"pipeline_parallel_size": 2}, 48),
        ({"tensor_parallel_size": 2}, 48),
        ({"data_parallel_size": 2, "enable_expert_parallel": True}, 0),
    ],
)
def test_the_host_launches_prompts_of_all_stages_but_not_of_ranks(deployment: dict[str, Any], layers: int) -> None:
    """Two stages of 24 layers are launched one after the other; ranks in lockstep are left out."""
    engine = {"name": "vllm", "version": "0.33"}
    asked = {"hardware": "h100-sxm-80gb", "engine": engine, **deployment}
    traffic = {"arrivals": {"process": "poisson", "rate": 1}, "prompt_tokens": 9, "output_tokens": 9, "num_requests": 1}
    mapping = {"name": "pieces", "model": "qwen3-30b-a3b", "deployment": asked, "workload": traffic}
    times = price(resolve(from_mapping(mapping)).shape, 1024).step_times

    assert times.launch_seconds == pytest.approx(layers * 0.33e-3, abs=2e-3)
    assert (times.launch_seconds > 0.0) == (layers > 0)


def test_the_host_launches_linear_attention_of_prompts_too() -> None:
    """Twelve layers of attention between graphs, and 36 of linear attention, each with its own time."""
    engine = {"name": "vllm", "version": "0.33"}
    asked = {"hardware": "h200-sxm-141gb", "tensor_parallel_size": 2, "engine": engine}
    traffic = {"arrivals": {"process": "poisson", "rate": 1}, "prompt_tokens": 9, "output_tokens": 9, "num_requests": 1}
    mapping = {"name": "pieces", "model": "qwen3-next-80b-a3b", "deployment": asked, "workload": traffic}
    shape = resolve(from_mapping(mapping)).shape
    linear = 36 * shape.engine.eager_seconds_per_linear_layer

    assert linear > 3e-3
    assert price(shape, 1024).step_times.launch_seconds == pytest.approx(12 * 0.33e-3 + linear, abs=2e-3)


def test_sglang_launches_prompts_of_compressed_attention_layer_by_layer() -> None:
    """43 layers x 2.5 ms, which long prompts hide; decode steps are in graphs.

    One client's prompts of 1 to 8,192 tokens in SGLang's cookbook: 178 ms on four H200, 227 and 191 on B200 and B300.
    """
    shape = make_shape("b200-sxm-180gb", "deepseek-v4-flash", engine="sglang", version="0.5.15", quantization="mxfp4")
    times = price(shape).step_times

    assert times.token_seconds[64] == pytest.approx(43 * 2.5e-3, rel=0.1)
    assert times.token_seconds[16384] > 2 * times.token_seconds[64]
    assert times.decode_base[64] < 0.03


def test_vllm_launches_prompts_of_compressed_attention_beyond_its_graphs() -> None:
    """From 0.24 on without a compiler: 512 tokens have a graph, 513 wait for 43 layers x 2.5 ms."""
    shape = make_shape(
        "h200-sxm-141gb", "deepseek-v4-flash", version="0.25", tensor_parallel_size=8, quantization="mxfp4"
    )
    times = price(shape).step_times

    assert times.token_seconds[512] < 0.5 * times.token_seconds[513]
    assert times.token_seconds[513] == pytest.approx(43 * 2.5e-3, rel=0.1)


def test_inputs_rounded_by_blocks_are_launched_too() -> None:
    """One kernel more for each of a layer's four products; by token or tensor, as Llama's in FP8, none that counts."""
    wide, narrow = (_launched_layer("llama-3.1-70b", "vllm", "0.12", each) for each in ("none", "fp8"))
    by_blocks = _launched_layer("qwen3-32b", "vllm", "0.12", "fp8") / _launched_layer(
        "qwen3-32b", "vllm", "0.12", "none"
    )

    assert narrow / wide == pytest.approx(1.0, rel=1e-3)
    assert by_blocks == pytest.approx(16 / 12, rel=1e-3)


def test_launches_of_latent_attention_and_of_experts_in_one_operator_are_counted() -> None:
    """DeepSeek-V3 under TensorRT-LLM 0.17 in FP8, kernels a layer beyond Llama's ten.

    5 of latent attention, 6 roundings; in 58 of 61 layers 9 of router, experts and shared experts, less the MLP.
    """
    layer = _launched_layer("deepseek-v3", "tensorrt-llm", "0.17", "fp8")

    assert layer == pytest.approx(0.1 * (1 + (5 + 6 + 9 * 58 / 61) / 10), rel=1e-3)


def test_tensorrt_llm_launches_latent_attention_at_a_pace_between_two_laboratories() -> None:
    """DeepSeek-R1 on eight B200, 1,024 prompt tokens: 61 layers x 1.4 ms, between the 64 and 150 ms of two hosts."""
    shape = make_shape(
        "b200-sxm-180gb",
        "deepseek-r1",
        engine="tensorrt-llm",
        version="1.2",
        tensor_parallel_size=8,
        quantization="fp8",
    )

    seconds = price(shape).step_times.token_seconds[1024]

    assert 61 * 1.4e-3 <= seconds < 61 * 1.4e-3 + 20e-3


def runs_of_a_loop(slots: int, clients: int) -> float:
    """Return in how many runs of consecutive slots a closed loop lies, on average over time.

    Each request gets the slot that has been free for longest, and takes 0.7 to 1.3 s.
    """
    rng = random.Random(slots * 100 + clients)
    freed, ends = [-1.0 - slot for slot in range(slots)], {}
    now = whole = 0.0
    for _ in range(clients):
        ends[min(set(range(slots)) - set(ends), key=freed.__getitem__)] = rng.uniform(0.7, 1.3)
    for _ in range(4000):
        slot = min(ends, key=ends.__getitem__)
        whole += sum(each - 1 not in ends for each in ends) * (ends[slot] - now)
        now = ends.pop(slot)
        freed[slot] = now
        ends[min(set(range(slots)) - set(ends), key=freed.__getitem__)] = now + rng.uniform(0.7, 1.3)
    return whole / now


def test_slots_of_their_own_are_computed_in_runs() -> None:
    """As many on average as a loop of slots has; one where all are taken, or share a buffer."""
    apart, shared = (
        make_shape("rtx-4090", engine="llama.cpp", max_num_seqs=8, max_model_len=4096, kv_unified=unified)
        for unified in (None, True)
    )
    counts = np.arange(1.0, 9.0)

    assert slot_runs(apart, counts) == pytest.approx([runs_of_a_loop(8, int(each)) for each in counts], rel=0.05)
    assert slot_runs(shared, counts).tolist() == [1.0] * 8


@pytest.mark.parametrize("slots", [8, 64])
def test_slots_of_answers_of_one_length_stay_in_order(slots: int) -> None:
    """Requests end in the order in which they began, so that the busy slots follow one another in a circle."""
    in_order = {"equal_answers": True}
    shape = make_shape("rtx-4090", engine="llama.cpp", max_num_seqs=slots, max_model_len=4096, engine_fields=in_order)
    counts = np.arange(1.0, slots + 1.0)
    circles = [np.mean([slot + num > slots for slot in range(slots)]) for num in range(1, slots)]

    assert slot_runs(shape, counts) == pytest.approx([1.0 + each for each in circles] + [1.0])


def test_slots_of_like_prompts_stay_side_by_side() -> None:
    """Each takes the slot that one of them has left, so that the first n are busy (llama.cpp, get_available_slot)."""
    alike = make_shape("rtx-4090", engine="llama.cpp", max_num_seqs=8, max_model_len=4096, similar_prompts=True)

    assert slot_runs(alike, np.arange(1.0, 9.0)).tolist() == [1.0] * 8


def test_each_further_request_of_a_step_takes_the_host_so_long() -> None:
    """The first is free of it: n requests take n - 1 times as long."""
    times = (0.0, 1e-3)
    fields = ({"host_seconds_per_further_request": each, "host_overlap": 0.0} for each in times)
    plain, slow = (price(make_shape(engine_fields=each)).step_times for each in fields)

    waits = np.asarray(slow.decode_base[:9]) - np.asarray(plain.decode_base[:9])
    assert waits[1:] == pytest.approx(1e-3 * np.arange(8.0))


def test_a_half_full_llama_server_reads_its_weights_for_each_run() -> None:
    """Decode steps of 4 of 8 slots take 2.5 times the weights; one request, and eight, are one batch either way."""
    own = {"quantization": "gguf-q8_0", "max_num_seqs": 8, "max_model_len": 4096}
    apart, shared, old = (
        price(make_shape("rtx-4090", engine="llama.cpp", **own, **more)).step_times  # type: ignore[arg-type]
        for more in ({}, {"kv_unified": True}, {"version": "b4000"})
    )

    assert apart.decode_base[1] == shared.decode_base[1]
    assert apart.decode_base[8] == pytest.approx(shared.decode_base[8], rel=1e-9)
    assert apart.decode_base[4] / shared.decode_base[4] == pytest.approx(2.5, rel=0.1)
    assert shared.decode_base == old.decode_base
    assert apart.decode_attention_base[4] - shared.decode_attention_base[4] > shared.decode_base[1]
