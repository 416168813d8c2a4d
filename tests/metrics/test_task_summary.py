"""Tasks of agents in figures: makespan, blocked on the model or on tools, tokens, dollars, and the objective."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import simserve as ss
from simserve.errors import InputError, UsageError
from simserve.metrics.features import TASK_KEYS, task_figures
from simserve.metrics.latency import SLO, attainment, request_latencies, requests_meeting, tasks_of
from simserve.metrics.result import RunResult
from simserve.metrics.summary import summarize
from simserve.metrics.throughput import Window
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario
from simserve.sim.records import COMPLETED, FAILED, TASK_CANCELLED, TIMED_OUT, RequestRecords
from tests.metrics.builders import make_facts, make_simulation

AGENTS = {
    "calls": {"distribution": "geometric", "mean": 5, "max": 20},
    "tool_time": "1 s",
    "subagent_share": 0.3,
    "subagents": 2,
    "fork_share": 0.5,
}


def records(rows: list[tuple[int, float, float]], *, status: list[int] | None = None) -> RequestRecords:
    """Return calls of tasks: number of the task, when sent and answered; ten prompt tokens, four of them cached."""
    task, sent, answered = (np.array(column) for column in zip(*rows, strict=True))
    count = len(rows)
    return RequestRecords(
        arrival_time=sent.astype(np.float64),
        admitted_time=sent.astype(np.float64),
        scheduled_time=sent.astype(np.float64),
        first_token_time=answered.astype(np.float64),
        finish_time=answered.astype(np.float64),
        prompt_tokens=np.full(count, 10),
        output_tokens=np.full(count, 2),
        cached_tokens=np.full(count, 4),
        num_preemptions=np.zeros(count, dtype=np.int32),
        replica_id=np.zeros(count, dtype=np.int32),
        itl_max=np.full(count, 0.1),
        status=np.array([COMPLETED] * count if status is None else status, dtype=np.int8),
        reason=np.zeros(count, dtype=np.int8),
        is_truncated=np.zeros(count, dtype=bool),
        task=task.astype(np.int64),
    )


TWO = [(0, 0.0, 2.0), (1, 1.0, 3.0), (0, 5.0, 9.0), (0, 6.0, 7.0), (0, 8.0, 10.0), (-1, 4.0, 4.5)]
"""Task 0: a call, a pause of 3 s, three calls that overlap; task 1: one call; and a request of none."""


def whole(count: int) -> Window:
    """Return a window of everything."""
    return Window(start=0.0, end=10.0, has_arrived=np.ones(count, dtype=bool))


def bounded(**bounds: float) -> SLO:
    """Return an objective with some bounds."""
    return SLO(**({"ttft": None, "tpot": None, "e2e": None, "attainment": 0.9} | bounds))  # type: ignore[arg-type]


def test_a_task_is_blocked_on_the_model_while_any_of_its_calls_is_there() -> None:
    """Overlaps count once, pauses are the tools'."""
    tasks = tasks_of(records(TWO))
    assert tasks is not None

    assert tasks.task.tolist() == [0, 1]
    assert tasks.makespan.tolist() == [10.0, 2.0]
    assert tasks.model.tolist() == [7.0, 2.0]
    assert tasks.tool.tolist() == [3.0, 0.0]
    assert tasks.calls.tolist() == [4, 1]
    assert tasks.computed_tokens.tolist() == [32, 8]


def test_the_time_on_the_model_is_that_of_a_plain_count() -> None:
    """Random intervals, counted on a grid."""
    random = np.random.default_rng(4)
    rows = []
    for task in range(8):
        begins = random.integers(0, 60, 9)
        rows += [(task, float(begin), float(begin + random.integers(1, 12))) for begin in begins]
    order = random.permutation(len(rows))
    tasks = tasks_of(records([rows[each] for each in order]))
    assert tasks is not None

    for task in range(8):
        busy = {second for owner, begin, end in rows if owner == task for second in range(int(begin), int(end))}
        assert tasks.model[task] == len(busy)


def test_a_task_with_a_call_that_failed_has_not_finished() -> None:
    """It has no makespan, counts as failed, and misses the objective."""
    found = records(TWO, status=[COMPLETED, COMPLETED, FAILED, COMPLETED, COMPLETED, COMPLETED])
    figures = task_figures(found, whole(6), bounded(task=20.0), 3.6)

    assert (figures["begun"], figures["finished"], figures["failed"]) == (2, 1, 1)
    assert figures["mean_makespan_s"] == 2.0
    assert figures["attainment"] == 0.5


def test_a_call_that_never_ran_computed_no_prompt() -> None:
    """Of four calls of eight tokens each, one was given up in the queue before its first: two tokens are left."""
    found = records(TWO, status=[COMPLETED, COMPLETED, FAILED, COMPLETED, COMPLETED, COMPLETED])
    found.scheduled_time[2] = np.nan

    tasks = tasks_of(found)

    assert tasks is not None
    assert tasks.computed_tokens.tolist() == [26, 8]


def test_figures_of_tasks() -> None:
    """Means and shares worked out by hand; a dollar a second over two tasks in ten, a call of none taking a sixth."""
    figures = task_figures(records(TWO), whole(6), None, 3600.0)

    assert list(figures) == list(TASK_KEYS)
    assert figures["mean_makespan_s"] == 6.0
    assert figures["model_share"] == 0.75
    assert figures["calls_per_task"] == 2.5
    assert figures["task_throughput"] == 0.2
    assert figures["usd_per_task"] == pytest.approx(5.0 * 40 / 48)
    assert (figures["input_tokens_per_task"], figures["output_tokens_per_task"]) == (25.0, 5.0)
    assert np.isnan(figures["attainment"])


def test_without_tasks_every_figure_is_null() -> None:
    """The keys stay."""
    plain = replace(records([(0, 0.0, 1.0)]), task=None)

    figures = summarize(make_simulation(plain), make_facts())["simserve"]["tasks"]

    assert figures == dict.fromkeys(TASK_KEYS)


def test_the_objective_counts_tasks_and_requests_apart() -> None:
    """One of two tasks is in time, and all requests within theirs: the smaller share is the attainment."""
    latencies, all_of_them = request_latencies(records(TWO)), np.ones(6, dtype=bool)

    tasks_alone = attainment(latencies, bounded(task=5.0), all_of_them)
    both = attainment(latencies, bounded(task=20.0, e2e=2.5), all_of_them)

    assert (tasks_alone.all_terms, tasks_alone.by_metric["task"]) == (0.5, 0.5)
    assert tasks_alone.met.tolist() == [False, True]
    assert (both.all_terms, both.by_metric["task"], both.by_metric["e2e"]) == (5 / 6, 1.0, 5 / 6)
    assert both.met.tolist() == [True, True, False, True, True, True]
    assert requests_meeting(latencies, bounded(task=5.0)).tolist() == [False, True, False, False, False, True]


def scenario(**changes: Any) -> Scenario:
    """Return a small scenario of tasks."""
    return Scenario.model_validate(
        {
            "name": "tasks",
            "model": "llama-3.1-8b",
            "deployment": {"hardware": "h100-sxm-80gb", "engine": {"name": "vllm", "version": "0.12"}},
            "workload": {
                "arrivals": {"process": "poisson", "rate": 3.0},
                "prompt_tokens": 200,
                "output_tokens": 40,
                "num_requests": 200,
                "agents": AGENTS,
            },
            "pricing": {"gpu_hour_usd": 3.0},
            "run": {"warmup": "none"},
            **changes,
        }
    )


@cache
def ran() -> RunResult:
    """Return its run: one for all tests."""
    return run(scenario(), finishable=None)


def test_the_dollars_of_tasks_add_up_to_those_of_the_run() -> None:
    """Each task pays by the tokens that were computed for it; those that finish pay for all."""
    result = ran()
    cost, figures = result.summary["simserve"]["cost"], result.summary["simserve"]["tasks"]

    dollars = cost["usd_per_hour"] * result.summary["duration"] / 3600
    assert result.tasks["usd"].sum() == pytest.approx(dollars, rel=1e-12)
    assert figures["usd_per_task"] * figures["finished"] == pytest.approx(dollars, rel=1e-9)
    assert result.tasks["calls"].sum() == len(result.requests)
    assert set(result.requests["task_id"]) == set(result.tasks["task_id"])


def test_a_task_without_queues_takes_its_longest_way() -> None:
    """Tools and answers along it: no makespan is shorter than its tools, nor longer than all of its calls in a row."""
    result = ran()
    calls = result.requests.groupby("task_id")["e2el_ms"].sum() / 1000
    tasks = result.tasks.set_index("task_id")

    assert (tasks["makespan_s"] == tasks["model_s"] + tasks["tool_s"]).mean() > 0.5
    np.testing.assert_allclose(tasks["makespan_s"], tasks["model_s"] + tasks["tool_s"], rtol=1e-9)
    assert (tasks["model_s"] <= calls + 1e-9).all()


def test_a_run_without_tasks_has_neither_table_nor_objective() -> None:
    """The column is not there, the table refuses, and so does a limit on tasks."""
    workload = {"arrivals": {"process": "constant", "rate": 1.0}, "prompt_tokens": 9, "output_tokens": 3}
    result = ss.run(scenario(workload={**workload, "num_requests": 5}))

    assert "task_id" not in result.requests
    with pytest.raises(UsageError, match=r"add workload\.agents"):
        _ = result.tasks
    with pytest.raises(InputError, match="no agents' tasks"):
        ss.run(scenario(workload={**workload, "num_requests": 5}, slo={"task": "9 s"}))


def test_a_task_that_its_client_gave_up_is_neither_finished_nor_failed() -> None:
    """Its calls were all answered but for one that was never sent: its tokens are counted, and its share of dollars."""
    rows = [*TWO[:-1], (0, np.nan, np.nan)]
    status = [COMPLETED] * 5 + [TIMED_OUT]
    given_up = replace(records(rows, status=status), reason=np.array([0] * 5 + [TASK_CANCELLED], dtype=np.int8))
    figures = task_figures(given_up, whole(6), None, 3600.0)

    assert (figures["begun"], figures["finished"], figures["failed"], figures["cancelled"]) == (2, 1, 0, 1)
    assert figures["cancelled_tokens"] == 4 * 8
    assert figures["cancelled_usd"] == pytest.approx(10.0 * 4 / 5)


def test_a_task_that_takes_its_bound_is_in_time() -> None:
    """Bounds on tasks are inclusive, as those on requests are: 10 s of at most 10."""
    latencies, all_of_them = request_latencies(records(TWO)), np.ones(6, dtype=bool)
    shares = [attainment(latencies, bounded(task=each), all_of_them).all_terms for each in (10.0, 9.999)]

    assert shares == [1.0, 0.5]
