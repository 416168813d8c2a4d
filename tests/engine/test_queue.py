"""Queue orders besides first come, first served, on cases worked out by hand with steps of one second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.engine.queue import OrderedQueue
from simserve.engine.state import RequestTable
from simserve.sim.simulate import Replay
from simserve.workload.requests import RequestSpecs
from tests.agreement import assert_agrees
from tests.builders import constant_step_times, make_config, make_specs

SECOND = constant_step_times(1.0)


def served(specs: RequestSpecs, priorities: Sequence[int] | None = None, **config: Any) -> Replay:
    """Return what kernel and walker agree on."""
    config = {"scheduling_policy": "priority", "max_num_seqs": 1, **config}
    if priorities is not None:
        specs = replace(specs, priority=np.array(priorities, dtype=np.int64))
    return assert_agrees(make_config(**config), SECOND, specs)


def test_the_smaller_number_goes_first() -> None:
    """Three wait for one seat: 0 before 1 before 2, whoever came first."""
    records = served(make_specs([0.0, 0.5, 0.5, 0.5], 4, 2), [0, 2, 0, 1]).records

    assert records.scheduled_time.tolist() == [0.0, 6.0, 2.0, 4.0]


def test_equal_priorities_go_by_arrival() -> None:
    """Without differences the order is that of first come, first served."""
    specs = make_specs([0.0, 0.25, 0.5, 0.75], 4, [3, 1, 2, 1])

    ordered, plain = served(specs, [1] * 4), served(specs, scheduling_policy="fcfs")

    assert ordered.records.scheduled_time.tolist() == plain.records.scheduled_time.tolist()


def test_the_shortest_known_request_goes_first() -> None:
    """By prompt plus max_tokens, 4 + 30 after 9 + 20; the true answer of two tokens does not count."""
    specs = make_specs([0.0, 0.5, 0.5], [4, 4, 9], 2, [2, 30, 20])
    records = served(specs, scheduling_policy="shortest_first").records

    assert records.scheduled_time.tolist() == [0.0, 4.0, 2.0]


def test_an_urgent_arrival_passes_a_blocked_head() -> None:
    """The head needs more blocks than are free; a better one that arrives in the leap behind it is admitted at once."""
    specs = make_specs([0.0, 0.5, 4.5], [4, 20, 4], [12, 1, 1])
    records = served(specs, [1, 1, 0], max_num_seqs=4, num_blocks=6, max_model_len=24).records

    assert records.scheduled_time.tolist() == [0.0, 12.0, 5.0]


def test_waiting_outweighs_a_level() -> None:
    """With ageing of 3 s the batch request, 4 s older, goes before the interactive one; with 5 s it does not."""
    specs = make_specs([0.0, 0.5, 4.5], 4, [8, 2, 2])

    assert served(specs, [0, 1, 0], priority_ageing=3.0).records.scheduled_time.tolist() == [0.0, 8.0, 10.0]
    assert served(specs, [0, 1, 0], priority_ageing=5.0).records.scheduled_time.tolist() == [0.0, 10.0, 8.0]


def test_the_worst_of_the_running_is_preempted() -> None:
    """When blocks run out the batch request goes, though it was admitted first."""
    specs = make_specs([0.0, 0.5], 7, 8)
    config = {"num_blocks": 5, "max_model_len": 16, "max_num_seqs": 2}

    assert served(specs, [1, 0], **config).records.num_preemptions.tolist() == [1, 0]
    assert served(specs, [0, 1], **config).records.num_preemptions.tolist() == [0, 1]


def test_a_running_request_makes_way_for_a_better_one() -> None:
    """The seat is taken until 10 s; with preemption the urgent request has it in the next step."""
    specs = make_specs([0.0, 2.5], 4, [10, 2])
    config = {"max_num_seqs": 1}
    waiting = served(specs, [1, 0], **config).records
    passing = served(specs, [1, 0], priority_preemption=True, **config).records

    assert waiting.scheduled_time.tolist() == [0.0, 10.0]
    assert passing.scheduled_time.tolist() == [0.0, 3.0]
    assert passing.num_preemptions.tolist() == [1, 0]
    # Three tokens were there; the prefill after 5 s brings the fourth, and six decode steps follow.
    assert passing.finish_time.tolist() == [12.0, 5.0]


def test_nobody_makes_way_for_an_equal() -> None:
    """Preemption needs a worse priority, not a later arrival."""
    records = served(make_specs([0.0, 2.5], 4, [10, 2]), [1, 1], priority_preemption=True).records

    assert records.num_preemptions.tolist() == [0, 0]


def test_the_queue_can_be_left() -> None:
    """A request that gives up is taken out, wherever it stands; who does not wait cannot be."""
    specs = make_specs([0.0] * 3, 4, 2)
    table = RequestTable(
        specs.prompt_tokens, specs.output_tokens, specs.max_tokens, make_config(), None, np.array([2, 0, 1])
    )
    for index in range(3):
        table.ready_time[index] = 0.0
    queue = OrderedQueue(
        make_config(scheduling_policy="priority"),
        table.ready_time,
        table.priority,
        table.prompt_tokens,
        table.max_tokens,
    )
    for index in range(3):
        queue.append(index)
    assert list(queue) == [1, 2, 0]

    queue.remove(2)

    assert [queue.popleft() for _ in range(len(queue))] == [1, 0]
    with pytest.raises(ValueError, match="not in list"):
        queue.remove(2)


def test_who_has_waited_long_enough_is_not_preempted() -> None:
    """Ageing of 1 s: the batch request is 4 s older, sorts before the urgent one, and keeps its seat."""
    specs = make_specs([0.0, 4.5], 4, [10, 2])
    records = served(specs, [1, 0], priority_preemption=True, priority_ageing=1.0).records

    assert records.num_preemptions.tolist() == [0, 0]
    assert records.scheduled_time.tolist() == [0.0, 10.0]
