"""Measured factors scale what they are named for, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simserve.engine.state import StepTimes
from simserve.perf.tables import price
from simserve.profiles.engine import scaled_by
from simserve.scenario.load import load
from simserve.scenario.resolve import resolve

SHAPE = resolve(load("chatbot")).shape


def times(**factors: float) -> StepTimes:
    """Return the step times of a server that takes so many times as long."""
    return price(replace(SHAPE, engine=scaled_by(SHAPE.engine, factors))).step_times


def test_the_gpu_factor_is_on_every_step() -> None:
    """Contexts and pairs in full; steps by nearly as much, as host time is no part of it."""
    before, after = times(), times(gpu=1.2)

    assert after.decode_slope[8] == pytest.approx(1.2 * before.decode_slope[8])
    assert after.prefill_pair_seconds == pytest.approx(1.2 * before.prefill_pair_seconds)
    assert 1.15 < after.decode_base[64] / before.decode_base[64] <= 1.2
    assert 1.15 < after.token_seconds[4000] / before.token_seconds[4000] <= 1.2 + 1e-9


def test_the_prompt_factor_leaves_decode_steps_alone() -> None:
    """Steps that hold prompts and attended pairs take longer, others as long."""
    before, after = times(), times(prompts=1.5)

    assert after.decode_base[64] == before.decode_base[64]
    assert after.prefill_pair_seconds == pytest.approx(1.5 * before.prefill_pair_seconds)
    assert 1.4 < after.token_seconds[4000] / before.token_seconds[4000] <= 1.5 + 1e-9


def test_the_host_factor_is_on_host_time_and_starts() -> None:
    """Small steps take longer, large ones hardly; pairs, which start nothing, as long."""
    before, after = times(), times(host=2.0)

    assert after.decode_base[1] > 1.02 * before.decode_base[1]
    assert after.token_seconds[4000] < 1.02 * before.token_seconds[4000]
    assert after.prefill_pair_seconds == before.prefill_pair_seconds


def test_the_frontend_factor_spares_a_latency_that_the_scenario_sets() -> None:
    """The profile's latency is scaled; one that a person wrote down stays."""
    stated = resolve(load("chatbot", ["deployment.engine.frontend_latency=5 ms"])).shape.engine

    assert scaled_by(SHAPE.engine, {"frontend": 2.0}).frontend_latency == 2.0 * SHAPE.engine.frontend_latency
    assert scaled_by(stated, {"frontend": 2.0}).frontend_latency == 0.005
