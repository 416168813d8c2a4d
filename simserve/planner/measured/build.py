"""Scenario mappings of measured servers, and the blocks of their workloads. Knows no files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROMPTS_PER_CLIENT = 10  # Prompts a client that closed-loop benchmarks send (InferenceX benchmark protocol).


def fixed(tokens: int) -> dict[str, Any]:
    """Return a length that all requests have."""
    return {"distribution": "fixed", "value": tokens}


def around(mean: float, cv: float, longest: int) -> dict[str, Any]:
    """Return lognormal lengths with a known mean, where only that and the limit are known."""
    return {"distribution": "lognormal", "mean": mean, "cv": cv, "max": longest}


def listed(file: Path, column: str | None) -> dict[str, Any]:
    """Return lengths that a file lists."""
    return {"distribution": "empirical", "path": str(file.absolute())} | ({"column": column} if column else {})


def closed_loop(
    concurrency: int,
    prompt: Mapping[str, Any],
    output: Mapping[str, Any],
    num_requests: int | None = None,
    ramp_up: float | None = None,
) -> dict[str, Any]:
    """Return clients that each send a request when the previous one is answered, and begin within ``ramp_up`` s."""
    arrivals: dict[str, Any] = {"process": "closed_loop", "concurrency": concurrency}
    if ramp_up is not None:
        arrivals["ramp_up"] = f"{ramp_up} s"
    return _sent(arrivals, num_requests or PROMPTS_PER_CLIENT * concurrency, prompt, output)


def poisson(rate: float, num_requests: int, prompt: Mapping[str, Any], output: Mapping[str, Any]) -> dict[str, Any]:
    """Return independent arrivals."""
    return _sent({"process": "poisson", "rate": rate}, num_requests, prompt, output)


def all_at_once(num_requests: int, prompt: Mapping[str, Any], output: Mapping[str, Any]) -> dict[str, Any]:
    """Return requests that are all waiting at time 0."""
    return _sent({"process": "all_at_once"}, num_requests, prompt, output)


def in_order(workload: Mapping[str, Any], file: Path, prompt: str, output: str) -> dict[str, Any]:
    """Return a workload whose requests have the lengths of a file's rows, once each and from the first on."""
    columns = {"prompt_tokens": prompt, "output_tokens": output}
    kept = {key: value for key, value in workload.items() if key not in ("prompt_tokens", "output_tokens")}
    return {**kept, "trace": {"path": str(file.absolute()), "format": "columns", "columns": columns}}


def _sent(
    arrivals: dict[str, Any], num_requests: int, prompt: Mapping[str, Any], output: Mapping[str, Any]
) -> dict[str, Any]:
    lengths = {"prompt_tokens": dict(prompt), "output_tokens": dict(output)}
    return {"arrivals": arrivals, **lengths, "num_requests": num_requests}


_CHECKPOINTS = {
    ("llama-3.1-405b", "fp8", "tensorrt-llm"): "nvidia/Llama-3.1-405B-Instruct-FP8",
    ("qwen3-32b", "fp8", "tensorrt-llm"): "Qwen/Qwen3-32B-FP8-Static-PerTensor",
}
"""Checkpoints that servers ran and that are not the first of their format: model, weight format and engine. ModelOpt's,
which TensorRT-LLM's pages and NVIDIA's own measurements name, have all linear layers in FP8 and one scale a tensor."""


def served_model(model: str, deployed: Mapping[str, Any]) -> str:
    """Return the name that a scenario has for the weights that a server ran: the model, or a checkpoint of it."""
    served = (model, str(deployed.get("quantization")), str(deployed.get("engine", {}).get("name")))
    return _CHECKPOINTS.get(served, model)


def scenario(name: str, model: str, deployed: Mapping[str, Any], workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario in which every request counts; ``name`` is made a valid one."""
    return {
        "name": re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:100],
        "model": served_model(model, deployed),
        "deployment": dict(deployed),
        "workload": dict(workload),
        "run": {"warmup": "none"},
    }
