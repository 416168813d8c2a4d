"""`simserve calibrate check`: exit 99 both ways, Markdown, JSON, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from simserve.calibrate.serving import Fitted, ServingFit
from simserve.calibrate.serving_profile import profile_text
from simserve.calibrate.simulated import PARAMETERS, ServingModel
from tests.calibrate.builders import CHAT, chat, moved, write_benchmarks
from tests.calibrate.test_drift import write_run
from tests.cli.conftest import Simserve


@pytest.fixture
def results(folder: Path) -> list[str]:
    """Return benchmarks of the server of scenario.yaml, as it is simulated."""
    (folder / "scenario.yaml").write_text(yaml.safe_dump(CHAT), encoding="utf-8")
    files = write_benchmarks(folder, ServingModel(chat()).stated)
    return [argument for file in files for argument in ("--against", str(file))]


def scaled(file: Path, factor: float) -> Path:
    """Write a copy of a benchmark whose times are ``factor`` times as long."""
    document = json.loads(file.read_text(encoding="utf-8"))
    for key in document:
        if key.endswith("_ms"):
            document[key] *= factor
        elif key.endswith("throughput"):
            document[key] /= factor
    copy = file.with_name(f"scaled-{file.name}")
    copy.write_text(json.dumps(document), encoding="utf-8")
    return copy


def test_the_same_benchmarks_pass(simserve: Simserve, results: list[str]) -> None:
    """An engine profile by name, at a narrow tolerance."""
    outcome = simserve("calibrate", "check", "vllm", *results, "--scenario", "scenario.yaml", "--tolerance", "0.1%")

    assert outcome.code == 0
    assert outcome.stdout.startswith("vllm still holds: 18 of 18 within the tolerance")


@pytest.mark.parametrize(("factor", "verdict"), [(1.1, "slower"), (0.9, "faster")])
def test_a_tenth_either_way_fails(
    factor: float, verdict: str, simserve: Simserve, results: list[str], folder: Path
) -> None:
    """With 99, and the JSON is printed still."""
    copy = scaled(folder / "run0.json", factor)

    outcome = simserve("calibrate", "check", "vllm", "--against", str(copy), "--scenario", "scenario.yaml", "--json")

    answer = json.loads(outcome.stdout)
    assert outcome.code == 99
    assert answer["passed"] is False
    assert {each["verdict"] for each in answer["compared"]} == {verdict}


@pytest.mark.parametrize(
    ("factor", "code", "told"), [(1.1, 99, "has drifted"), (0.9, 0, "faster than promised"), (1.0, 0, "still holds")]
)
def test_a_promise_is_kept_by_a_faster_server(
    factor: float, code: int, told: str, simserve: Simserve, results: list[str], folder: Path
) -> None:
    """A tenth slower fails as ever, a tenth faster passes and is said."""
    copy = scaled(folder / "run0.json", factor)
    words = ("calibrate", "check", "vllm", "--against", str(copy), "--scenario", "scenario.yaml", "--may-be-faster")

    outcome = simserve(*words)

    assert results
    assert outcome.code == code
    assert told in outcome.stdout.splitlines()[0]


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.1, 99), (0.9, 99)])
def test_runs_of_kernels_are_gated_both_ways(factor: float, code: int, simserve: Simserve, folder: Path) -> None:
    """A hardware profile against a folder of operator tables."""
    run = write_run(folder / "run", factor)

    outcome = simserve("calibrate", "check", "h100-sxm-80gb", "--against", str(run))

    assert outcome.code == code
    assert "products, bfloat16" in outcome.stdout


def test_markdown_for_a_pull_request(simserve: Simserve, folder: Path) -> None:
    """The table that a comment holds."""
    run = write_run(folder / "run", 1.2)

    outcome = simserve("calibrate", "check", "h100-sxm-80gb", "--against", str(run), "--format", "md")

    assert outcome.code == 99
    assert outcome.stdout.startswith("### Calibration of h100-sxm-80gb: **8 of 8 moved**")


def test_a_calibrated_engine_profile_is_checked_in_place_of_the_scenario_s(simserve: Simserve, folder: Path) -> None:
    """The profile's constants count: those of the measured server pass where the bundled ones do not."""
    scenario = chat()
    truth = moved(ServingModel(scenario).stated, compute_efficiency=0.8)
    (folder / "scenario.yaml").write_text(yaml.safe_dump(CHAT), encoding="utf-8")
    file = write_benchmarks(folder, truth)[0]
    fitted = {name: Fitted(value=getattr(truth, name), half_width=0.0) for name in PARAMETERS}
    fit = ServingFit(parameters=fitted, before=truth, after=truth, runs=[], noise=0.01)
    (folder / "mine.yaml").write_text(profile_text(fit, scenario, "mine"), encoding="utf-8")
    arguments = ("--against", str(file), "--scenario", "scenario.yaml")

    assert simserve("calibrate", "check", "mine.yaml", *arguments).code == 0
    assert simserve("calibrate", "check", "vllm", *arguments).code == 99


def test_what_was_just_calibrated_has_not_drifted(simserve: Simserve, folder: Path) -> None:
    """Five factors do not meet every figure: what they miss of their own loads is no drift, but is a broken promise."""
    (folder / "scenario.yaml").write_text(yaml.safe_dump(CHAT), encoding="utf-8")
    file = scaled(write_benchmarks(folder, ServingModel(chat()).stated)[0], 1.0)
    document = json.loads(file.read_text(encoding="utf-8"))
    document["mean_ttft_ms"] *= 1.5
    file.write_text(json.dumps(document), encoding="utf-8")
    simserve("calibrate", "serving", str(file), "--scenario", "scenario.yaml", "--out", "mine.yaml")
    check = ("calibrate", "check", "mine.yaml", "--scenario", "scenario.yaml", "--against", str(file))

    outcome, promise = simserve(*check), simserve(*check, "--may-be-faster")
    slower = simserve(*check[:-1], str(scaled(file, 1.8)))

    assert (outcome.code, promise.code, slower.code) == (0, 99, 99)
    assert "- tolerances above 0.05: as far off as the profile is at the loads it was calibrated on" in outcome.stdout
    assert "tolerances above" not in promise.stdout


def test_the_engine_says_whose_kernels(simserve: Simserve, folder: Path) -> None:
    """vLLM's FP8 products are not TensorRT-LLM's."""
    run = write_run(folder / "run")

    outcome = simserve(
        "calibrate", "check", "h100-sxm-80gb", "--against", str(run), "--engine", "tensorrt-llm", "--json"
    )

    ratios = {each["name"]: each["ratio"] for each in json.loads(outcome.stdout)["compared"]}
    assert ratios["products, bfloat16"] == pytest.approx(1.0)
    assert ratios["products, fp8"] != pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("h300", "--against", "run"), 104, "'h300' is no hardware and no engine profile"),
        (("vllm", "--against", "run"), 2, "is an engine profile: operator tables say nothing of it"),
        (("h100-sxm-80gb", "--against", "run0.json"), 2, "--scenario: is missing"),
        (("h100-sxm-80gb", "--against", "run", "--against", "run0.json"), 2, "must be one folder"),
        (("h100-sxm-80gb", "--against", "run", "--scenario", "chatbot"), 2, "has no use with operator tables"),
        (("h100-sxm-80gb", "--against", "run", "--may-be-faster"), 2, "kernels that are faster need a new profile"),
        (("h100-sxm-80gb", "--against", "run", "--tolerance", "0"), 2, "must be a share between 0 and 1"),
        (("h100-sxm-80gb", "--against", "run", "--format", "pdf"), 2, "must be text or md"),
        (("h100-sxm-80gb", "--against", "run", "--format", "md", "--json"), 2, "cannot be had with --json"),
    ],
)
def test_what_cannot_be_checked_is_refused(
    arguments: tuple[str, ...], code: int, message: str, simserve: Simserve, results: list[str], folder: Path
) -> None:
    """One line, nothing on stdout."""
    (folder / "run").mkdir()

    outcome = simserve("calibrate", "check", *arguments)

    assert outcome.code == code
    assert message in outcome.error_line
    assert outcome.stdout == ""
