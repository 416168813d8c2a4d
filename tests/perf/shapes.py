"""Small builders of deployments: catalogue ones, and the nominal ones of worked examples."""

from __future__ import annotations

from typing import Any

from simserve.perf.shape import ReplicaShape
from simserve.profiles.catalog import load_model
from simserve.profiles.engine import load_engine, resolve_engine
from simserve.profiles.engine_options import EngineOptions
from simserve.profiles.hardware import HardwareProfile, load_hardware
from simserve.profiles.model import ModelProfile
from simserve.profiles.resolved_engine import ResolvedEngine
from simserve.profiles.static_reserve import ServerTraits


def make_hardware(name: str = "h100-sxm-80gb", **blocks: dict[str, Any]) -> HardwareProfile:
    """Return a catalogue GPU with values of its blocks replaced: ``memory={"bandwidth": 2.0e12}``."""
    profile = load_hardware(name)
    replaced = {block: getattr(profile, block).model_copy(update=values) for block, values in blocks.items()}
    return profile.model_copy(update=replaced)


def nominal_a100() -> HardwareProfile:
    """Return an A100 with the round 80 GB and 2.0 TB/s of the worked examples."""
    return make_hardware("a100-sxm-80gb", memory={"total": 80e9, "bandwidth": 2.0e12})


def make_model(name: str = "llama-3.1-8b", **fields: Any) -> ModelProfile:
    """Return a catalogue model with fields replaced: ``num_parameters_nominal=7e9``."""
    return ModelProfile.model_validate({**load_model(name).model_dump(), **fields})


def make_engine(
    hardware: HardwareProfile,
    model: ModelProfile,
    name: str = "vllm",
    *,
    version: str | None = None,
    tensor_parallel_size: int = 1,
    **overrides: Any,
) -> ResolvedEngine:
    """Return an engine as it resolves for a GPU and a model."""
    profile = load_engine(name)
    is_captured = profile.nearest_version(version).cuda_graphs.prompts is not None
    return resolve_engine(
        profile,
        version=version,
        gpu_memory_bytes=hardware.memory.total,
        gpu_name=hardware.name,
        model_max_len=model.max_position_embeddings,
        options=EngineOptions(**overrides),
        tensor_parallel_size=tensor_parallel_size,
        traits=ServerTraits(has_experts=model.moe is not None, captures_prompts=is_captured),
    )


def make_shape(
    hardware: str | HardwareProfile = "h100-sxm-80gb",
    model: str | ModelProfile = "llama-3.1-8b",
    *,
    engine: str = "vllm",
    version: str | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    data_parallel_size: int = 1,
    pipeline_layer_partition: tuple[int, ...] | None = None,
    quantization: str = "none",
    kv_cache_dtype: str = "auto",
    enable_expert_parallel: bool = False,
    attention: Any = "flash",
    engine_fields: dict[str, Any] | None = None,
    **overrides: Any,
) -> ReplicaShape:
    """Return a deployment; ``overrides`` are engine keys, ``engine_fields`` replace what they resolve to."""
    gpu = load_hardware(hardware) if isinstance(hardware, str) else hardware
    served = load_model(model) if isinstance(model, str) else model
    resolved = make_engine(gpu, served, engine, version=version, tensor_parallel_size=tensor_parallel_size, **overrides)
    return ReplicaShape(
        hardware=gpu,
        model=served,
        engine=resolved.model_copy(update=engine_fields or {}),
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
        pipeline_layer_partition=pipeline_layer_partition,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        enable_expert_parallel=enable_expert_parallel,
        attention=attention,
    )


def bare_shape(
    model: ModelProfile,
    *,
    overhead_bytes: float = 0.0,
    hardware: HardwareProfile | None = None,
    gpu_memory_utilization: float = 1.0,
    **rest: Any,
) -> ReplicaShape:
    """Return a deployment whose engine takes nothing but weights, KV and ``overhead_bytes`` of a GPU."""
    nothing = {
        "activation_token_bytes_factor": 0.0,
        "activation_logit_bytes": 0.0,
        "activation_base_bytes": 0.0,
        "cuda_graph_bytes": 0.0,
        "max_num_batched_tokens": 0,
        "non_torch_bytes_single": overhead_bytes,
        "non_torch_bytes_parallel": overhead_bytes,
    }
    return make_shape(
        hardware or nominal_a100(),
        model,
        engine_fields=nothing,
        gpu_memory_utilization=gpu_memory_utilization,
        **rest,
    )
