"""The requests of a benchmark: as recorded in its file, and for what that omits, as in a scenario's workload.

Knows benchmark results and workloads; simulates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.errors import TraceError
from simserve.scenario.schema import Scenario
from simserve.workload.benchmarks.result import Array, BenchResult
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs

SAME_LENGTHS = 0.05
SAME_LENGTHS_ERRORS = 3.0
"""A scenario's lengths are used if their mean is this close to the file's, as a share or in standard errors."""

RATED = ("poisson", "constant", "gamma")
"""Processes of a scenario that can take the rate of a file that names no process."""

Source = Literal["recorded", "drawn", "scaled", "uniform", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of every request of a benchmark, and where they come from."""

    prompt_tokens: NDArray[np.int64]  # Prompt tokens of each request, int64.
    output_tokens: NDArray[np.int64]  # Likewise for outputs.
    prompt_source: Source
    """``recorded`` in the file; ``drawn`` from the scenario's workload, or so and ``scaled`` to the file's mean;
    ``uniform`` in the range that the file states; or the file's ``mean``."""
    output_source: Source  # Likewise.
    scale: Mapping[str, float] = field(default_factory=dict)
    """Key of the workload -> the file's mean divided by the mean of the scenario's lengths, for those ``scaled``."""


def arrivals_of(result: BenchResult, scenario: Scenario | None, notes: list[str]) -> dict[str, Any]:
    """Return how a benchmark's requests arrive, as keys of ``workload.arrivals``.

    Args:
        scenario: Its process is used if the file has only a rate, its arrivals if the file says nothing; None: Poisson,
            and nothing.
        notes: Notes on what was missing and what replaced it are added here.

    Raises:
        TraceError: Neither says how requests arrive.
    """
    stated = dict(result.arrivals)
    if "process" in stated:
        return stated
    if not stated and result.arrival_time is not None:
        return {"process": "all_at_once"}  # its times replace these
    own = None if scenario is None else scenario.workload.arrivals
    if stated:
        process = own.process if own is not None and own.process in RATED else "poisson"
        notes.append(f"the file says a rate and no process: {process} is taken")
        cv = {"cv": getattr(own, "cv", 1.0)} if process == "gamma" else {}
        return {"process": process, **stated, **cv}
    if own is None:
        lacking = "" if scenario is None else ", and the scenario's workload has no arrivals"
        remedy = "name a scenario that says it: --scenario FILE" if scenario is None else "add workload.arrivals"
        raise TraceError(f"says no load{lacking}", file=result.file, remedy=remedy)
    notes.append("the file says no load: the scenario's is taken")
    return own.model_dump(mode="json", exclude_none=True)


def lengths_of(result: BenchResult, scenario: Scenario | None, notes: list[str]) -> Lengths:
    """Return the lengths of a benchmark's requests.

    They are the file's own. If it has only means, lengths are uniform if it states a range, else drawn from the
    scenario's workload and scaled to the file's means if these differ; without a scenario all requests have one length.
    If the file says nothing, they are the scenario's.

    Args:
        scenario: Replaces what is missing; None: nothing does.
        notes: Notes on what was missing and what replaced it are added here.

    Raises:
        TraceError: Neither says how long prompts or outputs are.
    """
    known = {"prompt": result.prompt_tokens, "output": result.output_tokens}
    missing = [key for key, lengths in known.items() if not len(lengths)]
    means = [key for key, lengths in known.items() if 0 < len(lengths) < result.num_requests]
    drawn = None if scenario is None or not (missing or means) else _drawn(result, scenario)
    if missing and drawn is None:
        which = " and ".join(missing)
        remedy = (
            "name a scenario that has them: --scenario FILE"
            if scenario is None
            else "workload.prompt_tokens and workload.output_tokens of the scenario must say them"
        )
        raise TraceError(f"holds no {which} lengths", file=result.file, key=result.label, remedy=remedy)
    is_near = drawn is not None and all(_is_near(_tokens(drawn, key), known[key]) for key in means)
    if missing:
        notes.append(f"the file holds no {' and '.join(missing)} lengths: the scenario's are taken")
    is_ranged = result.length_range is not None
    if means and is_ranged:
        notes.append("lengths are equally likely in the range that the file says, around its means")
    elif means and is_near:
        notes.append("lengths are drawn as the scenario's workload says; their means are the file's")
    elif means and drawn is not None:
        notes.append("lengths spread as the scenario's workload says, scaled to the file's means")
    elif means and result.num_requests > 1:
        which = "" if len(means) == 2 else f" {means[0]}"
        notes.append(f"every request has the file's mean{which} length{'s' if not which else ''}")
    of_means: Source = "uniform" if is_ranged else "mean" if drawn is None else "drawn" if is_near else "scaled"
    sources: dict[str, Source] = {
        key: "drawn" if key in missing else of_means if key in means else "recorded" for key in known
    }
    tokens = {key: _taken(sources[key], result, drawn, key) for key in known}
    return Lengths(
        prompt_tokens=tokens["prompt"],
        output_tokens=tokens["output"],
        prompt_source=sources["prompt"],
        output_source=sources["output"],
        scale={
            f"{key}_tokens": float(known[key].mean()) / float(_tokens(drawn, key).mean())
            for key, source in sources.items()
            if source == "scaled" and drawn is not None
        },
    )


def _drawn(result: BenchResult, scenario: Scenario) -> RequestSpecs | None:
    workload = scenario.workload
    if workload.trace is not None or workload.prompt_tokens is None or workload.output_tokens is None:
        return None
    return generate(workload.of_length(result.num_requests), seed=scenario.run.seed, base_path=scenario.folder)


def _tokens(specs: RequestSpecs, key: str) -> NDArray[np.int64]:
    return specs.prompt_tokens if key == "prompt" else specs.output_tokens


def _taken(source: Source, result: BenchResult, drawn: RequestSpecs | None, key: str) -> NDArray[np.int64]:
    known = result.prompt_tokens if key == "prompt" else result.output_tokens
    if source == "drawn" and drawn is not None:
        return _tokens(drawn, key)
    if source == "recorded":
        return known.astype(np.int64)
    mean = float(known.mean())
    if source == "scaled" and drawn is not None:
        of_scenario = _tokens(drawn, key)
        return _whole(of_scenario.astype(np.float64) * (mean / float(of_scenario.mean())))
    if source == "uniform" and result.length_range is not None:
        low, high = result.length_range
        places = (np.arange(result.num_requests) + 0.5) / result.num_requests
        shuffled = rng.stream(0, f"benchmark_{key}").permutation(places)
        return _whole(mean * (low + (high - low) * shuffled))
    return np.full(result.num_requests, max(round(mean), 1), dtype=np.int64)


def _whole(lengths: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.maximum(np.rint(lengths), 1.0).astype(np.int64)


def _is_near(drawn: NDArray[np.int64], measured: Array) -> bool:
    distance = abs(float(drawn.mean()) - float(measured.mean()))
    error = float(drawn.std()) / len(drawn) ** 0.5
    return bool(distance <= max(SAME_LENGTHS * float(measured.mean()), SAME_LENGTHS_ERRORS * error))
