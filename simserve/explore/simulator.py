"""The serving simulator of the page: one run of the real engine, thinned to what a screen shows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.explore.limits import Check, whole
from simserve.explore.queries import SimulatorQuery
from simserve.metrics.latency import request_latencies
from simserve.metrics.result import RunResult
from simserve.report import facts
from simserve.report.answer import answer, verdict, warnings
from simserve.report.curves import thinned
from simserve.scenario.finishable import Finishable, find_finishable
from simserve.scenario.fit import check_fit
from simserve.scenario.formats import formats_line
from simserve.scenario.resolve import resolve
from simserve.scenario.run import deploy, run

_NUM_POINTS = 120
_SHOWN = (
    *(f"{each}_{name}" for name in ("ttft_ms", "tpot_ms", "e2el_ms") for each in ("p50", "p95", "p99")),
    *("request_throughput", "request_goodput", "output_throughput", "completed", "failed"),
)
Floats = NDArray[np.float64]
_OF_THE_LOAD = ("rate", "slo_ttft_ms", "slo_tpot_ms", "attainment")
"""Controls that change neither what serves nor what a request is."""


def _whatever_comes(query: SimulatorQuery) -> SimulatorQuery:
    """Return a question without its load: one for all of a slider's rates."""
    defaults = SimulatorQuery()
    return query.model_copy(update={name: getattr(defaults, name) for name in _OF_THE_LOAD})


@lru_cache(maxsize=256)
def _finishable(query: SimulatorQuery) -> Finishable | None:
    """Return what a deployment finishes with its queue never empty, which takes longer than the run itself."""
    resolved = resolve(query.scenario())
    return find_finishable(resolved, deploy(resolved))


def simulator(query: SimulatorQuery, check: Check) -> dict[str, Any]:
    """Return what happens, as the page shows it; figures have the names of `result.json`.

    Raises:
        InfeasibleError: The model does not fit.
        InputError: The deployment is none.
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
        "memory": {
            name: inner["memory"][name]
            for name in (
                "total_bytes",
                "weights_bytes",
                "kv_bytes",
                "kv_bytes_per_token",
                "num_kv_blocks",
                "block_size",
            )
        },
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
    """Return how the figures hang together, with this run's numbers: name, formula, the formula in numbers."""
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
