"""`simserve cost`: every figure of the worked examples to the cent, and what the flags refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import simserve as ss
from tests.cli.conftest import Simserve

Cost = dict[str, Any]


@pytest.fixture
def cost(simserve: Simserve) -> Any:
    """Return a function that runs `simserve cost ... --json` and returns what it prints."""

    def run(flags: str) -> Cost:
        outcome = simserve("cost", *flags.split(), "--json")
        assert outcome.code == 0, outcome.stderr
        assert outcome.stderr == ""
        answer: Cost = json.loads(outcome.stdout)
        return answer

    return run


def test_an_a100_against_forty_dollars_a_million(cost: Any) -> None:
    """$3.50 an hour are $2,520 a 30-day month; at $40 a million tokens they pay from 63 M tokens on."""
    answer = cost("--gpus 1 --gpu-hour-usd 3.5 --api-input-usd 40 --api-output-usd 40")

    assert answer["self_host"]["usd_per_month"] == pytest.approx(2520.00, abs=0.005)
    assert answer["break_even"]["tokens_per_month"] == pytest.approx(63e6)
    assert answer["left_out"][0]["break_even_tokens_per_month"] == pytest.approx(63e6)
    second = next(row for row in answer["left_out"] if row["term"] == "a second GPU")
    assert second["break_even_tokens_per_month"] == pytest.approx(126e6)


def test_ten_thousand_conversations_a_day(cost: Any) -> None:
    """150 M tokens: $2,700 + $3,600 at the API; 4 A100 at $10,080, a quarter of them $2,520, $3,780 saved."""
    answer = cost(
        "--requests-per-month 300000 --prompt-tokens 300 --output-tokens 200 --api gpt-4 "
        "--gpus 4 --gpu-hour-usd 3.5 --share 0.25"
    )

    assert answer["api"]["tokens_per_month"] == 150e6
    assert answer["api"]["input_usd_per_month"] == pytest.approx(2700.00, abs=0.005)
    assert answer["api"]["output_usd_per_month"] == pytest.approx(3600.00, abs=0.005)
    assert answer["api"]["usd_per_month"] == pytest.approx(6300.00, abs=0.005)
    assert answer["self_host"]["fleet_usd_per_month"] == pytest.approx(10080.00, abs=0.005)
    assert answer["self_host"]["usd_per_month"] == pytest.approx(2520.00, abs=0.005)
    assert answer["saving_usd_per_month"] == pytest.approx(3780.00, abs=0.005)
    assert (answer["cheaper"], answer["api"]["name"]) == ("self_host", "gpt-4")


def test_tokens_are_written_as_elsewhere(cost: Any) -> None:
    """`1k` is a thousand in arithmetic too."""
    traffic = "--requests-per-month 300000 --output-tokens 200 --api gpt-4 --gpus 4 --gpu-hour-usd 3.5 --prompt-tokens"

    assert cost(f"{traffic} 1k") == cost(f"{traffic} 1000")


_MILLION_REQUESTS = (
    "--requests-per-month 1000000 --prompt-tokens 500 --output-tokens 200 --api-input-usd 5 --api-output-usd 30 "
    "--gpus 2 --gpu-hour-usd 6 --operations-usd 2000"
)


def test_a_million_requests_against_two_gpus(cost: Any) -> None:
    """$8,500 at the API, $8,640 of GPUs and $2,000 of operations: break-even at 1.25 M requests."""
    answer = cost(_MILLION_REQUESTS)

    assert answer["api"]["usd_per_month"] == pytest.approx(8500.00, abs=0.005)
    assert answer["self_host"]["gpu_usd_per_month"] == pytest.approx(8640.00, abs=0.005)
    assert answer["self_host"]["operations_usd_per_month"] == 2000.0
    assert answer["break_even"]["requests_per_month"] == pytest.approx(1.25e6, rel=0.005)
    assert answer["cheaper"] == "api"


@pytest.mark.parametrize(
    ("usd_per_hour", "rate", "usd_per_million"), [(2.5, 800, 0.87), (20, 3000, 1.85), (32, 8000, 1.11)]
)
def test_dollars_a_million_tokens_of_a_deployment(
    cost: Any, usd_per_hour: float, rate: float, usd_per_million: float
) -> None:
    """A price and a rate are enough."""
    answer = cost(f"--gpus 1 --gpu-hour-usd {usd_per_hour} --output-tokens-per-second {rate}")

    assert answer["self_host"]["usd_per_million_tokens"] == pytest.approx(usd_per_million, abs=0.005)
    assert answer["self_host"]["usd_per_million_output_tokens"] == pytest.approx(usd_per_million, abs=0.005)
    assert answer["api"]["name"] is None


def test_what_a_break_even_at_200k_requests_leaves_out(cost: Any, simserve: Simserve) -> None:
    """$0.01 a request against a $2,000 GPU breaks even at 200 k, until each of three terms is counted."""
    flags = (
        "--requests-per-month 200000 --prompt-tokens 500 --output-tokens 500 --api-input-usd 10 --api-output-usd 10 "
        f"--gpus 1 --gpu-hour-usd {2000 / 720} --operations-usd 3000"
    )
    rows = {row["term"]: row for row in cost(flags)["left_out"]}

    crossing = {term: row["break_even_requests_per_month"] for term, row in rows.items()}
    assert crossing["GPUs alone, always full"] == pytest.approx(200_000)
    assert crossing["operations (given)"] == pytest.approx(500_000)
    assert crossing["utilization of 80%"] == pytest.approx(250_000)
    assert crossing["utilization of 70%"] == pytest.approx(285_714, abs=1)
    assert crossing["a second GPU"] == pytest.approx(400_000)
    assert crossing["all of these, at 70%"] == pytest.approx((4000 / 0.7 + 3000) / 0.01)
    printed = simserve("cost", *flags.split(), "-v").stdout
    assert all(term in printed for term in rows)


def test_operations_that_are_not_given_are_shown_and_not_counted(cost: Any) -> None:
    """The figure of the month has none of them; the table names an assumption."""
    answer = cost("--requests-per-month 200000 --api-request-usd 0.01 --gpus 1 --gpu-hour-usd 2.5")

    row = next(row for row in answer["left_out"] if row["term"].startswith("operations"))
    assert (row["adds_usd_per_month"], row["is_counted"]) == (3000.0, False)
    assert "assumed" in row["term"]
    assert answer["self_host"]["usd_per_month"] == 1800.0
    assert answer["api"]["usd_per_month"] == 2000.0


def test_what_fifty_requests_a_second_come_to(cost: Any) -> None:
    """129.6 M requests, $0.0000821 each, 103.5 times less; at 70 % 90.7 M, $0.000117, 72 times."""
    rows = {row["utilization"]: row for row in cost(_MILLION_REQUESTS + " --requests-per-second 50")["capacity"]}

    assert rows[1.0]["requests_per_month"] == pytest.approx(129.6e6)
    assert rows[1.0]["usd_per_request"] == pytest.approx(0.0000821, abs=5e-8)
    assert rows[1.0]["api_over_self_host"] == pytest.approx(103.5, abs=0.05)
    assert rows[0.7]["requests_per_month"] == pytest.approx(90.7e6, abs=5e4)
    assert rows[0.7]["usd_per_request"] == pytest.approx(0.000117, abs=5e-7)
    assert round(rows[0.7]["api_over_self_host"]) == 72


def test_a_volume_above_the_rate_takes_whole_fleets(cost: Any) -> None:
    """Two thirds more than one fleet holds are two fleets."""
    one = cost("--gpus 1 --gpu-hour-usd 1 --requests-per-second 1 --requests-per-month 2592000")
    two = cost("--gpus 1 --gpu-hour-usd 1 --requests-per-second 1 --requests-per-month 4320000")

    assert (one["self_host"]["usd_per_month"], one["self_host"]["utilization"]) == (720.0, 1.0)
    assert two["self_host"]["usd_per_month"] == 1440.0
    assert two["self_host"]["utilization"] == pytest.approx(5 / 6)


def test_utilization_divides_what_a_rate_is_worth(cost: Any) -> None:
    """At half use a million tokens cost twice."""
    flags = "--gpus 1 --gpu-hour-usd 2.5 --output-tokens-per-second 800"

    full, half = cost(flags), cost(flags + " --utilization 0.5")

    assert half["self_host"]["usd_per_million_tokens"] == pytest.approx(2 * full["self_host"]["usd_per_million_tokens"])


def test_an_api_alone_has_a_bill(cost: Any, simserve: Simserve) -> None:
    """Without GPUs there is nothing to compare, and still a month's price; cached tokens cost less."""
    flags = "--api gpt-4o --requests-per-month 1000 --prompt-tokens 4000 --output-tokens 100"

    plain, cached = cost(flags), cost(flags + " --cached-share 0.5")

    assert plain["api"]["usd_per_month"] == pytest.approx(1000 * (4000 * 2.5 + 100 * 10) / 1e6)
    assert cached["api"]["usd_per_month"] == pytest.approx(1000 * (2000 * 2.5 + 2000 * 1.25 + 100 * 10) / 1e6)
    assert plain["self_host"]["usd_per_month"] is None
    assert simserve("cost", *flags.split()).stdout.startswith("gpt-4o costs $11.00 a month")


def test_a_share_of_cached_tokens_that_the_api_does_not_cache_is_refused(simserve: Simserve) -> None:
    """250 tokens are fewer than the 1,024 that OpenAI's cache takes: the bill would be too low."""
    flags = "--api gpt-4o --requests-per-month 1000 --prompt-tokens 500 --output-tokens 100 --cached-share 0.5"

    outcome = simserve("cost", *flags.split())

    assert (outcome.code, outcome.stdout) == (2, "")
    assert "makes a prefix of 250 tokens, and gpt-4o caches from 1,024 on" in outcome.stderr


def test_the_documented_keys_are_there(cost: Any) -> None:
    """By arithmetic too."""
    answer = cost(_MILLION_REQUESTS)

    assert {"usd_per_month", "usd_per_million_tokens", "usd_per_request", "utilization"} <= set(answer["self_host"])
    assert {"name", "usd_per_month", "usd_per_million_tokens", "usd_per_request"} <= set(answer["api"])
    assert {"tokens_per_month", "requests_per_month"} <= set(answer["break_even"])
    assert {"hybrid", "sensitivity"} <= set(answer)


def test_an_old_price_is_marked(cost: Any, simserve: Simserve) -> None:
    """gpt-4's of 2023, against the newest date of the catalogue or a given day."""
    flags = "--api gpt-4 --requests-per-month 1000 --prompt-tokens 1000 --output-tokens 100"

    assert cost(flags)["api"]["is_old"]
    assert not cost(flags + " --today 2023-12-01")["api"]["is_old"]
    assert "more than a year before" in " ".join(simserve("cost", *flags.split()).stdout.split())


def test_the_page_holds_the_answer(simserve: Simserve, folder: Path) -> None:
    """One file that loads nothing."""
    simserve("cost", *_MILLION_REQUESTS.split(), "--html", "cost.html", "--quiet")

    page = (folder / "cost.html").read_text(encoding="utf-8")
    assert "The API costs less: $8,500 a month" in page
    assert "http" not in page


def test_python_answers_the_same(cost: Any) -> None:
    """`ss.cost` takes the flags as terms, and shows itself in a notebook."""
    result = ss.cost(gpus=1, gpu_hour_usd=2.5, output_tokens_per_second=800)

    assert json.loads(json.dumps(result.summary)) == cost("--gpus 1 --gpu-hour-usd 2.5 --output-tokens-per-second 800")
    assert "$0.868 a million output tokens" in result._repr_html_()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "has nothing to price"),
        ("--gpus 2", "--gpus: has no price; add --gpu-hour-usd"),
        ("--api-input-usd 5", "--api-input-usd: needs --api-output-usd beside it"),
        ("--api gpt-4o --api-request-usd 1", "--api-request-usd: cannot stand beside --api"),
        ("--api gpt-4o --requests-per-month 5", "--api: needs --prompt-tokens and --output-tokens"),
        ("--gpu-hour-usd 1 --share 0", "--share: 0 must be above 0"),
        ("chatbot --requests-per-month inf", "--requests-per-month: 'inf' is not a number; write 1000000"),
        ("chatbot --requests-per-month 1e300", "'1e300' must be at least 0 and at most 1,000,000,000,000,000"),
        ("chatbot --requests-per-month 1Mio", "--requests-per-month: '1Mio' is not a number; write 1000000"),
        ("chatbot --gpu-hour-usd €2", "--gpu-hour-usd: '€2' is not a number; write dollars, such as 2.50"),
        ("--gpus 1 --gpu-hour-usd 2 --utilization 130%", "--utilization: '130%' must be at least 0 and at most 1"),
        ("--gpu-hour-usd 2,50", "--gpu-hour-usd: '2,50' is not a number; write dollars, such as 2.50"),
        ("chatbot --requests-per-month 1,5M", "--requests-per-month: '1,5M' is not a number; write 1000000"),
        ("--gpu-hour-usd 30%", "--gpu-hour-usd: '30%' has another unit; write dollars, such as 2.50"),
        ("chatbot --requests-per-month $6", "--requests-per-month: '$6' has another unit; write 1000000"),
        ("--gpus 1 --gpu-hour-usd 2 --utilization half", "--utilization: 'half' is not a number; write 0.3 or 30%"),
        ("--gpu-hour-usd 1 --share 2", "--share"),
        ("--gpu-hour-usd 1 --set pricing.api=gpt-4o", "--set: needs a scenario"),
        ("chatbot --gpus 2", "--gpus: '2' names no GPU; write 2xH100"),
        ("--gpu-hour-usd 1 --html nowhere/page.html", "--html: 'nowhere/page.html' cannot be written"),
        ("--gpu-hour-usd 1 --today yesterday", "--today: 'yesterday' must be a date"),
    ],
)
def test_flags_that_answer_nothing_are_refused(simserve: Simserve, flags: str, said: str) -> None:
    """With exit code 2, one line, and nothing on stdout."""
    outcome = simserve("cost", *flags.split())

    assert (outcome.code, outcome.stdout) == (2, "")
    assert said in outcome.error_line


@pytest.mark.parametrize(("today", "is_told"), [("2024-01-01", False), ("2026-10-23", True)])
def test_the_day_that_is_given_also_judges_the_api_of_a_scenario(cost: Any, today: str, is_told: bool) -> None:
    """Not the newest day of the catalogue, by which a run of the scenario judges it."""
    summary = cost(f"api-vs-self-host --set pricing.api=gpt-4 --set workload.num_requests=50 --today {today}")

    assert sum("gpt-4 is no longer served" in each for each in summary["warnings"]) == is_told


@pytest.mark.parametrize(("api", "is_told"), [("", True), (" --api gpt-4o", False)])
def test_an_api_that_is_not_compared_with_is_not_warned_of(cost: Any, api: str, is_told: bool) -> None:
    """The scenario's own has been withdrawn, and the flag names another."""
    summary = cost(f"api-vs-self-host --set pricing.api=deepseek-r1 --set workload.num_requests=50{api}")

    assert any("deepseek-r1 is no longer served" in each for each in summary["warnings"]) == is_told


@pytest.mark.parametrize(("today", "is_told"), [("2027-01-13", False), ("2027-01-14", True)])
def test_an_api_that_is_no_longer_served_is_told_with_its_successor(
    simserve: Simserve, today: str, is_told: bool
) -> None:
    """By arithmetic and of a scenario alike, from the day on."""
    outcome = simserve(
        "cost", "--api", "gpt-4o", "--requests-per-month", "1e6", "--prompt-tokens", "700", "--output-tokens", "200",
        "--today", today,
    )  # fmt: skip

    assert outcome.code == 0
    assert (
        "OpenAI withdrew it on 2027-01-14; its successor there is gpt-6-luna" in " ".join(outcome.stdout.split())
    ) == is_told


def test_an_unknown_api_names_the_nearest(simserve: Simserve) -> None:
    """With exit code 104."""
    outcome = simserve("cost", "--api", "gpt-4p", "--requests-per-month", "1")

    assert outcome.code == 104
    assert "'gpt-4p' is not a known api; did you mean 'gpt-4'" in outcome.error_line


@pytest.mark.slow
def test_a_scenario_answers_in_words_and_in_json(simserve: Simserve) -> None:
    """The bundled question, with the documented keys and nothing else on stdout."""
    words, answer = (
        simserve("cost", "api-vs-self-host", "-v"),
        json.loads(simserve("cost", "api-vs-self-host", "--api", "gpt-4o", "--json").stdout),
    )

    assert words.code == 0
    assert "$7,661 a month" not in simserve("cost", "api-vs-self-host", "--api", "gpt-4o").stdout
    assert all(title in words.stdout for title in ("Self-host", "Break-even", "Hybrid", "36 months", "Sensitivity"))
    assert answer["api"]["name"] == "gpt-4o"
    assert answer["cheaper"] == "self_host"
    assert 0 < answer["self_host"]["utilization"] < 1
    assert {"hybrid", "break_even", "sensitivity"} <= set(answer)


def test_flags_beside_a_scenario_change_it(cost: Any) -> None:
    """The price of a GPU-hour, the volume, prices of a million tokens."""
    answer = cost("api-vs-self-host --gpu-hour-usd 1 --requests-per-month 1000000 --api-input-usd 0 --api-output-usd 1")

    assert answer["self_host"]["gpu_usd_per_month"] == 4 * 720
    assert answer["day"]["requests_per_month"] == pytest.approx(1e6)
    assert answer["api"]["usd_per_million_tokens"] == pytest.approx(
        answer["api"]["output_tokens"] / (answer["api"]["output_tokens"] + answer["api"]["prompt_tokens"])
    )


def test_a_deployment_that_does_not_fit_prints_its_memory(simserve: Simserve) -> None:
    """And ends with 3, as a run does."""
    outcome = simserve(
        "cost",
        "chatbot",
        "--set",
        "deployment.hardware=l4-24gb",
        "--set",
        "deployment.tensor_parallel_size=1",
        "--json",
    )

    assert outcome.code == 3
    assert json.loads(outcome.stdout)["fits"] is False


def test_the_volume_of_a_month_is_the_load_of_a_model(simserve: Simserve) -> None:
    """It asked for --rate beside --requests-per-month; the advice asks for the same load."""
    line = "cost llama-3.1-8b --gpus H100 --requests-per-month 1M --prompt-tokens 100 --output-tokens 10"

    outcome = simserve(*line.split(), "--num-requests", "20")

    assert outcome.code == 0, outcome.stderr
    assert "1 M requests a month, 0.386 a second" in outcome.stdout
    assert "--rate 1000000/month" in outcome.stdout
