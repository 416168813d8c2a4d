"""Requests and tokens, in total over the run and a second over the measured window. Knows no price."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.figures import rows_where
from simserve.metrics.steady_state import Window
from simserve.sim.records import COMPLETED, RequestRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Rates over the window, a second: requests completed in it, and their tokens; NaN if it has no length.

    Attributes:
        requests: Requests completed.
        good_requests: Those of them that met every SLO term; NaN without an SLO.
        output_tokens: Tokens generated.
        tokens: Prompt and generated tokens.
    """

    requests: float
    good_requests: float
    output_tokens: float
    tokens: float


def throughput(
    records: RequestRecords,
    window: Window,
    meets_slo: NDArray[np.bool_] | None,
    counted: NDArray[np.bool_] | None = None,
) -> Throughput:
    """Return the rates of the window.

    Args:
        records: One row a request.
        window: What is measured.
        meets_slo: Whether each request met the SLO, shape [requests]; None without one.
        counted: Which requests are looked at, shape [requests]; None: all.
    """
    if not window.seconds > 0:
        return Throughput(requests=np.nan, good_requests=np.nan, output_tokens=np.nan, tokens=np.nan)
    finish = records.finish_time
    done = (records.status == COMPLETED) & (finish >= window.start) & (finish <= window.end)
    if counted is not None:
        done &= counted
    rows = rows_where(done)
    prompt_tokens = int(records.prompt_tokens[rows].sum())
    output_tokens = int(records.output_tokens[rows].sum())
    good = np.nan if meets_slo is None else np.count_nonzero(done & meets_slo) / window.seconds
    return Throughput(
        requests=np.count_nonzero(done) / window.seconds,
        good_requests=good,
        output_tokens=output_tokens / window.seconds,
        tokens=(prompt_tokens + output_tokens) / window.seconds,
    )
