"""What stands in front of the replicas: the same to the bit on every plane."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simserve.engine.compiled.run import reason_against
from simserve.sim.control import Control
from simserve.sim.simulate import Deployment
from simserve.workload.requests import RequestSpecs
from tests.builders import affine_step_times, make_config
from tests.properties import test_conservation
from tests.properties.test_conservation import CHECKS, controls, traffic
from tests.properties.test_fleet_conservation import Cluster, clusters, requests
from tests.sim.test_attended import assert_same_runs, is_served_plainly, needs_numba, served
from tests.theory.builders import make_deployment

from hypothesis import Phase
PHASES = (Phase.explicit, Phase.generate)
TIMES = affine_step_times(step_seconds=0.2, token_seconds=0.01, decode_context_seconds=0.001)


def deployment_of(control: Control, is_ahead: bool) -> Deployment:
    """Return two replicas with these rules, of a pool of each size where the router has rules."""
    config = make_config(async_scheduling=is_ahead, frontend_latency=0.05, enable_prefix_caching=True)
    deployment = make_deployment(config, TIMES, 2)
    pools = tuple(test_conservation.pools_of(control, config, TIMES)) if control.routing.rules else ()
    return replace(deployment, control=control, pools=pools)


@given(traffic(), controls(), st.booleans())
@settings(max_examples=300, report_multiple_bugs=False, phases=PHASES, deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_gateway_is_that_of_the_managed_plane(specs: RequestSpecs, control: Control, is_ahead: bool) -> None:
    """Any cache, API, rules, fair turns, autoscaler and faults."""
    deployment = deployment_of(control, is_ahead)
    assume(control.has_front)
    assert is_served_plainly(deployment)
    expected, actual = served(deployment, specs, None), served(deployment, specs, "off")
    assert_same_runs(expected, actual)
    assert expected.front == actual.front


@needs_numba
@given(traffic(), controls(), st.booleans())
@settings(max_examples=300, report_multiple_bugs=False, phases=PHASES, deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_the_gateway_runs_compiled_as_it_is(specs: RequestSpecs, control: Control, is_ahead: bool) -> None:
    """Any cache, API, rules, fair turns, autoscaler and faults."""
    deployment = deployment_of(control, is_ahead)
    assume(control.has_front)
    expected, actual = served(deployment, specs, "off"), served(deployment, specs, "on")
    assert_same_runs(expected, actual)
    assert expected.front == actual.front


@given(requests(), clusters())
@settings(max_examples=300, report_multiple_bugs=False, phases=PHASES, deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_pools_are_those_of_the_managed_plane(specs: RequestSpecs, cluster: Cluster) -> None:
    """Any pools, in regions or not, with drafts, probes, updates and faults."""
    first = cluster.setups[0]
    deployment = replace(make_deployment(first.engine, TIMES, 1), control=cluster.control, pools=cluster.setups)
    assume(is_served_plainly(deployment))
    expected, actual = served(deployment, specs, None), served(deployment, specs, "off")
    assert_same_runs(expected, actual)
    assert expected.front == actual.front


@needs_numba
@given(requests(), clusters())
@settings(max_examples=300, report_multiple_bugs=False, phases=PHASES, deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_pools_run_compiled_as_they_are(specs: RequestSpecs, cluster: Cluster) -> None:
    """Any pools, in regions or not, with drafts, probes, updates and faults."""
    first = cluster.setups[0]
    deployment = replace(make_deployment(first.engine, TIMES, 1), control=cluster.control, pools=cluster.setups)
    assume(is_served_plainly(deployment))
    assume(not any(reason_against(each.engine, keeps_steps=False) for each in cluster.setups))
    expected, actual = served(deployment, specs, "off"), served(deployment, specs, "on")
    assert_same_runs(expected, actual)
    assert expected.front == actual.front
