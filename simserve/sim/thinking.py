"""When answers began that were thought about first: what the plane notes, as columns of the records."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.engine.state import COMPLETED, RequestTable
from simserve.workload.requests import RequestSpecs


def answer_columns(requests: RequestTable, specs: RequestSpecs) -> dict[str, Any]:
    """Return ``thinking_tokens answer_time`` of `simserve.sim.records.RequestRecords`; empty where nobody thinks."""
    if specs.thinking_tokens is None:
        return {}
    generated = np.frombuffer(requests.generated_tokens, dtype=np.int64)
    first, last = np.frombuffer(requests.first_token_time), np.frombuffer(requests.finish_time)
    noted = np.frombuffer(requests.answer_time)
    is_completed = np.frombuffer(requests.status, dtype=np.int8) == COMPLETED
    is_elsewhere = np.frombuffer(requests.replica_id, dtype=np.int32) < 0
    times = answer_times(specs.thinking_tokens, generated, first, last, noted, is_elsewhere=is_elsewhere)
    return {
        "thinking_tokens": np.minimum(specs.thinking_tokens, generated),
        "answer_time": np.where(is_completed, times, np.nan),
    }


def answer_times(
    thinking: NDArray[np.int64],
    generated: NDArray[np.int64],
    first: NDArray[np.float64],
    last: NDArray[np.float64],
    noted: NDArray[np.float64],
    *,
    is_elsewhere: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return when each answer began, seconds; NaN where the limit of its tokens left none of it.

    A static batch answers in one piece, at its end. The tokens of an API, or of a response cache, come evenly.

    Args:
        thinking: Tokens before the answer.
        generated: Tokens in all.
        first: When the first of them was there, seconds.
        last: When the last one was.
        noted: When the replica began the answer; NaN: it did not say.
        is_elsewhere: Whether no replica answered.
    """
    evenly = first + (last - first) * (thinking / np.maximum(generated - 1, 1))
    times = np.where(is_elsewhere, evenly, np.where(np.isnan(noted), last, noted))
    times = np.where(thinking == 0, first, times)
    return np.where(thinking < generated, times, np.nan)
