"""Tests of the API price catalogue, and of when a price is old."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from simserve.errors import ProfileError, UsageError
from simserve.profiles import catalog
from simserve.profiles.api import (
    PromptCaching,
    catalogue_date,
    is_withdrawn,
    load_api,
    serving,
    withdrawal_note,
)
from simserve.profiles.price_dates import check_today, is_old, is_past, last_day, newest

_OWN = {
    "name": "own",
    "provider": "Us",
    "model_id": "own-1",
    "description": "Our own price",
    "price": {"input": 1.0, "output": 2.0},
    "date": "2026-10",
    "source": "contract",
}


@pytest.mark.parametrize("name", catalog.names("api"))
def test_every_bundled_price_has_its_date_and_source(name: str) -> None:
    """And open weights name a model that is bundled."""
    profile = load_api(name)

    assert profile.name == name
    assert len(profile.source) > 20
    assert last_day(profile.date)
    assert profile.price.cached <= profile.price.input
    assert profile.weights is None or profile.weights in catalog.names("model")


@pytest.mark.parametrize("name", catalog.names("api"))
def test_a_successor_is_a_profile_of_the_same_provider_that_is_served(name: str) -> None:
    """So whoever is warned finds its price."""
    profile, today = load_api(name), catalogue_date()
    successor = None if profile.withdrawn is None else profile.withdrawn.successor

    assert profile.withdrawn is None or last_day(profile.withdrawn.date)
    assert successor is None or load_api(successor).provider == profile.provider
    assert successor is None or not is_withdrawn(load_api(successor), today)


def test_a_model_is_withdrawn_from_the_day_on_that_its_provider_names() -> None:
    """On the day itself, and not before; a month counts when it is over."""
    profile = load_api("gpt-4o")

    assert not is_withdrawn(profile, "2027-01-13")
    assert is_withdrawn(profile, "2027-01-14")
    assert withdrawal_note(profile, "2027-01-13") is None
    note = "gpt-4o is no longer served: OpenAI withdrew it on 2027-01-14; its successor there is gpt-6-luna"
    assert withdrawal_note(profile, "2027-01-14") == note
    assert (is_past("2027-01", "2027-01-30"), is_past("2027-01", "2027-01-31")) == (False, True)


def test_who_still_serves_the_same_weights_is_named() -> None:
    """Groq names another model; hosts of these weights are left, and those that ended are not among them."""
    note = withdrawal_note(load_api("groq-llama-3.3-70b"), None) or ""

    assert (
        "withdrew it on 2026-08-16; its successor there is groq-gpt-oss-120b; the same weights are served as " in note
    )
    assert "nebius-llama-3.3-70b" in note
    assert "together-llama-3.3-70b" not in note
    assert "groq-llama-3.3-70b" not in [each.name for each in serving("llama-3.3-70b")]
    assert "together-llama-3.3-70b" in [each.name for each in serving("llama-3.3-70b", "2026-10-21")]


def test_gpt_4_has_its_price_of_2023() -> None:
    """30 and 60 dollars, and it is old."""
    profile = load_api("gpt-4")

    assert (profile.price.input, profile.price.output, profile.date) == (30.0, 60.0, "2023-06")
    assert is_old(profile.date, catalogue_date() or "")


def test_the_newest_haiku_charges_long_prompts_five_times_as_much() -> None:
    """0.10 and 0.50 dollars up to 100,000 tokens, as its provider's page has it, and five times that beyond."""
    profile = load_api("claude-haiku-5-5")

    (long,) = profile.prompt_tiers
    assert (profile.price.input, profile.price.output) == (0.1, 0.5)
    assert (long.above_prompt_tokens, long.input, long.cached_input, long.output) == (100_000, 0.5, 0.05, 2.5)
    assert {offer.min_tokens for offer in profile.prompt_caching} == {512}


def test_a_profile_of_one_s_own_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In api_profiles/ of a folder in SIMSERVE_PROFILE_PATH, and by path."""
    (tmp_path / "api_profiles").mkdir()
    file = tmp_path / "api_profiles" / "own.yaml"
    file.write_text(yaml.safe_dump(_OWN), encoding="utf-8")
    monkeypatch.setenv(catalog.PROFILE_PATH_VARIABLE, str(tmp_path))

    assert load_api("own") == load_api(str(file))
    assert "own" in catalog.names("api")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "other"}, "name: 'other' must equal the name of the file"),
        ({"price": {"input": -1.0, "output": 2.0}}, "price.input"),
        ({"date": "last year"}, "date"),
        ({"batch_discount": 1.5}, "batch_discount"),
        (
            {"prompt_tiers": [{"above_prompt_tokens": n, "input": 1.0, "output": 1.0} for n in (200, 100)]},
            "prompt_tiers must ascend",
        ),
        ({"volume_discounts": [{"above_usd_per_month": n, "discount": 0.1} for n in (2, 1)]}, "must ascend"),
        (
            {"prompt_caching": [{"min_tokens": 1024, "lifetime": "5 min", "source": "contract"}]},
            "has prompt_caching without a price.cached_input",
        ),
        ({"usd": 1}, "usd: is not a known key"),
    ],
)
def test_an_invalid_profile_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], said: str
) -> None:
    """File, key and rule."""
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(_OWN | change), encoding="utf-8")
    monkeypatch.setenv(catalog.PROFILE_PATH_VARIABLE, str(tmp_path))

    with pytest.raises(ProfileError, match=r"own\.yaml") as failure:
        load_api("own")

    assert said in str(failure.value)


@pytest.mark.parametrize(
    ("date", "today", "old"),
    [
        ("2025-11-01", "2026-11-01", False),
        ("2025-10-31", "2026-11-01", True),
        ("2025", "2026-12-31", False),
        ("2024", "2026-01", True),
        ("2025-06", "2026", False),
        ("2023-06", "2026-11", True),
    ],
)
def test_only_what_is_certainly_older_than_a_year_is_old(date: str, today: str, old: bool) -> None:
    """A date of a year or a month is as young as it may be."""
    assert is_old(date, today) is old


def test_the_newest_date_is_what_age_is_judged_against() -> None:
    """Whatever the day: the same files give the same answer."""
    assert newest(["2026", "2026-07", "2025-12-31"]) == "2026-07"
    assert newest([]) is None
    assert check_today("2026-11-30") == "2026-11-30"
    with pytest.raises(UsageError, match="must be a date"):
        check_today("30.11.2026")


def test_a_latency_is_that_of_its_percentiles() -> None:
    """A lognormal of the mean and spread that the profile gives has its median and 95th percentile."""
    found = load_api("groq-llama-3.3-70b").latency
    assert found is not None
    assert found.ttft_cv is not None
    sigma = math.sqrt(math.log1p(found.ttft_cv**2))

    assert found.mean_ttft * math.exp(-(sigma**2) / 2) == pytest.approx(0.22)
    assert found.mean_ttft * math.exp(1.6448536 * sigma - sigma**2 / 2) == pytest.approx(0.30)


def test_every_latency_says_who_measured_it_and_when() -> None:
    """And most APIs have none."""
    known = [found for name in catalog.names("api") if (found := load_api(name).latency) is not None]

    assert 5 <= len(known) < len(catalog.names("api")) / 2
    assert all(each.measured and each.date and each.source for each in known)


def test_a_prefix_of_the_least_length_is_kept() -> None:
    """OpenAI caches prompts of 1,024 tokens "or longer", in steps of 128."""
    offer = PromptCaching(min_tokens=1024, step_tokens=128, lifetime="5 min", source="a test")

    assert [offer.kept(tokens) for tokens in (1023, 1024, 1151, 1152)] == [0, 1024, 1024, 1152]
