"""Tests of a month in dollars, which run, plan and cost count alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simserve as ss
from simserve.planner.cost.month import month
from simserve.profiles.api import load_api
from simserve.report.html import render_report
from simserve.report.plan_lines import answer_lines, self_host_lines
from simserve.scenario.finishable import Finishable, _found
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario
from simserve.sim.simulate import Deployment

SMALL = ["workload.num_requests=600", "workload.arrivals.rate=5"]


def month_of(*changes: str, name: str = "chatbot") -> dict[str, Any]:
    """Return the month of a bundled scenario's run."""
    scenario = ss.load(name, [*SMALL, *changes])
    found = month(resolve(scenario), ss.run(scenario))
    assert found is not None
    return found


def test_the_traffic_of_a_month_is_the_scenario_s_round_the_clock() -> None:
    """5 requests/s over 720 hours; a curve of the day, whose busiest hour has the rate, only where there is one."""
    even, daily = month_of(), month_of("pricing.daily={peak_to_mean: 2.0}")

    assert even["requests_per_month"] == pytest.approx(5 * 720 * 3600)
    assert daily["requests_per_month"] == pytest.approx(even["requests_per_month"] / 2)
    assert daily["self_host_usd_per_month"] == even["self_host_usd_per_month"]


def test_dollars_a_token_are_the_month_s_dollars_over_its_tokens() -> None:
    """Fixed lengths of 700 + 100 tokens at 5 requests/s: the tokens of 720 hours, whatever rate a short run happens to
    meet."""
    lengths = [
        "workload.prompt_tokens={distribution: fixed, value: 700}",
        "workload.output_tokens={distribution: fixed, value: 100}",
    ]

    found = month_of(*lengths)

    tokens = 5 * 720 * 3600 * 800
    assert found["tokens_per_month"] == pytest.approx(tokens)
    assert found["self_host_usd_per_million_tokens"] == pytest.approx(found["self_host_usd_per_month"] / tokens * 1e6)


def recorded(folder: Path, seconds: float) -> list[str]:
    """Return changes to 400 requests of a trace that come over so many seconds."""
    rows = "".join(f"{number * seconds / 399:.6f},500,120\n" for number in range(400))
    (folder / "traffic.csv").write_text(f"arrival_time,prompt_tokens,output_tokens\n{rows}", encoding="utf-8")
    trace = f"workload.trace={{path: {folder / 'traffic.csv'}, format: csv}}"
    return [trace, *(f"workload.{key}=null" for key in ("arrivals", "prompt_tokens", "output_tokens", "num_requests"))]


@pytest.mark.parametrize("kind", ["trace", "day", "classes"])
def test_a_month_is_the_same_for_every_fleet(tmp_path: Path, kind: str) -> None:
    """What a trace, a day or classes send a month, and an API asks for it, depends on no deployment."""
    batch = "{name: batch, prompt_tokens: {distribution: fixed, value: 900}, arrivals: {process: poisson, rate: 1}}"
    traffic = {
        "trace": recorded(tmp_path, 100.0),
        "day": ["workload.arrivals={process: daily, rate: 4, peak_to_mean: 1.8, day: 5 min}", SMALL[0]],
        "classes": [*SMALL, f"workload.classes=[{{name: chat, share: 1}}, {batch}]"],
    }[kind]
    scenario, slower = ss.load("chatbot", traffic), ss.load("chatbot", [*traffic, "deployment.hardware=a100-sxm-80gb"])

    fast, slow = (month(resolve(each), ss.run(each)) for each in (scenario, slower))
    priced = ss.cost(slower).summary

    assert fast is not None
    assert slow is not None
    assert slow["requests_per_month"] == pytest.approx(fast["requests_per_month"], rel=1e-12)
    assert slow["api"]["usd_per_month"] == pytest.approx(fast["api"]["usd_per_month"], rel=1e-12)
    assert priced["day"]["requests_per_month"] == pytest.approx(fast["requests_per_month"], rel=1e-12)
    if kind == "trace":
        assert fast["requests_per_month"] == pytest.approx(399 / 100 * 720 * 3600, rel=1e-6)


def test_people_and_spare_replicas_are_in_the_month() -> None:
    """As the scenario states them."""
    bare = month_of()
    more = month_of("pricing.operations_hours_per_month=10", "pricing.engineer_usd_per_hour=100")
    spare = month_of("pricing.spare_replicas=1")

    assert more["self_host_usd_per_month"] == pytest.approx(bare["self_host_usd_per_month"] + 1000)
    assert spare["self_host_usd_per_month"] == pytest.approx(2 * bare["self_host_usd_per_month"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chatbot", "multi-turn"])
def test_cost_and_run_count_the_same_month(name: str) -> None:
    """The same requests, dollars, API and break-even, conversations with a cached prompt included."""
    changes = ["workload.num_requests=600", *(["pricing.api=gpt-4o"] if name == "multi-turn" else [])]
    scenario = ss.load(name, changes)

    ran, priced = month(resolve(scenario), ss.run(scenario)), ss.cost(scenario).summary

    assert ran is not None
    assert priced["day"]["requests_per_month"] == pytest.approx(ran["requests_per_month"])
    assert priced["self_host"]["usd_per_month"] == pytest.approx(ran["self_host_usd_per_month"])
    assert priced["api"]["name"] == ran["api"]["name"]
    assert priced["api"]["usd_per_month"] == pytest.approx(ran["api"]["usd_per_month"])
    even = priced["break_even"]["as_deployed_requests_per_month"]
    assert even == pytest.approx(ran["break_even_requests_per_month"])


def test_without_an_slo_a_deployment_is_overloaded_where_it_would_cost_less() -> None:
    """There is none that it could miss."""
    assert month_of("slo=null", "pricing.api=claude-haiku-5-5")["why_never"].endswith("a month it would be overloaded")


@pytest.mark.slow
def test_run_gives_no_break_even_that_the_deployment_does_not_hold() -> None:
    """Code completion costs what the API does at 70 requests/s, and misses its SLO there: both say never."""
    scenario = ss.load("code-completion")

    ran, priced = ss.run(scenario).summary["simserve"]["month"], ss.cost(scenario).summary

    assert ran["break_even_requests_per_month"] is None
    assert ran["why_never"] == "at 185 million requests a month it would not hold the SLO"
    even = priced["break_even"]
    assert (even["requests_per_month"], even["as_deployed_requests_per_month"]) == (None, None)


def test_run_gives_a_break_even_that_the_deployment_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chat does at 8.2 requests/s, within its SLO; what it can finish the run has found, and nobody looks again."""
    looked: list[str] = []

    def found(scenario: Scenario, deployment: Deployment) -> Finishable | None:
        looked.append(scenario.name)
        return _found(scenario, deployment)

    monkeypatch.setattr("simserve.scenario.finishable._found", found)
    ran = ss.run(ss.load("chatbot")).summary["simserve"]["month"]

    assert looked == ["chatbot"]
    assert ran["break_even_requests_per_month"] == pytest.approx(21.2e6, rel=0.01)
    assert ran["why_never"] is None


def trace_of(folder: Path) -> Path:
    """Return a trace of 300 requests at 3 a second."""
    rows = "".join(f"{number / 3:.3f},1500,300\n" for number in range(300))
    path = folder / "traffic.csv"
    path.write_text(f"arrival_time,prompt_tokens,output_tokens\n{rows}", encoding="utf-8")
    return path


def test_a_trace_that_misses_the_slo_has_no_break_even_at_more_traffic(tmp_path: Path) -> None:
    """More of what a deployment misses already is not held; where it is held, the volume is given."""
    workload = f"workload={{trace: {{path: {trace_of(tmp_path)}}}}}"
    strict, loose = (
        ss.run(ss.load("chatbot", [workload, f"slo={{tpot: {limit}}}"])).summary["simserve"]["month"]
        for limit in ("5 ms", "200 ms")
    )

    assert loose["break_even_requests_per_month"] > loose["requests_per_month"]
    assert loose["why_never"] is None
    assert strict["break_even_requests_per_month"] is None
    assert "would not hold the SLO" in strict["why_never"]


@pytest.mark.slow
def test_run_plan_and_cost_give_one_answer(tmp_path: Path) -> None:
    """What the plan deploys, run and priced, costs the plan's dollars a month, against the same API, to the cent."""
    scenario = ss.load("chatbot", SMALL)
    planned = ss.plan(scenario, hardware=["h100-sxm-80gb"], trials=0).summary
    there = ss.load("chatbot", [*SMALL, *(f"{key}={value}" for key, value in planned["best"]["overrides"].items())])
    result, priced = ss.run(there, out=tmp_path), ss.cost(there).summary

    asked, ran = planned["month"], result.summary["simserve"]["month"]
    keys = ("requests_per_month", "self_host_usd_per_month", "break_even_requests_per_month")
    assert [asked[key] for key in keys] == pytest.approx([ran[key] for key in keys])
    assert asked["self_host_usd_per_month"] == pytest.approx(planned["best"]["usd_per_month"])
    assert asked["self_host_usd_per_month"] == pytest.approx(priced["self_host"]["usd_per_month"])
    assert asked["api"]["usd_per_month"] == pytest.approx(priced["api"]["usd_per_month"])
    assert asked["api"]["name"] == ran["api"]["name"] == priced["api"]["name"]
    assert asked["break_even_requests_per_month"] == pytest.approx(
        priced["break_even"]["as_deployed_requests_per_month"]
    )
    assert asked["cheaper"] == ran["cheaper"] == priced["cheaper"]
    per_token = priced["self_host"]["usd_per_million_tokens"]
    assert planned["best"]["usd_per_million_tokens"] == pytest.approx(per_token)
    assert ran["self_host_usd_per_million_tokens"] == pytest.approx(per_token)
    assert asked["api"]["name"] in render_report(result)
    top, below = (
        [line for line in lines(planned) if asked["api"]["name"] in line] for lines in (answer_lines, self_host_lines)
    )
    assert (len(top), len(below)) == ((1, 0) if asked["cheaper"] == "api" else (0, 1))


def test_the_batch_discount_covers_its_share_of_a_month() -> None:
    """Half of the requests at the discount of the API's batch interface."""
    api = "gpt-4o-mini"
    discount = load_api(api).batch_discount
    whole, half = (month_of(f"pricing.api={api}", *more)["api"] for more in ([], ["pricing.batch_share=0.5"]))

    assert discount == 0.5
    assert half["usd_per_request"] == pytest.approx(whole["usd_per_request"] * (1 - 0.5 * 0.5))


def test_what_overflows_is_in_a_month_once() -> None:
    """GPUs by the hour, and each request's share of what the API took in the run."""
    changes = [SMALL[0], "workload.arrivals.rate=60", "deployment.overflow={api: gpt-4o-mini, max_queue: 1}"]
    scenario = ss.load("chatbot", changes)
    result = ss.run(scenario)
    found, inner = month(resolve(scenario), result), result.summary["simserve"]
    assert found is not None

    at_api = inner["overflow"]["usd_per_hour"]
    gpus = (inner["cost"]["usd_per_hour"] - at_api) * 720
    per_request = at_api / 3600 / result.summary["request_throughput"]
    assert at_api > 0
    assert found["self_host_usd_per_month"] == pytest.approx(gpus + per_request * 60 * 720 * 3600)
