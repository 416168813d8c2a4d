"""A served run as ``vllm bench serve --save-detailed`` writes it, and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibration.reference_server.scheduler import Request
from simserve.observe.dialogue import Exchange
from simserve.observe.measure import bench_file


def detailed_result(
    requests: Sequence[Request],
    *,
    model: str,
    request_rate: float | str,
    max_concurrency: int | None,
    date: str,
) -> dict[str, Any]:
    """Return the JSON of a run; definitions as of ``vllm bench serve``."""
    return bench_file(
        [
            Exchange(
                prompt_tokens=each.num_prompt_tokens,
                asked_tokens=len(each.token_times),
                output_tokens=len(each.token_times),
                sent=each.sent,
                pieces=list(each.token_times),
            )
            for each in requests
        ],
        backend="simserve reference server",
        model=model,
        request_rate=request_rate,
        max_concurrency=max_concurrency,
        date=date,
    )
