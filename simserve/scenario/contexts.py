"""The contexts that a scenario's requests decode at: what layers with a sliding window are priced for."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from simserve.errors import InputError
from simserve.scenario.schema import Scenario
from simserve.workload.arrival_spec import AllAtOnceArrivals
from simserve.workload.generate import generate
from simserve.workload.spec import WorkloadSpec

_REQUESTS = 1000
"""Requests that are drawn for it, whatever the run has: the same deployment has the same step times in each."""
_QUANTILES = 16
_DIGITS = 3


class _Traffic:
    """A workload that equals another of the same text, as a key of what is kept."""

    __slots__ = ("folder", "spec", "text")

    def __init__(self, spec: WorkloadSpec, folder: Path | None) -> None:
        self.spec, self.folder = spec, folder
        self.text = f"{folder} {spec!r}"

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Traffic) and self.text == other.text


def contexts_of(scenario: Scenario) -> tuple[float, ...] | None:
    """Return tokens of context of decode steps, each as likely; None where the traffic cannot be drawn.

    A request is at ``prompt + answer / 4`` and ``prompt + 3 answer / 4`` tokens, as often as its answer is long. The
    seed and the length of the run do not matter.
    """
    return _drawn(_Traffic(_counted(scenario.workload), scenario.folder))


def _counted(spec: WorkloadSpec) -> WorkloadSpec:
    if spec.trace is not None or spec.is_mixed or isinstance(spec.arrivals, AllAtOnceArrivals):
        return spec
    return spec.model_copy(update={"num_requests": _REQUESTS, "duration": None})


@lru_cache(maxsize=64)
def _drawn(traffic: _Traffic) -> tuple[float, ...] | None:
    try:
        specs = generate(traffic.spec, seed=0, base_path=traffic.folder)
    except InputError:
        return None  # said where the requests of the run are drawn
    prompts, answers = specs.prompt_tokens.astype(np.float64), specs.output_tokens.astype(np.float64)
    contexts = np.concatenate([prompts + answers / 4.0, prompts + 3.0 * answers / 4.0])
    weights = np.concatenate([answers, answers])
    if not weights.sum():
        contexts, weights = prompts, np.ones_like(prompts)
    order = np.argsort(contexts, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    middles = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    found = contexts[order][np.minimum(np.searchsorted(reached, middles), len(order) - 1)]
    return tuple(float(f"{each:.{_DIGITS}g}") for each in found)
