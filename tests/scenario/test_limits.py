"""Limits that are left wide open: what goes wrong with each, and that what is advised mends it."""

from __future__ import annotations

import pytest

from simserve.scenario.limits import open_limits
from simserve.scenario.load import load
from simserve.scenario.resolve import resolve
from tests.scenario.builders import make_scenario

WIDE_OPEN = "limits-wide-open"


def test_each_limit_is_named_with_its_figure() -> None:
    """Question 6 of the texts: 95 % of the memory, 32,768 tokens a step, no maximum length."""
    said = open_limits(resolve(load(WIDE_OPEN)))

    assert said is not None
    assert "a step of 32,768 prompt tokens takes" in said
    assert "may take 131,072 tokens, 17.18 GB a GPU" in said
    assert "95% of the memory leaves 4.255 GB" in said


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ("deployment.engine.max_num_batched_tokens=4096", "a step of"),
        ("deployment.engine.max_model_len=16384", "without a maximum length"),
        ("deployment.engine.gpu_memory_utilization=0.9", "of the memory leaves"),
    ],
)
def test_what_is_advised_mends_it(change: str, gone: str) -> None:
    """Each advice alone takes its own complaint away and leaves the others."""
    before, after = open_limits(resolve(load(WIDE_OPEN))), open_limits(resolve(load(WIDE_OPEN, [change])))

    assert before is not None
    assert after is not None
    assert f"--set {change}" in before
    assert gone in before
    assert gone not in after
    assert after.count(";") == before.count(";") - 1


def test_ordinary_limits_are_no_news() -> None:
    """A scenario that sets them says nothing."""
    assert open_limits(resolve(load("chatbot"))) is None


def test_a_length_beyond_the_model_is_simulated_and_said() -> None:
    """Question 4 of the texts asks for 16,384 tokens of a model of 4,096: a quarter as many requests fit."""
    shape = ["model=llama-2-13b", "deployment.hardware=a100-sxm-80gb", "deployment.tensor_parallel_size=1"]
    shape += ["deployment.quantization=none", "deployment.kv_cache_dtype=auto"]
    usual = resolve(load("chatbot", [*shape, "deployment.engine.max_model_len=4096"]))
    beyond = resolve(load("chatbot", [*shape, "deployment.engine.max_model_len=16384"]))

    assert usual.memory.max_concurrent_full_length is not None
    assert beyond.memory.max_concurrent_full_length == pytest.approx(usual.memory.max_concurrent_full_length / 4)
    assert "trained on 4,096 positions" in (open_limits(beyond) or "")
    assert "trained on" not in (open_limits(usual) or "")


def test_a_budget_beyond_the_table_has_its_step_too() -> None:
    """vLLM before chunked prefill takes max_model_len as its budget, 131,072 here: more than is tabulated."""
    changes = ["deployment.quantization=none", "deployment.kv_cache_dtype=auto"]
    changes += ["deployment.engine={name: vllm, version: '0.2.7'}", "deployment.hardware=h200-sxm-141gb"]

    said = open_limits(resolve(load("chatbot", changes)))

    assert said is not None
    assert "a step of 131,072 prompt tokens takes" in said
    assert said.count("--set") == 1
    advice = said.rsplit("--set ", 1)[1].removesuffix(".")
    assert advice.startswith("deployment.engine.max_model_len=")
    assert "a step of" not in (open_limits(resolve(load("chatbot", [*changes, advice]))) or "")


def test_the_length_that_is_advised_is_one_that_people_set() -> None:
    """A power of two, also where the longest that fits is an odd number of tokens."""
    resolved = resolve(
        make_scenario(["model=llama-3.1-8b", "deployment.hardware=l4-24gb", "deployment.engine.version=0.33"])
    )

    advice = open_limits(resolved) or ""

    assert resolved.memory.max_model_len % 1024
    assert advice.endswith("--set deployment.engine.max_model_len=2048")
