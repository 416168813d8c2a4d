"""The month of a run's traffic, beside an API."""

from __future__ import annotations

import pytest

import simserve as ss
from simserve.planner.cost.month import month
from simserve.profiles import catalog
from simserve.profiles.api import load_api
from simserve.report.panels import figure_groups
from simserve.scenario.resolve import resolve

SMALL = ["workload.num_requests=50"]


def test_without_a_named_api_it_is_the_cheapest_with_the_same_weights() -> None:
    """And the page says that nobody named it."""
    scenario = ss.load("chatbot", SMALL)
    result = ss.run(scenario)
    same = [name for name in catalog.names("api") if load_api(name).weights == "llama-3.1-70b"]

    found = result.summary["simserve"]["month"]["api"]

    assert len(same) > 1
    assert found["name"] in same
    assert not found["is_named"]
    named = [
        (month(resolve(ss.load("chatbot", [*SMALL, f"pricing.api={name}"])), result) or {})["api"]["usd_per_request"]
        for name in same
    ]
    assert found["usd_per_request"] == pytest.approx(min(named))


def test_a_named_api_is_taken_and_the_page_says_so_of_one_that_is_not() -> None:
    """Whatever its weights."""
    result = ss.run(ss.load("chatbot", [*SMALL, "pricing.api=gpt-4o"]))

    found = result.summary["simserve"]["month"]["api"]

    assert (found["name"], found["is_named"]) == ("gpt-4o", True)


@pytest.mark.slow
def test_the_page_tells_a_named_api_from_a_found_one(tmp_path: object) -> None:
    """In the note below the title."""
    notes = []
    for api in ("gpt-4o", "null"):
        result = ss.run(ss.load("chatbot", [*SMALL, f"pricing.api={api}"]), out=f"{tmp_path}/{api}")
        notes += [panel.note for group in figure_groups(result) for panel in group.panels if "prices of" in panel.title]

    assert ["names no API" in note for note in notes] == [False, True]
