"""What stands in front of the replicas: the same to the bit on every plane."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from simserve.sim.acceleration import Accelerate
from simserve.sim.control import Control, RegionsSpec
from simserve.sim.pools import PoolSetup
from simserve.sim.simulate import Deployment
from simserve.validation import validate
from simserve.workload.requests import RequestSpecs
from tests.builders import affine_step_times, make_config, make_specs
from tests.fuzzing import examples
from tests.properties import test_conservation
from tests.properties.test_conservation import CHECKS, controls, traffic
from tests.properties.test_fleet_conservation import Cluster, clusters, requests
from tests.sim.test_fleet_run import assert_same_runs, needs_numba, served
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
    """Return the deployment of a cluster."""
    return replace(make_deployment(cluster.setups[0].engine, TIMES, 1), control=cluster.control, pools=cluster.setups)


def assert_alike(deployment: Deployment, specs: RequestSpecs) -> None:
    """Assert that a run is the same interpreted and compiled."""
    expected, actual = served(deployment, specs, "off"), served(deployment, specs, "on")
    assert_same_runs(expected, actual)
    assert expected.front == actual.front
    assert expected.transfers == actual.transfers


@needs_numba
@given(traffic(), controls(), st.booleans(), st.sampled_from([1, 1, 2]))
@ANY
def test_the_gateway_runs_compiled_as_it_is(
    specs: RequestSpecs, control: Control, is_ahead: bool, num_ranks: int
) -> None:
    """Any cache, API, rules, fair turns, autoscaler and faults."""
    assume(control.has_gateway)

    assert_alike(deployment_of(control, is_ahead, num_ranks), specs)


@needs_numba
@given(requests(), clusters())
@ANY
def test_pools_run_compiled_as_they_are(specs: RequestSpecs, cluster: Cluster) -> None:
    """Any pools, in regions or not, with drafts, probes, updates and faults."""
    assert_alike(pools_of(cluster), specs)


@pytest.mark.slow
@needs_numba
@given(requests(), clusters())
@AT_LENGTH
def test_pools_run_compiled_as_they_are_at_length(specs: RequestSpecs, cluster: Cluster) -> None:
    """The same as above, with more examples."""
    assert_alike(pools_of(cluster), specs)


@pytest.mark.parametrize("how", ["off", pytest.param("on", marks=needs_numba)])
def test_the_way_back_counts_where_nobody_hangs_up(how: Accelerate) -> None:
    """Regions and nothing else: who is elsewhere hears of its answer two ways later than who is where it is served."""
    specs = make_specs([0.0, 20.0, 40.0], 4, [3, 5, 2])
    deployment = make_deployment(make_config(), TIMES, 1)
    pool = PoolSetup(name="a", engine=deployment.engine, step_times=TIMES, priced=None, num_replicas=1, region="eu")
    regions = [
        validate(RegionsSpec, {"clients": {each: 1.0}, "latency": {"eu": {"us": "0.3 s"}}}) for each in ("eu", "us")
    ]

    near, far = (
        served(replace(deployment, control=Control(regions=each), pools=(pool,)), specs, how).records.finish_time
        for each in regions
    )

    ways = [each.one_way(home, "eu") for each, home in zip(regions, ("eu", "us"), strict=True)]
    assert ways[0] is not None
    assert ways[1] is not None
    assert far - near == pytest.approx([2 * (ways[1] - ways[0])] * 3)
    assert ways[1] - ways[0] > 0.25
