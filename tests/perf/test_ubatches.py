"""Micro-batches of llama.cpp: a step costs what its runs of all kernels cost, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.perf.shape import ReplicaShape
from simserve.perf.tables import price
from simserve.perf.ubatches import most_apart, runs_of, slot_runs
from simserve.scenario.resolve import resolve
from tests.agreement import assert_agrees
from tests.builders import make_specs
from tests.fuzzing import examples
from tests.perf.shapes import make_shape
from tests.scenario.builders import make_scenario

SPARK = {"gpt-oss-20b": "mxfp4", "gpt-oss-120b": "mxfp4", "qwen3-30b-a3b": "gguf-q8_0", "qwen2.5-7b": "gguf-q8_0"}
SHARED = {"kv_unified": True, "max_num_seqs": 8, "max_model_len": 4096}


def seconds_of_tokens(hardware: str = "rtx-4090-24gb", model: str = "llama-3-8b", **options: Any) -> list[float]:
    """Return the table of steps with prompts, without what the host takes a step."""
    shape = make_shape(hardware, model, engine="llama.cpp", engine_fields={"host_seconds_per_step": 0.0}, **options)
    return price(shape, 4096).step_times.token_seconds


@settings(max_examples=examples(20), deadline=None)
@given(
    tokens=st.integers(1, 4096),
    size=st.sampled_from([1, 16, 500, 512, 2048]),
    model=st.sampled_from(["llama-3-8b", "gpt-oss-20b", "qwen3-30b-a3b"]),
)
def test_a_step_costs_the_sum_of_its_micro_batches(tokens: int, size: int, model: str) -> None:
    """As many full ones as fit, and one of the rest, whatever the step."""
    seconds = seconds_of_tokens("gb10-128gb", model, quantization=SPARK.get(model, "gguf-q8_0"), ubatch_size=size)
    full, rest = divmod(tokens, min(size, 2048))

    assert seconds[tokens] == pytest.approx(full * seconds[min(size, 2048)] + seconds[rest], rel=1e-9)


@settings(max_examples=examples(50), deadline=None)
@given(
    tokens=st.lists(st.integers(1, 5000), min_size=1, max_size=30),
    size=st.one_of(st.none(), st.integers(1, 3000)),
    num_apart=st.integers(0, 64),
)
def test_runs_lose_no_token_and_none_is_too_long(tokens: list[int], size: int | None, num_apart: int) -> None:
    """Their lengths add up to the step, none is beyond the size; what is computed apart makes none of its own."""
    steps = np.array(tokens, dtype=np.float64)
    runs = runs_of(steps, size, num_apart)

    assert runs.total(runs.lengths) == pytest.approx(steps)
    assert size is None or runs.lengths.max() <= size
    assert size is None or np.all(runs.num_full <= np.maximum(steps - num_apart, 0.0) / size)
    assert runs.lengths.min() >= 1
    bound = np.minimum(steps, np.inf if size is None else size + num_apart)
    assert np.all(runs.longest(runs.lengths) <= bound * (1 + 1e-12))


def test_every_micro_batch_reads_all_weights() -> None:
    """Llama-3-8B in Q8_0: 6.98 B weights of layers at 8.5 bits are 7.42 GB, twice for 513 tokens; the head's once."""
    priced = price(make_shape("rtx-4090-24gb", "llama-3-8b", engine="llama.cpp", quantization="gguf-q8_0"))
    layers, head = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336), 128256 * 4096

    assert priced.parts.weight_bytes[512] == pytest.approx((layers + head) * 8.5 / 8)
    assert priced.parts.weight_bytes[513] == pytest.approx((2 * layers + head) * 8.5 / 8)
    assert 1e-9 * layers * 8.5 / 8 == pytest.approx(7.42, abs=0.01)


def test_a_token_beyond_a_micro_batch_costs_a_run_of_its_own() -> None:
    """513 tokens take as long as 512 and one; with --ubatch-size 1024 a further tile of rows."""
    usual, wide = (seconds_of_tokens(quantization="fp16", ubatch_size=size) for size in (512, 1024))

    assert usual[513] == pytest.approx(usual[512] + usual[1], rel=1e-9)
    assert usual[1] > 0.15 * usual[512]
    assert wide[513] < wide[512] + 0.5 * usual[1]


@pytest.mark.parametrize(
    ("model", "half", "whole"),
    [
        ("gpt-oss-20b", 0.273, 0.517),
        ("gpt-oss-120b", 0.585, 1.026),
        ("qwen3-30b-a3b", 0.355, 0.614),
        ("qwen2.5-7b", 0.424, 0.880),
    ],
)
def test_two_halves_cost_as_much_more_than_one_micro_batch_as_measured(model: str, half: float, whole: float) -> None:
    """llama.cpp's benches/dgx-spark.md (b6918): 1,024 tokens of two prompts and 2,048 of four, each one micro-batch.

    Experts are read again: 14 and 16 % longer of two models, 6 % of one with few, nothing of a dense one.
    """
    deployment = {"version": "b6918", "quantization": SPARK[model], "max_num_seqs": 32, "max_model_len": 8448}
    times = [
        price(make_shape("gb10-128gb", model, engine="llama.cpp", ubatch_size=size, **deployment)).step_times
        for size in (1024, 2048)
    ]
    halves, one = (
        each.token_seconds[2048]
        + 4 * (each.prefill_request_seconds + 512 * each.prefill_context_seconds)
        + 4 * 512 * 513 / 2 * each.prefill_pair_seconds
        for each in times
    )

    assert halves / one == pytest.approx(2 * half / whole, rel=0.1)


def test_decodes_beyond_a_micro_batch_read_the_weights_again() -> None:
    """Eight slots in micro-batches of four: two runs, nearly twice the weights; of eight: one."""
    four, eight = (
        price(make_shape("rtx-4090-24gb", engine="llama.cpp", ubatch_size=size, **SHARED)) for size in (4, 8)
    )

    assert four.parts.decode[0, 4] == eight.parts.decode[0, 4]
    assert four.parts.decode[0, 8] == pytest.approx(2 * four.parts.decode[0, 4], rel=0.01)
    assert four.step_times.decode_base[8] > 1.8 * eight.step_times.decode_base[8]


def test_decodes_that_are_computed_apart_fill_no_micro_batch_of_prompts() -> None:
    """512 tokens of a prompt and 7 decodes: with one buffer 512 and 7; else one run of prompts beside the decodes'."""
    options = {"max_num_seqs": 8, "max_model_len": 4096, "quantization": "gguf-q8_0"}
    shared, apart = (seconds_of_tokens(kv_unified=unified, **options) for unified in (True, False))

    assert shared[519] == pytest.approx(shared[512] + shared[7], rel=1e-9)
    assert apart[512] < apart[519] < 1.1 * apart[512]
    assert apart[512] == shared[512]


def test_models_with_states_compute_decodes_apart_from_prompts() -> None:
    """Whatever the buffer: equal shares of all slots since pull request 21224, of consecutive ones before."""

    def of(model: str, version: str) -> Any:
        return make_shape("gb10-128gb", model, engine="llama.cpp", version=version, quantization="gguf-q8_0", **SHARED)

    plain, new, old = of("qwen3-30b-a3b", "b8651"), of("qwen3.5-35b-a3b", "b8651"), of("qwen3.5-35b-a3b", "b8350")
    beside = [price(each).step_times.decode_attention_base[1] for each in (plain, new, old)]
    alone = price(new).step_times.decode_base[1]

    assert beside[0] < 0.1 * alone
    assert beside[1] == pytest.approx(alone, rel=0.3)
    assert beside[2] == pytest.approx(beside[1], rel=1e-9)
    assert slot_runs(new, np.array([4.0])).tolist() == [1.0]
    assert slot_runs(old, np.array([4.0])).tolist() == [2.5]


def test_checkpoints_lie_a_micro_batch_before_the_end() -> None:
    """Builds from b8350 on: 4 tokens more than a micro-batch, and 4."""
    server = "deployment.engine={name: llama.cpp, version: b8350, max_num_seqs: 2, max_model_len: 4096"
    found = [
        resolve(make_scenario(["model=gpt-oss-20b", "deployment.quantization=mxfp4", f"{server}{size}}}"])).engine
        for size in ("", ", ubatch_size: 128")
    ]

    assert [each.checkpoint_tokens for each in found] == [516, 132]
    assert [each.last_checkpoint_tokens for each in found] == [4, 4]


def test_kernel_and_walker_take_as_long_for_steps_of_several_micro_batches() -> None:
    """Chunks with checkpoints, decodes that fill micro-batches: gpt-oss under llama.cpp, 8 slots in one buffer."""
    server = "deployment.engine={name: llama.cpp, max_num_seqs: 8, max_model_len: 16384, kv_unified: true}"
    resolved = resolve(make_scenario(["model=gpt-oss-20b", "deployment.quantization=mxfp4", server]))
    prompts, outputs = [700, 1500, 90, 1024, 513, 4, 2600, 512], [20, 3, 40, 7, 1, 30, 5, 12]
    specs = make_specs([0.05 * number for number in range(16)], 2 * prompts, 2 * outputs)

    replayed = assert_agrees(resolved.engine, price(resolved.shape).step_times, specs)

    assert replayed.records.output_tokens.sum() == specs.output_tokens.sum()


def test_a_step_with_prompts_has_a_slot_that_does_not_decode() -> None:
    """Seven of eight slots decode beside a prompt at most, where each slot has a buffer of its own."""
    shared, own = (
        make_shape(
            "rtx-4090-24gb", "llama-3-8b", engine="llama.cpp", max_num_seqs=8, max_model_len=4096, kv_unified=each
        )
        for each in (True, False)
    )

    assert (most_apart(shared), most_apart(own)) == (0, 7)


def _split(stages: int, *more: str) -> ReplicaShape:
    """Return llama.cpp with layers over so many GPUs and one slot."""
    words = ["model=llama-2-7b", "deployment.quantization=fp16", "deployment.hardware=a100-sxm-80gb"]
    engine = "deployment.engine={name: llama.cpp, version: b8651, max_num_seqs: 1, max_model_len: 16384}"
    return resolve(make_scenario([*words, engine, f"deployment.pipeline_parallel_size={stages}", *more])).shape


def test_the_micro_batches_of_a_lone_prompt_follow_each_other_over_the_gpus() -> None:
    """Across batches too, which nobody waits for; beside another slot's tokens a batch waits for the one before."""
    assert _split(2).overlaps_chunks
    assert _split(2).max_chunk_tokens == 2 * 512
    assert not _split(1).overlaps_chunks
    assert _split(1).max_chunk_tokens == 2048
    together = _split(2, "deployment.engine.max_num_seqs=2")
    assert not together.overlaps_chunks
    assert together.max_chunk_tokens == 2048


def test_the_way_of_the_last_micro_batch_through_the_stages_counts_once() -> None:
    """Four of a prompt over four GPUs take seven stage times, which is what 7 x 512 tokens are priced for."""
    times = price(_split(4)).step_times

    full = times.token_seconds[4 * 512]
    last = len(times.token_seconds) - 1
    seven = times.token_seconds[last] + times.token_seconds_beyond * (7 * 512 - last)
    assert seven == pytest.approx(full * 7 / 4, rel=0.02)


def test_a_micro_batch_that_enters_behind_others_is_a_whole_one() -> None:
    """Two over two GPUs take three stage times: no rest of half of one, whose weights would be dequantised again."""
    times = price(_split(2, "deployment.quantization=gguf-q4_k_m")).step_times

    assert times.token_seconds[3 * 512] == pytest.approx(times.token_seconds[2 * 512] * 3 / 2, rel=0.02)
