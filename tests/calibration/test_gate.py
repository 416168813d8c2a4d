"""The committed calibration: a change of the model that moves a figure fails here until it is accepted."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from calibration.gate import accept
from simserve.calibrate.drift import read_tables
from simserve.calibrate.kernel_prediction import predicted
from simserve.profiles.hardware import load_hardware
from tests.cli.conftest import Simserve, simserve  # noqa: F401 (a fixture)

TOLERANCE = "0.5%"
ACCEPT = "run python -m calibration.gate.accept, and put old -> new into the changelog"


def hardware_of(scenario: Path) -> str:
    """Return the hardware profile of a scenario of the gate."""
    return str(yaml.safe_load(scenario.read_text(encoding="utf-8"))["deployment"]["hardware"])


@pytest.mark.parametrize("scenario", [each for each, _ in accept.serving_files()], ids=lambda path: path.stem)
def test_no_served_figure_has_moved(scenario: Path, simserve: Simserve) -> None:  # noqa: F811
    """TTFT, TPOT and throughput of three loads a deployment, by the command that CI runs."""
    file = str(scenario.with_suffix(".csv"))
    outcome = simserve(
        "calibrate", "check", hardware_of(scenario), "--against", file, "--scenario", str(scenario),
        "--tolerance", TOLERANCE,
    )  # fmt: skip

    assert outcome.code == 0, f"{outcome.stdout}\n{ACCEPT}"


@pytest.mark.parametrize("folder", accept.kernel_folders(), ids=lambda path: path.name)
def test_no_call_has_moved(folder: Path) -> None:
    """Products, attention and all-reduce of the bundled profiles, each call of them."""
    hardware = load_hardware(folder.name)

    for table, columns in read_tables(folder, accept.ENGINE).items():
        ratios = predicted(table, columns, hardware, accept.ENGINE) / columns["seconds"]
        assert np.all(np.abs(ratios - 1.0) < 0.005), f"{folder.name} {table}: {ratios.tolist()}; {ACCEPT}"


def test_a_moved_model_fails_with_what_moved(simserve: Simserve, tmp_path: Path) -> None:  # noqa: F811
    """A bandwidth 3 % lower than calibrated moves TPOT, and the command says which figures by how much."""
    source = Path(accept.GATE).parents[1] / "hardware_profiles" / "h100-sxm-80gb.yaml"
    document = yaml.safe_load(source.read_text(encoding="utf-8"))
    document["memory"]["bandwidth"] = "3.25 TB/s"
    changed = tmp_path / "changed.yaml"
    changed.write_text(yaml.safe_dump(document | {"name": "changed"}), encoding="utf-8")
    scenario = accept.GATE / "serving" / "llama-3.1-8b-h100.yaml"

    outcome = simserve(
        "calibrate", "check", str(changed), "--against", str(scenario.with_suffix(".csv")),
        "--scenario", str(scenario), "--tolerance", TOLERANCE,
    )  # fmt: skip

    assert outcome.code == 99
    assert "rate 2, mean tpot" in outcome.stdout
    assert "faster" in outcome.stdout  # what was calibrated is faster than this model


def test_accepting_writes_the_present_figures_and_says_what_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old -> new of every figure; nothing the second time, and loads stay as they are."""
    shutil.copytree(accept.GATE, tmp_path / "gate", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(accept, "GATE", tmp_path / "gate")
    file = tmp_path / "gate" / "kernels" / "a100-sxm-80gb" / "custom_allreduce_perf.csv"
    right = file.read_text(encoding="utf-8")
    first = right.splitlines()[1]
    file.write_text(right.replace(first, "float16,2,4096,9.0"), encoding="utf-8")

    moved = accept.accept_kernels(file.parent)

    assert len(moved) == 1
    assert "float16, 2, 4096: latency 9.0 -> " in moved[0]
    assert file.read_text(encoding="utf-8") == right
    assert accept.accept_kernels(file.parent) == []
