"""Fits of routed experts find the parameters that made the times."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

from calibration.laboratory.fits.gemm_report import held_out_experts
from calibration.laboratory.fits.moe_fit import ExpertCalls, busiest_rank, fit_moe, joined, moe_rows, predict_experts
from simserve.perf.gemm import GemmDevice
from simserve.perf.moe import ExpertLoad, ExpertShape
from simserve.profiles.kernel_curves import GroupedGemmCurve

DEVICE = GemmDevice(peak=989e12, bandwidth=4.8e12, num_multiprocessors=132)
TRUE = GroupedGemmCurve.model_construct(
    start_latency=20e-6,
    efficiency=0.5,
    loop_overhead=200.0,
    overlap=2.0,
    memory_efficiency=0.8,
    expert_latency=5e-8,
    routed_passes=1.0,
    local_passes=3.0,
    tile_rows=16,
)


def measured(num_experts: int, weight_bits: float) -> tuple[ExpertCalls, pd.DataFrame]:
    """Return layers of one format, timed as `TRUE` says, and the rows they stand in."""
    tokens = np.tile(2.0 ** np.arange(15), 4)
    width = np.repeat([256.0, 512.0, 1024.0, 2048.0], 15)
    pairs = 8.0 * tokens
    load = ExpertLoad(
        pairs=pairs,
        distinct=np.minimum(pairs, num_experts),
        routed=pairs,
        held=np.full(60, float(num_experts)),
        tokens=tokens,
    )
    shape = ExpertShape(
        hidden_size=np.full(60, 4096.0),
        intermediate_size=width,
        up_projections=np.full(60, 2.0),
        weight_bits=weight_bits,
    )
    calls = ExpertCalls(shape=shape, load=load, seconds=np.ones(60))
    timed = dataclasses.replace(calls, seconds=predict_experts(TRUE, calls, DEVICE))
    return timed, pd.DataFrame({"num_experts": np.full(60, num_experts)})


def test_two_formats_tell_the_start_from_what_an_expert_adds() -> None:
    """Joined, 384 and 896 experts give both back."""
    calls = joined([measured(384, 4.125), measured(896, 4.25)])

    curve = fit_moe(calls, DEVICE, 16)

    assert curve.start_latency == pytest.approx(TRUE.start_latency, rel=0.05)
    assert curve.expert_latency == pytest.approx(TRUE.expert_latency, rel=0.05)
    assert predict_experts(curve, calls, DEVICE) == pytest.approx(calls.seconds, rel=0.02)


def test_joined_calls_keep_their_order_and_formats() -> None:
    """Calls of the first format, then those of the second; the experts that are sorted are those of the layer."""
    first, second = measured(384, 4.125), measured(896, 4.25)

    calls = joined([first, second])

    assert calls.seconds == pytest.approx(np.concatenate([first[0].seconds, second[0].seconds]))
    assert np.unique(calls.shape.weight_bits).tolist() == [4.125, 4.25]
    assert np.unique(calls.load.held).tolist() == [384.0, 896.0]


def test_kept_parameters_are_not_fitted() -> None:
    """A start that is given stays, and the rest makes the best of it."""
    calls, _ = measured(384, 4.125)

    curve = fit_moe(calls, DEVICE, 16, {"start_latency": 40e-6})

    assert curve.start_latency == 40e-6
    assert curve.efficiency == pytest.approx(TRUE.efficiency, rel=0.3)


@pytest.mark.parametrize(("tokens", "ranks"), [(1, 1), (4, 1), (64, 1), (4, 8), (64, 8)])
def test_rounding_loses_no_pair_of_a_routing(tokens: int, ranks: int) -> None:
    """One rank computes every pair; of 8 the busiest computes at least its share, and no more experts than pairs."""
    pairs, distinct = busiest_rank(tokens, 256, 8, ranks, 1.2, np.random.default_rng(0))

    assert pairs >= 8 * tokens / ranks - 1e-9
    assert ranks > 1 or pairs == pytest.approx(8 * tokens, rel=0.02)
    assert 1 <= distinct <= min(pairs, 256 / ranks) + 1e-9


def test_experts_chosen_by_groups_are_left_out(tmp_path: Path) -> None:
    """SGLang routes DeepSeek-V3 over 4 of 8 groups, so that the rows do not say how many experts they use."""
    folder = tmp_path / "aiconfigurator" / "h200_sxm" / "moe"
    for framework in ("sglang", "trtllm"):
        (folder / framework / "1").mkdir(parents=True)
        row = "1 AS num_tokens, 7168 AS hidden_size, 2048 AS inter_size, 8 AS topk, 1 AS moe_tp_size, 1 AS moe_ep_size"
        head = f"'fp8_block' AS moe_dtype, 'triton' AS kernel_source, 'balanced' AS distribution, 1.0 AS latency, {row}"
        tables = " UNION ALL ".join(f"SELECT {head}, {experts} AS num_experts" for experts in (256, 384))
        file = folder / framework / "1" / "moe_perf.parquet"
        duckdb.sql(f"COPY ({tables}) TO '{file}' (FORMAT parquet)")

    counts = [
        moe_rows(tmp_path, "h200-sxm-141gb", each, "fp8_block", "triton")["num_experts"].tolist()
        for each in ("sglang", "trtllm")
    ]

    assert counts == [[384], [256, 384]]


def test_rows_with_whole_experts_on_a_rank_can_be_left_out(tmp_path: Path) -> None:
    """Marlin's rows with expert parallelism take longer than the same work without; a fit may leave them out."""
    folder = tmp_path / "aiconfigurator" / "a100_sxm" / "moe" / "sglang" / "1"
    folder.mkdir(parents=True)
    head = (
        "'int4_wo' AS moe_dtype, 'marlin' AS kernel_source, 'balanced' AS distribution, 1.0 AS latency, 1 AS num_tokens"
    )
    sizes = "4096 AS hidden_size, 2048 AS inter_size, 8 AS topk, 128 AS num_experts, 1 AS moe_tp_size"
    tables = " UNION ALL ".join(f"SELECT {head}, {sizes}, {ranks} AS moe_ep_size" for ranks in (1, 2, 8))
    duckdb.sql(f"COPY ({tables}) TO '{folder / 'moe_perf.parquet'}' (FORMAT parquet)")

    rows = moe_rows(tmp_path, "a100-sxm-80gb", "sglang", "int4_wo", "marlin", most_ranks=1)

    assert rows["moe_ep_size"].tolist() == [1]


def test_a_number_of_experts_is_predicted_from_the_others() -> None:
    """Where layers of 64 experts take twice as long as the form says, the error of those that are held out shows it."""
    parts = [measured(number, 4.125) for number in (8, 64, 512)]
    calls = joined(parts)
    numbers = np.concatenate([rows["num_experts"].to_numpy() for _, rows in parts])
    slowed = dataclasses.replace(calls, seconds=np.where(numbers == 64, 2.0, 1.0) * calls.seconds)

    even, off = (held_out_experts(each, numbers, DEVICE, 16) for each in (calls, slowed))

    assert even.p90 < 0.03
    assert off.p90 > 0.3
