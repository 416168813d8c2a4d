"""Agents' tasks in the simulation: a call is sent when all its parents are answered and its tool has run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simserve.engine.config import EngineConfig
from simserve.engine.state import StepTimes
from simserve.metrics.latency import tasks_of
from simserve.sim.records import COMPLETED, FAILED, REASONS, STATUSES, RequestRecords
from simserve.sim.simulate import replay, simulate
from simserve.workload.dependencies import dependencies_of
from simserve.workload.requests import RequestSpecs
from tests.agreement import assert_agrees, closest_tie
from tests.builders import constant_step_times, make_config
from tests.theory.builders import make_deployment
from tests.walker import walk
from tests.workload.test_mixture import BATCH, TASKS, drawn

SECOND = constant_step_times(1.0)
Task = list[tuple[list[int], int, float]]
"""Of each call its parents, by position in the task, its output tokens and its tool time."""


def tasks(
    graphs: list[Task],
    starts: list[float] | None,
    *,
    prompt: int = 8,
    concurrency: int | None = None,
    limit: float | None = None,
) -> RequestSpecs:
    """Return tasks whose calls have equal prompts; without ``starts`` the clients of a closed loop begin them."""
    rows = [(number, *call) for number, graph in enumerate(graphs) for call in graph]
    first = [sum(len(graph) for graph in graphs[:number]) for number in range(len(graphs))]
    parents = [[first[number] + each for each in own] for number, own, _, _ in rows]
    dependencies = dependencies_of(parents)
    outputs = np.array([output for _, _, output, _ in rows], dtype=np.int64)
    begins = [math.nan] * len(graphs) if starts is None else starts
    return RequestSpecs(
        arrival_time=np.array([math.nan if own else begins[number] for number, own, _, _ in rows]),
        prompt_tokens=np.full(len(rows), prompt, dtype=np.int64),
        output_tokens=outputs,
        max_tokens=outputs,
        think_time=np.array([tool for *_, tool in rows]),
        concurrency=concurrency,
        is_stationary=False,
        offered_rate=math.nan,
        session=np.array([number for number, *_ in rows], dtype=np.int64),
        turn=dependencies.depths(),
        dependencies=dependencies,
    ).within(limit)


def walked(
    graphs: list[Task], starts: list[float], seconds: float, limit: float = math.inf
) -> tuple[list[float], list[float]]:
    """Return when each call is sent and answered by a server that has a seat for everybody and steps of one length.

    Independent of the package: a clock that jumps from step to step, and a list of what is sent next. Every step gives
    each call that was there at its start one token; a server with nothing to do begins a step when somebody comes.
    A client that has waited for so long hangs up, and sends nothing more: calls without an answer have NaN as its time.
    """
    calls = [(task, position) for task, graph in enumerate(graphs) for position in range(len(graph))]
    sent = dict.fromkeys(calls, math.nan)
    answered = dict.fromkeys(calls, math.nan)
    left = {}
    on_the_way = []
    for task, graph in enumerate(graphs):
        for position, (parents, output, _) in enumerate(graph):
            left[task, position] = output
            if not parents:
                sent[task, position] = starts[task]
                on_the_way.append((starts[task], (task, position)))
    now = 0.0
    at_work: list[tuple[int, int]] = []
    while on_the_way or at_work:
        if not at_work:
            now = max(now, min(time for time, _ in on_the_way))
        arrived = [call for time, call in on_the_way if time <= now]
        on_the_way = [(time, call) for time, call in on_the_way if time > now]
        at_work += arrived
        now += seconds
        done = []
        at_work = [(task, position) for task, position in at_work if now - seconds < starts[task] + limit]
        for call in at_work:
            left[call] -= 1
            if left[call] == 0 and now <= starts[call[0]] + limit:
                done.append(call)
                answered[call] = now
        at_work = [call for call in at_work if call not in done]
        for task in {task for task, _ in done}:
            for position, (parents, _, tool_time) in enumerate(graphs[task]):
                ends = [answered[task, parent] for parent in parents]
                is_due = parents and math.isnan(sent[task, position]) and not any(math.isnan(end) for end in ends)
                if is_due and max(ends) + tool_time < starts[task] + limit:
                    sent[task, position] = max(ends) + tool_time
                    on_the_way.append((sent[task, position], (task, position)))
    return [sent[call] for call in calls], [answered[call] for call in calls]


def random_task(random: np.random.Generator, most: int = 12) -> Task:
    """Return a task whose calls wait for up to three earlier ones, those without parents first."""
    count, num_roots = int(random.integers(1, most)), int(random.integers(1, 3))
    graph: Task = []
    for position in range(count):
        parents = [] if position < num_roots else random.choice(position, min(position, 1 + position % 3), False)
        graph.append(([int(each) for each in parents], int(random.integers(1, 6)), float(random.integers(0, 5)) / 4))
    return graph


def served(specs: RequestSpecs, **config: Any) -> Any:
    """Return the records on which the plane and the reference agree."""
    return assert_agrees(make_config(**config), SECOND, specs).records


def simulated(config: EngineConfig, times: StepTimes, specs: RequestSpecs) -> RequestRecords:
    """Return the records of one replica whose clients may give up."""
    return simulate(make_deployment(config, times, 1, "least_outstanding"), specs).records


def test_an_independent_walker_replays_dependency_graphs_at_the_same_times() -> None:
    """Forty tasks with roots, forks, joins and tools: every call is sent and answered when the walker says."""
    random = np.random.default_rng(23)
    graphs = [random_task(random) for _ in range(40)]
    starts = [round(float(random.uniform(0, 30)), 3) for _ in graphs]

    sent, answered = walked(graphs, starts, 0.25)
    specs = tasks(graphs, starts)
    config = make_config(max_num_seqs=512, num_blocks=100_000, max_num_batched_tokens=100_000)
    records = replay(config, constant_step_times(0.25, 512), specs).records

    of_walker = sorted(zip(sent, answered, strict=True))
    of_plane = sorted(zip(records.arrival_time.tolist(), records.finish_time.tolist(), strict=True))
    np.testing.assert_allclose(of_plane, of_walker, rtol=1e-12)


def test_the_walker_agrees_where_clients_give_up_after_six_seconds() -> None:
    """The same calls are sent at the same times, and the same are answered; all else is cancelled."""
    random = np.random.default_rng(24)
    graphs = [random_task(random) for _ in range(40)]
    starts = [round(float(random.uniform(0, 30)), 3) for _ in graphs]

    sent, answered = walked(graphs, starts, 0.25, limit=6.0)
    config = make_config(max_num_seqs=512, num_blocks=100_000, max_num_batched_tokens=100_000)
    records = simulated(config, constant_step_times(0.25, 512), tasks(graphs, starts, limit=6.0))
    is_answered = records.status == COMPLETED

    finish = np.where(is_answered, records.finish_time, np.nan)
    assert 0 < is_answered.sum() < np.isfinite(sent).sum() < len(sent)
    for of_walker, of_plane in ((sent, records.arrival_time), (answered, finish)):
        np.testing.assert_allclose(np.sort(of_plane), np.sort(of_walker), rtol=1e-12, equal_nan=True)
    assert {REASONS[reason] for reason in records.reason[~is_answered]} == {"task_cancelled"}


def test_a_client_that_gives_up_hangs_up_and_begins_its_next_task() -> None:
    """After 4 s: the call that runs is dropped, what waits for it is never sent, and the next task begins at 4 s."""
    graph: Task = [([], 1, 0.0), ([0], 9, 0.0), ([0], 1, 9.0), ([1, 2], 1, 0.0)]

    records = simulated(make_config(), SECOND, tasks([graph, [([], 1, 0.0)]], None, concurrency=1, limit=4.0))

    assert [STATUSES[status] for status in records.status] == [
        "completed",
        "timed_out",
        "completed",
        "timed_out",
        "timed_out",
    ]
    np.testing.assert_array_equal(records.arrival_time, [0.0, 1.0, 4.0, np.nan, np.nan])
    assert records.output_tokens.tolist() == [1, 3, 1, 0, 0]


def test_a_call_waits_for_all_its_parents_and_its_tool() -> None:
    """Parents are answered at 2 and 4 s; the tool takes 3 s."""
    graph: Task = [([], 2, 0.0), ([], 4, 0.0), ([0, 1], 1, 3.0)]

    records = served(tasks([graph], [0.0]))

    assert records.arrival_time.tolist() == [0.0, 0.0, 7.0]


def test_branches_do_not_wait_for_each_other() -> None:
    """The child of the short parent leaves at once."""
    graph: Task = [([], 1, 0.0), ([], 5, 0.0), ([0], 1, 0.0), ([1], 1, 0.0)]

    records = served(tasks([graph], [0.0]))

    assert records.arrival_time.tolist() == [0.0, 0.0, 1.0, 5.0]


def test_a_client_begins_its_next_task_when_the_last_call_is_answered() -> None:
    """One client: the second task begins when the slower branch of the first is answered, at 6 s."""
    graph: Task = [([], 1, 0.0), ([0], 1, 0.0), ([0], 5, 0.0)]

    records = served(tasks([graph, graph], None, concurrency=1))

    assert records.arrival_time.tolist() == [0.0, 1.0, 1.0, 6.0, 7.0, 7.0]


def test_a_call_that_failed_is_answered_too() -> None:
    """A prompt too long for the model ends at once; what waits for it is sent all the same, and the task goes on."""
    specs = tasks([[([], 1, 0.0), ([0], 1, 1.0)]], [0.0], prompt=100)

    records = served(specs, max_model_len=50)

    assert [STATUSES[status] for status in records.status] == [STATUSES[FAILED]] * 2
    assert records.arrival_time.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("concurrency", [None, 3])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), seats=st.integers(1, 4))
def test_plane_and_reference_agree_on_random_tasks(concurrency: int | None, seed: int, seats: int) -> None:
    """Queues, preemptions and cached prefixes included: counts equal, times to 1e-9."""
    random = np.random.default_rng(seed)
    graphs = [
        [(parents, output, float(random.uniform(0.1, 2))) for parents, output, _ in random_task(random, 8)]
        for _ in range(6)
    ]
    starts = None if concurrency else np.sort(random.uniform(0, 20, len(graphs))).tolist()
    specs = tasks(graphs, starts, prompt=int(random.integers(4, 40)), concurrency=concurrency)
    config = make_config(max_num_seqs=seats, num_blocks=40, frontend_latency=0.0123)
    outcome = walk(config, SECOND, specs)
    assume(closest_tie(outcome, config, specs) > 1e-9)

    assert_agrees(config, SECOND, specs, outcome)


def test_plane_and_reference_agree_on_tasks_beside_single_requests() -> None:
    """Both kinds share seats; single requests wait for nobody and belong to no task."""
    specs = drawn(BATCH, TASKS, arrivals=None, sessions=None, duration="12 s")

    config = make_config(max_num_seqs=8, max_model_len=512, num_blocks=5000, frontend_latency=0.0517)
    found = assert_agrees(config, constant_step_times(0.1017, 8), specs).records

    assert (found.status == COMPLETED).all()
    makespans = tasks_of(found)
    assert makespans is not None
    assert 1 < len(makespans.task) < len(specs)
