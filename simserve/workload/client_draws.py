"""Requests as the clients of benchmarks draw them with their default seeds. Knows no server.

The streams are NumPy's legacy ones, which never change. SGLang: ``sample_random_requests``, later
``compute_random_lens``, and ``get_request`` of bench_serving.py; they give the sums of tokens in logs
(datacrunch-research/h200-benchmarks, sglang/outputs). vLLM: ``get_request`` of vllm/benchmarks/serve.py since pull
request 21108.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simserve.workload.arrival_spec import PoissonArrivals
from simserve.workload.length_spec import AnswerLength, UniformLength
from simserve.workload.spec import WorkloadSpec


class ClientDraws(NamedTuple):
    """Times of requests, seconds, and their lengths, tokens; None where the client draws none."""

    arrival_time: NDArray[np.float64] | None = None
    prompt_tokens: NDArray[np.int64] | None = None
    output_tokens: NDArray[np.int64] | None = None


def client_draws(spec: WorkloadSpec) -> ClientDraws:
    """Return what the workload's client draws itself; of a workload that ends by time, what fills it at its rate."""
    if spec.client is None:
        return ClientDraws()
    rate = spec.arrivals.rate if isinstance(spec.arrivals, PoissonArrivals) else 0.0
    count = spec.num_requests or max(round(rate * (spec.duration or 0.0)), 1)
    if spec.client == "vllm":
        times = np.cumsum(np.random.RandomState(0).standard_exponential(count))
        return ClientDraws(times * (count / (rate * times[-1])))
    stream, shortest = np.random.RandomState(1), 0 if spec.client == "sglang-0.5.5" else 1
    prompts = _even(spec.prompt_tokens, stream, count, 1)
    outputs = _even(spec.output_tokens, stream, count, shortest)
    if not rate:
        return ClientDraws(None, prompts, outputs)
    waits = stream.exponential(1.0 / rate, size=count)
    return ClientDraws(np.concatenate([[0.0], np.cumsum(waits[:-1])]), prompts, outputs)


def _even(
    length: AnswerLength | None, stream: np.random.RandomState, count: int, shortest: int
) -> NDArray[np.int64] | None:
    """Return uniform lengths of at least 1; None for fixed ones, which take no draws, and those of a data set."""
    if not isinstance(length, UniformLength):
        return None
    lowest = shortest if length.min == 1 else length.min
    drawn: NDArray[np.int64] = stream.randint(lowest, length.max + 1, size=count).astype(np.int64)
    return np.maximum(drawn, 1)
