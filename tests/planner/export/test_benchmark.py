"""The script that measures an exported endpoint: vLLM's client told to send the scenario's traffic."""

from __future__ import annotations

import math
import shlex
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from simserve.planner.export.benchmark import SCRIPT, benchmark_files
from simserve.planner.export.export import export
from simserve.scenario.load import load
from simserve.workload.generate import generate
from tests.scenario.builders import make_scenario

LENGTHS = {"prompt_tokens": {"distribution": "uniform", "min": 100, "max": 300}, "output_tokens": 20}


def flags(arrivals: dict[str, Any]) -> tuple[dict[str, str], np.ndarray]:
    """Return the flags of the client, empty where it does not send the traffic, and the prompts that were drawn."""
    scenario = make_scenario(workload={"arrivals": arrivals, **LENGTHS, "num_requests": 200})
    lines = benchmark_files(scenario, "org/model")[SCRIPT].splitlines()
    words = shlex.split(next((line for line in lines if line.startswith("vllm bench serve")), ""))
    pairs = {word: value for word, value in pairwise(words) if word.startswith("--")}
    return pairs, generate(scenario.workload, seed=scenario.run.seed).prompt_tokens


@pytest.mark.parametrize(
    ("arrivals", "told"),
    [
        ({"process": "poisson", "rate": 3.0}, {"--request-rate": "3"}),
        ({"process": "gamma", "rate": 3.0, "cv": 2.0}, {"--request-rate": "3", "--burstiness": "0.25"}),
        ({"process": "constant", "rate": 3.0}, {"--request-rate": "3", "--burstiness": "10000"}),
        ({"process": "closed_loop", "concurrency": 8}, {"--request-rate": "inf", "--max-concurrency": "8"}),
    ],
)
def test_the_client_sends_at_the_scenarios_pace(arrivals: dict[str, Any], told: dict[str, str]) -> None:
    """Its burstiness is the shape of gamma times, 1 / cv squared."""
    found, _ = flags(arrivals)

    names = ("--request-rate", "--burstiness", "--max-concurrency")
    assert {name: found[name] for name in names if name in found} == told


@pytest.mark.parametrize(
    ("target", "engine", "port"),
    [
        ("vllm", "vllm", 8000),
        ("sglang", "sglang", 30000),
        ("trtllm", "tensorrt-llm", 8000),
        ("tgi", "tgi", 3000),
        ("ollama", "ollama", 11434),
    ],
)
def test_the_script_asks_where_the_exported_server_listens(target: str, engine: str, port: int) -> None:
    """Each engine has a default port of its own, and the exported command names none."""
    scenario = make_scenario(workload={"arrivals": {"process": "poisson", "rate": 3.0}, **LENGTHS, "num_requests": 20})
    engine_of_its_own = scenario.deployment.engine.model_copy(update={"name": engine, "version": None})
    deployment = scenario.deployment.model_copy(update={"engine": engine_of_its_own})

    found = export(scenario.model_copy(update={"deployment": deployment}), target)

    script = benchmark_files(scenario, found.checkpoint, port=found.port)[SCRIPT]
    assert f"URL=${{URL:-http://localhost:{port}}}" in script


def test_a_router_answers_at_the_port_that_its_command_names() -> None:
    """In front of SGLang's prefill and decode servers, whose own ports are others."""
    command = export(load("disaggregation"), "sglang")

    assert command.port == int(command.command[command.command.index("--port") + 1]) == 8000


def test_prompts_spread_as_widely_as_the_scenarios() -> None:
    """Uniform lengths of mean m up to m (1 + r) have the standard deviation r m / sqrt(3); answers have none here."""
    found, prompts = flags({"process": "poisson", "rate": 3.0})

    assert (found["--random-input-len"], found["--random-output-len"]) == (f"{prompts.mean():.0f}", "20")
    assert float(found["--random-range-ratio"]) == pytest.approx(
        math.sqrt(3) * prompts.std() / prompts.mean(), abs=0.005
    )
    assert float(found["--random-range-ratio"]) == pytest.approx(0.5, abs=0.05)


def test_clients_that_think_are_not_the_clients_own() -> None:
    """vLLM's client sends the next request at once: `simserve observe` measures a few loads instead."""
    found, _ = flags({"process": "closed_loop", "concurrency": 8, "think_time": "2 s"})

    assert found == {}
