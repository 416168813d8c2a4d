"""The film tab: a run of the simulator's tab step by step, beside the same requests with one thing changed."""

from __future__ import annotations

from typing import Any

from simserve.explore.limits import Check, whole
from simserve.explore.queries import FilmQuery
from simserve.metrics.result import RunResult
from simserve.report.answer import answer
from simserve.report.film import film_of
from simserve.report.quantities import number
from simserve.scenario.run import run


def film(query: FilmQuery, check: Check) -> dict[str, Any]:
    """Return the steps around the worst moment of the run, of the other run at the same time, and both in figures.

    Raises:
        InfeasibleError: The model does not fit.
        InputError: The deployment is none.
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
    """Return how many tokens a step brings, in this run's numbers."""
    steps, tokens = result.summary["simserve"]["steps"]["count"], result.summary["total_output_tokens"]
    each = number(tokens / steps) if steps else "none"
    return {
        "name": f"Output tokens a step, {name}",
        "formula": "output tokens / engine steps of all replicas, over the whole run",
        "numbers": f"{tokens:,} / {steps:,} = {each}",
    }
