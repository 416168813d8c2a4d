"""How long a point will take, guessed before it starts from what others of its kind took. Measures nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from simserve.calibrate.kernels.points import Point

FIRST_RATES = {"cuda": (2e13, 3e11), "cpu": (2e10, 3e9)}
"""FLOP/s and bytes/s that a first point is expected to reach, low: what a point takes is guessed before it starts."""

CALLS_OF_A_POINT = 10.0
"""Calls, warm-up and check included, that a slow point takes."""

SETUP_SECONDS = {"cuda": 0.05, "cpu": 0.02}


@dataclass(slots=True)
class Pace:
    """How fast points go on this device: what decides whether one still fits the budget."""

    kind: str
    samples: float
    slowest: dict[str, float] = field(default_factory=dict)

    def seconds(self, point: Point) -> float:
        """Return the seconds that a point is expected to take, set-up and check included."""
        flops, bandwidth = FIRST_RATES[self.kind]
        call = max(point.flops / flops, point.num_bytes / bandwidth)
        call *= self.slowest.get(_operator(point), 1.0)
        return SETUP_SECONDS[self.kind] + self.samples + CALLS_OF_A_POINT * call

    def learn(self, point: Point, seconds: float) -> None:
        """Take in what a call took."""
        flops, bandwidth = FIRST_RATES[self.kind]
        guess = max(point.flops / flops, point.num_bytes / bandwidth)
        if guess > 1e-5:
            known = self.slowest.get(_operator(point))
            ratio = seconds / guess
            self.slowest[_operator(point)] = ratio if known is None else max(0.5 * known, ratio)


def _operator(point: Point) -> str:
    return f"{point.table} {point.sizes.get('gemm_dtype', '')}"
