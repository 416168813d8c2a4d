"""What the pictures of a run show besides its figures: operators on the roofline, and what an API would charge.

Plain values, computed once with the run and stored with its files. Knows scenario and profiles, no picture.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from simserve.metrics.figures import rows_where
from simserve.metrics.result import RunResult
from simserve.perf.pricing import price
from simserve.perf.roofline import roofline
from simserve.profiles import catalog
from simserve.scenario.resolve import ResolvedScenario, resolve
from simserve.scenario.schema import Scenario
from simserve.sim.records import COMPLETED, RequestRecords

if TYPE_CHECKING:
    from simserve.profiles.api import ApiProfile


def background(asked: Scenario | ResolvedScenario, result: RunResult, *, with_page: bool = False) -> dict[str, Any]:
    """Return ``roofline``, ``api`` and ``loads``, each None where there is nothing to show.

    The decode step of the roofline is the run's mean one: its sequences, their contexts half grown.

    Args:
        asked: What was run.
        result: What came of it.
        with_page: Whether what a page shows besides is looked for too, some 0.1 s: the deployment at other loads
            (`simserve.report.other_loads`), and of a scenario that names no API the cheapest one with its weights.

    Raises:
        InputError: A profile is missing by now.
    """
    resolved, records = resolve(asked), result.simulation.records
    done = records.status == COMPLETED
    if not done.any():
        return {"roofline": None, "api": None, "loads": None}
    # Where everything was answered elsewhere, no step says where a replica stands on its roofline.
    has_steps = result.summary["simserve"]["steps"]["mean_batch"] is not None
    found = _roofline(resolved, result, done) if has_steps else None
    loads = None
    if with_page and not result.simulation.was_interrupted:
        loads = _loads(resolved, result.summary["simserve"]["finishable_throughput"])
    return {"roofline": found, "api": _api(resolved.scenario, records, done, with_others=with_page), "loads": loads}


def _loads(resolved: ResolvedScenario, finishable_rate: float | None) -> dict[str, Any] | None:
    """Return the deployment at other loads; None where the user stopped it: the run itself is done by then."""
    from simserve.report.other_loads import other_loads  # the planner: needed by runs that write a page

    try:
        return other_loads(resolved, finishable_rate)
    except KeyboardInterrupt:
        return None


def _roofline(
    resolved: ResolvedScenario, result: RunResult, done: np.ndarray[Any, np.dtype[np.bool_]]
) -> dict[str, Any]:
    records = result.simulation.records
    rows = rows_where(done)
    prompt, output = float(records.prompt_tokens[rows].mean()), float(records.output_tokens[rows].mean())
    found = roofline(
        resolved.shape,
        price(resolved.shape),
        decoding=round(result.summary["simserve"]["steps"]["mean_batch"]),
        context_tokens=round(prompt + output / 2),
        prompt_tokens=max(round(prompt), 1),
    )
    return {**asdict(found), "points": [asdict(point) for point in found.points]}


def _api(
    scenario: Scenario, records: RequestRecords, done: np.ndarray[Any, np.dtype[np.bool_]], *, with_others: bool
) -> dict[str, Any] | None:
    """Return what the scenario's API would charge, or, if it names none, the cheapest that serves the same weights."""
    from simserve.profiles.api import load_api

    prompts, answers = records.prompt_tokens[done], records.output_tokens[done]
    if scenario.pricing.api is not None:
        with scenario.blaming("pricing"):
            return _charged(load_api(scenario.pricing.api, scenario.folder), prompts, answers, is_named=True)
    if not with_others or scenario.deployment.pools:
        return None
    found = [_charged(each, prompts, answers, is_named=False) for each in _serving(scenario.model)]
    return min(found, key=lambda each: (each["usd_per_request"], each["name"]), default=None)


def _serving(model: str) -> list[ApiProfile]:
    """Return the APIs of the catalogue that serve a model's weights; a profile of them takes 3 ms to load."""
    from simserve.profiles.api import load_api

    named = [name for name in catalog.names("api") if model in catalog.find("api", name).read_text(encoding="utf-8")]
    return [profile for profile in map(load_api, named) if profile.weights == model]


def _charged(
    profile: ApiProfile,
    prompt_tokens: np.ndarray[Any, np.dtype[np.int64]],
    output_tokens: np.ndarray[Any, np.dtype[np.int64]],
    *,
    is_named: bool,
) -> dict[str, Any]:
    from simserve.metrics.api_cost import ApiPrices

    prices = ApiPrices.of(profile)
    prompts, answers = prices.tokens_usd(prompt_tokens, output_tokens)
    usd_per_request = float(prompts.mean() + answers.mean())
    return {"name": prices.name, "date": prices.date, "usd_per_request": usd_per_request, "is_named": is_named}
