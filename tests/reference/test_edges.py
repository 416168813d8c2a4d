"""More rules of the cluster at their edges, on the plane and on the reference alike; every step takes a second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.sim.control import (
    AdmissionSpec,
    AutoscalingSpec,
    Control,
    FairnessSpec,
    LivenessSpec,
    OverflowSpec,
    RoutingSpec,
    UpdateSpec,
)
from simserve.sim.recorder import FleetTimeline
from simserve.sim.records import SERVERS
from simserve.sim.simulate import simulate
from simserve.validation import validate
from simserve.workload.prefixes import system_prompts
from simserve.workload.requests import RequestSpecs
from tests.builders import make_faults, make_specs
from tests.reference.test_rules import both, deployed, in_classes, reasons

AT_ONCE = {"schedule": "0 s", "image": "0 s", "engine": "0 s", "load_bandwidth": "1 GB/s"}


@pytest.mark.parametrize(("timeout", "tokens"), [("0.75 s", 0), ("1.25 s", 1), ("2.25 s", 3), ("3.75 s", 6)])
def test_of_an_answer_from_elsewhere_that_is_cut_the_first_token_counts(timeout: str, tokens: int) -> None:
    """The API's first token is there after a second, and two more come each second behind it."""
    api = {"api": "gpt-5-mini", "always": ["c0"], "ttft": "1 s", "ttft_cv": 0, "tokens_per_second": 2}
    control = Control(overflow=validate(OverflowSpec, api))
    specs = in_classes(make_specs([0.0], 4, 12), [0], {"timeout": timeout})

    records = both(deployed(control), specs)

    assert reasons(records) == ["timeout"]
    assert records.output_tokens.tolist() == [tokens]


def test_a_replica_that_is_given_back_has_its_grace_period_and_no_more() -> None:
    """At 2 s nobody asks for the second replica any more; what it still has is cut off at 5 s, 3 s later.

    A replica that starts takes 9 s.
    """
    scaling = {
        "metric": "running",
        "target": 2,
        "max_replicas": 2,
        "interval": "2 s",
        "stabilization": "0 s",
        "grace_period": "3 s",
        "startup": {**AT_ONCE, "engine": "9 s"},
    }
    control = Control(autoscaling=validate(AutoscalingSpec, scaling), startup_seconds=9.0)

    records = both(deployed(control, num_replicas=2), make_specs([0.0, 0.0], 4, [30, 20]))

    assert reasons(records) == ["", "drained"]
    assert records.finish_time[1] == 5.0


def test_shedding_at_random_begins_with_nobody_at_its_start() -> None:
    """Two of four seats are taken all the time, which is exactly the start: of 400 that come nobody is refused."""
    control = Control(admission=validate(AdmissionSpec, {"probabilistic_from": 0.5}))
    specs = make_specs([0.0, 0.0625, *(np.arange(1, 401) * 2.0).tolist()], 4, [900, 900, *([1] * 400)])

    records = both(deployed(control, num_blocks=10_000, max_model_len=1024), specs)

    assert reasons(records).count("load") == 0


@pytest.mark.parametrize(("start", "expected"), [(0.25, 1 / 3), (0.4, 1 / 6)])
def test_shedding_at_random_grows_from_its_start_to_a_full_replica(start: float, expected: float) -> None:
    """Two of four seats are taken all the time: of 400 a share of ``(0.5 - start) / (1 - start)`` is refused.

    Within four standard errors; half of them would be far outside.
    """
    control = Control(admission=validate(AdmissionSpec, {"probabilistic_from": start}))
    specs = make_specs([0.0, 0.0625, *(np.arange(1, 401) * 2.0).tolist()], 4, [900, 900, *([1] * 400)])

    records = both(deployed(control, num_blocks=10_000, max_model_len=1024), specs)

    refused = reasons(records)[2:].count("load") / 400
    assert reasons(records)[:2] == ["", ""]
    assert refused == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 400) ** 0.5)


def test_a_replica_that_stays_knows_the_longest_part_of_a_prefix() -> None:
    """It has served 12 tokens of a prefix, then 4: of the next 16 tokens it still knows 12, more than half."""
    lengths, prompts = np.array([12, 4, 12]), [16, 6, 16]
    control = Control(routing=validate(RoutingSpec, {"policy": "prefix", "imbalance_guard": 10}))
    prefixes = system_prompts(np.zeros(3, dtype=np.int64), 1, lengths, np.array(prompts) + 4)

    records = both(
        deployed(control, num_replicas=2), replace(make_specs([0.0, 0.25, 0.5], prompts, 4), prefixes=prefixes)
    )

    assert records.replica_id.tolist() == [0, 0, 0]


def test_what_another_replica_knew_of_a_prefix_counts_no_longer() -> None:
    """The first has served 12 tokens and is passed over for its load; the second has served 4, which are too few."""
    lengths, prompts, outputs = np.array([12, 4, 12]), [16, 6, 16], [1, 6, 1]
    control = Control(routing=validate(RoutingSpec, {"policy": "prefix", "imbalance_guard": 1}))
    prefixes = system_prompts(np.zeros(3, dtype=np.int64), 1, lengths, np.array(prompts) + outputs)

    records = both(
        deployed(control, num_replicas=2), replace(make_specs([0.0, 0.25, 3.25], prompts, outputs), prefixes=prefixes)
    )

    assert records.replica_id.tolist() == [0, 1, 0]


def test_an_answer_of_the_api_counts_for_nobodys_turns() -> None:
    """While one runs, the first class waits, the second waits, and the API answers the first 40 tokens beyond a queue.

    At 4 s both have had nothing but the second its answer: the first has the next turn.
    """
    api = {"api": "gpt-5-mini", "max_queue": 2, "ttft": "0.5 s", "ttft_cv": 0, "tokens_per_second": 1000}
    shares = validate(FairnessSpec, {"shares": {"c0": 1.0, "c1": 1.0}, "max_outstanding": 1})
    control = Control(overflow=validate(OverflowSpec, api), fairness=shares)
    specs = in_classes(make_specs([0.0, 0.25, 0.5, 0.75], 4, [4, 4, 4, 40]), [1, 0, 1, 0], {}, {})

    records = both(deployed(control, max_num_seqs=1), specs)

    assert records.served_by is not None
    assert [SERVERS[each] for each in records.served_by] == ["replica", "replica", "replica", "api"]
    assert records.scheduled_time[:3].tolist() == [0.0, 4.0, 8.0]


def test_the_api_answers_as_soon_as_the_most_that_may_wait_in_front_do() -> None:
    """One waits for its turn; the next would be the second, and is answered by the API."""
    api = {"api": "gpt-5-mini", "max_queue": 1, "ttft": "0.5 s", "ttft_cv": 0, "tokens_per_second": 4}
    shares = validate(FairnessSpec, {"shares": {"c0": 1.0, "c1": 1.0}, "max_outstanding": 1})
    control = Control(overflow=validate(OverflowSpec, api), fairness=shares)
    specs = in_classes(make_specs([0.0, 0.25, 0.5], 4, 4), [0, 1, 0], {}, {})

    records = both(deployed(control, max_num_seqs=1), specs)

    assert records.served_by is not None
    assert [SERVERS[each] for each in records.served_by] == ["replica", "replica", "api"]


def test_lost_requests_go_on_in_the_order_of_their_coming() -> None:
    """The first was behind the tokeniser for longer; when the replica is back at 5.25 s, the second goes first."""
    faults = make_faults({"kind": "replica", "at": "2.25 s", "duration": "3 s", "replica": 0, "in_flight": "retry"})
    specs = replace(make_specs([0.0, 0.0], 4, 9), own_wait=np.array([1.0, 0.0]))

    records = both(deployed(Control(faults=faults), max_num_seqs=1), specs)

    assert records.replica_id.tolist() == [0, 0]
    assert records.scheduled_time[1] < records.scheduled_time[0]


def scaled(scaling: dict[str, object], specs: RequestSpecs, num_replicas: int = 1, **control: Any) -> FleetTimeline:
    """Return the lives of replicas that start at once and are looked at every 2 s; the reference agrees."""
    given = {"interval": "2 s", "stabilization": "0 s", "startup": AT_ONCE, **scaling}
    deployment = deployed(Control(autoscaling=validate(AutoscalingSpec, given), **control), num_replicas)
    both(deployment, specs)
    timeline = simulate(deployment, specs).timeline
    assert timeline is not None
    return timeline


def test_a_fleet_that_works_keeps_a_replica_though_nobody_waits() -> None:
    """Looked at from 2 s on, nobody waits; the only replica goes when its answer of nine tokens is there."""
    scaling = {"metric": "queue_depth", "target": 1, "min_replicas": 0, "max_replicas": 1, "grace_period": "1 s"}

    timeline = scaled(scaling, make_specs([0.0, 12.5], 4, [9, 1]))

    assert timeline.stopped_at[0] == 10.0


def test_how_busy_a_replica_was_is_known_from_the_second_look_on() -> None:
    """Busy all the time, it is worth two replicas; the first look, at 2 s, has nothing to compare with."""
    timeline = scaled({"metric": "busy", "target": 0.5, "max_replicas": 2}, make_specs([0.0], 4, 5))

    assert timeline.launched_at.tolist() == [0.0, 4.0]


def test_a_drained_replica_answers_what_runs_there() -> None:
    """Given back at 2 s with nothing in its queue, it is there until its answer of five tokens is."""
    scaling = {"metric": "running", "target": 2, "max_replicas": 2, "grace_period": "9 s"}

    timeline = scaled(scaling, make_specs([0.0, 0.0], 4, [9, 5]), num_replicas=2)

    assert timeline.stopped_at.tolist() == [np.inf, 5.0]


def test_a_replica_that_is_late_as_often_as_may_be_is_killed_as_its_last_probe_ends() -> None:
    """Every 4 s a probe waits for 1 s behind the second request, which waits for the only seat: late at 4 and 8 s."""
    probes = {"period": "4 s", "timeout": "1 s", "threshold": 2, "restart": "3 s"}
    control = Control(liveness=validate(LivenessSpec, probes))

    records = both(deployed(control, max_num_seqs=1), make_specs([0.0, 0.25], 4, 30))

    # The step that runs at 8 s ends then.
    assert records.finish_time.tolist() == [8.0, 8.0]


def test_an_update_replaces_one_replica_after_the_other() -> None:
    """One of three may be away: each new one takes a second to start before the next old one goes."""
    update = validate(UpdateSpec, {"at": "2 s", "startup": {**AT_ONCE, "engine": "1 s"}})
    deployment, specs = deployed(Control(updates=(update,)), 3), make_specs([0.0, 9.5], 4, 1)

    both(deployment, specs)
    timeline = simulate(deployment, specs).timeline

    assert timeline is not None
    assert timeline.stopped_at[:3].tolist() == [2.0, 3.0, 4.0]


def test_an_autoscaler_counts_on_what_an_update_brings_back() -> None:
    """From 1 s on the update drains one of two for three seconds: at 2 s the two that the load asks for are there."""
    update = validate(UpdateSpec, {"at": "1 s", "startup": AT_ONCE})
    scaling = {"metric": "running", "target": 2, "max_replicas": 3, "min_replicas": 2}

    timeline = scaled(scaling, make_specs([0.0, 0.0, 9.5], 4, [4, 4, 1]), num_replicas=2, updates=(update,))

    assert timeline.launched_at.tolist() == [0.0, 0.0, 4.0, 4.0]


def test_who_hangs_up_in_the_step_that_ends_its_answer_gives_up_its_seat_once() -> None:
    """Timed out at 1.5 s, done at 2 s: the second has the only seat from then on, and the third after it."""
    specs = in_classes(make_specs([0.0, 0.25, 0.5], 4, [2, 2, 2]), [0, 1, 1], {"timeout": "1.5 s"}, {})

    records = both(deployed(Control(), max_num_seqs=1), specs)

    assert reasons(records) == ["timeout", "", ""]
    assert records.scheduled_time.tolist() == [0.0, 2.0, 4.0]
