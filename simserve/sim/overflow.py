"""Overflow: answers of an API, drawn; no limit on how many it serves at once. Knows no price."""

from __future__ import annotations

from math import exp, log, sqrt

from simserve import rng
from simserve.engine.state import RequestTable
from simserve.sim.overflow_spec import OverflowSpec
from simserve.sim.units import Unit
from simserve.workload.requests import RequestSpecs

_DRAWS_AT_ONCE = 256


class Overflow:
    """The API of a run.

    Args:
        spec: When it is used, and how fast it is.
        requests: The table of all requests.
        specs: What arrives, for its seed.
    """

    def __init__(self, spec: OverflowSpec, requests: RequestTable, specs: RequestSpecs) -> None:
        self._spec, self._requests = spec, requests
        self._random = rng.stream(specs.seed, "overflow", specs.replication)
        self._scores: list[float] = []
        self._sigma = sqrt(log(1.0 + spec.ttft_cv**2))

    def takes(self, unit: Unit | None, num_parked: int) -> bool:
        """Return whether a request goes to the API instead of the queue of ``unit`` (None: no replica is ready).

        An idle replica takes one at once, so it has no queue.
        """
        if unit is None:
            return num_parked >= self._spec.max_queue
        return unit.load > 0 and unit.num_waiting >= self._spec.max_queue

    def serve(self, index: int, now: float) -> float:
        """Let the API answer a request that reaches it ``now``; return when its last token is there."""
        if not self._scores:
            self._scores = self._random.standard_normal(_DRAWS_AT_ONCE).tolist()
        requests, gap = self._requests, 1.0 / self._spec.tokens_per_second
        ttft = self._spec.ttft * exp(self._sigma * self._scores.pop() - self._sigma**2 / 2)
        tokens = requests.output_tokens[index]
        requests.scheduled_time[index] = now
        requests.first_token_time[index] = now + ttft
        requests.finish_time[index] = finish = now + ttft + (tokens - 1) * gap
        requests.generated_tokens[index] = tokens
        if tokens > 1:
            requests.itl_max[index] = gap
        return finish
