"""Waiting for a grammar: which requests are the first of their schema, and how long that holds them up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.workload.requests import RequestSpecs
from simserve.workload.structured_spec import StructuredOutputSpec


def with_grammars(
    specs: RequestSpecs, spec: StructuredOutputSpec, num_replicas: int, *, seed: int, replication: int
) -> RequestSpecs:
    """Return requests that wait until their grammar is compiled; those that do not pass them.

    A schema is compiled once a replica: by the first ``num_replicas`` requests that have it, which routers spread. A
    request of the same schema that comes meanwhile waits for the rest. Of clients who wait for answers, whose times
    are not known beforehand, only those first ones wait.

    Args:
        specs: The requests.
        spec: What is constrained.
        num_replicas: Replicas that compile, each for itself.
        seed: Of the run: the stream is ``schemas``.
        replication: Of the run.
    """
    uniforms = rng.stream(seed, "schemas", replication).random(len(specs)) / spec.share
    schema = np.minimum((uniforms * spec.num_schemas).astype(np.int64), spec.num_schemas - 1)
    schema[uniforms >= 1.0] = -1
    is_open = specs.turn is None and specs.loop is None and specs.concurrency is None
    times = specs.arrival_time if is_open else np.full(len(specs), np.nan)
    waits = grammar_waits(schema, times, spec.cost.compile_time, num_replicas)
    return specs.waiting(waits)


def grammar_waits(
    schema: NDArray[np.int64], times: NDArray[np.float64], compile_time: float, num_replicas: int
) -> NDArray[np.float64]:
    """Return how long each request waits for its grammar, seconds.

    Args:
        schema: Of each request in order of arrival; negative: none.
        times: When each arrives, seconds; NaN: not known.
        compile_time: Seconds.
        num_replicas: Replicas, which requests of one schema go to in turn.
    """
    waits = np.zeros(len(schema))
    order = np.argsort(schema, kind="stable")
    order = order[schema[order] >= 0]
    own = schema[order]
    first = np.searchsorted(own, own, side="left")
    place = np.arange(len(order)) - first
    compiled_by = order[first + place % num_replicas]
    is_first = place < num_replicas
    left = np.where(is_first, compile_time, times[compiled_by] + compile_time - times[order])
    waits[order] = np.maximum(np.nan_to_num(left, nan=0.0), 0.0)
    return waits
