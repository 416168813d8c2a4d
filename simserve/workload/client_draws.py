"""Requests as the clients of benchmarks draw them. Knows no server.

The streams are NumPy's legacy ones, which never change. SGLang: ``sample_random_requests``, later
``compute_random_lens``, and ``get_request`` of bench_serving.py; they give the sums of tokens in logs
(datacrunch-research/h200-benchmarks, sglang/outputs). vLLM: ``get_request`` of vllm/benchmarks/serve.py since pull
request 21108.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.workload.arrival_spec import PoissonArrivals
from simserve.workload.distributions import Draws
from simserve.workload.length_spec import AnswerLength, UniformLength
from simserve.workload.spec import WorkloadSpec

_SEEDS = 2**32
"""Seeds of NumPy's legacy streams; those of runs are taken modulo this."""


def client_draws(spec: WorkloadSpec, draws: Draws) -> dict[str, NDArray[Any]]:
    """Return what the workload's client draws itself, a value a request.

    ``arrival_time`` in seconds, ``prompt_tokens`` and ``output_tokens``; without those that it does not draw. Of a
    workload that ends by time, as many requests as fill it at its rate. A run's seed of 1 stands for the benchmark's
    default (1 of SGLang's, 0 of vLLM's), and replications beyond the first have streams of their own.
    """
    seed = (draws.seed - (spec.client == "vllm")) % _SEEDS
    stream = np.random.RandomState([seed, draws.replication] if draws.replication else seed)
    rate = spec.arrivals.rate if isinstance(spec.arrivals, PoissonArrivals) else 0.0
    count = spec.num_requests or max(round(rate * (spec.duration or 0.0)), 1)
    if spec.client == "vllm":
        times = np.cumsum(stream.standard_exponential(count))
        return {"arrival_time": times * (count / (rate * times[-1]))} if rate else {}
    shortest = 0 if spec.client == "sglang-0.5.5" else 1
    own: dict[str, NDArray[Any]] = {}
    for part, lowest in (("prompt_tokens", 1), ("output_tokens", shortest)):
        length: AnswerLength | None = getattr(spec, part)
        if isinstance(length, UniformLength):  # A fixed length takes no draws; those of a data set are not known.
            own[part] = _even(length, stream, count, lowest)
    if rate:
        waits = stream.exponential(1.0 / rate, size=count)
        own["arrival_time"] = np.concatenate([[0.0], np.cumsum(waits[:-1])])
    return own


def _even(length: UniformLength, stream: np.random.RandomState, count: int, shortest: int) -> NDArray[np.int64]:
    """Return uniform lengths of at least 1, drawn from ``shortest`` on where the least is 1."""
    lowest = shortest if length.min == 1 else length.min
    drawn: NDArray[np.int64] = stream.randint(lowest, length.max + 1, size=count).astype(np.int64)
    return np.maximum(drawn, 1)
