"""ResponseCache: which requests find their answer made before. Draws beforehand, so that routing changes no draw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.engine.state import RequestTable
from simserve.sim.response_cache_spec import ResponseCacheSpec
from simserve.workload.requests import RequestSpecs

_ALONE = -1


class ResponseCache:
    """The answers that were given, and which requests ask for them again.

    Args:
        spec: What is asked again, and how long an answer holds.
        requests: The table of all requests.
        specs: What arrives, for its seed and its classes.

    Attributes:
        num_first: Requests that ask one of the questions first, so that a model had to answer.
        num_expired: Requests whose answer was there, and too old.
    """

    def __init__(self, spec: ResponseCacheSpec, requests: RequestTable, specs: RequestSpecs) -> None:
        self._spec, self._requests = spec, requests
        self.num_first = self.num_expired = 0
        self._made_at: dict[int, float] = {}
        self._questions: list[int] = _questions(spec, specs).tolist()

    def answers(self, index: int, now: float) -> bool:
        """Return whether a request that arrives ``now`` is answered here."""
        question = self._questions[index]
        if question == _ALONE:
            return False
        if self._spec.questions is None:
            return True
        made_at = self._made_at.get(question)
        if made_at is None:
            self.num_first += 1
            return False
        if self._spec.expiry is not None and now - made_at > self._spec.expiry:
            self.num_expired += 1
            return False
        return True

    def serve(self, index: int, now: float) -> float:
        """Answer a request in one piece; return when."""
        requests = self._requests
        answered_at = now + self._spec.latency
        requests.scheduled_time[index] = now
        requests.first_token_time[index] = requests.finish_time[index] = answered_at
        requests.generated_tokens[index] = requests.output_tokens[index]
        return answered_at

    def keep(self, index: int, now: float) -> None:
        """Keep the answer that a model has given."""
        question = self._questions[index]
        if question != _ALONE and self._spec.questions is not None:
            self._made_at[question] = now


def _questions(spec: ResponseCacheSpec, specs: RequestSpecs) -> NDArray[np.int64]:
    """Return the question of each request, a number for all that ask the same one; -1: nobody else asks it."""
    count = len(specs)
    shares = np.array([spec.share_of(each.name) for each in specs.classes] or [spec.share_of(None)])
    number = np.zeros(count, dtype=np.int64) if specs.request_class is None else specs.request_class.astype(np.int64)
    comes_again = rng.stream(specs.seed, "response_cache", specs.replication).random(count) < shares[number]
    if spec.questions is None:
        return np.where(comes_again, 0, _ALONE)
    weights = np.cumsum(np.arange(1.0, spec.questions + 1.0) ** -spec.zipf)
    uniforms = rng.stream(specs.seed, "response_cache.questions", specs.replication).random(count)
    drawn = np.minimum(np.searchsorted(weights, uniforms * weights[-1], side="right"), spec.questions - 1)
    return np.where(comes_again, drawn + spec.questions * number, _ALONE)
