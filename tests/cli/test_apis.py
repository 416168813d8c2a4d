"""`simserve apis`, and the prices of `simserve gpus`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simserve.profiles import catalog
from tests.cli.conftest import Simserve
from tests.planner.importers.test_prices_api import LITELLM
from tests.planner.importers.test_prices_gpu import SKYPILOT


def test_apis_are_listed_with_prices_and_dates(simserve: Simserve) -> None:
    """As a table and as JSON; gpt-4's price of 2023 is marked old."""
    table, answer = simserve("apis").stdout, json.loads(simserve("apis", "--json").stdout)

    rows = {row["name"]: row for row in answer["apis"]}
    assert list(rows) == catalog.names("api")
    assert all(name in table for name in rows)
    assert (rows["gpt-4"]["input_usd_per_million_tokens"], rows["gpt-4"]["output_usd_per_million_tokens"]) == (30, 60)
    assert [name for name, row in rows.items() if row["is_old"]] == ["gpt-4"]
    assert "2023-06, old" in table


def test_apis_are_found_by_name_provider_and_weights(simserve: Simserve) -> None:
    """In any case; a name in none of them is refused with the nearest, and a price file has a filter of its own."""
    found = [row["name"] for row in json.loads(simserve("apis", "GPT-4o", "--json").stdout)["apis"]]
    weights = {row["name"] for row in json.loads(simserve("apis", "llama 3.1 70b", "--json").stdout)["apis"]}

    assert "gpt-4o" in found
    assert "gpt-4" not in found
    assert "deepinfra-llama-3.1-70b" in weights
    assert simserve("apis", "gpt-99").code == 104
    assert simserve("apis", "gpt", "--prices", "prices.json").code == 2


def test_until_when_a_model_is_served_is_listed(simserve: Simserve) -> None:
    """Ended or until, at the day of the catalogue or the one given; JSON has successor and source."""
    words = simserve("apis", "gpt-4o-mini").stdout
    rows = json.loads(simserve("apis", "groq-llama", "--json").stdout)["apis"]

    assert "until 2027-01" in words
    assert "ended 2027-01" in simserve("apis", "gpt-4o-mini", "--today", "2027-02-01").stdout
    assert {row["withdrawn"]["successor"] for row in rows} == {"groq-gpt-oss-20b", "groq-gpt-oss-120b"}
    assert all(row["is_withdrawn"] for row in rows)


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


def test_a_price_file_is_listed_and_written(simserve: Simserve, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`apis --prices` shows what it holds; with --out it can be asked for by name."""
    (folder / "list.json").write_text(json.dumps(LITELLM), encoding="utf-8")
    flags = ("--prices", "list.json", "--date", "2026-11-20")

    outcome = simserve("apis", *flags, "--only", "LARGE", "--out", "my", "--json")

    assert [row["name"] for row in json.loads(outcome.stdout)["apis"]] == ["maker-large"]
    assert "1 profile written; use with SIMSERVE_PROFILE_PATH=my" in outcome.stderr
    monkeypatch.setenv("SIMSERVE_PROFILE_PATH", "my")
    assert simserve("cost", "--api", "maker-large", "--prompt-tokens", "1", "--output-tokens", "1").code == 0
    assert simserve("apis", *flags, "--only", "LARGE", "--out", "my").code == 2
    assert simserve("apis", *flags, "--only", "LARGE", "--out", "my", "--force").code == 0


def test_a_list_of_gpu_prices_moves_what_a_run_charges(
    simserve: Simserve, folder: Path, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the file to the dollars of a run, by the provider's name."""
    (folder / "cloudy").mkdir()
    (folder / "cloudy" / "vms.csv").write_text(SKYPILOT, encoding="utf-8")

    outcome = simserve("gpus", "--prices", "cloudy/vms.csv", "--date", "2026-11-20", "--out", "my")
    monkeypatch.setenv("SIMSERVE_PROFILE_PATH", "my")
    run = json.loads(simserve("run", small, "--set", "pricing.provider=cloudy", "--json").stdout)

    assert outcome.code == 0
    assert "TPUv5" in outcome.stdout
    assert run["simserve"]["cost"]["gpu_hour_usd"] == 2.95
    assert "at cloudy, seen 2026-11-20" in run["simserve"]["cost"]["gpu_hour_source"]


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["apis", "--out", "my"], 2, "--out: needs --prices FILE"),
        (["apis", "--only", "x"], 2, "--only: needs --prices FILE"),
        (["gpus", "--provider", "x"], 2, "--provider: needs --prices FILE"),
        (["gpus", "--force"], 2, "--force: needs --prices FILE"),
        (["apis", "--prices", "list.json"], 2, "--prices: needs --date"),
        (["apis", "--prices", "list.json", "--date", "soon"], 2, "--date: 'soon' must be a date"),
        (
            ["apis", "--prices", "list.json", "--date", "2026-11-20", "--only", "zzz"],
            104,
            "holds no API of these names",
        ),
        (["gpus", "--prices", "none.csv", "--date", "2026-11-20"], 104, "none.csv: no such file"),
        (["gpus", "--prices", "list.json", "--date", "2026-11-20"], 104, "is no price list of SkyPilot"),
    ],
)
def test_price_files_that_cannot_be_used(
    simserve: Simserve, folder: Path, flags: list[str], code: int, said: str
) -> None:
    """One line, and its exit code."""
    (folder / "list.json").write_text(json.dumps(LITELLM), encoding="utf-8")

    outcome = simserve(*flags)

    assert (outcome.code, outcome.stdout) == (code, "")
    assert said in outcome.error_line
