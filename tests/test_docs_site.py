"""Pages of the docs that show code or commands: they are those of the code, and the commands exist."""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from docs.build_site import gather, lesson, pages
from docs.write_reference_walk import PAGE, written
from simserve.api import run
from simserve.calibrate.simulated import ServingModel
from simserve.cli.app import app_of
from simserve.scenario.load import from_mapping, load
from tests.calibrate.builders import moved, write_benchmarks

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLOCK = re.compile(r"^ *```\n(.*?)^ *```", re.M | re.S)
COMMANDS = sorted(
    {
        line.strip()
        for page in DOCS.glob("*.md")
        for block in BLOCK.findall(page.read_text(encoding="utf-8"))
        for line in block.splitlines()
        if line.strip().startswith("simserve ")
    }
)
QUICK_STARTS = [
    pytest.param(line.strip(), marks=[pytest.mark.slow] if re.search(" capacity |--like", line) else [])
    for page in sorted(DOCS.glob("quickstart-*.md"))
    for block in BLOCK.findall(page.read_text(encoding="utf-8"))
    for line in block.splitlines()
    if "simserve plan " not in line  # half a minute each: parsed below, and searched by the tests of plan
]
EXCERPTS = [
    pytest.param(block, id=f"{page.stem}-{place}")
    for page in sorted(DOCS.glob("*.md"))
    for place, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S))
    if page.stem not in ("scenario-keys", "measurements", "ci-gate")  # whose tests are their own
]
"""Parts of scenarios that pages show."""
RECIPES = sorted((DOCS / "recipes").glob("*.yml"))


def test_the_walk_shows_the_reference_as_it_is() -> None:
    """Every excerpt; `python docs/write_reference_walk.py` writes it anew."""
    text = PAGE.read_text(encoding="utf-8")

    assert text.count("```python") >= 8
    assert written(text) == text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_docs_exists(command: str) -> None:
    """With the options it is shown with."""
    assert_exists(command)


@pytest.mark.parametrize("command", QUICK_STARTS)
def test_a_command_of_a_quick_start_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, from an empty folder; a file that it names is there afterwards."""
    words = shlex.split(command)
    monkeypatch.chdir(tmp_path)

    outcome = CliRunner().invoke(app_of(words[1]), words[1:])

    assert words[0] == "simserve"
    assert outcome.exit_code == 0, outcome.output
    assert all((tmp_path / word).stat().st_size for word in words if word.endswith(".html"))


@pytest.mark.slow
@pytest.mark.parametrize("block", EXCERPTS)
def test_an_excerpt_of_a_scenario_runs(block: str) -> None:
    """Put into the smallest scenario that lacks what it says; a trace that it names is not here, and is not read."""
    said = yaml.safe_load(block)
    workload: dict[str, Any] = said.pop("workload", {})
    if "trace" not in workload:
        workload["num_requests"] = 30
        given = () if "classes" in workload else ("arrivals", "prompt_tokens", "output_tokens")
        plain = {"arrivals": {"process": "poisson", "rate": 1.0}, "prompt_tokens": 200, "output_tokens": 50}
        workload = {**{key: plain[key] for key in given}, **workload}
    if "kv_tiers" in said.get("engine", {}):
        workload["shared_prefix"] = {"num_groups": 4, "tokens": 500}
    models = {"images": "qwen3-vl-8b", "audio": "qwen3-omni-30b-a3b"}
    scenario = from_mapping(
        {
            "name": "excerpt",
            "model": next((model for key, model in models.items() if key in workload), "qwen3-8b"),
            "deployment": {"hardware": "h100-sxm-80gb", "engine": said.pop("engine", {"name": "vllm"})},
            "workload": workload,
            **said,
        }
    )

    assert scenario.workload.trace is not None or run(scenario).summary["completed"] == 30


def test_every_page_of_the_site_is_written(tmp_path: Path) -> None:
    """Also those that are made of the code: every name of a result."""
    nav = gather(tmp_path, None)

    written_pages = list(pages(nav))
    results = (tmp_path / "generated" / "results.md").read_text(encoding="utf-8")
    assert all((tmp_path / page).stat().st_size for page in written_pages)
    assert sum(page.startswith("notebooks/") for page in written_pages) > 10
    assert all(f"| `{name}` |" in results for name in ("p95_ttft_ms", "simserve.load_ratio", "simserve.slo.attainment"))


def test_a_lesson_shows_what_its_notebook_put_out(tmp_path: Path) -> None:
    """Text, tables and figures, each once."""
    figure = {"data": {"image/svg+xml": ["<svg/>"], "text/plain": ["<Figure>"]}}
    outputs = [figure, figure, {"data": {"text/html": ["<table>"]}}, {"text": ["9 requests\n"]}]
    cells = [
        {"cell_type": "markdown", "source": ["# Why?"]},
        {"cell_type": "code", "source": ["run.plot()"], "outputs": outputs},
    ]
    (tmp_path / "why.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")

    page = lesson(tmp_path / "why.ipynb")

    drawing = base64.b64encode(b"<svg/>").decode()
    assert page.startswith("# Why?\n\n```python\nrun.plot()\n```")
    assert page.count(f'<img alt="run.plot()" src="data:image/svg+xml;base64,{drawing}">') == 1
    assert "<Figure>" not in page
    assert "<div><table></div>" in page
    assert "```text\n9 requests\n```" in page


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda each: each.name)
def test_a_recipe_is_a_file_of_its_service(recipe: Path) -> None:
    """It is YAML, and the commands of simserve in it exist."""
    text = recipe.read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    commands = [found for line in text.splitlines() if (found := re.search(r"simserve (?:run|calibrate) [^>]*", line))]

    assert isinstance(content, dict)
    assert len(commands) == 2
    for found in commands:
        assert_exists(found[0].strip())


def test_the_thresholds_of_the_page_are_those_of_the_recipe() -> None:
    """The excerpt stands in the scenario as it is shipped."""
    page = (DOCS / "ci-gate.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)

    assert len(blocks) == 1
    assert blocks[0] in (DOCS / "recipes" / "serving" / "chat.yaml").read_text(encoding="utf-8")


def test_there_are_recipes_and_commands() -> None:
    """The tests above hold something."""
    assert [each.name for each in RECIPES] == ["serving-github.yml", "serving-gitlab.yml"]
    assert len(COMMANDS) > 10
    assert len(EXCERPTS) >= 8


@cache
def command_line() -> Any:
    """Return the whole command line, which takes a moment to build."""
    return typer.main.get_command(app_of())


def assert_exists(command: str) -> None:
    """Check a command and its options against the command line."""
    found = command_line()
    words = shlex.split(command)[1:]
    while words and hasattr(found, "commands") and not words[0].startswith("-"):
        assert words[0] in found.commands, command
        found = found.commands[words.pop(0)]
    known = {flag for option in found.params for flag in (*option.opts, *option.secondary_opts)}
    named = {word.partition("=")[0] for word in words if word.startswith("--")}

    assert named - {"--help"} <= known, command


@pytest.fixture(scope="module")
def sample_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository laid out as the page says: the shipped scenario, and a profile calibrated on results."""
    folder = tmp_path_factory.mktemp("repository")
    shutil.copytree(DOCS / "recipes" / "serving", folder / "serving")
    (folder / "serving" / "results").mkdir()
    scenario = load(folder / "serving" / "chat.yaml", ["deployment.engine.name=vllm", "workload.num_requests=60"])
    model = ServingModel(scenario)
    files = write_benchmarks(folder / "serving" / "results", moved(model.stated, compute_efficiency=0.8), scenario)
    flags = ["--scenario", "serving/chat.yaml", "--set", "deployment.engine.name=vllm", "--date", "2026-11-20"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names = [str(file.relative_to(folder)) for file in files]
        words = ["calibrate", "serving", *names, *flags, "--out", "serving/my-vllm.yaml"]
        assert CliRunner().invoke(app_of(words[0]), words).exit_code == 0
    return folder


def commands_of(recipe: Path) -> list[list[str]]:
    """Return the two commands of simserve of a recipe, without what the shell does with their output."""
    found = re.findall(r"simserve ((?:run|calibrate) [^>\n]*)", recipe.read_text(encoding="utf-8"))
    return [shlex.split(each) for each in found]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda each: each.name)
@pytest.mark.parametrize(("slower", "codes"), [(1.0, [0, 0]), (1.3, [0, 99])])
def test_a_recipe_passes_and_fails_as_the_page_says(
    recipe: Path, slower: float, codes: list[int], sample_repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The promise holds; results as they were calibrated on pass, and those of a slower server end with 99."""
    results = sample_repository / "serving" / "results"
    measured = json.loads((results / "run2.json").read_text(encoding="utf-8"))
    for key in measured:
        measured[key] *= slower if key.endswith("_ms") else 1 / slower if key.endswith("throughput") else 1
    (results / "new.json").write_text(json.dumps(measured), encoding="utf-8")
    monkeypatch.chdir(sample_repository)
    shutil.rmtree("report", ignore_errors=True)

    ended = [CliRunner().invoke(app_of(words[0]), words).exit_code for words in commands_of(recipe)]

    assert ended == codes
    assert (sample_repository / "report" / "report.html").is_file()


@pytest.mark.slow
def test_more_traffic_than_the_server_can_sustain_fails_the_gate(
    sample_repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command of both recipes, in a change that raises the rate."""
    monkeypatch.chdir(sample_repository)
    first = {tuple(commands_of(recipe)[0]) for recipe in RECIPES}

    outcome = CliRunner().invoke(app_of(), [*first.pop(), "--set", "workload.arrivals.rate=200", "--force"])

    assert not first
    assert outcome.exit_code == 99
