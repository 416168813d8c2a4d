"""`validate`: what is predicted, what cannot be run, in order, whoever does the work, and where the laboratory is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simserve.cli.main import main
from simserve.errors import UsageError
from simserve.planner.measured.point import METRICS, Protocol
from simserve.planner.validation.prediction import Pricer, predict
from simserve.planner.validation.validate import load_laboratory, replay, validate, write_parquet
from simserve.profiles import catalog
from simserve.scenario.run import run
from simserve.workload.requests import RequestSpecs
from tests.planner.builders import make_point
from tests.scenario.builders import make_scenario, scenario_mapping

_ALL = {"tpot": 0.01, "ttft": 0.1, "e2e": 1.0, "throughput": 100.0}


def test_predictions_are_the_means_that_a_run_reports() -> None:
    """The same scenario through `run` gives the same figures."""
    summary = run(make_scenario(run={"warmup": "none"})).summary

    predicted = predict(make_point(measured=_ALL), Pricer()).predicted

    assert list(predicted) == list(METRICS)
    assert predicted["ttft"] * 1e3 == pytest.approx(summary["mean_ttft_ms"])
    assert predicted["tpot"] * 1e3 == pytest.approx(summary["mean_tpot_ms"])
    assert predicted["e2e"] * 1e3 == pytest.approx(summary["mean_e2el_ms"])
    assert predicted["throughput"] == pytest.approx(summary["total_output_tokens"] / summary["duration"])


def test_the_server_sees_requests_later_than_the_client() -> None:
    """By the frontend's latency; nothing else moves."""
    client = predict(make_point(measured=_ALL), Pricer()).predicted
    server = predict(make_point(measured=_ALL, protocol=Protocol(is_server_side=True)), Pricer()).predicted

    assert server["ttft"] < client["ttft"]
    assert client["ttft"] - server["ttft"] == pytest.approx(client["e2e"] - server["e2e"])
    assert server["tpot"] == client["tpot"]


def test_recorded_requests_replace_the_workload() -> None:
    """Two requests of the lengths that were recorded."""
    requests = RequestSpecs(
        arrival_time=np.array([0.0, 1.0]),
        prompt_tokens=np.array([50, 60]),
        output_tokens=np.array([10, 30]),
        max_tokens=np.array([10, 30]),
        think_time=np.empty(0),
        concurrency=None,
        is_stationary=False,
        offered_rate=float("nan"),
    )
    point = make_point(measured={"throughput": 1.0, "e2e": 1.0}, requests=requests)

    predicted = predict(point, Pricer()).predicted

    assert predicted["throughput"] == pytest.approx(40 / 1.0, rel=0.5)


def test_a_length_beyond_the_models_own_is_run() -> None:
    """Benchmarks send random tokens: GPT-style limits of positions do not stop them."""
    mapping = scenario_mapping(model="llama-2-7b")
    mapping["deployment"]["engine"]["max_model_len"] = 6000
    mapping["workload"]["prompt_tokens"] = {"distribution": "fixed", "value": 5000}

    assert predict(make_point(scenario=mapping), Pricer()).is_covered


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "llama-9"}, "llama-9"),
        ({"deployment": {"hardware": "abacus"}}, "abacus"),
        ({"model": "llama-3.1-405b"}, "does not fit"),
        ({"workload": {}}, "arrivals"),
    ],
)
def test_what_cannot_be_run_says_why(changes: dict[str, object], reason: str) -> None:
    """And is counted."""
    prediction = predict(make_point(scenario=scenario_mapping(**changes)), Pricer())

    assert not prediction.is_covered
    assert reason in prediction.reason


def test_predictions_stand_in_the_order_of_the_points() -> None:
    """Also those that were not run."""
    points = [make_point(label="a"), make_point(label="b", reason="no"), make_point(label="c")]

    validation = replay(points)

    assert [each.point.label for each in validation.predictions] == ["a", "b", "c"]
    assert (validation.summary["points"], validation.summary["covered"]) == (3, 2)


def test_an_interrupt_keeps_what_was_finished() -> None:
    """And says that there is more."""

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    validation = replay([make_point() for _ in range(5)], progress=stop)

    assert validation.was_interrupted
    assert len(validation.predictions) == 2


@pytest.mark.slow
def test_the_published_figures_run() -> None:
    """Every one of them, without further files: four engines, data-centre and desktop GPUs, dense and routed models."""
    validation = validate()

    assert all(each.is_covered for each in validation.predictions)
    points = [each.point for each in validation.predictions]
    assert {point.engine for point in points} == {"vllm", "sglang", "tensorrt-llm", "llama.cpp"}
    assert len({point.hardware for point in points}) >= 7
    assert len({point.model for point in points}) >= 12


def test_points_are_one_row_each_in_the_units_of_results(tmp_path: Path) -> None:
    """Milliseconds and tokens/s, measured beside predicted; Parquet holds the same."""
    validation = replay([make_point()])
    write_parquet(validation, tmp_path / "points.parquet")

    (row,) = validation.points.to_dict("records")

    assert row["measured_tpot_ms"] == pytest.approx(10.0)
    assert row["predicted_tpot_ms"] > 0
    assert len(pd.DataFrame(validation.points)) == 1
    assert (tmp_path / "points.parquet").read_bytes()[:4] == b"PAR1"


def two_protocols(first: Protocol, second: Protocol, **workload: Any) -> list[dict[str, float]]:
    """Return what is predicted of one server that is asked in two ways, by four clients of ten prompts each."""
    clients = {"arrivals": {"process": "closed_loop", "concurrency": 4}, "num_requests": 40}
    scenario = scenario_mapping(workload=scenario_mapping()["workload"] | clients | workload)
    measured = {"tpot": 0.01, "ttft": 0.05, "e2e": 0.2}
    points = (make_point(scenario=scenario, measured=measured, protocol=each) for each in (first, second))
    return [dict(predict(point, Pricer()).predicted) for point in points]


def test_the_first_requests_of_a_cold_server_wait_longer() -> None:
    """A tenth of the requests is there at the start; TPOT stays."""
    warm, cold = two_protocols(Protocol(), Protocol(cold_seconds=2.0))

    assert cold["ttft"] - warm["ttft"] == pytest.approx(0.2)
    assert cold["e2e"] - warm["e2e"] == pytest.approx(0.2)
    assert cold["tpot"] == warm["tpot"]


def test_a_point_is_predicted_the_same_whatever_came_before_it() -> None:
    """A batch that is there at once spares host time that served requests take, on the same deployment."""
    served, batch = (
        make_point(
            engine="tensorrt-llm",
            version="0.14.0",
            scenario=scenario_mapping(
                deployment={"hardware": "h100-sxm-80gb", "engine": {"name": "tensorrt-llm", "version": "0.14.0"}},
                workload={**scenario_mapping()["workload"], "arrivals": arrivals},
            ),
            measured=_ALL,
        )
        for arrivals in ({"process": "closed_loop", "concurrency": 4}, {"process": "all_at_once"})
    )
    pricer = Pricer()
    predict(batch, pricer)

    assert predict(served, pricer).predicted == predict(served, Pricer()).predicted
    assert predict(batch, pricer).predicted == predict(batch, Pricer()).predicted
    assert predict(served, pricer).predicted != predict(batch, pricer).predicted


def test_a_window_is_priced_for_the_traffic_of_each_point() -> None:
    """Not for that of the point before it: contexts beyond a layer's window cost no more than the window."""
    short, long = (
        make_point(
            scenario=scenario_mapping(
                model="gemma-3-27b",
                deployment={"hardware": "h200-sxm-141gb"},
                workload={**scenario_mapping()["workload"], "prompt_tokens": tokens, "num_requests": 8},
            ),
            measured=_ALL,
        )
        for tokens in (128, 6000)
    )
    pricer = Pricer()
    predict(short, pricer)

    assert predict(long, pricer).predicted == predict(long, Pricer()).predicted


def test_a_checkout_has_it() -> None:
    """With what `validate` asks of it."""
    laboratory = load_laboratory("--data", "folder")

    assert all(hasattr(laboratory, name) for name in laboratory.__all__)
    assert {"read_points", "read_memory_logs"} < set(laboratory.__all__)


def test_an_install_without_a_checkout_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The flag, its value, and the remedy."""
    monkeypatch.setattr(catalog, "bundled_file", lambda path: tmp_path / path)

    with pytest.raises(UsageError, match=r"--data: 'folder' needs a development install.*pip install -e"):
        load_laboratory("--data", "folder")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--data", "."],
        ["--source", "inferencex_agg"],
        ["--accuracy", "A.md", "--date", "2026-11-30"],
        ["--expected-errors", "E.json", "--date", "2026-11-30"],
    ],
)
def test_a_plain_install_refuses_before_anything_runs(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line, nothing on stdout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalog, "bundled_file", lambda path: tmp_path / path)

    code = main(["validate", *arguments])

    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert arguments[0] in captured.err
    assert "development install" in captured.err
    assert captured.err.count("\n") == 1
