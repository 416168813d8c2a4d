"""The tour and the film: what a stop says is what the tab behind it says, and every link of it can be followed."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest

from simserve.errors import InputError
from simserve.explore.exports import export
from simserve.explore.lessons import kv_growth, memory_wall, resolved_query
from simserve.explore.queries import BatchingQuery, FilmQuery, MemoryQuery, TooLongError, TourQuery
from simserve.explore.simulator import film
from simserve.explore.tour import STOPS, tour
from tests.explore.builders import no_limit

pages = pytest.importorskip("simserve.explore.pages", reason="needs simserve[explore]")


@cache
def at(stop: str) -> dict[str, Any]:
    """Return what is true at a stop."""
    return tour(TourQuery.model_validate({"stop": stop}), no_limit)


_SLOW = {"fleet": pytest.mark.slow}
"""The capacity of three GPUs is searched there."""


@pytest.mark.parametrize("stop", [pytest.param(each, id=each.id, marks=_SLOW.get(each.id, ())) for each in STOPS])
def test_a_stop_has_an_answer_that_can_be_predicted(stop: Any) -> None:
    """Within the slider or among the choices; with words, something to play and an equation."""
    found = at(stop.id)

    if stop.choices:
        assert found["truth"] in stop.choices
    else:
        assert stop.low < found["truth"] < stop.high
        assert max(found["truth"] / stop.start, stop.start / found["truth"]) > 1.5, "the slider gives the answer away"
    assert found["answer"].endswith(".")
    assert len(found["lines"]) >= 3
    assert found["play"]["kind"] in ("frames", "slots", "film")
    assert found["equations"]


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.id)
def test_the_settings_of_a_stop_were_computed_in_advance(stop: Any) -> None:
    """Where there is no server, the link of a stop leads to an answer that lies there."""
    offered = pages.GRIDS[stop.tab]

    for name, value in stop.values.items():
        assert value in offered[name], name


def test_the_tour_says_what_the_tabs_say() -> None:
    """With the settings of its links."""
    lone = memory_wall(MemoryQuery(model="llama-3.1-8b", hardware="h100-sxm-80gb", batch=1), no_limit)
    long = kv_growth(MemoryQuery(model="llama-3.1-8b", hardware="h100-sxm-80gb", context_tokens=8000), no_limit)

    assert at("decoding")["truth"] == lone["step_ms"]
    assert at("kv-cache")["truth"] == long["most_requests"]


def test_a_larger_batch_brings_more_and_takes_longer() -> None:
    """The chart that moves at the first stop."""
    steps = [sum(frame["rows"][0]["parts"]) for frame in at("decoding")["play"]["frames"]]

    assert steps == sorted(steps)
    assert steps[-1] < 256 * steps[0]


@pytest.mark.slow
def test_a_fleet_is_as_many_gpus_as_carry_the_traffic() -> None:
    """At every rate the cheapest is marked, and more traffic never costs less."""
    frames = at("fleet")["play"]["frames"]
    dollars = [{row["name"].split(" x ")[1]: row["parts"][0] for row in frame["rows"]} for frame in frames]

    for frame in frames:
        cheapest = min(frame["rows"], key=lambda row: row["parts"][0])
        assert [row["name"] for row in frame["rows"] if row["chosen"]] == [cheapest["name"]]
    for gpu in dollars[0]:
        bills = [each[gpu] for each in dollars]
        assert bills == sorted(bills)
    assert at("fleet")["truth"] != min(dollars[0], key=lambda gpu: dollars[0][gpu]), "traffic changes the answer"


def test_a_fleet_without_a_rate_that_was_confirmed_in_time_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """One clear line, and no figure."""
    monkeypatch.setattr("simserve.explore.tour.load", lambda _query, _check: {"most": None})

    with pytest.raises(TooLongError, match="takes too long"):
        tour(TourQuery(stop="fleet"), no_limit)


@pytest.mark.parametrize("stop", [stop.id for stop in STOPS])
def test_a_stop_is_a_scenario(stop: str) -> None:
    """That of the tab it leads to."""
    assert "name: explore" in export("tour", TourQuery.model_validate({"stop": stop}), no_limit)


def test_two_films_are_of_the_same_requests_on_one_clock() -> None:
    """And the run beside it differs by what is named."""
    found = film(FilmQuery(num_requests=60, rate=8, against="a quarter of the batch limit"), no_limit)

    one, other = found["film"]["scenes"]
    assert [one["name"], other["name"]] == ["as asked", "a quarter of the batch limit"]
    assert (one["replicas"][0]["seats"], other["replicas"][0]["seats"]) == (32, 8)
    shown = [{each["id"]: each["prompt"] for each in scene["replicas"][0]["requests"]} for scene in (one, other)]
    both = shown[0].keys() & shown[1].keys()
    assert both
    assert all(shown[0][name] == shown[1][name] for name in both)
    assert found["figures"]["a quarter of the batch limit"]["p95_ttft_ms"] > found["figures"]["as asked"]["p95_ttft_ms"]


def test_a_film_may_be_alone() -> None:
    """Against nothing."""
    found = film(FilmQuery(num_requests=40, against="nothing"), no_limit)

    assert [scene["name"] for scene in found["film"]["scenes"]] == ["as asked"]
    assert len(found["equations"]) == 1


@pytest.mark.parametrize("billions", [0.5, 3, 13, 33, 180, 500])
def test_a_free_size_is_met_by_whole_layers(billions: float) -> None:
    """Within half a layer of the Llama that is nearest; its memory and its steps follow."""
    query = MemoryQuery(model="llama-2-7b", hardware="h100-sxm-80gb", batch=1, billion_parameters=billions)
    found = resolved_query(query)
    model = found.shape.model
    layer = (
        model.num_parameters
        - model.model_copy(update={"num_hidden_layers": model.num_hidden_layers - 1}).num_parameters
    )

    assert abs(model.num_parameters - billions * 1e9) <= layer / 2
    assert found.memory.weights_bytes == pytest.approx(2 * model.num_parameters, rel=0.01)
    assert memory_wall(query, no_limit)["step_ms"] > 1e3 * found.memory.weights_bytes / 3.35e12


def test_a_free_size_is_no_scenario() -> None:
    """A file needs a model."""
    with pytest.raises(InputError, match="free size"):
        export("memory-wall", MemoryQuery(billion_parameters=13), no_limit)


def test_seven_short_answers_and_a_long_one() -> None:
    """The worked example of batching: the batch lasts 500 steps, and 79% of its slots are idle."""
    from simserve.explore.batching import batching

    found = batching(BatchingQuery(lengths=(*(50,) * 7, 500), slots=8), no_limit)

    assert found["forms"]["static"]["steps"] == 500
    assert math.isclose(found["forms"]["static"]["idle"], 1 - 850 / 4000)
