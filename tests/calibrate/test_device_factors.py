"""A device factor is a measured kernel's time over its own bundled curve's, and scales the curves of engines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simserve.calibrate import curve_forms as forms
from simserve.calibrate import device_factors as module
from simserve.calibrate.device_factors import (
    CURVE_ERROR,
    DEVICE_WIDTH,
    KEPT,
    OWN_CURVE,
    SCALED,
    device_factor,
    device_factors,
    factor_rows,
)
from simserve.calibrate.fit_report import fit_summary, warnings
from simserve.calibrate.fitted_profile import fitted_profile
from simserve.calibrate.kernel_fit import KernelFit
from simserve.calibrate.kernel_prediction import predicted, without_cache
from simserve.calibrate.kernels import points
from simserve.calibrate.run_folder import KernelRun, read_run
from simserve.profiles.hardware import HardwareProfile, load_hardware
from tests.calibrate.synthetic_run import SOURCES, calls_of, write_run

H100 = "h100-sxm-80gb"
ENGINES = {"products bfloat16": "vllm", "products fp8": "tensorrt-llm", "all-reduce": "nccl"}
TABLES = {"products bfloat16": points.GEMM, "products fp8": points.GEMM, "all-reduce": points.ALL_REDUCE}
ATTENTION = {"prefill attention": points.PREFILL, "decode attention": points.DECODE}


def slow_run(folder: Path, factor: float, base: HardwareProfile, noise: float = 0.03) -> KernelRun:
    """Return a run of an H100 whose every kernel takes so many times as long as its own bundled curve says."""
    run = read_run(write_run(folder, kinds=("copies",), device_name="NVIDIA H100 80GB HBM3"))
    tables: dict[str, list[pd.DataFrame]] = {}
    draws = np.random.default_rng(5)
    for name, table in (TABLES | ATTENTION).items():
        calls = calls_of(name)
        number_format = str(calls["gemm_dtype"].iloc[0]) if "gemm_dtype" in calls else ""
        calls["kernel_source"] = SOURCES[table, number_format]
        columns = {str(key): calls[key].to_numpy() for key in calls.columns}
        seconds = predicted(table, columns, without_cache(base), ENGINES.get(name, "vllm"))
        seconds = factor * seconds * np.exp(draws.normal(0.0, noise, len(calls)))
        tables.setdefault(table, []).append(calls.assign(seconds=seconds))
    return KernelRun(folder, run.provenance, {name: pd.concat(each) for name, each in tables.items()})


@pytest.fixture(scope="module")
def base() -> HardwareProfile:
    """Return the bundled H100."""
    return load_hardware(H100)


@pytest.fixture(scope="module")
def fit(base: HardwareProfile, tmp_path_factory: pytest.TempPathFactory) -> KernelFit:
    """Return the fit of an H100 that is a sixth slower than its profile."""
    return KernelFit(base).fit(slow_run(tmp_path_factory.mktemp("runs") / "slow", 1.17, base))


@pytest.fixture(scope="module")
def profile(fit: KernelFit, tmp_path_factory: pytest.TempPathFactory) -> HardwareProfile:
    """Return its profile."""
    folder = tmp_path_factory.mktemp("runs") / "named"
    return fitted_profile(read_run(write_run(folder, kinds=("copies",))), fit)


def test_a_slow_device_is_told_by_every_family(fit: KernelFit) -> None:
    """Each factor is drawn to 1 as far as the curve may be off; errors fall in and out of sample."""
    factors = device_factors(fit)
    trust = DEVICE_WIDTH**2 / (DEVICE_WIDTH**2 + CURVE_ERROR**2)

    assert set(factors) == set(TABLES | ATTENTION)
    for each in factors.values():
        assert each.action == SCALED, each
        assert each.factor == pytest.approx(1.17**trust, abs=0.02)
        assert each.interval[0] < 1.17 < each.interval[1]
        assert each.before is not None
        assert each.held_out is not None
        assert each.before == pytest.approx(1.0 - 1.0 / 1.17, abs=0.02)
        assert each.held_out < 0.3 * each.before


def test_no_number_of_calls_tells_more_than_the_curve_does(fit: KernelFit) -> None:
    """Hundreds of calls share the error of their curve: the interval stays as wide as that leaves it."""
    deviation = (DEVICE_WIDTH**-2 + CURVE_ERROR**-2) ** -0.5

    for each in device_factors(fit).values():
        low, high = each.interval

        assert np.log(high / low) >= 2.0 * 1.96 * deviation


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_every_engine_s_curves_are_scaled_and_none_is_replaced(
    engine: str, fit: KernelFit, profile: HardwareProfile, base: HardwareProfile
) -> None:
    """CUTLASS stays CUTLASS and a custom all-reduce stays one: all take as many times as long."""
    for name, table in (TABLES | ATTENTION).items():
        calls = fit.kinds_[name].calls
        columns = {str(key): calls[key].to_numpy() for key in calls.columns}
        factor = device_factors(fit)[name].factor

        ratio = predicted(table, columns, profile, engine) / predicted(table, columns, base, engine)

        assert np.median(ratio) == pytest.approx(factor, rel=0.02), name


@pytest.mark.slow
def test_calls_that_agree_with_the_profile_leave_it(base: HardwareProfile, tmp_path: Path) -> None:
    """A factor that predicts held-out calls no better is not applied; a twentieth of a percent moves nothing far."""
    factors = device_factors(KernelFit(base).fit(slow_run(tmp_path / "same", 1.0, base)))

    assert all(each.factor == pytest.approx(1.0, abs=0.01) for each in factors.values())


def test_few_calls_are_drawn_to_the_prior(base: HardwareProfile, fit: KernelFit) -> None:
    """Ten noisy calls twice as long give less than a factor of two, and no interval narrower than they allow."""
    kind = fit.kinds_["products bfloat16"]
    calls = kind.calls.iloc[::40].head(10).copy()
    spread = np.exp(np.random.default_rng(1).normal(0.0, 0.6, len(calls)))
    calls["seconds"] = 2.0 / 1.17 * spread * calls["seconds"]
    few = type(kind)(kind.name, kind.table, kind.number_format, kind.regressor, kind.shape, calls)

    found = device_factor(few, base)

    low, high = found.interval
    assert 1.0 < np.sqrt(low * high) < 1.8
    assert np.log(high / low) < 2.0 * 1.96 * DEVICE_WIDTH


def test_another_kernel_than_the_bundled_one_tells_nothing_of_the_device(base: HardwareProfile, fit: KernelFit) -> None:
    """FlashAttention-2 on Hopper, where engines run 3: the base's curves stay, and the reason is given."""
    kind = fit.kinds_["prefill attention"]
    older = kind.calls.assign(kernel_source="torch SDPA (FA2)")

    found = device_factor(type(kind)(kind.name, kind.table, "", kind.regressor, kind.shape, older), base)

    assert (found.action, found.factor, found.before) == (KEPT, 1.0, None)
    assert found.why == "h100-sxm-80gb has no curve of torch SDPA (FA2)"


def test_without_a_bundled_curve_the_run_s_own_stands_in_and_says_so(fit: KernelFit) -> None:
    """On a GPU with class efficiencies alone, and where no profile is known."""
    kind = fit.kinds_["products bfloat16"]

    found = [device_factor(kind, each) for each in (load_hardware("l4-24gb"), None)]

    assert [each.action for each in found] == [OWN_CURVE, OWN_CURVE]
    assert found[0].why == "l4-24gb has no curve of it"


def test_the_answer_shows_old_and_new(fit: KernelFit, tmp_path: Path) -> None:
    """A row a kind: action, factor with interval, errors in and out of sample; the same in the JSON."""
    run = read_run(write_run(tmp_path / "any", kinds=("copies",)))

    rows = {row[0]: row for row in factor_rows(device_factors(fit))}

    action, factor, in_sample, out_of_sample, why = rows["products fp8"][1:]
    assert (action, "->" in in_sample, "->" in out_of_sample) == (SCALED, True, True)
    assert factor.startswith("1.1")
    assert why == "torch _scaled_mm (cuBLAS), over the tensorrt-llm curve of h100-sxm-80gb"
    assert (
        fit_summary(run, fit, [])["device_factors"]["products fp8"]["factor"]
        == device_factors(fit)["products fp8"].factor
    )
    assert not [line for line in warnings(run, fit) if line.startswith("products fp8")]


def test_sources_say_what_was_scaled(profile: HardwareProfile) -> None:
    """Beside what the curve was fitted to."""
    fit = profile.gemm_curves[forms.CLASS_OF["fp8"]][1].fit

    assert fit is not None
    assert "NVIDIA AIConfigurator gemm_perf, vllm" in fit.source
    assert "over the tensorrt-llm curve of h100-sxm-80gb" in fit.source
    assert profile.collective_curves is not None
    assert "All-reduce times 1.1" in profile.collective_curves.source


def test_a_slower_device_has_longer_times_and_lower_rates() -> None:
    """A quarter slower: times by 1.25, rates and shares by 0.8; a share is at most 1."""
    curve = {"start": "2 us", "efficiency": 0.5, "compute": 1e12, "cache_bandwidth": "5 TB/s", "tile_rows": 64}

    slower, faster = module._scaled(curve, 1.25), module._scaled(curve, 0.4)

    assert slower == {"start": "2.5 us", "efficiency": 0.4, "compute": 0.8e12, "cache_bandwidth": "4 TB/s"}
    assert (faster["efficiency"], faster["compute"]) == (1.0, 2.5e12)
