"""Thinking drawn: the hidden tokens that reasoning models generate before their answers. From streams of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.workload.class_spec import ClassSpec
from simserve.workload.lengths import length_distribution
from simserve.workload.requests import RequestSpecs
from simserve.workload.source import asked_tokens
from simserve.workload.spec import WorkloadSpec

Integers = NDArray[np.int64]


def draw_thinking(
    spec: WorkloadSpec,
    request_class: NDArray[np.int16] | None,
    count: int,
    *,
    seed: int,
    replication: int,
    base_path: Path | None,
) -> Integers | None:
    """Return the tokens that each of so many requests thinks, within its budget; None where nobody thinks.

    The stream is ``thinking_tokens``, with one uniform a request; a class with arrivals of its own has its own stream.

    Args:
        spec: The workload.
        request_class: Of each, in their order; None: without classes.
        count: Of requests.
        seed: Of the run.
        replication: Of the run.
        base_path: Folder that relative paths are tried against before the working folder.
    """
    if not spec.has_thinking:
        return None
    if request_class is None:
        return _sampled(spec, None, "", count, seed, replication, base_path)
    tokens = np.zeros(count, dtype=np.int64)
    for number in np.unique(request_class).tolist():
        each = (spec.classes or ())[number]
        own = request_class == number
        if each.arrivals is None:
            # One uniform a request, whatever its class.
            tokens[own] = _sampled(spec, each, "", count, seed, replication, base_path)[own]
        else:
            num_own = int(np.count_nonzero(own))
            tokens[own] = _sampled(spec, each, f".{each.name}", num_own, seed, replication, base_path)
    return tokens


def _sampled(
    spec: WorkloadSpec,
    each: ClassSpec | None,
    suffix: str,
    count: int,
    seed: int,
    replication: int,
    base_path: Path | None,
) -> Integers:
    """Return the thinking of so many requests of a class, None: of no class, from one stream."""
    length, budget = spec.thinking_tokens, spec.thinking_token_budget
    if each is not None:
        length = each.thinking_tokens or length
        budget = each.thinking_token_budget or budget
    if length is None:
        return np.zeros(count, dtype=np.int64)
    drawn = length_distribution(length, base_path).sample(
        rng.stream(seed, f"thinking_tokens{suffix}", replication), count
    )
    return drawn if budget is None else np.minimum(drawn, budget)


def with_thinking(
    specs: RequestSpecs, spec: WorkloadSpec, *, seed: int, replication: int, base_path: Path | None
) -> RequestSpecs:
    """Return single requests that think before they answer; the same where nobody thinks."""
    drawn = draw_thinking(
        spec, specs.request_class, len(specs), seed=seed, replication=replication, base_path=base_path
    )
    if drawn is None:
        return specs
    # Who gives no answer thinks about none.
    drawn = np.where(specs.output_tokens == 0, 0, drawn)
    output_tokens = specs.output_tokens + drawn
    return replace(
        specs,
        output_tokens=output_tokens,
        max_tokens=asked_tokens(spec.max_tokens, output_tokens),
        thinking_tokens=drawn,
    )
