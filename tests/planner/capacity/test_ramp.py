"""Conversations on their way to the rate that was asked for: when they are there, and that runs start there."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.planner.capacity.probe import REACHED, LoadProbe, mean_rate, probe_of, ramp_of
from simserve.scenario.finishable import Finishable
from simserve.scenario.load import load
from tests.builders import make_specs
from tests.scenario.builders import make_scenario

FAR_MORE = Finishable(rate=1e3, half_width=0.0, requests=0)
"""What deployments finish where no load comes near it: nothing is to be found."""


def talking(turns: int = 4, rate: float = 2.0) -> LoadProbe:
    """Return the probe of conversations of so many turns, 10 s apart."""
    return probe_of(
        make_scenario(
            workload={
                "arrivals": {"process": "poisson", "rate": rate},
                "prompt_tokens": {"distribution": "fixed", "value": 50},
                "output_tokens": {"distribution": "fixed", "value": 5},
                "sessions": {"turns": {"distribution": "fixed", "value": turns}, "think_time": "10 s"},
                "num_requests": 400,
            },
            slo={"ttft": "1 s"},
        ),
        FAR_MORE,
    )


def test_the_last_turn_comes_after_all_pauses() -> None:
    """Four turns 10 s apart: the fourth 30 s after the first, and after three answers."""
    ramp = talking(4).ramp
    assert ramp is not None

    assert ramp.seconds(0.0) == pytest.approx(30)
    assert ramp.seconds(2.0) == pytest.approx(36)
    assert ramp.window(2.0) == pytest.approx(30 + 4 * 2)


def test_requests_come_at_the_rate_asked_for_once_a_run_is_measured() -> None:
    """From the end of the warm-up to the last beginning, within the noise of a few hundred arrivals."""
    probe = talking(4)
    assert probe.ramp is not None
    probe._sojourns[1.0] = 0.5

    specs, warmup = probe._grown(probe.ramp, 8.0, 0, 4000)

    assert warmup >= probe.ramp.seconds(0.5) - 1e-9
    ramp = ramp_of(specs)
    assert ramp is not None
    assert mean_rate(specs.arrival_time, ramp.offsets(0.5), warmup) == pytest.approx(8.0, rel=0.03)
    begins = specs.arrival_time[~np.isnan(specs.arrival_time)]
    assert begins[-1] - warmup >= 0.9 * 4000 / 8.0
    assert specs.offered_rate == 8.0


def test_the_longest_conversations_are_over_before_a_run_is_measured() -> None:
    """Of a bundled scenario: all but the rarest turns of those that began at the start have come."""
    probe = probe_of(load("multi-turn"), FAR_MORE)
    assert probe.ramp is not None

    _, warmup = probe._grown(probe.ramp, 10.0, 0, 500)

    assert np.mean(probe.ramp.thinking <= warmup) >= REACHED - 1e-3


def test_traffic_without_conversations_has_no_ramp() -> None:
    """It is at its rate from the first request on."""
    assert ramp_of(make_specs([0.0, 1.0], 10, 5)) is None
