"""One workload on several serving frameworks: the simulated ratios compared with the published ones.

Knows scenarios and a committed table of publications; the simulator is never tuned towards it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal

from pydantic import Field

from simserve.profiles import catalog
from simserve.scenario.load import load
from simserve.scenario.run import run
from simserve.validation import FrozenModel, read_valid

FILE = "calibration/frameworks.yaml"
SCENARIO = "framework-comparison"
Verdict = Literal["within", "below", "above"]


class Framework(FrozenModel):
    """One framework, as it was when it was compared."""

    name: str = Field(min_length=1)
    """Its name in the ratios."""
    engine: str = Field(min_length=1)
    """Engine profile."""
    version: str = Field(min_length=1)
    """Its version."""
    overrides: tuple[str, ...] = ()
    """Scenario keys that differ from the profile, ``KEY=VALUE``."""
    about: str = Field(min_length=1)
    """What it does, in one line."""


class PublishedRatio(FrozenModel):
    """Published ratio of the throughput of one framework to that of another."""

    of: str
    """The faster framework."""
    over: str
    """The slower framework."""
    low: float = Field(gt=0)
    """Lower end of the published range."""
    high: float = Field(gt=0)
    """Upper end."""
    conditions: str
    """What was measured, as far as it differs from the scenario."""
    source: str = Field(min_length=1)
    """Where it was published."""


class PublishedThroughput(FrozenModel):
    """A throughput at a price, for a deployment that is not named."""

    tokens_per_second: float = Field(gt=0)
    """Tokens/s."""
    usd_per_hour: float = Field(gt=0)
    """Dollars an hour."""


class Publications(FrozenModel):
    """Everything that `simserve frameworks` compares with."""

    frameworks: tuple[Framework, ...] = Field(min_length=2)
    """The frameworks; the oldest way of batching comes first."""
    ratios: tuple[PublishedRatio, ...]
    """Published ratios."""
    throughputs: tuple[PublishedThroughput, ...]
    """Published throughputs."""
    throughput_source: str
    """Source of those throughputs."""


@cache
def load_publications() -> Publications:
    """Return the committed table.

    Raises:
        ProfileError: The file is invalid.
    """
    return read_valid(Publications, catalog.bundled_file(FILE))


def compare_frameworks(
    overrides: Sequence[str] = (), *, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Return the results of every framework on one scenario, and the ratios, simulated and published.

    Args:
        overrides: ``KEY=VALUE``, applied before the framework's own.
        progress: Called with the number of frameworks done and of all.

    Returns:
        ``scenario model hardware num_requests frameworks ratios throughputs``, plain values.

    Raises:
        InfeasibleError: The model does not fit.
        InputError: A name, key or value is wrong.
    """
    known = load_publications()
    asked = load(SCENARIO, overrides)
    served = {}
    for done, framework in enumerate(known.frameworks):
        if progress is not None:
            progress(done, len(known.frameworks))
        served[framework.name] = _serve(overrides, framework)
    return {
        "scenario": asked.name,
        "model": asked.model,
        "hardware": asked.deployment.hardware,
        "num_requests": asked.workload.num_requests,
        "frameworks": list(served.values()),
        "ratios": [_ratio(each, served[each.of], served[each.over]) for each in known.ratios],
        "throughputs": _throughputs(known, served["vllm"]),
    }


def _serve(overrides: Sequence[str], framework: Framework) -> dict[str, Any]:
    """Return the results of one framework on the workload.

    ``tokens_per_step`` are output tokens on average; padding and finished members of a batch do not count.
    """
    engine = [f"deployment.engine.name={framework.engine}", f'deployment.engine.version="{framework.version}"']
    summary = run(load(SCENARIO, [*overrides, *engine, *framework.overrides])).summary
    inner, throughput = summary["simserve"], summary["output_throughput"]
    steps = inner["steps"]
    return {
        **framework.model_dump(exclude={"overrides"}),
        "formats": inner["formats"],
        "output_throughput": throughput,
        "tokens_per_step": summary["total_output_tokens"] / steps["count"],
        "step_ms": 1e3 * (sum(steps["seconds_by_part"].values()) / steps["count"]),
        "binding": inner["bottleneck"]["binding"],
        "usd_per_million_output_tokens": _dollars(inner["cost"]["usd_per_hour"], throughput),
    }


def _dollars(usd_per_hour: float | None, tokens_per_second: float) -> float | None:
    return None if usd_per_hour is None else usd_per_hour / (3600 * tokens_per_second) * 1e6


def verdict(ratio: float, low: float, high: float) -> Verdict:
    """Return where a ratio is relative to a published range."""
    return "below" if ratio < low else "above" if ratio > high else "within"


def _ratio(published: PublishedRatio, faster: Mapping[str, Any], slower: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ratio, and why it is what it is: useful tokens a step, times seconds of a step."""
    ratio = faster["output_throughput"] / slower["output_throughput"]
    tokens = faster["tokens_per_step"] / slower["tokens_per_step"]
    steps = slower["step_ms"] / faster["step_ms"]
    return {
        "of": published.of,
        "over": published.over,
        "simulated": ratio,
        "published_low": published.low,
        "published_high": published.high,
        "verdict": verdict(ratio, published.low, published.high),
        "tokens_per_step_ratio": tokens,
        "step_time_ratio": steps,
        "explanation": f"{faster['tokens_per_step']:.1f} useful tokens a step against {slower['tokens_per_step']:.1f} "
        f"({tokens:.2g}x), in steps of {faster['step_ms']:.1f} ms against {slower['step_ms']:.1f} ms ({steps:.2g}x)",
        "published_conditions": published.conditions,
        "source": published.source,
    }


def _throughputs(known: Publications, served: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the published throughputs, and how many of the simulated deployment would reach each."""
    return [
        {
            "published_tokens_per_second": each.tokens_per_second,
            "published_usd_per_hour": each.usd_per_hour,
            "published_usd_per_million_tokens": _dollars(each.usd_per_hour, each.tokens_per_second),
            "simulated_replicas": math.ceil(each.tokens_per_second / served["output_throughput"]),
            "simulated_usd_per_million_tokens": served["usd_per_million_output_tokens"],
            "source": known.throughput_source,
        }
        for each in known.throughputs
    ]


def ratio_lines(ratio: Mapping[str, Any]) -> list[str]:
    """Return one ratio as lines of text: simulated, published, why, and what differs where it lies outside."""
    published = f"{ratio['published_low']:g} to {ratio['published_high']:g}"
    lines = [
        f"{ratio['of']} over {ratio['over']}: {ratio['simulated']:.2g}x, published {published}x: {ratio['verdict']}",
        f"  {ratio['explanation']}",
    ]
    if ratio["verdict"] != "within":
        lines.append(f"  published under other conditions: {ratio['published_conditions']}")
    return [*lines, f"  {ratio['source']}"]
