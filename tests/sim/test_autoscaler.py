"""Replicas follow the load: when they come, when they go, and what happens to what they still have."""

from __future__ import annotations

from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import simpy

from simserve.engine.state import RequestTable
from simserve.metrics.gateway import replica_figures
from simserve.reference.fleet import Autoscaler as ReferenceAutoscaler
from simserve.scenario.reference_run import by_reference
from simserve.scenario.verify import compared
from simserve.sim.autoscaler import Autoscaler, EncoderAutoscaler, EncoderLives, Objective, Stabilization, replicas_for
from simserve.sim.control import AutoscalingSpec, Control, EncoderAutoscalingSpec, Limits, StartupSpec
from simserve.sim.lifecycle import READY, STARTING
from simserve.sim.records import COMPLETED, DRAINED, FAILED
from simserve.sim.simulate import Simulation, simulate
from simserve.validation import validate
from simserve.workload.dependencies import Dependencies
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_config, make_specs
from tests.sim.test_tasks import Task, random_task, tasks
from tests.theory.builders import make_deployment

RULES: dict[str, Any] = {
    "metric": "queue_depth",
    "target": 2,
    "max_replicas": 4,
    "interval": "5 s",
    "stabilization": "20 s",
    "grace_period": "8 s",
}


def scaled(
    specs: RequestSpecs, *, replicas: int = 1, startup: float = 10.0, seats: int = 1, **rules: Any
) -> Simulation:
    """Return a run that starts with ``replicas`` of one seat each; every step takes a second."""
    limits, task_limit = rules.pop("limits", Limits()), rules.pop("task_limit", None)
    spec = validate(AutoscalingSpec, {**RULES, **rules})
    control = Control(autoscaling=spec, startup_seconds=startup, limits=(limits,), task_limit=task_limit)
    config = make_config(max_num_seqs=seats, max_model_len=512, num_blocks=2000)
    return simulate(
        replace(make_deployment(config, constant_step_times(1.0, max(seats, 8)), replicas), control=control), specs
    )


def changes(run: Simulation) -> list[tuple[float, int, int]]:
    """Return when the number of replicas changed: seconds, launched, ready."""
    return [(row["time_s"], row["launched"], row["ready"]) for row in replica_figures(run)["timeline"]]


def test_a_start_takes_its_parts() -> None:
    """20 + 60 + 16 GB at 2 GB/s + 40 s."""
    assert StartupSpec().seconds(16e9) == 128.0


def test_what_was_asked_for_counts_for_exactly_the_window() -> None:
    """Kubernetes drops a recommendation that is from before ``now - window``; one from that instant still counts."""
    window = Stabilization(validate(AutoscalingSpec, {**RULES, "min_replicas": 1, "max_replicas": 9}))

    assert window.ask(12, 0.0) == (9, 9)
    assert window.ask(0, 20.0) == (1, 9)
    assert window.ask(2, 21.0) == (2, 2)


@pytest.mark.parametrize(("level", "wanted"), [(21.9, 10), (22.1, 12), (18.1, 10), (17.9, 9), (0.0, 1)])
def test_a_tenth_of_the_target_either_way_changes_nothing(level: float, wanted: int) -> None:
    """Ten replicas with a target of 2 each: a sum of 18 to 22 keeps ten (Kubernetes' tolerance, a share)."""
    assert replicas_for(level, 10, 2.0, is_used=True) == wanted


@pytest.mark.parametrize(("requests", "launched"), [(7, 3), (8, 4), (4, 2)])
def test_who_is_served_is_not_in_the_queue(requests: int, launched: int) -> None:
    """One has the seat: six wait for three replicas of two each."""
    assert changes(scaled(make_specs([0.0] * requests, 1, 20)))[1][:2] == (5.0, launched)


def test_who_waits_while_none_is_ready_counts_as_if_it_ran() -> None:
    """None is left when six come: one is launched at once, and while it starts, three are asked for, of two each."""
    run = scaled(make_specs([0.0, *[41.0] * 6], 1, 20), metric="running", min_replicas=0, stabilization="5 s")

    after = [(when, launched) for when, launched, _ in changes(run) if when > 41.0]
    assert after[:2] == [(45.0, 1), (50.0, 3)]


def test_those_that_start_are_given_back_first_then_those_with_the_least_to_do() -> None:
    """Of equals the newest."""
    states = [(READY, 5), (READY, 0), (STARTING, 0), (READY, 0), (STARTING, 9)]
    present: Any = [
        SimpleNamespace(number=number, state=state, load=load) for number, (state, load) in enumerate(states)
    ]

    least = Autoscaler._least_needed(cast("Autoscaler", None), present)

    assert [replica.number for replica in least] == [2, 4, 3, 1, 0]


@pytest.mark.parametrize("is_reference", [False, True])
def test_one_is_removed_only_if_the_others_would_have_less_than_at_the_last_miss(is_reference: bool) -> None:
    """Ten requests a replica at the miss: of three the others bear 9 each, 18 in all, and 19 are too many.

    The same by the plain simulator.
    """
    spec = validate(AutoscalingSpec, {**RULES, "metric": "slo", "target": 0.9})
    fleet: Any = SimpleNamespace(tell_ends=lambda _tell: None)
    surroundings: Any = SimpleNamespace(clock=simpy.Environment(), fleet=fleet)
    pool: Any = SimpleNamespace()
    nothing = ended(make_specs([0.0], 1, 1), Control(), [1.0], [1.0])
    scaler = Autoscaler(spec, simpy.Environment(), fleet, pool, nothing)
    plain = ReferenceAutoscaler(surroundings, spec, pool)

    def asked(ended: int, met: int, count: int, load: int) -> int:
        if is_reference:
            plain.num_ended, plain.num_met = ended, met
            return plain.asked_by_slo(count, load)
        scaler._num_ended, scaler._num_met = ended, met
        return scaler._asked_by_slo(count, load)

    assert asked(10, 8, 2, 20) == 3
    assert asked(10, 10, 3, 19) == 3
    assert asked(10, 10, 3, 18) == 2
    assert asked(10, 9, 3, 18) == 3
    assert asked(10, 10, 1, 0) == 1
    assert asked(0, 0, 3, 0) == 0


def encoders(metric: str, **columns: list[float]) -> EncoderAutoscaler:
    """Return the scaler of two encoder workers, free at 0 s unless said, that looks every ten seconds."""
    values = {"encoders": [0.0, 0.0, np.inf], "encoder_given": [0.0] * 3, "encoder_starts": [np.nan] * 4, **columns}
    clients: Any = SimpleNamespace(**{name: array("d", each) for name, each in values.items()})
    rules = {"metric": metric, "target": 1.0, "max_replicas": 3, "interval": "10 s"}
    return EncoderAutoscaler(validate(EncoderAutoscalingSpec, rules), 5.0, clients, simpy.Environment())


def test_an_encoder_is_busy_with_what_it_has_done_not_with_what_is_ahead() -> None:
    """At 10 s one has been given 14 s of work that lasts until 16 s, the other 3 s that are over: 0.8 and 0.3."""
    scaler = encoders("busy", encoders=[16.0, 5.0, np.inf], encoder_given=[14.0, 3.0, 0.0])

    assert scaler._level(scaler._workers, 10.0) == pytest.approx(0.8 + 0.3)


def test_no_encoder_is_busier_than_all_the_time() -> None:
    """Sums of seconds that lie a rounding above the interval ask for no further worker."""
    scaler = encoders("busy", encoders=[10.0, np.inf, np.inf], encoder_given=[np.nextafter(10.0, 11.0), 0.0, 0.0])

    assert scaler._level(scaler._workers, 10.0) == 1.0


def test_no_replica_is_busier_than_all_the_time() -> None:
    """Steps of 0.1 s add up to a rounding above an interval of 0.7 s; busy all the time asks for two at half of it."""
    times = constant_step_times(0.1)
    spec = validate(AutoscalingSpec, {**RULES, "metric": "busy", "target": 0.5, "interval": "0.7 s"})
    control = Control(autoscaling=spec, startup_seconds=1000.0)
    deployment = replace(make_deployment(make_config(), times, 1), control=control)

    run = simulate(deployment, make_specs([2.8, 2.8], 1, 20))

    assert changes(run)[1][:2] == (3.5, 2)


def test_parts_wait_for_an_encoder_until_they_begin() -> None:
    """Of those given, two begin after 10 s; one of them has begun by 12 s, and another is given meanwhile."""
    scaler = encoders("queue_depth", encoder_starts=[10.0, 12.0, 13.0, np.nan])

    assert scaler._level(scaler._workers, 10.0) == 2.0
    scaler._starts[3] = 15.0
    assert scaler._level(scaler._workers, 12.0) == 2.0


def test_an_encoder_that_is_given_back_is_paid_for_until_its_work_is_done() -> None:
    """At 10 s: one is free since 5 s and goes at once, the other has work until 16 s."""
    scaler = encoders("busy", encoders=[16.0, 5.0, np.inf])
    for worker in scaler._workers:
        scaler._give_back(worker, 10.0)

    assert scaler.lives.stopped_at.tolist() == [16.0, 10.0]
    assert scaler.lives.mean(8.0, 18.0) == pytest.approx((8.0 + 2.0) / 10.0)
    assert scaler.lives.most(20.0) == 2
    later = EncoderLives(launched_at=np.array([0.0, 9.0]), stopped_at=np.array([np.inf, 12.0]))
    assert later.mean(8.0, 18.0) == pytest.approx((10.0 + 3.0) / 10.0)


def ended(
    specs: RequestSpecs, control: Control, first: list[float], finish: list[float], failing: int | None = None
) -> Objective:
    """Return what is known of requests that arrived at 0 s and have ended, one of them perhaps without an answer."""
    table = SimpleNamespace(
        status=[FAILED if index == failing else COMPLETED for index in range(len(specs))],
        first_token_time=first,
        finish_time=finish,
        generated_tokens=specs.output_tokens.tolist(),
    )
    return Objective(control, specs, cast("RequestTable", table), np.zeros(len(specs)))


def test_an_objective_on_tpot_is_about_the_gaps_between_tokens() -> None:
    """Three tokens from 1 s to 2 s: 0.5 s a gap. A single token has none, and meets it."""
    specs = make_specs([0.0, 0.0], 4, [3, 1])
    for tpot, met in ((0.5, True), (0.45, False)):
        objective = ended(specs, Control(limits=(Limits(tpot=tpot),)), [1.0, 1.0], [2.0, 1.0])

        assert [objective.is_met(index) for index in range(2)] == [met, True]


@pytest.mark.parametrize(("limit", "failing", "in_time"), [(6.5, None, 1), (5.0, None, 0), (6.5, 1, 0)])
def test_a_task_ends_with_its_last_call_and_is_late_if_one_failed(
    limit: float, failing: int | None, in_time: int
) -> None:
    """Two calls, the later of which ends at 6 s; requests with negative sessions are no tasks."""
    specs = replace(
        make_specs([0.0] * 4, 4, 1),
        session=np.array([-2, 7, -1, 7]),
        dependencies=cast("Dependencies", object()),
    )
    objective = ended(specs, Control(task_limit=limit), [1.0] * 4, [1.0, 4.0, 1.0, 6.0], failing)

    assert [objective.count_task(index) for index in range(4)] == [(0, 0), (0, 0), (0, 0), (1, in_time)]


def test_replicas_come_a_start_up_after_the_queue_is_seen() -> None:
    """Seven wait at 5 s, two a replica: four are asked for and paid for, and ready at 15 s."""
    run = scaled(make_specs([0.0] * 8, 1, 20))

    assert changes(run)[:3] == [(0.0, 1, 1), (5.0, 4, 1), (15.0, 4, 4)]
    # What was routed stays where it is.
    assert (run.records.replica_id == 0).all()


def test_later_arrivals_go_to_the_new_replicas() -> None:
    """Three that arrive after the start find three empty replicas."""
    run = scaled(make_specs([0.0] * 8 + [16.0, 16.0, 16.0], 1, 20))

    assert sorted(run.records.replica_id[8:].tolist()) == [1, 2, 3]
    assert run.records.scheduled_time[8:].tolist() == [16.0] * 3


def test_replicas_go_when_the_load_has_been_low_for_the_window() -> None:
    """Four were asked for while the queue of eight long answers lasted; then one is left."""
    run = scaled(make_specs([0.0] * 8 + [400.0], 1, 20))

    assert changes(run)[-1][1:] == (1, 1)
    given_back = [time for time, launched, _ in changes(run) if launched < 4 and time > 5.0]
    assert min(given_back) >= 20.0
    figures = replica_figures(run)
    assert figures["peak"] == 4
    assert figures["mean"] < 2.5
    assert figures["gpu_hours"] == pytest.approx(figures["mean"] * run.end_time / 3600)


def test_a_replica_drains_and_what_takes_too_long_is_cut_off() -> None:
    """Scaled down while it has an answer of 300 s: eight seconds later that is lost; a short one is finished."""
    specs = make_specs([0.0, 0.5, 1.0, 1.5, 60.0], 1, [300, 300, 2, 2, 1])
    run = scaled(specs, replicas=2, seats=4, metric="running", target=4, min_replicas=1)

    lost = run.records.reason == DRAINED
    assert np.count_nonzero(lost) == 1
    assert run.records.status[lost].tolist() == [FAILED]
    assert run.records.finish_time[lost][0] - changes(run)[1][0] <= 1.0
    assert (run.records.status[~lost] == COMPLETED).all()


def test_nothing_runs_at_zero_and_the_first_request_waits_for_a_start() -> None:
    """Scaled to zero after the first; the second waits for the next look and a start of ten seconds."""
    run = scaled(make_specs([0.0, 203.0], 1, 1), min_replicas=0)

    assert run.records.scheduled_time[1] == 215.0
    assert (0, 0) in [(launched, ready) for _, launched, ready in changes(run)]


@pytest.mark.parametrize(
    ("metric", "target", "most"),
    [("running", 2, 4), ("kv_usage", 0.001, 4), ("busy", 0.5, 2), ("queue_depth", 100, 1)],
)
def test_each_metric_asks_for_its_own_number(metric: str, target: float, most: int) -> None:
    """Ten requests run on one replica: five replicas' worth of running, all the time busy, no queue."""
    run = scaled(make_specs([0.0] * 10, 4, 12), seats=16, metric=metric, target=target)

    assert replica_figures(run)["peak"] == most


@pytest.mark.parametrize(("running", "most"), [(21, 1), (23, 2)])
def test_a_tenth_from_the_target_changes_nothing(running: int, most: int) -> None:
    """Kubernetes' tolerance: 21 of 20 are left alone, 23 are not."""
    run = scaled(make_specs([0.0] * running, 4, 12), seats=32, metric="running", target=20)

    assert replica_figures(run)["peak"] == most


def test_the_objective_asks_for_more_while_it_is_missed() -> None:
    """First tokens later than 3 s: one replica more at every look in which less than all made it."""
    specs = make_specs([2.0 * index for index in range(60)], 1, 6)
    run = scaled(specs, metric="slo", target=0.9, limits=Limits(ttft=3.0))

    growth = [launched for time, launched, _ in changes(run) if time > 0]
    assert growth[:3] == [2, 3, 4]
    assert run.records.scheduled_time[-1] - run.records.arrival_time[-1] <= 1.0


@pytest.mark.parametrize(("limit", "peak"), [(3.0, 4), (30.0, 1)])
def test_the_objective_knows_the_first_visible_token(limit: float, peak: int) -> None:
    """Of six tokens, one a second, four are hidden: the first token comes in time, the first visible one may not."""
    specs = replace(make_specs([8.0 * index for index in range(20)], 1, 6), thinking_tokens=np.full(20, 4))
    run = scaled(specs, metric="slo", target=0.9, limits=Limits(ttft=3.0, ttfvt=limit))

    assert replica_figures(run)["peak"] == peak


@pytest.mark.parametrize(("limit", "peak"), [(5.0, 4), (30.0, 1)])
def test_the_objective_knows_tasks(limit: float, peak: int) -> None:
    """Tasks of two calls of three seconds: one that takes longer than its limit is a miss when it ends."""
    graph: Task = [([], 3, 0.0), ([0], 3, 0.0)]
    specs = tasks([graph] * 20, [9.0 * index for index in range(20)])
    run = scaled(specs, metric="slo", target=0.9, task_limit=limit)

    assert replica_figures(run)["peak"] == peak


@pytest.mark.parametrize("task_limit", [None, 4.5])
def test_the_reference_counts_first_visible_tokens_and_tasks_alike(task_limit: float | None) -> None:
    """Random tasks, some with a prompt that is too long, whose calls think: the same replicas at the same times."""
    random = np.random.default_rng(5)
    specs = tasks([random_task(random) for _ in range(12)], [2.017 * index for index in range(12)])
    prompts = np.where(random.random(len(specs)) < 0.03, 5000, specs.prompt_tokens)
    specs = replace(specs, prompt_tokens=prompts, thinking_tokens=specs.output_tokens // 2)
    spec = validate(AutoscalingSpec, {**RULES, "metric": "slo", "target": 0.9, "interval": "4.9 s"})
    limits = Limits(ttft=2.5, ttfvt=2.9)
    control = Control(autoscaling=spec, startup_seconds=5.03, limits=(limits,), task_limit=task_limit)
    config = make_config(max_num_seqs=2, max_model_len=512, num_blocks=2000, frontend_latency=0.0517)
    deployment = replace(make_deployment(config, constant_step_times(0.2017, 8), 1), control=control)

    run = simulate(deployment, specs)

    assert replica_figures(run)["peak"] > 1
    assert compared(by_reference(deployment, specs), run.records).differing == {}
