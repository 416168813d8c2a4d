"""`simserve apis`, and the prices of `simserve gpus`."""

from __future__ import annotations

import json

import pytest

from simserve.profiles import catalog
from tests.cli.conftest import Simserve


def test_apis_are_listed_with_prices_and_dates(simserve: Simserve) -> None:
    """As a table and as JSON; gpt-4's price of 2023 is marked old."""
    table, answer = simserve("apis").stdout, json.loads(simserve("apis", "--json").stdout)

    rows = {row["name"]: row for row in answer["apis"]}
    assert list(rows) == catalog.names("api")
    assert all(name in table for name in rows)
    assert (rows["gpt-4"]["input_usd_per_million_tokens"], rows["gpt-4"]["output_usd_per_million_tokens"]) == (30, 60)
    assert [name for name, row in rows.items() if row["is_old"]] == ["gpt-4"]
    assert "2023-06, old" in table


@pytest.mark.parametrize("command", ["apis", "gpus"])
def test_age_is_judged_at_a_given_day(simserve: Simserve, command: str) -> None:
    """In ten years everything is old; without a day it is the newest date of the catalogue."""
    future = json.loads(simserve(command, "--today", "2036-01-01", "--json").stdout)

    key = "is_old" if command == "apis" else "price_is_old"
    priced = [row for row in future[command] if row.get("price_date", row.get("date")) is not None]
    assert all(row[key] for row in priced)
    assert future["judged_at"] == "2036-01-01"
    assert simserve(command, "--today", "soon").code == 2


def test_every_offer_of_a_gpu_is_listed(simserve: Simserve) -> None:
    """On demand, reserved, spot and to buy, each with its provider and date."""
    table = simserve("gpus", "--offers").stdout
    rows = {row["name"]: row for row in json.loads(simserve("gpus", "--json").stdout)["gpus"]}

    h100 = rows["h100-sxm-80gb"]
    assert {price["kind"] for price in h100["prices"]} == {"on_demand", "reserved", "spot"}
    assert all(price["date"] and price["source"] for price in h100["prices"])
    assert h100["purchase_usd"] == 39625
    assert all(word in table for word in ("reserved", "Nebius", "39,625 once", "old"))
