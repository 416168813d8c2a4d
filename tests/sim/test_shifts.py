"""Replicas that come and go on the event plane: what the managed one does, interpreted and compiled, to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simserve.engine.compiled import fields as flat
from simserve.engine.presence import Presence
from simserve.sim.autoscaling_spec import AutoscalingSpec
from simserve.sim.liveness_spec import LivenessSpec
from simserve.sim.simulate import Deployment
from simserve.sim.update_spec import UpdateSpec
from simserve.validation import validate
from simserve.workload.requests import RequestSpecs
from tests.builders import make_faults
from tests.engine.strategies import Case
from tests.engine.test_compiled import assert_same_values, is_covered
from tests.engine.test_fuzz import CHECKS
from tests.sim.test_attended import (
    KINDS,
    assert_same_runs,
    deployments,
    is_served_plainly,
    needs_numba,
    served,
)

STARTUP: Mapping[str, Any] = {"schedule": "1 s", "image": "0 s", "engine": "0.7 s"}
"""With weights of no bytes."""


@st.composite
def seconds(draw: st.DrawFn, most: int = 15) -> str:
    """Draw a time that may coincide with the end of a step, or hardly ever does."""
    return f"{draw(st.integers(0, most)) + draw(st.sampled_from([0.0, 0.0, 0.3713]))} s"


@st.composite
def scalings(draw: st.DrawFn) -> AutoscalingSpec | None:
    """Draw how the number of replicas follows the load."""
    if draw(st.booleans()):
        return None
    metric = draw(st.sampled_from(["queue_depth", "running", "kv_usage", "busy", "slo"]))
    share = metric in ("kv_usage", "busy", "slo")
    rules = {
        "metric": metric,
        "target": draw(st.sampled_from([0.2, 0.9] if share else [0.4, 2.0])),
        "min_replicas": draw(st.integers(0, 1)),
        "max_replicas": draw(st.integers(1, 4)),
        "interval": draw(st.sampled_from(["1 s", "2.3 s"])),
        "stabilization": draw(st.sampled_from(["0 s", "5 s"])),
        "grace_period": draw(st.sampled_from(["0 s", "1.9 s", "30 s"])),
    }
    return validate(AutoscalingSpec, rules)


@st.composite
def faults(draw: st.DrawFn) -> dict[str, Any]:
    """Draw what goes wrong, at a time or at random."""
    kind = draw(st.sampled_from(["replica", "node", "spot", "slow", "black_hole"]))
    fault: dict[str, Any] = {"kind": kind}
    is_timed = draw(st.booleans())
    if is_timed:
        fault |= {"at": draw(seconds()), "duration": draw(st.sampled_from(["0.02 s", "1 s", "4.1 s", "30 s"]))}
        fault["node" if kind == "node" else "replica"] = draw(st.integers(0, 2))
    else:
        fault |= {"mtbf": draw(st.sampled_from(["2 s", "9 s"])), "mttr": draw(st.sampled_from(["0.1 s", "3 s"]))}
    if kind == "slow":
        return fault | {"factor": draw(st.sampled_from([1.5, 4.0]))}
    if kind == "spot":
        fault["notice"] = draw(st.sampled_from(["0 s", "2 s", "20 s"]))
    if kind == "black_hole":
        depth = draw(st.sampled_from(["deep", "shallow"]))
        fault["probe"] = {"depth": depth, "period": "1.1 s", "threshold": draw(st.integers(1, 2))}
    # Faults at random could send a request back for ever.
    return fault | {"in_flight": draw(st.sampled_from(["lost", "retry"])) if is_timed else "lost"}


@st.composite
def shifting(draw: st.DrawFn, kind: str) -> tuple[Deployment, RequestSpecs]:
    """Draw any run of the event plane, and what changes its replicas."""
    deployment, specs = draw(deployments(kind))
    assert deployment.control is not None
    liveness, updates = None, []
    if draw(st.integers(0, 2)) == 0:
        rules = {"period": "1.5 s", "timeout": "0.6 s", "threshold": draw(st.integers(1, 2)), "restart": "1 s"}
        liveness = validate(LivenessSpec, rules)
    for _ in range(draw(st.integers(0, 2))):
        unavailable = draw(st.integers(0, 2))
        surge = draw(st.integers(0 if unavailable else 1, 2))
        rules = {"at": draw(seconds()), "max_unavailable": unavailable, "max_surge": surge, "startup": STARTUP}
        updates.append(validate(UpdateSpec, rules | {"grace_period": draw(st.sampled_from(["0 s", "2 s", "30 s"]))}))
    control = replace(
        deployment.control,
        autoscaling=None if deployment.pools else draw(scalings()),
        startup_seconds=draw(st.sampled_from([0.0, 1.7])),
        replicas_per_node=draw(st.integers(1, 2)),
        faults=make_faults(*draw(st.lists(faults(), max_size=3))),
        liveness=liveness,
        updates=tuple(updates),
    )
    pools = tuple(
        replace(each, autoscaling=draw(scalings()), startup_seconds=draw(st.sampled_from([0.0, 1.7])))
        for each in deployment.pools
    )
    scaled = [control.autoscaling, *(each.autoscaling for each in pools)]
    assume(control.changes_fleet or any(each is not None for each in scaled))
    return replace(deployment, control=control, pools=pools), specs


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[*CHECKS, HealthCheck.too_slow])
def test_replicas_come_and_go_as_on_the_managed_plane(kind: str, data: st.DataObject) -> None:
    """Any autoscaler, faults, probes and updates over any run: every record, attempt and life is the same."""
    deployment, specs = data.draw(shifting(kind))
    assert is_served_plainly(deployment)

    assert_same_runs(served(deployment, specs, None), served(deployment, specs, "off"))


@needs_numba
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[*CHECKS, HealthCheck.too_slow])
def test_replicas_come_and_go_in_compiled_code(kind: str, data: st.DataObject) -> None:
    """The same cases, compiled: every record and every total is the same, to the bit."""
    deployment, specs = data.draw(shifting(kind))
    assume(is_covered(Case(deployment.engine, deployment.priced.step_times, specs)))

    interpreted, compiled = (served(deployment, specs, how) for how in ("off", "on"))

    assert_same_runs(interpreted, compiled)
    for each in fields(interpreted.totals):
        assert_same_values(each.name, getattr(interpreted.totals, each.name), getattr(compiled.totals, each.name))


def test_every_field_has_a_place_in_flat_memory() -> None:
    """What a plane knows of replicas that come and go, compiled code sees."""
    assert set(flat.PRESENCE.fields) == set(Presence.__slots__)
