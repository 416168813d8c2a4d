"""Agents' tasks in figures: makespans, what they wait for, tokens and dollars a finished task, the objective."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.figures import ratio
from simserve.metrics.percentiles import percentiles
from simserve.metrics.slo import SLO
from simserve.metrics.steady_state import Window
from simserve.metrics.tasks import tasks_of
from simserve.sim.records import RequestRecords

_SECONDS_PER_HOUR = 3600.0
_PERCENTILES = (50, 90, 95, 99)
TASK_KEYS = (
    "begun",
    "finished",
    "failed",
    "cancelled",
    "cancelled_tokens",
    "cancelled_usd",
    "calls_per_task",
    "task_throughput",
    "mean_makespan_s",
    *(f"p{each}_makespan_s" for each in _PERCENTILES),
    "mean_model_s",
    "mean_tool_s",
    "model_share",
    "input_tokens_per_task",
    "output_tokens_per_task",
    "usd_per_task",
    "attainment",
)


def task_figures(
    records: RequestRecords, window: Window, slo: SLO | None, usd_per_hour: float | None
) -> dict[str, Any]:
    """Return `TASK_KEYS`; None each where there are no tasks.

    Figures are of the tasks whose first call was sent in the measured window, times and tokens of those of them that
    have finished; ``cancelled_tokens`` were computed for those that clients gave up, and ``cancelled_usd`` is their
    share of what the window costs. ``task_throughput`` counts those that finish in the window, a second;
    ``usd_per_task`` is what the deployment costs over that, beside other requests the tasks' share of it by computed
    tokens.

    Args:
        records: One row a call.
        window: What is measured.
        slo: The objective; None without one.
        usd_per_hour: Of the deployment; None or NaN without a price.
    """
    tasks = tasks_of(records)
    if tasks is None:
        return dict.fromkeys(TASK_KEYS)
    counted = window.has_arrived[tasks.row]
    done = counted & np.isfinite(tasks.end)
    makespan, model = tasks.makespan[done], tasks.model[done]
    cancelled = counted & tasks.is_cancelled
    spent = tasks.usd(math.nan if usd_per_hour is None else usd_per_hour * window.seconds / _SECONDS_PER_HOUR)
    in_window = (tasks.end >= window.start) & (tasks.end <= window.end)
    rate = ratio(float(np.count_nonzero(in_window)), window.seconds)
    is_kept = None if slo is None or slo.task is None else (tasks.makespan <= slo.task)[counted]
    return {
        "begun": int(np.count_nonzero(counted)),
        "finished": int(np.count_nonzero(done)),
        "failed": int(np.count_nonzero(counted & tasks.has_failed)),
        "cancelled": int(np.count_nonzero(cancelled)),
        "cancelled_tokens": int(tasks.computed_tokens[cancelled].sum()),
        "cancelled_usd": math.nan if usd_per_hour is None else float(spent[cancelled].sum()),
        "calls_per_task": _mean(tasks.calls[counted]),
        "task_throughput": rate,
        "mean_makespan_s": _mean(makespan),
        **{
            f"p{each}_makespan_s": value
            for each, value in zip(
                _PERCENTILES,
                percentiles(makespan, _PERCENTILES) if len(makespan) else [math.nan] * len(_PERCENTILES),
                strict=True,
            )
        },
        "mean_model_s": _mean(model),
        "mean_tool_s": _mean(tasks.tool[done]),
        "model_share": ratio(float(model.sum()), float(makespan.sum())),
        "input_tokens_per_task": _mean(tasks.input_tokens[done]),
        "output_tokens_per_task": _mean(tasks.output_tokens[done]),
        "usd_per_task": math.nan
        if usd_per_hour is None
        else ratio(usd_per_hour * tasks.computed_share / _SECONDS_PER_HOUR, rate),
        "attainment": math.nan if is_kept is None else _mean(is_kept),
    }


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else math.nan
