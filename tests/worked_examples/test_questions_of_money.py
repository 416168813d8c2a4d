"""Worked examples, the questions about money: halve a bill, and from what volume each way to serve is cheapest."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

import simserve as ss
from simserve.report.cost import sections

_A100 = (
    "deployment.hardware=a100-sxm-80gb",
    "deployment.quantization=int8-wo",
    "deployment.kv_cache_dtype=auto",
)
_BILL = 500_000.0
_PROMPT, _OUTPUT = 1500, 400


@lru_cache
def month(*overrides: str, api: str = "gpt-4o", requests: float | None = None) -> dict[str, Any]:
    """Return the cost of the bundled scenario."""
    summary = ss.cost(ss.load("api-vs-self-host", overrides), api=api, requests_per_month=requests).summary
    return dict(summary)


def test_api_a100_or_h100_fp8_from_what_volume_each() -> None:
    """Question 9: the API, then A100, whose hour is cheaper, for what two replicas hold; H100 in FP8 from there on."""
    h100, a100 = month(), month(*_A100)
    first = a100["break_even"]["requests_per_month"]
    held = a100["day"]["capacity_rate_per_replica"] * 720 * 3600

    assert first < h100["break_even"]["requests_per_month"] < held
    for requests, cheapest in (
        (first * 0.98, "api"),
        ((first + held) / 2, "a100"),
        (held * 1.1, "a100"),
        (held * 2.1, "h100"),
        (1e8, "h100"),
    ):
        on_h100, on_a100 = month(requests=requests), month(*_A100, requests=requests)
        usd = {
            "api": on_h100["api"]["usd_per_month"],
            "h100": on_h100["self_host"]["usd_per_month"],
            "a100": on_a100["self_host"]["usd_per_month"],
        }
        assert min(usd, key=lambda way: usd[way]) == cheapest, (requests, usd)


def _bill(**changes: float) -> float:
    """Return a month's bill at gpt-4o for the requests of the question."""
    terms = {"prompt_tokens": _PROMPT, "output_tokens": _OUTPUT} | changes
    requests = terms.pop("requests", _BILL / ((_PROMPT * 2.5 + _OUTPUT * 10) / 1e6))
    api = "gpt-4o-mini" if terms.pop("mini", False) else "gpt-4o"
    usd: float = ss.cost(api=api, requests_per_month=requests, **terms).summary["api"]["usd_per_month"]
    return usd


def test_half_of_a_bill_takes_more_than_one_lever() -> None:
    """Question 3: caching and shorter prompts take a third; routing the easy half to a small model takes the rest."""
    requests = _BILL / ((_PROMPT * 2.5 + _OUTPUT * 10) / 1e6)

    # A common beginning of 1,050 tokens: gpt-4o caches from 1,024 on.
    cached = _bill(cached_share=0.7)
    shorter = _bill(cached_share=0.875, prompt_tokens=1200)
    routed = _bill(cached_share=0.875, prompt_tokens=1200, requests=requests / 2) + _bill(
        cached_share=0.875, prompt_tokens=1200, requests=requests / 2, mini=True
    )

    assert _bill() == pytest.approx(_BILL)
    assert _BILL > cached > shorter > _BILL / 2 > routed


def test_half_of_a_bill_by_serving_the_largest_class_oneself() -> None:
    """Or GPUs for the class of the highest volume, priced with people and whole replicas for its busiest hour."""
    requests = 0.6 * _BILL / ((700 * 2.5 + 250 * 10) / 1e6)

    own = month(requests=requests)

    rest = 0.4 * _BILL
    assert own["api"]["usd_per_month"] == pytest.approx(0.6 * _BILL, rel=0.05)
    assert own["self_host"]["usd_per_month"] + rest < _BILL / 2


def test_one_command_says_from_what_volume_each_way_is_cheapest() -> None:
    """Question 9 again: `simserve cost api-vs-self-host --api gpt-4o --with 'A100: ...'` names the three in order."""
    h100, a100 = month(), month(*_A100)

    answer = ss.cost(ss.load("api-vs-self-host"), api="gpt-4o", variants={"A100": _A100})

    found = answer.summary["ways"]
    assert [each["name"] for each in found[:3]] == ["gpt-4o", "A100", "the scenario"]
    first = a100["break_even"]["requests_per_month"]
    assert found[0]["to_requests_per_month"] == pytest.approx(first, rel=1e-3)
    assert found[1]["to_requests_per_month"] > first
    assert h100["break_even"]["requests_per_month"] > first
    assert found[-1]["to_requests_per_month"] is None
    assert any("a month: A100" in line for part in sections(answer.summary) for line in part.lines)
