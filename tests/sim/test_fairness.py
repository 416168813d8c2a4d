"""Whose turn it is where classes are tenants: service by share, turns that are not saved up, priority of nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.metrics.summary import summarize
from simserve.sim.control import AdmissionSpec, Control, FairnessSpec, Limits, RegionsSpec, UpdateSpec
from simserve.sim.pools import PoolSetup
from simserve.sim.records import COMPLETED, DEADLINE, REASONS, REJECTED
from simserve.sim.simulate import Simulation, simulate
from simserve.validation import validate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_config, make_specs
from tests.metrics.builders import make_facts
from tests.theory.builders import make_deployment


def taking_turns(
    specs: RequestSpecs,
    replicas: int = 1,
    admission_control: dict[str, Any] | None = None,
    limits: tuple[Limits, ...] = (Limits(), Limits()),
    **spec: Any,
) -> Simulation:
    """Return a run of replicas of one seat, a second a step, behind fair turns."""
    control = Control(
        limits=limits,
        fairness=validate(FairnessSpec, {"shares": {"a": 1, "b": 1}, **spec}),
        admission=None if admission_control is None else validate(AdmissionSpec, admission_control),
    )
    deployment = make_deployment(make_config(max_num_seqs=1), constant_step_times(1.0), replicas)
    return simulate(replace(deployment, control=control), specs)


def tenants(arrivals: list[float], owners: str, outputs: int | list[int] = 5, **options: Any) -> RequestSpecs:
    """Return requests of the tenants a and b."""
    classes = tuple(ClassSpec(name=name, share=0.5, **options) for name in ("a", "b"))
    number = np.array(["ab".index(owner) for owner in owners], dtype=np.int16)
    return replace(make_specs(arrivals, 4, outputs), classes=classes, request_class=number)


def order(run: Simulation) -> str:
    """Return whose requests were begun, in order."""
    assert run.records.request_class is not None
    turns = np.argsort(run.records.scheduled_time, kind="stable")
    return "".join("ab"[number] for number in run.records.request_class[turns])


def test_a_tenant_that_comes_late_does_not_wait_for_all_that_came_before() -> None:
    """Six of a come first; b's two take every second turn, where first come, first served puts them last."""
    run = taking_turns(tenants([0.0] * 6 + [0.1, 0.2], "aaaaaabb"))

    assert order(run) == "ababaaaa"


def test_shares_are_of_tokens_while_both_wait() -> None:
    """Three to one: of the first forty requests, thirty are of the tenant with the larger share."""
    run = taking_turns(tenants([0.0] * 160, "ab" * 80), shares={"a": 3, "b": 1})

    assert order(run)[:40].count("a") == pytest.approx(30, abs=1)


def test_long_answers_are_counted() -> None:
    """Answers of 41 tokens against 5, with prompts of 4: (4 + 82) to (4 + 10), so about 6 short ones for a long.

    A generated token counts as two of a prompt (Sheng et al., section 3: w_p = 1, w_q = 2); as one, it would be 5.
    """
    outputs = [41, 5] * 120
    run = taking_turns(tenants([0.0] * 240, "ab" * 120, outputs))

    begun = order(run)[:100]
    assert begun.count("b") / begun.count("a") == pytest.approx(86 / 14, rel=0.1)


def test_turns_are_not_saved_up() -> None:
    """b is away while a uses the replica for a minute; when b comes, they take turns, and b does not catch up."""
    early, late = [0.0] * 30, [60.0] * 10
    run = taking_turns(tenants(early + late, "a" * 30 + "b" * 10))

    after = order(run)[13:25]
    assert "bbb" not in after
    assert after.count("b") == pytest.approx(6, abs=1)


def test_nobody_waits_while_there_is_room() -> None:
    """Work-conserving: two replicas and one tenant give what they give without fairness."""
    specs = tenants([0.5 * index for index in range(40)], "a" * 40)
    fair = taking_turns(specs, replicas=2)
    deployment = make_deployment(make_config(max_num_seqs=1), constant_step_times(1.0), 2)
    plain = simulate(replace(deployment, routing="least_outstanding"), specs)

    assert sorted(fair.records.finish_time) == pytest.approx(sorted(plain.records.finish_time))


def test_the_queue_of_a_tenant_is_its_own_limit() -> None:
    """a floods and is refused; b, with nothing waiting, is let in."""
    run = taking_turns(tenants([0.0] * 8 + [0.5], "a" * 8 + "b"), admission_control={"max_queue": 3})

    assert [REASONS[reason] for reason in run.records.reason] == [""] * 4 + ["queue_full"] * 4 + [""]


def test_who_hangs_up_in_front_leaves_the_queue() -> None:
    """With a patience of 7 s, of four requests of 5 s each only the first is answered in time."""
    run = taking_turns(tenants([0.0] * 4, "abab", timeout="7 s"))

    assert run.records.status.tolist() == [0, 2, 2, 2]
    assert run.records.finish_time.tolist() == [5.0, 7.0, 7.0, 7.0]


def test_the_summary_says_who_got_what() -> None:
    """Service by class adds up to one; the one with the larger share waits less."""
    run = taking_turns(tenants([0.0] * 40, "ab" * 20), shares={"a": 3, "b": 1})
    figures = summarize(run, make_facts())["simserve"]["fairness"]

    assert figures["a"]["service_share"] + figures["b"]["service_share"] == pytest.approx(1)
    assert figures["a"]["mean_wait_s"] < figures["b"]["mean_wait_s"]


def test_a_tenant_whose_turns_come_too_slowly_is_told_at_once() -> None:
    """One seat, answers of 5 s, turns by turns: of ten requests of a flood, those that would wait 20 s are refused."""
    arrivals = [0.0, *np.arange(1.0, 21.0, 2.0).tolist(), 30.0]
    specs = tenants(arrivals, "a" + 10 * "b" + "a")
    admission_control = {"deadline_aware": True}
    limits = (Limits(ttft=100.0), Limits(ttft=20.0))
    run = taking_turns(specs, admission_control=admission_control, limits=limits, max_outstanding=1)
    patient = taking_turns(
        specs,
        admission_control=admission_control,
        limits=(Limits(ttft=100.0), Limits(ttft=1000.0)),
        max_outstanding=1,
    )

    refused = run.records.status == REJECTED
    assert 0 < refused.sum() < 10
    assert set(run.records.reason[refused]) == {DEADLINE}
    assert not refused[[0, 11]].any()
    assert (patient.records.status == COMPLETED).all()
    # Who is let in waits about as long as it may, who is not would have waited longer.
    waits = patient.records.scheduled_time - patient.records.arrival_time
    assert waits[refused].min() > 20.0


def test_who_waits_goes_to_the_next_region_as_soon_as_its_own_is_drained() -> None:
    """A replica that drains frees nothing, yet it is no longer the nearest: the turn is taken then, not at an end."""
    config, times = make_config(max_num_seqs=1), constant_step_times(1.0)
    deployment = make_deployment(config, times, 1)
    pools = tuple(
        PoolSetup(name=name, engine=config, step_times=times, priced=deployment.priced, num_replicas=1, region=name)
        for name in ("eu", "us")
    )
    startup = {"schedule": "50 s", "image": "0 s", "load_bandwidth": "1 GB/s", "engine": "0 s"}
    update = {"at": "2.5 s", "pool": "eu", "max_unavailable": 1, "grace_period": "100 s", "startup": startup}
    control = Control(
        limits=(Limits(), Limits()),
        fairness=validate(FairnessSpec, {"shares": {"a": 1, "b": 1}}),
        regions=validate(RegionsSpec, {"latency": {"eu": {"us": "0.25 s"}}, "within": "0 s"}),
        updates=(validate(UpdateSpec, update),),
    )
    run = simulate(replace(deployment, pools=pools, control=control), tenants([0.0, 0.5], "ab", 9, region="eu"))

    assert run.records.replica_id.tolist() == [0, 1]
    assert run.records.scheduled_time.tolist() == [0.0, 2.75]
