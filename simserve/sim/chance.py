"""Chance: random streams that the engine's rules take numbers from, filled up in time. Knows no rule."""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.engine.numbers import Uniforms, num_left
from simserve.workload.requests import RequestSpecs


class Chance:
    """A stream of a run, and the numbers that were drawn from it.

    Args:
        specs: What arrives, for its seed.
        name: Of the stream.
        room: Numbers that may be asked for at once.
    """

    _at_once = 1024
    """Numbers that are drawn together; each batch is used from its end."""

    def __init__(self, specs: RequestSpecs, name: str, room: int = 2) -> None:
        self._random = rng.stream(specs.seed, name, specs.replication)
        self.uniforms = Uniforms(room + self._at_once)

    def top_up(self, least: int) -> None:
        """Where fewer numbers are left, draw as many as there is room for, in the memory where they are."""
        uniforms = self.uniforms
        left = num_left(uniforms)
        if left >= least:
            return
        values, place = np.frombuffer(uniforms.values), uniforms.place
        values[:left] = values[place[0] : place[1]]
        drawn = self._draw((len(values) - left) // self._at_once)[:, ::-1]
        values[left : left + drawn.size] = drawn.ravel()
        place[0], place[1] = 0, left + drawn.size

    def _draw(self, num_batches: int) -> NDArray[np.float64]:
        """Return the next numbers of the stream, a row a batch."""
        return self._random.random((num_batches, self._at_once))


class LognormalChance(Chance):
    """Lognormal factors with mean 1 instead.

    Args:
        specs: What arrives, for its seed.
        name: Of the stream.
        cv: Their standard deviation over their mean.
        room: Factors that may be asked for at once.
    """

    _at_once = 256

    def __init__(self, specs: RequestSpecs, name: str, cv: float, room: int) -> None:
        super().__init__(specs, name, room)
        self._sigma = sqrt(log(1.0 + cv**2))

    def _draw(self, num_batches: int) -> NDArray[np.float64]:
        sigma, scores = self._sigma, self._random.standard_normal((num_batches, self._at_once))
        return np.array([exp(sigma * score - sigma**2 / 2) for score in scores.ravel().tolist()]).reshape(scores.shape)
