"""Fit of an engine's serving constants to measured servers, scored with whole families left out.

Per engine version a time a step, a time a layer and the time to launch a layer outside CUDA graphs, per GPU a factor
on prefill: physical, few, and the same for every model. Knows measured figures and a function that predicts them; not
where either comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from simserve.engine.tables import StepTimes

LOSS_SCALE = 0.1
"""Log error beyond which a point's pull on the fit stops growing: rows with other causes must not steer it."""

MAX_EVALUATIONS = 8
"""Steps of the search; the problem is nearly linear, and every step simulates every point several times."""

STEP_SECONDS = 1e-4
LAYER_STEP_SECONDS = 5e-6
FACTOR_STEP = 0.02
"""Differences that slopes are taken over: large against the jitter of who shares a step with whom."""

PRIOR_WEIGHT = 0.1
PRIOR_STEP_SECONDS = 2e-3
PRIOR_LAYER_SECONDS = 2e-5
PRIOR_FACTOR = 0.3
"""What a constant may take before it counts as an error of 10 %: where one model alone was measured, a time a step and
a time a layer cannot be told apart, and neither may run away."""

MAX_STEP_SECONDS = 0.1
MAX_LAYER_SECONDS = 1e-3
MAX_LAUNCH_SECONDS = 5e-3
FIRST_LAUNCH_SECONDS = 2e-4
"""Where the search for the launch time begins: ten kernels of 20 us; at 0 a floor has no slope to follow."""
PREFILL_RANGE = (0.25, 4.0)
"""Bounds of the search; a constant at its bound says that it is the wrong one. Times only add: they stand for work
that no operator holds, and where a model alone would ask for less, the operators are wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConstants:
    """What a fit adds to the seconds of a step.

    Attributes:
        host_seconds_per_step: Added to every step.
        layer_seconds: Added to every step for each layer: kernels too small for an operator of their own.
        launch_seconds: Least seconds of a layer in a step that prefills, which runs outside CUDA graphs: the host
            launches its kernels no faster.
        prefill_factor: GPU -> factor on the seconds of steps that prefill; absent: 1.
    """

    host_seconds_per_step: float = 0.0
    layer_seconds: float = 0.0
    launch_seconds: float = 0.0
    prefill_factor: Mapping[str, float]

    def applied_to(self, times: StepTimes, *, num_layers: int, hardware: str) -> StepTimes:
        """Return the step times of a deployment with these constants; they stay monotone.

        Args:
            times: As priced.
            num_layers: Layers of the model.
            hardware: GPU.
        """
        constant = self.host_seconds_per_step + self.layer_seconds * num_layers
        factor = self.prefill_factor.get(hardware, 1.0)
        return replace(
            times,
            decode_base=_with_constant(times.decode_base, 1.0, constant, 0.0),
            token_seconds=_with_constant(times.token_seconds, factor, constant, self.launch_seconds * num_layers),
            token_seconds_beyond=factor * times.token_seconds_beyond,
            prefill_request_seconds=factor * times.prefill_request_seconds,
            prefill_pair_seconds=factor * times.prefill_pair_seconds,
            prefill_context_seconds=factor * times.prefill_context_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPoint:
    """A measured server as the fit sees it.

    Attributes:
        family: What is left out together (engine, model, GPU).
        hardware: GPU, whose prefill factor holds.
        measured: Metric -> positive figure.
    """

    family: str
    hardware: str
    measured: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Errors of one family: with constants fitted to all points, and to the others only.

    Attributes:
        family: The family.
        points: Points of it.
        in_sample: Metric -> median absolute relative error.
        out_of_sample: Metric -> the same, of constants that never saw the family.
    """

    family: str
    points: int
    in_sample: Mapping[str, float]
    out_of_sample: Mapping[str, float]


Predict = Callable[[Sequence[int], ServingConstants], Sequence[Mapping[str, float]]]
"""Returns the figures of the points with these indices, under these constants."""


def fit(points: Sequence[FitPoint], indices: Sequence[int], predict: Predict) -> ServingConstants:
    """Return the constants that bring the predictions nearest to the measurements.

    Least squares on the logarithm of predicted over measured, softened beyond ``LOSS_SCALE``.

    Args:
        points: All points.
        indices: Those to fit to.
        predict: The simulator.
    """
    gpus = sorted({points[index].hardware for index in indices})
    scale = np.array([PRIOR_STEP_SECONDS, PRIOR_LAYER_SECONDS, MAX_LAUNCH_SECONDS, *[PRIOR_FACTOR] * len(gpus)])
    steps = np.array([STEP_SECONDS, LAYER_STEP_SECONDS, LAYER_STEP_SECONDS, *[FACTOR_STEP] * len(gpus)])

    def residuals(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        errors = log_errors(points, indices, predict(indices, _constants(parameters, gpus)))
        return np.concatenate((errors, PRIOR_WEIGHT * parameters / scale))

    def slopes(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        return _slopes(residuals, parameters, steps)

    found = least_squares(
        residuals,
        np.array([STEP_SECONDS, LAYER_STEP_SECONDS, FIRST_LAUNCH_SECONDS, *[0.0] * len(gpus)]),
        jac=slopes,
        bounds=_bounds(len(gpus)),
        x_scale=scale,
        loss="soft_l1",
        f_scale=LOSS_SCALE,
        max_nfev=MAX_EVALUATIONS,
    )
    return _constants(found.x, gpus)


def _bounds(num_gpus: int) -> tuple[list[float], list[float]]:
    low, high = (float(np.log(share)) for share in PREFILL_RANGE)
    return (
        [0.0, 0.0, 0.0, *[low] * num_gpus],
        [MAX_STEP_SECONDS, MAX_LAYER_SECONDS, MAX_LAUNCH_SECONDS, *[high] * num_gpus],
    )


def _slopes(
    function: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    parameters: NDArray[np.float64],
    steps: NDArray[np.float64],
) -> NDArray[np.float64]:
    here = function(parameters)
    return np.column_stack([(function(parameters + each) - here) / each.sum() for each in np.diag(steps)])


def log_errors(
    points: Sequence[FitPoint], indices: Sequence[int], predicted: Sequence[Mapping[str, float]]
) -> NDArray[np.float64]:
    """Return log(predicted / measured) of every figure of the points, in their order."""
    return np.array(
        [
            np.log(figures[metric] / points[index].measured[metric])
            for index, figures in zip(indices, predicted, strict=True)
            for metric in points[index].measured
        ]
    )


def leave_one_family_out(points: Sequence[FitPoint], predict: Predict) -> tuple[ServingConstants, list[HeldOut]]:
    """Return the constants fitted to all points, and each family's errors with and without it in the fit."""
    everything = list(range(len(points)))
    overall = fit(points, everything, predict)
    scores = []
    for family in sorted({point.family for point in points}):
        members = [index for index in everything if points[index].family == family]
        others = [index for index in everything if points[index].family != family]
        without = fit(points, others, predict) if others else overall
        scores.append(
            HeldOut(
                family=family,
                points=len(members),
                in_sample=_medians(points, members, predict(members, overall)),
                out_of_sample=_medians(points, members, predict(members, without)),
            )
        )
    return overall, scores


def _medians(
    points: Sequence[FitPoint], indices: Sequence[int], predicted: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    errors: dict[str, list[float]] = {}
    for index, figures in zip(indices, predicted, strict=True):
        for metric, measured in points[index].measured.items():
            errors.setdefault(metric, []).append(abs(figures[metric] / measured - 1.0))
    return {metric: float(np.median(values)) for metric, values in errors.items()}


def _constants(parameters: NDArray[np.float64], gpus: Sequence[str]) -> ServingConstants:
    return ServingConstants(
        host_seconds_per_step=float(parameters[0]),
        layer_seconds=float(parameters[1]),
        launch_seconds=float(parameters[2]),
        prefill_factor={gpu: float(np.exp(value)) for gpu, value in zip(gpus, parameters[3:], strict=True)},
    )


def _with_constant(seconds: Sequence[float], factor: float, constant: float, least: float) -> list[float]:
    """Return ``factor * seconds + constant``, at least ``least``; 0 first, and never falling."""
    raised = np.maximum(factor * np.asarray(seconds) + constant, least)
    raised[0] = 0.0
    return [float(value) for value in np.maximum.accumulate(raised)]
