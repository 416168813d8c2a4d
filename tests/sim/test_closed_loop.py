"""Clients that send their next request when the last one is answered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import simserve as ss
from simserve.sim.cluster import Routing
from simserve.sim.control import AdmissionSpec, Control
from simserve.sim.records import COMPLETED, RequestRecords
from simserve.sim.simulate import replay, simulate
from simserve.validation import validate
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_closed_loop, make_config, make_specs
from tests.theory.builders import make_deployment


def served(specs: RequestSpecs, num_replicas: int = 1, routing: Routing = "round_robin") -> RequestRecords:
    """Return the records of replicas of four seats; every step takes a second."""
    return simulate(make_deployment(make_config(), constant_step_times(1.0), num_replicas, routing), specs).records


def test_a_single_client_sends_when_it_has_thought() -> None:
    """Answers of 2, 3 and 1 steps, half a second of thought before each next request."""
    records = served(make_closed_loop(1, [4, 4, 4], [2, 3, 1], 0.5))

    assert records.arrival_time.tolist() == [0.0, 2.5, 6.0]
    assert records.finish_time.tolist() == [2.0, 5.5, 7.0]


def test_the_thought_belongs_to_the_request_that_follows_it() -> None:
    """``think_time[i]`` passes before request i is sent; the first ones are sent at 0 whatever it says."""
    records = served(make_closed_loop(1, [4, 4, 4], 1, [100.0, 2.0, 5.0]))

    assert records.arrival_time.tolist() == [0.0, 3.0, 9.0]


def test_requests_are_sent_in_order_of_index() -> None:
    """The first client that is answered takes the lowest request that is not sent."""
    records = served(make_closed_loop(2, [4] * 5, [5, 2, 1, 1, 1]))

    assert records.arrival_time.tolist() == [0.0, 0.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("has_admission_control", [False, True])
@pytest.mark.parametrize(("closes_at", "count"), [(0.5, 2), (3.0, 3), (100.0, 5)])
def test_clients_stop_at_a_time(closes_at: float, count: int, has_admission_control: bool) -> None:
    """Answers of two clients at 2, 3, 3 s: what would be sent at the end or later is not there."""
    specs = replace(make_closed_loop(2, [4] * 5, [3, 2, 1, 1, 1]), closes_at=closes_at)
    deployment = make_deployment(make_config(), constant_step_times(1.0), 1)
    if has_admission_control:
        # Admission control that is wide open: the event plane serves.
        deployment = replace(deployment, control=Control(admission=validate(AdmissionSpec, {"max_queue": 99})))
    records = simulate(deployment, specs).records

    assert records.arrival_time.tolist() == [0.0, 0.0, 2.0, 3.0, 3.0][:count]
    assert (records.status == COMPLETED).all()


def test_clients_that_stop_finish_their_conversations() -> None:
    """Of two turns each, 0.5 s apart: the one begun before 3 s goes on to its end, no other begins."""
    specs = make_closed_loop(1, [4] * 6, 1, 0.5)
    place = np.arange(6)
    specs = replace(specs, session=place // 2, turn=place % 2 + 1, closes_at=3.0)
    records = simulate(make_deployment(make_config(), constant_step_times(1.0), 1), specs).records

    assert records.arrival_time.tolist() == [0.0, 1.5, 3.0][:2]
    later = simulate(make_deployment(make_config(), constant_step_times(1.0), 1), replace(specs, closes_at=3.5)).records
    assert later.arrival_time.tolist() == [0.0, 1.5, 3.0, 4.5]


def test_more_clients_than_requests() -> None:
    """The clients without a request do nothing."""
    records = served(make_closed_loop(10, [4, 4], 3))

    assert records.arrival_time.tolist() == [0.0, 0.0]
    assert records.finish_time.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("num_replicas", [1, 3])
@pytest.mark.parametrize("think_time", [0.0, 0.75])
def test_all_clients_are_in_the_system_or_thinking(num_replicas: int, think_time: float) -> None:
    """Until the last request is sent, as many are in the system or thought about as there are clients."""
    specs = make_closed_loop(6, [4] * 120, [3, 9, 1, 5, 7, 2] * 20, think_time)
    records = served(specs, num_replicas, "least_outstanding")

    # Every client is engaged from 0 on: request i is sent `think_time` after the (i - 5)th answer.
    answers = np.sort(records.finish_time)[: 120 - 6]
    np.testing.assert_allclose(np.sort(records.arrival_time)[6:], answers + think_time, rtol=1e-12)


def test_one_seat_and_no_thought_never_idles() -> None:
    """Two clients keep one seat busy: the last answer comes after the sum of all services."""
    specs = make_closed_loop(2, [4] * 50, [3, 9, 1, 5, 7] * 10)

    run = replay(make_config(max_num_seqs=1), constant_step_times(1.0), specs)

    assert run.records.finish_time.max() == specs.output_tokens.sum()
    assert run.totals.busy_seconds == specs.output_tokens.sum()


def test_a_failed_request_is_answered_at_once() -> None:
    """A prompt that is too long comes back when it reaches the scheduler, and the client goes on."""
    records = served(make_closed_loop(1, [4, 99, 4], [2, 1, 1], 0.5))

    assert records.arrival_time.tolist() == [0.0, 2.5, 3.0]
    assert records.replica_id.tolist() == [0, -1, 0]


def test_an_arrival_is_when_the_client_sent_it() -> None:
    """The front end stands between sending and queueing, and the wait in it counts from the sending."""
    config = make_config(frontend_latency=0.25)

    records = replay(config, constant_step_times(1.0), make_closed_loop(1, [4, 4], 2, 1.0)).records

    assert records.arrival_time.tolist() == [0.0, 3.25]
    assert records.admitted_time.tolist() == [0.25, 3.5]
    assert records.finish_time.tolist() == [2.25, 5.5]


def test_a_longer_prompt_takes_longer_to_split_into_tokens() -> None:
    """The scheduler sees a request once its prompt is tokenised; in an open loop nobody overtakes."""
    config = make_config(frontend_latency=0.5, tokenization_per_token=0.25)
    open_loop = replay(config, constant_step_times(1.0), make_specs([0.0, 0.0, 9.0], [4, 1, 1], 1)).records
    closed_loop = replay(config, constant_step_times(1.0), make_closed_loop(1, [4, 1], 1)).records

    assert open_loop.admitted_time.tolist() == [1.5, 1.5, 9.75]
    assert (closed_loop.admitted_time - closed_loop.arrival_time).tolist() == [1.5, 0.75]


def test_a_second_wave_of_equal_requests_waits_half_as_long_as_the_first() -> None:
    """Whose first token came early ends early, so that its next prompt finds fewer others before it.

    Measured: vLLM issue 45709 (0.28.1, Qwen3-30B-A3B over four L20, eight clients, 3,500 tokens in and 1,500 out):
    1,226 ms, then 653 with CUDA graphs, 0.53; 1,241 and 602 without, 0.49. In step it would be 1, spread out 0.25.
    """
    engine = {"name": "vllm", "version": "0.28", "enable_prefix_caching": False}
    deployment = {"hardware": "l20-48gb", "tensor_parallel_size": 4, "engine": engine}
    lengths = {"num_requests": 16, "prompt_tokens": 3500, "output_tokens": 1500}
    workload = {"arrivals": {"process": "closed_loop", "concurrency": 8}, **lengths}
    scenario = ss.load({"model": "qwen3-30b-a3b", "deployment": deployment, "workload": workload})

    requests = ss.run(scenario).requests.sort_values("arrival_s")

    first, second = requests.ttft_ms[:8].mean(), requests.ttft_ms[8:].mean()
    assert first == pytest.approx(1226, rel=0.15)
    assert 0.4 < second / first < 0.6
