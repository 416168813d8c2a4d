"""First tokens that are handed over while the next step runs: when, and what stays as it was."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.engine.kernel import cancel, complete, plan, submit
from simserve.engine.state import Replica, RequestTable
from simserve.sim.records import RequestRecords
from simserve.sim.simulate import Replay, replay
from tests.builders import constant_step_times, make_config, make_specs

SPECS = make_specs([0.0, 0.0, 1.5], [4, 4, 4], [3, 1, 2])
HOST = {"transfer_step_seconds": 0.1, "transfer_request_seconds": 0.02, "transfer_prompt_seconds": 0.3}


def served(**overrides: object) -> Replay:
    """Return what a prefill-first replica with steps of a second does with `SPECS`."""
    return replay(make_config(scheduler="prefill_first", **overrides), constant_step_times(1.0), SPECS)


def test_a_first_token_waits_for_the_host_of_the_next_step() -> None:
    """0 and 1 are prompts of the first step, the next decodes 0; 2 is a prompt of the third, the next decodes both."""
    records = served(async_output=True, **HOST).records

    assert records.first_token_time.tolist() == pytest.approx([1.0 + 0.1 + 0.02, 1.0, 3.0 + 0.1 + 2 * 0.02])


def test_a_next_step_with_prompts_launches_them_first() -> None:
    """An arrival while the first prompt runs is the prompt of the step after it."""
    specs = make_specs([0.0, 0.5], 4, 3)

    config = make_config(scheduler="prefill_first", async_output=True, **HOST)
    records = replay(config, constant_step_times(1.0), specs).records

    assert records.first_token_time[0] == pytest.approx(1.0 + 0.1 + 0.02 + 0.3)


def test_no_token_waits_longer_than_the_step() -> None:
    """A client that sleeps while a step runs hears of the token when it has ended."""
    records = served(async_output=True, transfer_step_seconds=np.inf).records

    assert records.first_token_time.tolist() == pytest.approx([2.0, 1.0, 4.0])


def test_nothing_but_first_tokens_is_late() -> None:
    """Starts, ends, steps and the gaps between tokens are those without."""
    plain, late = served(), served(async_output=True, **HOST)

    for name in ("scheduled_time", "finish_time", "itl_max", "output_tokens"):
        np.testing.assert_array_equal(getattr(plain.records, name), getattr(late.records, name))
    assert late.totals.num_steps == plain.totals.num_steps
    assert late.totals.itl.total == plain.totals.itl.total


@pytest.mark.parametrize("seconds", [0.0, 0.4])
def test_compiled_code_hands_over_alike(seconds: float) -> None:
    """The same source, so the same times to the last bit."""
    pytest.importorskip("numba")

    def run(accelerate: str) -> RequestRecords:
        config = make_config(
            scheduler="prefill_first", async_output=True, transfer_step_seconds=seconds, transfer_prompt_seconds=0.2
        )
        specs = make_specs(np.linspace(0.0, 40.0, 50).tolist(), 4, [1 + number % 7 for number in range(50)])
        return replay(config, constant_step_times(1.0), specs, accelerate=accelerate).records  # type: ignore[arg-type]

    np.testing.assert_array_equal(run("off").first_token_time, run("on").first_token_time)


def test_who_hangs_up_before_the_hand_over_is_forgotten() -> None:
    """The client of a token that was computed and not yet handed over goes: nothing is handed to it later."""
    config = make_config(scheduler="prefill_first", async_output=True, **HOST)
    specs = make_specs([0.0, 0.0], 4, 3)
    replica = Replica(0, config, constant_step_times(1.0).as_lists())
    requests = RequestTable(specs.prompt_tokens, specs.output_tokens, specs.max_tokens, config)
    for index in range(2):
        submit(replica, requests, index, 0.0)
    plan(replica, requests)
    complete(replica, requests)

    cancel(replica, requests, 0)
    plan(replica, requests)
    complete(replica, requests)

    assert list(requests.first_token_time) == pytest.approx([1.0, 1.0 + 0.1 + 0.02])
