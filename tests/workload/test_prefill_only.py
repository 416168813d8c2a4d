"""Requests without answers: to the engine one token, to the client none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simserve.errors import ScenarioError
from simserve.sim.simulate import replay
from simserve.validation import FrozenModel, validate
from simserve.workload.generate import generate
from simserve.workload.spec import WorkloadSpec
from tests.builders import constant_step_times, make_config, make_specs


class Scenario(FrozenModel):
    """The part of a scenario that holds a workload."""

    workload: WorkloadSpec
    """The workload."""


def read(**changes: Any) -> WorkloadSpec:
    """Return a workload of embeddings with some keys changed."""
    keys = {"arrivals": {"process": "poisson", "rate": 2.0}, "prompt_tokens": 30, "output_tokens": 0, "num_requests": 6}
    return validate(Scenario, {"workload": keys | changes}, file="s.yaml", error=ScenarioError).workload


def test_an_embedding_is_one_token_to_the_engine() -> None:
    """Whatever the client asks for at most."""
    for asked in ("exact", 100):
        specs = generate(read(max_tokens=asked), seed=1)

        assert specs.output_tokens.tolist() == specs.max_tokens.tolist() == [1] * 6
        assert specs.is_prefill_only is not None
        assert specs.is_prefill_only.all()


def test_only_the_class_without_answers_is_done_with_its_prompt() -> None:
    """A class beside it answers, and thinks before."""
    classes = [{"name": "rerank", "share": 0.5}, {"name": "chat", "share": 0.5, "output_tokens": 20}]
    specs = generate(read(classes=classes, thinking_tokens=7), seed=1)

    assert specs.request_class is not None
    assert specs.is_prefill_only is not None
    assert specs.thinking_tokens is not None
    is_chat = specs.request_class == 1
    assert specs.is_prefill_only.tolist() == (~is_chat).tolist()
    assert specs.output_tokens.tolist() == np.where(is_chat, 27, 1).tolist()
    assert specs.thinking_tokens.tolist() == np.where(is_chat, 7, 0).tolist()


def test_classes_of_several_kinds_may_be_without_answers() -> None:
    """Clients who wait embed beside others who chat at times of their own."""
    classes = [
        {"name": "index", "arrivals": {"process": "closed_loop", "concurrency": 2}},
        {"name": "chat", "arrivals": {"process": "poisson", "rate": 1.0}, "output_tokens": 20},
    ]
    spec = validate(WorkloadSpec, {"prompt_tokens": 30, "output_tokens": 0, "duration": "20 s", "classes": classes})
    specs = generate(spec, seed=1)

    assert specs.request_class is not None
    assert specs.is_prefill_only is not None
    assert specs.is_prefill_only.tolist() == (specs.request_class == 0).tolist()


def test_workloads_with_answers_are_as_they_were() -> None:
    """No column is added."""
    assert generate(read(output_tokens=5), seed=1).is_prefill_only is None


def test_a_prompt_alone_ends_with_its_step() -> None:
    """Two prompts share a step of a second; no token is counted."""
    specs = make_specs([0.0, 0.0], 4, [0, 3]).without_answers()

    records = replay(make_config(), constant_step_times(), specs).records

    assert records.first_token_time.tolist() == [1.0, 1.0]
    assert records.finish_time.tolist() == [1.0, 3.0]
    assert records.output_tokens.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_tokens": 0}, "workload.prompt_tokens"),
        ({"sessions": {"turns": 2, "think_time": "1 s"}}, "has sessions, and requests without an answer"),
        ({"output_tokens": -1}, "workload.output_tokens"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    """One line that says what is wrong."""
    with pytest.raises(ScenarioError) as caught:
        read(**changes)
    assert message in str(caught.value)
