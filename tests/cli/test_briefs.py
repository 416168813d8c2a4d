"""What `plan`, `capacity`, `compare` and `cost` print unless more is asked for: 14 lines of 80 columns, one answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from simserve.report.terminal import MOST_LINES
from tests.cli.conftest import Outcome, Simserve

pytestmark = pytest.mark.usefixtures("answered_once", "headroom_alone")

BUNDLED = sorted(path.stem for path in (Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
LABELS = ("Cost", "Load", "Trust", "Files")
COMMANDS = {
    "capacity": ["--requests", "400", "--replications", "2"],
    "cost": [],
    "compare": ["--with", "a fresh name: workload.num_requests=300", "--replications", "2"],
    "plan": [
        *("--keep", "gpus,weights,kv-cache,engine,drafts,pools", "--trials", "0", "--max-gpus", "16", "--jobs", "1")
    ],
}
"""Command -> flags that make its search a small one."""
FEW = ["--set", "workload.num_requests=300"]


@pytest.fixture(scope="module")
def known() -> dict[str, Outcome]:
    """Return what was printed so far, by the command."""
    return {}


@pytest.fixture
def brief_of(simserve: Simserve, known: dict[str, Outcome]) -> Callable[[str], Outcome]:
    """Return a function that gives what a small search of a command prints; it runs once for all tests."""

    def asked(command: str) -> Outcome:
        if command not in known:
            known[command] = simserve(command, "single-gpu-7b", *FEW, *COMMANDS[command])
        return known[command]

    return asked


def num_warning_lines(lines: Sequence[str]) -> int:
    """Return how many lines the warnings take that a brief begins with: each is a sentence, and whole."""
    number = 0
    while lines[number].startswith("Warning") or (number and not lines[number - 1].endswith(".")):
        number += 1
    return number


def check_brief(outcome: Outcome) -> None:
    """Assert that what was printed is a brief: short, narrow, with a command, and every part that a reader asks for."""
    lines = outcome.stdout.splitlines()
    assert 0 < len(lines) <= MOST_LINES + num_warning_lines(lines), outcome.stdout
    assert max(map(len, lines)) <= 80, outcome.stdout
    assert any(line.startswith("To do") for line in lines), outcome.stdout
    assert any(line.strip().startswith("simserve ") for line in lines), outcome.stdout
    assert not any(line.endswith("...") for line in lines), outcome.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_brief_says_what_it_costs_how_loaded_it_is_and_how_far_to_trust_it(
    brief_of: Callable[[str], Outcome], command: str
) -> None:
    """In at most 14 lines of 80 columns, with the four latencies of one run."""
    outcome = brief_of(command)

    check_brief(outcome)
    lines = outcome.stdout.splitlines()
    assert all(any(line.startswith(label) for line in lines) for label in (*LABELS, "TTFT", "TPOT", "E2E"))


@pytest.mark.slow
def test_the_manager_s_three_questions_have_one_answer(simserve: Simserve) -> None:
    """Does it hold, what does it cost a month, is an API cheaper: of one deployment every command says the same; plan
    measures anew whether it holds."""
    flags = {"run": ["--out", "one"], **COMMANDS, "compare": ["--with", "a: run.seed=9", "--replications", "2"]}
    printed = {command: simserve(command, "single-gpu-7b", *more).stdout for command, more in flags.items()}

    holds = {command: re.search(r"([\d.]+%) of requests (?:met|meet)", text) for command, text in printed.items()}
    cost = {command: re.search(r"^Cost +(.*(?:\n  +.*)*)", text, re.M) for command, text in printed.items()}
    assert None not in {*holds.values(), *cost.values()}, printed
    said = {command: " ".join(found[1].split()) for command, found in cost.items() if found}
    assert set(said.values()) == {said["run"]}
    assert said["run"].endswith("a month on 1 GPU; no API is known to serve these weights")
    assert "of other weights, gpt-4o bills" in printed["cost"]  # which has to compare with one
    assert len({found[1] for command, found in holds.items() if found and command != "plan"}) == 1, printed


_LENGTHS = "--prompt-tokens 500 --output-tokens 100 --num-requests 300"
LINES = {
    "holds": f"llama-3.1-8b --gpus L4 --rate 0.5 {_LENGTHS} --slo ttft=1s,tpot=90ms",
    "misses": f"llama-3.1-8b --gpus L4 --rate 2 {_LENGTHS} --slo ttft=1s,tpot=75ms",
    "replicas": f"Qwen/Qwen3-8B --gpus 3xL40S --replicas 3 --routing round_robin --rate 6 {_LENGTHS} --slo tpot=60ms",
    "experts": f"openai/gpt-oss-120b --gpus H100 --rate 2 {_LENGTHS} --slo ttft=1s,tpot=30ms",
    "two GPUs": f"Qwen/Qwen3-32B --gpus 2xH100 --engine vllm==0.20 --rate 3 {_LENGTHS} --slo ttft=1.5s,tpot=50ms",
    "TensorRT-LLM": f"llama-3.3-70b --gpus 4xH100 --engine tensorrt-llm==1.0 --rate 4 {_LENGTHS} --slo tpot=50ms",
    "SGLang": f"deepseek-v3 --gpus 8xH200 --engine sglang==0.5.5 --rate 1 {_LENGTHS} --slo ttft=2s,tpot=90ms",
    "clients": f"qwen3-14b --gpus A100 --concurrency 8 {_LENGTHS} --slo ttft=1s,tpot=50ms",
    "trace": "llama-3.1-8b --gpus L4 --trace traffic.csv --slo ttft=2s,tpot=90ms",
    "4 bit": f"mistral-small-24b --gpus 4090 --quantization awq-int4 --rate 0.5 {_LENGTHS} --slo ttft=2s,tpot=50ms",
}
"""Ten deployments of one line, in the time of a few small runs each."""
_QUICK = ("holds",)


def one_sentence(text: str, label: str) -> str:
    """Return what a brief says under a label, on one line."""
    found = re.search(rf"^{label} +(.*(?:\n {{3,}}.*)*)", text, re.M)
    return " ".join(found[1].split()) if found else ""


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=[] if each in _QUICK else pytest.mark.slow) for each in LINES]
)
def test_ten_deployments_have_one_answer_in_every_command(simserve: Simserve, case: str) -> None:
    """Whether it holds, what it costs a month and whether an API is cheaper, in run, capacity, compare and cost; no
    clause of it is cut."""
    times = "\n".join(f"{second},{500 + 7 * second},{40 + second}" for second in range(1, 61))
    Path("traffic.csv").write_text(f"timestamp,prompt,completion\n{times}\n", encoding="utf-8")
    words = LINES[case].split()
    flags = {
        "run": ["--out", "one"],
        "capacity": ["--requests", "300", "--replications", "2"],
        "compare": ["--with", "other: run.seed=9", "--replications", "2"],
        "cost": [],
    }
    if "--trace" in words:  # what is recorded cannot be drawn anew
        flags |= {"capacity": [], "compare": ["--with", "other: run.seed=9"]}
    printed = {command: simserve(command, *words, *more).stdout for command, more in flags.items()}

    verdict = re.search(r"^The SLO (?:holds|is missed): .*$", printed["run"], re.M)
    assert verdict, printed["run"]
    paid, _, asked = one_sentence(printed["run"], "Cost").partition("; ")
    for command, text in printed.items():
        assert not re.search(r"\.\.\.$", text, re.M), text
        if command != "run":
            assert verdict[0].rstrip(".").startswith(one_sentence(text, "Now")), text
            assert one_sentence(text, "Now"), text
        told, _, api = one_sentence(text, "Cost").partition("; ")
        if "SLO missed" in paid:
            assert api.split(",")[0] == asked, text
            assert command == "cost" or (told, api) == (paid, asked), text
        else:
            assert (told, api) == (paid, asked), text


@pytest.mark.parametrize("command", COMMANDS)
def test_verbose_prints_the_brief_and_every_figure_below_it(
    simserve: Simserve, brief_of: Callable[[str], Outcome], command: str
) -> None:
    """Nothing of the brief is lost, and nothing is cut; beside --json there is nothing to lengthen."""
    words = [command, "single-gpu-7b", *FEW, *COMMANDS[command]]

    brief, whole = brief_of(command).stdout.splitlines(), simserve(*words, "-v").stdout.splitlines()

    assert len(whole) > len(brief) + 3
    assert whole[0] == brief[0]
    assert not any(line.endswith(" ...") for line in whole)
    refused = simserve(*words, "-v", "--json")
    assert (refused.code, refused.stdout) == (2, "")
    assert refused.error_line.startswith("--json: prints no answer that --verbose could lengthen")


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
def test_a_plan_that_does_not_hold_says_what_to_relax(simserve: Simserve) -> None:
    """With the command of what is within reach, in as few lines."""
    outcome = simserve("plan", "single-gpu-7b", *FEW, "--set", "slo.tpot=10 us", *COMMANDS["plan"])

    assert outcome.code == 3
    check_brief(outcome)
    assert outcome.stdout.startswith("No plan: no deployment here can keep TPOT within")
    assert "Relax" in outcome.stdout


def test_arithmetic_without_a_scenario_is_brief_too(simserve: Simserve) -> None:
    """It names a scenario that can be simulated."""
    flags = "--gpus 2 --gpu-hour-usd 6 --requests-per-month 1000000 --prompt-tokens 500 --output-tokens 200"

    outcome = simserve("cost", *flags.split(), "--api-input-usd", "5", "--api-output-usd", "30")

    check_brief(outcome)
    assert "$8,640 a month on 2 GPUs; the API bills $8,500, 2% less" in outcome.stdout


def test_a_cost_beside_a_named_api_does_not_hide_a_cheaper_one(simserve: Simserve) -> None:
    """The cheapest with the same weights stands beside the one that was asked for."""
    line = ["cost", "llama-3.1-8b", "--gpus", "L4", "--rate", "1", "--prompt-tokens", "500", "--output-tokens", "100"]

    outcome = simserve(*line, "--num-requests", "100", "--api", "gpt-4o")

    check_brief(outcome)
    assert "gpt-4o bills" in outcome.stdout
    assert re.search(r"^Also +\S+llama-3.1-8b bills \$[\d,.]+, \d+% less$", outcome.stdout, re.M)


def test_a_comparison_says_whose_figures_it_shows(brief_of: Callable[[str], Outcome]) -> None:
    """The table is the base's; each variant has its own means on its line."""
    outcome = brief_of("compare")

    assert re.search(r"^Now +The SLO ", outcome.stdout, re.M)
    assert re.search(r"^base +[\d.]+% meet the SLO; mean TTFT ", outcome.stdout, re.M)
    assert re.search(r"a fresh name .*mean TTFT [\d.]+ ms, TPOT [\d.]+ ms", outcome.stdout.replace("\n", " "))


def test_compare_names_the_best_of_its_variants(simserve: Simserve) -> None:
    """Of those that hold, the cheapest; the command carries its changes."""
    words = ["single-gpu-7b", *FEW, "--set", "deployment.replicas=3", "--replications", "5"]

    outcome = simserve("compare", *words, "--with", "one less: deployment.replicas=2")

    lines = outcome.stdout.splitlines()
    place = next(place for place, line in enumerate(lines) if line.startswith("To do"))
    assert "one less is better than base" in lines[place]
    command = " ".join(" ".join(lines[place + 1 : place + 4]).replace("\\", " ").split())
    assert "--set deployment.replicas=3 --set deployment.replicas=2" in command


def test_the_page_of_a_capacity_opens_with_the_brief_of_the_terminal(simserve: Simserve, folder: Path) -> None:
    """The same answer, command and dollars; only where the files are is left to the terminal."""
    words = ["capacity", "single-gpu-7b", *FEW, *COMMANDS["capacity"], "--html", "page.html"]

    printed = simserve(*words).stdout

    page = (folder / "page.html").read_text(encoding="utf-8").replace("<span>", "").replace("</span>", "")
    cost = next(line for line in printed.splitlines() if line.startswith("Cost")).removeprefix("Cost").strip()
    assert cost.removesuffix(" ...") in page
    command = next(line.strip(" \\") for line in printed.splitlines() if line.startswith("  simserve "))
    assert f"<code>{command} " in page
    assert "Files  page.html; -v prints all" in printed


@pytest.mark.slow
@pytest.mark.parametrize("command", ["capacity", "cost", "compare"])
@pytest.mark.parametrize("scenario", BUNDLED)
def test_every_bundled_scenario_has_a_brief(simserve: Simserve, scenario: str, command: str) -> None:
    """Whatever it asks; a command that does not take the scenario prints one line and no answer."""
    outcome = simserve(command, scenario, *FEW, *COMMANDS[command])

    if outcome.stdout:
        check_brief(outcome)
    else:
        assert outcome.code in (2, 3, 104), outcome.stderr
        assert outcome.error_line
