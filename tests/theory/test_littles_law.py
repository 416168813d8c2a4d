"""Little's law on finished runs, where it is an identity of areas: L = lambda W to the last digits.

The left side comes from whoever counts (the scheduler, the time series, the KV integral), the right side from the
times of the records.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simserve import api, rng
from simserve.engine.state import DataParallelReplica, Replica, RequestTable
from simserve.sim.cluster import Cluster, Routing, plain_clients, router_of
from simserve.sim.control import RoutingSpec
from simserve.sim.recorder import Recorder, TimeSeries
from simserve.sim.records import RequestRecords
from simserve.sim.simulate import replay
from tests.builders import constant_step_times, make_specs
from tests.engine.strategies import Case, cases
from tests.fuzzing import examples
from tests.theory.builders import geometric_steps, seats, uniform_steps, waits
from tests.theory.estimates import draw

SCENARIOS = sorted((Path(__file__).resolve().parents[2] / "scenarios").glob("*.yaml"))
STREAMED = ("single-gpu-7b", "streaming", "two-regions")
few = settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def sojourn_seconds(records: RequestRecords) -> float:
    """Return the seconds in the scheduler, summed over the requests that reached it."""
    return float(np.nansum(records.finish_time - records.admitted_time))


def area(series: TimeSeries) -> float:
    """Return requests times seconds under the curves of waiting and running."""
    return float((series.running + series.waiting) @ np.diff(series.edges))


def outstanding_seconds(case: Case, num_replicas: int, routing: Routing) -> tuple[float, float]:
    """Return the area under the replicas' own counts of unfinished requests, and the summed sojourns."""
    specs, config = case.specs, case.config
    requests = RequestTable(specs.prompt_tokens, specs.output_tokens, specs.max_tokens, config)
    ready_time = specs.arrival_time + config.frontend_latency
    np.frombuffer(requests.ready_time)[:] = ready_time
    replicas = [Replica(number, config, case.times) for number in range(num_replicas)]
    spec = RoutingSpec(policy=routing)
    cluster = Cluster(
        [DataParallelReplica([replica]) for replica in replicas],
        requests,
        Recorder(config, case.times, None),
        spec,
        router_of(spec, specs),
        plain_clients(specs, ready_time - specs.arrival_time, specs.arrival_time, num_replicas),
    )
    cluster.expect(specs, np.array(specs.arrival_time))
    now = total = 0.0
    cluster.drive(np.nextafter(now, np.inf))
    while True:
        following = float(
            min([*ready_time[ready_time > now], *(replica.end_time for replica in replicas)], default=np.inf)
        )
        if following == np.inf:
            break
        # All that happens before `following` is done, so the counts hold until then.
        total += sum(replica.num_outstanding for replica in replicas) * (following - now)
        now = following
        cluster.drive(np.nextafter(now, np.inf))
    return total, float(np.nansum(np.frombuffer(requests.finish_time) - ready_time))


@given(case=cases(), num_replicas=st.integers(1, 3), routing=st.sampled_from(["round_robin", "least_outstanding"]))
@few
def test_the_schedulers_count_agrees_with_the_records(case: Case, num_replicas: int, routing: Routing) -> None:
    """Random replicas and requests: the area under the number outstanding is the sum of the sojourns."""
    assume(case.specs.concurrency is None)

    counted, recorded = outstanding_seconds(case, num_replicas, routing)

    assert counted == pytest.approx(recorded, rel=1e-9, abs=1e-9)


@given(case=cases())
@few
def test_time_series_agree_with_the_records(case: Case) -> None:
    """Random replicas, open and closed loops: waiting and running over time hold every sojourn."""
    run = replay(case.config, case.times, case.specs)

    assert area(run.totals.series) == pytest.approx(sojourn_seconds(run.records), rel=1e-9, abs=1e-9)


def test_waiting_is_arrivals_times_mean_wait() -> None:
    """At 80 % load on two seats the time-average queue length is throughput times mean wait."""
    arrivals, steps = draw("queue length", 1.6, geometric_steps(16), 0.0625, (5_000, 1))
    specs = make_specs(arrivals[:, 0].tolist(), 1, steps[:, 0].tolist())

    run = replay(seats(2), constant_step_times(0.0625), specs)
    series = run.totals.series

    duration = series.edges[-1]
    mean_waiting = float(series.waiting @ np.diff(series.edges)) / duration
    assert mean_waiting == pytest.approx(5_000 / duration * waits(run.records).mean(), rel=1e-9)


def test_kv_memory_is_arrivals_times_token_seconds() -> None:
    """H = lambda G: each of n steps of a request holds its prompt and the tokens before, whoever else is there."""
    generator = rng.stream(1, "kv memory")
    arrivals = np.cumsum(generator.exponential(8.0, 2_000))
    prompts, outputs = generator.integers(1, 30, 2_000), uniform_steps(1, 31).sample(generator, (2_000,))

    run = replay(
        seats(4, max_num_batched_tokens=256), constant_step_times(1.0), make_specs(arrivals.tolist(), prompts, outputs)
    )

    token_seconds = prompts * outputs + outputs * (outputs - 1) / 2
    assert run.totals.kv_held_token_seconds == pytest.approx(token_seconds.sum(), rel=1e-9)


def test_busy_seats_are_arrivals_times_service() -> None:
    """The mean batch times the steps is the sum of the services: sequence-steps are conserved."""
    arrivals, steps = draw("busy seats", 3.0, geometric_steps(16), 0.0625, (5_000, 1))
    specs = make_specs(arrivals[:, 0].tolist(), 1, steps[:, 0].tolist())

    totals = replay(seats(4), constant_step_times(0.0625), specs).totals

    assert totals.sequence_steps == steps.sum()
    assert totals.busy_seconds == pytest.approx(totals.num_steps * 0.0625, rel=1e-9)


@pytest.mark.parametrize(
    "path",
    # `tests/test_scenarios.py` holds the runs of the others to it in the quick tier, as they ship.
    [pytest.param(path, marks=[] if path.stem in STREAMED else [pytest.mark.slow]) for path in SCENARIOS],
    ids=lambda path: path.stem,
)
def test_every_scenario(path: Path) -> None:
    """A bundled scenario: number in the system over time = throughput times time in the system.

    In the replicas, that is: without the way of the tokens to the clients, with attempts that came to nothing.
    """
    result = api.run(api.load(path, ["deployment.streaming=null"]))
    series, requests, timeline = result.timeseries, result.requests, result.simulation.timeline

    seconds = series["end_s"] - series["start_s"]
    duration = float(series["end_s"].iloc[-1])
    in_system = float(((series["running"] + series["waiting"]) * seconds).sum()) / duration
    sojourns = (requests["finish_s"] - requests["admitted_s"]).dropna()
    vain = 0.0 if timeline is None else float(np.nansum(timeline.tries[:, 2] - timeline.tries[:, 0]))
    done = requests[requests["status"] == "completed"]
    assert len(done) == result.summary["completed"] > 0
    assert done[done["replica_id"].notna()].index.isin(sojourns.index).all()
    assert in_system == pytest.approx((sojourns.sum() + vain) / duration, rel=1e-9)
