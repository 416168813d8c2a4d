"""Fit of serving constants: it finds what it should, and says what a family it never saw costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from simserve.calibrate.serving_fit import FitPoint, ServingConstants, fit, leave_one_family_out
from simserve.engine.tables import StepTimes

_TRUE = ServingConstants(host_seconds_per_step=2e-3, layer_seconds=1e-5, prefill_factor={"a": 1.5, "b": 0.8})
_LAYERS = (16, 32, 80)


def _figures(layers: int, hardware: str, constants: ServingConstants) -> dict[str, float]:
    constant = constants.host_seconds_per_step + layers * constants.layer_seconds
    prefill = max(1e-3 * layers * constants.prefill_factor.get(hardware, 1.0), layers * constants.launch_seconds)
    return {"tpot": 1e-4 * layers + constant, "ttft": prefill + constant}


_SHAPES = [(layers, hardware) for layers in _LAYERS for hardware in ("a", "b")]
_POINTS = [
    FitPoint(family=f"{layers}", hardware=hardware, measured=_figures(layers, hardware, _TRUE))
    for layers, hardware in _SHAPES
]


def _predict(indices: Sequence[int], constants: ServingConstants) -> list[Mapping[str, float]]:
    return [_figures(*_SHAPES[index], constants) for index in indices]


def test_the_constants_behind_exact_measurements_are_found() -> None:
    """Step, layer and both GPUs' factors, but for what the priors hold back."""
    found = fit(_POINTS, range(len(_POINTS)), _predict)

    assert found.host_seconds_per_step == pytest.approx(2e-3, rel=0.1)
    assert found.layer_seconds == pytest.approx(1e-5, rel=0.3)
    assert found.prefill_factor == pytest.approx({"a": 1.5, "b": 0.8}, rel=0.05)


def test_a_family_left_out_is_scored_without_itself() -> None:
    """Measurements of one physics: what is not seen is predicted too."""
    _, scores = leave_one_family_out(_POINTS, _predict)

    assert [score.family for score in scores] == ["16", "32", "80"]
    assert all(score.out_of_sample["tpot"] < 0.1 for score in scores)
    assert {score.points for score in scores} == {2}


def test_a_family_of_another_kind_shows_out_of_sample() -> None:
    """It is worse where it was not fitted."""
    odd = FitPoint(family="odd", hardware="a", measured={"tpot": 0.05})
    points = [*_POINTS, odd]

    def predict(indices: Sequence[int], constants: ServingConstants) -> list[Mapping[str, float]]:
        return [_figures(*[*_SHAPES, (16, "a")][index], constants) for index in indices]

    _, scores = leave_one_family_out(points, predict)

    (score,) = [each for each in scores if each.family == "odd"]
    assert score.out_of_sample["tpot"] > 0.5


def test_launching_is_a_floor_below_steps_that_prefill() -> None:
    """Decode steps run in graphs; a long prefill hides the launches."""
    times = StepTimes(
        decode_base=[0.0, 1e-3],
        decode_slope=[0.0, 0.0],
        token_seconds=[0.0, 1e-3, 9e-3],
        token_seconds_beyond=1e-6,
        sequence_seconds=[0.0, 0.0],
        decode_attention_base=[0.0, 0.0],
        prefill_request_seconds=0.0,
        prefill_pair_seconds=0.0,
        prefill_context_seconds=0.0,
    )
    constants = ServingConstants(launch_seconds=1e-4, prefill_factor={})

    adjusted = constants.applied_to(times, num_layers=40, hardware="a")

    assert adjusted.decode_base == pytest.approx([0.0, 1e-3])
    assert adjusted.token_seconds == pytest.approx([0.0, 4e-3, 9e-3])


def test_adjusted_steps_stay_monotone() -> None:
    """An empty step takes no time, and none gets faster with more tokens."""
    times = StepTimes(
        decode_base=[0.0, 1e-3, 2e-3],
        decode_slope=[0.0, 1e-9, 1e-9],
        token_seconds=[0.0, 1e-3, 1.5e-3],
        token_seconds_beyond=1e-6,
        sequence_seconds=[0.0, 1e-5, 2e-5],
        decode_attention_base=[0.0, 0.0, 0.0],
        prefill_request_seconds=1e-6,
        prefill_pair_seconds=1e-9,
        prefill_context_seconds=1e-9,
    )
    constants = ServingConstants(host_seconds_per_step=-1.8e-3, prefill_factor={"a": 2.0})

    adjusted = constants.applied_to(times, num_layers=10, hardware="a")

    assert adjusted.decode_base == pytest.approx([0.0, 0.0, 2e-4])
    assert adjusted.token_seconds == pytest.approx([0.0, 2e-4, 1.2e-3])
    assert adjusted.prefill_pair_seconds == pytest.approx(2e-9)
    assert adjusted.decode_slope == times.decode_slope
