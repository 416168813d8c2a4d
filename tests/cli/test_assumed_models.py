"""A model whose architecture is assumed leads every answer with a warning and carries no measured error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simserve.profiles.catalog import load_model
from tests.cli.conftest import Simserve

CONFIG = {
    "model_type": "novel",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
WARNED = "the architecture 'novel' of novel is not known"
SLO = 'slo={ttft: "200 ms", tpot: "50 ms", attainment: 0.9}'
QUICK = {
    "run": [],
    "memory": [],
    "sweep": ["--grid", "deployment.engine.max_num_seqs=8", "--out", "x.parquet", "--workers", "1", "--force"],
}
SLOW = {
    "capacity": ["--set", SLO, "--requests", "100", "--replications", "2"],
    "compare": ["--with", "fp8: deployment.quantization=fp8", "--replications", "2"],
    "plan": ["--set", SLO, "--hardware", "h100-sxm-80gb", "--max-gpus", "2"],
    "cost": ["--set", "pricing={api: gpt-4o}"],
}
COMMANDS = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.fixture
def novel(folder: Path, small: str) -> list[str]:
    """Return the arguments that serve a model of an unknown architecture with the small scenario."""
    (folder / "novel.json").write_text(json.dumps(CONFIG))
    return [small, "--set", "model=novel.json", "--set", "workload.num_requests=50"]


def test_an_unknown_architecture_is_marked_and_a_known_one_is_not(folder: Path) -> None:
    """The profile says so itself, also when it is written down and read again."""
    (folder / "novel.json").write_text(json.dumps(CONFIG))
    (folder / "known.json").write_text(json.dumps(CONFIG | {"model_type": "llama"}))
    novel, known = load_model("novel.json"), load_model("known.json")

    assert novel.is_assumed
    assert (novel.assumption or "").startswith(WARNED)
    assert known.assumption is None


@pytest.mark.parametrize("command", COMMANDS)
def test_every_answer_begins_with_the_warning(simserve: Simserve, novel: list[str], command: str) -> None:
    """First line on the terminal, first of the lists of the JSON."""
    asked = [command, *novel, *(QUICK | SLOW)[command]]

    words, answer = simserve(*asked), json.loads(simserve(*asked, "--json").stdout)

    found = answer["simserve"]["warnings"] if command == "run" else answer["warnings"]
    assert words.stdout.startswith(f"Warning: {WARNED}"), words.stderr
    assert found[0].startswith(WARNED)
    assert len(found) == 1


def test_an_export_says_it(simserve: Simserve, novel: list[str]) -> None:
    """Beside the command, as a note."""
    answer = json.loads(simserve("export", *novel, "--to", "vllm", "--json").stdout)

    assert answer["notes"][0].startswith(WARNED)


def test_the_report_shows_it_before_the_figures(simserve: Simserve, novel: list[str], folder: Path) -> None:
    """In the head of the page."""
    simserve("run", *novel, "--out", str(folder / "out"))
    page = (folder / "out" / "report.html").read_text()

    assert page.index("is not known: it is read as a Llama") < page.index("<main>")


@pytest.mark.parametrize(
    ("model", "is_measured"),
    [("novel.json", False), ("known.json", True), ("qwen3-30b-a3b", True)],
)
def test_what_was_never_measured_carries_no_measured_error(
    simserve: Simserve, novel: list[str], folder: Path, model: str, is_measured: bool
) -> None:
    """An assumed architecture is foreign, and says so; a known one is not."""
    (folder / "known.json").write_text(json.dumps(CONFIG | {"model_type": "llama"}))
    asked = [novel[0], "--set", f"model={model}", "--set", "workload.num_requests=50"]

    answer = json.loads(simserve("run", *asked, "--json").stdout)

    basis = answer["simserve"]["expected_error"]["basis"]
    assert (basis != "foreign: no measurement of models whose architecture is assumed") is is_measured
