"""Tests of what an API's prompt cache finds, is given, and costs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from simserve.metrics.api_cost import ApiPrices, cached_prefixes, request_bills
from simserve.metrics.result import RunResult
from simserve.profiles.api import PromptCaching, TokenPrice, load_api
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario
from simserve.sim.records import COMPLETED
from simserve.workload.generate import generate
from simserve.workload.prefixes import PrefixSegments, system_prompts
from tests.scenario.builders import make_scenario

_PROMPT = 2000
_SYSTEM = 1500


def offer(**changes: Any) -> PromptCaching:
    """Return rules of a cache that takes everything and keeps it for a minute."""
    return PromptCaching.model_validate({"min_tokens": 1, "lifetime": "60 s", "source": "a test", **changes})


def one_system_prompt(count: int) -> PrefixSegments:
    """Return requests that begin with the same 1,500 tokens."""
    numbers = np.arange(count)
    return system_prompts(0 * numbers, 1, 0 * numbers + _SYSTEM, 0 * numbers + _PROMPT + 100)


def found(times: list[float], rules: PromptCaching | None) -> tuple[list[int], list[int]]:
    """Return tokens found and put there, of requests with one system prompt."""
    prompts = np.full(len(times), _PROMPT)
    read, written = cached_prefixes(one_system_prompt(len(times)), prompts, np.array(times), rules)
    return read.tolist(), written.tolist()


def test_a_system_prompt_is_put_there_once_and_found_by_all_others() -> None:
    """What nobody shares is neither."""
    assert found([0.0, 1.0, 2.0], offer()) == ([0, _SYSTEM, _SYSTEM], [_SYSTEM, 0, 0])


def test_a_prefix_is_forgotten_a_lifetime_after_its_last_use() -> None:
    """Every use keeps it for another lifetime; without rules it is kept for good."""
    times = [0.0, 50.0, 100.0, 161.0]

    assert found(times, offer()) == ([0, _SYSTEM, _SYSTEM, 0], [_SYSTEM, 0, 0, _SYSTEM])
    assert found([0.0, 1e9], None)[0] == [0, _SYSTEM]


def test_short_prefixes_are_not_cached_and_long_ones_in_whole_steps() -> None:
    """1,500 tokens are 11 steps of 128, and fewer than 2,048."""
    assert found([0.0, 1.0], offer(step_tokens=128)) == ([0, 1408], [1408, 0])
    assert found([0.0, 1.0], offer(min_tokens=2048)) == ([0, 0], [0, 0])


def test_what_is_never_sent_is_not_cached() -> None:
    """A client that stops has no bill."""
    assert found([0.0, math.nan, 1.0], offer()) == ([0, 0, _SYSTEM], [_SYSTEM, 0, 0])


def conversations(**engine: Any) -> Scenario:
    """Return conversations of three turns, 400 tokens a prompt and 100 an answer, ten seconds apart."""
    return make_scenario(
        deployment={"hardware": "h100-sxm-80gb", "engine": {"name": "vllm", "version": "0.12", **engine}},
        workload={
            "arrivals": {"process": "poisson", "rate": 1.0},
            "prompt_tokens": {"distribution": "fixed", "value": 400},
            "output_tokens": {"distribution": "fixed", "value": 100},
            "sessions": {"turns": {"distribution": "fixed", "value": 3}, "think_time": "10 s"},
            "num_requests": 60,
        },
    )


def bills(scenario: Scenario, prices: ApiPrices) -> tuple[Any, RunResult]:
    """Return what the requests of a run cost at an API."""
    result = run(scenario, finishable=None)
    records = result.simulation.records
    specs = generate(scenario.workload, seed=scenario.run.seed)
    return request_bills(prices, records, specs, np.flatnonzero(records.status == COMPLETED)), result


def prices(*offers: PromptCaching) -> ApiPrices:
    """Return 2 dollars a million tokens of prompts, a tenth of it where they are cached."""
    return ApiPrices(name="test", price=TokenPrice(input=2.0, cached_input=0.2, output=10.0), prompt_caching=offers)


def test_a_turn_finds_the_prompts_before_it_and_not_its_last_answer() -> None:
    """An answer has not been part of a prompt: the second turn finds 400 of 900 tokens, the third 900 of 1,400."""
    paid, _ = bills(conversations(), prices(offer()))

    counts = dict(zip(*np.unique(paid.cached_tokens, return_counts=True), strict=True))
    assert counts == {0: 20, 400: 20, 900: 20}


def test_an_api_caches_whatever_one_s_own_server_does() -> None:
    """Its bill does not move with `enable_prefix_caching` of the deployment."""
    with_own, _ = bills(conversations(), prices(offer()))
    without, _ = bills(conversations(enable_prefix_caching=False), prices(offer()))

    assert without.cached_tokens.sum() == with_own.cached_tokens.sum() > 0


def test_the_cheapest_offer_is_taken_which_may_be_none() -> None:
    """Ten seconds apart a minute is enough; who pays eight times for a write does not cache."""
    short, long = offer(write_factor=1.25), offer(lifetime="1 h", write_factor=2.0)
    chosen, _ = bills(conversations(), prices(short, long))
    dear, _ = bills(conversations(), prices(offer(write_factor=8.0)))
    brief, _ = bills(conversations(), prices(offer(lifetime="1 s", write_factor=1.25), long))

    assert chosen.caching == short
    assert dear.caching is None
    assert not dear.cached_tokens.any()
    assert brief.caching == long


def test_writes_are_charged() -> None:
    """Of 60 turns: 27,000 tokens found, 54,000 prompt tokens less those, and what is put there a quarter dearer."""
    paid, _ = bills(conversations(), prices(offer(write_factor=1.25)))

    found_tokens, prompt = 20 * (400 + 900), 20 * (400 + 900 + 1400)
    # The last turn of a conversation is nobody's beginning; its history is.
    written = 20 * (400 + (900 - 400) + (1000 - 900))
    assert paid.input_usd.sum() == pytest.approx(
        ((prompt - found_tokens) * 2.0 + written * 0.25 * 2.0 + found_tokens * 0.2) / 1e6
    )


@pytest.mark.parametrize(("name", "least"), [("claude-haiku-4-5", 4096), ("claude-sonnet-4-5", 1024), ("gpt-4o", 1024)])
def test_the_catalogue_knows_the_least_prefix(name: str, least: int) -> None:
    """As the providers state it."""
    assert {each.min_tokens for each in load_api(name).prompt_caching} == {least}
