"""`simserve calibrate serving`: JSON, table, the written profile, and what is refused before anything is simulated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from simserve.calibrate.simulated import ServingModel
from tests.calibrate.builders import CHAT, chat, moved, write_benchmarks
from tests.cli.conftest import Simserve

FIT = ("--fit", "compute_efficiency")


@pytest.fixture
def files(folder: Path) -> list[str]:
    """Return benchmarks of a server with slower kernels, beside scenario.yaml."""
    (folder / "scenario.yaml").write_text(yaml.safe_dump(CHAT), encoding="utf-8")
    truth = moved(ServingModel(chat()).stated, compute_efficiency=0.8)
    return [str(file) for file in write_benchmarks(folder, truth)[:2]]


@pytest.mark.slow
def test_the_json_holds_parameters_and_errors(simserve: Simserve, files: list[str]) -> None:
    """One object: the constants with their intervals, and figures before and after."""
    outcome = simserve("calibrate", "serving", *files, "--scenario", "scenario.yaml", *FIT, "--json")

    answer = json.loads(outcome.stdout)
    assert outcome.code == 0
    assert answer["parameters"]["compute_efficiency"]["value"] == pytest.approx(0.8, rel=0.02)
    assert answer["parameters"]["host_seconds_per_step"]["half_width_95"] is None
    assert answer["median_error"]["tpot"]["before"] > 0.05 > answer["median_error"]["tpot"]["after"]
    assert answer["runs"][0]["figures"]["median_tpot"].keys() == {"measured", "before", "after", "held_out"}
    assert answer["runs"][0]["definitions"]["tpot"].startswith("tpot_ms: (latency - ttft)")
    assert answer["file"] is None


def test_the_table_shows_before_and_after_and_writes_the_profile(
    simserve: Simserve, files: list[str], folder: Path
) -> None:
    """The profile runs in a scenario by its path."""
    outcome = simserve("calibrate", "serving", *files, "--scenario", "scenario.yaml", *FIT, "--out", "mine.yaml")

    assert outcome.code == 0
    assert "kernel efficiency: 1.000 -> 0.8" in outcome.stdout
    assert "median error: TTFT" in outcome.stdout
    assert "run1.json, 1 client" in outcome.stdout
    assert "lengths are drawn as the scenario's workload says" in outcome.stdout
    assert yaml.safe_load((folder / "mine.yaml").read_text(encoding="utf-8"))["base"] == "vllm"
    again = simserve("memory", "scenario.yaml", "--set", "deployment.engine.name=./mine.yaml")
    assert again.code == 0
    exported = simserve("export", "scenario.yaml", "--to", "vllm", "--set", "deployment.engine.name=./mine.yaml")
    assert exported.code == 0
    assert "simulates ./mine.yaml" not in exported.stdout + exported.stderr
    assert exported.stdout.startswith("vllm serve meta-llama/Llama-3.1-8B")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("none.json", "--scenario", "scenario.yaml"), 104, "none.json: no such file"),
        (("scenario.yaml", "--scenario", "scenario.yaml"), 104, "is not a result of a known tool"),
        (("run0.json", "--scenario", "scenario.yaml", "--fit", "luck"), 2, "--fit: 'luck' is no parameter"),
        (("run0.json", "--scenario", "scenario.yaml", "--statistic", "p99"), 2, "must be median or mean"),
        (("run0.json", "--scenario", "scenario.yaml", "--out", "mine.json"), 2, "must end in .yaml"),
        (("run0.json", "--scenario", "scenario.yaml", "--out", "no/mine.yaml"), 2, "no such folder"),
        (("run0.json", "--scenario", "scenario.yaml", "--out", "scenario.yaml"), 2, "is there already"),
        (
            ("run0.json", "--scenario", "scenario.yaml", *FIT, "--set", "deployment.engine.max_model_len=300"),
            3,
            "cannot be served by the scenario's deployment",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    arguments: tuple[str, ...], code: int, message: str, simserve: Simserve, files: list[str]
) -> None:
    """With the documented exit code, and nothing on stdout."""
    outcome = simserve("calibrate", "serving", *arguments)

    assert outcome.code == code
    assert message in outcome.error_line
    assert outcome.stdout == ""


LOG = (
    "INFO 03-14 [gpu_worker.py:1] vLLM API server version 0.8.5\n"
    "INFO 03-14 [kv_cache_utils.py:634] GPU KV cache size: 32,000 tokens\n"
)


@pytest.fixture
def quick(files: list[str], folder: Path) -> list[str]:
    """Return one file of one client, beside a scenario with few seats."""
    engine = {**CHAT["deployment"]["engine"], "max_num_seqs": 4}
    scenario = {**CHAT, "deployment": {**CHAT["deployment"], "engine": engine}}
    (folder / "scenario.yaml").write_text(yaml.safe_dump(scenario), encoding="utf-8")
    return files[1:]


def test_one_file_moves_factors_and_names_the_next_load(simserve: Simserve, quick: list[str], folder: Path) -> None:
    """Without --fit five factors are fitted; the profile holds them, and the table says that one run holds none out."""
    (folder / "server.log").write_text(LOG, encoding="utf-8")
    options = ("--log", "server.log", "--date", "2026-03-14", "--out", "mine.yaml")

    outcome = simserve("calibrate", "serving", *quick, "--scenario", "scenario.yaml", *options)

    assert outcome.code == 0
    assert "these files are not of" not in outcome.stderr
    assert "GPU time of a step: x 1." in outcome.stdout
    assert "leave-one-out error: from three runs up; here there is one" in outcome.stdout
    assert "next load worth measuring: 4 clients" in outcome.stdout
    assert "vllm bench serve --model llama" in outcome.stdout
    assert "deployment.engine.num_gpu_blocks_override=2000" in outcome.stdout
    factors = yaml.safe_load((folder / "mine.yaml").read_text(encoding="utf-8"))["defaults"]["measured_factors"]
    assert factors["gpu"] > 1.02
    assert factors["date"] == "2026-03-14"


def test_files_of_quite_another_server_are_doubted(simserve: Simserve, quick: list[str], folder: Path) -> None:
    """No factor explains a server that is a hundred times slower: the line says so, and no factor is called near."""
    document = json.loads((folder / quick[0]).read_text(encoding="utf-8"))
    document |= {name: 100 * value for name, value in document.items() if name.endswith("_ms")}
    (folder / "other.json").write_text(json.dumps(document), encoding="utf-8")

    outcome = simserve("calibrate", "serving", "other.json", "--scenario", "scenario.yaml")

    assert outcome.code == 0
    assert "these files are not of the scenario's GPU, model, engine version or settings" in outcome.stderr
    assert "times off (median)" in outcome.stderr


def test_ranges_that_miss_their_own_runs_are_not_to_be_relied_on(
    simserve: Simserve, quick: list[str], folder: Path
) -> None:
    """First tokens far sooner than any factor explains: the line says so, and that ranges are as wide."""
    document = json.loads((folder / quick[0]).read_text(encoding="utf-8"))
    document |= {name: value / 2.5 for name, value in document.items() if name.endswith("_ttft_ms")}
    (folder / "other.json").write_text(json.dumps(document), encoding="utf-8")

    sound = simserve("calibrate", "serving", *quick, "--scenario", "scenario.yaml")
    other = simserve("calibrate", "serving", "other.json", "--scenario", "scenario.yaml")

    assert (sound.code, other.code) == (0, 0)
    assert "Warning: the fit misses" not in sound.stdout
    said = " ".join(other.stdout.split())
    assert (
        "Warning: in TTFT of 1 of 1 run the fit is further off than that of nine in ten calibrated servers: check"
        in said
    )
    assert "Ranges of simserve run on the written profile are as wide as that" in said


@pytest.mark.parametrize(
    ("changes", "arguments", "code", "message"),
    [
        ({"model_id": "Qwen/Qwen3-32B"}, (), 104, "was measured with another model than the scenario's llama-3.1-8b"),
        ({}, ("--log", "empty.log"), 104, "holds no start-up line"),
        ({}, ("--date", "yesterday"), 2, "must be a day such as"),
        ({}, ("--date", "2026-03-14", *FIT), 2, "goes with the five factors alone"),
    ],
)
def test_what_does_not_go_with_a_server_is_refused(
    changes: dict[str, str],
    arguments: tuple[str, ...],
    code: int,
    message: str,
    simserve: Simserve,
    quick: list[str],
    folder: Path,
) -> None:
    """Another model, a log without a start, a word for a date: one line, and nothing on stdout."""
    file = Path(quick[0])
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    (folder / "empty.log").write_text("nothing\n", encoding="utf-8")

    outcome = simserve("calibrate", "serving", *quick, "--scenario", "scenario.yaml", *arguments)

    assert outcome.code == code
    assert message in outcome.error_line
    assert outcome.stdout == ""
