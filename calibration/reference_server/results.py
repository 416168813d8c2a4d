"""A served run as ``vllm bench serve --save-detailed`` writes it, and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibration.reference_server.scheduler import Request

DIGITS = 6
"""Decimals of the seconds of a file: microseconds."""


def detailed_result(
    requests: Sequence[Request],
    *,
    model: str,
    request_rate: float | str,
    max_concurrency: int | None,
    date: str,
) -> dict[str, Any]:
    """Return the JSON of a run; definitions as of ``vllm bench serve``."""
    sent = np.array([request.sent for request in requests])
    ttft = np.array([request.token_times[0] - request.sent for request in requests])
    gaps = [np.diff(request.token_times) for request in requests]
    outputs = np.array([len(request.token_times) for request in requests])
    latency = np.array([request.token_times[-1] - request.sent for request in requests])
    tpot = ((latency - ttft) / np.maximum(outputs - 1, 1))[outputs > 1]
    duration = float(max(request.token_times[-1] for request in requests) - sent.min())
    prompts = [request.num_prompt_tokens for request in requests]
    document: dict[str, Any] = {
        "date": date,
        "backend": "simserve reference server",
        "model_id": model,
        "num_prompts": len(requests),
        "request_rate": request_rate,
        "burstiness": 1.0,
        "max_concurrency": max_concurrency,
        "duration": duration,
        "completed": len(requests),
        "failed": 0,
        "total_input_tokens": int(sum(prompts)),
        "total_output_tokens": int(outputs.sum()),
        "request_throughput": len(requests) / duration,
        "output_throughput": float(outputs.sum()) / duration,
        "total_token_throughput": float(outputs.sum() + sum(prompts)) / duration,
    }
    pooled = np.concatenate(gaps)
    for name, values in (("ttft", ttft), ("tpot", tpot), ("itl", pooled), ("e2el", latency)):
        document |= {
            f"mean_{name}_ms": float(values.mean()) * 1e3,
            f"median_{name}_ms": float(np.median(values)) * 1e3,
            f"std_{name}_ms": float(values.std()) * 1e3,
            f"p99_{name}_ms": float(np.percentile(values, 99)) * 1e3,
        }
    return document | {
        "input_lens": prompts,
        "output_lens": outputs.tolist(),
        "start_times": [round(float(each - sent.min()), DIGITS) for each in sent],
        "ttfts": [round(float(each), DIGITS) for each in ttft],
        "itls": [[round(float(gap), DIGITS) for gap in each] for each in gaps],
        "errors": [""] * len(requests),
    }
