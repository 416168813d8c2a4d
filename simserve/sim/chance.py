"""Chance: random streams that the engine's rules take numbers from, filled up in time. Knows no rule."""

from __future__ import annotations

import numpy as np

from simserve import rng
from simserve.engine.uniforms import Uniforms, num_left
from simserve.workload.requests import RequestSpecs

_AT_ONCE = 1024
"""Numbers that are drawn together; each batch is used from its end."""


class Chance:
    """A stream of a run, and the numbers that were drawn from it.

    Args:
        specs: What arrives, for its seed.
        name: Of the stream.
        room: Numbers that may be asked for at once.
    """

    def __init__(self, specs: RequestSpecs, name: str, room: int = 2) -> None:
        self._random = rng.stream(specs.seed, name, specs.replication)
        self.uniforms = Uniforms(room + _AT_ONCE)

    def top_up(self, least: int) -> None:
        """Where fewer numbers are left, draw as many as there is room for, in the memory where they are."""
        uniforms = self.uniforms
        left = num_left(uniforms)
        if left >= least:
            return
        values, place = np.frombuffer(uniforms.values), uniforms.place
        values[:left] = values[place[0] : place[1]]
        drawn = self._random.random(((len(values) - left) // _AT_ONCE, _AT_ONCE))[:, ::-1]
        values[left : left + drawn.size] = drawn.ravel()
        place[0], place[1] = 0, left + drawn.size
