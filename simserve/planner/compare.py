"""`compare`: the effect of a change, as paired differences on common random numbers. Prints nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simserve.errors import ScenarioError, UsageError
from simserve.metrics.cost import COST_KEYS
from simserve.metrics.latency import LATENCIES, MS
from simserve.metrics.replications import POOLED_RATES, POOLED_STATISTICS, pool
from simserve.metrics.summary import or_null
from simserve.metrics.thresholds import figure_at
from simserve.planner.capacity.probe import own_traffic
from simserve.planner.capacity.search import highest_promised, settled_requests
from simserve.planner.search.trial import FIRST_REQUESTS, is_steady
from simserve.planner.statistics import Difference, independent_difference, paired_difference
from simserve.profiles.expected_errors import load_error_model
from simserve.scenario.finishable import find_finishable
from simserve.scenario.fit import leading_warnings
from simserve.scenario.load import SHORT_KEYS, Overrides, from_mapping, plain
from simserve.scenario.resolve import resolve
from simserve.scenario.run import Replicator, deploy, run
from simserve.scenario.schema import Scenario
from simserve.version import __version__

REPLICATIONS = 10  # Runs of each deployment by default: Student's t is then within 15 % of the normal quantile.
MOST_SETTLING = 60_000  # Most requests of one run, unless the scenario asks for more.
BASE = "base"
_COSTS = tuple(f"simserve.cost.{key}" for key in COST_KEYS)
_SHARES = ("simserve.slo.attainment", "simserve.utilization.busy", "simserve.kv.usage_mean", "simserve.kv.preemptions")
FIGURES: Mapping[str, str] = {
    **{f"{each}_{latency}": f"{each}_{latency}" for latency in LATENCIES for each in POOLED_STATISTICS},
    **{each: each for each in (*POOLED_RATES, "duration", "completed", "failed")},
    **{key.rpartition(".")[2]: key for key in _COSTS},
    "slo_attainment": _SHARES[0],
    "busy": _SHARES[1],
    "kv_usage_mean": _SHARES[2],
    "preemptions": _SHARES[3],
}
"""Name of every figure that is compared -> its dotted key in `result.json`."""
PAIRED: Mapping[str, str] = {"tpot_ms": "tpot", "itl_ms": "tpot", "ttft_ms": "ttft"}
"""Latency -> metric whose ratio between two real servers was measured. With open arrivals, throughput is what
arrives."""

_FIXED = ("constant", "closed_loop", "all_at_once")  # Arrivals, set beside a trace, that are the same in every run.
Progress = Callable[[int, int], None]  # Called after each run with the number of runs done and of all runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One deployment of a comparison.

    Attributes:
        name: Its name, as given.
        changes: How it differs from the base, key -> value as given.
        scenario: The whole scenario.
        summaries: One for each replication, as in `result.json`.
        differences: Figure -> variant minus base; empty for the base itself.
    """

    name: str
    changes: Mapping[str, Any]
    scenario: Scenario
    summaries: tuple[Mapping[str, Any], ...]
    differences: Mapping[str, Difference]

    @property
    def summary(self) -> Mapping[str, Any]:
        """The figures of all replications together."""
        return self.summaries[0] if len(self.summaries) == 1 else pool(self.summaries)

    @property
    def formats(self) -> Mapping[str, Any]:
        """Number formats of weights and KV cache, and where they come from."""
        formats: Mapping[str, Any] = self.summaries[0]["simserve"]["formats"]
        return formats


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The base and its variants.

    Attributes:
        base: What the variants are compared with.
        variants: In the order they were given.
        is_paired: Whether all of them saw the same requests.
        requests_each: Requests of one run; None where runs are as long as each scenario says.
        was_interrupted: The user stopped it: fewer replications were done than asked for.
        asked: The base as given, with runs as long as it says.
    """

    base: Variant
    variants: tuple[Variant, ...]
    is_paired: bool
    requests_each: int | None = None
    was_interrupted: bool = False
    asked: Scenario | None = None

    @property
    def summary(self) -> dict[str, Any]:
        """What `simserve compare --json` prints."""
        return {
            "warnings": leading_warnings(self.base.scenario, *(variant.scenario for variant in self.variants)),
            "base": _described(self.base),
            "variants": [
                {
                    **_described(variant),
                    "differences": {
                        name: {
                            "mean": or_null(each.mean),
                            "ci95": None if math.isnan(each.low) else [each.low, each.high],
                            "shown": each.is_shown,
                            "relative": or_null(each.relative),
                            "relative_ci95": None if each.relative_interval is None else list(each.relative_interval),
                            "relative_real": _on_real_servers(name, each),
                        }
                        for name, each in variant.differences.items()
                    },
                }
                for variant in self.variants
            ],
            "replications": len(self.base.summaries),
            "requests_each": self.requests_each,
            "paired": self.is_paired,
            "confidence": 0.95,
            "interrupted": self.was_interrupted,
            "seed": self.base.scenario.run.seed,
            "version": __version__,
        }


def _on_real_servers(name: str, difference: Difference) -> list[float] | None:
    """Return the range in which 90 % of real servers differ, as a share of the base; None where that was not measured.

    Errors that both sides have in common cancel (`simserve.profiles.expected_errors.PairErrors`); between two equal
    sides all errors do.
    """
    statistic, _, latency = name.partition("_")
    errors = load_error_model().pairs.get(PAIRED.get(latency, ""))
    relative = difference.relative
    if errors is None or statistic == "std" or not math.isfinite(relative) or relative <= -1:
        return None
    half = errors.p90 if relative != 0 else 0.0
    return [(1 + relative) * math.exp(sign * half) - 1 for sign in (-1, 1)]


def compare(
    base: Scenario,
    variants: Mapping[str, Overrides],
    *,
    replications: int | None = None,
    is_independent: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Return what each variant changes, with 95 % intervals.

    Steady open traffic is run until all deployments that keep up have settled, and at least as long as the base says:
    shorter runs differ in how they fill up and drain. In each replication, all deployments are run in turn. After an
    interrupt, the replications count that all deployments have finished.

    Args:
        base: What the variants are compared with.
        variants: Name -> overrides of the base, as `simserve.scenario.load.load` takes them.
        replications: Runs of each, at least 2; None: 10. Below 5 there are no intervals. A trace has one run and no
            intervals, unless random arrivals are set beside it.
        is_independent: Whether each deployment gets its own requests, instead of the same ones.
        progress: Called after each run.

    Raises:
        UsageError: There is no variant, two have the same name, or nothing can be drawn again.
        ScenarioError: An override is invalid; names the variant.
        InfeasibleError: A model does not fit.
        InputError: A profile or a trace is missing or invalid.
    """
    if not variants or not isinstance(variants, Mapping):
        raise UsageError(
            "needs a variant", key="--with", remedy="for example --with 'fp8: deployment.quantization=fp8'"
        )
    count = _replications(base, replications, is_independent)
    scenarios = {BASE: base, **{name: _varied(base, name, changes) for name, changes in variants.items()}}
    requests_each = _settled_requests(list(scenarios.values()))
    if requests_each is not None:
        scenarios = {name: _of_length(scenario, requests_each) for name, scenario in scenarios.items()}
    replicators = [Replicator(scenario) for scenario in scenarios.values()]
    done: list[list[dict[str, Any]]] = []
    was_interrupted = False
    try:
        for replication in range(count):
            done.append(_round(replicators, replication, count, is_independent, progress))
    except KeyboardInterrupt:
        if not done:
            raise
        was_interrupted = True
    columns = list(zip(*done, strict=True))
    parts = [
        Variant(
            name=name,
            changes=_as_changes(variants.get(name, ())) if place else {},
            scenario=scenario,
            summaries=columns[place],
            differences=_differences(columns[0], columns[place], is_independent) if place else {},
        )
        for place, (name, scenario) in enumerate(scenarios.items())
    ]
    return Comparison(
        base=parts[0],
        variants=tuple(parts[1:]),
        is_paired=not is_independent,
        requests_each=requests_each,
        was_interrupted=was_interrupted,
        asked=base,
    )


def parse_variant(text: str) -> tuple[str, list[str]]:
    """Return the name and the overrides of ``'NAME: KEY=VALUE, KEY=VALUE'``.

    A comma inside brackets or quotes belongs to the value.

    Raises:
        UsageError: There is no name, or no override.
        ScenarioError: A key is the short name of a flag.
    """
    from simserve.planner.overrides import split_values

    name, colon, rest = text.partition(":")
    name = name.strip()
    changes = [change for change in split_values(rest) if change]
    if not colon or not name or "=" in name or not changes or not all("=" in change for change in changes):
        remedy = "for example --with 'fp8: deployment.quantization=fp8, deployment.kv_cache_dtype=fp8'"
        raise UsageError("must be NAME: KEY=VALUE, KEY=VALUE", key="--with", value=text, remedy=remedy)
    if name == BASE:
        raise UsageError("is what the variants are compared with", key="--with", value=name, remedy="another name")
    for change in changes:
        key = change.partition("=")[0].strip()
        if key.lower() in SHORT_KEYS:
            remedy = f"write {SHORT_KEYS[key.lower()]}"
            raise ScenarioError("is not a known key", key=f"--with {name!r}: {key}", remedy=remedy)
    return name, changes


def _replications(base: Scenario, asked: int | None, is_independent: bool) -> int:
    workload = base.workload
    draws_times = workload.arrivals is not None and workload.arrivals.process not in _FIXED
    if workload.trace is None or draws_times:
        return asked or REPLICATIONS
    if (asked or 1) > 1 or is_independent:
        key = "--independent" if is_independent else "--replications"
        raise UsageError("has no meaning with a trace: nothing is drawn, so every run would be the same", key=key)
    return 1


def _settled_requests(scenarios: Sequence[Scenario]) -> int | None:
    """Return the requests in which all that keep up with steady open traffic settle; None: runs stay as they are.

    None where any of them is not steady or asks for another length, and where none keeps up.
    """
    base = scenarios[0].workload
    if base.num_requests is None or not all(is_steady(each) for each in scenarios):
        return None
    if any(each.workload.num_requests != base.num_requests for each in scenarios):
        return None
    needed = [each for each in map(_settling, scenarios) if each is not None]
    return max(base.num_requests, min(max(needed), MOST_SETTLING)) if needed else None


def _settling(scenario: Scenario) -> int | None:
    """Return the requests in which a deployment settles; None where it does not keep up."""
    resolved, specs = resolve(scenario), own_traffic(scenario)
    finishable = find_finishable(resolved, deploy(resolved)) if specs.is_stationary else None
    if finishable is None or specs.offered_rate > highest_promised(finishable):
        return None
    first = run(_of_length(scenario, FIRST_REQUESTS), explain=False, finishable=finishable)
    if first.simulation.was_interrupted:
        raise KeyboardInterrupt
    stay = (first.summary["mean_e2el_ms"] or 0.0) / MS
    return max(FIRST_REQUESTS, settled_requests(specs.offered_rate / finishable.rate, specs.offered_rate * stay))


def _of_length(scenario: Scenario, num_requests: int) -> Scenario:
    once = scenario.run.model_copy(update={"replications": 1, "precision": None})
    return scenario.of_length(num_requests).model_copy(update={"run": once})


def _varied(base: Scenario, name: str, changes: Overrides) -> Scenario:
    try:
        varied = from_mapping(base.as_mapping(), changes, folder=base.folder)
    except ScenarioError as failure:
        label = f"--with '{name}'" + (f": {failure.file}" if failure.file else "").replace("--set ", "")
        raise ScenarioError(
            failure.rule, file=label, key=failure.key, value=failure.value, remedy=failure.remedy
        ) from None
    if (varied.workload.trace is None) != (base.workload.trace is None):
        raise UsageError(
            "compares a trace with drawn requests", key=f"--with '{name}'", remedy="compare like with like"
        )
    return varied


def _round(
    replicators: Sequence[Replicator], replication: int, count: int, is_independent: bool, progress: Progress | None
) -> list[dict[str, Any]]:
    """Return the summary of every deployment in one replication."""
    summaries = []
    for place, replicator in enumerate(replicators):
        summaries.append(replicator.summary(replication + (place * count if is_independent else 0)))
        if progress is not None:
            progress(replication * len(replicators) + place + 1, count * len(replicators))
    return summaries


def _differences(
    base: Sequence[Mapping[str, Any]], variant: Sequence[Mapping[str, Any]], is_independent: bool
) -> dict[str, Difference]:
    difference = independent_difference if is_independent else paired_difference
    found = {
        name: difference([figure_at(each, key) for each in base], [figure_at(each, key) for each in variant])
        for name, key in FIGURES.items()
    }
    # A share is compared in percentage points.
    return {name: each.without_ratio() if FIGURES[name] in _SHARES else each for name, each in found.items()}


def _as_changes(overrides: Overrides) -> dict[str, Any]:
    if isinstance(overrides, Mapping):
        return dict(plain(overrides))
    pairs = (text.partition("=") for text in ((overrides,) if isinstance(overrides, str) else overrides))
    return {key.strip(): value.strip() for key, _, value in pairs}


def _described(variant: Variant) -> dict[str, Any]:
    return {
        "name": variant.name,
        "changes": dict(variant.changes),
        "scenario_hash": variant.scenario.hash,
        "formats": variant.formats,
        "summary": variant.summary,
    }
