"""`simserve calibrate kernels` and `fit` as a person meets them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from tests.calibrate.synthetic_run import write_run
from tests.cli.conftest import Simserve

SMALL = ["--set", "workload.num_requests=50", "--set", "model=llama-3.1-8b", "--set", "deployment.quantization=none"]
ONE_GPU = ["--set", "deployment.tensor_parallel_size=1", "--set", "deployment.kv_cache_dtype=auto"]


def test_without_pytorch_it_says_what_to_install(simserve: Simserve, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, exit code 2, no folder."""
    monkeypatch.setitem(sys.modules, "torch", None)

    outcome = simserve("calibrate", "kernels", "--out", "run")

    assert outcome.code == 2
    assert outcome.error_line == (
        "measuring kernels needs PyTorch, which is not installed; pip install 'simserve[calibrate]'"
    )
    assert not Path("run").exists()


@pytest.mark.parametrize("budget", ["5", "soon", "0 s", "3 GB"])
def test_a_budget_is_a_time(simserve: Simserve, budget: str) -> None:
    """Refused before anything is imported."""
    outcome = simserve("calibrate", "kernels", "--out", "run", "--budget", budget)

    assert outcome.code == 2
    assert outcome.error_line.startswith("--budget: ")


@pytest.mark.slow
def test_fit_writes_a_profile_that_runs_take(simserve: Simserve) -> None:
    """With fidelity fitted, and a plot beside it."""
    write_run(Path("x1000"))

    fitted = simserve("calibrate", "fit", "x1000", "--out", "mine.yaml", "--json")
    outcome = simserve("run", "chatbot", *SMALL, *ONE_GPU, "--set", "deployment.hardware=mine.yaml", "--json")

    assert fitted.code == 0
    summary = json.loads(fitted.stdout)
    assert (summary["profile"], summary["plot"], summary["is_complete"]) == ("mine.yaml", "mine.svg", True)
    compute = summary["kinds"]["products bfloat16"]["constants"]["compute_flop_per_s"]
    assert compute["low"] <= 8e14 <= compute["high"]
    assert summary["kinds"]["decode attention"]["held_out_error"] < 0.05
    assert Path("mine.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert outcome.code == 0
    result = json.loads(outcome.stdout)["simserve"]
    assert result["fidelity"] == "fitted"
    assert not any("incomplete" in note for note in result["engine_resolved"]["notes"])


def test_the_tables_of_a_run_are_operator_tables(simserve: Simserve) -> None:
    """The folder itself is what deployment.operator_tables takes."""
    folder = write_run(Path("x1000")).resolve()
    settings = ["--set", "deployment.hardware=h100-sxm-80gb", "--set", f"deployment.operator_tables={folder}"]

    outcome = simserve("run", "chatbot", *SMALL, *ONE_GPU, *settings, "--json")

    assert outcome.code == 0
    assert json.loads(outcome.stdout)["simserve"]["fidelity"] == "measured"


def test_an_incomplete_run_says_so_wherever_its_fit_goes(simserve: Simserve) -> None:
    """On the terminal, in JSON, in the profile, and in every result of a run on it."""
    gpu = "NVIDIA H100 80GB HBM3"
    write_run(Path("half"), kinds=("copies", "element-wise"), keep=0.5, ended="killed", device_name=gpu)

    shown = simserve("calibrate", "fit", "half")
    as_json = simserve("calibrate", "fit", "half", "--json")
    run = simserve("run", "chatbot", *SMALL, *ONE_GPU, "--set", "deployment.hardware=half/profile.yaml", "--json")

    assert shown.code == 0
    assert "WARNING: the run is INCOMPLETE, it was killed or is still running" in shown.stdout
    assert json.loads(as_json.stdout)["is_complete"] is False
    text = Path("half/profile.yaml").read_text(encoding="utf-8")
    assert "# Run half: INCOMPLETE" in text
    assert yaml.safe_load(text)["calibration"]["is_complete"] is False
    notes = json.loads(run.stdout)["simserve"]["engine_resolved"]["notes"]
    assert any("fitted to an incomplete measurement (killed, " in note for note in notes)


def test_too_few_calls_for_anything_write_nothing(simserve: Simserve) -> None:
    """It says how to go on."""
    write_run(Path("few"), keep=0.01)

    outcome = simserve("calibrate", "fit", "few")

    assert outcome.code == 2
    assert "holds too few calls for any fit" in outcome.error_line
    assert outcome.error_line.endswith("simserve calibrate kernels --out few goes on with it")
    assert not Path("few/profile.yaml").exists()


def test_the_bundled_profile_of_the_same_gpu_is_the_base(simserve: Simserve) -> None:
    """Unless another one is named, or none."""
    write_run(Path("h100"), kinds=("copies",), device_name="NVIDIA H100 80GB HBM3")

    bases = [
        json.loads(simserve("calibrate", "fit", "h100", "--json", *more).stdout)["base"]
        for more in ([], ["--base", "none"], ["--base", "h200-sxm-141gb"])
    ]

    assert bases == ["h100-sxm-80gb", None, "h200-sxm-141gb"]


def test_another_profile_is_not_overwritten(simserve: Simserve) -> None:
    """The same run may be fitted again; anything else needs --force."""
    write_run(Path("one"), kinds=("copies",))
    write_run(Path("two"), kinds=("copies",))
    Path("notes.yaml").write_text("mine: 1\n", encoding="utf-8")
    codes = [simserve("calibrate", "fit", "one", "--out", "p.yaml").code for _ in range(2)]

    other = simserve("calibrate", "fit", "two", "--out", "p.yaml")
    notes = simserve("calibrate", "fit", "two", "--out", "notes.yaml")
    forced = simserve("calibrate", "fit", "two", "--out", "p.yaml", "--force")

    assert codes == [0, 0]
    assert (other.code, notes.code, forced.code) == (2, 2, 0)
    assert "is no fit of this run" in other.error_line
    assert Path("notes.yaml").read_text(encoding="utf-8") == "mine: 1\n"


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["missing"], 104, "missing: is no folder"),
        (["."], 104, "provenance.json: no such file"),
        (["x1000", "--out", "profile.txt"], 2, "must end in .yaml or .yml"),
        (["x1000", "--out", "nowhere/profile.yaml"], 2, "no such folder"),
        (["x1000", "--plot", "roof.pdf"], 2, "must end in .svg or .png"),
        (["x1000", "--base", "h1000"], 104, "is not a known hardware"),
    ],
)
def test_bad_arguments_are_refused_in_a_line(
    simserve: Simserve, arguments: list[str], code: int, complaint: str
) -> None:
    """File, key, rule; nothing is written."""
    write_run(Path("x1000"), kinds=("copies",))

    outcome = simserve("calibrate", "fit", *arguments)

    assert outcome.code == code
    assert complaint in outcome.error_line


@pytest.mark.slow
def test_the_plot_may_be_a_png_and_is_the_same_twice(simserve: Simserve) -> None:
    """Same run, same bytes."""
    write_run(Path("x1000"), kinds=("products bfloat16",))

    for name in ("a", "b"):
        assert simserve("calibrate", "fit", "x1000", "--plot", f"{name}.png", "-q").stdout == ""

    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    assert Path("a.png").read_bytes() == Path("b.png").read_bytes()


@pytest.mark.parametrize("command", ["kernels", "fit"])
def test_the_commands_have_help(simserve: Simserve, command: str) -> None:
    """With an example."""
    stdout = simserve("calibrate", command, "--help").stdout

    assert f"simserve calibrate {command}" in stdout
