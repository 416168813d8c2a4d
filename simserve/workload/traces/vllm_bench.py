"""Detailed results of `vllm bench serve`: input_lens, output_lens and start_times of every request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.workload.traces.records import read_records
from simserve.workload.traces.trace import Trace


def read_vllm_bench(path: Path) -> Trace:
    """Return the requests that were sent, in order of their start; the first one arrives at 0.

    Requests without output tokens failed: they are left out and counted. Results before vLLM 0.17 have no
    ``start_times``, and so no arrival times.

    Raises:
        TraceError: The file cannot be read, has several results, or was saved without ``--save-detailed``.
    """
    records = read_records(path)
    if len(records.rows) > 1:
        rule = f"holds {len(records.rows)} results, one a line"
        raise TraceError(rule, file=path, remedy="keep the line of one run")
    return requests_of(records.rows[0], path)


def requests_of(result: Mapping[str, Any], path: Path) -> Trace:
    """Return the requests of one detailed result.

    Raises:
        TraceError: It was saved without ``--save-detailed``, or its lists differ in length.
    """
    prompts = _numbers(result, "input_lens", path)
    outputs = _numbers(result, "output_lens", path)
    starts = _numbers(result, "start_times", path) if result.get("start_times") else np.full(len(prompts), np.nan)
    if not len(prompts) == len(outputs) == len(starts):
        rule = f"hold {len(prompts)}, {len(outputs)} and {len(starts)} requests"
        raise TraceError(rule, file=path, key="input_lens, output_lens, start_times")
    is_served = (outputs >= 1) & (prompts >= 1)
    if not is_served.any():
        raise TraceError("holds no request that was served", file=path, key="output_lens")
    order = np.flatnonzero(is_served)
    order = order[np.argsort(starts[order], kind="stable")]
    times = starts[order]
    return Trace(
        arrival_time=times - times[0],
        prompt_tokens=prompts[order].astype(np.int64),
        output_tokens=outputs[order].astype(np.int64),
        num_unserved=int((~is_served).sum()),
    )


def _numbers(result: Mapping[str, Any], key: str, path: Path) -> NDArray[np.float64]:
    values = result.get(key)
    if values is None:
        raise TraceError("is missing", file=path, key=key, remedy="run vllm bench serve with --save-detailed")
    if not isinstance(values, list) or any(
        isinstance(each, bool) or not isinstance(each, int | float) for each in values
    ):
        raise TraceError("is not a list of numbers", file=path, key=key)
    return np.array(values, dtype=np.float64)
