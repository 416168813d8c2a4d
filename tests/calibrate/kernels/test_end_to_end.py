"""From this CPU's kernels to a simulation on its profile, as a person would go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from simserve.cli.main import main
from tests.scenario.builders import scenario_mapping

SCENARIO = scenario_mapping(
    model="qwen2.5-0.5b",
    deployment={"hardware": "cpu.yaml", "engine": {"name": "vllm", "version": "0.12", "max_model_len": 2048}},
)


NEEDED = {"products bfloat16", "prefill attention", "decode attention"}
MAX_ROUNDS = 6
"""Ten seconds are enough on a quiet machine; a busy one takes the same run up again."""


@pytest.mark.slow
def test_measure_fit_and_run(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """Ten seconds of measuring, a fit, and a run of fidelity fitted."""
    monkeypatch.chdir(tmp_path)
    points = 0
    for _ in range(MAX_ROUNDS):
        assert main(["calibrate", "kernels", "--device", "cpu", "--budget", "10s", "--out", "run", "--json"]) == 0
        measured = json.loads(capfd.readouterr().out)
        assert measured["measured_points"] >= points
        points = measured["measured_points"]
        is_fitted = main(["calibrate", "fit", "run", "--out", "cpu.yaml", "--json"]) == 0
        fitted = capfd.readouterr().out
        if is_fitted and set(json.loads(fitted)["kinds"]) >= NEEDED:
            break
    Path("scenario.yaml").write_text(yaml.safe_dump(SCENARIO), encoding="utf-8")

    code = main(["run", "scenario.yaml", "--json"])

    result = json.loads(capfd.readouterr().out)
    assert code == 0
    assert result["completed"] == 20
    assert result["simserve"]["fidelity"] == "fitted"
    assert any("incomplete measurement" in note for note in result["simserve"]["engine_resolved"]["notes"])
