"""From the names in a scenario to plain numbers: profiles, memory, engine, price. Simulates nothing."""

from __future__ import annotations

from dataclasses import dataclass

from simserve.engine.config import EngineConfig
from simserve.errors import ScenarioError
from simserve.perf.memory import MemoryPlan, plan_memory
from simserve.perf.shape import ReplicaShape
from simserve.profiles.engine import ResolvedEngine, load_engine, resolve_engine
from simserve.profiles.hardware import HardwareProfile, load_hardware
from simserve.profiles.model import ModelProfile, load_model
from simserve.profiles.model_shapes import heads_per_rank
from simserve.scenario.schema import Scenario
from simserve.scenario.speculative import with_speculation

ENGINES_WITHOUT_EXPERT_PARALLEL = ("fastertransformer", "llama.cpp", "ollama", "orca", "tgi", "transformers")
"""Engines that cut every expert over the ranks, and have no way to place experts whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedScenario:
    """A scenario with everything that its names stand for.

    Attributes:
        scenario: What was asked.
        shape: One replica: hardware, model, engine, parallel sizes, number formats.
        memory: What of a GPU's memory goes where, and whether it fits.
        engine: Limits and rules of one replica's scheduler.
        gpu_hour_usd: Dollars a GPU-hour; None where neither the scenario nor the profile has a price.
        gpu_hour_source: Where the price comes from.
    """

    scenario: Scenario
    shape: ReplicaShape
    memory: MemoryPlan
    engine: EngineConfig
    gpu_hour_usd: float | None
    gpu_hour_source: str

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole deployment."""
        return self.scenario.deployment.num_gpus


def resolve(scenario: Scenario) -> ResolvedScenario:
    """Return the scenario with its profiles loaded and its engine and memory resolved.

    That it does not fit is a value: ``memory.fits`` is false, and `simserve.scenario.fit` says what would.

    Raises:
        InputError: A profile is missing or invalid, or the model cannot be cut or stored as asked.
    """
    shape = replica_shape(scenario)
    with scenario.blaming("deployment"):
        memory = plan_memory(shape)
    price, source = _price(scenario, shape.hardware)
    return ResolvedScenario(
        scenario=scenario,
        shape=shape,
        memory=memory,
        engine=engine_config(shape, memory),
        gpu_hour_usd=price,
        gpu_hour_source=source,
    )


def replica_shape(scenario: Scenario) -> ReplicaShape:
    """Return one replica of the scenario, checked.

    Raises:
        InputError: A profile is missing or invalid, or the model cannot be cut or stored as asked.
    """
    deployment, folder = scenario.deployment, scenario.folder
    with scenario.blaming("deployment.hardware"):
        hardware = load_hardware(deployment.hardware, folder)
    with scenario.blaming("model"):
        model = load_model(scenario.model, folder)
    engine = _resolved_engine(scenario, hardware, model)
    shape = ReplicaShape(
        hardware=hardware,
        model=model,
        engine=engine,
        tensor_parallel_size=deployment.tensor_parallel_size,
        pipeline_parallel_size=deployment.pipeline_parallel_size,
        quantization=deployment.quantization,
        kv_cache_dtype=deployment.kv_cache_dtype,
        enable_expert_parallel=deployment.enable_expert_parallel,
        attention=deployment.attention,
    )
    with scenario.blaming("deployment"):
        _check_layout(shape)
        if deployment.speculative is not None:
            shape = with_speculation(shape, deployment.speculative, folder)
    return shape


def _check_layout(shape: ReplicaShape) -> None:
    tensor, stages, layers = (
        shape.tensor_parallel_size,
        shape.pipeline_parallel_size,
        shape.model.num_hidden_layers,
    )
    if stages > layers:
        raise ScenarioError(
            f"must be at most the {layers} layers of {shape.model.name}",
            key="pipeline_parallel_size",
            value=stages,
        )
    if stages > 1 and shape.engine.kv_allocation == "none":
        raise ScenarioError(
            "must be 1 without a KV cache (kv_allocation: none)", key="pipeline_parallel_size", value=stages
        )
    _check_experts(shape)
    if shape.engine.kv_allocation == "paged" and shape.engine.block_size > shape.engine.max_model_len:
        raise ScenarioError(
            f"must be at most max_model_len, {shape.engine.max_model_len}",
            key="engine.block_size",
            value=shape.engine.block_size,
            remedy="a request would never fill its first block",
        )
    heads_per_rank(shape.model.num_attention_heads, tensor)
    if tensor > 1:
        _ = shape.tensor_link
    if stages > 1:
        _ = shape.stage_link
    _ = shape.precision


def _check_experts(shape: ReplicaShape) -> None:
    if not shape.enable_expert_parallel:
        return
    key, moe = "enable_expert_parallel", shape.model.moe
    if moe is None:
        raise ScenarioError(f"needs a model with experts, and {shape.model.name} has none", key=key, value=True)
    if shape.engine.name in ENGINES_WITHOUT_EXPERT_PARALLEL:
        raise ScenarioError(f"does not run under {shape.engine.name}", key=key, value=True)
    if shape.tensor_parallel_size > moe.num_experts:
        rule = f"must be at most the {moe.num_experts} experts of a layer with enable_expert_parallel"
        raise ScenarioError(rule, key="tensor_parallel_size", value=shape.tensor_parallel_size)


def _resolved_engine(scenario: Scenario, hardware: HardwareProfile, model: ModelProfile) -> ResolvedEngine:
    deployment = scenario.deployment
    with scenario.blaming("deployment.engine.name"):
        profile = load_engine(deployment.engine.name, scenario.folder)
    with scenario.blaming("deployment.engine"):
        return resolve_engine(
            profile,
            version=deployment.engine.version,
            gpu_memory_bytes=hardware.memory.total,
            gpu_name=hardware.name,
            model_max_len=model.max_position_embeddings,
            overrides=deployment.engine.overrides(),
            tensor_parallel_size=deployment.tensor_parallel_size,
            pipeline_parallel_size=deployment.pipeline_parallel_size,
        )


def engine_config(shape: ReplicaShape, memory: MemoryPlan) -> EngineConfig:
    """Return what the scheduler of one replica obeys."""
    engine = shape.engine
    return EngineConfig(
        batching=engine.batching,
        scheduler=engine.scheduler,
        admission=engine.admission,
        kv_allocation=engine.kv_allocation,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_chunk_tokens=engine.max_chunk_tokens,
        max_model_len=engine.max_model_len,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        reserve_full_prompt=engine.reserve_full_prompt,
        block_size=engine.block_size,
        num_blocks=memory.num_kv_blocks,
        watermark_blocks=int(engine.watermark * memory.num_kv_blocks),
        static_batch_size=engine.static_batch_size,
        static_max_wait=engine.static_max_wait,
        new_token_ratio_initial=engine.new_token_ratio_initial,
        new_token_ratio_minimum=engine.new_token_ratio_minimum,
        new_token_ratio_decay=engine.new_token_ratio_decay,
        pipeline_parallel_size=shape.pipeline_parallel_size,
        num_speculative_tokens=shape.num_speculative_tokens,
        frontend_latency=engine.frontend_latency,
    )


def _price(scenario: Scenario, hardware: HardwareProfile) -> tuple[float | None, str]:
    if scenario.pricing.gpu_hour_usd is not None:
        return scenario.pricing.gpu_hour_usd, "scenario"
    if hardware.default_price is None:
        return None, f"no price in {hardware.name}; set pricing.gpu_hour_usd"
    dates = sorted({price.date for price in hardware.prices if price.kind == "on_demand"})
    seen = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return hardware.default_price, f"median on-demand price of {hardware.name}, seen {seen}"
