"""Fits recover known parameters, and tables are read as they are laid out."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

from calibration.laboratory.fits.gemm_fit import Benchmark, Device, GemmFit, fit_gemm, predict_seconds, scale_to
from calibration.laboratory.fits.gemm_report import errors
from calibration.laboratory.fits.gemm_tables import gemm_rows
from calibration.laboratory.fits.moe_fit import busiest_rank
from simserve.errors import InputError
from simserve.perf.gemm import GemmDevice
from simserve.profiles.kernel_curves import GemmCurve

DEVICE = Device(
    gemm=GemmDevice(peak=900e12, bandwidth=4e12, num_multiprocessors=132),
    l2_bytes=50e6,
)
TRUTH = GemmFit(
    curve=GemmCurve(
        start_latency="4 us",
        efficiency=0.8,
        sustained_efficiency=0.7,
        loop_overhead=150,
        wave_quantisation=0.5,
        overlap=3,
        memory_efficiency=0.85,
        split_latency="2 us",
        max_splits=8,
    ),
    benchmark=Benchmark(framework="vllm"),
    residency=0.4,
    quantisation_start=0.0,
    quantisation_efficiency=1.0,
    row_seconds=0.0,
    num_points=1,
)


def make_rows(count: int = 600) -> pd.DataFrame:
    """Return calls of random sizes that take exactly the time of `TRUTH`."""
    generator = np.random.default_rng(3)
    sizes = np.round(2.0 ** generator.uniform([0, 8, 8], [14, 14, 14], size=(count, 3)))
    rows = pd.DataFrame(sizes, columns=["m", "n", "k"])
    return rows.assign(seconds=predict_seconds(TRUTH, rows, DEVICE))


def test_a_fit_recovers_the_curve_it_was_made_from() -> None:
    """Without noise the errors vanish and the parameters return."""
    rows = make_rows()

    fit = fit_gemm(rows, DEVICE, TRUTH.benchmark)

    assert errors(predict_seconds(fit, rows, DEVICE), rows["seconds"].to_numpy()).median < 0.005
    assert fit.curve.efficiency == pytest.approx(0.8, rel=0.03)
    assert fit.curve.memory_efficiency == pytest.approx(0.85, rel=0.03)
    assert fit.curve.start_latency == pytest.approx(4e-6, rel=0.1)


def test_one_scale_carries_a_fit_to_a_slower_gpu() -> None:
    """Calls that all take 1.3 times as long give a scale of 1.3."""
    rows = make_rows()

    slower = rows.assign(seconds=1.3 * rows["seconds"])

    assert scale_to(TRUTH, slower, DEVICE) == pytest.approx(1.3)


def test_errors_leave_short_calls_out() -> None:
    """Of 5 us, 20 us and 40 us two count; they are 10 % above and 20 % below."""
    off = errors(np.array([9e-6, 22e-6, 32e-6]), np.array([5e-6, 20e-6, 40e-6]))

    assert off.num_points == 2
    assert (off.median, off.mean, off.bias) == pytest.approx((0.15, 0.15, -0.05))


def test_tables_are_read_in_seconds_with_repeats_merged(tmp_path: Path) -> None:
    """Two repeats of one size become their median; other formats stay out."""
    folder = tmp_path / "aiconfigurator/h100_sxm/gemm/vllm/0.24.0"
    folder.mkdir(parents=True)
    table = pd.DataFrame(
        {
            "gemm_dtype": ["fp8", "fp8", "bfloat16"],
            "m": [8] * 3,
            "n": [64] * 3,
            "k": [32] * 3,
            "latency": [2.0, 4.0, 9.0],
        }
    )
    duckdb.from_df(table).write_parquet(str(folder / "gemm_perf.parquet"))

    rows = gemm_rows(tmp_path, "h100-sxm-80gb", "vllm", "fp8")

    assert rows.to_dict("records") == [{"m": 8.0, "n": 64.0, "k": 32.0, "seconds": 3e-3}]


def test_a_missing_table_names_its_folder(tmp_path: Path) -> None:
    """The error says which folder holds none."""
    with pytest.raises(InputError, match="has no such operator table"):
        gemm_rows(tmp_path, "h100-sxm-80gb", "vllm", "fp8")


@pytest.mark.parametrize(("ranks", "pairs", "distinct"), [(1, 512.0, 128.0), (8, 64.0, 16.0)])
def test_even_routing_spreads_pairs_over_ranks(ranks: int, pairs: float, distinct: float) -> None:
    """64 tokens of 8 experts each are 512 pairs over 128 experts."""
    assert busiest_rank(64, 128, 8, ranks, 0.0, np.random.default_rng(0)) == (pairs, distinct)


def test_skewed_routing_loads_the_busiest_rank_more() -> None:
    """Above an even share of pairs; on one rank, fewer experts than evenly."""
    generator = np.random.default_rng(0)
    pairs, _ = busiest_rank(1024, 128, 8, 8, 1.2, generator)
    _, distinct = busiest_rank(64, 128, 8, 1, 1.2, generator)

    assert pairs > 1024
    assert distinct < 128
