"""The contexts of a scenario's traffic: what layers with a sliding window are priced for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.perf.pricing import price
from simserve.scenario.contexts import contexts_of
from simserve.scenario.resolve import resolve
from tests.scenario.builders import make_scenario


def workload(prompt: int, output: int, **more: Any) -> dict[str, Any]:
    """Return closed-loop traffic of one client and fixed lengths."""
    return {
        "arrivals": {"process": "closed_loop", "concurrency": 1},
        "prompt_tokens": prompt,
        "output_tokens": output,
        "num_requests": 4,
        **more,
    }


def test_contexts_of_fixed_lengths_lie_in_the_answer() -> None:
    """Half of the steps of an answer of 400 tokens are in its first half, at 1,100 tokens in the mean."""
    found = contexts_of(make_scenario(workload=workload(1000, 400)))

    assert found == (1100.0,) * 8 + (1300.0,) * 8


def test_contexts_do_not_depend_on_the_length_of_the_run() -> None:
    """A deployment has the same step times whatever num_requests, the rate and the seed say."""
    lengths = {"distribution": "lognormal", "mean": 800, "cv": 1.0, "max": 8000}
    changes = ([], ["workload.num_requests=700"], ["run.seed=9"], ["workload.arrivals.concurrency=8"])
    found = {
        contexts_of(make_scenario(each, workload=workload(1, 100) | {"prompt_tokens": lengths})) for each in changes
    }

    assert len(found) == 1
    assert np.mean(found.pop()) == pytest.approx(850, rel=0.1)


def test_long_answers_count_for_more_steps() -> None:
    """One request in two answers with 1,900 tokens instead of 100: 19 of 20 steps are its."""
    classes = [
        {"name": "short", "share": 0.5, "prompt_tokens": 100, "output_tokens": 100},
        {"name": "long", "share": 0.5, "prompt_tokens": 5000, "output_tokens": 1900},
    ]
    mixed = {"arrivals": {"process": "poisson", "rate": 2.0}, "classes": classes, "num_requests": 50}
    found = contexts_of(make_scenario(workload=mixed))

    assert found is not None
    assert sum(each > 5000 for each in found) == 15


def test_a_window_far_behind_costs_the_window_alone() -> None:
    """Gemma-3 at 50,000 tokens: one more key is read in 10 of 62 layers; without traffic, by a quarter of the rest."""
    shape = resolve(make_scenario(model="gemma-3-27b", workload=workload(50_000, 64))).shape
    known, unknown = (price(each).step_times.decode_slope[1] for each in (shape, replace(shape, contexts=None)))

    assert shape.model.attention_layers[0].num_sliding_layers == 52
    assert unknown / known == pytest.approx((10 + 52 / 4) / 10)


def test_compiled_engines_attend_to_everything() -> None:
    """TensorRT-LLM before its PyTorch backend: a window only from who sets one."""

    def contexts(version: str) -> object:
        engine = {"name": "tensorrt-llm", "version": version, "max_model_len": 8192}
        changed = [f"deployment.engine={engine}", "model=mistral-7b"]
        return resolve(make_scenario(changed, workload=workload(6000, 64))).shape.contexts

    assert contexts("0.20") is None
    assert contexts("1.0") is not None


def test_models_without_such_a_window_keep_their_price() -> None:
    """Nothing is drawn for a model that sees everything, nor for gpt-oss, whose window of 128 is always full."""
    for model in ("llama-3.2-1b", "gpt-oss-20b"):
        assert resolve(make_scenario(model=model, workload=workload(1000, 64))).shape.contexts is None
