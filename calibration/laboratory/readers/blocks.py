"""Blocks of scenarios for tables of measurements, in addition to `simserve.planner.measured.build`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simserve.planner.measured import build

LENGTH_SLACK = 200
"""Tokens of ``max_model_len`` beyond prompt and output ("little above isl+osl")."""


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


def uniform_below(tokens: int, low_share: float) -> dict[str, Any]:
    """Return lengths uniform from ``low_share`` of the nominal length to it."""
    return {"distribution": "uniform", "min": max(1, int(low_share * tokens)), "max": tokens}


def uniform_around(tokens: int, spread: float) -> dict[str, Any]:
    """Return lengths uniform within ``spread`` of the mean in both directions; fixed if that is less than a token."""
    reach = int(spread * tokens)
    if not reach:
        return build.fixed(tokens)
    return {"distribution": "uniform", "min": max(1, tokens - reach), "max": tokens + reach}


def cut(mean: float, limit: int) -> dict[str, Any]:
    """Return the natural lengths of answers known only by their mean after truncation at ``limit``.

    Below the limit every length is equally likely: so it was for the first hundred answers of Llama-3-8B to AccelMark's
    prompts (2 to 512 tokens, 37 % at the limit of 512, 18 % below 145, mean 339). The mean of min(X, L) of an X uniform
    to U is L (1 - L / 2 U).
    """
    return {"distribution": "uniform", "min": 1, "max": round(limit / (2.0 * (1.0 - mean / limit)))}
