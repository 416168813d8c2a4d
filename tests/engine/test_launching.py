"""Steps with prompts on piecewise graphs: what the host launches, and what of it the step before hides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.scenario.load import from_mapping
from simserve.scenario.run import run
from simserve.sim.records import RequestRecords
from simserve.sim.simulate import Accelerate
from simserve.sim.simulate import replay as replay_specs
from tests.builders import affine_step_times, constant_step_times, make_config, make_specs

TIMES = replace(constant_step_times(2.0), launch_seconds=3.0, launch_max_tokens=12.0)
SPECS = make_specs([0.0, 5.5, 7.5, 9.5, 11.5], 4, [30, 2, 2, 2, 2])


def served(accelerate: Accelerate = "off", **overrides: Any) -> RequestRecords:
    """Return what a replica with steps of two seconds and three to launch prompts does with `SPECS`."""
    return replay_specs(make_config(**overrides), TIMES, SPECS, accelerate=accelerate).records


def test_a_synchronous_host_begins_with_the_gpu() -> None:
    """Every step with prompts takes three seconds: from 0, 7, 10 (two arrivals) and 13 on."""
    assert served().first_token_time.tolist() == [3.0, 10.0, 13.0, 13.0, 16.0]


def test_a_host_that_works_ahead_launches_while_the_step_before_runs() -> None:
    """0 finds nobody. Decodes hide 1; prompts in steps one after another use the lead up: 2, 1, 0 s, and none again.

    The step that runs when 1 comes ends at 7, and the one after it, which is scheduled by then, at 9.
    """
    records = served(async_scheduling=True, releases_late=True)

    assert records.first_token_time.tolist() == [3.0, 11.0, 13.0, 16.0, 19.0]


def test_a_pause_ends_the_lead() -> None:
    """The decode from 3 to 5 leaves a lead of two seconds, which is gone when the next request comes."""
    specs = make_specs([0.0, 9.0], 4, [2, 1])
    config = make_config(async_scheduling=True, releases_late=True)

    records = replay_specs(config, TIMES, specs).records

    assert records.first_token_time.tolist() == [3.0, 12.0]


def test_a_prompt_beyond_the_graphs_takes_its_own_time() -> None:
    """Thirteen tokens have no graph, twelve have."""
    for tokens, seconds in ((12, 3.0), (13, 2.0)):
        records = replay_specs(make_config(), TIMES, make_specs([0.0], tokens, 1)).records

        assert records.first_token_time[0] == seconds


@pytest.mark.parametrize("is_ahead", [False, True])
def test_chunks_of_one_prompt_are_launched_one_by_one(is_ahead: bool) -> None:
    """Four chunks of eight tokens: nobody hides the first, and a GPU of two seconds hides none of three."""
    config = make_config(max_num_batched_tokens=8, async_scheduling=is_ahead, releases_late=is_ahead)

    records = replay_specs(config, TIMES, make_specs([0.0], 32, 1)).records

    assert records.first_token_time[0] == 12.0


def test_chunks_that_hide_their_own_launching_still_win_a_lead() -> None:
    """Four chunks of four seconds leave leads of one, two, three and four; a prompt of one token then waits for none.

    Three seconds to launch, half a second a token."""
    times = replace(affine_step_times(step_seconds=0.0, token_seconds=0.5), launch_seconds=3.0, launch_max_tokens=12.0)
    config = make_config(max_num_batched_tokens=8, async_scheduling=True, releases_late=True)

    records = replay_specs(config, times, make_specs([0.0, 0.0], [32, 1], 1)).records

    assert records.first_token_time.tolist() == [16.0, 16.5]


def test_the_lead_of_a_leap_is_its_last_step_s() -> None:
    """Two decode for eight steps, 2 s and 0.1 s a token of context: 4.6 to 6 s. The third gets the seat of the first.

    Its step hides 6 of its 12 seconds of launching; the first two prompts are too long for a graph.
    """
    plain = affine_step_times(step_seconds=2.0, decode_context_seconds=0.1)
    times = replace(plain, launch_seconds=12.0, launch_max_tokens=12.0)
    config = make_config(max_num_seqs=2, async_scheduling=True)
    ends = np.cumsum([2.0, *(2.0 + 0.2 * context for context in range(13, 21))])

    records = replay_specs(
        config, times, make_specs([0.0, 0.0, 1.0], [13, 13, 4], [9, 30, 1]), accelerate="off"
    ).records

    assert ends[-1] - ends[-2] == pytest.approx(6.0)
    assert records.first_token_time.tolist() == pytest.approx([2.0, 2.0, ends[-1] + (12.0 - 6.0)])


@pytest.mark.parametrize("is_ahead", [False, True])
def test_compiled_code_launches_alike(is_ahead: bool) -> None:
    """The same source, so the same times to the last bit."""
    pytest.importorskip("numba")
    plain, compiled = (
        served(accelerate, async_scheduling=is_ahead, releases_late=is_ahead) for accelerate in ("off", "on")
    )

    np.testing.assert_array_equal(plain.first_token_time, compiled.first_token_time)
    np.testing.assert_array_equal(plain.finish_time, compiled.finish_time)


def test_the_wait_for_launches_is_host_time_of_the_run() -> None:
    """One client of short prompts: parts add up to the busy seconds, and operators to the parts."""

    def totals(version: str) -> Any:
        deployment = {
            "hardware": "h100-sxm-80gb",
            "quantization": "fp8",
            "engine": {"name": "vllm", "version": version},
        }
        arrivals = {"process": "closed_loop", "concurrency": 1}
        traffic = {"arrivals": arrivals, "prompt_tokens": 64, "output_tokens": 4, "num_requests": 5}
        mapping = {"name": "short", "model": "llama-3.1-8b", "deployment": deployment, "workload": traffic}
        return run(from_mapping(mapping)).simulation.totals

    with_launches, without = totals("0.11"), totals("0.10.2")

    further = with_launches.busy_seconds - without.busy_seconds
    parts, operators = with_launches.seconds_by_part, with_launches.accounts[0].seconds_by_operator()
    assert further > 5 * 0.005
    assert sum(parts.values()) == pytest.approx(with_launches.busy_seconds)
    assert sum(operators.values()) == pytest.approx(with_launches.busy_seconds)
    assert parts["host"] == pytest.approx(without.seconds_by_part["host"] + further, rel=0.05)
    assert operators["host"] == pytest.approx(without.accounts[0].seconds_by_operator()["host"] + further, rel=0.05)
