"""A fitted profile prices calls as the fit does, keeps what was not measured, and says what it rests on."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

from simserve.calibrate import curve_forms as forms
from simserve.calibrate.fit_report import fit_summary, layer_errors, roofline_series, table_rows, warnings
from simserve.calibrate.fitted_profile import bundled_profile_of, fitted_profile, write_profile
from simserve.calibrate.kernel_fit import HELD_SHAPE, KernelFit
from simserve.calibrate.kernels import points
from simserve.calibrate.run_folder import KernelRun, read_run
from simserve.perf.attention_curve import Gpu, Heads, decode_seconds, prefill_seconds
from simserve.perf.collectives import all_reduce_curve_seconds
from simserve.perf.gemm import GemmDevice, gemm_seconds
from simserve.profiles.catalog import load_model
from simserve.profiles.hardware import HardwareProfile, load_hardware
from tests.calibrate.synthetic_run import COMPUTE, CORES, MEMORY, MODEL, START, TRUTHS, calls_of, write_run

REAL = Path(__file__).resolve().parents[3] / "shared/data/kernels/aiconfigurator/h200_sxm"
H100 = "h100-sxm-80gb"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> KernelRun:
    """Return a run of every kind of a GPU."""
    return read_run(write_run(tmp_path_factory.mktemp("runs") / "x1000", kinds=list(TRUTHS)))


@pytest.fixture(scope="module")
def fit(run: KernelRun) -> KernelFit:
    """Return its fit, over no base."""
    return KernelFit().fit(run)


@pytest.fixture(scope="module")
def overlay(run: KernelRun) -> KernelFit:
    """Return its fit over a bundled profile."""
    return KernelFit(load_hardware(H100)).fit(run)


@pytest.fixture(scope="module")
def profile(run: KernelRun, fit: KernelFit) -> HardwareProfile:
    """Return its profile."""
    return fitted_profile(run, fit)


def test_every_kind_is_found(fit: KernelFit) -> None:
    """Rates to a few percent of the constants that made the times; the tiles of each format too."""
    for name, (_, _, _, truth) in TRUTHS.items():
        for constant in (START, COMPUTE, MEMORY):
            if constant in truth:
                assert fit.kinds_[name].regressor.constants_[constant] == pytest.approx(truth[constant], rel=0.1), name
    assert fit.kinds_["products bfloat16"].shape["min_tile_rows"] == 64
    assert fit.kinds_["products int4_wo"].shape["min_tile_rows"] == 16
    assert fit.not_fitted_ == {}


def test_the_profile_prices_products_as_the_fit_does(profile: HardwareProfile, fit: KernelFit) -> None:
    """Shares of peaks give the rates back."""
    for dtype, peak in (("bfloat16", "bf16"), ("fp8", "fp8")):
        kind = fit.kinds_[f"products {dtype}"]
        curve = profile.gemm_curves[forms.CLASS_OF[dtype]][0]
        device = GemmDevice(
            peak=profile.peak_flops(peak) or 0.0, bandwidth=profile.memory.bandwidth, num_multiprocessors=CORES
        )
        m, n, k = (kind.calls[name].to_numpy(dtype=np.float64) for name in ("m", "n", "k"))
        weight, element = points.FORMATS[dtype]
        num_bytes = n * k * weight + m * (k * element + 2.0 * n)

        priced = gemm_seconds(curve, device, rows=m, out_features=n, in_features=k, num_bytes=num_bytes).total

        own = kind.regressor.predict(kind.calls)
        if dtype == "fp8":
            found = profile.activation_quantisation
            assert found is not None
            rate = profile.memory.bandwidth * found.memory_efficiency
            rounding = found.start_latency + 3.0 * m * k / rate
            priced = priced + rounding
        assert priced == pytest.approx(own, rel=2e-3)


def test_the_profile_prices_attention_as_the_fit_does(profile: HardwareProfile, fit: KernelFit) -> None:
    """In the free forms of the curves, whose sums the engine uses."""
    assert profile.attention_curves is not None
    kernel = profile.attention_curves.kernels[0]
    gpu = Gpu(
        peak=profile.peak_flops("bf16") or 0.0,
        bandwidth=profile.memory.bandwidth,
        num_multiprocessors=profile.attention_curves.num_multiprocessors,
    )
    heads = Heads(num_heads=32.0, num_kv_heads=8.0, width=128.0, kv_bytes=2.0 * 2.0 * 8.0 * 128.0)
    decode, prefill = fit.kinds_["decode attention"], fit.kinds_["prefill attention"]

    columns = (
        (decode.calls["batch_size"], decode.calls["step"] + 1.0),
        (prefill.calls["batch_size"], prefill.calls["isl"]),
    )
    (sequences, contexts), (prompts, tokens) = (
        [column.to_numpy(dtype=np.float64) for column in each] for each in columns
    )

    steps = decode_seconds(kernel.decode, heads, gpu, sequences, contexts)
    prompt_seconds = prefill_seconds(kernel.prefill, heads, gpu, prompts, tokens)

    assert steps == pytest.approx(decode.regressor.predict(decode.calls), rel=5e-3)
    assert prompt_seconds == pytest.approx(prefill.regressor.predict(prefill.calls), rel=5e-3)


def test_the_profile_prices_collectives_as_the_fit_does(profile: HardwareProfile, fit: KernelFit) -> None:
    """Over a link that the measurement found."""
    kind = fit.kinds_["all-reduce"]
    ranks, elements = (kind.calls[name].to_numpy(dtype=np.float64) for name in ("num_gpus", "message_size"))
    expected = kind.regressor.predict(kind.calls)
    assert profile.collective_curves is not None
    curve = profile.collective_curves.all_reduce_of("vllm")

    for count in (2, 4, 8):
        chosen = ranks == count
        priced = all_reduce_curve_seconds(curve, 2.0 * elements[chosen], count, profile.intra_node.bandwidth)
        assert priced == pytest.approx(expected[chosen], rel=5e-3)


def test_class_efficiencies_follow_the_fit(profile: HardwareProfile, fit: KernelFit) -> None:
    """What has no curve of its own is priced like what has one."""
    passing = fit.kinds_["element-wise"].regressor.constants_

    assert profile.efficiency.memory * profile.memory.bandwidth == pytest.approx(passing[MEMORY], rel=1e-3)
    assert profile.efficiency.kernel_latency == pytest.approx(2.0 * passing[START], rel=1e-3)


def test_a_cpu_is_marked_and_samples_at_the_rate_that_was_measured(run: KernelRun, fit: KernelFit) -> None:
    """Its calls move 18 bytes a logit, the simulator's four passes 16; a GPU samples as it streams."""
    device = {**run.provenance["device"], "kind": "cpu"}
    sampled = copy.copy(fit)
    sampled.kinds_ = {**fit.kinds_, "sampling": replace(fit.kinds_["element-wise"], name="sampling")}
    on_cpu = fitted_profile(replace(run, provenance={**run.provenance, "device": device}), sampled)
    on_gpu = fitted_profile(run, sampled)
    rate = sampled.kinds_["sampling"].regressor.constants_[MEMORY]

    assert on_cpu.is_cpu
    assert not on_gpu.is_cpu
    assert on_cpu.efficiency.sampling == pytest.approx(rate * 16.0 / 18.0 / on_cpu.memory.bandwidth, rel=1e-3)
    assert on_gpu.efficiency.sampling is None


def test_a_written_profile_reads_back(profile: HardwareProfile, tmp_path: Path) -> None:
    """The same profile, whose name need not be that of the file."""
    write_profile(profile, tmp_path / "mine.yaml", "# made up\n")

    assert load_hardware(str(tmp_path / "mine.yaml")) == profile


def test_an_overlay_keeps_what_was_not_measured(run: KernelRun, overlay: KernelFit) -> None:
    """Peaks, prices, links, efficiencies, and curves of formats that were not measured are the base's."""
    base = load_hardware(H100)

    profile = fitted_profile(run, overlay)

    assert (profile.compute.bf16, profile.memory, profile.prices) == (base.compute.bf16, base.memory, base.prices)
    assert profile.collective_curves is not None
    assert base.collective_curves is not None
    assert profile.collective_curves.transfers == base.collective_curves.transfers
    assert profile.gemm_curves["fp8_block"] == base.gemm_curves["fp8_block"]
    assert profile.efficiency == base.efficiency
    assert profile.grouped_gemm_curves == base.grouped_gemm_curves
    assert profile.name == "h100-sxm-80gb-x1000"
    assert [each.engines for each in profile.gemm_curves["fp8"]] == [each.engines for each in base.gemm_curves["fp8"]]


@pytest.mark.slow
def test_shape_constants_of_products_are_the_ones_that_fit(run: KernelRun, tmp_path: Path) -> None:
    """Those of a curve of the base where it made the times."""
    base = load_hardware(H100)
    shape = {name: getattr(base.gemm_curves["bf16"][0], name) for name in HELD_SHAPE}
    _, _, _, truth = TRUTHS["products bfloat16"]
    calls = calls_of("products bfloat16")
    seconds = forms.product_form("bfloat16", CORES, shape).predict(calls, truth)
    made = KernelRun(tmp_path, run.provenance, {points.GEMM: calls.assign(seconds=seconds)})

    found = KernelFit(base).fit(made).kinds_["products bfloat16"]

    assert found.shape == shape
    assert found.regressor.median_error_ < 1e-4


def test_too_few_calls_leave_a_class_as_it_is_and_it_is_named(tmp_path: Path) -> None:
    """Nine calls are no fit; the profile, the notes of a run on it and the warnings say so."""
    folder = write_run(tmp_path / "few", keep=0.05, ended="interrupted")
    run = read_run(folder)

    fit = KernelFit(load_hardware(H100)).fit(run)
    profile = fitted_profile(run, fit)

    assert "element-wise" in fit.not_fitted_
    assert profile.efficiency.memory == load_hardware(H100).efficiency.memory
    assert profile.calibration is not None
    assert set(profile.calibration.not_fitted) == set(fit.not_fitted_)
    assert "element-wise" in profile.calibration.note
    assert any(line.startswith("element-wise stays at the curves of the base profile") for line in warnings(run, fit))
    assert "stays at class efficiencies" in "".join(warnings(run, KernelFit().fit(run)))


@pytest.fixture(scope="module")
def half_fit(tmp_path_factory: pytest.TempPathFactory) -> KernelFit:
    """Return a fit to half of the calls, which are the same however the run ended."""
    return KernelFit().fit(read_run(write_run(tmp_path_factory.mktemp("runs") / "half", keep=0.5)))


@pytest.mark.parametrize("ended", ["budget", "interrupted", "killed", "out of memory", "device failed"])
def test_a_fit_on_half_a_run_says_so(tmp_path: Path, ended: str, half_fit: KernelFit) -> None:
    """In its warnings, in its summary, in the profile, and in the source of every curve."""
    run, fit = read_run(write_run(tmp_path / "half", keep=0.5, ended=ended)), half_fit

    profile = fitted_profile(run, fit)

    assert "INCOMPLETE" in warnings(run, fit)[0]
    assert fit_summary(run, fit, [])["is_complete"] is False
    assert "INCOMPLETE" in profile.description
    assert "INCOMPLETE" in profile.gemm_curves["bf16"][0].fit.source
    assert profile.calibration is not None
    assert f"incomplete measurement ({ended}, " in profile.calibration.note


def test_a_complete_run_says_nothing_of_the_kind(run: KernelRun, fit: KernelFit, profile: HardwareProfile) -> None:
    """No warning where there is nothing to warn of."""
    assert [line for line in warnings(run, fit) if not line.startswith("products int4_wo")] == []
    assert profile.calibration is not None
    assert profile.calibration.note == ""
    assert "INCOMPLETE" not in profile.description


def test_a_kernel_that_no_engine_runs_does_not_replace_one_that_they_run(
    run: KernelRun, overlay: KernelFit, profile: HardwareProfile
) -> None:
    """PyTorch's 4-bit products: fitted and shown, but left out of the profile."""
    told = [line for line in warnings(run, overlay) if line.startswith("products int4_wo")]

    assert "products int4_wo" in overlay.kinds_
    assert {"bf16", "fp8"} <= set(profile.gemm_curves)
    assert "int4_weight_only" not in profile.gemm_curves
    assert "stays at the curves of the base profile, though fitted: PyTorch's own kernel is slower" in told[0]


@pytest.mark.slow
def test_calls_that_show_no_rate_leave_it_assumed(tmp_path: Path) -> None:
    """All of one length, as where nothing but the start shows: a profile, with the assumption said."""
    folder = write_run(tmp_path / "short", kinds=("products bfloat16", "products fp8"), keep=0.2)
    run = read_run(folder)
    flat = KernelRun(folder, run.provenance, {name: each.assign(seconds=5e-6) for name, each in run.tables.items()})

    profile = fitted_profile(flat, KernelFit().fit(flat))

    assert profile.memory.bandwidth == pytest.approx(1e10)
    assert "Bandwidth: no kernel shows it, an assumption" in profile.memory.source
    assert "FP8: no kernel shows it, an assumption" in profile.compute.source
    assert profile.compute.fp8 == profile.compute.bf16


def test_intervals_and_errors_are_in_the_profile(profile: HardwareProfile) -> None:
    """With units, and the error on calls held out."""
    fit = profile.gemm_curves["bf16"][0].fit

    assert fit is not None
    assert fit.intervals["compute_flop_per_s"].count("TFLOP/s") == 2
    assert fit.intervals["start_s"].endswith("us")
    assert 0 < fit.median_error <= 1.2 * (fit.held_out_error or 0.0) < 0.05
    assert fit.range.startswith("m 1 to 32768, n 128 to 128256")


def test_layers_are_predicted_without_being_fitted(run: KernelRun, fit: KernelFit, tmp_path: Path) -> None:
    """A layer that takes the sum of its operators has no error, one that takes twice as long is half predicted."""
    model = load_model(MODEL)
    sizes = {"model": MODEL, "phase": "decode", "batch_size": 8, "length": 512, "mode": "graph"}
    one = pd.DataFrame([{**sizes, "seconds": 1.0}])
    asked = KernelRun(tmp_path, run.provenance, {points.LAYER: one})
    predicted = 1.0 + layer_errors(asked, fit, [model])["graph"]["bias"]
    twice = pd.DataFrame([{**sizes, "seconds": 2.0 * predicted}])

    found = layer_errors(KernelRun(tmp_path, run.provenance, {points.LAYER: twice}), fit, [model])

    assert predicted == pytest.approx(140e-6, rel=0.2)
    assert found == {"graph": {"calls": 1, "median_error": pytest.approx(0.5), "bias": pytest.approx(-0.5)}}


def test_series_of_a_roofline(run: KernelRun, fit: KernelFit, profile: HardwareProfile) -> None:
    """Rates are flops over seconds, under the peak of their dtype."""
    peaks = {dtype: profile.peak_flops(dtype) or 0.0 for dtype in profile.supported_dtypes}

    series = {each.name: each for each in roofline_series(fit, peaks)}

    assert set(series) == {name for name in TRUTHS if name not in ("element-wise", "all-reduce", "copies")}
    fp8 = series["products fp8"]
    assert fp8.peak == profile.peak_flops("fp8")
    assert np.all(fp8.fitted <= fp8.peak)
    assert fp8.measured == pytest.approx(fp8.fitted, rel=0.2)
    assert {row[0] for row in table_rows(fit)} == set(TRUTHS)


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="the measurements of ../shared/data are not there")
def test_real_kernels_follow_the_forms(run: KernelRun, tmp_path: Path) -> None:
    """NVIDIA's tables of an H200: the error on sizes that were held out, products, prompts and decode steps."""
    heads = "num_heads = 32 and num_key_value_heads = 8 and head_dim = 128 and window_size = 0"
    chosen = {
        points.GEMM: "gemm_dtype = 'bfloat16' and n in (1024, 4096, 16384) and k in (1024, 4096, 8192)",
        points.PREFILL: f"kv_cache_dtype = 'bfloat16' and batch_size <= 64 and {heads}",
        points.DECODE: f"kv_cache_dtype = 'bfloat16' and batch_size <= 1024 and {heads}",
    }
    tables = {}
    for table, rows in chosen.items():
        file = next(REAL.glob(f"*/vllm/*/{table}.parquet"))
        tables[table] = duckdb.sql(f"select *, latency / 1e3 as seconds from '{file}' where {rows}").df()

    kinds = KernelFit().fit(KernelRun(tmp_path, run.provenance, tables)).kinds_

    assert (kinds["products bfloat16"].regressor.held_out_error_ or 1.0) < 0.07
    assert (kinds["prefill attention"].regressor.held_out_error_ or 1.0) < 0.06
    assert (kinds["decode attention"].regressor.held_out_error_ or 1.0) < 0.08
    assert kinds["decode attention"].regressor.constants_[MEMORY] == pytest.approx(4.3e12, rel=0.1)


@pytest.mark.parametrize(
    ("name", "gigabytes", "found"),
    [
        ("NVIDIA H100 80GB HBM3", 85.0, "h100-sxm-80gb"),
        ("NVIDIA H100 PCIe", 85.0, "h100-pcie-80gb"),
        ("NVIDIA H100 NVL", 100.0, "h100-nvl-94gb"),
        ("NVIDIA H200", 150.0, "h200-sxm-141gb"),
        ("NVIDIA A100-SXM4-80GB", 85.0, "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", 42.4, "a100-sxm-40gb"),
        ("NVIDIA GeForce RTX 4090", 25.3, "rtx-4090-24gb"),
        ("NVIDIA L4", 23.6, "l4-24gb"),
        ("NVIDIA L40S", 47.7, "l40s-48gb"),
        ("NVIDIA X1000", 85.0, None),
        ("NVIDIA H100 80GB HBM3", 40.0, None),
    ],
)
def test_the_base_is_found_by_the_name_of_the_driver(name: str, gigabytes: float, found: str | None) -> None:
    """Chip, form factor and memory agree, or there is no base."""
    device = {"kind": "cuda", "name": name, "total_memory_bytes": gigabytes * 1e9}

    base = bundled_profile_of({"device": device})

    assert (base.name if base else None) == found
    assert bundled_profile_of({"device": device | {"kind": "cpu"}}) is None
