"""`simserve validate`: the JSON of the design, the tables, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simserve.cli.main import main
from tests.planner.builders import agg_row, write_csv
from tests.planner.importers.test_bench import PLAIN
from tests.scenario.builders import scenario_mapping

pytestmark = pytest.mark.usefixtures("answered_once")


@pytest.mark.slow
def test_the_json_holds_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    """One object on stdout; without a folder, the published figures."""
    code = main(["validate", "--json", "--jobs", "1"])

    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    named = {
        "groups",
        "bands",
        "sources",
        "not_covered",
        "points",
        "covered",
        "fitted",
        "coverage",
        "memory",
        "overall",
    }
    assert named | {"intervals"} == set(answer)
    assert answer["coverage"]["share"] == 1.0
    group = answer["groups"][0]
    assert {"source", "engine", "hardware", "model", "points", "covered", "metrics"} <= set(group)
    assert {"median_ape", "mean_ape", "p90_ape", "bias"} <= set(group["metrics"]["tpot"])


def test_a_source_of_a_folder_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And only that one."""
    write_csv(tmp_path, "inferencex_agg.csv", [agg_row(), agg_row(model="no-such-model")])

    code = main(["validate", "--data", str(tmp_path), "--source", "inferencex_agg", "--json"])

    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (answer["points"], answer["covered"]) == (2, 1)
    assert answer["not_covered"][0]["points"] == 1


def test_the_table_says_what_was_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the reason and how many."""
    write_csv(tmp_path, "inferencex_agg.csv", [agg_row(), agg_row(model="no-such-model")])

    main(["validate", "--data", str(tmp_path), "--source", "inferencex_agg"])

    printed = capsys.readouterr().out
    assert "1 of 2 points were run" in printed
    assert "no-such-model" in printed


def test_points_and_page_are_written(tmp_path: Path) -> None:
    """CSV or Parquet by the ending; the page carries the date of the flag."""
    page = ["--accuracy", str(tmp_path / "A.md"), "--date", "2026-11-30"]
    write_csv(tmp_path, "inferencex_agg.csv", [agg_row()])
    few = ["--data", str(tmp_path), "--source", "inferencex_agg"]

    codes = [
        main(["validate", "--quiet", *more, "--out", str(tmp_path / f"points.{ending}")])
        for ending, more in (("csv", page), ("parquet", few))
    ]

    assert codes == [0, 0]
    assert "2026-11-30" in (tmp_path / "A.md").read_text(encoding="utf-8")
    assert (tmp_path / "points.csv").read_text(encoding="utf-8").startswith("source,")
    assert (tmp_path / "points.parquet").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--source", "nowhere"], "not a known source"),
        (["--data", "no-such-folder"], "not a folder"),
        (["--out", "points.xlsx"], ".parquet or .csv"),
        (["--accuracy", "A.md"], "--date"),
        (["--out", "no-such-folder/points.csv"], "cannot be written"),
    ],
)
def test_wrong_flags_are_refused_before_anything_runs(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, nothing on stdout."""
    code = main(["validate", *arguments])

    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert said in captured.err


def test_the_sources_there_are_stand_once_beside_a_wrong_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is like none gets the list of all, one that is like another gets that and the list."""
    for name in ("nosuch", "vllm-itl"):
        assert main(["validate", "--source", name]) == 2

        assert capsys.readouterr().err.count("mlperf_official") == 1, name


def test_a_source_without_data_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 104: an input is missing."""
    code = main(["validate", "--source", "inferencex_agg"])

    assert code == 104
    assert "inferencex_agg.csv" in capsys.readouterr().err


@pytest.mark.slow
def test_own_measurements_are_replayed_alone_or_beside_a_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file is a source of its own in the intervals; the published figures come only where they are asked for."""
    server = {
        "name": "s",
        "model": "llama-3.1-8b",
        "deployment": {"hardware": "h100-sxm-80gb", "engine": {"name": "vllm", "version": "0.12.0"}},
        "runs": [
            {"name": "c2", "clients": 2, "requests": 6, "prompt": 100, "output": 20, "measured": {"tpot": "7 ms"}}
        ],
    }
    files = [str(tmp_path / name) for name in ("a.yaml", "b.yaml")]
    for file in files:
        Path(file).write_text(json.dumps({"servers": [server]}), encoding="utf-8")

    answers = []
    for extra in ([], ["--source", "published"]):
        assert main(["validate", *files, *extra, "--json", "--jobs", "1"]) == 0
        answers.append(json.loads(capsys.readouterr().out))

    alone, beside = answers
    assert [each["source"] for each in alone["sources"]] == ["own"]
    assert alone["points"] == 2
    assert {row["sources"] for row in alone["intervals"]} == {2}
    assert {each["source"] for each in beside["sources"]} == {"own", "published"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("servers: []", "must hold servers or kv_rooms"),
        ("model: llama-3.1-8b", "model: is not a known key"),
        ("kv_rooms: [{name: k, model: m, deployment: {}}]", "needs tokens or gib"),
    ],
)
def test_a_file_of_measurements_that_is_wrong_is_named(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 104, the file and what is wrong with it."""
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")

    code = main(["validate", str(file)])

    captured = capsys.readouterr()
    assert code == 104
    assert "mine.yaml" in captured.err
    assert said in captured.err


def test_a_result_of_a_benchmark_names_the_commands_that_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, where every field of it was an unknown key."""
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(PLAIN), encoding="utf-8")

    assert main(["validate", str(file)]) == 104
    assert capsys.readouterr().err.splitlines() == [
        f"simserve: error: {file}: is a result of vllm bench serve, not a file of measurements; simserve import bench "
        f"{file} makes a scenario of it, simserve calibrate serving {file} fits to it"
    ]


def test_a_scenario_names_the_command_that_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, where every key of it was an unknown one."""
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(scenario_mapping()), encoding="utf-8")

    assert main(["validate", str(file)]) == 104
    assert capsys.readouterr().err.splitlines() == [
        f"simserve: error: {file}: is a scenario, not a file of measurements; simserve run {file} runs it; put what "
        "was measured under servers (docs/measurements.md)"
    ]
