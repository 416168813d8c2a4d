"""Agents' tasks as they are drawn: who waits for whom, what prompts hold, and that a fork's context is shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import simserve as ss
from simserve.errors import InputError
from simserve.scenario.verify import verify
from simserve.sim.simulate import replay
from simserve.validation import validate
from simserve.workload.conversations import mean_calls
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import WorkloadSpec
from tests.builders import constant_step_times, make_config

MANY: dict[str, Any] = {
    "calls": {"distribution": "geometric", "mean": 6, "max": 30},
    "tool_time": "2 s",
    "tool_time_cv": 1.0,
    "subagent_share": 0.3,
    "subagents": {"distribution": "uniform", "min": 1, "max": 3},
    "subagent_calls": {"distribution": "geometric", "mean": 3, "max": 9},
    "fork_share": 0.5,
}


def drawn(
    seed: int = 1, num_requests: int = 3000, agents: dict[str, Any] | None = None, **changes: Any
) -> RequestSpecs:
    """Return the calls of a workload of tasks."""
    workload = {
        "arrivals": {"process": "poisson", "rate": 10.0},
        "prompt_tokens": 10,
        "output_tokens": 5,
        "num_requests": num_requests,
        "agents": MANY if agents is None else agents,
        **changes,
    }
    return generate(validate(WorkloadSpec, workload), seed=seed)


def parents(specs: RequestSpecs, row: int) -> list[int]:
    """Return what a call waits for."""
    graph = specs.dependencies
    assert graph is not None
    return graph.parents[graph.offsets[row] : graph.offsets[row + 1]].tolist()


def path(specs: RequestSpecs, row: int) -> list[tuple[int, int]]:
    """Return the segments of a call and where they end."""
    assert specs.prefixes is not None
    entries = slice(int(specs.prefixes.offsets[row]), int(specs.prefixes.offsets[row + 1]))
    return list(zip(specs.prefixes.segments[entries].tolist(), specs.prefixes.ends[entries].tolist(), strict=True))


ONE_START = {"calls": 2, "subagent_share": 1.0, "subagents": 2, "subagent_calls": 2}


def test_calls_of_a_task_worked_out_by_hand() -> None:
    """Call 0 starts two sub-agents of two calls each; the last call waits for both and finds their answers."""
    specs = drawn(num_requests=6, agents={**ONE_START, "tool_time": "3 s"})

    assert [parents(specs, row) for row in range(6)] == [[], [0], [1], [0], [3], [2, 4]]
    assert specs.prompt_tokens.tolist() == [10, 10, 25, 10, 25, 10 + 5 + 5 + 5 + 10]
    assert specs.think_time.tolist() == [0.0, 0.0, 3.0, 0.0, 3.0, 0.0]
    assert specs.turn is not None
    assert specs.turn.tolist() == [1, 2, 3, 2, 3, 4]
    assert path(specs, 5) == [(0, 15), (5, 40)]


def test_a_fork_begins_with_the_context_of_the_call_that_starts_it() -> None:
    """Its prompt is that call's prompt and answer, and new text; so are its first segments."""
    specs = drawn(num_requests=6, agents={**ONE_START, "fork_share": 1.0})

    assert specs.prompt_tokens.tolist() == [10, 25, 40, 25, 40, 35]
    assert path(specs, 2) == [(0, 15), (1, 30), (2, 45)]
    assert path(specs, 3) == [(0, 15), (3, 30)]


def test_answers_that_are_dropped_are_not_in_contexts() -> None:
    """Prompts alone stay; what an answer was is nobody's prefix."""
    specs = drawn(num_requests=3, agents={"calls": 3, "context_growth": 0.0})

    assert specs.prompt_tokens.tolist() == [10, 20, 30]
    assert path(specs, 1) == [(0, 10), (1, 20), (4, 25)]


def test_a_forked_prefix_is_paid_once() -> None:
    """Of two forks of a context of 96 tokens the second computes its own 80 alone; without forks nothing is shared."""
    lengths = {"prompt_tokens": 80, "output_tokens": 16}
    agents = {"calls": 2, "subagent_share": 1.0, "subagents": 2, "subagent_calls": 1}
    config = make_config(
        num_blocks=1000, block_size=16, enable_prefix_caching=True, max_model_len=4096, max_num_batched_tokens=4096
    )

    def computed(fork_share: float) -> list[int]:
        specs = drawn(num_requests=4, agents={**agents, "fork_share": fork_share}, **lengths)
        records = replay(config, constant_step_times(1.0), specs).records
        return (records.prompt_tokens - records.cached_tokens).tolist()

    # The newest token of an answer is not in the cache: the block that it ends is computed again, once.
    assert computed(1.0) == [80, 96, 80, 112]
    assert computed(0.0) == [80, 80, 80, 128]


def test_without_a_cut_every_call_has_what_it_waits_for() -> None:
    """Parents stand before children in the same task; each task has one call without parents, its first."""
    specs = drawn()
    graph = specs.dependencies
    assert graph is not None
    assert specs.session is not None

    child = np.repeat(np.arange(len(graph)), graph.num_parents)
    assert (graph.parents < child).all()
    assert (specs.session[graph.parents] == specs.session[child]).all()
    roots = np.flatnonzero(graph.num_parents == 0)
    assert (np.diff(specs.session, prepend=-1)[roots] == 1).all()
    assert len(specs) == 3000


def test_prompts_are_what_their_segments_hold() -> None:
    """Segments of a call ascend, the last one ends with the answer, and shared ones end within the prompt."""
    specs = drawn(shared_prefix={"num_groups": 3, "tokens": 7})

    for row in range(0, len(specs), 37):
        ends = [end for _, end in path(specs, row)]
        assert ends == sorted(set(ends))
        assert ends[-1] == specs.prompt_tokens[row] + specs.output_tokens[row]
        assert all(end <= specs.prompt_tokens[row] for end in ends[:-1])


def test_calls_come_at_the_rate_that_is_asked() -> None:
    """The rate is of calls: tasks begin at it over the mean number of calls of a task."""
    spec = validate(
        WorkloadSpec,
        {
            "arrivals": {"process": "poisson", "rate": 10.0},
            "prompt_tokens": 10,
            "output_tokens": 5,
            "num_requests": 60_000,
            "agents": MANY,
        },
    )
    specs = generate(spec, seed=3)
    assert spec.agents is not None
    assert specs.session is not None

    num_tasks = int(specs.session[-1]) + 1
    assert len(specs) / num_tasks == pytest.approx(mean_calls(spec.agents, None), rel=0.05)
    assert num_tasks / np.nanmax(specs.arrival_time) == pytest.approx(10.0 / mean_calls(spec.agents, None), rel=0.05)


def test_more_calls_begin_with_those_of_fewer() -> None:
    """The draws of a longer run continue those of a shorter one."""
    short, long = drawn(num_requests=500), drawn(num_requests=900)

    np.testing.assert_array_equal(long.first(500).think_time, short.think_time)
    assert long.dependencies is not None
    assert short.dependencies is not None
    np.testing.assert_array_equal(long.first(500).dependencies.parents, short.dependencies.parents)  # type: ignore[union-attr]


def test_a_client_thinks_before_its_next_task() -> None:
    """In a closed loop the think time stands at the first call of each task."""
    specs = drawn(
        num_requests=8,
        agents={"calls": 2, "tool_time": "1 s"},
        arrivals={"process": "closed_loop", "concurrency": 2, "think_time": "9 s"},
    )

    assert specs.think_time.tolist() == [9.0, 1.0] * 4
    assert np.isnan(specs.arrival_time).all()


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ({"calls": 3, "tool_time_cv": 1}, "needs tool_time"),
        ({"calls": 3, "tool_time": "1 s", "tool_time_cv": 0.01}, "must be 0 or at least 0.05"),
        ({"calls": 3, "subagents": 2}, "needs subagent_share"),
        ({"tool_time": "1 s"}, "agents without calls"),
    ],
)
def test_what_has_no_effect_is_refused(agents: dict[str, Any], message: str) -> None:
    """With what to give instead."""
    with pytest.raises(ValueError, match=message):
        WorkloadSpec.model_validate(
            {"arrivals": {"process": "poisson", "rate": 1}, "prompt_tokens": 1, "output_tokens": 1, "agents": agents}
        )


def test_tasks_stand_alone() -> None:
    """Beside sessions or classes they are refused."""
    for block in ({"sessions": {"turns": 2}}, {"classes": [{"name": "a", "share": 1}]}):
        with pytest.raises(InputError, match="has agents and also"):
            drawn(**block)


def test_what_calls_think_is_generated_and_dropped_from_contexts() -> None:
    """Prompts hold the answers, which are new text behind them; a budget cuts what is thought."""
    thinking = {"thinking_tokens": 100, "thinking_token_budget": 7}
    specs = drawn(num_requests=3, agents={"calls": 3}, **thinking)

    assert specs.thinking_tokens is not None
    assert specs.thinking_tokens.tolist() == [7, 7, 7]
    assert specs.output_tokens.tolist() == [12, 12, 12]
    assert specs.prompt_tokens.tolist() == [10, 25, 40]
    assert path(specs, 1) == [(0, 10), (1, 25), (4, 37)]


def test_an_answer_that_thinking_leaves_no_room_for_is_in_no_context() -> None:
    """Eight tokens are thought, seven are allowed."""
    specs = drawn(num_requests=2, agents={"calls": 2}, thinking_tokens=8, max_tokens=7)

    assert specs.prompt_tokens.tolist() == [10, 20]


@pytest.mark.slow
def test_thinking_calls_fare_alike_in_the_reference() -> None:
    """Tasks of the bundled agents that think, and of a class of its own beside others."""
    agents = {"workload.num_requests": 80, "workload.thinking_tokens": {"distribution": "geometric", "mean": 60}}
    beside = {
        "workload": {
            "classes": [
                {"name": "chat", "arrivals": {"process": "poisson", "rate": 2.0}},
                {
                    "name": "agents",
                    "arrivals": {"process": "poisson", "rate": 2.0},
                    "agents": MANY,
                    "thinking_tokens": 30,
                },
            ],
            "prompt_tokens": 50,
            "output_tokens": 20,
            "num_requests": 60,
        }
    }

    for scenario in (ss.load("coding-agents", agents), ss.load("single-gpu-7b", beside)):
        found = verify(scenario)

        assert found.is_equal
        assert found.largest_difference < 1e-9
