"""Fleets and commands in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simserve.planner.space import REPLICAS_KEY, Overrides, with_overrides
from simserve.scenario.schema import Scenario


def deployed(scenario: Scenario, overrides: Overrides, replicas: int) -> Scenario:
    """Return the scenario on a fleet."""
    return with_overrides(scenario, {**overrides, REPLICAS_KEY: replicas})


def describe(scenario: Scenario) -> str:
    """Return a fleet in words: ``2 x (TP 2 on h100-sxm-80gb, fp8, KV fp8)``."""
    deployment = scenario.deployment
    parts = []
    if deployment.gpus_per_replica > 1:
        sizes = [f"TP {deployment.tensor_parallel_size}"] if deployment.tensor_parallel_size > 1 else []
        if deployment.pipeline_parallel_size > 1:
            sizes.append(f"PP {deployment.pipeline_parallel_size}")
        parts.append(" x ".join(sizes))
    if deployment.enable_expert_parallel:
        parts.append("EP")
    parts.append("16-bit" if deployment.quantization == "none" else deployment.quantization)
    if deployment.kv_cache_dtype != "auto":
        parts.append(f"KV {deployment.kv_cache_dtype}")
    hardware = f"{deployment.gpus_per_replica} x {deployment.hardware}"
    inner = f"{hardware}, {', '.join(parts)}"
    return f"{deployment.replicas} x ({inner})" if deployment.replicas > 1 else inner


def command(reference: Sequence[str], overrides: Overrides, replicas: int | None) -> str:
    """Return the command that runs a fleet."""
    changes = dict(overrides) if replicas is None else {**overrides, REPLICAS_KEY: replicas}
    words = [*(reference or ("SCENARIO.yaml",)), *(_set(key, changes[key]) for key in sorted(changes))]
    return " ".join(["simserve run", *words])


def _set(key: str, value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"--set {key}={text}" if all(each not in text for each in " ,{}'\"") else f"--set '{key}={text}'"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where there are several."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
