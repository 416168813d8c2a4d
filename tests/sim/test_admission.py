"""Who is turned away at the admission control, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.engine.admission_control import ADMITTED, ANY_NUMBER, DEADLINE, AdmissionControl, refusal_at_gateway
from simserve.engine.state import INFINITY, Uniforms
from simserve.sim.control import AdmissionSpec, Control, Limits
from simserve.sim.records import REASONS, REJECTED
from simserve.sim.simulate import Simulation, simulate
from simserve.validation import validate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_config, make_specs
from tests.theory.builders import make_deployment


def guarded(specs: RequestSpecs, rules: dict[str, Any], ttft_limit: float | None = None, **config: Any) -> Simulation:
    """Return a run of one replica behind admission control; every step takes a second."""
    control = Control(admission=validate(AdmissionSpec, rules), limits=(Limits(ttft=ttft_limit),))
    deployment = make_deployment(make_config(**config), constant_step_times(1.0, 16), 1)
    return simulate(replace(deployment, control=control), specs)


def reasons(run: Simulation) -> list[str]:
    """Return why each request was refused; empty: it was not."""
    return [REASONS[reason] for reason in run.records.reason]


def test_a_full_queue_refuses() -> None:
    """One seat and a queue of two: the fourth is refused when it arrives, and ends there."""
    run = guarded(make_specs([0.0, 0.5, 0.6, 0.7, 20.0], 4, 5), {"max_queue": 2}, max_num_seqs=1)

    assert reasons(run) == ["", "", "", "queue_full", ""]
    assert run.records.status[3] == REJECTED
    assert run.records.finish_time[3] == 0.7
    assert np.isnan(run.records.first_token_time[3])
    assert run.timeline is not None
    assert run.timeline.refusals == {"queue_full": 1}


def test_kv_headroom_refuses_where_memory_is_nearly_full() -> None:
    """Three prompts of 40 tokens fill 30 of 32 blocks; the next is refused until they are done."""
    specs = make_specs([0.0, 0.1, 0.2, 8.0, 40.0], [40, 40, 40, 4, 4], [8, 8, 8, 2, 2])
    run = guarded(specs, {"kv_headroom": 0.2})

    assert reasons(run) == ["", "", "", "kv_headroom", ""]


def test_load_refuses_at_random_and_more_with_load() -> None:
    """Below the threshold nobody; at it few; near the top most."""
    specs = make_specs([0.0] * 8 + [0.5 + 0.001 * index for index in range(400)], 1, 50)
    run = guarded(specs, {"probabilistic_from": 0.5}, max_num_seqs=16, num_blocks=2000)

    refused = np.array([reason == "load" for reason in reasons(run)])
    assert not refused[:8].any()
    assert not refused[8]
    assert refused[200:].all()
    assert 15 <= np.count_nonzero(~refused) <= 17


def test_a_token_bucket_limits_the_rate() -> None:
    """A burst of three, then one every two seconds."""
    specs = make_specs([0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0], 1, 1)
    run = guarded(specs, {"token_bucket": {"rate": 0.5, "burst": 3}})

    assert reasons(run) == ["", "", "", "rate_limit", "rate_limit", "", "rate_limit", ""]


def test_a_deadline_that_cannot_be_met_refuses() -> None:
    """A seat that finishes a request every five seconds: who finds three waiting would start after fifteen."""
    specs = make_specs([0.0, 0.1, 0.2, 6.0, 6.1, 6.2], 1, 5)
    patient, impatient = (guarded(specs, {"deadline_aware": True}, limit, max_num_seqs=1) for limit in (1000.0, 12.0))

    assert reasons(patient) == [""] * 6
    assert reasons(impatient) == ["", "", "", "", "", "deadline"]


def test_a_deadline_that_is_met_exactly_does_not_refuse() -> None:
    """As above: fifteen seconds of patience are as many as the last one waits."""
    specs = make_specs([0.0, 0.1, 0.2, 6.0, 6.1, 6.2], 1, 5)

    assert reasons(guarded(specs, {"deadline_aware": True}, 15.0, max_num_seqs=1)) == [""] * 6


def test_in_front_of_all_replicas_each_has_the_patience_of_its_class() -> None:
    """Five seconds are too long for the first request and not for the second."""
    control = AdmissionControl(
        bucket=None,
        max_queue=ANY_NUMBER,
        kv_headroom=0.0,
        probabilistic_from=INFINITY,
        patience=[10.0, 1.0],
        kinds=[1, 0],
        has_patience=True,
        retry_after=0.0,
        uniforms=Uniforms(0),
    )

    assert [refusal_at_gateway(control, index, 0, 5.0, 0.0) for index in range(2)] == [DEADLINE, ADMITTED]


def test_retry_after_delays_the_next_try() -> None:
    """Refused at 0.7, the client comes back 6 s later, when the queue is shorter; one that does not listen, at once."""
    specs = make_specs([0.0, 0.5, 0.6, 0.7], 4, 5)

    def served(**retries: Any) -> Simulation:
        own = ClassSpec(name="all", share=1.0, retries={"max": 1, "backoff": "0 s", **retries})
        classed = replace(specs, classes=(own,), request_class=np.zeros(4, dtype=np.int16))
        return guarded(classed, {"max_queue": 2, "retry_after": "6 s"}, max_num_seqs=1)

    listening, deaf = served(), served(honor_retry_after=False)
    assert reasons(listening) == [""] * 4
    assert listening.records.admitted_time[3] == pytest.approx(6.7)
    assert listening.records.arrival_time[3] == 0.7
    assert reasons(deaf) == ["", "", "", "queue_full"]
    assert deaf.timeline is not None
    assert deaf.timeline.refusals == {"queue_full": 2}
    assert deaf.timeline.num_resent == 1
