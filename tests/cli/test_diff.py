"""`simserve diff`: text, Markdown and JSON say the same; exit codes gate a build."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import simserve as ss
from simserve.metrics.files import write_result
from simserve.scenario.run import run
from tests.cli.conftest import Simserve
from tests.scenario.builders import make_scenario


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return two results that differ in the format of the weights, and the flag that lets them."""
    folder = tmp_path_factory.mktemp("results")
    for name, overrides in {"before": [], "after": ["deployment.quantization=fp8"]}.items():
        write_result(run(make_scenario(overrides)), folder / name)
    return [str(folder / "before"), str(folder / "after"), "--allow", "scenario"]


def test_equal_results_are_0(simserve: Simserve, results: list[str]) -> None:
    """Nothing moved, nothing fails."""
    outcome = simserve("diff", results[0], results[0], "--tolerance", "1%")

    assert (outcome.code, outcome.stdout.splitlines()[0]) == (0, "Nothing moved: 43 figures are equal.")


def test_a_move_beyond_tolerance_is_99(simserve: Simserve, results: list[str]) -> None:
    """The table says which."""
    outcome = simserve("diff", *results, "--tolerance", "5%")

    assert outcome.code == 99
    assert "watched figures moved beyond their tolerance" in outcome.stdout
    assert "too far: 5% is tolerated" in outcome.stdout
    assert "deployment.quantization: auto → fp8" in outcome.stdout


def test_other_scenarios_do_not_pass_a_gate_unless_allowed(simserve: Simserve, results: list[str]) -> None:
    """Without a tolerance they are laid side by side."""
    before, after = results[:2]
    shown, judged = simserve("diff", before, after), simserve("diff", before, after, "--tolerance", "90%")

    assert (shown.code, judged.code) == (0, 99)
    assert "Compared although they differ in scenario." in shown.stdout
    assert judged.stdout.startswith("The gate fails: the results are of different scenarios or seeds")
    assert simserve("diff", *results, "--tolerance", "90%").code == 0


def test_a_move_within_tolerance_is_0(simserve: Simserve, results: list[str]) -> None:
    """Also of a single figure."""
    assert simserve("diff", *results, "--tolerance", "90%").code == 0
    assert simserve("diff", *results, "--tolerance", "mean_tpot_ms=90%").code == 0
    assert simserve("diff", *results, "--tolerance", "mean_tpot_ms=1%").code == 99


def test_json_and_markdown_hold_the_same_figures(simserve: Simserve, results: list[str]) -> None:
    """`--json` is `--format json`."""
    found = json.loads(simserve("diff", *results, "--json").stdout)
    markdown = simserve("diff", *results, "--format", "md").stdout

    assert found == json.loads(simserve("diff", *results, "--format", "json").stdout)
    assert found["metrics"]["mean_tpot_ms"]["relative"] < -0.05
    assert f"| mean_tpot_ms | {found['metrics']['mean_tpot_ms']['a']:.3f} |" in markdown
    assert markdown.startswith("**")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["before", "nowhere"], 104, "no such file"),
        (["before", "before", "--tolerance", "five"], 2, "--tolerance: 'five' must be a share"),
        (["before", "before", "--tolerance", "p99=5%"], 2, "not a figure"),
        (["before", "before", "--format", "pdf"], 2, "text, md, json"),
        (["before", "before", "--allow", "anything"], 2, "scenario, version"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    simserve: Simserve, results: list[str], arguments: list[str], code: int, said: str
) -> None:
    """One line, nothing on stdout."""
    names = {"before": results[0], "after": results[1]}
    outcome = simserve("diff", *(names.get(argument, argument) for argument in arguments))

    assert (outcome.code, outcome.stdout) == (code, "")
    assert said in outcome.error_line


def test_the_python_answer_shows_itself(results: list[str]) -> None:
    """With the same words."""
    found = ss.diff(results[0], results[1], allow=["scenario"])

    assert found.moved
    assert "figures moved" in found._repr_html_()


@pytest.mark.parametrize(
    ("figure", "file", "said"),
    [
        (1.0, "", "holds a result.json or scenario.resolved.yaml that is not what the run wrote"),
        ("fast", "/result.json", "mean_ttft_ms: 'fast' must be a number"),
    ],
)
def test_a_changed_result_is_104(
    simserve: Simserve, results: list[str], tmp_path: Path, figure: object, file: str, said: str
) -> None:
    """A folder by what its requests say of it; a file alone by its figures."""
    shutil.copytree(results[0], tmp_path / "changed")
    path = tmp_path / "changed" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "mean_ttft_ms": figure}))

    outcome = simserve("diff", results[0], f"{tmp_path}/changed{file}")

    assert (outcome.code, outcome.stdout) == (104, "")
    assert said in outcome.error_line


def test_a_figure_many_times_as_large_is_told_as_that(simserve: Simserve, results: list[str], tmp_path: Path) -> None:
    """Nobody reads +512710%."""
    found = json.loads((Path(results[0]) / "result.json").read_text(encoding="utf-8"))
    for name, value in {"before": 30.0, "after": 172670.0}.items():
        (tmp_path / name).write_text(json.dumps(found | {"p95_ttft_ms": value}), encoding="utf-8")

    outcome = simserve("diff", str(tmp_path / "before"), str(tmp_path / "after"))

    assert "figures moved, most of all p95_ttft_ms: 5,756x." in outcome.stdout
