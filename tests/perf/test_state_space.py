"""Layers of Mamba-2: a scan over prompts and states that decode, as rooflines."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.perf.efficiency import attention_efficiency
from simserve.perf.linear_attention import mamba_parts, mamba_state_seconds, scan_bytes, scan_flops
from simserve.perf.memory import plan_memory, with_room_for_states
from simserve.perf.shape import ReplicaShape
from simserve.perf.stage import stage_of, stage_parts
from simserve.perf.tables import price
from simserve.perf.traffic import layer_flops
from simserve.profiles.catalog import load_model
from simserve.profiles.state_blocks import Mamba2
from tests.perf.shapes import make_shape

NANO = "nemotron-3-nano-30b-a3b"


def mamba_of(name: str = NANO) -> Mamba2:
    """Return the Mamba-2 layers of a catalogue model."""
    mamba = load_model(name).mamba
    assert mamba is not None
    return mamba


def make_nano(**fields: int) -> ReplicaShape:
    """Return Nemotron 3 Nano on an H100."""
    return make_shape(model=NANO, max_model_len=8192, **fields)


def test_a_token_of_a_prompt_counts_scores_values_and_states() -> None:
    """64 heads of 64, states of 128, 8 groups, chunks of 128: by hand."""
    scores = 2 * 8 * 128 * 128
    values = 2 * 64 * 64 * 128
    states = 2 * (2 * 64 * 64 * 128)

    assert scan_flops(mamba_of()) == scores + values + states
    assert scan_bytes(mamba_of()) == 2 * (6144 + 4096) * 2 + 4 * 4 * 64 * 64 * 128 / 128


def test_the_scan_takes_the_longer_of_arithmetic_and_bytes() -> None:
    """On an H100 the bytes: 106 KB a token are 38 ns at 2.8 TB/s, 3.4 MFLOP less than half of that."""
    machine = make_nano().machine
    tokens = np.array([8192.0, 16384.0])

    with_scan, without = (
        mamba_parts(mamba_of(), machine, tokens, 1, has_prompts=has_prompts).sum(axis=0)
        for has_prompts in (True, False)
    )

    a_token = float(np.diff(with_scan - without)[0]) / 8192
    assert a_token > scan_flops(mamba_of()) / (machine.peak("bf16") * attention_efficiency(machine))
    assert a_token == pytest.approx(scan_bytes(mamba_of()) / (machine.bandwidth * machine.memory_efficiency), rel=1e-6)


def test_a_decode_step_reads_and_writes_every_state() -> None:
    """2 MiB in FP32, read and written: 4.2 MB a sequence and layer; a rank has its heads alone; drafts write more."""
    machine = make_nano().machine
    one = 2 * 64 * 64 * 128 * 4 / (machine.bandwidth * machine.memory_efficiency)

    alone = mamba_state_seconds(mamba_of(), machine, np.array([0.0, 1.0, 65.0]), 1)

    assert alone[0] == 0
    assert alone[2] - alone[1] == pytest.approx(64 * one)
    assert np.diff(mamba_state_seconds(mamba_of(), machine, np.array([1.0, 2.0]), 8))[0] == pytest.approx(one / 8)
    assert np.diff(mamba_state_seconds(mamba_of(), machine, np.array([1.0, 2.0]), 1, 3))[0] == pytest.approx(2 * one)


def test_states_grow_a_decode_step_and_keys_of_six_layers_its_context() -> None:
    """A sequence costs its states at any context; a token of context 6 layers of 1,024 bytes."""
    times = price(make_nano(max_num_seqs=64), 64).step_times

    states = 23 * 2 * 64 * 64 * 128 * 4 / 3.35e12
    assert times.decode_base[64] - times.decode_base[1] > 63 * states
    assert times.decode_slope[64] < 3 * 6 * 1024 / 3.35e12


def test_seats_leave_room_for_keys_beside_their_states() -> None:
    """47.7 MB a sequence: the default seats are cut to what the memory holds, and every seat's state is counted.

    One more is for padded sequences.
    """
    shape = with_room_for_states(
        make_shape(model=NANO, max_model_len=8192, engine="sglang", enable_prefix_caching=False)
    )
    plan = plan_memory(shape)

    assert plan.states_bytes == (shape.engine.max_num_seqs + 1) * load_model(NANO).state_bytes(1)
    assert plan.kv_bytes > 0
    assert any("23 layers of Mamba-2" in line for line in plan.arithmetic)


def test_states_without_a_prefix_cache_have_their_share_unless_seats_are_set() -> None:
    """SGLang from 0.5.9 on: 0.9 of what keys and values get (handle_max_mamba_cache); before, those of all seats.

    Qwen3.5-397B in NVFP4 on eight B300 printed 14,003,072 tokens under 0.5.10 (kenzhangwangshu/b300_benchmark).
    """
    eight = {"tensor_parallel_size": 8, "max_model_len": 16384, "gpu_memory_utilization": 0.8332}
    plans = [
        plan_memory(
            with_room_for_states(
                make_shape(
                    *("b300-sxm-270gb", "qwen3.5-397b-a17b"),
                    engine="sglang",
                    version=version,
                    quantization="nvfp4",
                    kv_cache_dtype="fp8",
                    **{"enable_prefix_caching": False, **eight, **seats},
                )
            )
        )
        for version, seats in (("0.5.8", {}), ("0.5.10", {}), ("0.5.10", {"max_num_seqs": 512}))
    ]

    shares = [plan.states_bytes / plan.kv_bytes for plan in plans]
    assert shares[0] < 0.4
    assert shares[1] == pytest.approx(0.9, rel=1e-3)
    assert shares[2] < 0.1
    assert plans[1].kv_bytes / 7680 == pytest.approx(14_003_072, rel=0.03)  # 15 layers of 2 heads x 256 in FP8


def test_a_layer_is_reduced_once_over_the_ranks() -> None:
    """52 layers of one sublayer each: 52 all-reduces, half of those of 52 whole layers."""
    two = make_shape(model=NANO, tensor_parallel_size=2, max_model_len=8192)
    tokens = np.array([1024.0])
    reductions = stage_parts(stage_of(two), tokens)[3]
    whole = make_shape(model="qwen3-30b-a3b", tensor_parallel_size=2, max_model_len=8192)
    of_whole = stage_parts(stage_of(whole), tokens)[3]

    assert reductions[0] / 52 == pytest.approx(of_whole[0] / 96, rel=0.3)


def test_the_result_says_that_the_scan_is_a_roofline() -> None:
    """Fitted curves of other operators do not speak for Mamba-2."""
    priced = price(make_nano(), 64)

    assert priced.operators["state_space"] == priced.fidelity == "roofline"


@pytest.mark.parametrize("name", [NANO, "nemotron-3-super-120b-a12b", "qwen3-30b-a3b", "llama-3.1-8b"])
def test_a_token_passes_every_matrix_of_its_layers(name: str) -> None:
    """Two FLOP for each active parameter but embedding and head; also where a layer mixes tokens or has an MLP."""
    model = load_model(name)
    layers = model.num_active_parameters - 2 * model.num_embedding_parameters

    assert layer_flops(stage_of(make_shape(model=name))) == pytest.approx(2 * layers, rel=1e-3)
