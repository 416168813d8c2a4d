"""The README's commands print what the README shows."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from simserve.api import load, run
from simserve.cli.app import app_of

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = re.findall(r"^```console\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)


def commands_of(block: str) -> list[tuple[str, list[str]]]:
    """Return each command of a block with the lines it is shown to print."""
    commands: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line.rstrip())
    return commands


COMMANDS = [pair for block in BLOCKS for pair in commands_of(block)]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        pytest.param(*pair, id=pair[0], marks=[pytest.mark.slow] if pair[0].startswith("simserve plan ") else [])
        for pair in COMMANDS
    ],
)
def test_a_readme_command_prints_what_the_readme_shows(
    command: str, shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines shown stand in the output in this order; `...` stands for what is left out."""
    words = shlex.split(command)
    if words[0] != "simserve":
        pytest.skip(f"{words[0]} is run by CI itself")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")

    result = CliRunner().invoke(app_of(words[1]), words[1:])

    assert result.exit_code == 0, result.output
    printed = iter(line.rstrip() for line in result.output.splitlines())
    for line in shown:
        if line != "...":
            assert line in printed, f"not printed (or not in this order): {line!r}\n{result.output}"


def test_the_readme_shows_commands() -> None:
    """A README without a console block would pass the test above."""
    assert len(COMMANDS) >= 3


PYTHON_BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("block", PYTHON_BLOCKS)
def test_a_python_block_of_the_readme_runs(
    block: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As written, from the first import on, and it prints something."""
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})

    assert capsys.readouterr().out


YAML_BLOCKS = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("block", YAML_BLOCKS)
def test_a_scenario_of_the_readme_runs(block: str, tmp_path: Path) -> None:
    """As it is written, from a file of its own; with fewer requests."""
    path = tmp_path / "mine.yaml"
    path.write_text(block, encoding="utf-8")

    summary = run(load(path, ["workload.num_requests=100"])).summary

    assert summary["completed"] == 100


def test_the_accuracy_that_the_readme_claims_stands_in_the_accuracy_page() -> None:
    """Counts and medians are copied by hand; a new validation that moves one must move the README."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "calibration" / "ACCURACY.md").read_text(encoding="utf-8")

    run, points = re.findall(r"On ([\d,]+) of ([\d,]+) public points", readme)[0]
    assert f"{run} of {points} measured points were run".replace(",", "") in page
    for group, figures in {
        "| inferencex_agg | vllm | h100-sxm-80gb | llama-3.1-70b |": ("4.5", "2.7"),
        "| inferencex_agg | vllm | h200-sxm-141gb | llama-3.1-70b |": ("3.2", "3.5"),
        "| apex_plus | vllm | h100-sxm-80gb | llama-3.1-70b |": ("1.6", "2.0"),
    }.items():
        medians = re.findall(r"\| ([\d.]+) / ", next(line for line in page.splitlines() if line.startswith(group)))
        assert tuple(medians[:2]) == figures
        assert all(re.search(rf"(?<![\d.]){figure}(?![\d])", readme) for figure in figures)


FENCES = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
PLAIN_BLOCKS = [body for kind, body in FENCES if not kind]
INLINE = re.findall(r"`(simserve [^`|]+)`", " ".join((ROOT / "README.md").read_text(encoding="utf-8").split()))
NAMED = [line for block in PLAIN_BLOCKS for line in block.splitlines() if line.startswith("simserve ")] + INLINE


@cache
def command_line() -> Any:
    """Return the whole command line, which takes a moment to build."""
    return typer.main.get_command(app_of())


@pytest.mark.parametrize("command", sorted({each.rstrip(" .") for each in NAMED}))
def test_a_command_that_is_only_named_exists(command: str) -> None:
    """With the options it is named with: parsed as the command line parses it, and not run."""
    found = command_line()
    words = shlex.split(command)[1:]
    while words and hasattr(found, "commands") and not words[0].startswith("-"):
        assert words[0] in found.commands, command
        found = found.commands[words.pop(0)]

    known = {flag for option in found.params for flag in (*option.opts, *option.secondary_opts)}

    named = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert named - {"--help"} <= known, command


def test_plain_blocks_that_need_no_gpu_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep as it is written, and the difference of two results."""
    lines = [line for block in PLAIN_BLOCKS for line in block.splitlines()]
    commands = [line for line in lines if line.startswith(("simserve sweep", "simserve diff"))]
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    for folder in ("results/before", "results/after"):
        flags = ["--set", "workload.num_requests=60", "--out", folder]
        assert runner.invoke(app_of("run"), ["run", "chatbot", *flags]).exit_code == 0

    called = [shlex.split(command)[1:] for command in commands]
    outcomes = [runner.invoke(app_of(words[0]), words) for words in called]

    assert len(commands) == 2
    assert [outcome.exit_code for outcome in outcomes] == [0, 0]
    assert "6 points, written to rates.parquet" in outcomes[0].output
    assert "Nothing moved" in outcomes[1].output


def test_every_block_of_the_readme_is_run_or_parsed() -> None:
    """A block of a kind that no test looks at would go stale unseen."""
    lines = [line for block in PLAIN_BLOCKS for line in block.splitlines() if line.strip()]

    assert {kind for kind, _ in FENCES} == {"", "console", "python", "yaml"}
    assert [len(BLOCKS), len(PYTHON_BLOCKS), len(YAML_BLOCKS)] == [
        sum(kind == each for kind, _ in FENCES) for each in ("console", "python", "yaml")
    ]
    assert {line.split()[0] for line in lines} <= {"simserve", "make", "pip"}


_FIGURES = {"TPOT": "tpot", "TTFT": "ttft", "throughput": "throughput"}


def cells_of(line: str) -> list[str]:
    """Return the cells of a row of a table in Markdown."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def coverage(metric: str, servers: str) -> dict[str, str]:
    """Return a row of ACCURACY.md's table of intervals, by the titles of its columns."""
    lines = (ROOT / "calibration" / "ACCURACY.md").read_text(encoding="utf-8").splitlines()
    title = next(line for line in lines if line.startswith("| metric | server |"))
    row = next(line for line in lines if line.startswith(f"| {metric} | {servers} |"))
    return dict(zip(cells_of(title), cells_of(row), strict=True))


def test_the_readme_leads_with_the_errors_of_the_reports_that_nothing_was_fitted_to() -> None:
    """In its first lines and where it says how far to trust it, as the page of these reports has them."""
    page = (ROOT / "calibration" / "unseen" / "README.md").read_text(encoding="utf-8").partition("## All")[2]
    titles, _, row = [cells_of(line) for line in page.splitlines() if line.startswith("|")][:3]
    tpot, ttft, throughput = (row[titles.index(key)].split()[0] for key in ("tpot", "ttft", "throughput"))
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())

    assert f"other people's servers are {tpot} % off in the time per token in the median" in text
    assert f"other people are {tpot} % off in TPOT, {ttft} % in TTFT and {throughput} % in throughput" in text
    reports = page.partition("## By report")[2].partition("\n## ")[0]
    count = sum(line.startswith("| ") for line in reports.splitlines()) - 2
    assert f"({int(row[titles.index('run')]):,} in {count} today)" in text


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ("## Blackwell", "rows of B200 simserve is {tpot} % off in TPOT and {ttft} % in TTFT"),
        ("## Hopper", "{tpot} and {ttft} %"),
    ],
)
def test_the_readme_s_exam_is_that_of_its_page(gpus: str, said: str) -> None:
    """Rows and median errors of the rows that every simulator has a figure for; whole percents for B200's TTFT."""
    section = (ROOT / "benchmarks" / "exam" / "RESULTS.md").read_text(encoding="utf-8").partition(gpus)[2]
    titles, _, row = [cells_of(line) for line in section.splitlines() if line.startswith("|")][:3]
    tpot, ttft = (row[titles.index(f"{key} error, median")].rstrip("%") for key in ("TPOT", "TTFT"))
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split()).partition("The open exam")[2]
    figures = {"tpot": tpot, "ttft": ttft if gpus == "## Hopper" else f"{float(ttft):.0f}"}

    assert said.format(**figures) in text
    assert re.search(rf"(?<!\d){row[titles.index('rows')]} (rows )?of (B200|H100)", text)


def _exam(gpus: str) -> tuple[list[int], list[int]]:
    """Return errors, shares inside (-1: none) and engines in order, in percent: simserve's and AIConfigurator's."""
    section = (ROOT / "benchmarks" / "exam" / "RESULTS.md").read_text(encoding="utf-8").partition(gpus)[2]
    titles, _, *rows = [cells_of(line) for line in section.splitlines() if line.startswith("|")][:4]
    names = ("TPOT error, median", "TTFT error, median", "TPOT inside", "TTFT inside", "engines in order")
    own, other = (
        [-1 if row[place] == "-" else round(float(row[place].partition("%")[0])) for place in map(titles.index, names)]
        for row in rows
    )
    return own, other


def test_the_readme_s_exam_has_the_ranges_and_the_order_of_its_page() -> None:
    """What lies inside the ranges, whose engines are in order, and AIConfigurator beside it."""
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split()).partition("The open exam")[2]

    (*_, tpot, ttft, order), other = _exam("## Blackwell")
    assert f"(NVIDIA AIConfigurator 0.12: {other[0]} and {other[1]} %)" in text
    assert f"ranges contain {tpot} % of TPOT and {ttft} % of TTFT" in text
    assert f"orders engines correctly in {order} % of pairs (AIConfigurator: {other[-1]} %)" in text
    (*_, tpot, ttft, order), other = _exam("## Hopper")
    assert f"(AIConfigurator: {other[0]} and {other[1]} %)" in text
    assert f"the ranges contain {tpot} and {ttft} %, and {order} % of pairs are in order ({other[-1]} %)" in text


@pytest.mark.parametrize("figure", _FIGURES)
def test_the_readme_s_intervals_are_those_of_the_accuracy_page(figure: str) -> None:
    """Figures, sources, coverage and widths, of all servers and of the unseen reports alone."""
    rows = [cells_of(line) for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if "|" in line]
    own = next(row for row in rows if row[0].startswith(f"{figure} ("))
    unseen = next(row for row in rows if row[0].startswith("the unseen reports alone"))
    known, there = coverage(_FIGURES[figure], "all"), coverage(_FIGURES[figure], "unseen reports")
    width, constant = re.findall(r"[\d.]+", known["log width"])[:2]
    place = list(_FIGURES).index(figure)

    assert re.findall(r"\d+", own[0].replace(",", "")) == [known["figures"], known["sources"]]
    assert own[1:] == [known["in 90 %"].partition(" (")[0], known["in 50 %"], width, constant]
    shown = [re.findall(r"[\d.]+", cell)[place] for cell in unseen[1:]]
    wide, one = re.findall(r"[\d.]+", there["log width"])[:2]
    assert shown == [there["in 90 %"].split()[0], there["in 50 %"].split()[0], wide, one]


def test_the_readme_counts_the_sources_that_the_intervals_are_learnt_from() -> None:
    """In its first lines and where it says how far to trust it: all of them, and the laboratories nobody fitted to."""
    root = Path(__file__).parents[1]
    sources = json.loads((root / "calibration/expected_errors.json").read_text(encoding="utf-8"))["without"]
    text = " ".join((root / "README.md").read_text(encoding="utf-8").split())

    unseen = sum(name.startswith("unseen/") for name in sources)
    assert f"learnt from {len(sources)} public sources" in text
    assert f"errors on {len(sources)} sources, {unseen} of them laboratories" in text
