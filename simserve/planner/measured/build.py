"""Scenario mappings of measured servers: deployment and workload blocks. Knows no file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PROMPTS_PER_CLIENT = 10
"""Closed-loop benchmarks send this many prompts a client (InferenceX benchmark protocol)."""

LENGTH_SLACK = 200
"""Tokens of ``max_model_len`` above prompt and output ("little above isl+osl")."""


def deployment(
    hardware: str,
    *,
    engine: Mapping[str, Any],
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    data_parallel_size: int = 1,
    expert_parallel_size: int = 1,
    replicas: int = 1,
    quantization: str = "none",
    kv_cache_dtype: str = "auto",
) -> dict[str, Any]:
    """Return a deployment block; sizes of one are left out."""
    sizes = {
        "replicas": replicas,
        "tensor_parallel_size": tensor_parallel_size,
        "pipeline_parallel_size": pipeline_parallel_size,
        "data_parallel_size": data_parallel_size,
    }
    block: dict[str, Any] = {"hardware": hardware, **{key: size for key, size in sizes.items() if size != 1}}
    if expert_parallel_size > 1:
        block["enable_expert_parallel"] = True
    block |= {"quantization": quantization, "kv_cache_dtype": kv_cache_dtype}
    return {**block, "engine": {key: value for key, value in engine.items() if value not in (None, "")}}


def fixed(tokens: int) -> dict[str, Any]:
    """Return a length that all requests have."""
    return {"distribution": "fixed", "value": tokens}


def uniform_below(tokens: int, low_share: float) -> dict[str, Any]:
    """Return lengths uniform from ``low_share`` of the nominal length to it."""
    return {"distribution": "uniform", "min": max(1, int(low_share * tokens)), "max": tokens}


def uniform_around(tokens: int, spread: float) -> dict[str, Any]:
    """Return lengths uniform within ``spread`` of the mean, both ways; fixed where that is less than a token."""
    reach = int(spread * tokens)
    if not reach:
        return fixed(tokens)
    return {"distribution": "uniform", "min": max(1, tokens - reach), "max": tokens + reach}


def around(mean: float, cv: float, longest: int) -> dict[str, Any]:
    """Return lognormal lengths with a known mean, where only that and the limit are known."""
    return {"distribution": "lognormal", "mean": mean, "cv": cv, "max": longest}


def cut(mean: float, limit: int) -> dict[str, Any]:
    """Return answers that end where they end, known by their mean after they were cut at ``limit``, uncut.

    Below the limit every length is as likely as another: so were the first hundred answers of Llama-3-8B to AccelMark's
    prompts (2 to 512 tokens, 37 % at the limit of 512, 18 % below 145, mean 339). The mean of min(X, L) of an X
    uniform to U is L (1 - L / 2 U).
    """
    return {"distribution": "uniform", "min": 1, "max": round(limit / (2.0 * (1.0 - mean / limit)))}


def closed_loop(
    concurrency: int, prompt: Mapping[str, Any], output: Mapping[str, Any], num_requests: int | None = None
) -> dict[str, Any]:
    """Return clients that each send a request when the last one is answered."""
    return {
        "arrivals": {"process": "closed_loop", "concurrency": concurrency},
        "prompt_tokens": dict(prompt),
        "output_tokens": dict(output),
        "num_requests": num_requests or PROMPTS_PER_CLIENT * concurrency,
    }


def poisson(rate: float, num_requests: int, prompt: Mapping[str, Any], output: Mapping[str, Any]) -> dict[str, Any]:
    """Return independent arrivals."""
    return {
        "arrivals": {"process": "poisson", "rate": rate},
        "prompt_tokens": dict(prompt),
        "output_tokens": dict(output),
        "num_requests": num_requests,
    }


def all_at_once(num_requests: int, prompt: Mapping[str, Any], output: Mapping[str, Any]) -> dict[str, Any]:
    """Return requests that all wait at 0."""
    return {
        "arrivals": {"process": "all_at_once"},
        "prompt_tokens": dict(prompt),
        "output_tokens": dict(output),
        "num_requests": num_requests,
    }


_CHECKPOINTS = {
    ("llama-3.1-405b", "fp8", "tensorrt-llm"): "nvidia/Llama-3.1-405B-Instruct-FP8",
    ("qwen3-32b", "fp8", "tensorrt-llm"): "Qwen/Qwen3-32B-FP8-Static-PerTensor",
}
"""Checkpoints that servers ran which are not the first of their format: model, weight format and engine. ModelOpt's,
which TensorRT-LLM's pages and NVIDIA's own measurements name, have all linear layers in FP8 and one scale a tensor."""


def served_model(model: str, deployed: Mapping[str, Any]) -> str:
    """Return what a scenario calls the weights that a server of a model ran: its name, or a checkpoint of it."""
    served = (model, str(deployed.get("quantization")), str(deployed.get("engine", {}).get("name")))
    return _CHECKPOINTS.get(served, model)


def scenario(name: str, model: str, deployed: Mapping[str, Any], workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario whose every request counts; ``name`` is made a valid one."""
    return {
        "name": re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:100],
        "model": served_model(model, deployed),
        "deployment": dict(deployed),
        "workload": dict(workload),
        "run": {"warmup": "none"},
    }
