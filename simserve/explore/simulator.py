"""The serving simulator of the page: one run of the real engine, its film step by step, and the load it can sustain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import InterruptedRunError
from simserve.explore.queries import Check, FilmQuery, SimulatorQuery, TooLongError, whole
from simserve.metrics.latency import MS, request_latencies
from simserve.metrics.result import RunResult
from simserve.metrics.summary import or_null
from simserve.planner.capacity.level import Found, Level, Trial
from simserve.planner.capacity.probe import probe_of
from simserve.planner.capacity.search import find_capacity
from simserve.report import facts
from simserve.report.answer import answer, verdict, warnings
from simserve.report.curves import thinned
from simserve.report.film import film_of
from simserve.report.quantities import number
from simserve.scenario.finishable import Finishable, find_finishable
from simserve.scenario.fit import check_fit
from simserve.scenario.formats import formats_line
from simserve.scenario.resolve import resolve
from simserve.scenario.run import deploy, run

Floats = NDArray[np.float64]
_NUM_POINTS = 120
_SHOWN = (
    *(f"{each}_{name}" for name in ("ttft_ms", "tpot_ms", "e2el_ms") for each in ("p50", "p95", "p99")),
    *("request_throughput", "request_goodput", "output_throughput", "completed", "failed"),
)
_MEMORY = ("total_bytes", "weights_bytes", "kv_bytes", "kv_bytes_per_token", "num_kv_blocks", "block_size")
_OF_THE_LOAD = ("rate", "slo_ttft_ms", "slo_tpot_ms", "attainment")
"""Controls that change neither the deployment nor the requests."""
MOST_RATE = 2000.0


def _whatever_comes(query: SimulatorQuery) -> SimulatorQuery:
    """Return a question without its load, which is the same for all rates of a slider."""
    defaults = SimulatorQuery()
    return query.model_copy(update={name: getattr(defaults, name) for name in _OF_THE_LOAD})


@lru_cache(maxsize=256)
def _finishable(query: SimulatorQuery) -> Finishable | None:
    """Return what a deployment finishes while its queue is never empty; this takes longer than the run itself."""
    resolved = resolve(query.scenario())
    return find_finishable(resolved, deploy(resolved))


def simulator(query: SimulatorQuery, check: Check) -> dict[str, Any]:
    """Return the results of a run, as the page shows them; figures have the names of `result.json`.

    Raises:
        InfeasibleError: The model does not fit.
        InputError: The deployment is invalid.
        TooLongError: The run took too long.
    """
    resolved = resolve(query.scenario())
    check_fit(resolved)
    result = whole(run(resolved, progress=check, explain=False, finishable=_finishable(_whatever_comes(query))))
    inner = result.summary["simserve"]
    return {
        "answer": answer(result),
        "verdict": verdict(result),
        "explanation": inner["bottleneck"]["explanation"] if result.summary["completed"] else "",
        "warnings": warnings(result),
        "figures": {
            **{name: result.summary[name] for name in _SHOWN},
            "attainment": inner["slo"]["attainment"],
            "busy": inner["utilization"]["busy"],
            "mfu": inner["utilization"]["mfu"],
            "mbu": inner["utilization"]["mbu"],
            "kv_usage_mean": inner["kv"]["usage_mean"],
            "kv_usage_peak": inner["kv"]["usage_peak"],
            "kv_waste": inner["kv"]["internal_waste"],
            "preemptions": inner["kv"]["preemptions"],
            "mean_batch": inner["steps"]["mean_batch"],
            "usd_per_hour": inner["cost"]["usd_per_hour"],
            "usd_per_million_output_tokens": inner["cost"]["usd_per_million_output_tokens"],
            "watts": inner["energy"]["watts_mean"],
        },
        "stability": inner["stability"],
        "binding": inner["bottleneck"]["binding"],
        "step": _step(result),
        "waiting_for": {
            facts.WAIT_LABELS[name]: share for name, share in inner["bottleneck"]["waiting_shares"].items() if share
        },
        "series": _series(result),
        "spread": _spread(result),
        "memory": {name: inner["memory"][name] for name in _MEMORY},
        "equations": equations(result),
        "fidelity": [*facts.real_server_lines(result), *facts.fidelity_lines(result)],
        "quality": [dict(each) for each in inner["quality"]],
        "engine": inner["engine_resolved"]["version"],
        "formats": formats_line(inner["formats"]),
    }


def _step(result: RunResult) -> dict[str, Any]:
    """Return the milliseconds of a mean step by part."""
    steps = result.summary["simserve"]["steps"]
    count = steps["count"]
    parts = {
        facts.PART_LABELS[name]: 1e3 * seconds / count
        for name, seconds in steps["seconds_by_part"].items()
        if count and seconds
    }
    return {"count": count, "ms": sum(parts.values()), "parts": parts}


def _series(result: RunResult) -> dict[str, list[float]]:
    series = result.simulation.totals.series
    edges, (running, waiting, usage) = thinned(series.edges, series.running, series.waiting, series.kv_usage)
    return {
        "edges": _rounded(edges),
        "running": _rounded(running),
        "waiting": _rounded(waiting),
        "kv_usage": _rounded(usage),
    }


def _spread(result: RunResult) -> dict[str, list[float]]:
    """Return TTFT and TPOT of the completed requests at even shares from 0 to 1, ms."""
    latencies = request_latencies(result.simulation.records)
    levels = np.linspace(0, 1, _NUM_POINTS)
    found = {}
    for name, values in (("ttft_ms", latencies.ttft), ("tpot_ms", latencies.tpot)):
        known = values[np.isfinite(values)]
        found[name] = _rounded(1e3 * np.quantile(known, levels)) if len(known) else []
    return found


def _rounded(values: Floats) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def equations(result: RunResult) -> list[dict[str, str]]:
    """Return how the figures are related, with this run's numbers: name, formula, the formula in numbers."""
    summary, inner = result.summary, result.summary["simserve"]
    if not summary["completed"]:
        return []
    found = [_step_equation(result)]
    records = result.simulation.records
    stayed = records.finish_time - records.arrival_time
    mean_stay = float(np.nanmean(stayed))
    rate = summary["completed"] / summary["duration"]
    found.append(
        {
            "name": "Little's law",
            "formula": "requests in the system = rate x time in the system",
            "numbers": f"{rate:.3g}/s x {mean_stay:.3g} s = {rate * mean_stay:.3g}, over the whole run",
        }
    )
    cost, tokens = inner["cost"], summary["output_throughput"]
    if cost["usd_per_hour"] is not None and tokens:
        per_million = cost["usd_per_hour"] / (3600 * tokens) * 1e6
        found.append(
            {
                "name": "Dollars a million output tokens",
                "formula": "dollars an hour / (3600 x output tokens a second) x 1,000,000",
                "numbers": f"${cost['usd_per_hour']:.2f} / (3600 x {tokens:,.0f}) x 1,000,000 = ${per_million:.2f}",
            }
        )
    return found


def _step_equation(result: RunResult) -> dict[str, str]:
    step = _step(result)
    parts: Mapping[str, float] = step["parts"]
    numbers = " + ".join(f"{value:.3g}" for value in parts.values())
    batch = result.summary["simserve"]["steps"]["mean_batch"]
    return {
        "name": f"A mean step, {batch:.3g} sequences",
        "formula": " + ".join(parts),
        "numbers": f"{numbers} = {step['ms']:.3g} ms",
    }


def film(query: FilmQuery, check: Check) -> dict[str, Any]:
    """Return the steps around the worst moment of the run, those of the other run then, and figures of both.

    Raises:
        InfeasibleError: The model does not fit.
        InputError: The deployment is invalid.
        TooLongError: A run took too long.
    """
    runs = {"as asked": _recorded(query, check)}
    other = query.other()
    if other is not None:
        runs[query.against] = _recorded(other, check)
    return {
        "film": film_of(runs),
        "answer": answer(runs["as asked"]),
        "figures": {name: _figures(result) for name, result in runs.items()},
        "equations": [_pace(name, result) for name, result in runs.items()],
    }


def _recorded(query: FilmQuery, check: Check) -> RunResult:
    return whole(run(query.scenario(), progress=check, explain=False, keep_steps=True))


def _figures(result: RunResult) -> dict[str, float | None]:
    summary, inner = result.summary, result.summary["simserve"]
    return {
        "p95_ttft_ms": summary["p95_ttft_ms"],
        "p95_tpot_ms": summary["p95_tpot_ms"],
        "output_throughput": summary["output_throughput"],
        "mean_batch": inner["steps"]["mean_batch"],
        "preemptions": inner["kv"]["preemptions"],
    }


def _pace(name: str, result: RunResult) -> dict[str, str]:
    """Return how many tokens a step yields, in this run's numbers."""
    steps, tokens = result.summary["simserve"]["steps"]["count"], result.summary["total_output_tokens"]
    each = number(tokens / steps) if steps else "none"
    return {
        "name": f"Output tokens a step, {name}",
        "formula": "output tokens / engine steps of all replicas, over the whole run",
        "numbers": f"{tokens:,} / {steps:,} = {each}",
    }


def load(query: SimulatorQuery, check: Check) -> dict[str, Any]:
    """Return latency, goodput and attainment over the arrival rate, and the highest rate within the SLO.

    Several runs per rate use the same draws and are long enough for the queue of an overload to show: single runs of
    2,000 requests promised 5 to 10 % more. When the time is up, the answer is what the runs have shown by then.

    Raises:
        InfeasibleError: The model does not fit.
        InputError: The deployment is invalid.
        TooLongError: It took too long for a single run.
        KeyboardInterrupt: Ctrl-C, for example in an export.
    """
    stopped: list[TooLongError] = []

    def watch(done: int, total: int) -> None:
        try:
            check(done, total)
        except TooLongError as late:
            stopped.append(late)
            raise KeyboardInterrupt from None

    probe = replace(probe_of(query.scenario()), watch=watch)

    def run(rate: float, replication: int, num_requests: int) -> Trial:
        watch(0, num_requests)
        return probe(rate, replication, num_requests)

    try:
        found = find_capacity(
            run,
            asked=query.attainment,
            start=query.rate,
            highest=MOST_RATE,
            finishable=probe.finishable if probe.is_steady else None,
        )
    except InterruptedRunError:
        raise (stopped[0] if stopped else KeyboardInterrupt) from None
    if found.was_interrupted and not stopped:
        raise KeyboardInterrupt
    return _answer(query, found)


def _answer(query: SimulatorQuery, found: Found) -> dict[str, Any]:
    most = found.largest.value or None
    points = [_point(level) for level in found.levels]
    return {
        "most": most,
        "open_ended": most is not None and found.largest.fails_at is None,
        "asked": query.rate,
        "least": points[0]["rate"],
        "num_requests": found.num_requests,
        "curve": {name: [each[name] for each in points] for name in points[0]},
        "equations": [
            {
                "name": "Share of the load it can sustain",
                "formula": "requests a second that arrive / the most within the SLO",
                "numbers": "none of these rates holds"
                if most is None
                else f"{query.rate:g} / {most:.3g} = {query.rate / most:.0%}",
            }
        ],
    }


def _point(level: Level) -> dict[str, Any]:
    return {
        "rate": level.load,
        "attainment": or_null(level.attainment),
        "stability": level.stability,
        "p95_ttft_ms": or_null(MS * level.mean("p95_ttft")),
        "p95_tpot_ms": or_null(MS * level.mean("p95_tpot")),
        "request_goodput": or_null(level.mean("goodput")),
        "output_throughput": or_null(level.mean("output_throughput")),
    }
