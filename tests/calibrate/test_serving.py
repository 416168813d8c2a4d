"""Engine constants come back from benchmarks that the simulator wrote, and what files cannot tell is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from simserve.calibrate.serving import ServingCalibration, as_mapping, fit_figures
from simserve.calibrate.serving_profile import profile_text
from simserve.calibrate.simulated import EngineParameters, ServingModel
from simserve.errors import InputError, UsageError
from simserve.profiles.engine_profile import load_engine
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import resolve
from simserve.workload.benchmarks.reading import read_results
from tests.calibrate.builders import CHAT, chat, moved, write_benchmarks

TRUTH = EngineParameters(
    host_seconds_per_step=2.0e-3,
    host_seconds_per_request=4e-6,
    compute_efficiency=0.8,
    frontend_latency=9e-3,
)


THREE = ("host_seconds_per_step", "compute_efficiency", "frontend_latency")


@pytest.fixture(scope="module", params=[THREE[1:2], pytest.param(THREE, marks=pytest.mark.slow)], ids=len)
def calibration(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ServingCalibration:
    """One constant, or three, fitted to three files of a server that has others than the profile."""
    names: tuple[str, ...] = request.param
    stated = ServingModel(chat()).stated
    truth = moved(TRUTH, **{name: getattr(stated, name) for name in THREE if name not in names})
    files = write_benchmarks(tmp_path_factory.mktemp("benchmarks"), truth)
    return ServingCalibration(ServingModel(chat()), names).fit(read_results(files))


def test_benchmarks_of_the_simulator_give_its_constants_back(calibration: ServingCalibration) -> None:
    """Each true constant lies in its 95 % interval, and no interval is wider than a fifth of its value."""
    assert calibration.fit_.fitted_names

    for name in calibration.fit_.fitted_names:
        found = calibration.fit_.parameters[name]

        assert found.half_width is not None
        assert abs(found.value - getattr(TRUTH, name)) <= found.half_width
        assert found.half_width < 0.2 * found.value


def test_the_errors_fall_and_are_held_out(calibration: ServingCalibration) -> None:
    """TTFT and TPOT are off by tens of percent before, by little after, and by little in files left out."""
    fit = calibration.fit_

    for latency in ("ttft", "tpot"):
        before, after, held_out = (fit.median_error(which, latency) for which in ("before", "after", "held_out"))
        assert before is not None
        assert after is not None
        assert held_out is not None
        assert before > 0.1
        assert after < 0.02
        assert held_out < 0.1
    assert as_mapping(fit)["median_error"]["tpot"]["after"] == fit.median_error("after", "tpot")


def test_the_profile_is_accepted_and_simulates_as_fitted(calibration: ServingCalibration, tmp_path: Path) -> None:
    """A scenario that names the written file runs with the fitted constants, and with vLLM's kernels."""
    file = tmp_path / "mine.yaml"
    file.write_text(profile_text(calibration.fit_, chat(), "mine"), encoding="utf-8")

    engine = resolve(from_mapping(CHAT, [f"deployment.engine.name={file}"])).shape.engine

    assert engine.name == "vllm"
    assert load_engine(str(file)).versions[0].version == "0.8.5"
    assert engine.host_seconds_per_step == pytest.approx(calibration.fit_.after.host_seconds_per_step, rel=1e-5)
    assert engine.compute_efficiency == pytest.approx(calibration.fit_.after.compute_efficiency, rel=1e-5)
    assert engine.frontend_latency == pytest.approx(calibration.fit_.after.frontend_latency, rel=1e-5)
    assert engine.host_seconds_per_request == resolve(chat()).shape.engine.host_seconds_per_request


def test_more_parameters_than_figures_are_refused(tmp_path: Path) -> None:
    """One file has a TTFT and a TPOT: three constants cannot be told by them, and those asked for are refused."""
    files = write_benchmarks(tmp_path, TRUTH)[:1]
    names = ("host_seconds_per_step", "compute_efficiency", "frontend_latency")

    with pytest.raises(InputError, match="2 figures cannot tell 3 parameters apart"):
        ServingCalibration(ServingModel(chat()), names).fit(read_results(files))


@pytest.mark.slow
def test_host_time_behind_the_gpu_cannot_be_told(tmp_path: Path) -> None:
    """With asynchronous scheduling the host's time a step hides behind the GPU: asked for, it is refused."""
    hidden = chat(version="0.17")
    files = write_benchmarks(tmp_path, ServingModel(hidden).stated, hidden)

    with pytest.raises(InputError, match="cannot be fitted"):
        ServingCalibration(ServingModel(hidden), ["host_seconds_per_request"]).fit(read_results(files))


def test_a_latency_that_the_scenario_sets_is_not_fitted(tmp_path: Path) -> None:
    """A profile could not change it."""
    fixed = chat(frontend_latency="5 ms")
    files = write_benchmarks(tmp_path, TRUTH)

    with pytest.raises(InputError, match="the scenario sets it"):
        ServingCalibration(ServingModel(fixed), ["frontend_latency"]).fit(read_results(files))


def test_a_wait_before_the_scheduler_prices_no_step_anew() -> None:
    """Of two latencies the steps are the same ones; of two efficiencies they are not."""
    model = ServingModel(chat())
    stated = model.stated

    later, slower = (moved(stated, **change) for change in ({"frontend_latency": 0.2}, {"compute_efficiency": 0.7}))

    assert model._price(later) is model._price(stated)
    assert model._price(slower) is not model._price(stated)


def test_an_unknown_parameter_is_named() -> None:
    """A misspelled one is answered with the near ones."""
    with pytest.raises(UsageError, match="compute_efficiency"):
        ServingCalibration(ServingModel(chat()), ["efficiency"])


def test_throughput_counts_where_clients_set_the_pace_only(tmp_path: Path) -> None:
    """At a given rate it says that the server kept up; the statistic asked for comes first."""
    open_loop, closed, _ = read_results(write_benchmarks(tmp_path, TRUTH))

    assert fit_figures(open_loop, "median") == ("median_ttft", "median_tpot")
    assert fit_figures(closed, "mean") == ("mean_ttft", "mean_tpot", "output_throughput")
