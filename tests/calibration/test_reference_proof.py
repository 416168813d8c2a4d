"""The whole proof on a model of one layer: every file is there, and says what it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from simserve.workload.benchmarks.reading import read_results

ROOT = Path(__file__).resolve().parents[2]
SMALL = (
    "--max-num-seqs",
    "2",
    "--max-num-batched-tokens",
    "16",
    "--prompts",
    "4:20",
    "--outputs",
    "2:4",
    "--requests",
    "6",
)


@pytest.fixture(scope="module", autouse=True)
def torch() -> Any:
    """Return PyTorch; imported where these tests run, not wherever they are collected."""
    return pytest.importorskip("torch", reason="the reference server's model needs PyTorch")


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Return a model of one narrow layer."""
    profile = yaml.safe_load((ROOT / "calibration/reference_server/tiny.yaml").read_text(encoding="utf-8"))
    profile |= {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "vocab_size": 64}
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(profile | {"name": "small"}), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("clock", ["wall", "processor"])
def test_the_proof_writes_runs_fits_and_comparison(
    clock: str,
    model: str,
    torch: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Four loads as detailed results, errors beside them, and the settings that led to them."""
    from calibration.reference_server.__main__ import main

    out = tmp_path / "run"
    monkeypatch.setattr(sys, "argv", ["", "--out", str(out), "--model", model, "--clock", clock, *SMALL])

    assert main() == 0

    loads = json.loads((out / "comparison.json").read_text(encoding="utf-8"))["loads"]
    assert [each["load"] for each in loads] == ["closed", "poisson-30", "poisson-60", "poisson-90"]
    assert all(set(each["error"]) == set(each["measured"]) for each in loads)
    results = read_results([out / f"{each['load']}.json" for each in loads])
    assert results[0].arrivals == {"process": "closed_loop", "concurrency": 2}
    assert results[2].arrivals["process"] == "poisson"
    facts = json.loads((out / "provenance.json").read_text(encoding="utf-8"))
    assert facts["clock"] == clock
    assert facts["limits"]["max_num_seqs"] == 2
    assert facts["torch"] == torch.__version__
    assert "| poisson-60, " in capsys.readouterr().out
    assert main() == 2  # the folder holds a run now
    assert "holds something already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--clock", "processor", "--threads", "2"), "kernels must run on one thread"),
        (("--device", "cuda"), "PyTorch sees no GPU here"),
    ],
)
def test_what_cannot_be_run_here_is_said(
    flags: tuple[str, ...],
    message: str,
    torch: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is measured."""
    from calibration.reference_server.__main__ import main

    if "cuda" in flags and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.setattr(sys, "argv", ["", "--out", str(tmp_path / "run"), *flags])

    assert main() == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_unchunked_prompts_few_layers_and_16_bit(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The flags reach scheduler and model."""
    from calibration.reference_server.__main__ import main

    out = tmp_path / "run"
    flags = ["--no-chunked-prefill", "--layers", "1", "--dtype", "bf16", *SMALL, "--max-num-batched-tokens", "32"]
    monkeypatch.setattr(sys, "argv", ["", "--out", str(out), "--model", model, "--clock", "processor", *flags])

    assert main() == 0

    facts = json.loads((out / "provenance.json").read_text(encoding="utf-8"))
    assert facts["limits"]["enable_chunked_prefill"] is False
    assert facts["model"]["num_hidden_layers"] == 1
    assert facts["dtype"] == "bf16"
    assert "unchunked prefill" in capsys.readouterr().out
