"""Thinking: drawn apart from everything else, within its budget, and dropped from the history of a conversation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simserve.errors import ScenarioError
from simserve.validation import FrozenModel, validate
from simserve.workload.generate import generate
from simserve.workload.spec import WorkloadSpec

LONG = {"distribution": "lognormal", "mean": 900, "cv": 1.0}


class Scenario(FrozenModel):
    """The part of a scenario that holds a workload."""

    workload: WorkloadSpec
    """The workload."""


def read(**changes: Any) -> WorkloadSpec:
    """Return a workload with some keys changed; None removes one."""
    keys = {
        "arrivals": {"process": "poisson", "rate": 2.0},
        "prompt_tokens": {"distribution": "lognormal", "mean": 300, "cv": 1.0},
        "output_tokens": {"distribution": "lognormal", "mean": 100, "cv": 0.5},
        "num_requests": 200,
    } | changes
    workload = {key: value for key, value in keys.items() if value is not None}
    return validate(Scenario, {"workload": workload}, file="s.yaml", error=ScenarioError).workload


def test_thinking_comes_on_top_and_moves_nothing_else() -> None:
    """Arrivals, prompts and answers are those of the same workload without thinking."""
    plain, thinking = generate(read(), seed=3), generate(read(thinking_tokens=LONG), seed=3)

    assert plain.thinking_tokens is None
    assert thinking.thinking_tokens is not None
    assert thinking.arrival_time.tolist() == plain.arrival_time.tolist()
    assert thinking.prompt_tokens.tolist() == plain.prompt_tokens.tolist()
    assert (thinking.output_tokens - thinking.thinking_tokens).tolist() == plain.output_tokens.tolist()
    assert thinking.max_tokens.tolist() == thinking.output_tokens.tolist()


def test_a_budget_cuts_long_thoughts_alone() -> None:
    """Who thinks less than the budget thinks as before; answers stay as they are."""
    free = generate(read(thinking_tokens=LONG), seed=3)
    tight = generate(read(thinking_tokens=LONG, thinking_token_budget=500), seed=3)

    assert free.thinking_tokens is not None
    assert tight.thinking_tokens is not None
    assert tight.thinking_tokens.tolist() == np.minimum(free.thinking_tokens, 500).tolist()
    assert tight.thinking_tokens.max() == 500
    answers = [each.output_tokens - each.thinking_tokens for each in (free, tight)]
    assert answers[0].tolist() == answers[1].tolist()


def test_a_number_limits_thinking_and_answer_together() -> None:
    """`max_tokens: 400` is what the client asks for, whatever it thinks."""
    specs = generate(read(thinking_tokens=LONG, max_tokens=400), seed=3)

    assert set(specs.max_tokens.tolist()) == {400}
    assert specs.output_tokens.max() > 400


def test_a_class_thinks_by_itself() -> None:
    """Of two classes that share the arrivals one thinks, of its own distribution; the other one does not."""
    classes = [
        {"name": "chat", "share": 0.5},
        {"name": "proofs", "share": 0.5, "thinking_tokens": 700, "thinking_token_budget": 650},
    ]
    specs = generate(read(classes=classes), seed=3)

    assert specs.thinking_tokens is not None
    assert specs.request_class is not None
    assert specs.thinking_tokens.tolist() == np.where(specs.request_class == 1, 650, 0).tolist()


def test_classes_with_arrivals_of_their_own_think_from_streams_of_their_own() -> None:
    """A second class that thinks moves no thought of the first."""
    own = {"arrivals": {"process": "poisson", "rate": 1.0}, "thinking_tokens": LONG}
    one = read(arrivals=None, classes=[{"name": "a", **own}])
    two = read(arrivals=None, num_requests=None, duration="100 s", classes=[{"name": "a", **own}, {"name": "b", **own}])

    alone, beside = generate(one, seed=3), generate(two, seed=3)

    assert alone.thinking_tokens is not None
    assert beside.thinking_tokens is not None
    assert beside.request_class is not None
    first = beside.thinking_tokens[beside.request_class == 0]
    assert first.tolist() == alone.thinking_tokens[: len(first)].tolist()


def test_a_conversation_forgets_what_was_thought() -> None:
    """Prompts grow by answers alone; what a cache holds of the turn before ends with its prompt."""
    sessions = {"turns": 3, "think_time": "1 s"}
    lengths = {"prompt_tokens": 50, "output_tokens": 20, "num_requests": 3}
    plain = generate(read(sessions=sessions, **lengths), seed=3)
    thinking = generate(read(sessions=sessions, thinking_tokens=100, **lengths), seed=3)

    assert thinking.prompt_tokens.tolist() == plain.prompt_tokens.tolist() == [50, 120, 190]
    assert thinking.output_tokens.tolist() == [120] * 3
    assert plain.prefixes is not None
    assert thinking.prefixes is not None
    assert plain.prefixes.ends.tolist() == [70, 70, 140, 70, 140, 210]
    assert thinking.prefixes.ends.tolist() == [50, 170, 50, 120, 240, 50, 120, 190, 310]


def test_an_answer_that_was_cut_is_shorter_in_the_history() -> None:
    """Of 60 tokens 50 are thought: 10 of the answer are left, and in the next prompt."""
    lengths = {"prompt_tokens": 50, "output_tokens": 20, "num_requests": 2, "max_tokens": 60}
    specs = generate(read(sessions={"turns": 2, "think_time": "1 s"}, thinking_tokens=50, **lengths), seed=3)

    assert specs.prompt_tokens.tolist() == [50, 110]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"thinking_token_budget": 5},
            "workload: has a thinking_token_budget and no thinking_tokens; give them, or leave it out",
        ),
        ({"thinking_tokens": 0}, "workload.thinking_tokens"),
        ({"thinking_tokens": 10, "thinking_token_budget": 0}, "workload.thinking_token_budget: 0 must be"),
    ],
)
def test_a_bad_thought_is_refused(changes: dict[str, Any], message: str) -> None:
    """One line that says what is wrong."""
    with pytest.raises(ScenarioError) as caught:
        read(**changes)
    assert message in str(caught.value)


def test_a_trace_holds_what_was_thought() -> None:
    """Nothing is added to the answers of a trace."""
    nothing = dict.fromkeys(("arrivals", "prompt_tokens", "output_tokens", "num_requests"))
    with pytest.raises(ScenarioError, match="answers of a trace hold what was thought"):
        read(**nothing, trace={"path": "traffic.csv"}, thinking_tokens=10)
