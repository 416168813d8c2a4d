"""Overflow: which requests an API answers, its rate limits, and its answers, drawn. Knows no price."""

from __future__ import annotations

from math import exp, log, sqrt

from simserve import rng
from simserve.engine.bucket import Bucket, holds, take, wait
from simserve.engine.state import RequestTable
from simserve.sim.overflow_spec import OverflowSpec
from simserve.sim.units import Unit
from simserve.workload.requests import RequestSpecs

_DRAWS_AT_ONCE = 256
_SECONDS_PER_MINUTE = 60.0


class Overflow:
    """The API of a run.

    Args:
        spec: When it is used, and how fast it is.
        requests: The table of all requests.
        specs: What arrives, for its seed and its classes.

    Attributes:
        num_limited: How often the API answered 429.
        when_limited: What follows on it: ``stay``, ``wait`` or ``refuse``.
    """

    def __init__(self, spec: OverflowSpec, requests: RequestTable, specs: RequestSpecs) -> None:
        self._spec, self._requests = spec, requests
        self.num_limited = 0
        self.when_limited = spec.when_limited or "stay"
        self._ttft_draws = _Lognormal(specs, "overflow", spec.ttft_cv)
        self._speed_draws = _Lognormal(specs, "overflow.speed", spec.tokens_per_second_cv)
        self._above = None if spec.above_rate is None else Bucket(spec.above_rate.rate, spec.above_rate.burst)
        self._calls = _a_minute(spec.requests_per_minute)
        self._tokens = _a_minute(spec.tokens_per_minute)
        rules = [_rule(spec, each.name) for each in specs.classes]
        classes = specs.request_class
        self._rules: list[bool | None] | None = (
            None if classes is None else [rules[number] for number in classes.tolist()]
        )

    def takes(self, index: int, unit: Unit | None, num_parked: int, now: float) -> bool:
        """Return whether a request goes to the API instead of the queue of ``unit`` (None: no replica is ready).

        An idle replica takes one at once, so it has no queue. What the rate lets the replicas serve is counted here.
        """
        rule = None if self._rules is None else self._rules[index]
        if rule is not None:
            if not rule and self._above is not None and holds(self._above, 1.0, now):
                take(self._above, 1.0)
            return rule
        if self._above is not None:
            if not holds(self._above, 1.0, now):
                return True
            take(self._above, 1.0)
        most = self._spec.max_queue
        if most is None:
            return False
        if unit is None:
            return num_parked >= most
        return bool(unit.load > 0 and unit.num_waiting >= most)

    def wait(self, index: int, now: float) -> float:
        """Return the seconds until the API's limits let a request in; 0: at once."""
        waits = [0.0]
        if self._calls is not None:
            waits.append(wait(self._calls, 1.0, now))
        if self._tokens is not None:
            waits.append(wait(self._tokens, self._asked_tokens(index), now))
        return max(waits)

    def serve(self, index: int, now: float) -> float:
        """Let the API answer a request that it lets in at ``now``; return when its last token is there."""
        if self._calls is not None:
            take(self._calls, 1.0)
        if self._tokens is not None:
            take(self._tokens, self._asked_tokens(index))
        requests = self._requests
        gap = self._speed_draws.next() / self._spec.tokens_per_second
        ttft = self._spec.ttft * self._ttft_draws.next()
        tokens = requests.output_tokens[index]
        requests.scheduled_time[index] = now
        requests.first_token_time[index] = now + ttft
        requests.finish_time[index] = finish = now + ttft + (tokens - 1) * gap
        requests.generated_tokens[index] = tokens
        if tokens > 1:
            requests.itl_max[index] = gap
        return finish

    def _asked_tokens(self, index: int) -> float:
        return float(self._requests.prompt_tokens[index] + self._requests.max_tokens[index])


class _Lognormal:
    """Draws with mean 1, in order."""

    def __init__(self, specs: RequestSpecs, name: str, cv: float) -> None:
        self._sigma = sqrt(log(1.0 + cv**2))
        self._random = rng.stream(specs.seed, name, specs.replication)
        self._scores: list[float] = []

    def next(self) -> float:
        if not self._scores:
            self._scores = self._random.standard_normal(_DRAWS_AT_ONCE).tolist()
        return exp(self._sigma * self._scores.pop() - self._sigma**2 / 2)


def _a_minute(limit: float | None) -> Bucket | None:
    """Return a limit a minute, all of it there at first."""
    return None if limit is None else Bucket(limit / _SECONDS_PER_MINUTE, limit)


def _rule(spec: OverflowSpec, name: str) -> bool | None:
    """Return whether a class always or never goes to the API; None: it depends."""
    if name in (spec.always or ()):
        return True
    return False if name in (spec.never or ()) else None
