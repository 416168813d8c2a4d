"""Cancelled requests: random replicas whose clients hang up, against the walker; and what a cancel leaves behind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simserve.engine.kernel import cancel, complete, plan, submit
from simserve.engine.kv import kv_share
from simserve.engine.state import INFINITY, Replica, RequestTable
from simserve.sim.simulate import simulate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.requests import RequestSpecs
from tests.agreement import NEAR, assert_same_records, assert_same_totals, closest_tie
from tests.builders import constant_step_times, make_config, make_specs
from tests.engine.strategies import Case, cases, pressed_cases, speculative_cases
from tests.fuzzing import examples
from tests.theory.builders import make_deployment
from tests.walker import Walk

LIMIT_UNIT = 11.0**0.5 / 4.0
CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def with_limits(specs: RequestSpecs, limits: list[float]) -> RequestSpecs:
    """Return the requests, each a class of its own whose client waits so long."""
    classes = tuple(
        ClassSpec(name=f"c{number}", share=1 / len(limits), timeout=f"{limit} s") for number, limit in enumerate(limits)
    )
    return replace(specs, classes=classes, request_class=np.arange(len(specs), dtype=np.int16))


@given(st.one_of(cases(), pressed_cases(), speculative_cases()), st.data())
@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_clients_that_hang_up_agree_with_the_walker(case: Case, data: st.DataObject) -> None:
    """Waiting, prefilling or decoding, whatever the scheduler: counts equal, times to 1e-9."""
    assume(case.config.batching == "continuous")
    assume(case.config.kv_allocation != "none")
    assume(case.specs.concurrency is None)
    units = data.draw(st.lists(st.integers(1, 40), min_size=len(case.specs), max_size=len(case.specs)))
    limits = [unit * LIMIT_UNIT for unit in units]
    outcome = Walk(case.config, case.times, with_limits(case.specs, limits)).outcome()
    assume("timed_out" in outcome.status)
    assume(outcome.closest_estimate > NEAR)
    assume(closest_tie(outcome, case.config, case.specs) > NEAR)
    deadlines = case.specs.arrival_time + np.array(limits)
    assume(np.abs(np.array(outcome.step_ends)[:, None] - deadlines).min() > NEAR)

    actual = simulate(make_deployment(case.config, case.times, 1), with_limits(case.specs, limits))

    assert_same_records(outcome, actual)
    assert_same_totals(outcome, actual)


def make_replica(**overrides: object) -> Replica:
    """Return an idle replica whose steps take a second."""
    return Replica(0, make_config(**overrides), constant_step_times(1.0).as_lists())


def table_of(specs: RequestSpecs, replica: Replica) -> RequestTable:
    """Return the requests as a replica sees them."""
    return RequestTable(specs.prompt_tokens, specs.output_tokens, specs.max_tokens, replica.config)


def test_what_a_cancelled_request_held_is_free() -> None:
    """A prefilling, a decoding and a waiting one go; the replica is as empty as at first."""
    replica = make_replica(max_num_seqs=2, max_num_batched_tokens=8)
    requests = table_of(make_specs([0.0] * 3, [4, 40, 4], [20, 4, 4]), replica)
    for index in range(3):
        submit(replica, requests, index, 0.0)
    plan(replica, requests)
    complete(replica, requests)
    assert list(replica.prefilling) == [1]
    assert list(replica.waiting) == [2]

    for index in (1, 0, 2):
        cancel(replica, requests, index)

    assert replica.free_blocks == replica.num_blocks
    assert (replica.num_running, replica.num_outstanding, replica.num_decoding) == (0, 0, 0)
    assert sum(replica.residues) == 0
    assert requests.generated_tokens[0] == 1
    plan(replica, requests)
    assert replica.end_time == INFINITY


def test_kv_use_rises_inside_a_leap() -> None:
    """A request of 4 + 40 tokens on 32 blocks of 4: half way through its leap it holds about half of what it will."""
    replica = make_replica()
    requests = table_of(make_specs([0.0], 4, 40), replica)
    submit(replica, requests, 0, 0.0)
    plan(replica, requests)
    complete(replica, requests)
    plan(replica, requests)

    shares = [kv_share(replica, time) for time in (1.0, 20.5, 40.0)]

    assert shares == sorted(shares)
    assert shares[0] == 4 / 128
    assert abs(shares[2] - 43 / 128) < 2 / 128
