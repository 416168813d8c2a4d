"""The brief: at most 14 lines, one answer in every medium, and a way out of every run that fails."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from simserve import api
from simserve.profiles.expected_errors import ALONE
from simserve.report.answer import answer
from simserve.report.answer_plots import latency_ranges
from simserve.report.axes import GREY, VERMILION
from simserve.report.brief import (
    Brief,
    Fact,
    Way,
    api_text,
    brief_of_run,
    latency_lines,
    load_text,
    resting,
    trust_text,
)
from simserve.report.facts import CANNOT_KEEP_UP, cost_lines, real_server_lines
from simserve.report.html import render_report, run_html
from simserve.report.quantities import dollars, number
from simserve.report.sketch import Box, Dots
from simserve.report.terminal import MOST_LINES, brief_lines, render_brief, render_run, wrap
from tests.report.builders import CASES, Page, page_text, run, terminal
from tests.report.builders import run as run_case

_DOTS = ("mean", "p95")
FOLDER = Path("results/a-scenario-with-a-name-0123456789ab")


def shown(brief: Brief, *, is_whole: bool = False) -> list[str]:
    """Return the lines of a brief on a terminal of 80 columns."""
    out = StringIO()
    render_brief(brief, Console(file=out, width=80), is_whole=is_whole)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("case", CASES)
def test_a_brief_is_14_lines_of_80_columns(case: str) -> None:
    """Whatever comes of the run, with its files, and beside its warnings."""
    brief = brief_of_run(run(case), ("chatbot",), FOLDER)

    lines = shown(brief)

    assert len(lines) <= MOST_LINES + sum(len(wrap(each, 80)) for each in brief.warnings)
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).startswith(" ".join([*brief.warnings, answer(run(case))]))


@pytest.mark.parametrize("case", CASES)
def test_every_run_ends_with_something_to_do(case: str) -> None:
    """A command that can be copied; of one that fails never that nothing has to change."""
    brief = brief_of_run(run(case), ("chatbot",))

    assert brief.ways
    assert all(way.command.startswith("simserve ") for way in brief.ways)
    assert ("Nothing has to change" in brief.ways[0].told) == (brief.verdict == "holds")


def test_a_brief_keeps_warnings_answer_and_first_command_whole() -> None:
    """Further ways and the last clauses of long lines give way; a command is continued as a shell takes it."""
    words = " ".join(f"--set deployment.engine.option_{number}={number}" for number in range(4))
    brief = Brief(
        verdict="missed",
        answer="The SLO is missed. " + "Missed by a class with a name. " * 4,
        subject="a model on many GPUs " * 8,
        warnings=["Warning: this engine version is not known " * 6] * 2,
        ways=[Way("One way:", f"simserve run mine.yaml {words}"), Way("Another:", "simserve plan mine.yaml")],
        facts=[Fact(label, "; ".join([f"{label} in words"] * 20)) for label in ("Cost", "Load", "Trust")],
    )

    lines = shown(brief)

    assert len(lines) <= MOST_LINES + sum(len(wrap(each, 80)) for each in brief.warnings)
    assert max(map(len, lines)) <= 80
    assert brief.answer.strip() in " ".join(lines)
    assert f"simserve run mine.yaml {words}" in " ".join(" ".join(lines).replace("\\", " ").split())
    assert all(label in "\n".join(lines) for label in ("Cost", "Load", "Trust"))
    assert " ".join(lines).startswith(" ".join(each.strip() for each in brief.warnings))
    told = [line for line in lines if line.startswith(("Cost", "Load", "Trust"))]
    assert all(line.endswith(" in words") for line in told), told


def test_no_clause_of_a_brief_is_cut() -> None:
    """What has no room is left out by whole clauses; the first stands on as many lines as it takes, brackets whole."""
    first = "never; even fully loaded, " + "8 GPUs cost more than that and " * 3 + "more (95% asked; 3 runs)"
    brief = Brief(verdict="holds", answer="It holds.", facts=[Fact("Cost", "; ".join([first, "more of it " * 99]))])

    cost = " ".join(" ".join(shown(brief)).split()).partition("Cost ")[2]

    assert cost == first
    brief = replace(brief, facts=[Fact(f"Line {number}", first) for number in range(13)])
    assert [line.split(maxsplit=2)[2] for line in shown(brief)[1:]] == ["never"] * 13


def test_a_command_without_room_gives_way_to_what_is_told_instead() -> None:
    """A command that fits, where there is one; else where the long one is found."""
    long = "simserve run " + "--set deployment.engine.max_num_batched_tokens=2048 " * 12
    brief = Brief(verdict="holds", answer="It holds.", ways=[Way("To run it:", long.strip())])

    assert shown(brief)[1] == "To do  To run it: the command is long, -v prints it"
    brief = replace(
        brief, ways=[replace(brief.ways[0], instead=Way("To write it:", "simserve plan chatbot --out a.yaml"))]
    )
    assert shown(brief)[1:] == ["To do  To write it:", "  simserve plan chatbot --out a.yaml"]


def test_nothing_is_cut_where_everything_is_asked_for() -> None:
    """With --verbose every word of the brief is there, each command on a line of its own."""
    brief = brief_of_run(run("overloaded"), ("chatbot",))
    brief = replace(brief, ways=[Way("a way", "simserve run " + "--set key=value " * 9 + "--end")] * 3)

    told = [line.text for line in brief_lines(brief, 80, is_whole=True)]

    assert sum(line.strip() == brief.ways[0].command for line in told) == 3


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[api.RunResult, Path]:
    """Return a small run with its files."""
    folder = tmp_path_factory.mktemp("brief") / "out"
    return api.run(api.load("chatbot", ["workload.num_requests=300"]), out=folder), folder


def test_terminal_json_page_and_notebook_give_one_answer(written: tuple[api.RunResult, Path]) -> None:
    """Does it hold, what does it cost a month, is an API cheaper: the figures of result.json in every medium."""
    result, folder = written
    stored = json.loads((folder / "result.json").read_text(encoding="utf-8"))["simserve"]
    month, out = stored["month"], StringIO()
    render_run(result, Console(file=out, width=80), folder)

    media = [
        out.getvalue(),
        Page((folder / "report.html").read_text(encoding="utf-8")).text,
        Page(run_html(result)).text,
    ]

    change = month["api"]["usd_per_month"] / month["self_host_usd_per_month"] - 1
    asked = f"{month['api']['name']} bills {dollars(month['api']['usd_per_month'])}, {100 * abs(change):.0f}%"
    for text in (" ".join(each.split()) for each in media):
        assert answer(result) in text
        assert f"{dollars(month['self_host_usd_per_month'])} a month on 4 GPUs" in text
        assert f"{asked} {'less' if month['cheaper'] == 'api' else 'more'}" in text
    assert month["self_host_usd_per_month"] == pytest.approx(720 * stored["cost"]["usd_per_hour"])
    assert (month["cheaper"] == "api") == (change < 0)


def test_load_says_what_can_be_sustained_and_where_the_slo_holds(written: tuple[api.RunResult, Path]) -> None:
    """The load ratio of result.json as a share, and the highest of the loads tried that holds."""
    result, _ = written
    ratio, loads = result.summary["simserve"]["load_ratio"], result.background["loads"]

    load = next(each.text for each in brief_of_run(result).facts if each.label == "Load")

    held = [rate for rate, met in zip(loads["loads"], loads["attainment"], strict=True) if met >= 0.95]
    assert f"{100 * ratio:.0f}% of the {result.summary['simserve']['finishable_throughput']:.3g}" in load
    assert any(f"SLO held at {rate:.3g} (one run)" in load for rate in held)
    assert f"; {number(result.summary['output_throughput'])} output tokens/s;" in load


def test_with_an_autoscaler_the_load_is_compared_with_all_replicas_that_there_may_be() -> None:
    """It is what they sustain at once, not the load that `capacity` finds while replicas come and go."""
    scaled = "deployment.autoscaling={metric: running, target: 8, max_replicas: 3}"
    fixed, scaling = (
        load_text(api.run(api.load("chatbot", ["workload.num_requests=300", *changes]))) for changes in ([], [scaled])
    )

    assert "it can sustain" in fixed
    assert "that all 3 replicas can sustain" in scaling


def test_a_closed_loop_tells_its_output_with_the_range_of_real_servers() -> None:
    """What benchmarks state first; there it is the server that sets the pace."""
    result = api.run(
        api.load("chatbot", ["workload.num_requests=200", "workload.arrivals={process: closed_loop, concurrency: 8}"])
    )
    low, high = result.summary["simserve"]["prediction_interval"]["metrics"]["output_throughput"]

    lines = shown(brief_of_run(result))

    told = f"{number(result.summary['output_throughput'])} output tokens/s ({number(low)} to {number(high)})"
    assert low < result.summary["output_throughput"] < high
    assert any(line.startswith("Load ") and told in line for line in lines)


def test_gpus_that_cannot_serve_the_traffic_are_not_called_cheaper() -> None:
    """What an API asks for all of it is no comparison then."""
    result = run("overloaded")

    cost = next(each.text for each in brief_of_run(result).facts if each.label == "Cost")

    assert result.summary["simserve"]["month"]["cheaper"] is None
    assert cost.endswith("for all requests")


def test_without_a_price_the_brief_says_how_to_give_one() -> None:
    """Dollars are never guessed."""
    result = run("stable")
    inner = result.summary["simserve"]
    unpriced = {**inner, "month": None, "cost": {**inner["cost"], "usd_per_hour": None}}

    brief = brief_of_run(replace(result, summary={**result.summary, "simserve": unpriced}))

    assert "--set pricing.gpu_hour_usd=DOLLARS" in brief.facts[0].text


def test_prompts_that_are_too_long_name_the_length_that_fits_them() -> None:
    """The remedy is a number: the longest request, in whole thousands of tokens."""
    way = brief_of_run(run("empty"), ("chatbot",)).ways[0]

    assert "longer than max_model_len (16,384)" in way.told
    length = int(way.command.rpartition("=")[2])
    assert length % 1024 == 0
    assert 20_000 < length < 23_000


def test_prompts_longer_than_a_step_that_may_not_be_split_name_the_switch() -> None:
    """TensorRT-LLM without chunked prefill: a longer context would change nothing."""
    deployment = "deployment.engine={name: tensorrt-llm, version: '1.1', max_num_batched_tokens: 8192}"
    prompts = "workload.prompt_tokens={distribution: fixed, value: 9000}"
    scenario = api.load("single-gpu-7b", [deployment, prompts, "workload.num_requests=5"])

    way = brief_of_run(api.run(scenario), ("single-gpu-7b",)).ways[0]

    assert way.told == "The prompts are longer than a step (8,192 tokens). Split them:"
    assert way.command.endswith("--set deployment.engine.enable_chunked_prefill=true")
    split = api.run(
        api.load("single-gpu-7b", [deployment, prompts, "workload.num_requests=5", way.command.split()[-1]])
    )
    assert split.summary["completed"] == 5


def test_prompts_beyond_the_context_of_the_model_are_not_helped_by_a_limit() -> None:
    """Where no limit was set, the model's own context is the end: another model is what helps."""
    result = run("empty")
    engine = {**result.scenario["deployment"]["engine"], "max_model_len": None}
    scenario = {**result.scenario, "deployment": {**result.scenario["deployment"], "engine": engine}}

    way = brief_of_run(replace(result, scenario=scenario), ("chatbot",)).ways[0]

    assert "longer than the model's context (16,384 tokens)" in way.told
    assert way.command == "simserve models"


def test_prompts_beyond_what_an_engine_leaves_a_request_are_helped_by_a_limit() -> None:
    """llama.cpp cuts its context for four slots that are asked for: 1,024 of 4,096; the command serves the prompt."""
    prompts = ["workload.prompt_tokens={distribution: fixed, value: 2000}", "workload.num_requests=3"]
    slots = "deployment.engine={name: llama.cpp, version: b8000, max_num_seqs: 4}"
    on_a_mac = ["model=llama-2-7b", "deployment={hardware: m2-max-96gb}", slots]

    way = brief_of_run(api.run(api.load("single-gpu-7b", [*on_a_mac, *prompts])), ("single-gpu-7b",)).ways[0]

    assert way.told == (
        "The prompts are longer than what the engine leaves a request by default (1,024 tokens). Raise it:"
    )
    again = api.load("single-gpu-7b", [*on_a_mac, *prompts, way.command.split()[-1]])
    assert api.run(again).summary["completed"] == 3


def test_what_ranges_rest_on_stands_in_the_clause_that_stays() -> None:
    """Of known servers how many, then which; of others, of loads of its own, and of throughput alone that it is so."""
    known = resting("ranges are for 90% of real servers", "51 servers of dense models on h100 under vllm from 0.8")
    foreign = resting("ranges", "foreign: no measurement of dense models on l4")
    calibrated = resting("ranges", "calibrated on 2 loads of this server; errors of 9 servers")
    alone = resting("ranges", f"93 servers of dense models on a100 under lmdeploy{ALONE}")

    assert known[0] == "ranges are for 90% of real servers, judging by 51 measured ones like it"
    assert known[1] == "those run dense models on h100 under vllm from 0.8"
    assert foreign == ["ranges, judging by other kinds: nobody has measured dense models on l4"]
    assert calibrated == ["ranges, calibrated on 2 loads of this server", "errors of 9 servers"]
    assert alone[0] == "ranges, judging by the throughput of 93 measured ones like it"


@pytest.mark.parametrize(
    ("usd", "told"), [(80.0, "20% less"), (0.26, "99.7% less"), (130.0, "30% more"), (600.0, "6.0 times as much")]
)
def test_an_api_is_compared_in_percent_or_in_times(usd: float, told: str) -> None:
    """Nobody reads 500% more at a glance."""
    month = {"api": {"name": "a", "usd_per_month": usd}, "self_host_usd_per_month": 100.0, "cheaper": "api"}

    assert api_text(month).endswith(told)


def test_the_page_opens_with_the_brief() -> None:
    """Its answer is the title, its facts come before any other section."""
    text = page_text("stable")

    assert text.index("<h1") < text.index('<dl class="facts">') < text.index("<h2>")
    assert render_report(run_case("stable")) == text


def test_the_brief_is_above_all_figures_when_everything_is_printed() -> None:
    """--verbose adds to the brief and takes nothing from it."""
    brief, whole = (terminal("stable", is_verbose=each).split() for each in (False, True))

    assert whole[: whole.index("Cost")] == brief[: brief.index("Cost")]
    assert len(whole) > 4 * len(brief)


@pytest.fixture(scope="module")
def small() -> api.Scenario:
    """Return a scenario whose answers take a moment each."""
    return api.load("chatbot", ["workload.num_requests=300"])


@pytest.mark.parametrize("question", ["capacity", "compare", "cost"])
def test_every_page_gives_the_manager_one_answer(question: str, small: api.Scenario, tmp_path: Path) -> None:
    """Dollars a month, and whether an API is cheaper, as the run of the same deployment says."""
    cost = next(each.text for each in brief_of_run(api.run(small)).facts if each.label == "Cost")
    file = tmp_path / "page.html"

    if question == "capacity":
        api.capacity(small, num_requests=200, replications=2, highest=9.0).to_html(file)
    elif question == "compare":
        api.compare(small, {"two": ["deployment.replicas=2"]}, replications=2).to_html(file)
    else:
        api.cost(small).to_html(file)

    text = file.read_text(encoding="utf-8")
    assert f"<dd>{cost}.</dd>" in text
    assert text.index('<dl class="facts">') < text.index("<h2>")


def test_the_latencies_stand_beside_their_table_as_a_picture() -> None:
    """One row a latency: its interval, its limit, its mean and its p95 where the numbers say; none without a mean."""
    brief = brief_of_run(run("stable"))

    sketch = latency_ranges(brief.latencies)

    assert sketch is not None
    ranges = [mark for mark in sketch.marks if isinstance(mark, Box) and mark.color == GREY]
    limits = [mark for mark in sketch.marks if isinstance(mark, Box) and mark.color == VERMILION]
    mean, tail = (
        next(each for each in sketch.marks if isinstance(each, Dots) and each.label == name) for name in _DOTS
    )
    summary = run("stable").summary
    interval = summary["simserve"]["prediction_interval"]["metrics"]["mean_ttft_ms"]
    assert [1e3 * ranges[0].left, 1e3 * ranges[0].right] == pytest.approx(interval)
    assert 1e3 * mean.x[0] == pytest.approx(summary["mean_ttft_ms"])
    assert 1e3 * tail.x[0] == pytest.approx(summary["p95_ttft_ms"])
    assert [(each.left + each.right) / 2 for each in limits] == pytest.approx(
        [run("stable").slo.ttft, run("stable").slo.tpot]
    )
    assert latency_ranges([]) is None


def test_only_an_answer_that_leaves_something_out_says_how_to_see_it() -> None:
    """The line of files ends with -v, but under -v."""
    brief = brief_of_run(run("stable"), ("chatbot",), FOLDER)

    short, whole = shown(brief), shown(brief, is_whole=True)

    assert any("-v prints all" in line for line in short)
    assert not any("-v prints" in line for line in whole)


def test_gpus_that_encode_images_are_counted_with_what_they_cost() -> None:
    """Two GPUs that answer and two that encode are four for the money; the price of one GPU is that of the former."""
    result = api.run(api.load("encoder-pool", ["workload.num_requests=50"]))

    cost = next(each.text for each in brief_of_run(result).facts if each.label == "Cost")

    assert " a month on 4 GPUs; " in cost
    assert "2 GPUs at $" in cost_lines(result)[1]
    assert cost_lines(result)[1].endswith(", and 2 GPUs that encode images")


def test_a_run_that_tells_nothing_is_not_called_good() -> None:
    """Neither one that was interrupted nor one of which no request was measured."""
    result = run("stable")
    inner = result.summary["simserve"]
    unjudged = {**inner, "slo": {**inner["slo"], "attainment": None}}

    cut = brief_of_run(replace(result, simulation=replace(result.simulation, was_interrupted=True)))
    short = brief_of_run(replace(result, summary={**result.summary, "simserve": unjudged}), ("chatbot",))

    assert cut.ways[0].told.startswith("It was interrupted")
    assert any("only what was finished is counted" in each.text for each in cut.facts)
    assert short.answer.startswith("The SLO cannot be judged")
    assert short.ways[0].command == "simserve run chatbot --num-requests 3000"


def test_how_long_a_server_queues_that_cannot_keep_up_is_not_told(written: tuple[api.RunResult, Path]) -> None:
    """The low end alone of first tokens and whole answers, in brief and page; steps keep both ends."""
    result, _ = written
    inner = result.summary["simserve"]
    interval = {**inner["prediction_interval"], "queues": True}
    full = replace(result, summary={**result.summary, "simserve": {**inner, "prediction_interval": interval}})

    lines = {line.label: line.real_servers for line in latency_lines(full)}

    assert [label for label, ends in lines.items() if ends.startswith("from ") and ends.endswith(", may queue")] == [
        "TTFT",
        "E2E",
    ]
    assert " to " in lines["TPOT"]
    assert CANNOT_KEEP_UP in trust_text(full)
    told = " ".join(real_server_lines(full))
    assert CANNOT_KEEP_UP in told
    assert "TTFT from " in told
    assert CANNOT_KEEP_UP not in " ".join(real_server_lines(result))


def test_what_has_no_subject_has_no_line_for_it() -> None:
    """Nor an empty one."""
    told = [line.text for line in brief_lines(Brief(verdict="none", answer="Yes.", ways=[Way("Go:", "go")]), 80)]

    assert told == ["Yes.", "To do  Go:", "  go"]


def test_where_requests_think_the_first_visible_token_stands_behind_the_first() -> None:
    """With its limit, which is the one that such traffic is bought for; elsewhere it is TTFT, and not said twice."""
    few = {"workload.num_requests": 30}
    thinking = api.run(api.load("reasoning", few), advise=False)
    plain = api.run(api.load("reasoning", {**few, "workload.thinking_tokens": None, "slo": None}), advise=False)

    lines = latency_lines(thinking)

    assert [each.label for each in lines] == ["TTFT", "TTFVT", "TPOT", "ITL", "E2E"]
    assert "within 60 s" in lines[1].limit
    visible, whole = lines[1].seconds.real_servers, lines[4].seconds.real_servers
    assert visible is not None
    assert whole is not None
    assert visible[0] < (lines[1].seconds.mean or 0.0) < visible[1] < whole[1]
    assert lines[1].seconds.limit == 60.0
    assert (lines[1].seconds.mean or 0.0) > 10 * (lines[0].seconds.mean or 1e9)
    assert [each.label for each in latency_lines(plain)] == ["TTFT", "TPOT", "ITL", "E2E"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("width", [40, 50, 60, 70])
def test_no_line_of_a_brief_is_wider_than_a_narrow_terminal(case: str, width: int) -> None:
    """Latencies go on in a second line; only a word, such as a path or an option of a command, may stand out."""
    brief = brief_of_run(run(case), ["chatbot"], Path("out"))

    lines = [line.text for line in brief_lines(brief, width)]

    assert [line for line in lines if len(line) > width and len(line.split()) > 1] == []
    for latency in brief.latencies[:2]:
        told = " ".join(" ".join(lines).split())
        for part in (latency.mean, latency.real_servers, latency.p95, latency.limit):
            assert part in told
