"""From a mapping to a frozen model, with errors a user can act on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from simserve.errors import InputError, ScenarioError
from simserve.units import Bytes
from simserve.validation import FrozenModel, validate


class Fixed(FrozenModel):
    """One length."""

    distribution: Literal["fixed"]
    value: int = Field(ge=1)


class Uniform(FrozenModel):
    """A range."""

    distribution: Literal["uniform"]
    low: int
    high: int


class Part(FrozenModel):
    """A mapping inside."""

    memory: Bytes
    label: str = ""


class Whole(FrozenModel):
    """What is validated."""

    rate: float = Field(gt=0)
    """Requests a second."""
    part: Part | None = None
    parts: list[Part] = Field(default_factory=list)
    lengths: Annotated[Fixed | Uniform, Field(discriminator="distribution")] | None = None
    counts: tuple[int, ...] = ()


def message_of(mapping: dict[str, Any]) -> str:
    """Return what validation says about a mapping."""
    with pytest.raises(InputError) as error:
        validate(Whole, mapping, file="s.yaml")
    return str(error.value)


def test_a_valid_mapping() -> None:
    """Nested mappings become models, quantities SI."""
    whole = validate(Whole, {"rate": 2, "part": {"memory": "80 GB"}, "lengths": {"distribution": "fixed", "value": 3}})

    assert whole.rate == 2.0
    assert whole.part == Part.model_validate({"memory": "80 GB"})
    assert isinstance(whole.lengths, Fixed)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"rat": 2}, "s.yaml: rat: is not a known key; did you mean 'rate'?"),
        ({"rate": 1, "part": {"memroy": "80 GB"}}, "s.yaml: part.memroy: is not a known key; did you mean 'memory'?"),
        ({"rate": 1, "parts": [{"memory": "1 GB"}, {"size": 2}]}, "s.yaml: parts.1.size: is not a known key"),
        ({"parts[0]": 1}, "s.yaml: parts[0]: is not a known key; did you mean 'parts'"),
        ({"function-": 1}, "s.yaml: function-: is not a known key"),
        ({"rate": 1, "lengths": {"distribution": "fixed", "uniform": 1}}, "s.yaml: lengths.uniform: is not a known"),
        ({}, "s.yaml: rate: is missing"),
        ({"rate": -1}, "s.yaml: rate: -1 must be greater than 0"),
        ({"rate": "much"}, "s.yaml: rate: 'much' must be a valid number"),
        ({"rate": float("inf")}, "s.yaml: rate: inf must be a finite number"),
        ({"rate": 1, "part": {"memory": 80}}, "s.yaml: part.memory: 80 needs a unit of bytes"),
        ({"rate": 1, "part": 3}, "s.yaml: part: 3 must be a mapping of keys to values"),
        ({"rate": 1, "lengths": {"value": 3}}, "s.yaml: lengths.distribution: is missing; choose from fixed, uniform"),
        (
            {"rate": 1, "lengths": {"distribution": "fixd", "value": 3}},
            "s.yaml: lengths.distribution: 'fixd' is not a known distribution; did you mean 'fixed'?",
        ),
        ({"rate": 1, "lengths": {"distribution": "fixed", "value": 0}}, "s.yaml: lengths.value: 0 must be greater"),
        (
            {"rate": 1, "lengths": {"distribution": "uniform", "lwo": 1, "high": 2}},
            "s.yaml: lengths.lwo: is not a known key; did you mean 'low'?",
        ),
    ],
)
def test_what_is_wrong_is_said_a_line_an_error(mapping: dict[str, Any], message: str) -> None:
    """File, dotted key without tags of unions, value, rule, remedy."""
    said = message_of(mapping)

    assert said.startswith(message)
    assert all(line.startswith("s.yaml: ") for line in said.split("\n"))


def test_an_unknown_key_comes_before_what_it_leaves_missing() -> None:
    """A misspelt key explains the missing one."""
    assert "rat: is not a known key" in message_of({"rat": 1, "part": {}})


def test_all_errors_are_said_each_at_its_own_key() -> None:
    """One line an error, in the order of the keys."""
    with pytest.raises(InputError) as error:
        validate(Whole, {"rate": -1, "part": {"memory": 3}, "parts": 4}, file="a.yaml")

    assert [line.split(": ")[1] for line in error.value.lines] == ["rate", "part.memory", "parts"]
    assert [each.key for each in error.value.others] == ["part.memory", "parts"]


def test_an_unknown_key_stands_for_the_missing_one_that_it_means() -> None:
    """One mistake is one line."""
    assert message_of({"rat": 1, "part": {"memory": "3 GB"}, "parts": []}).count("\n") == 0


def test_the_error_is_of_the_kind_asked_for() -> None:
    """A scenario's error says so, with its exit code."""
    with pytest.raises(ScenarioError) as error:
        validate(Whole, {}, error=ScenarioError)

    assert error.value.exit_code == 104


def test_models_are_frozen() -> None:
    """A configuration does not change under a run."""
    whole = validate(Whole, {"rate": 1})

    with pytest.raises(ValidationError):
        whole.rate = 2.0  # type: ignore[misc]


def test_the_text_below_a_field_is_its_description() -> None:
    """The reference page is made of it."""
    assert Whole.model_json_schema()["properties"]["rate"]["description"] == "Requests a second."


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"rate": True}, "s.yaml: rate: True must be a valid number"),
        ({"rate": "3.0"}, "s.yaml: rate: '3.0' must be a valid number"),
        (
            {"rate": 1, "lengths": {"distribution": "fixed", "value": "600"}},
            "s.yaml: lengths.value: '600' must be a valid integer",
        ),
        (
            {"rate": 1, "lengths": {"distribution": "fixed", "value": True}},
            "s.yaml: lengths.value: True must be a valid integer",
        ),
        (
            {"rate": 1, "lengths": {"distribution": "fixed", "value": 1.5}},
            "s.yaml: lengths.value: 1.5 must be a valid integer",
        ),
        ({"rate": 1, "counts": [1, "2"]}, "s.yaml: counts.1: '2' must be a valid integer"),
    ],
)
def test_a_number_is_a_number(mapping: dict[str, Any], message: str) -> None:
    """No switch and no text stands in for one."""
    assert message_of(mapping).startswith(message)


def test_a_whole_number_may_be_written_either_way() -> None:
    """``1e3`` is a count, ``3`` is a rate, and a list fills a tuple."""
    mapping = {"rate": 3, "lengths": {"distribution": "fixed", "value": 1e3}, "counts": [1, 2.0]}

    whole = validate(Whole, mapping)

    assert isinstance(whole.rate, float)
    assert whole.lengths == Fixed(distribution="fixed", value=1000)
    assert whole.counts == (1, 2)


@pytest.mark.parametrize("key", ["part", "parts"])
def test_a_container_is_not_shown(key: str) -> None:
    """It may be as large as a file; the key says where it stands."""
    said = message_of({"rate": 1, key: [["x" * 50] * 50] if key == "part" else {"x": ["y"]}})

    assert said.startswith(f"s.yaml: {key}: must be a")
    assert "x" not in said.removeprefix("s.yaml")
