"""What stands in front of the replicas: the same to the bit on every plane."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from simserve.sim.acceleration import Accelerate
from simserve.sim.control import Control
from simserve.sim.pools import PoolSetup
from simserve.sim.region_spec import RegionsSpec
from simserve.sim.simulate import Deployment
from simserve.validation import validate
from simserve.workload.requests import RequestSpecs
from tests.builders import affine_step_times, make_config, make_specs
from tests.fuzzing import examples
from tests.properties import test_conservation
from tests.properties.test_conservation import CHECKS, controls, traffic
from tests.properties.test_fleet_conservation import Cluster, clusters, requests
from tests.sim.test_attended import assert_same_runs, is_served_plainly, needs_numba, served
from tests.theory.builders import make_deployment

ANY = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    phases=(Phase.generate,),
    suppress_health_check=CHECKS,
)
AT_LENGTH = settings(ANY, max_examples=examples(80))
TIMES = affine_step_times(step_seconds=0.2, token_seconds=0.01, decode_context_seconds=0.001)


def deployment_of(control: Control, is_ahead: bool, num_ranks: int = 1) -> Deployment:
    """Return two replicas with these rules, of a pool of each size where the router has rules."""
    config = make_config(
        async_scheduling=is_ahead, frontend_latency=0.05, enable_prefix_caching=True, data_parallel_size=num_ranks
    )
    deployment = make_deployment(config, TIMES, 2)
    pools = tuple(test_conservation.pools_of(control, config, TIMES)) if control.routing.rules else ()
    return replace(deployment, control=control, pools=pools)


def pools_of(cluster: Cluster) -> Deployment:
    """Return a cluster as far as the plain plane and compiled code know it."""
    control = cluster.control
    if control.disaggregation is not None:
        control = replace(control, faults=(), updates=(), liveness=None)
    setups = tuple(
        replace(
            each,
            engine=replace(each.engine, num_offload_blocks=0),
            autoscaling=None if control.disaggregation is not None else each.autoscaling,
        )
        for each in cluster.setups
    )
    return replace(make_deployment(setups[0].engine, TIMES, 1), control=control, pools=setups)


def assert_alike(deployment: Deployment, specs: RequestSpecs, *planes: Accelerate | None) -> None:
    """Assert that a run is the same on two planes."""
    assert is_served_plainly(deployment)
    expected, actual = (served(deployment, specs, how) for how in planes)
    assert_same_runs(expected, actual)
    assert expected.front == actual.front
    assert expected.transfers == actual.transfers


@given(traffic(), controls(), st.booleans(), st.sampled_from([1, 1, 2]))
@ANY
def test_the_gateway_is_that_of_the_managed_plane(
    specs: RequestSpecs, control: Control, is_ahead: bool, num_ranks: int
) -> None:
    """Any cache, API, rules, fair turns, autoscaler and faults."""
    assume(control.has_front)

    assert_alike(deployment_of(control, is_ahead, num_ranks), specs, None, "off")


@needs_numba
@given(traffic(), controls(), st.booleans(), st.sampled_from([1, 1, 2]))
@ANY
def test_the_gateway_runs_compiled_as_it_is(
    specs: RequestSpecs, control: Control, is_ahead: bool, num_ranks: int
) -> None:
    """Any cache, API, rules, fair turns, autoscaler and faults."""
    assume(control.has_front)

    assert_alike(deployment_of(control, is_ahead, num_ranks), specs, "off", "on")


@given(requests(), clusters())
@ANY
def test_pools_are_those_of_the_managed_plane(specs: RequestSpecs, cluster: Cluster) -> None:
    """Any pools, in regions or not, with drafts, probes, updates and faults."""
    assert_alike(pools_of(cluster), specs, None, "off")


@needs_numba
@given(requests(), clusters())
@ANY
def test_pools_run_compiled_as_they_are(specs: RequestSpecs, cluster: Cluster) -> None:
    """Any pools, in regions or not, with drafts, probes, updates and faults."""
    assert_alike(pools_of(cluster), specs, "off", "on")


@pytest.mark.slow
@needs_numba
@given(requests(), clusters())
@AT_LENGTH
def test_pools_are_the_same_on_all_planes_at_length(specs: RequestSpecs, cluster: Cluster) -> None:
    """The same as above, with more examples."""
    deployment = pools_of(cluster)

    assert_alike(deployment, specs, None, "off")
    assert_alike(deployment, specs, "off", "on")


@pytest.mark.parametrize("how", ["off", pytest.param("on", marks=needs_numba)])
def test_the_way_back_counts_where_nobody_hangs_up(how: Accelerate) -> None:
    """Regions and nothing else: each answer is as long on its way as on the managed plane."""
    specs = make_specs([0.0, 0.1, 0.2, 0.9], 4, [3, 5, 2, 4])
    regions = validate(RegionsSpec, {"clients": {"eu": 0.5, "us": 0.5}, "latency": {"eu": {"us": "0.3 s"}}})
    deployment = make_deployment(make_config(), TIMES, 1)
    pools = tuple(
        PoolSetup(name=name, engine=deployment.engine, step_times=TIMES, priced=None, num_replicas=1, region=name)
        for name in ("eu", "us")
    )

    assert_alike(replace(deployment, control=Control(regions=regions), pools=pools), specs, None, how)
