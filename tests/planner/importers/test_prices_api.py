"""Tests of the price lists of litellm and genai-prices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import ProfileError
from simserve.planner.importers.prices import read_api_prices
from simserve.profiles.api import ApiProfile

_DATE = "2026-11-20"
LITELLM: dict[str, Any] = {
    "sample_spec": {"input_cost_per_token": 0.0, "output_cost_per_token": 0.0, "mode": "one of: chat, embedding"},
    "maker-large": {
        "input_cost_per_token": 2e-06,
        "cache_read_input_token_cost": 5e-07,
        "output_cost_per_token": 8e-06,
        "input_cost_per_token_above_200k_tokens": 4e-06,
        "output_cost_per_token_above_200k_tokens": 1.2e-05,
        "input_cost_per_token_batches": 6e-07,
        "input_cost_per_token_priority": 9e-06,
        "litellm_provider": "maker",
        "mode": "chat",
    },
    "host/Maker/Small-8B": {
        "input_cost_per_token": 1e-07,
        "output_cost_per_token": 1e-07,
        "litellm_provider": "host",
        "mode": "chat",
    },
    "picture": {"input_cost_per_image": 0.04, "litellm_provider": "maker", "mode": "image_generation"},
    "vectors": {"input_cost_per_token": 1e-07, "litellm_provider": "maker", "mode": "embedding"},
}
GENAI: list[dict[str, Any]] = [
    {
        "id": "maker",
        "name": "Maker",
        "api_pattern": "https://api\\.maker",
        "models": [
            {
                "id": "large",
                "match": {"equals": "large"},
                "prices": {
                    "input_mtok": {"base": 2, "tiers": [{"start": 200000, "price": 4}]},
                    "cache_read_mtok": 0.5,
                    "output_mtok": {"base": 8, "tiers": [{"start": 200000, "price": 12}]},
                },
            },
            {
                "id": "falling",
                "match": {"equals": "falling"},
                "prices": [
                    {"prices": {"input_mtok": 3, "output_mtok": 9}},
                    {"constraint": {"start_date": "2026-01-01"}, "prices": {"input_mtok": 2, "output_mtok": 6}},
                    {"constraint": {"start_date": "2027-01-01"}, "prices": {"input_mtok": 1, "output_mtok": 3}},
                    {
                        "constraint": {"start_time": "00:30:00Z", "end_time": "16:30:00Z"},
                        "prices": {"input_mtok": 0, "output_mtok": 0},
                    },
                ],
            },
            {"id": "embedding", "match": {"equals": "embedding"}, "prices": {"input_mtok": 0.1}},
        ],
    }
]


def read(tmp_path: Path, document: object) -> dict[str, ApiProfile]:
    """Return the profiles of a price list, by name."""
    file = tmp_path / "prices.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return {profile.name: profile for profile in read_api_prices(file, _DATE)}


def test_litellm_prices_are_dollars_a_token(tmp_path: Path) -> None:
    """Cached input, batch discount and tiers with them; pictures, embeddings and the sample are left out."""
    found = read(tmp_path, LITELLM)

    assert list(found) == ["maker-large", "host-maker-small-8b"]
    large = found["maker-large"]
    assert (large.price.input, large.price.cached_input, large.price.output) == (2.0, 0.5, 8.0)
    assert large.batch_discount == 0.7
    tier = large.prompt_tiers[0]
    assert (tier.above_prompt_tokens, tier.input, tier.cached_input, tier.output) == (200_000, 4.0, 0.5, 12.0)
    assert (large.provider, large.model_id, large.date) == ("maker", "maker-large", _DATE)
    assert "litellm" in large.source


def test_litellm_knows_when_a_model_ends(tmp_path: Path) -> None:
    """``deprecation_date``, if it is a day."""
    ended = {**LITELLM, "maker-large": {**LITELLM["maker-large"], "deprecation_date": "2026-10-20"}}
    unclear = {**LITELLM, "maker-large": {**LITELLM["maker-large"], "deprecation_date": "soon"}}

    gone = read(tmp_path, ended)["maker-large"].withdrawn
    assert gone is not None
    assert gone.date == "2026-10-20"
    assert read(tmp_path, unclear)["maker-large"].withdrawn is None
    assert read(tmp_path, LITELLM)["maker-large"].withdrawn is None


def test_genai_prices_are_dollars_a_million(tmp_path: Path) -> None:
    """Of dated prices the last that has started; an hour of the day is nobody's mean price."""
    found = read(tmp_path, GENAI)

    assert list(found) == ["maker-large", "maker-falling"]
    large, falling = found["maker-large"], found["maker-falling"]
    assert (large.price.input, large.price.cached_input, large.price.output) == (2.0, 0.5, 8.0)
    tier = large.prompt_tiers[0]
    assert (tier.above_prompt_tokens, tier.input, tier.cached_input, tier.output) == (200_000, 4.0, 0.5, 12.0)
    assert (falling.price.input, falling.price.output) == (2.0, 6.0)


_AT_NIGHT = {"start_time": "16:30:00Z", "end_time": "23:59:00Z"}


@pytest.mark.parametrize(
    ("constraints", "price"),
    [
        ((_AT_NIGHT, None), 2.0),
        ((None, _AT_NIGHT, {"start_date": "2027-01-01"}), 1.0),
        ((_AT_NIGHT, {"start_date": "2026-01-01"}), 2.0),
        ((None, {"start_date": _DATE}), 2.0),
        ((_AT_NIGHT, {"start_date": "2027-01-01"}), 1.0),
        (({"start_date": "2027-01-01"}, _AT_NIGHT), 1.0),
    ],
    ids=[
        "hours first",
        "hours and a later date",
        "hours and an earlier date",
        "from that very day on",
        "only others, hours first",
        "only others",
    ],
)
def test_where_no_price_of_genai_prices_applies_the_first_does(
    tmp_path: Path, constraints: tuple[dict[str, str] | None, ...], price: float
) -> None:
    """The rule of the format's own documentation; the prices are 1, 2, 3 in the order of the list."""
    prices = [
        {"constraint": constraint, "prices": {"input_mtok": number, "output_mtok": number}}
        for number, constraint in enumerate(constraints, 1)
    ]
    model = {"id": "large", "match": {"equals": "large"}, "prices": prices}

    found = read(tmp_path, [{"id": "maker", "name": "Maker", "models": [model]}])

    assert found["maker-large"].price.input == price


def test_two_models_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """File names know no capitals."""
    entry = LITELLM["host/Maker/Small-8B"]

    assert list(read(tmp_path, {"host/A": entry, "host/a": entry})) == ["host-a", "host-a-2"]


def _changed(**change: object) -> dict[str, Any]:
    return {"maker-large": LITELLM["maker-large"] | change}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "is no price list"),
        ([], "is no price list"),
        ([{"name": "no models"}], "is no price list"),
        (_changed(input_cost_per_token="free"), "maker-large.input_cost_per_token: 'free' must be a price"),
        (_changed(output_cost_per_token=-1.0), "maker-large.output_cost_per_token: -1.0 must be a price"),
        (LITELLM | {"broken": 5}, "broken: 5 must be a mapping of prices"),
        ([{"id": "x", "name": "X", "models": [{"id": "m"}]}], "x.m: must have id and prices"),
        (
            [{"id": "x", "name": "X", "models": [{"id": "m", "prices": {"input_mtok": "1", "output_mtok": 1}}]}],
            "x.m.input_mtok: '1' must be a price",
        ),
        (
            [
                {
                    "id": "x",
                    "name": "X",
                    "models": [{"id": "m", "prices": {"input_mtok": {"base": 1}, "output_mtok": 1}}],
                }
            ],
            "x.m.input_mtok: must have tiers",
        ),
        ([{"id": "x", "name": "X", "models": [{"id": "m", "prices": []}]}], "x.m: must be prices"),
    ],
)
def test_a_malformed_list_says_where(tmp_path: Path, document: object, said: str) -> None:
    """File, model and rule, on one line."""
    with pytest.raises(ProfileError) as failure:
        read(tmp_path, document)

    assert said in str(failure.value)
    assert "prices.json" in str(failure.value)
    assert "\n" not in str(failure.value)


def test_another_file_is_refused(tmp_path: Path) -> None:
    """As is one that is no JSON, or not there."""
    (tmp_path / "vms.csv").write_text("a,b\n", encoding="utf-8")
    (tmp_path / "cut.json").write_text('{"a": {', encoding="utf-8")

    with pytest.raises(ProfileError, match="must be a JSON file"):
        read_api_prices(tmp_path / "vms.csv", _DATE)
    with pytest.raises(ProfileError, match="not valid JSON"):
        read_api_prices(tmp_path / "cut.json", _DATE)
    with pytest.raises(ProfileError, match="no such file"):
        read_api_prices(tmp_path / "none.json", _DATE)
