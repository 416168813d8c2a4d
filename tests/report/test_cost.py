"""Tests of the cost answer in words."""

from __future__ import annotations

from typing import Any

import pytest

import simserve as ss
from simserve.planner.cost.scenario import NO_API_SERVES_THEM
from simserve.report.cost import answer, cost_brief, cost_page, sections
from simserve.report.page import render_page
from simserve.report.quantities import dollars

_TERMS = {
    "requests_per_month": 1e6,
    "prompt_tokens": 500.0,
    "output_tokens": 200.0,
    "gpus": 2.0,
    "gpu_hour_usd": 1.0,
    "operations_usd": 100.0,
    "api_request_usd": 0.01,
    "requests_per_second": 2.0,
}


def summary(**changes: Any) -> dict[str, Any]:
    """Return a cost by arithmetic, with terms replaced; None leaves one out."""
    terms = {name: value for name, value in (_TERMS | changes).items() if value is not None}
    return dict(ss.cost(**terms).summary)


def text(answered: dict[str, Any], title: str) -> str:
    """Return the lines of a part; "" where it is not there."""
    return " ".join(" ".join(part.lines) for part in sections(answered) if part.title == title)


def test_the_answer_names_the_cheaper_side_and_what_it_saves() -> None:
    """Or the one figure that is known."""
    own, api = summary(), summary(gpu_hour_usd=10.0)

    assert answer(own).startswith("Self-hosting costs less: $1,540 a month against $10,000 for the API")
    assert answer(api).startswith("The API costs less: $10,000 a month against $14,500 for your own GPUs")
    assert answer(summary(api_request_usd=None)) == "2 GPUs cost $1,540 a month, $7.70 a million output tokens."


def test_an_api_that_nobody_named_and_that_serves_other_weights_is_no_verdict() -> None:
    """ "Self-hosting costs less" stood above DeepSeek-V3 beside gpt-4o."""
    found = summary()
    found["api"] = {**found["api"], "name": "gpt-4o"}
    unasked = {**found, "caveats": [NO_API_SERVES_THEM]}

    assert answer(found).startswith("Self-hosting costs less: $1,540 a month against $10,000 for gpt-4o")
    assert answer(unasked) == ("No listed API serves these weights: $1,540 a month for your own GPUs.")


def test_a_break_even_that_never_comes_says_why() -> None:
    """In dollars a request on both sides."""
    said = text(summary(api_request_usd=1e-6), "Break-even")

    assert said.startswith("never: even fully loaded, 2 GPUs cost $")


def test_a_break_even_that_is_lost_again_says_until_when() -> None:
    """Where the next whole unit makes the API cheaper."""
    said = text(summary(gpu_hour_usd=3.5, api_request_usd=0.001), "Break-even")

    assert "for good from" in said


def test_a_volume_above_the_break_even_at_which_the_api_costs_less_says_so() -> None:
    """A break-even of 5 M requests and "the API costs less" at 6 M contradict each other unless explained."""
    lost = {"gpu_hour_usd": 3.5, "api_request_usd": 0.001}

    above, below = (
        next(fact.text for fact in cost_brief(summary(**lost, requests_per_month=volume)).facts if fact.label == each)
        for volume, each in ((6e6, "Break-even"), (4e6, "Break-even"))
    )

    assert "beyond what these can serve, the further GPUs make the API cheaper again until" in above
    assert above.startswith(below)


def test_the_split_is_said_with_both_bills() -> None:
    """Units for the base, the API for the rest; or that no split is worth it."""
    split = summary(requests_per_month=3.6e6, gpu_hour_usd=7.0, api_request_usd=0.004, operations_usd=None)

    assert split["hybrid"]["api_share"] > 0
    assert "GPUs for the base of the day" in text(split, "Hybrid")
    bills = (split["hybrid"][f"{side}_usd_per_month"] for side in ("self_host", "api"))
    assert text(split, "Hybrid").endswith("({} + {})".format(*map(dollars, bills)))
    assert "no split is worth it" in text(summary(gpu_hour_usd=100.0), "Hybrid")


def test_a_month_is_added_up_before_the_reader() -> None:
    """Fleet, operations and what overflows to the API; cents where they show, from 10,000 dollars on whole ones."""
    shown = summary(gpu_hour_usd=1.0016)
    shown["self_host"] = shown["self_host"] | {"overflow_usd_per_month": 250.0, "usd_per_month": 1792.304}

    said = text(shown, "Self-host")
    assert "2 GPUs x $1.00 x 720 hours = $1,442.30 a month" in said
    assert "+ $100 of operations + $250 of overflow to the API = $1,792.30 a month" in said
    assert "720 hours = $14,423 a month" in text(summary(gpu_hour_usd=10.016), "Self-host")


def test_the_bill_of_an_api_is_added_up_from_prompts_and_answers() -> None:
    """A million requests of 500 and 200 tokens, at 0.15 and 0.60 dollars a million tokens."""
    said = text(summary(api_request_usd=None, api="gpt-4o-mini"), "API")

    assert "500 M tokens of prompts $75 + 200 M tokens of answers $120 = $195 a month" in said


def test_the_prompt_cache_is_said_with_its_rules() -> None:
    """How much it finds, from what length on, for how long, and what is paid for it."""
    rules = {"min_tokens": 1024, "lifetime": "5 min", "write_factor": 1.25}
    shown = summary()
    shown["api"] = shown["api"] | {"cached_share": 0.7, "prompt_caching": rules}

    said = text(shown, "API")

    assert "70% of the prompt tokens from its cache, which keeps prefixes from 1,024 tokens on for 5 min" in said
    assert "what is written costs 1.25 times the input price" in said


def test_parts_that_say_nothing_are_left_out() -> None:
    """A bill of an API alone has no break-even, no hybrid, no years."""
    titles = [part.title for part in sections(summary(gpus=None, gpu_hour_usd=None, requests_per_second=None))]

    assert titles == ["API"]


def test_the_page_escapes_what_it_shows() -> None:
    """A name is no markup."""
    shown = summary()
    shown["api"] = shown["api"] | {"name": "<b>api</b>"}

    assert "<b>api</b>" not in render_page(cost_page(shown))
    assert "&lt;b&gt;api" in render_page(cost_page(shown))


def test_a_level_that_does_not_hold_says_what_it_is_told_for() -> None:
    """All of its requests within the SLO, and a queue that grows: it "missed the SLO"."""
    level = {"load": 4.0, "rate": 4.0, "busy": 0.9, "watts_per_gpu": 300.0, "holds": False}
    levels = [
        {**level, "attainment": 1.0, "stability": "overloaded"},
        {**level, "attainment": 0.5, "stability": "stable"},
        {**level, "attainment": 1.0, "stability": "stable", "holds": True},
    ]

    part = next(each for each in sections({**summary(), "load_levels": levels}) if each.title.startswith("Load levels"))

    assert [row[-1] for row in part.rows] == ["overloaded, its queue grows", "stable, misses the SLO", "stable"]


@pytest.mark.parametrize("title", ["What is counted", "Capacity", "Sensitivity"])
def test_tables_have_a_cell_a_column(title: str) -> None:
    """In every row."""
    part = next(each for each in sections(summary()) if each.title == title)

    assert part.rows
    assert {len(row) for row in part.rows} == {len(part.header)}
