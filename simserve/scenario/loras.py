"""The `deployment.engine.lora_load` block, and what LoRA adapters of a workload ask of a scheduler.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from dataclasses import replace

from simserve.engine.config import EngineConfig
from simserve.errors import ScenarioError
from simserve.perf.loras import DISK_BANDWIDTH, adapter_bytes, slot_bytes, stored_adapter_bytes
from simserve.perf.offload import link_bandwidth
from simserve.perf.shape import ReplicaShape
from simserve.units import PositiveBytesPerSecond, Seconds, format_bytes, format_seconds
from simserve.validation import FrozenModel
from simserve.workload.loras import LorasSpec

_COUNTS_BASE = ("sglang",)
"""Engines whose limit of adapters in a batch counts requests without one as one more ("including base-only request",
SGLang's help of ``--max-loras-per-batch``)."""

_KEEPS_ALL = ("sglang",)
"""Engines whose host memory keeps every adapter unless it is told otherwise (``--max-loaded-loras``)."""


class LoraLoadSpec(FrozenModel):
    """How adapters reach the GPU. The step that admits a request whose adapter has no slot waits for it, as in vLLM."""

    disk_bandwidth: PositiveBytesPerSecond | None = None
    """Bandwidth from disk, or a network, to host memory; absent: 2.7 GB/s, as measured of safetensors on NVMe
    (ServerlessLLM, OSDI 2024)."""
    latency: Seconds = 0.0
    """What a load from there takes besides, such as a download's first byte."""
    host_bandwidth: PositiveBytesPerSecond | None = None
    """Bandwidth from host memory to a GPU; absent: its host link, as far as copies reach it."""


def with_loras(
    config: EngineConfig, loras: LorasSpec | None, load: LoraLoadSpec | None, shape: ReplicaShape
) -> EngineConfig:
    """Return what a scheduler obeys whose requests have adapters; one without seats for them where they have none.

    Raises:
        ScenarioError: The adapters do not fit the engine's options, or they are not simulated with another option.
    """
    if loras is None:
        return replace(config, max_loras=0, max_cpu_loras=0)
    _check_options(config, loras, shape)
    seats = config.max_loras - (shape.engine.name in _COUNTS_BASE and loras.base_share > 0)
    load = load or LoraLoadSpec()
    stored = stored_adapter_bytes(shape, loras.rank, loras.target_modules)
    held = adapter_bytes(shape, loras.rank, loras.target_modules)
    return replace(
        config,
        max_loras=seats,
        max_cpu_loras=max(config.max_cpu_loras or _kept_by_default(shape, loras), config.max_loras),
        lora_host_seconds=held / (load.host_bandwidth or link_bandwidth(shape)),
        lora_disk_seconds=load.latency + stored / (load.disk_bandwidth or DISK_BANDWIDTH),
    )


def _kept_by_default(shape: ReplicaShape, loras: LorasSpec) -> int:
    """Return the adapters that host memory keeps where nobody says: SGLang's all, vLLM's no more than the GPU."""
    return loras.num_adapters if shape.engine.name in _KEEPS_ALL else shape.engine.max_loras


def _check_options(config: EngineConfig, loras: LorasSpec, shape: ReplicaShape) -> None:
    engine = shape.engine
    if not engine.max_loras:
        rule = "is not set, and requests have adapters (workload.loras)"
        remedy = "give the adapters that a batch may hold, such as 4 (vLLM's default is 1, SGLang's 8)"
        raise ScenarioError(rule, key="engine.max_loras", remedy=remedy)
    if loras.rank > engine.max_lora_rank:
        rule = f"must be at least the adapters' rank, {loras.rank} (workload.loras.rank)"
        raise ScenarioError(rule, key="engine.max_lora_rank", value=engine.max_lora_rank, remedy="raise it")
    if engine.name in _COUNTS_BASE and loras.base_share > 0 and engine.max_loras < 2:
        rule = f"must be at least 2: {engine.name} counts requests without an adapter as one more"
        raise ScenarioError(rule, key="engine.max_loras", value=engine.max_loras, remedy="raise it")
    others = {
        "engine.batching": config.batching != "continuous",
        "engine.kv_allocation": config.kv_allocation not in ("paged", "static"),
        "engine.preemption_mode": config.preemption_mode == "swap",
        "engine.priority_preemption": config.priority_preemption,
    }
    for key, applies in others.items():
        if applies:
            rule = "is not simulated with adapters (workload.loras)"
            value = getattr(config, key.removeprefix("engine."))
            raise ScenarioError(rule, key=key, value=value, remedy="leave one of the two out")


def lora_lines(config: EngineConfig, shape: ReplicaShape, loras: LorasSpec | None) -> list[str]:
    """Return what slots for adapters take and how long loads do, as lines a person can check; none without slots."""
    engine, size = shape.engine, slot_bytes(shape)
    if not size:
        return []
    total = format_bytes(engine.max_loras * size)
    lines = [f"adapters: {engine.max_loras} slots x {format_bytes(size)} at rank {engine.max_lora_rank} = {total}"]
    if loras is not None:
        stored = format_bytes(stored_adapter_bytes(shape, loras.rank, loras.target_modules))
        lines.append(
            f"loading an adapter of {stored} takes {format_seconds(config.lora_host_seconds)} from host memory, "
            f"{format_seconds(config.lora_disk_seconds)} more from disk"
        )
    return lines
